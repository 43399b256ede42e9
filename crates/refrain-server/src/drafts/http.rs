//! Draft endpoints over HTTP.

use crate::endpoint::Endpoint;
use crate::http::{AllowedHosts, HttpService, Listener, Mount, Mounted, serve_with};
use crate::server::Server;
use refrain_wire::drafts::Draft;
use std::io;

impl HttpService {
    /// The endpoint for clients that speak a draft. The server was built with
    /// [`ServerBuilder::draft`](crate::ServerBuilder::draft). Mount it at [`Draft::path`].
    pub fn for_draft(draft: Draft, server: Server, hosts: AllowedHosts) -> Self {
        Self::with_endpoint(Endpoint::draft(draft, server), hosts)
    }
}

const DRAFTS_DISABLED: &str = "not found: the MCP endpoint is /mcp. Drafts are disabled: \
                        use `refrain serve --drafts` or `drafts::serve`\n";

/// Serves HTTP like [`serve`](crate::serve), with a server for each draft at its [path](Draft::path).
pub async fn serve(
    listener: impl Into<Listener>,
    server: Server,
    drafts: Vec<(Draft, Server)>,
    hosts: AllowedHosts,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let drafts = drafts.into_iter().map(|(draft, server)| Mount {
        path: draft.path(),
        service: Mounted::Endpoint(HttpService::for_draft(draft, server, hosts.clone())),
    });
    let mut mounts: Vec<Mount> = drafts.collect();
    if mounts.is_empty() {
        mounts.push(Mount {
            path: "/drafts/",
            service: Mounted::NotFound(DRAFTS_DISABLED),
        });
    }
    serve_with(listener.into(), server, mounts, hosts, shutdown).await
}
