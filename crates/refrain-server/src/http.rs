//! Streamable HTTP: the MCP endpoint as a tower service, and a hyper server for it.
//!
//! A response is a single JSON object, or a stream of server-sent events whose last event is the reply. It is a stream for a
//! subscription, if messages precede the reply (such as progress), or if no message is ready within `keep_alive` and the
//! client accepts streams.

mod body;
mod connections;
mod cors;
mod errors;
#[cfg(feature = "http2")]
mod frame_limit;
mod headers;
#[cfg(feature = "http2")]
mod http2;
mod idle;
mod legacy;
mod listener;
mod metadata;
mod receive;
mod relay;
mod serve;
mod server_card;
#[cfg(feature = "tls")]
mod tls;

pub use body::Body;
pub use headers::AllowedHosts;
use headers::ContentEncoding;
pub(crate) use headers::Headers;
use idle::{ActiveRequest, Activity};
pub(crate) use legacy::{LAST_EVENT_ID, SESSION_ID};
pub use listener::Listener;
pub use serve::serve;
#[cfg(feature = "metrics")]
pub use serve::serve_metrics;
pub(crate) use serve::{Mount, Mounted, serve_with};
pub(crate) use server_card::PublishedCard;
pub use server_card::{ServerCard, ServerCardError};
#[cfg(feature = "tls")]
pub use tls::{TlsCertificate, TlsError};

use crate::auth::Caller;
use crate::dispatch::SessionContext;
use crate::endpoint::Endpoint;
use crate::legacy::Lifetime;
use crate::limits::FairQueue;
use crate::metrics::Refusal;
use crate::response::{Disposition, MessageKind, Status};
use crate::server::Server;
use crate::timer::within;
use body::EventSource;
use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use refrain_core::limited_event;
use refrain_wire::ErrorCode;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const ROUND_STATS: HeaderName = HeaderName::from_static("refrain-round");

/// An error response, boxed because it is large.
type BoxedResponse = Box<Response<Body>>;

/// The MCP endpoint as a tower service. Mount it in axum, or serve it with [`serve`].
///
/// It also serves the [`ResourceMetadata`](crate::ResourceMetadata) at its well-known paths and the
/// [`ServerCard`] at the path of the endpoint followed by `/server-card`. In axum, route them to the same service.
///
/// ```
/// use refrain::server::{AllowedHosts, HttpService, Server};
///
/// # fn main() -> Result<(), refrain::server::BuildError> {
/// let server = Server::builder("docs", "1.0").build()?;
/// let app: axum::Router =
///     axum::Router::new().route_service("/mcp", HttpService::new(server, AllowedHosts::local()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct HttpService {
    endpoint: Endpoint,
    hosts: Arc<AllowedHosts>,
}

impl HttpService {
    /// The endpoint of this server. Requests for other hosts are rejected.
    pub fn new(server: Server, hosts: AllowedHosts) -> Self {
        Self::with_endpoint(Endpoint::Server(server), hosts)
    }

    pub(crate) fn with_endpoint(endpoint: Endpoint, hosts: AllowedHosts) -> Self {
        let hosts = Arc::new(hosts);
        Self { endpoint, hosts }
    }

    fn server(&self) -> &Server {
        self.endpoint.server()
    }

    /// Handles one request.
    pub async fn handle<B>(&self, request: http::Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        self.handle_with(request, None).await
    }

    /// Handles one request. With `activity`, the request counts as in flight on its connection.
    pub(crate) async fn handle_with<B>(
        &self,
        request: http::Request<B>,
        activity: Option<&Arc<Activity>>,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        let (parts, body) = request.into_parts();
        let headers = Headers::read(&parts.headers);
        if let Some(response) = self.server_card(&parts, &headers) {
            return response;
        }
        let public = self.hosts.preflight(&parts.method, &headers);
        let mut response = match public.or_else(|| self.metadata(&parts)) {
            Some(response) => response,
            None => {
                self.authenticate_and_respond(&parts, &headers, body, activity)
                    .await
            }
        };
        self.hosts.add_cors_headers(headers.origin(), &mut response);
        finish_headers(&mut response, parts.headers);
        response
    }

