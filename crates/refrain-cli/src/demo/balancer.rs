//! A round-robin load balancer: an HTTP server that hands each request to the next instance.
//!
//! It is strict: request after request goes to one instance after the other, whatever was in them. An instance that
//! is not ready, or refuses the connection, is passed over. Each response says who served it.

use super::exchange::{BODY_MAX, Fault, exchange};
use crate::Failure;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// The response header that names the instance which served a request.
pub(super) const SERVED_BY: HeaderName = HeaderName::from_static("demo-served-by");
/// The response header that names the instances which were passed over.
pub(super) const PASSED_OVER: HeaderName = HeaderName::from_static("demo-passed-over");

const CHECK_EVERY: Duration = Duration::from_millis(50);
const CHECK_TIME: Duration = Duration::from_secs(10);
const FORWARD_TIME: Duration = Duration::from_secs(30);
const READY_TIME: Duration = Duration::from_secs(30);

/// The balancer at work. Dropping it ends it.
pub(super) struct Balancer {
    address: SocketAddr,
    ring: Arc<Mutex<Ring>>,
    checks: JoinSet<()>,
    _front: JoinSet<()>,
}

#[derive(Default)]
struct Ring {
    members: Vec<Arc<Member>>,
    turn: usize,
}

struct Member {
    name: &'static str,
    address: SocketAddr,
    ready: AtomicBool,
}

impl Balancer {
    /// Listens on a free port of the loopback interface, with nobody to hand requests to yet.
    pub(super) async fn start() -> Result<Self, Failure> {
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .map_err(|error| format!("the balancer cannot listen on 127.0.0.1: {error}"))?;
        let address = listener.local_addr()?;
        let ring = Arc::new(Mutex::new(Ring::default()));
        let mut front = JoinSet::new();
        front.spawn(accept(listener, ring.clone()));
        Ok(Self {
            address,
            ring,
            checks: JoinSet::new(),
            _front: front,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Hands requests to these instances from now on, the first one first, once all of them are ready.
    pub(super) async fn hand_to(
        &mut self,
        instances: impl IntoIterator<Item = (&'static str, SocketAddr)>,
    ) -> Result<(), Failure> {
        let members: Vec<Arc<Member>> = instances
            .into_iter()
            .map(|(name, address)| {
                Arc::new(Member {
                    name,
                    address,
                    ready: AtomicBool::new(false),
                })
            })
            .collect();
        for member in &members {
            tokio::time::timeout(READY_TIME, async {
                while !member.check().await {
                    tokio::time::sleep(CHECK_EVERY).await;
                }
            })
            .await
            .map_err(|_| {
                let seconds = READY_TIME.as_secs();
                format!("instance {} is not ready after {seconds} s", member.name)
            })?;
        }
        self.checks = JoinSet::new();
        for member in &members {
            self.checks.spawn(keep_checking(member.clone()));
        }
        *lock(&self.ring) = Ring { members, turn: 0 };
        Ok(())
    }

    /// Makes it this instance's turn.
    pub(super) fn turn_to(&self, name: &str) {
        let mut ring = lock(&self.ring);
        if let Some(turn) = ring.members.iter().position(|member| member.name == name) {
            ring.turn = turn;
        }
    }
}

impl Ring {
    fn take_turn(&mut self) -> Option<Arc<Member>> {
        let member = self.members.get(self.turn)?.clone();
        self.turn = (self.turn + 1) % self.members.len();
        Some(member)
    }
}

impl Member {
    /// Looks at `/readyz`, and remembers what it said.
    async fn check(&self) -> bool {
        let request = Request::get("/readyz")
            .header(HOST, self.address.to_string())
            .body(Full::default());
        let ready = match request {
            Ok(request) => exchange(self.address, request, CHECK_TIME)
                .await
                .is_ok_and(|response| response.status() == StatusCode::OK),
            Err(_) => false,
        };
        self.ready.store(ready, Ordering::Release);
        ready
    }
}

fn lock(ring: &Mutex<Ring>) -> MutexGuard<'_, Ring> {
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn keep_checking(member: Arc<Member>) {
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        member.check().await;
    }
}

async fn accept(listener: TcpListener, ring: Arc<Mutex<Ring>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Ok((stream, _)) = listener.accept() => {
                let ring = ring.clone();
                connections.spawn(async move {
                    let service = service_fn(|request| forward(&ring, request));
                    // A client that went away is its own affair.
                    let _ = http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
            Some(_) = connections.join_next() => {}
            // The listener failed and nothing is left: do not spin.
            else => tokio::time::sleep(CHECK_EVERY).await,
        }
    }
}

/// Hands one request to the instance whose turn it is.
async fn forward(
    ring: &Mutex<Ring>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (mut parts, body) = request.into_parts();
    drop_hop_headers(&mut parts.headers);
    let Ok(body) = Limited::new(body, BODY_MAX).collect().await else {
        return Ok(plain(
            StatusCode::BAD_REQUEST,
            "the body could not be read".into(),
        ));
    };
    let body = body.to_bytes();
    let mut passed_over = Vec::new();
    let members = lock(ring).members.len();
    for _ in 0..members {
        let Some(member) = lock(ring).take_turn() else {
            break;
        };
        if member.ready.load(Ordering::Acquire) {
            let onward = Request::from_parts(parts.clone(), Full::new(body.clone()));
            match exchange(member.address, onward, FORWARD_TIME).await {
                Ok(response) => return Ok(signed(response, member.name, &passed_over)),
                Err(Fault::Connect(..)) => member.ready.store(false, Ordering::Release),
                Err(fault) => return Ok(plain(StatusCode::BAD_GATEWAY, fault.to_string())),
            }
        }
        passed_over.push(member.name);
    }
    let nobody = format!("no instance is ready: {}", passed_over.join(", "));
    Ok(plain(StatusCode::SERVICE_UNAVAILABLE, nobody))
}

fn signed(
    response: Response<Bytes>,
    served_by: &'static str,
    passed_over: &[&str],
) -> Response<Full<Bytes>> {
    let mut response = response.map(Full::new);
    let headers = response.headers_mut();
    drop_hop_headers(headers);
    headers.insert(SERVED_BY, HeaderValue::from_static(served_by));
    if let Ok(names) = HeaderValue::try_from(passed_over.join(","))
        && !passed_over.is_empty()
    {
        headers.insert(PASSED_OVER, names);
    }
    response
}

/// Headers that are about one connection do not travel on to the next.
fn drop_hop_headers(headers: &mut HeaderMap) {
    headers.remove(CONNECTION);
    headers.remove(TRANSFER_ENCODING);
}

fn plain(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response
}
