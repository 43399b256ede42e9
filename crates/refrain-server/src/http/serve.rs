//! The hyper fronts: they accept connections, route `/mcp` or `/metrics`, the resource metadata, `/healthz` and `/readyz`,
//! and drain.

use super::pulse::Pulse;
use super::{Body, HttpService, MetadataService};
use crate::AllowedHosts;
use crate::server::Server;
use crate::tasks::Worker;
use crate::timer::within;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Interval;

/// A service beside `/mcp`.
#[derive(Clone)]
pub(crate) struct Mount {
    /// Its path; one that ends with a slash is a prefix.
    pub(crate) path: &'static str,
    /// The server behind it, which is started and drained with the others.
    pub(crate) server: Option<Server>,
    pub(crate) service: Arc<Mounted>,
}

type Mounted = dyn Fn(Request<Incoming>, Arc<Pulse>) -> Answering + Send + Sync;
type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

impl Mount {
    fn is_at(&self, path: &str) -> bool {
        path == self.path || self.path.ends_with('/') && path.starts_with(self.path)
    }
}

/// Serves until `shutdown` is done, then drains: `/readyz` says no and flows are handed on at their checkpoints; after
/// the grace no connection is accepted; running calls are waited for, up to the drain time.
pub async fn serve(
    listener: TcpListener,
    server: Server,
    hosts: AllowedHosts,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    serve_with(listener, server, Vec::new(), hosts, shutdown).await
}

/// The same, with further services beside `/mcp`.
pub(crate) async fn serve_with(
    listener: TcpListener,
    server: Server,
    mounts: Vec<Mount>,
    hosts: AllowedHosts,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let mounted = mounts.iter().filter_map(|mount| mount.server.clone());
    let servers: Vec<Server> = [server.clone()].into_iter().chain(mounted).collect();
    let front = Front::Endpoint(HttpService::new(server.clone(), hosts), mounts.into());
    let mut connections = Connections::new(front);
    let workers: Vec<Worker> = servers.iter().map(Worker::start).collect();
    let mut shutdown = std::pin::pin!(shutdown);
    let grace = tokio::time::sleep(Duration::ZERO);
    let mut grace = std::pin::pin!(grace);
    // Independent of the server: the application may drain it without stopping this front.
    let mut stopping = false;
    loop {
        tokio::select! {
            () = connections.tend(&listener) => {}
            () = &mut shutdown, if !stopping => {
                stopping = true;
                servers.iter().for_each(Server::start_draining);
                workers.iter().for_each(Worker::stop);
                let end = tokio::time::Instant::now() + server.limits().drain_grace;
                grace.as_mut().reset(end);
                tracing::info!(running = running(&servers), "draining");
            }
            () = &mut grace, if stopping => break,
        }
    }
    drop(listener);
    // No answer can arrive any more.
    servers.iter().for_each(Server::close_live);
    // Idle connections end at once.
    for connection in &connections.open {
        connection.pulse.finish();
    }
    let all = async {
        while connections.tasks.join_next().await.is_some() {}
        // Calls without a client are at work too.
        for server in &servers {
            server.0.services.limits.live.wait_until_idle().await;
        }
    };
    let patience = server.limits().drain_time;
    if within(patience, all).await.is_none() {
        tracing::warn!(
            running = running(&servers),
            "drain time is over: running calls are dropped"
        );
    }
    let mut stopping = JoinSet::new();
    for worker in workers {
        stopping.spawn(worker.stopped(patience));
    }
    while stopping.join_next().await.is_some() {}
    Ok(())
}

fn running(servers: &[Server]) -> usize {
    servers.iter().map(Server::running).sum()
}

/// Serves `/metrics`, `/healthz` and `/readyz` until `shutdown` is done, and no calls. For a port that only operators can
/// reach: keep it open until [`serve`] is done, so that draining can be watched.
///
/// A port on a loopback address answers only for `localhost`, `127.0.0.1`, `[::1]` and the address itself, with any port:
/// otherwise a web page could read it by DNS rebinding. Other ports answer for any host.
#[cfg(feature = "metrics")]
pub async fn serve_metrics(
    listener: TcpListener,
    server: Server,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let hosts = metrics_hosts(listener.local_addr()?.ip()).map(Arc::new);
    let mut connections = Connections::new(Front::Metrics(server, hosts));
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            () = connections.tend(&listener) => {}
            () = &mut shutdown => return Ok(()),
        }
    }
}

/// The hosts that a port at this address answers for. `None`: any.
#[cfg(feature = "metrics")]
fn metrics_hosts(address: std::net::IpAddr) -> Option<AllowedHosts> {
    let address = address.to_canonical();
    address.is_loopback().then(|| {
        let local = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
        AllowedHosts::only(local.into_iter().chain([address.to_string()]))
    })
}

/// The routes of a port.
#[derive(Clone)]
enum Front {
    Endpoint(HttpService, Arc<[Mount]>),
    #[cfg(feature = "metrics")]
    Metrics(Server, Option<Arc<AllowedHosts>>),
}

