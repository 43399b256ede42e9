//! The HTTP server: routes requests and drains on shutdown.

use super::connections::OpenConnections;
use super::idle::Activity;
use super::listener::Listener;
use super::{Body, Headers, HttpService};
use crate::AllowedHosts;
use crate::server::Server;
use crate::tasks::Worker;
use crate::timer::within;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use std::convert::Infallible;
use std::future::Future;
use std::io;
#[cfg(feature = "metrics")]
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
#[cfg(feature = "metrics")]
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Time to send the replies of live calls that fail because the drain time has elapsed.
const LAST_REPLIES_TIME: Duration = Duration::from_secs(1);

/// Another path than `/mcp`.
pub(crate) struct Mount {
    /// The path, or a prefix if it ends with a slash.
    pub(crate) path: &'static str,
    pub(crate) service: Mounted,
}

pub(crate) enum Mounted {
    /// An endpoint, whose server is started and drained with the main one.
    Endpoint(HttpService),
    /// A 404 response with this text.
    NotFound(&'static str),
}

impl Mount {
    fn matches(&self, path: &str) -> bool {
        path == self.path || self.path.ends_with('/') && path.starts_with(self.path)
    }
}

/// Serves HTTP until `shutdown` resolves, then drains.
///
/// Draining first makes `/readyz` return 503 and moves flows to other instances at their checkpoints. After
/// `drain_grace` no connection is accepted, unless live calls need answers. Open connections are closed after their
/// next response, or after a further `drain_grace / 4`.
///
/// Running calls have `drain_time` to finish. Live calls that have no answer by then end with an error.
///
/// The listener is a [`TcpListener`](tokio::net::TcpListener), or a [`Listener`] with TLS.
pub async fn serve(
    listener: impl Into<Listener>,
    server: Server,
    hosts: AllowedHosts,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    serve_with(listener.into(), server, Vec::new(), hosts, shutdown).await
}

/// [`serve`] with further services next to `/mcp`.
pub(crate) async fn serve_with(
    listener: Listener,
    server: Server,
    mounts: Vec<Mount>,
    hosts: AllowedHosts,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let mounted_servers = mounts.iter().filter_map(|mount| match &mount.service {
        Mounted::Endpoint(service) => Some(service.server().clone()),
        Mounted::NotFound(_) => None,
    });
    let servers: Vec<Server> = std::iter::once(server.clone())
        .chain(mounted_servers)
        .collect();
    let routes = PortRoutes::Endpoint(HttpService::new(server.clone(), hosts), mounts.into());
    let mut connections = OpenConnections::new(routes);
    let workers: Vec<Worker> = servers.iter().map(Worker::start).collect();
    let mut shutdown = std::pin::pin!(shutdown);
    let grace = tokio::time::sleep(Duration::ZERO);
    let mut grace = std::pin::pin!(grace);
    // Not `is_draining`: the application may drain the server and continue to serve.
    let mut stopping = false;
    loop {
        tokio::select! {
            () = connections.step(&listener) => {}
            () = &mut shutdown, if !stopping => {
                stopping = true;
                servers.iter().for_each(Server::start_draining);
                workers.iter().for_each(Worker::stop);
                let end = Instant::now() + server.limits().drain_grace;
                grace.as_mut().reset(end);
                let running_calls = running_calls(&servers);
                let calls_waiting_for_answers = unanswered_calls(&servers);
                tracing::info!(running_calls, calls_waiting_for_answers, "draining");
            }
            () = &mut grace, if stopping => break,
        }
    }
    drain(&mut connections, listener, &servers).await;
    let drain_time = server.limits().drain_time;
    let stopped = workers.into_iter().map(|worker| worker.stopped(drain_time));
    let mut stopped: JoinSet<()> = stopped.collect();
    while stopped.join_next().await.is_some() {}
    Ok(())
}

/// Waits for answers and running calls, and closes all connections.
async fn drain(connections: &mut OpenConnections, listener: Listener, servers: &[Server]) {
    let limits = servers[0].limits();
    let drain_time = limits.drain_time;
    let started = Instant::now();
    let answers = accept_answers(connections, &listener, servers);
    let time_left = match within(drain_time, answers).await {
        Some(()) => drain_time.saturating_sub(started.elapsed()),
        None => {
            let calls = unanswered_calls(servers);
            tracing::warn!(calls, "drain time elapsed with unanswered live calls");
            LAST_REPLIES_TIME
        }
    };
    drop(listener);
    // A proxy may be sending a request on a connection of its pool.
    within(limits.drain_grace / 4, connections.closed()).await;
    // Without a listener, answers can no longer arrive.
    servers.iter().for_each(Server::close_live);
    connections.close();
    let all_ended = async {
        connections.closed().await;
        // Live calls may run without a connection.
        for server in servers {
            server.0.services.limits.live.wait_until_idle().await;
        }
    };
    if within(time_left, all_ended).await.is_none() {
        let running = running_calls(servers);
        tracing::warn!(running, "drain time elapsed, running calls dropped");
    }
}

/// Accepts connections until no live call waits for an answer, because an answer arrives as a new request.
async fn accept_answers(
    connections: &mut OpenConnections,
    listener: &Listener,
    servers: &[Server],
) {
    let all_answered = async {
        while unanswered_calls(servers) > 0 {
            for server in servers {
                server.0.live.all_answered().await;
            }
        }
    };
    let mut all_answered = std::pin::pin!(all_answered);
    loop {
        tokio::select! {
            biased;
            () = &mut all_answered => return,
            () = connections.step(listener) => {}
        }
    }
}

fn unanswered_calls(servers: &[Server]) -> usize {
    let servers = servers.iter();
    servers.map(|server| server.0.live.unanswered()).sum()
}

fn running_calls(servers: &[Server]) -> usize {
    servers.iter().map(Server::running).sum()
}

/// Serves `/metrics`, `/healthz` and `/readyz` until `shutdown` resolves.
///
/// Use a port that only operators can reach. Keep it open until [`serve`] returns, to observe draining.
///
/// On a loopback address, only the hosts `localhost`, `127.0.0.1`, `[::1]` and the address itself are allowed, to
/// prevent DNS rebinding. Otherwise any host is allowed.
#[cfg(feature = "metrics")]
pub async fn serve_metrics(
    listener: TcpListener,
    server: Server,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let hosts = metrics_hosts(listener.local_addr()?.ip()).map(Arc::new);
    let listener = listener.into();
    let mut connections = OpenConnections::new(PortRoutes::Metrics(server, hosts));
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            () = connections.step(&listener) => {}
            () = &mut shutdown => return Ok(()),
        }
    }
}

