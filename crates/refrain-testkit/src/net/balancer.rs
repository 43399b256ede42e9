//! A round-robin load balancer that skips instances that are not ready (`/readyz`) or refuse connections.
//!
//! A request is never sent twice: if an instance fails during a request, the client's connection ends.

use super::proxy::{RawRequest, accept};
use super::{Connection, http, listen, until};
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const PROBE_INTERVAL: Duration = Duration::from_millis(20);

const BAD_GATEWAY: &[u8] =
    b"HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\ncontent-length: 20\r\n\r\nno instance is ready";

/// The balancer. Dropping it stops it.
pub struct Balancer {
    pub address: SocketAddr,
    ring: Arc<Ring>,
    _tasks: JoinSet<()>,
}

/// The instances, which take turns.
#[derive(Default)]
struct Ring {
    backends: Mutex<Vec<Arc<Backend>>>,
    turn: AtomicUsize,
}

struct Backend {
    address: SocketAddr,
    ready: AtomicBool,
}

impl Balancer {
    pub async fn start(instances: impl IntoIterator<Item = SocketAddr>) -> Self {
        let listener = listen().await;
        let address = listener.local_addr().expect("an address");
        let ring = Arc::new(Ring::default());
        let shared = ring.clone();
        let mut tasks = accept(listener, move |client| forward(shared.clone(), client));
        tasks.spawn(probe(ring.clone()));
        let balancer = Self {
            address,
            ring,
            _tasks: tasks,
        };
        for (index, instance) in instances.into_iter().enumerate() {
            balancer.put(index, instance);
        }
        balancer
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Replaces or adds an instance. Until the next probe it counts as ready.
    pub fn put(&self, index: usize, address: SocketAddr) {
        let backend = Arc::new(Backend {
            address,
            ready: AtomicBool::new(true),
        });
        let mut backends = self.ring.backends.lock();
        if index < backends.len() {
            backends[index] = backend;
        } else {
            backends.push(backend);
        }
    }

    /// Waits until the balancer skips an instance because it is not ready.
    pub async fn skips(&self, index: usize) {
        let backend = self.ring.backends.lock()[index].clone();
        let is_skipped = || !backend.ready.load(Ordering::Acquire);
        until("an instance to be skipped", is_skipped).await;
    }
}

impl Ring {
    async fn connect(&self) -> Option<TcpStream> {
        let mut backends = self.backends.lock().clone();
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
        let backends = ring.backends.lock().clone();
        let probes = backends.into_iter().map(async |backend| {
            let ready = matches!(http::status_of(backend.address, "/readyz").await, Ok(200));
            backend.ready.store(ready, Ordering::Release);
        });
        futures_util::future::join_all(probes).await;
        tokio::time::sleep(PROBE_INTERVAL).await;
    }
}

/// Forwards one request and its response, until either side closes its connection.
async fn forward(ring: Arc<Ring>, mut client: Connection) -> io::Result<()> {
    let request = RawRequest::read(&mut client).await?;
    let Some(mut server) = ring.connect().await else {
        return client.stream.write_all(BAD_GATEWAY).await;
    };
    server.write_all(&request.bytes).await?;
    // After its request a client sends nothing more.
    let (mut from_client, mut to_client) = client.stream.split();
    tokio::select! {
        copied = copy(&mut server, &mut to_client) => copied.map(drop),
        closed = from_client.read_u8() => closed.map(drop),
    }
}
