//! The entrance for every transport: a message is read, and answered from the catalog or begun as a round.

use crate::auth::{Caller, MissingScopes};
use crate::catalog::Listing;
use crate::catalog::complete::PendingReply;
use crate::http::Headers;
use crate::legacy::{LegacyExchange, Lifetime, Session};
use crate::metrics::{Label, Other, Refusal};
use crate::record;
use crate::relay::RelayTo;
use crate::response::{Handled, Response};
use crate::rounds::{CallRequest, Home, Round, TokenSource};
use crate::server::{Inner, Server};
use crate::subscriptions::Subscription;
use crate::tasks::TokenFuture;
use http::HeaderMap;
use refrain_wire::legacy::{self, Revision, decode_initialize, is_modern};
use refrain_wire::ratified::{
    Incoming, ListParams, decode_call, decode_complete, decode_list, decode_listen, decode_meta,
    decode_task, read_message,
};
use refrain_wire::{
    Call, CallKind, CompleteParams, Empty, Id, ListenParams, Message, Meta, PROTOCOL_VERSION,
    Rejection, Reply, RpcError, TaskMethod, TaskParams, parse,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// A request whose method and parameters were read.
pub(crate) enum Request<'a> {
    Call(Call<'a>),
    Discover(Meta<'a>),
    List(Listing, ListParams<'a>),
    Complete(CompleteParams<'a>),
    Listen(ListenParams<'a>),
    Task(TaskParams<'a>),
}

/// The origin of a message: its caller, headers and session.
#[derive(Debug)]
pub struct Context<'a> {
    pub(crate) caller: Caller,
    /// The headers of the request; they must match the message.
    pub(crate) headers: Option<&'a Headers<'a>>,
    pub(crate) sessions: Sessions<'a>,
    /// Does the transport relay requests to other instances?
    pub(crate) relays: bool,
}

/// The legacy session of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sessions<'a> {
    /// The transport has no sessions: `initialize` is rejected.
    None,
    /// No session is open: `initialize` opens one that lasts this long.
    Closed(Lifetime),
    Open(&'a Session),
}

/// A message as it was read.
pub(crate) type Parsed<'a> = Result<Incoming<'a>, Box<Rejection>>;

/// Reads a message. The calls of a session cannot be read in one pass.
pub(crate) fn read(bytes: &[u8], in_session: bool) -> Parsed<'_> {
    match in_session {
        true => parse(bytes).map(Incoming::Message),
        false => read_message(bytes),
    }
}

/// Does a message that was sent in a session belong to it? A request may be one of 2026-07-28 nevertheless.
pub(crate) fn is_of_session(message: &Parsed<'_>) -> bool {
    match message {
        Ok(Incoming::Call(..)) => false,
        Ok(Incoming::Message(Message::Request { params, .. })) => !is_modern(*params),
        _ => true,
    }
}

impl<'a> Context<'a> {
    pub(crate) fn new(caller: Caller, sessions: Sessions<'a>, relays: bool) -> Self {
        Self {
            caller,
            headers: None,
            sessions,
            relays,
        }
    }
}

impl<C: Into<Caller>> From<C> for Context<'_> {
    fn from(caller: C) -> Self {
        Self::new(caller.into(), Sessions::None, false)
    }
}

/// How an answer begins.
pub(crate) enum Begin {
    /// A message that needs no reply.
    Accepted,
    /// A message of a session without a usable id is wrong, counted as this refusal.
    Rejected(Refusal, RpcError),
    /// A reply that needs no handler.
    Reply(Reply),
    /// The request itself is wrong: a transport that has status codes says so with one.
    Refused(RpcError),
    /// A reply that takes its time.
    Later(PendingReply),
    /// A handler is at work.
    Round(Box<Round>),
    /// A client that listens.
    Listen(Subscription),
    /// The caller lacks a scope.
    Forbidden(MissingScopes),
    /// All places are taken, as the error says.
    Busy(RpcError),
    /// Another instance holds the call.
    Relay(Box<RelayTo>),
}

impl From<RpcError> for Begin {
    fn from(error: RpcError) -> Self {
        Self::Reply(Reply::Error(error))
    }
}

impl<'a> Request<'a> {
    /// Reads the parameters of the method. A request that names another revision is rejected for that alone.
    pub(crate) fn decode(
        server: &Server,
        method: &str,
        params: Option<&'a RawValue>,
    ) -> Result<Self, RpcError> {
        Self::read(server, method, params).map_err(|error| match other_version(params) {
            Some(version) => unsupported(&version),
            None if method == "initialize" => RpcError::initialize_unsupported(&[PROTOCOL_VERSION]),
            None => error,
        })
    }

    fn read(server: &Server, method: &str, params: Option<&'a RawValue>) -> Result<Self, RpcError> {
        if let Some(kind) = CallKind::from_method(method) {
            return decode_call(kind, params).map(Self::Call);
        }
        if let Some(method) = TaskMethod::from_method(method)
            && server.0.tasks.is_some()
        {
            return decode_task(method, params).map(Self::Task);
        }
        let listing = match method {
            "server/discover" => return decode_meta(params).map(Self::Discover),
            "completion/complete" => return decode_complete(params).map(Self::Complete),
            "subscriptions/listen" => return decode_listen(params).map(Self::Listen),
            "tools/list" => Listing::Tools,
            "prompts/list" => Listing::Prompts,
            "resources/list" => Listing::Resources,
            "resources/templates/list" => Listing::ResourceTemplates,
            _ => return Err(RpcError::method_not_found(method)),
        };
        decode_list(params).map(|params| Self::List(listing, params))
    }

    pub(crate) fn meta(&self) -> &Meta<'a> {
        match self {
            Self::Call(call) => &call.meta,
            Self::Discover(meta) => meta,
            Self::List(_, params) => &params.meta,
            Self::Complete(params) => &params.meta,
            Self::Listen(params) => &params.meta,
            Self::Task(params) => &params.meta,
        }
    }

    pub(crate) fn method(&self) -> &'static str {
        match self {
            Self::Call(call) => call.kind.method(),
            Self::Discover(_) => Other::Discover.name(),
            Self::List(listing, _) => listing.method(),
            Self::Complete(_) => Other::Complete.name(),
            Self::Listen(_) => Other::Listen.name(),
            Self::Task(params) => params.method.as_str(),
        }
    }

    /// The name, the URI or the id that the `Mcp-Name` header repeats.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Call(call) => Some(&call.target),
            Self::Task(params) => Some(&params.id),
            _ => None,
        }
    }

    /// The request with the token that it referred to.
    fn with_token(mut self, token: String) -> Self {
        if let Self::Call(call) = &mut self {
            call.state = Some(token.into());
        }
        self
    }

    /// The request, if the headers match it and this server speaks its revision.
    fn checked(self, method: &str, headers: Option<&Headers<'_>>) -> Result<Self, RpcError> {
        if let Some(headers) = headers {
            headers.check(method, &self)?;
        }
        let version = &self.meta().protocol_version;
        if version != PROTOCOL_VERSION {
            return Err(unsupported(version));
        }
        Ok(self)
    }
}

