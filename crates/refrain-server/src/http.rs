//! Streamable HTTP: a tower service that answers one POST with one reply, and the hyper front that serves it.
//!
//! The answer is a single JSON object. When a handler reports progress or logs, and the client wants that, it is a
//! stream of server-sent events whose last one is the reply.

mod body;
mod drafts;
mod headers;
mod legacy;
mod metadata;
mod pulse;
mod refuse;
mod relay;
mod serve;

pub use body::Body;
pub use headers::AllowedHosts;
pub use metadata::MetadataService;
pub use serve::{serve, serve_metrics, serve_with_drafts};

use crate::auth::{Caller, Refused};
use crate::complete::NoReply;
use crate::dispatch::{Begin, Request};
use crate::metrics::Refusal;
use crate::outgoing::Outgoing;
use crate::record;
use crate::rounds::{Round, RoundEvent};
use crate::server::Server;
use body::EventStream;
use bytes::{Bytes, BytesMut};
use headers::Heads;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, EXPECT};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body_util::BodyExt;
use pulse::{Busy, Pulse};
use refrain_core::Principal;
use refrain_wire::{
    Draft, DraftExchange, ErrorCode, Id, Message, Reply, RpcError, is_modern, parse, read_call,
    write_reply,
};
use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt::Write;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

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
    /// The draft that is spoken here instead of the ratified revision.
    draft: Option<Draft>,
    /// The request of a draft that is being answered.
    exchange: Option<Arc<DraftExchange>>,
}

/// Why a body is not answered as a request of the ratified revision.
enum Unread {
    /// It is of an earlier one.
    Legacy,
    /// There is no request in it, or a wrong one.
    Refused(Box<Response<Body>>),
}

impl From<Response<Body>> for Unread {
    fn from(response: Response<Body>) -> Self {
        Self::Refused(Box::new(response))
    }
}

impl HttpService {
    /// The endpoint of this server, for requests to these hosts.
    pub fn new(server: Server, hosts: AllowedHosts) -> Self {
        Self {
            server,
            hosts: Arc::new(hosts),
            draft: None,
            exchange: None,
        }
    }

    /// Answers one request.
    pub async fn handle<B>(&self, request: http::Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        self.handle_with(request, None).await
    }

    /// Answers one request that came in on a connection with this pulse.
    async fn handle_with<B>(
        &self,
        request: http::Request<B>,
        pulse: Option<&Arc<Pulse>>,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        let (parts, body) = request.into_parts();
        let heads = Heads::read(&parts.headers);
        let relayed = match heads.relay().map(|header| self.relayed(header)) {
            None => None,
            Some(Ok(relayed)) => Some(relayed),
            Some(Err(refusal)) => return *refusal,
        };
        if let Err(refusal) = self.admit(&parts, &heads, relayed.is_some()) {
            return *refusal;
        }
        if parts.method != Method::POST {
            return match self.authenticate(&parts.headers).await {
                Ok(caller) => Box::pin(self.about_session(&parts, caller, Busy::new(pulse))).await,
                Err(refused) => self.turn_away(&refused, &[]),
            };
        }
        let bytes = match self.collect(&parts, body).await {
            Ok(bytes) => bytes,
            Err(refusal) => return *refusal,
        };
        let was_relayed = relayed.is_some();
        let caller = match relayed {
            Some(relayed) => match relayed.caller_of(&bytes) {
                Some(caller) => caller,
                None => return self.no_relay(),
            },
            None => match self.authenticate(&parts.headers).await {
                Ok(caller) => caller,
                Err(refused) => return self.turn_away(&refused, &bytes),
            },
        };
        let busy = Busy::new(pulse);
        match self.draft {
            None => {
                self.respond(&parts.headers, &heads, &bytes, caller, was_relayed, busy)
                    .await
            }
            Some(draft) => {
                let respond = self.respond_in(draft, &parts.headers, &heads, &bytes, caller, busy);
                Box::pin(respond).await
            }
        }
    }

    /// Who is calling?
    async fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, Refused> {
        match &self.server.0.authenticator {
            None => Ok(Principal::anonymous().into()),
            Some(authenticator) => authenticator.authenticate(headers).await,
        }
    }