/// The allowed hosts of a metrics port at this address. `None`: any host.
#[cfg(feature = "metrics")]
fn metrics_hosts(address: IpAddr) -> Option<AllowedHosts> {
    let address = address.to_canonical();
    address.is_loopback().then(|| {
        let local = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
        AllowedHosts::only(local.into_iter().chain([address.to_string()]))
    })
}

/// The routes of a port, which serves either the MCP endpoint or metrics.
#[derive(Clone)]
pub(super) enum PortRoutes {
    Endpoint(HttpService, Arc<[Mount]>),
    #[cfg(feature = "metrics")]
    Metrics(Server, Option<Arc<AllowedHosts>>),
}

impl PortRoutes {
    pub(super) fn server(&self) -> &Server {
        match self {
            Self::Endpoint(service, _) => service.server(),
            #[cfg(feature = "metrics")]
            Self::Metrics(server, _) => server,
        }
    }

    /// Whether this is the MCP endpoint. Only its clients may use HTTP/2: metrics collectors do not need it.
    pub(super) fn is_endpoint(&self) -> bool {
        matches!(self, Self::Endpoint(..))
    }
}

/// Whether the main endpoint handles requests for this path: its own path, and its public documents.
fn is_served(service: &HttpService, path: &str) -> bool {
    match path {
        "/mcp" => true,
        "/mcp/server-card" => service.server().0.server_card.is_some(),
        _ => service.metadata_at(path).is_some(),
    }
}

pub(super) async fn route(
    routes: &PortRoutes,
    activity: &Arc<Activity>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    activity.request_received();
    #[cfg(feature = "metrics")]
    if let PortRoutes::Metrics(_, Some(hosts)) = routes
        && let Err(reason) = hosts.check(&Headers::read(request.headers()), request.uri())
    {
        refrain_core::limited_event!(WARN, %reason, "request to the metrics port rejected");
        return Ok(plain(
            StatusCode::FORBIDDEN,
            "forbidden: call this metrics port as localhost, or bind it to another address\n",
        ));
    }
    Ok(match (request.uri().path(), routes) {
        (path, PortRoutes::Endpoint(service, _)) if is_served(service, path) => {
            service.handle_with(request, Some(activity)).await
        }
        #[cfg(feature = "metrics")]
        ("/metrics", PortRoutes::Metrics(server, _)) => {
            let mut response = Response::new(Body::full(server.metrics_text().into()));
            let content_type = http::HeaderValue::from_static(crate::METRICS_CONTENT_TYPE);
            let headers = response.headers_mut();
            headers.insert(http::header::CONTENT_TYPE, content_type);
            response
        }
        ("/healthz", _) => plain(StatusCode::OK, "ok\n"),
        ("/readyz", _) if routes.server().is_draining() => {
            plain(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
        }
        ("/readyz", _) => plain(StatusCode::OK, "ready\n"),
        (path, PortRoutes::Endpoint(_, mounts)) => {
            let mount = mounts.iter().find(|mount| mount.matches(path));
            match mount.map(|mount| &mount.service) {
                Some(Mounted::Endpoint(service)) => {
                    service.handle_with(request, Some(activity)).await
                }
                Some(Mounted::NotFound(text)) => plain(StatusCode::NOT_FOUND, *text),
                None => plain(
                    StatusCode::NOT_FOUND,
                    "not found: the MCP endpoint is /mcp\n",
                ),
            }
        }
        #[cfg(feature = "metrics")]
        (_, PortRoutes::Metrics(..)) => plain(
            StatusCode::NOT_FOUND,
            "not found: metrics are at /metrics\n",
        ),
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
    fn metrics_hosts_are_restricted_on_loopback_addresses_only() {
        for local in ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(metrics_hosts(local.parse().unwrap()).is_some(), "{local}");
        }
        for open in ["0.0.0.0", "::", "10.0.0.7", "::ffff:10.0.0.7"] {
            assert_eq!(metrics_hosts(open.parse().unwrap()), None, "{open}");
        }
    }
}