    async fn authenticate_and_respond<B>(
        &self,
        parts: &Parts,
        headers: &Headers<'_>,
        body: B,
        activity: Option<&Arc<Activity>>,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        let header = headers.relay();
        let claims = match header.map(|header| self.authenticate_relay(header)) {
            None => None,
            Some(Ok(claims)) => Some(claims),
            Some(Err(response)) => return *response,
        };
        let relayed = claims.is_some();
        let active = ActiveRequest::new(activity);
        let mut response = match self.receive(parts, headers, body, claims, &active).await {
            Err(response) => *response,
            Ok((mut body, caller)) => {
                let parse_permit = body.parse_permit.take();
                let bytes = &body.bytes;
                let key = caller.limit_key();
                let mut response = match parts.method {
                    Method::POST => {
                        let future = self.respond(headers, bytes, caller, relayed);
                        match parse_permit {
                            None => future.await,
                            Some(permit) => {
                                Box::pin(FairQueue::run_until_pending(permit, future)).await
                            }
                        }
                    }
                    _ => Box::pin(self.handle_session_request(parts, caller, relayed)).await,
                };
                let limits = &self.server().0.services.limits;
                if let Err(reached) = response.body_mut().count_unread(limits, key) {
                    response = self.dropped_reply(bytes, reached);
                }
                response.body_mut().keep_active(active);
                response
            }
        };
        if relayed {
            self.server().0.relay.add_instance_header(&mut response);
        }
        response
    }

    /// Checks host, origin, HTTP method and content type. Returns the encoding of the body.
    fn check_head(
        &self,
        parts: &Parts,
        headers: &Headers<'_>,
        relayed: bool,
    ) -> Result<ContentEncoding, BoxedResponse> {
        // The host of a relayed request is the address of this instance. Its sealed header proves that it is not from a
        // web page.
        if !relayed && let Err(reason) = self.hosts.check(headers, &parts.uri) {
            limited_event!(WARN, %reason, "request rejected");
            return Err(self.reject(Refusal::Host, StatusCode::FORBIDDEN, reason.to_string()));
        }
        if parts.method != Method::POST {
            if legacy::is_session_request(parts) {
                return Ok(ContentEncoding::Identity);
            }
            let mut reason = format!("method {} is not allowed: use POST", parts.method);
            if legacy::is_session_method(&parts.method) {
                reason += "; GET and DELETE need the Mcp-Session-Id of a legacy session";
            }
            let status = StatusCode::METHOD_NOT_ALLOWED;
            let mut response = self.reject(Refusal::HttpMethod, status, reason);
            let post = HeaderValue::from_static("POST");
            response.headers_mut().insert(ALLOW, post);
            return Err(response);
        }
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        if !headers.is_json() {
            let content_type = headers.content_type();
            let reason = format!("Content-Type must be application/json, not {content_type:?}");
            return Err(self.reject(Refusal::MediaType, status, reason));
        }
        headers.content_encoding().map_err(|name| {
            let supported = ContentEncoding::SUPPORTED.replace(", ", " or ");
            let reason = format!("Content-Encoding {name:?} is not supported: use {supported}");
            let mut response = self.reject(Refusal::MediaType, status, reason);
            let supported = HeaderValue::from_static(ContentEncoding::SUPPORTED);
            response.headers_mut().insert(ACCEPT_ENCODING, supported);
            response
        })
    }

    /// Sends a response as one JSON object, or as a stream of events if it has more messages than the reply.
    ///
    /// A slow response becomes a stream if the `headers` of the request accept one, because proxies close silent
    /// connections.
    async fn respond_with(
        &self,
        mut response: crate::MessageResponse,
        headers: Option<&Headers<'_>>,
    ) -> Response<Body> {
        let mut first = None;
        if !response.is_subscription() {
            match self.first_message(&mut response, headers).await {
                None => {}
                Some(None) => return empty(StatusCode::ACCEPTED),
                Some(Some((MessageKind::Reply, reply))) => {
                    return self.respond_json(&mut response, reply);
                }
                Some(Some((_, message))) => first = Some(message),
            }
        }
        let keep_alive = self.server().0.services.limits.keep_alive;
        event_stream(EventSource::Response(first, response), keep_alive)
    }

    /// The first message of a response; `Some(None)` if the request needs no reply. `None` if the message takes longer than
    /// `keep_alive` and the client accepts streams.
    async fn first_message(
        &self,
        response: &mut crate::MessageResponse,
        headers: Option<&Headers<'_>>,
    ) -> Option<Option<(MessageKind, Vec<u8>)>> {
        // Most responses are ready at once, and need no timer.
        if let Poll::Ready(first) = poll_fn(|cx| Poll::Ready(response.poll_next(cx))).await {
            return Some(first);
        }
        if !headers.is_some_and(Headers::accepts_events) {
            return Some(response.next_message().await);
        }
        let keep_alive = self.server().0.services.limits.keep_alive;
        Box::pin(within(keep_alive, response.next_message())).await
    }

