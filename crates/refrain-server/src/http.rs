//! Streamable HTTP: a tower service that answers one POST with one reply, and the hyper front that serves it.
//!
//! The answer is a single JSON object. When a handler reports progress or logs, and the client wants that, it is a
//! stream of server-sent events whose last one is the reply.

mod body;
mod headers;
mod legacy;
mod metadata;
mod pulse;
mod refuse;
mod relay;
mod serve;

pub use body::Body;
pub use headers::AllowedHosts;
pub(crate) use headers::Headers;
pub(crate) use legacy::{LAST_EVENT, SESSION};
pub use metadata::MetadataService;
use pulse::{Busy, Pulse};
pub use serve::serve;
#[cfg(feature = "metrics")]
pub use serve::serve_metrics;
pub(crate) use serve::{Mount, serve_with};

use crate::auth::Caller;
use crate::dispatch::{Sessions, is_of_session, read};
use crate::legacy::Lifetime;
use crate::metrics::Refusal;
use crate::relay::RelayClaims;
use crate::response::{Handled, MessageKind, Status};
use crate::server::Server;
use body::Source;
use bytes::{Bytes, BytesMut};
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, EXPECT, RETRY_AFTER, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body_util::BodyExt;
use refrain_wire::{ErrorCode, RpcError};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const ROUND: HeaderName = HeaderName::from_static("refrain-round");

/// The MCP endpoint as a tower service: mount it in axum, or serve it with [`serve`].
///
/// ```
/// # use refrain_server::{AllowedHosts, HttpService, Server};
/// # fn main() -> Result<(), refrain_server::BuildError> {
/// let server = Server::builder("docs", "1.0").build()?;
/// let app: axum::Router =
///     axum::Router::new().route_service("/mcp", HttpService::new(server, AllowedHosts::local()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct HttpService {
    server: Server,
    hosts: Arc<AllowedHosts>,
}

impl HttpService {
    /// The endpoint of this server, for requests to these hosts.
    pub fn new(server: Server, hosts: AllowedHosts) -> Self {
        Self {
            server,
            hosts: Arc::new(hosts),
        }
    }

    /// Answers one request.
    pub async fn handle<B>(&self, request: http::Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        self.handle_with(request, None, self).await
    }

    /// Answers one request that came in on a connection with this pulse.
    pub(crate) async fn handle_with<B>(
        &self,
        request: http::Request<B>,
        pulse: Option<&Arc<Pulse>>,
        responder: &impl Responder,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        let (parts, body) = request.into_parts();
        let heads = Headers::read(&parts.headers);
        let relayed = match heads.relay().map(|header| self.relayed(header)) {
            None => None,
            Some(Ok(relayed)) => Some(relayed),
            Some(Err(refusal)) => return *refusal,
        };
        let was_relayed = relayed.is_some();
        let mut response = match self.receive(&parts, &heads, body, relayed).await {
            Err(refusal) => *refusal,
            Ok((bytes, caller)) => {
                let busy = Busy::new(pulse);
                let mut response = match parts.method {
                    Method::POST => responder.respond(&heads, &bytes, caller, was_relayed).await,
                    _ => Box::pin(self.about_session(&parts, caller, was_relayed)).await,
                };
                response.body_mut().keep_busy(busy);
                response
            }
        };
        if was_relayed {
            self.server.0.relay.sign(&mut response);
        }
        response
    }

