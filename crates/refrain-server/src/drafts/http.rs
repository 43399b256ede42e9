//! Draft endpoints over HTTP.

use super::DraftEndpoint;
use crate::auth::Caller;
use crate::dispatch::{Context, SessionContext, read};
use crate::http::{
    AllowedHosts, Body, Headers, HttpService, Listener, Mount, Responder, plain, serve_with,
};
use crate::legacy::Lifetime;
use crate::response::Disposition;
use crate::server::Server;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use refrain_wire::drafts::Draft;
use std::convert::Infallible;
use std::future::{Future, ready};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

/// The endpoint for clients that speak a draft, as a tower service. Mount it at [`Draft::path`].
#[derive(Clone, Debug)]
pub struct DraftService {
    draft: DraftEndpoint,
    http: HttpService,
}

impl DraftService {
    /// The endpoint of a server that was built with [`ServerBuilder::draft`](crate::ServerBuilder::draft). Requests
    /// whose `Host` or `Origin` is not in `hosts` are rejected.
    pub fn new(draft: Draft, server: Server, hosts: AllowedHosts) -> Self {
        Self {
            draft: DraftEndpoint::new(draft, server.clone()),
            http: HttpService::new(server, hosts),
        }
    }

    /// Handles one request.
    pub async fn handle<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        self.http.handle_with(request, None, self).await
    }
}

impl Responder for DraftService {
    async fn respond(
        &self,
        headers: &Headers<'_>,
        bytes: &[u8],
        caller: Caller,
        relayed: bool,
    ) -> Response<Body> {
        let (draft, http, all) = (&self.draft, &self.http, headers.all());
        // Parsed as in a session: a call becomes a 2026-07-28 call only by translation.
        let message = read(bytes, true);
        let mut session = None;
        if headers.has_session() {
            if !draft.needs_translation(bytes, &message) {
                let response = http.respond_in_session(all, message, bytes, caller, relayed);
                return Box::pin(response).await;
            }
            match http.find_session(all, &caller) {
                Ok(found) => session = Some(found),
                Err(response) => return *response,
            }
        }
        let sessions = match &session {
            Some(session) => SessionContext::Open(session),
            None => SessionContext::NotOpen(Lifetime::Limited),
        };
        let context = Context::new(caller, sessions, !relayed);
        match draft.accept(bytes, &message, context).await {
            Disposition::Response(response) => http.respond_with(response, Some(headers)).await,
            Disposition::Relay(id, relay) => {
                let response = http.relay_call(id, relay, all, bytes, relayed);
                match Box::pin(response).await {
                    Ok(response) => response,
                    Err(caller) => {
                        let context = Context::new(caller, sessions, false);
                        let disposition = draft.accept(bytes, &message, context).await;
                        let response = disposition.without_relay(&draft.server);
                        http.respond_with(response, Some(headers)).await
                    }
                }
            }
        }
    }
}

impl<B> tower_service::Service<Request<B>> for DraftService
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display + Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(this.handle(request).await) })
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
    let drafts = drafts.into_iter();
    let mut mounts: Vec<Mount> = drafts
        .map(|(draft, server)| mount(draft, server, hosts.clone()))
        .collect();
    if mounts.is_empty() {
        mounts.push(Mount {
            path: "/drafts/",
            server: None,
            service: Arc::new(|_, _| {
                Box::pin(ready(plain(StatusCode::NOT_FOUND, DRAFTS_DISABLED)))
            }),
        });
    }
    serve_with(listener.into(), server, mounts, hosts, shutdown).await
}

fn mount(draft: Draft, server: Server, hosts: AllowedHosts) -> Mount {
    let service = DraftService::new(draft, server.clone(), hosts);
    Mount {
        path: draft.path(),
        server: Some(server),
        service: Arc::new(move |request, activity| {
            let service = service.clone();
            Box::pin(async move {
                let http = &service.http;
                http.handle_with(request, Some(&activity), &service).await
            })
        }),
    }
}