    fn respond_json(
        &self,
        response: &mut crate::MessageResponse,
        reply: Vec<u8>,
    ) -> Response<Body> {
        let mut out = json(reply.into());
        let headers = out.headers_mut();
        let status = match response.status() {
            Status::Accepted => StatusCode::ACCEPTED,
            Status::Replied => StatusCode::OK,
            Status::Rejected(code) => http_status(*code),
            Status::Forbidden(scopes) => {
                headers.insert(WWW_AUTHENTICATE, self.scope_challenge(scopes));
                StatusCode::FORBIDDEN
            }
            Status::Busy(time) => {
                headers.insert(RETRY_AFTER, errors::retry_after(*time));
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        if let Some(id) = response.session_id()
            && let Ok(id) = HeaderValue::try_from(id)
        {
            headers.insert(SESSION_ID, id);
        }
        if let Some(instance) = &self.server().0.instance
            && let Some(value) = round_header(instance, response)
        {
            headers.insert(ROUND_STATS, value);
        }
        *out.status_mut() = status;
        out
    }

    /// Responds to a POST request.
    async fn respond(
        &self,
        headers: &Headers<'_>,
        bytes: &[u8],
        caller: Caller,
        relayed: bool,
    ) -> Response<Body> {
        let (endpoint, all) = (&self.endpoint, headers.all());
        let in_session = headers.has_session();
        let message = endpoint.read(bytes, in_session);
        if in_session && endpoint.belongs_to_session(bytes, &message) {
            let response = self.respond_in_session(all, message, bytes, caller, relayed);
            return Box::pin(response).await;
        }
        let mut session = None;
        if endpoint.translates() {
            if in_session {
                match self.find_session(all, &caller) {
                    Ok(found) => session = Some(found),
                    Err(response) => return *response,
                }
            }
        } else if !in_session && let Some(response) = self.reject_without_session(all, &message) {
            return response;
        }
        let sessions = match &session {
            Some(session) => SessionContext::Open(session),
            None => SessionContext::NotOpen(Lifetime::Limited),
        };
        let context = |caller, can_relay| {
            crate::Context::new(caller, sessions, can_relay).with_headers(headers)
        };
        let accepted = endpoint.accept(bytes, message, context(caller, !relayed));
        let response = match accepted.await {
            Disposition::Response(response) => response,
            Disposition::Relay(id, relay) => {
                let response = self.relay_call(id, relay, all, bytes, relayed);
                match Box::pin(response).await {
                    Ok(response) => return response,
                    Err(caller) => {
                        let message = endpoint.read(bytes, in_session);
                        let accepted = endpoint.accept(bytes, message, context(caller, false));
                        Box::pin(accepted).await.without_relay(self.server())
                    }
                }
            }
        };
        self.respond_with(response, Some(headers)).await
    }
}

/// A JSON response. `finish_headers` sets its content type.
fn json(bytes: Bytes) -> Response<Body> {
    Response::new(Body::json(bytes))
}

/// Sets the content type, and reuses the header map of the request for the response. hyper reuses the map of the response for
/// the next request, so a connection usually allocates one map. Large maps are dropped, because idle connections would keep
/// them.
fn finish_headers(response: &mut Response<Body>, mut request_headers: HeaderMap) {
    const MAX_REUSED_CAPACITY: usize = 24;
    if request_headers.capacity() <= MAX_REUSED_CAPACITY {
        request_headers.clear();
        let headers = std::mem::replace(response.headers_mut(), request_headers);
        if !headers.is_empty() {
            response.headers_mut().extend(headers);
        }
    }
    if response.body().is_json() {
        response.headers_mut().insert(CONTENT_TYPE, JSON);
    }
}

fn event_stream(source: EventSource, keep_alive: Duration) -> Response<Body> {
    let mut response = Response::new(Body::events(source, keep_alive));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, EVENTS);
    // A proxy that compresses or buffers (nginx: `X-Accel-Buffering`) may hold back the end of an event.
    let cache = HeaderValue::from_static("no-cache, no-transform");
    headers.insert(CACHE_CONTROL, cache);
    let no = HeaderValue::from_static("no");
    headers.insert(HeaderName::from_static("x-accel-buffering"), no);
    response
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

fn http_status(code: ErrorCode) -> StatusCode {
    StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::BAD_REQUEST)
}

/// The value of the `Refrain-Round` header: statistics of a round, for the demo and for debugging a fleet.
fn round_header(instance: &str, response: &mut crate::MessageResponse) -> Option<HeaderValue> {
    let token = response.token_length();
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
