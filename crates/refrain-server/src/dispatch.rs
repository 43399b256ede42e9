//! Entry point of all transports: parses a message and routes it to the subsystem that handles it.

use crate::auth::{Caller, MissingScopes};
use crate::catalog::Listing;
use crate::catalog::complete::PendingReply;
use crate::http::Headers;
use crate::legacy::{LegacyExchange, Lifetime, Session};
use crate::metrics::{Label, NonCall, Refusal};
use crate::relay::PendingRelay;
use crate::request_span::{legacy_span, rejected_span};
use crate::response::{Disposition, MessageResponse};
use crate::rounds::{CallRequest, Home, Round, TokenSource};
use crate::server::{Server, ServerInner};
use crate::subscriptions::Subscription;
use crate::tasks::TokenFuture;
use crate::wire_recorder;
use http::HeaderMap;
use refrain_wire::legacy::{self, Revision, decode_initialize, is_modern};
use refrain_wire::ratified::{
    Incoming, ListParams, decode_call, decode_complete, decode_list, decode_listen, decode_meta,
    decode_skill, decode_task, read_message,
};
use refrain_wire::{
    Call, CallKind, CompleteParams, Empty, Id, ListenParams, Message, Meta, PROTOCOL_VERSION,
    Rejection, Reply, RpcError, SkillParams, TaskMethod, TaskParams, check_values, find_request_id,
    parse,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use tracing::Span;

/// A 2026-07-28 request with its parsed parameters.
pub(crate) enum ParsedRequest<'a> {
    Call(Call<'a>),
    Discover(Meta<'a>),
    List(Listing, ListParams<'a>),
    ListSkills(ListParams<'a>),
    GetSkill(SkillParams<'a>),
    Complete(CompleteParams<'a>),
    Listen(ListenParams<'a>),
    Task(TaskParams<'a>),
}

/// The origin of a message: its caller, headers and session.
#[derive(Debug)]
pub struct Context<'a> {
    pub(crate) caller: Caller,
    /// The headers of a 2026-07-28 request over HTTP, which must match the body.
    pub(crate) headers: Option<&'a Headers<'a>>,
    /// All headers of an HTTP request of any revision.
    pub(crate) http: Option<&'a HeaderMap>,
    pub(crate) sessions: SessionContext<'a>,
    /// Whether the transport can relay requests to other instances.
    pub(crate) can_relay: bool,
}

/// The legacy session in which a message was received.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SessionContext<'a> {
    /// The transport has no sessions: `initialize` is rejected.
    None,
    /// No session is open: `initialize` opens one that lasts this long.
    NotOpen(Lifetime),
    Open(&'a Session),
}

pub(crate) type ParsedMessage<'a> = Result<Incoming<'a>, Box<Rejection>>;

/// Parses a message. Outside of a session, a 2026-07-28 call is parsed in one pass.
pub(crate) fn read(bytes: &[u8], in_session: bool) -> ParsedMessage<'_> {
    match in_session {
        true => parse(bytes).map(Incoming::Message),
        false => read_message(bytes),
    }
}

/// Whether a message that names a legacy session belongs to it. A 2026-07-28 request does not.
pub(crate) fn belongs_to_session(message: &ParsedMessage<'_>) -> bool {
    match message {
        Ok(Incoming::Call(..)) => false,
        Ok(Incoming::Message(Message::Request { params, .. })) => !is_modern(*params),
        _ => true,
    }
}

impl<'a> Context<'a> {
    pub(crate) fn new(caller: Caller, sessions: SessionContext<'a>, can_relay: bool) -> Self {
        Self {
            caller,
            headers: None,
            http: None,
            sessions,
            can_relay,
        }
    }

    /// The context of an HTTP request of 2026-07-28.
    pub(crate) fn with_headers(self, headers: &'a Headers<'a>) -> Self {
        Self {
            headers: Some(headers),
            http: Some(headers.all()),
            ..self
        }
    }
}

impl<C: Into<Caller>> From<C> for Context<'_> {
    fn from(caller: C) -> Self {
        Self::new(caller.into(), SessionContext::None, false)
    }
}

/// The result of routing a message to its subsystem.
pub(crate) enum Dispatch {
    /// The message needs no reply.
    Accepted,
    /// In a legacy session, a response, a notification or a malformed message is rejected. Counted under this label.
    Rejected(Refusal, RpcError),
    Reply(Reply),
    /// The request is invalid. HTTP uses an error status.
    Invalid(RpcError),
    /// A future produces the reply.
    Pending(PendingReply),
    Round(Box<Round>),
    /// The response is the stream of a subscription.
    Subscription(Subscription),
    /// The caller lacks scopes.
    Forbidden(MissingScopes),
    /// The request cannot be handled now. HTTP responds with 503.
    Busy(RpcError),
    /// The transport must relay the request to another instance.
    Relay(Box<PendingRelay>),
}

impl From<RpcError> for Dispatch {
    fn from(error: RpcError) -> Self {
        Self::Reply(Reply::Error(error))
    }
}

impl<'a> ParsedRequest<'a> {
    /// Parses the parameters. If that fails and the request names another revision, reports the unsupported revision.
    pub(crate) fn decode(
        server: &Server,
        method: &str,
        params: Option<&'a RawValue>,
        sessions: SessionContext<'_>,
    ) -> Result<Self, RpcError> {
        Self::read(server, method, params).map_err(|error| match unsupported_version(params) {
            Some(version) => unsupported_version_error(&version),
            None if method == "initialize" => {
                let has_sessions = !matches!(sessions, SessionContext::None);
                RpcError::initialize_unsupported(&[PROTOCOL_VERSION], has_sessions)
            }
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
            "skills/list" if !server.0.skills.is_empty() => {
                return decode_list(params).map(Self::ListSkills);
            }
            "skills/get" if !server.0.skills.is_empty() => {
                return decode_skill(params).map(Self::GetSkill);
            }
            _ => return Err(RpcError::method_not_found(method)),
        };
        decode_list(params).map(|params| Self::List(listing, params))
    }

    pub(crate) fn meta(&self) -> &Meta<'a> {
        match self {
            Self::Call(call) => &call.meta,
            Self::Discover(meta) => meta,
            Self::List(_, params) | Self::ListSkills(params) => &params.meta,
            Self::GetSkill(params) => &params.meta,
            Self::Complete(params) => &params.meta,
            Self::Listen(params) => &params.meta,
            Self::Task(params) => &params.meta,
        }
    }

    pub(crate) fn method(&self) -> &'static str {
        match self {
            Self::Call(call) => call.kind.method(),
            Self::Discover(_) => NonCall::Discover.name(),
            Self::List(listing, _) => listing.method(),
            Self::ListSkills(_) => NonCall::ListSkills.name(),
            Self::GetSkill(_) => NonCall::GetSkill.name(),
            Self::Complete(_) => NonCall::Complete.name(),
            Self::Listen(_) => NonCall::Listen.name(),
            Self::Task(params) => params.method.as_str(),
        }
    }

    /// The value of the `Mcp-Name` header: a tool or prompt name, a URI or a task id.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Call(call) => Some(&call.target),
            Self::Task(params) => Some(&params.id),
            _ => None,
        }
    }

    /// Replaces the reference to a stored token by the token.
    fn set_token(&mut self, token: String) {
        if let Self::Call(call) = self {
            call.state = Some(token.into());
        }
    }

    /// Checks that the headers match the body and the revision is supported.
    fn validate(&self, method: &str, headers: Option<&Headers<'_>>) -> Result<(), RpcError> {
        if let Some(headers) = headers {
            headers.check(method, self)?;
        }
        let version = &self.meta().protocol_version;
        if version != PROTOCOL_VERSION {
            return Err(unsupported_version_error(version));
        }
        Ok(())
    }
}

/// Whether a legacy client may send this request before its session is open: `initialize`, and on stdio also `ping`.
fn can_precede_session(method: &str, lifetime: Lifetime) -> bool {
    method == "initialize" || method == "ping" && lifetime == Lifetime::Process
}

fn unsupported_version_error(requested: &str) -> RpcError {
    RpcError::unsupported_version(requested, &[PROTOCOL_VERSION])
}

/// The revision that a request names, unless it is the supported one.
fn unsupported_version(params: Option<&RawValue>) -> Option<String> {
    #[derive(Deserialize)]
    struct Params {
        #[serde(rename = "_meta")]
        meta: VersionMeta,
    }
    #[derive(Deserialize)]
    struct VersionMeta {
        #[serde(rename = "io.modelcontextprotocol/protocolVersion")]
        version: String,
    }
    let params: Params = serde_json::from_str(params?.get()).ok()?;
    Some(params.meta.version).filter(|version| version != PROTOCOL_VERSION)
}

impl Server {
    /// Handles one JSON-RPC message. The context can be a [`Caller`] or a [`Principal`](refrain_core::Principal).
    ///
    /// ```
    /// use refrain::auth::Principal;
    /// use refrain::server::Server;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let server = Server::builder("docs", "1.0").build()?;
    /// let mut response = server.handle(b"not JSON", Principal::anonymous()).await;
    /// let reply = String::from_utf8(response.next().await.expect("a reply")).expect("text");
    /// assert!(reply.contains("-32700"));
    /// assert_eq!(response.next().await, None);
    /// # Ok::<(), refrain::server::BuildError>(())
    /// # }).unwrap();
    /// ```
    pub async fn handle(&self, message: &[u8], context: impl Into<Context<'_>>) -> MessageResponse {
        if let Err(error) = self.check_values(message) {
            return MessageResponse::error(self, find_request_id(message), error);
        }
        self.handle_message(read_message(message), context.into())
            .await
    }

    /// Checks the number of JSON values in a message. Every transport calls this before it parses a message.
    pub(crate) fn check_values(&self, message: &[u8]) -> Result<(), RpcError> {
        check_values(message, self.limits().json_values).map_err(|error| {
            let metrics = &self.0.services.metrics;
            metrics.request_refused(Refusal::TooLarge);
            RpcError::invalid_request(format!("the message has {error} (`json_values`)"))
        })
    }

    /// Handles a parsed message of a transport that cannot relay.
    pub(crate) async fn handle_message(
        &self,
        message: ParsedMessage<'_>,
        context: Context<'_>,
    ) -> MessageResponse {
        self.accept(message, context).await.without_relay(self)
    }

    /// Handles a parsed message. The transport relays it if another instance holds the call or session.
    pub(crate) async fn accept<'a>(
        &self,
        message: ParsedMessage<'a>,
        context: Context<'_>,
    ) -> Disposition<'a> {
        let rejected = |id, method: &str, error| {
            let span = rejected_span(id, method, &context);
            Disposition::Response(MessageResponse::rejected(self, id, error).in_span(span))
        };
        let (id, method, mut request) = match message {
            Ok(Incoming::Call(id, call)) => {
                let method = Cow::Borrowed(call.kind.method());
                (id, method, ParsedRequest::Call(call))
            }
            Ok(Incoming::Message(message)) => match (context.sessions, message) {
                (SessionContext::Open(session), message) => {
                    return self.accept_legacy(session, Ok(message), context);
                }
                (SessionContext::NotOpen(lifetime), Message::Request { id, method, params })
                    if can_precede_session(&method, lifetime) && !is_modern(params) =>
                {
                    return self.accept_before_session(id, &method, params, &context, lifetime);
                }
                (sessions, Message::Request { id, method, params }) => {
                    match ParsedRequest::decode(self, &method, params, sessions) {
                        Ok(request) => (id, method, request),
                        Err(error) => return rejected(Some(id), &method, error),
                    }
                }
                (_, Message::Notification { .. }) => {
                    return Disposition::Response(MessageResponse::accepted(self));
                }
                (_, Message::Response(response)) => {
                    return rejected(Some(response.id), "", RpcError::unexpected_response());
                }
            },
            Err(rejection) => {
                if let SessionContext::Open(session) = context.sessions {
                    return self.accept_legacy(session, Err(rejection), context);
                }
                let id = rejection.id.as_deref().and_then(Id::from_raw);
                return rejected(id, "", rejection.error);
            }
        };
        if let Err(error) = request.validate(&method, context.headers) {
            return rejected(Some(id), &method, error);
        }
        request.read_trace(context.http);
        let method = request.method();
        let span = request.open_span(id, &context);
        let mut permit = None;
        let token = match self.fetch_token(&request, &context.caller) {
            None => Ok(TokenSource::Request),
            Some(stored) => stored.await.map(|stored| {
                request.set_token(stored.token);
                permit = stored.permit;
                TokenSource::Store
            }),
        };
        let mut dispatch = match token {
            Ok(token) => self.dispatch(request, token, context, &span),
            Err(dispatch) => dispatch,
        };
        if let Dispatch::Round(round) = &mut dispatch {
            round.replay_permit = permit;
        }
        MessageResponse::from_dispatch(self, Some(id), method, dispatch, None, span)
    }

    fn accept_legacy<'a>(
        &self,
        session: &Session,
        message: Result<Message<'a>, Box<Rejection>>,
        context: Context<'_>,
    ) -> Disposition<'a> {
        let (id, span) = match &message {
            Ok(Message::Request { id, method, params }) => {
                (Some(*id), legacy_span(*id, method, *params, &context))
            }
            _ => (None, Span::none()),
        };
        let legacy = &self.0.legacy;
        let (method, dispatch) = legacy.accept(session, message, context, &span);
        let exchange = LegacyExchange::new(legacy, session, None);
        MessageResponse::from_dispatch(self, id, method, dispatch, Some(exchange), span)
    }

    /// Handles the requests of a legacy client before its session is open: `ping`, and `initialize`, which opens it.
    fn accept_before_session<'a>(
        &self,
        id: Id<'a>,
        method: &str,
        params: Option<&RawValue>,
        context: &Context<'_>,
        lifetime: Lifetime,
    ) -> Disposition<'a> {
        let caller = &context.caller;
        let span = legacy_span(id, method, params, context);
        if method == "ping" {
            let mut out = Vec::with_capacity(64);
            let reply = Reply::complete(Empty {});
            legacy::write_reply(&mut out, id, &reply, Revision::LATEST);
            wire_recorder::record_legacy(Revision::LATEST, method, &out);
            return Disposition::Response(MessageResponse::serialized(self, out));
        }
        let ServerInner {
            legacy,
            auth,
            services,
            ..
        } = &*self.0;
        let within_limit = services.limits.calls.check(&caller.limit_key());
        let allowed = auth.allow(caller, &[]);
        let mut exchange = None;
        let dispatch = match (allowed, decode_initialize(params), within_limit) {
            (Err(missing), ..) => Dispatch::Forbidden(missing),
            (_, Err(error), _) => Dispatch::Invalid(error),
            (.., Err(reached)) => {
                services.metrics.request_refused(Refusal::Busy);
                Dispatch::Busy(reached.into())
            }
            (Ok(()), Ok(initialize), Ok(())) => {
                services.metrics.non_call(NonCall::Initialize);
                let (session, id) = legacy.open_session(&initialize, &caller.principal, lifetime);
                exchange = Some(LegacyExchange::new(legacy, &session, Some(id)));
                Dispatch::Reply(self.initialize(session.revision))
            }
        };
        let method = NonCall::Initialize.name();
        MessageResponse::from_dispatch(self, Some(id), method, dispatch, exchange, span)
    }

    fn dispatch(
        &self,
        request: ParsedRequest<'_>,
        token: TokenSource,
        context: Context<'_>,
        span: &Span,
    ) -> Dispatch {
        let caller = context.caller;
        if let Some(rejection) = self.reject_non_call(&request, &caller) {
            return rejection;
        }
        let ServerInner {
            services,
            catalog,
            skills,
            ..
        } = &*self.0;
        let metrics = &services.metrics;
        let skill_cache = catalog.rules.caches.lists[Listing::Resources as usize];
        match request {
            ParsedRequest::Call(ref call) => self.0.rounds.begin(CallRequest {
                call,
                token,
                home: Home::Client,
                caller: &caller,
                can_relay: context.can_relay,
                headers: context.headers.map(Headers::all),
                span,
            }),
            ParsedRequest::Discover(_) => {
                metrics.non_call(NonCall::Discover);
                Dispatch::Reply(self.discover())
            }
            ParsedRequest::List(listing, params) => {
                metrics.non_call(NonCall::List(listing));
                let list = catalog.list(listing, params.cursor.as_deref());
                list.map_or_else(Dispatch::Invalid, Dispatch::Reply)
            }
            ParsedRequest::ListSkills(params) => {
                metrics.non_call(NonCall::ListSkills);
                let (cursor, page_size) = (params.cursor.as_deref(), catalog.rules.page_size);
                let list = skills.list(cursor, page_size, skill_cache);
                list.map_or_else(Dispatch::Invalid, Dispatch::Reply)
            }
            ParsedRequest::GetSkill(params) => {
                metrics.non_call(NonCall::GetSkill);
                let skill = skills.get(&params.uri, skill_cache);
                skill.map_or_else(Dispatch::from, Dispatch::Reply)
            }
            ParsedRequest::Complete(params) => {
                let pending = catalog.complete(params, caller, &self.0.auth, &services.limits);
                self.count_pending(NonCall::Complete, pending)
            }
            ParsedRequest::Listen(params) => {
                let tasks = self.0.tasks.as_ref();
                self.0.subscriptions.listen(params, caller, tasks)
            }
            ParsedRequest::Task(params) => {
                let method = params.method;
                let Some(tasks) = &self.0.tasks else {
                    return RpcError::method_not_found(method.as_str()).into();
                };
                self.count_pending(NonCall::Task(method), tasks.answer(&params, caller))
            }
        }
    }

    /// Rejects a request that is not a call if scopes are missing, or its caller is at the limit of calls.
    fn reject_non_call(&self, request: &ParsedRequest<'_>, caller: &Caller) -> Option<Dispatch> {
        let is_immediate = matches!(
            request,
            ParsedRequest::Discover(_)
                | ParsedRequest::List(..)
                | ParsedRequest::ListSkills(_)
                | ParsedRequest::GetSkill(_)
        );
        // Calls, completions and subscriptions check the server's scopes later, together with those of their target.
        if (is_immediate || matches!(request, ParsedRequest::Task(_)))
            && let Err(missing) = self.0.auth.allow(caller, &[])
        {
            return Some(Dispatch::Forbidden(missing));
        }
        // Immediate requests need no permit, because they never wait. The others hold one while they run.
        if is_immediate
            && let Err(reached) = self.0.services.limits.calls.check(&caller.limit_key())
        {
            self.0.services.metrics.request_refused(Refusal::Busy);
            return Some(Dispatch::Busy(reached.into()));
        }
        None
    }

    /// Counts a request whose reply is pending, or its rejection.
    fn count_pending(&self, method: NonCall, pending: Result<PendingReply, Dispatch>) -> Dispatch {
        let metrics = &self.0.services.metrics;
        match pending {
            Ok(pending) => {
                metrics.non_call(method);
                Dispatch::Pending(pending)
            }
            Err(dispatch) => {
                if let Dispatch::Busy(_) = dispatch {
                    metrics.request_refused(Refusal::Busy);
                }
                dispatch
            }
        }
    }

    /// Fetches the token of a call from the store. `None` unless the call contains a reference to a stored token.
    fn fetch_token(&self, request: &ParsedRequest<'_>, caller: &Caller) -> Option<TokenFuture> {
        match request {
            ParsedRequest::Call(call) => self.0.tasks.as_ref()?.fetch(call, caller),
            _ => None,
        }
    }
}
