//! A draft's endpoint over HTTP.

use super::Drafted;
use crate::http::{AllowedHosts, Body, Busy, Headers, HttpService, Pulse, SESSION};
use crate::server::Server;
use bytes::Bytes;
use http::{Method, Request, Response};
use refrain_wire::drafts::Draft;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The endpoint for clients that speak a draft, as a tower service. Mount it at [`Draft::path`].
#[derive(Clone, Debug)]
pub struct DraftService {
    drafted: Drafted,
    endpoint: HttpService,
}

impl DraftService {
    /// The endpoint of this server in a draft, for requests to these hosts. The server is one built with
    /// [`ServerBuilder::draft`](crate::ServerBuilder::draft).
    pub fn new(draft: Draft, server: Server, hosts: AllowedHosts) -> Self {
        Self {
            drafted: Drafted::new(draft, server.clone()),
            endpoint: HttpService::new(server, hosts),
        }
    }

    /// Answers one request.
    pub async fn handle<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        self.handle_with(request, None).await
    }

    /// Answers one request that came in on a connection with this pulse.
    pub(super) async fn handle_with<B>(
        &self,
        request: Request<B>,
        pulse: Option<&Arc<Pulse>>,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        if request.method() != Method::POST {
            return self.endpoint.handle_with(request, pulse).await;
        }
        let (parts, body) = request.into_parts();
        let headers = Headers::read(&parts.headers);
        if let Err(refusal) = self.endpoint.admit(&parts, &headers, false) {
            return *refusal;
        }
        let bytes = match self.endpoint.collect(&parts, body).await {
            Ok(bytes) => bytes,
            Err(refusal) => return *refusal,
        };
        let caller = match self.endpoint.authenticate(&parts.headers).await {
            Ok(caller) => caller,
            Err(refused) => return self.endpoint.turn_away(&refused, &bytes),
        };
        let busy = Busy::new(pulse);
        if let Some(initialize) = self.drafted.read_initialize(&bytes) {
            let opened = self
                .endpoint
                .respond(&headers, &initialize, caller, true, busy);
            let opened = Box::pin(opened).await;
            return opened.map(|body| body.map(|reply| self.drafted.write_initialized(reply)));
        }
        let in_session = parts.headers.contains_key(SESSION);
        if in_session && !self.drafted.claims(&bytes) {
            let response = self.endpoint.respond(&headers, &bytes, caller, true, busy);
            return Box::pin(response).await;
        }
        let agreed = match in_session {
            false => None,
            true => match self.endpoint.agreed(&parts.headers, &caller) {
                Ok(agreed) => Some(agreed),
                Err(refusal) => return *refusal,
            },
        };
        let response = self.drafted.handle(&bytes, agreed, caller).await;
        self.endpoint.answer(response, busy).await
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

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(this.handle(request).await) })
    }
}