    /// Is this a request the endpoint takes at all?
    fn admit(
        &self,
        parts: &Parts,
        heads: &Heads<'_>,
        relayed: bool,
    ) -> Result<(), Box<Response<Body>>> {
        // A peer reaches this instance by an address of its own, and has shown that it is no web page.
        if !relayed && let Err(reason) = self.hosts.admit(heads, &parts.uri) {
            let error = RpcError::invalid_request(reason);
            let status = StatusCode::FORBIDDEN;
            return Err(Box::new(self.refuse(Refusal::Host, status, None, &error)));
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
            let error = RpcError::invalid_request(reason);
            let status = StatusCode::METHOD_NOT_ALLOWED;
            let mut response = self.refuse(Refusal::HttpMethod, status, None, &error);
            let post = HeaderValue::from_static("POST");
            response.headers_mut().insert(ALLOW, post);
            return Err(Box::new(response));
        }
        if !heads.is_json() {
            let error = RpcError::invalid_request("Content-Type must be application/json");
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            let response = self.refuse(Refusal::MediaType, status, None, &error);
            return Err(Box::new(response));
        }
        Ok(())
    }

    /// Reads the body, up to the limit. One that came in one piece is not copied.
    async fn collect<B>(&self, parts: &Parts, body: B) -> Result<Bytes, Box<Response<Body>>>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        let limit = self.server.0.limits.body;
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
                discard(body, self.server.0.limits.discard).await;
            }
            let error = RpcError::invalid_request(format!(
                "the body is larger than the limit of {limit} bytes"
            ));
            let status = StatusCode::PAYLOAD_TOO_LARGE;
            let response = self.refuse(Refusal::TooLarge, status, None, &error);
            return Err(Box::new(response));
        }
        Ok(if pieces.is_empty() {
            whole
        } else {
            pieces.freeze()
        })
    }

    async fn respond(
        &self,
        headers: &HeaderMap,
        heads: &Heads<'_>,
        bytes: &[u8],
        caller: Caller,
        relayed: bool,
        busy: Busy,
    ) -> Response<Body> {
        let (id, request) = match self.read(headers, heads, bytes) {
            Ok(read) => read,
            Err(Unread::Legacy) => {
                return Box::pin(self.respond_older(headers, bytes, caller, busy)).await;
            }
            Err(Unread::Refused(refusal)) => return *refusal,
        };
        let method = request.method();
        let server = &self.server;
        let mirrored = self.exchange.is_none().then_some(headers);
        let begun = match server.fetch(&request) {
            Some(fetching) => {
                let fetched = fetching.await;
                server.answer_fetched(request, fetched, caller, mirrored)
            }
            None => server.answer(request, caller, mirrored),
        };
        match begun {
            Begin::Reply(reply) => self.reply(method, id, &reply, None),
            Begin::Refused(error) => {
                let refusal = Refusal::error(error.code);
                self.refuse(refusal, status(error.code), Some(id), &error)
            }
            Begin::Later(later) => match later.await {
                Ok(reply) => self.reply(method, id, &reply, None),
                Err(NoReply::Forbidden(missing)) => self.forbid(id, missing),
                Err(NoReply::Busy(error)) => self.busy(Some(id), &error),
            },
            Begin::Round(round) => self.run(id, round, busy).await,
            Begin::Forbidden(missing) => self.forbid(id, missing),
            Begin::Listen(subscription) => {
                let listener = Outgoing::of_listener(self.server.clone(), id, subscription);
                self.stream(listener, busy)
            }
            Begin::Relay(relay) => {
                let request = (headers, bytes);
                Box::pin(self.hand_on(id, *relay, relayed, request, busy)).await
            }
            Begin::Busy(error) => self.busy(Some(id), &error),
        }
    }

    /// Reads a request and checks what it says about itself.
    fn read<'a>(
        &self,
        headers: &HeaderMap,
        heads: &Heads<'_>,
        bytes: &'a [u8],
    ) -> Result<(Id<'a>, Request<'a>), Unread> {
        let (id, method, request) = match read_call(bytes) {
            Some((id, call)) => {
                let method = Cow::Borrowed(call.kind.method());
                (id, method, Ok(Request::Call(call)))
            }
            None if legacy::is_legacy(headers, bytes) => return Err(Unread::Legacy),
            None => match parse(bytes) {
                Ok(Message::Request { id, method, params }) => {
                    let request = Request::decode(&self.server, &method, params);
                    if request.is_err() && !is_modern(params) && self.lacks_session(headers) {
                        return Err(self.no_session_id(Some(id)).into());
                    }
                    (id, method, request)
                }
                Ok(Message::Notification { .. }) => return Err(accepted().into()),
                Ok(Message::Response(response)) => {
                    let error = RpcError::unexpected_response();
                    return Err(self.reject(headers, Some(response.id), &error).into());
                }
                Err(rejection) => {
                    let id = rejection.id.as_deref().and_then(Id::from_raw);
                    return Err(self.reject(headers, id, &rejection.error).into());
                }
            },
        };
        request
            .and_then(|mut request| {
                match &self.exchange {
                    None => heads.check(&method, &request)?,
                    Some(exchange) => request.suit(exchange),
                }
                request.check_version()?;
                Ok((id, request))
            })
            .map_err(|error| {
                let refusal = Refusal::error(error.code);
                self.refuse(refusal, status(error.code), Some(id), &error)
                    .into()
            })
    }

    /// The answer to a message that is not a request.
    fn reject(&self, headers: &HeaderMap, id: Option<Id<'_>>, error: &RpcError) -> Response<Body> {
        if error.code == ErrorCode::InvalidRequest && self.lacks_session(headers) {
            return self.no_session_id(id);
        }
        let status = StatusCode::BAD_REQUEST;
        self.refuse(Refusal::error(error.code), status, id, error)
    }

    /// Runs a round. Its first note turns the answer into a stream.
    async fn run(&self, id: Id<'_>, mut round: Box<Round>, busy: Busy) -> Response<Body> {
        round.answers(&id);
        match round.next().await {
            RoundEvent::Reply(reply) => self.reply(round.kind().method(), id, &reply, Some(&round)),
            RoundEvent::Notes(notes) => {
                let server = self.server.clone();
                self.stream(Outgoing::of_round(server, id, round, &notes), busy)
            }
            RoundEvent::Asks { .. } | RoundEvent::Crashed => self.error(
                StatusCode::INTERNAL_SERVER_ERROR,
                Some(id),
                &RpcError::internal("the round was made to crash"),
            ),
        }
    }

    /// An answer that is a stream of events.
    fn stream(&self, mut outgoing: Outgoing, busy: Busy) -> Response<Body> {
        outgoing.translate(self.exchange.clone());
        let keep_alive = self.server.0.limits.keep_alive;
        let stream = EventStream::new(outgoing, keep_alive, busy);
        events(Body::events(stream))
    }

    fn reply(
        &self,
        method: &str,
        id: Id<'_>,
        reply: &Reply,
        round: Option<&Round>,
    ) -> Response<Body> {
        let mut out = Vec::with_capacity(1024);
        write_reply(&mut out, Some(id), reply, &self.server.0.info);
        record::sent(method, &out);
        if let Some(exchange) = &self.exchange {
            match exchange.write_reply(&out) {
                Some(translated) => out = translated,
                None => return accepted(),
            }
        }
        let mut response = Response::new(Body::full(out.into()));
        // A client that lacks a capability is told so with 400, as the protocol demands; any other error of a call
        // is a reply like the others.
        if let Reply::Error(RpcError {
            code: ErrorCode::MissingCapability,
            ..
        }) = reply
        {
            *response.status_mut() = StatusCode::BAD_REQUEST;
        }
        response.headers_mut().insert(CONTENT_TYPE, JSON);
        if let (Some(instance), Some(round)) = (&self.server.0.instance, round)
            && let Some(value) = explain(instance, round, reply)
        {
            response.headers_mut().insert(ROUND, value);
        }
        response
    }
}

/// Reads what is left of a body and throws it away: most clients read the answer only when they have sent it all.
/// A client that sends more than `most` bytes finds the connection closed.
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

/// An answer whose body is a stream of events.
fn events(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
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

/// What a round did, for those who look at how a fleet works.
fn explain(instance: &str, round: &Round, reply: &Reply) -> Option<HeaderValue> {
    let stats = round.stats();
    let token = match reply {
        Reply::Incomplete(incomplete) => incomplete.state.as_ref().map_or(0, String::len),
        _ => 0,
    };
    let mut text = String::new();
    write!(
        text,
        "instance={instance}; round={}; replayed={}; steps={}; token={token}",
        round.number(),
        stats.replayed,
        stats.steps
    )
    .ok()?;
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