/// May a request of this method come before the session is open? On a pipe, a client may ping first.
fn is_first(method: &str, lifetime: Lifetime) -> bool {
    method == "initialize" || method == "ping" && lifetime == Lifetime::Process
}

fn unsupported(requested: &str) -> RpcError {
    RpcError::unsupported_version(requested, &[PROTOCOL_VERSION])
}

/// The revision a request is written in, if it says so and it is not ours.
fn other_version(params: Option<&RawValue>) -> Option<String> {
    #[derive(Deserialize)]
    struct Params {
        #[serde(rename = "_meta")]
        meta: Versioned,
    }
    #[derive(Deserialize)]
    struct Versioned {
        #[serde(rename = "io.modelcontextprotocol/protocolVersion")]
        version: String,
    }
    let params: Params = serde_json::from_str(params?.get()).ok()?;
    Some(params.meta.version).filter(|version| version != PROTOCOL_VERSION)
}

impl Server {
    /// Takes one JSON-RPC message, as any transport would. A [`Caller`] or a [`Principal`](refrain_core::Principal) is
    /// context enough where the transport knows no more.
    ///
    /// ```
    /// # use refrain_core::Principal;
    /// # use refrain_server::Server;
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let server = Server::builder("docs", "1.0").build()?;
    /// let mut response = server.handle(b"not JSON", Principal::anonymous()).await;
    /// let reply = String::from_utf8(response.next().await.expect("a reply")).expect("text");
    /// assert!(reply.contains("-32700"));
    /// assert_eq!(response.next().await, None);
    /// # Ok::<(), refrain_server::BuildError>(())
    /// # }).unwrap();
    /// ```
    pub async fn handle(&self, message: &[u8], context: impl Into<Context<'_>>) -> Response {
        self.handle_message(read_message(message), context.into())
            .await
    }