    /// Receives a request that the endpoint takes: its body, and its caller.
    async fn receive<B>(
        &self,
        parts: &Parts,
        heads: &Headers<'_>,
        body: B,
        relayed: Option<RelayClaims>,
    ) -> Result<(Bytes, Caller), Box<Response<Body>>>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        self.admit(parts, heads, relayed.is_some())?;
        let bytes = match parts.method {
            Method::POST => self.collect(parts, body).await?,
            _ => Bytes::new(),
        };
        let caller = self.find_caller(parts, relayed, &bytes).await?;
        Ok((bytes, caller))
    }

    /// The caller of a request with this body: as the relaying instance names it, or authenticated here.
    async fn find_caller(
        &self,
        parts: &Parts,
        relayed: Option<RelayClaims>,
        bytes: &[u8],
    ) -> Result<Caller, Box<Response<Body>>> {
        match relayed {
            Some(relayed) => {
                let caller = relayed.caller_of(&parts.method, &parts.headers, bytes);
                caller.ok_or_else(|| self.no_relay())
            }
            None => {
                let caller = self.server.0.auth.authenticate(&parts.headers).await;
                caller.map_err(|refused| Box::new(self.turn_away(&refused, bytes)))
            }
        }
    }

    /// Is this a request the endpoint takes at all?
    fn admit(
        &self,
        parts: &Parts,
        heads: &Headers<'_>,
        relayed: bool,
    ) -> Result<(), Box<Response<Body>>> {
        // A relayed request is sent to the advertised URL, and its header is sealed: it is no web page's.
        if !relayed && let Err(reason) = self.hosts.admit(heads, &parts.uri) {
            return Err(self.reject(Refusal::Host, StatusCode::FORBIDDEN, reason.to_string()));
        }
        if parts.method != Method::POST {
            if legacy::is_about_session(parts) {
                return Ok(());
            }
            let mut reason = "the MCP endpoint takes POST requests".to_owned();
            if legacy::is_for_sessions(&parts.method) {
                reason += ", and GET and DELETE in a session of an older client: ";
                reason += legacy::NO_SESSION_ID;
            }
            let status = StatusCode::METHOD_NOT_ALLOWED;
            let mut response = self.reject(Refusal::HttpMethod, status, reason);
            let post = HeaderValue::from_static("POST");
            response.headers_mut().insert(ALLOW, post);
            return Err(response);
        }
        if !heads.is_json() {
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            let reason = "Content-Type must be application/json";
            return Err(self.reject(Refusal::MediaType, status, reason));
        }
        Ok(())
    }

    /// Reads the body, up to the limit. One that came in one piece is not copied.
    async fn collect<B>(&self, parts: &Parts, body: B) -> Result<Bytes, Box<Response<Body>>>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        let limit = self.server.0.services.limits.body;
        let mut body = std::pin::pin!(body);
        let mut whole = Bytes::new();
        let mut pieces = BytesMut::new();
        let mut too_large = body.size_hint().lower() > limit as u64;
        while !too_large && let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                let error = RpcError::parse(format!("the body could not be read: {error}"));
                let status = StatusCode::BAD_REQUEST;
                Box::new(self.refuse(Refusal::Unreadable, status, None, &error))
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            too_large = whole.len() + pieces.len() + data.len() > limit;
            if whole.is_empty() && pieces.is_empty() {
                whole = data;
            } else if !too_large {
                pieces.extend_from_slice(&std::mem::take(&mut whole));
                pieces.extend_from_slice(&data);
            }
        }
        if too_large {
            // A client that asks before it sends the body has its answer without sending it.
            if !parts.headers.contains_key(EXPECT) {
                discard(body, self.server.0.services.limits.discard).await;
            }
            let reason = format!("the body is larger than the limit of {limit} bytes");
            return Err(self.reject(Refusal::TooLarge, StatusCode::PAYLOAD_TOO_LARGE, reason));
        }
        Ok(if pieces.is_empty() {
            whole
        } else {
            pieces.freeze()
        })
    }

    /// The response as one JSON object, or as a stream of events if more than the reply goes out.
    pub(crate) async fn answer(&self, mut response: crate::Response) -> Response<Body> {
        let mut first = None;
        if !response.is_subscription() {
            match response.next_message().await {
                None => return accepted(),
                Some((MessageKind::Reply, reply)) => return self.reply(&mut response, reply),
                Some((_, message)) => first = Some(message),
            }
        }
        let keep_alive = self.server.0.services.limits.keep_alive;
        events(Source::Response(first, response), keep_alive)
    }

    /// A reply, with the HTTP status and headers that belong to it.
    fn reply(&self, response: &mut crate::Response, reply: Vec<u8>) -> Response<Body> {
        let mut out = Response::new(Body::full(reply.into()));
        let headers = out.headers_mut();
        headers.insert(CONTENT_TYPE, JSON);
        let status = match response.status() {
            Status::Accepted => StatusCode::ACCEPTED,
            Status::Replied => StatusCode::OK,
            Status::Refused(code) => status(*code),
            Status::Forbidden(scopes) => {
                headers.insert(WWW_AUTHENTICATE, self.challenge(scopes));
                StatusCode::FORBIDDEN
            }
            Status::Busy => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        if let Some(id) = response.session_id()
            && let Ok(id) = HeaderValue::try_from(id)
        {
            headers.insert(SESSION, id);
        }
        if let Some(instance) = &self.server.0.instance
            && let Some(value) = explain(instance, response)
        {
            headers.insert(ROUND, value);
        }
        *out.status_mut() = status;
        out
    }
}

