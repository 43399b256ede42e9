//! A round-robin balancer: it watches `/readyz`, and passes over whoever refuses a connection.
//!
//! A request that was sent is never sent again: what an instance loses, the client loses.

use super::http::{Fault, send, status_of};
use super::in_time;
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// How often `/readyz` is looked at.
pub(crate) const CHECK_EVERY: Duration = Duration::from_millis(20);

/// The balancer at work. Dropping it ends it.
pub(crate) struct Balancer {
    pub(crate) address: SocketAddr,
    ring: Arc<Ring>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Ring {
    places: RwLock<Vec<Arc<Place>>>,
    turn: AtomicUsize,
}

struct Place {
    address: SocketAddr,
    ready: AtomicBool,
}

impl Balancer {
    /// Hands requests to these instances in turn.
    pub(crate) async fn start(instances: impl IntoIterator<Item = SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let ring = Arc::new(Ring::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, ring.clone()));
        tasks.spawn(keep_checking(ring.clone()));
        let this = Self {
            address,
            ring,
            _tasks: tasks,
        };
        for (at, instance) in instances.into_iter().enumerate() {
            this.put(at, instance);
        }
        this
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Puts an instance that is ready in the place of another, or in a new one.
    pub(crate) fn put(&self, at: usize, address: SocketAddr) {
        let place = Arc::new(Place {
            address,
            ready: AtomicBool::new(true),
        });
        let mut places = self
            .ring
            .places
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if at < places.len() {
            places[at] = place;
        } else {
            places.push(place);
        }
    }
}

impl Balancer {
    /// Waits until it has seen that the instance in a place is not ready.
    pub(crate) async fn passes_over(&self, at: usize) {
        let place = self.ring.places().swap_remove(at);
        let seen = async {
            while place.ready.load(Ordering::Acquire) {
                tokio::time::sleep(CHECK_EVERY).await;
            }
        };
        in_time("an instance that is not ready is passed over", seen).await;
    }
}

impl Ring {
    fn places(&self) -> Vec<Arc<Place>> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.clone()
    }

    /// Everybody, from the one whose turn it is.
    fn in_turn(&self) -> Vec<Arc<Place>> {
        let mut places = self.places();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % places.len().max(1);
        places.rotate_left(turn);
        places
    }
}

async fn keep_checking(ring: Arc<Ring>) {
    loop {
        // One that takes its time does not keep it from looking at the others.
        let places = ring.places().into_iter();
        let checks = places.map(async |place| {
            let ready = matches!(status_of(place.address, "/readyz").await, Ok(200));
            place.ready.store(ready, Ordering::Release);
        });
        futures_util::future::join_all(checks).await;
        tokio::time::sleep(CHECK_EVERY).await;
    }
}

async fn accept(listener: TcpListener, ring: Arc<Ring>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("a listening socket");
        let ring = ring.clone();
        connections.spawn(async move {
            let service = service_fn(|request| forward(&ring, request));
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // A client that went away is its own affair.
            drop(connection.await);
        });
        while connections.try_join_next().is_some() {}
    }
}

type Forwarded = Response<BoxBody<Bytes, hyper::Error>>;

async fn forward(ring: &Ring, request: Request<Incoming>) -> Result<Forwarded, Infallible> {
    let (mut parts, body) = request.into_parts();
    parts.headers.remove("connection");
    parts.headers.remove("transfer-encoding");
    let Ok(body) = body.collect().await else {
        return Ok(plain(
            StatusCode::BAD_REQUEST,
            "the body cannot be read".into(),
        ));
    };
    let body = body.to_bytes();
    for place in ring.in_turn() {
        if !place.ready.load(Ordering::Acquire) {
            continue;
        }
        let onward = Request::from_parts(parts.clone(), Full::new(body.clone()));
        match send(place.address, onward).await {
            Ok(mut response) => {
                response.headers_mut().remove("connection");
                response.headers_mut().remove("transfer-encoding");
                return Ok(response.map(BodyExt::boxed));
            }
            Err(Fault::Connect(_)) => place.ready.store(false, Ordering::Release),
            Err(fault) => return Ok(plain(StatusCode::BAD_GATEWAY, fault.to_string())),
        }
    }
    Ok(plain(
        StatusCode::BAD_GATEWAY,
        "no instance is ready".into(),
    ))
}

fn plain(status: StatusCode, text: String) -> Forwarded {
    let body = Full::from(text).map_err(|never| match never {});
    let mut response = Response::new(body.boxed());
    *response.status_mut() = status;
    response
}
