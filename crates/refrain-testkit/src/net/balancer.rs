//! A round-robin load balancer that probes `/readyz` and skips instances that refuse connections.
//!
//! A request is never sent twice: if an instance fails during a request, the client's connection ends.

use super::proxy::RawRequest;
use super::{http, listen, within};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Interval of the probes.
pub const CHECK_EVERY: Duration = Duration::from_millis(20);

const BAD_GATEWAY: &[u8] =
    b"HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\ncontent-length: 20\r\n\r\nno instance is ready";

/// The balancer. Dropping it stops it.
pub struct Balancer {
    pub address: SocketAddr,
    ring: Arc<Ring>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Ring {
    backends: RwLock<Vec<Arc<Backend>>>,
    turn: AtomicUsize,
}

struct Backend {
    address: SocketAddr,
    ready: AtomicBool,
}

impl Balancer {
    /// Sends requests to these instances in turn.
    pub async fn start(instances: impl IntoIterator<Item = SocketAddr>) -> Self {
        let listener = listen().await;
        let address = listener.local_addr().expect("an address");
        let ring = Arc::new(Ring::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, ring.clone()));
        tasks.spawn(probe(ring.clone()));
        let balancer = Self {
            address,
            ring,
            _tasks: tasks,
        };
        for (at, instance) in instances.into_iter().enumerate() {
            balancer.put(at, instance);
        }
        balancer
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Replaces an instance by one that is ready, or adds it.
    pub fn put(&self, at: usize, address: SocketAddr) {
        let backend = Arc::new(Backend {
            address,
            ready: AtomicBool::new(true),
        });
        let mut backends = self.ring.backends.write().expect("no panic");
        if at < backends.len() {
            backends[at] = backend;
        } else {
            backends.push(backend);
        }
    }

    /// Waits until the balancer skips an instance because it is not ready.
    pub async fn passes_over(&self, at: usize) {
        let backend = self.ring.backends().swap_remove(at);
        let skipped = async {
            while backend.ready.load(Ordering::Acquire) {
                tokio::time::sleep(CHECK_EVERY).await;
            }
        };
        within("an instance to be skipped", skipped).await;
    }
}

impl Ring {
    fn backends(&self) -> Vec<Arc<Backend>> {
        self.backends.read().expect("no panic").clone()
    }

    /// Connects to the next instance that is ready.
    async fn connect(&self) -> Option<TcpStream> {
        let mut backends = self.backends();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % backends.len().max(1);
        backends.rotate_left(turn);
        for backend in backends {
            if !backend.ready.load(Ordering::Acquire) {
                continue;
            }
            match TcpStream::connect(backend.address).await {
                Ok(stream) => return Some(stream),
                Err(_) => backend.ready.store(false, Ordering::Release),
            }
        }
        None
    }
}

async fn probe(ring: Arc<Ring>) {
    loop {
        let probes = ring.backends().into_iter().map(async |backend| {
            let ready = matches!(http::status_of(backend.address, "/readyz").await, Ok(200));
            backend.ready.store(ready, Ordering::Release);
        });
        futures_util::future::join_all(probes).await;
        tokio::time::sleep(CHECK_EVERY).await;
    }
}

async fn accept(listener: TcpListener, ring: Arc<Ring>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let ring = Arc::clone(&ring);
        connections.spawn(async move { forward(&ring, client).await });
        while connections.try_join_next().is_some() {}
    }
}

/// Forwards one request and its response, and closes the connection.
async fn forward(ring: &Ring, mut client: TcpStream) {
    let Some(request) = RawRequest::read(&mut client).await else {
        return;
    };
    let Some(mut server) = ring.connect().await else {
        // The client may be gone.
        let _ = client.write_all(BAD_GATEWAY).await;
        return;
    };
    if server.write_all(&request.bytes).await.is_ok() {
        relay(&mut server, &mut client).await;
    }
}

/// Copies a response until either side closes its connection. After its request a client sends nothing more.
async fn relay(server: &mut TcpStream, client: &mut TcpStream) {
    let (mut from_client, mut to_client) = client.split();
    tokio::select! {
        _ = copy(server, &mut to_client) => {}
        _ = from_client.read_u8() => {}
    }
}