/// Answers the POST requests of an endpoint.
pub(crate) trait Responder: Sync {
    fn respond(
        &self,
        headers: &Headers<'_>,
        bytes: &[u8],
        caller: Caller,
        relayed: bool,
    ) -> impl Future<Output = Response<Body>> + Send;
}

impl Responder for HttpService {
    async fn respond(
        &self,
        headers: &Headers<'_>,
        bytes: &[u8],
        caller: Caller,
        relayed: bool,
    ) -> Response<Body> {
        let in_session = headers.has_session();
        let message = read(bytes, in_session);
        if in_session && is_of_session(&message) {
            let respond = self.respond_in_session(headers.all(), message, bytes, caller, relayed);
            return Box::pin(respond).await;
        }
        if !in_session && let Some(refusal) = self.refuse_without_session(headers.all(), &message) {
            return refusal;
        }
        let context = crate::Context {
            headers: Some(headers),
            ..crate::Context::new(caller, Sessions::Closed(Lifetime::Limited), !relayed)
        };
        match self.server.accept(message, context).await {
            Handled::Response(response) => self.answer(response).await,
            Handled::Relay(id, relay) => {
                Box::pin(self.relay_call(id, relay, headers.all(), bytes, relayed)).await
            }
        }
    }
}

/// Reads and discards the rest of a body: most clients read the answer only when they have sent everything. The connection
/// of a client that sends more than `most` bytes is closed.
async fn discard<B: http_body::Body<Data = Bytes>>(mut body: Pin<&mut B>, most: usize) {
    let mut left = most as u64;
    if body.size_hint().lower() > left {
        return;
    }
    while let Some(Ok(frame)) = body.frame().await {
        let size = frame.data_ref().map_or(0, Bytes::len) as u64;
        let Some(rest) = left.checked_sub(size) else {
            return;
        };
        left = rest;
    }
}

fn json(bytes: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::full(bytes));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// An answer whose body is a stream of events.
fn events(source: Source, keep_alive: Duration) -> Response<Body> {
    let mut response = Response::new(Body::events(source, keep_alive));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, EVENTS);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    let no = HeaderValue::from_static("no");
    headers.insert(HeaderName::from_static("x-accel-buffering"), no);
    response
}

/// The answer to a message that wants none.
fn accepted() -> Response<Body> {
    let mut accepted = Response::new(Body::empty());
    *accepted.status_mut() = StatusCode::ACCEPTED;
    accepted
}

fn status(code: ErrorCode) -> StatusCode {
    StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::BAD_REQUEST)
}

/// The figures of a round, for the demo and for debugging a fleet.
fn explain(instance: &str, response: &mut crate::Response) -> Option<HeaderValue> {
    let token = response.token();
    let round = response.round()?;
    let stats = round.stats();
    let text = format!(
        "instance={instance}; round={}; replayed={}; steps={}; token={token}",
        round.number(),
        stats.replayed,
        stats.steps
    );
    HeaderValue::try_from(text).ok()
}

impl<B> tower_service::Service<http::Request<B>> for HttpService
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

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(this.handle(request).await) })
    }
}
