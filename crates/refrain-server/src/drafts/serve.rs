//! The HTTP front with an endpoint for each draft.

use super::DraftService;
use crate::http::{AllowedHosts, Body, Mount, serve_with};
use crate::server::Server;
use http::{Response, StatusCode};
use refrain_wire::drafts::Draft;
use std::future::Future;
use std::io;
use std::sync::Arc;
use tokio::net::TcpListener;

const OFF: &str = "the MCP endpoint is /mcp; drafts are off here: \
                   `refrain serve --drafts` or `drafts::serve` has them\n";

/// Like [`serve`](crate::serve), with a server for each of these drafts beside `/mcp`, at its [path](Draft::path).
pub async fn serve(
    listener: TcpListener,
    server: Server,
    drafts: Vec<(Draft, Server)>,
    hosts: AllowedHosts,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let drafts = drafts.into_iter();
    let mut mounts: Vec<Mount> = drafts
        .map(|(draft, server)| mount(draft, server, hosts.clone()))
        .collect();
    if mounts.is_empty() {
        mounts.push(Mount {
            path: "/drafts/",
            server: None,
            service: Arc::new(|_, _| Box::pin(std::future::ready(off()))),
        });
    }
    serve_with(listener, server, mounts, hosts, shutdown).await
}

fn mount(draft: Draft, server: Server, hosts: AllowedHosts) -> Mount {
    let service = DraftService::new(draft, server.clone(), hosts);
    Mount {
        path: draft.path(),
        server: Some(server),
        service: Arc::new(move |request, pulse| {
            let service = service.clone();
            Box::pin(async move { service.handle_with(request, Some(&pulse)).await })
        }),
    }
}

fn off() -> Response<Body> {
    let mut response = Response::new(Body::full(OFF.into()));
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}
