//! A round-robin load balancer: an HTTP server that hands each request to the next instance.
//!
//! It is strict: request after request goes to one instance after the other, whatever was in them. An instance that
//! is not ready, or refuses the connection, is passed over. Every exchange is recorded.

use crate::Failure;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderName, TRANSFER_ENCODING};
use hyper::http::uri::{Authority, Scheme, Uri};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// What an instance did in a round.
const ROUND: HeaderName = HeaderName::from_static("refrain-round");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
/// The largest body that is read, either way.
const BODY_MAX: usize = 4 * 1024 * 1024;

const CHECK_EVERY: Duration = Duration::from_millis(50);
const CHECK_TIME: Duration = Duration::from_secs(10);
const FORWARD_TIME: Duration = Duration::from_secs(30);
const READY_TIME: Duration = Duration::from_secs(30);

/// A request that an instance served.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Exchange {
    pub(super) instance: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) passed_over: Vec<&'static str>,
    /// The method, where a header has it.
    #[serde(skip)]
    pub(super) method: String,
    /// The `refrain-round` header.
    #[serde(skip)]
    pub(super) explained: Option<String>,
    #[serde(skip)]
    pub(super) status: u16,
    #[serde(skip)]
    pub(super) body: Bytes,
}

impl Exchange {
    /// The body of the response.
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// The exchanges since the last look at them.
#[derive(Clone, Default)]
pub(super) struct Exchanges(Arc<Mutex<Vec<Exchange>>>);

impl Exchanges {
    pub(super) fn take(&self) -> Vec<Exchange> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// The balancer at work. Dropping it ends it.
pub(super) struct Balancer {
    address: SocketAddr,
    ring: Arc<Mutex<Ring>>,
    http: Http,
    exchanges: Exchanges,
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
        let (http, exchanges) = (Http::new(), Exchanges::default());
        let onward = Onward {
            ring: ring.clone(),
            http: http.clone(),
            exchanges: exchanges.clone(),
        };
        front.spawn(accept(listener, onward));
        Ok(Self {
            address,
            ring,
            http,
            exchanges,
            checks: JoinSet::new(),
            _front: front,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn exchanges(&self) -> Exchanges {
        self.exchanges.clone()
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
                while !member.check(&self.http).await {
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
            self.checks
                .spawn(keep_checking(self.http.clone(), member.clone()));
        }
        *self.ring.lock() = Ring { members, turn: 0 };
        Ok(())
    }

    /// Makes it this instance's turn.
    pub(super) fn turn_to(&self, name: &str) {
        let mut ring = self.ring.lock();
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
    async fn check(&self, http: &Http) -> bool {
        let mut request = Request::new(Full::default());
        *request.uri_mut() = Uri::from_static("/readyz");
        let response = http.send(self.address, request, CHECK_TIME).await;
        let ready = response.is_ok_and(|response| response.status() == StatusCode::OK);
        self.ready.store(ready, Ordering::Release);
        ready
    }
}

/// The HTTP client of the balancer, with a new connection for each request.
#[derive(Clone)]
struct Http(legacy::Client<HttpConnector, Full<Bytes>>);

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
enum Fault {
    /// Nothing was sent: another instance may be tried.
    #[error("{0} cannot be reached")]
    Connect(SocketAddr),
    #[error("{0} did not answer: {1}")]
    Broken(SocketAddr, Failure),
    #[error("{0} did not answer within {1:?}")]
    Late(SocketAddr, Duration),
}

impl Http {
    fn new() -> Self {
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        Self(builder.pool_max_idle_per_host(0).build_http())
    }

    /// Sends a request to an instance and reads the whole response.
    async fn send(
        &self,
        address: SocketAddr,
        mut request: Request<Full<Bytes>>,
        time: Duration,
    ) -> Result<Response<Bytes>, Fault> {
        let broken = |error: Failure| Fault::Broken(address, error);
        let mut uri = request.uri().clone().into_parts();
        uri.scheme = Some(Scheme::HTTP);
        let authority = Authority::try_from(address.to_string());
        uri.authority = Some(authority.map_err(|error| broken(error.into()))?);
        *request.uri_mut() = Uri::from_parts(uri).map_err(|error| broken(error.into()))?;
        let exchange = async {
            let response =
                self.0
                    .request(request)
                    .await
                    .map_err(|error| match error.is_connect() {
                        true => Fault::Connect(address),
                        false => broken(error.into()),
                    })?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, BODY_MAX)
                .collect()
                .await
                .map_err(broken)?;
            Ok(Response::from_parts(parts, body.to_bytes()))
        };
        let late = Err(Fault::Late(address, time));
        tokio::time::timeout(time, exchange).await.unwrap_or(late)
    }
}

async fn keep_checking(http: Http, member: Arc<Member>) {
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        member.check(&http).await;
    }
}

async fn accept(listener: TcpListener, onward: Onward) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Ok((stream, _)) = listener.accept() => {
                let onward = onward.clone();
                connections.spawn(async move {
                    let service = service_fn(|request| onward.forward(request));
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

/// Where requests go.
#[derive(Clone)]
struct Onward {
    ring: Arc<Mutex<Ring>>,
    http: Http,
    exchanges: Exchanges,
}

impl Onward {
    /// Hands one request to the instance whose turn it is.
    async fn forward(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let (mut parts, body) = request.into_parts();
        drop_hop_headers(&mut parts.headers);
        let Ok(body) = Limited::new(body, BODY_MAX).collect().await else {
            let text = "the body could not be read";
            return Ok(plain(StatusCode::BAD_REQUEST, text.into()));
        };
        let body = body.to_bytes();
        let mut passed_over = Vec::new();
        let members = self.ring.lock().members.len();
        for _ in 0..members {
            let Some(member) = self.ring.lock().take_turn() else {
                break;
            };
            if member.ready.load(Ordering::Acquire) {
                let method = header(&parts.headers, &METHOD);
                let request = Request::from_parts(parts.clone(), Full::new(body.clone()));
                match self.http.send(member.address, request, FORWARD_TIME).await {
                    Ok(response) => {
                        self.record(member.name, passed_over, method, &response);
                        let mut response = response.map(Full::new);
                        drop_hop_headers(response.headers_mut());
                        return Ok(response);
                    }
                    Err(Fault::Connect(_)) => member.ready.store(false, Ordering::Release),
                    Err(fault) => return Ok(plain(StatusCode::BAD_GATEWAY, fault.to_string())),
                }
            }
            passed_over.push(member.name);
        }
        let nobody = format!("no instance is ready: {}", passed_over.join(", "));
        Ok(plain(StatusCode::SERVICE_UNAVAILABLE, nobody))
    }

    fn record(
        &self,
        instance: &'static str,
        passed_over: Vec<&'static str>,
        method: Option<String>,
        response: &Response<Bytes>,
    ) {
        self.exchanges.0.lock().push(Exchange {
            instance,
            passed_over,
            method: method.unwrap_or_default(),
            explained: header(response.headers(), &ROUND),
            status: response.status().as_u16(),
            body: response.body().clone(),
        });
    }
}

fn header(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
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
