//! The hyper front: accepts connections, routes `/mcp`, the resource metadata, `/healthz` and `/readyz`, and drains.

use super::pulse::Pulse;
use super::{Body, HttpService, MetadataService};
use crate::AllowedHosts;
use crate::server::Server;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Time a client has to send the next request on its connection, head and body. A connection that sends nothing, or
/// too slowly, is closed after once to twice this time.
const IDLE: Duration = Duration::from_secs(60);

/// Serves until `shutdown` is done, then drains: `/readyz` says no and flows are handed on at their checkpoints; after
/// the grace no connection is accepted; running calls are waited for, up to the drain time.
pub async fn serve(
    listener: TcpListener,
    server: Server,
    hosts: AllowedHosts,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let service = HttpService::new(server.clone(), hosts);
    let mut connections = Connections::default();
    let mut shutdown = std::pin::pin!(shutdown);
    let grace = tokio::time::sleep(Duration::ZERO);
    let mut grace = std::pin::pin!(grace);
    let mut look = tokio::time::interval(IDLE);
    // Not what the server says: whoever told it to drain did not tell this front to stop.
    let mut stopping = false;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => connections.begin(stream, &service),
                Err(error) => {
                    // Out of file descriptors, most likely: others may be given back.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            () = &mut shutdown, if !stopping => {
                stopping = true;
                server.start_draining();
                let end = tokio::time::Instant::now() + server.limits().drain_grace;
                grace.as_mut().reset(end);
                tracing::info!(running = server.running(), "draining");
            }
            () = &mut grace, if stopping => break,
            _ = look.tick() => connections.close_idle(),
            Some(_) = connections.tasks.join_next() => {}
        }
    }
    drop(listener);
    // Whoever is at work is waited for; the others would only wait for requests.
    for connection in &connections.open {
        connection.pulse.finish();
    }
    let all = async { while connections.tasks.join_next().await.is_some() {} };
    let in_time = tokio::time::timeout(server.limits().drain_time, all).await;
    if in_time.is_err() {
        let running = server.running();
        tracing::warn!(running, "the drain time is over: running calls are dropped");
    }
    Ok(())
}

/// The open connections. They are looked after from one place, so that none needs a clock of its own.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    open: Vec<Connection>,
}

struct Connection {
    pulse: Arc<Pulse>,
    seen: u64,
    task: AbortHandle,
}

impl Connections {
    fn begin(&mut self, stream: TcpStream, service: &HttpService) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY could not be set");
        }
        let pulse = Arc::<Pulse>::default();
        let task = self
            .tasks
            .spawn(connection(stream, service.clone(), pulse.clone()));
        self.open.push(Connection {
            pulse,
            seen: u64::MAX,
            task,
        });
        // Forget those that ended before the list grows.
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

async fn connection(stream: TcpStream, service: HttpService, pulse: Arc<Pulse>) {
    let service = service_fn(|request| route(&service, &pulse, request));
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
    service: &HttpService,
    pulse: &Arc<Pulse>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    pulse.beat();
    Ok(match request.uri().path() {
        "/mcp" => service.handle_with(request, Some(pulse)).await,
        "/healthz" => plain(StatusCode::OK, "ok\n"),
        "/readyz" if service.server.is_draining() => {
            plain(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
        }
        "/readyz" => plain(StatusCode::OK, "ready\n"),
        path => match MetadataService::new(&service.server) {
            Some(metadata) if metadata.is_at(path) => metadata.handle(&request),
            _ => plain(StatusCode::NOT_FOUND, "the MCP endpoint is /mcp\n"),
        },
    })
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::full(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}