impl Front {
    fn server(&self) -> &Server {
        match self {
            Self::Endpoint(service, _) => &service.server,
            #[cfg(feature = "metrics")]
            Self::Metrics(server, _) => server,
        }
    }
}

/// The open connections of a port, with one clock for all.
struct Connections {
    front: Front,
    look: Interval,
    tasks: JoinSet<()>,
    open: Vec<Connection>,
}

struct Connection {
    pulse: Arc<Pulse>,
    seen: u64,
    task: AbortHandle,
}

impl Connections {
    fn new(front: Front) -> Self {
        // An interval of zero panics.
        let idle_time = front.server().limits().idle_time;
        Self {
            look: tokio::time::interval(idle_time.max(Duration::from_millis(1))),
            front,
            tasks: JoinSet::new(),
            open: Vec::new(),
        }
    }

    /// Accepts one connection, or closes idle ones.
    async fn tend(&mut self, listener: &TcpListener) {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => self.begin(stream),
                Err(error) => {
                    // Most likely out of file descriptors.
                    tracing::warn!(%error, "failed to accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            _ = self.look.tick() => self.close_idle(),
            Some(_) = self.tasks.join_next() => {}
        }
    }

    fn begin(&mut self, stream: TcpStream) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "failed to set TCP_NODELAY");
        }
        let pulse = Arc::<Pulse>::default();
        let task = self
            .tasks
            .spawn(connection(stream, self.front.clone(), pulse.clone()));
        self.open.push(Connection {
            pulse,
            seen: u64::MAX,
            task,
        });
        // Removes ended ones before the list grows.
        if self.open.len() == self.open.capacity() {
            self.open
                .retain(|connection| !connection.task.is_finished());
        }
    }

    fn close_idle(&mut self) {
        self.open.retain_mut(|connection| {
            if connection.pulse.is_idle_since(&mut connection.seen) {
                connection.task.abort();
            }
            !connection.task.is_finished()
        });
    }
}

async fn connection(stream: TcpStream, front: Front, pulse: Arc<Pulse>) {
    let service = service_fn(|request| route(&front, &pulse, request));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let mut finishing = false;
    let ended = poll_fn(|cx| {
        if !finishing && pulse.is_finishing(cx.waker()) {
            finishing = true;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(cx)
    });
    if let Err(error) = ended.await {
        tracing::debug!(%error, "a connection ended");
    }
}

async fn route(
    front: &Front,
    pulse: &Arc<Pulse>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    pulse.beat();
    #[cfg(feature = "metrics")]
    if let Front::Metrics(_, Some(hosts)) = front
        && let Err(reason) = hosts.admit(
            &super::headers::Headers::read(request.headers()),
            request.uri(),
        )
    {
        return Ok(plain(StatusCode::FORBIDDEN, reason.to_string()));
    }
    Ok(match (request.uri().path(), front) {
        ("/mcp", Front::Endpoint(service, _)) => {
            service.handle_with(request, Some(pulse), service).await
        }
        #[cfg(feature = "metrics")]
        ("/metrics", Front::Metrics(server, _)) => {
            let mut response = Response::new(Body::full(server.metrics_text().into()));
            let content_type = http::HeaderValue::from_static(crate::METRICS_CONTENT_TYPE);
            let headers = response.headers_mut();
            headers.insert(http::header::CONTENT_TYPE, content_type);
            response
        }
        ("/healthz", _) => plain(StatusCode::OK, "ok\n"),
        ("/readyz", _) if front.server().is_draining() => {
            plain(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
        }
        ("/readyz", _) => plain(StatusCode::OK, "ready\n"),
        (path, Front::Endpoint(service, mounts)) => {
            if let Some(mount) = mounts.iter().find(|mount| mount.is_at(path)) {
                return Ok((mount.service)(request, pulse.clone()).await);
            }
            match MetadataService::new(&service.server) {
                Some(metadata) if metadata.is_at(path) => metadata.handle(&request),
                _ => plain(StatusCode::NOT_FOUND, "the MCP endpoint is /mcp\n"),
            }
        }
        #[cfg(feature = "metrics")]
        (_, Front::Metrics(..)) => plain(StatusCode::NOT_FOUND, "the metrics are at /metrics\n"),
    })
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::full(text.into()));
    *response.status_mut() = status;
    response
}

#[cfg(all(test, feature = "metrics"))]
mod tests {
    use super::*;

    #[test]
    fn a_metrics_port_asks_for_its_host_on_a_loopback_address_only() {
        for local in ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(metrics_hosts(local.parse().unwrap()).is_some(), "{local}");
        }
        for open in ["0.0.0.0", "::", "10.0.0.7", "::ffff:10.0.0.7"] {
            assert_eq!(metrics_hosts(open.parse().unwrap()), None, "{open}");
        }
    }
}