    /// Takes a message that was read, for a transport that relays nothing.
    pub(crate) async fn handle_message(
        &self,
        message: Parsed<'_>,
        context: Context<'_>,
    ) -> Response {
        self.accept(message, context).await.here(self)
    }

    /// Takes a message that was read. The transport relays it where another instance holds the call or the session.
    pub(crate) async fn accept<'a>(
        &self,
        message: Parsed<'a>,
        context: Context<'_>,
    ) -> Handled<'a> {
        let message = match (context.sessions, message) {
            (Sessions::Open(session), Ok(Incoming::Message(message))) => {
                return self.accept_legacy(session, Ok(message), context);
            }
            (Sessions::Open(session), Err(rejection)) => {
                return self.accept_legacy(session, Err(rejection), context);
            }
            (
                Sessions::Closed(lifetime),
                Ok(Incoming::Message(Message::Request { id, method, params })),
            ) if is_first(&method, lifetime) && !is_modern(params) => {
                return self.open_session(id, &method, params, &context.caller, lifetime);
            }
            (_, message) => message,
        };
        let refused = |id, error| Handled::Response(Response::refused(self, id, error));
        let (id, method, request) = match message {
            Ok(Incoming::Call(id, call)) => {
                let method = Cow::Borrowed(call.kind.method());
                (id, method, Ok(Request::Call(call)))
            }
            Ok(Incoming::Message(Message::Request { id, method, params })) => {
                let request = Request::decode(self, &method, params);
                (id, method, request)
            }
            Ok(Incoming::Message(Message::Notification { .. })) => {
                return Handled::Response(Response::accepted(self));
            }
            Ok(Incoming::Message(Message::Response(response))) => {
                return refused(Some(response.id), RpcError::unexpected_response());
            }
            Err(rejection) => {
                let id = rejection.id.as_deref().and_then(Id::from_raw);
                return refused(id, rejection.error);
            }
        };
        let request = match request.and_then(|request| request.checked(&method, context.headers)) {
            Ok(request) => request,
            Err(error) => return refused(Some(id), error),
        };
        let (method, caller) = (request.method(), context.caller);
        let headers = context.headers.map(Headers::all);
        let begun = match self.fetch(&request) {
            None => self.answer(request, TokenSource::Request, caller, headers),
            Some(fetching) => match fetching.await {
                Ok(token) => {
                    let request = request.with_token(token);
                    self.answer(request, TokenSource::Store, caller, headers)
                }
                Err(error) => error.into(),
            },
        };
        Response::begun(self, Some(id), method, begun, None)
    }

    /// Takes a message of a legacy session.
    fn accept_legacy<'a>(
        &self,
        session: &Session,
        message: Result<Message<'a>, Box<Rejection>>,
        Context { caller, relays, .. }: Context<'_>,
    ) -> Handled<'a> {
        let id = match &message {
            Ok(Message::Request { id, .. }) => Some(*id),
            _ => None,
        };
        let legacy = &self.0.legacy;
        let (method, begun) = legacy.accept(session, message, caller, relays);
        let exchange = LegacyExchange::new(legacy, session, None);
        Response::begun(self, id, method, begun, Some(exchange))
    }

    /// Answers the first requests of a legacy client: `initialize`, and `ping` before it.
    fn open_session<'a>(
        &self,
        id: Id<'a>,
        method: &str,
        params: Option<&RawValue>,
        caller: &Caller,
        lifetime: Lifetime,
    ) -> Handled<'a> {
        if method == "ping" {
            let mut out = Vec::with_capacity(64);
            let reply = Reply::complete(Empty {});
            legacy::write_reply(&mut out, id, &reply, Revision::LATEST);
            record::sent_older(Revision::LATEST, method, &out);
            return Handled::Response(Response::written(self, out));
        }
        let Inner { legacy, auth, .. } = &*self.0;
        let (begun, exchange) = match (auth.allow(caller, &[]), decode_initialize(params)) {
            (Err(missing), _) => (Begin::Forbidden(missing), None),
            (_, Err(error)) => (Begin::Refused(error), None),
            (Ok(()), Ok(initialize)) => {
                self.0.services.metrics.other(Other::Initialize);
                let (session, opened) = legacy.open(&initialize, &caller.principal, lifetime);
                let reply = Begin::Reply(self.greet(session.revision));
                let exchange = LegacyExchange::new(legacy, &session, Some(opened));
                (reply, Some(exchange))
            }
        };
        Response::begun(self, Some(id), Other::Initialize.name(), begun, exchange)
    }

    /// Answers a request, or begins the call. The headers are those of a transport that has any.
    fn answer(
        &self,
        request: Request<'_>,
        token: TokenSource,
        caller: Caller,
        headers: Option<&HeaderMap>,
    ) -> Begin {
        // The other requests may need further scopes: they are checked together.
        if let Request::Discover(_) | Request::List(..) | Request::Task(_) = &request
            && let Err(missing) = self.0.auth.allow(&caller, &[])
        {
            return Begin::Forbidden(missing);
        }
        let metrics = &self.0.services.metrics;
        match request {
            Request::Call(call) => self.0.rounds.begin(CallRequest {
                call: &call,
                token,
                home: Home::Client,
                caller,
                headers,
            }),
            Request::Discover(_) => {
                metrics.other(Other::Discover);
                Begin::Reply(self.discover())
            }
            Request::List(listing, params) => {
                metrics.other(Other::List(listing));
                let cursor = params.cursor.as_deref();
                match self.0.catalog.list(listing, cursor) {
                    Ok(reply) => Begin::Reply(reply),
                    Err(error) => Begin::Refused(error),
                }
            }
            Request::Complete(params) => {
                let (auth, limits) = (&self.0.auth, &self.0.services.limits);
                let later = self.0.catalog.complete(params, caller, auth, limits);
                self.later(Other::Complete, later)
            }
            Request::Listen(params) => {
                let tasks = self.0.tasks.as_ref();
                self.0.subscriptions.listen(params, caller, tasks)
            }
            Request::Task(params) => {
                let method = params.method;
                let Some(tasks) = &self.0.tasks else {
                    return RpcError::method_not_found(method.as_str()).into();
                };
                self.later(Other::Task(method), tasks.answer(params, caller))
            }
        }
    }

    /// Counts a request that is answered later, or refused.
    fn later(&self, what: Other, answered: Result<PendingReply, Begin>) -> Begin {
        let metrics = &self.0.services.metrics;
        match answered {
            Ok(later) => {
                metrics.other(what);
                Begin::Later(later)
            }
            Err(refused) => {
                if let Begin::Busy(_) = refused {
                    metrics.request_refused(Refusal::Busy);
                }
                refused
            }
        }
    }

    /// Starts to read the token of a call from the store, if the call has a reference instead of a token.
    fn fetch(&self, request: &Request<'_>) -> Option<TokenFuture> {
        match request {
            Request::Call(call) => self.0.tasks.as_ref()?.fetch(call),
            _ => None,
        }
    }
}
