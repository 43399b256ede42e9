//! The hyper front: accepts connections, routes `/mcp`, `/healthz` and `/readyz`, and drains.

use super::pulse::Pulse;
use super::{Body, HttpService};
use crate::AllowedHosts;
use crate::server::Server;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

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
    let (stop, stopped) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    let grace = tokio::time::sleep(Duration::ZERO);
    let mut grace = std::pin::pin!(grace);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, service.clone(), stopped.clone()));
                }
                Err(error) => {
                    // Out of file descriptors, most likely: others may be given back.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            () = &mut shutdown, if !server.is_draining() => {
                server.start_draining();
                let end = tokio::time::Instant::now() + server.limits().drain_grace;
                grace.as_mut().reset(end);
                tracing::info!(running = server.running(), "draining");
            }
            () = &mut grace, if server.is_draining() => break,
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    // The receiver in `stopped` is alive, so this cannot fail.
    let _ = stop.send(true);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(server.limits().drain_time, all)
        .await
        .is_err()
    {
        tracing::warn!(
            running = server.running(),
            "the drain time is over: running calls are dropped"
        );
    }
    Ok(())
}

async fn connection(stream: TcpStream, service: HttpService, mut stopped: watch::Receiver<bool>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    let pulse = Arc::<Pulse>::default();
    let service = service_fn(|request| route(&service, &pulse, request));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let mut seen = 0;
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + IDLE, IDLE);
    let ended = loop {
        tokio::select! {
            ended = connection.as_mut() => break ended,
            _ = async { stopped.wait_for(|stop| *stop).await.is_ok() } => {
                connection.as_mut().graceful_shutdown();
                break connection.await;
            }
            _ = ticks.tick() => {
                if pulse.is_idle_since(&mut seen) {
                    break Ok(());
                }
            }
        }
    };
    if let Err(error) = ended {
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
        _ => plain(StatusCode::NOT_FOUND, "the MCP endpoint is /mcp\n"),
    })
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::full(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}
