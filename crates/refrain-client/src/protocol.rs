//! Writes requests in the server's protocol revision, sends them, and retries them where that is safe.

use crate::builder::ClientBuilder;
use crate::client::ClientInner;
use crate::error::ErrorKind;
use crate::legacy::{Legacy, LegacySession, handle_stray, or_unanswered_error};
use crate::request_span::add_context;
use crate::retry::{Retry, RetrySafety, RetryState, before_deadline, before_timeout};
use crate::transport::{
    IncomingMessage, LinkError, LinkExchange, LinkResponse, LinkResult, OutgoingMessage,
};
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use refrain_wire::client::{DISCOVER, Request, RequestMeta, RpcFailure};
use refrain_wire::limited_event;
use refrain_wire::{
    AskKind, CallKind, Capabilities, ErrorCode, PROGRESS_TOKEN_KEY, PROTOCOL_VERSION, encode_header,
};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep};
use tracing::{Instrument, Span};

pub(crate) struct RequestPlan<'a> {
    pub(crate) request: Request,
    pub(crate) headers: HeaderMap,
    /// `None` unless the request is a round of a call.
    pub(crate) call_id: Option<&'a str>,
    /// Additional members of `_meta`.
    pub(crate) meta: Option<&'a Map<String, Value>>,
    /// Whether the request may be sent again after its response was lost.
    pub(crate) can_repeat: bool,
}

/// The plan of a request that can be sent twice without harm.
impl From<Request> for RequestPlan<'_> {
    fn from(request: Request) -> Self {
        Self {
            request,
            headers: HeaderMap::new(),
            call_id: None,
            meta: None,
            can_repeat: true,
        }
    }
}

impl RequestPlan<'_> {
    /// Why the request may be sent again after this error; `None` if that could repeat an effect, or would not help.
    fn retry_safety(&self, error: &LinkError) -> Option<RetrySafety> {
        let is_tool = self.request.call_kind() == Some(CallKind::Tool);
        match error {
            LinkError::NotSent(_) => Some(RetrySafety::NotSent),
            LinkError::Busy { .. } => Some(RetrySafety::NotExecuted),
            LinkError::Lost(_) if !self.can_repeat => None,
            LinkError::Lost(_) if is_tool => Some(RetrySafety::CallId),
            LinkError::Lost(_) => Some(RetrySafety::Idempotent),
            LinkError::Final(ErrorKind::HttpStatus { status, .. }) => {
                let is_idempotent = self.can_repeat && self.call_id.is_none();
                let can_retry = (500..600).contains(status) && !matches!(status, 501 | 505);
                (is_idempotent && can_retry).then_some(RetrySafety::Idempotent)
            }
            LinkError::Final(_) => None,
        }
    }
}

impl ClientInner {
    /// Sends a request, with retries and the deadline of a whole call.
    pub(crate) async fn request(&self, request: Request) -> Result<Box<RawValue>, ErrorKind> {
        self.request_round(&request.into(), &mut false).await
    }

    /// Sends a round of a call, and retries where that is safe. Sets `is_delivery_unknown` unless the server certainly did
    /// not execute the round.
    pub(crate) async fn request_round(
        &self,
        plan: &RequestPlan<'_>,
        is_delivery_unknown: &mut bool,
    ) -> Result<Box<RawValue>, ErrorKind> {
        let sent = async {
            let mut retry = RetryState::new(self.setup.limits.retries);
            loop {
                let was_unknown = std::mem::replace(is_delivery_unknown, true);
                let start = Instant::now();
                let error = match self.exchange(plan).await {
                    Ok(response) => {
                        // A result means that the round was executed. An error means that this attempt was not, but says
                        // nothing about earlier ones.
                        *is_delivery_unknown = was_unknown || response.outcome.is_ok();
                        return response.outcome.map_err(ErrorKind::Rpc);
                    }
                    Err(error) => error,
                };
                *is_delivery_unknown = was_unknown || error.may_have_executed();
                let Some(safety) = plan.retry_safety(&error) else {
                    return Err(error.into());
                };
                let (pause, error) = retry.next(error)?;
                (self.setup.on_retry)(&Retry {
                    method: plan.request.method,
                    target: plan.request.subject(),
                    number: retry.done,
                    limit: retry.max,
                    error: &error,
                    elapsed: start.elapsed(),
                    safety,
                    pause,
                });
                sleep(pause).await;
            }
        };
        before_deadline(self.setup.limits.deadline, Box::pin(sent)).await
    }

    /// Sends a request, and repeats it if the server rejects a protocol version that it lists as supported.
    pub(crate) async fn exchange(&self, plan: &RequestPlan<'_>) -> LinkResult<LinkResponse> {
        self.reconnect().await?;
        if let Some(legacy) = self.connection.legacy() {
            return self.exchange_in_session(legacy, plan).await;
        }
        let response = self.exchange_once(plan, None).await?;
        if response.outcome.as_ref().is_err_and(offers_our_version) {
            return self.exchange_once(plan, None).await;
        }
        Ok(response)
    }

    pub(crate) async fn exchange_once(
        &self,
        plan: &RequestPlan<'_>,
        session: Option<(&Legacy, &LegacySession)>,
    ) -> LinkResult<LinkResponse> {
        let id = self.connection.ids.next();
        let legacy = session.map(|(_, session)| session);
        let span = self.open_span(&plan.request, plan.meta, id, legacy);
        let begun = Instant::now();
        let sent = self.send_in_span(plan, session, id, &span);
        let mut response = sent.instrument(span.clone()).await;
        let elapsed = begun.elapsed();
        let is_tool_error = self.is_tool_error(plan, &span, &mut response).await;
        self.end_request(plan, &span, elapsed, response.as_ref(), is_tool_error);
        response
    }

    async fn send_in_span(
        &self,
        plan: &RequestPlan<'_>,
        session: Option<(&Legacy, &LegacySession)>,
        id: u64,
        span: &Span,
    ) -> LinkResult<LinkResponse> {
        let outgoing = self.write(plan, session.map(|(_, session)| session), id, span)?;
        let mut guard = CancelOnDrop {
            inner: self,
            id: Some(id),
        };
        // Registered before the request is sent, because a server may ask on the session stream before it responds.
        let call_of_session = session
            .filter(|_| outgoing.is_call)
            .map(|(legacy, session)| {
                let notifications = self.setup.notifications.clone();
                let registration = legacy.calls.register(id, self.scope, notifications);
                (session, registration)
            });
        let mut exchange = match self.connection.link.open(&outgoing).await {
            Err(error) if !error.may_be_in_flight() => {
                guard.id = None;
                return Err(error);
            }
            opened => opened?,
        };
        let (response, unanswered) = match call_of_session {
            Some((session, registration)) => {
                let request = &plan.request;
                self.read_response_and_answer(&mut exchange, request, session, registration)
                    .await?
            }
            None => {
                let response = self.read_response(&mut exchange, &outgoing.headers);
                (response.await?, Vec::new())
            }
        };
        guard.id = None;
        or_unanswered_error(response, unanswered)
    }

    /// Opens a subscription.
    pub(crate) async fn begin(&self, request: Request) -> LinkResult<LinkExchange> {
        self.reconnect().await?;
        let session = self.connection.legacy().map(Legacy::session);
        let id = self.connection.ids.next();
        let span = self.open_span(&request, None, id, session.as_ref());
        let plan = RequestPlan::from(request);
        let begun = Instant::now();
        let opening = async {
            let subscription = OutgoingMessage {
                is_subscription: true,
                ..self.write(&plan, session.as_ref(), id, &span)?
            };
            self.connection.link.open(&subscription).await
        };
        let opened = opening.instrument(span.clone()).await;
        opened.inspect_err(|error| {
            self.end_request(&plan, &span, begun.elapsed(), Err(error), false);
        })
    }

    /// Restarts a server process that has exited, or opens a lost event stream again. Requests in flight are not repeated:
    /// they may have been executed.
    pub(crate) async fn reconnect(&self) -> LinkResult<()> {
        let Some(link) = self.connection.link.pipe() else {
            return Ok(());
        };
        let mut restarts = self.connection.restarts.lock().await;
        if link.has_exited() {
            limited_event!(
                WARN,
                "server process exited or event stream ended; reconnecting"
            );
            link.restart().await?;
            *restarts += 1;
        }
        self.initialize_again(*restarts).await
    }

    /// Reads the replies to a request up to its response. Requests from a legacy server are rejected, except a ping and, if
    /// the connection has roots, `roots/list`. Requests from a modern server are ignored.
    pub(crate) async fn read_response(
        &self,
        exchange: &mut LinkExchange,
        headers: &HeaderMap,
    ) -> LinkResult<LinkResponse> {
        let silence = self.setup.limits.silence;
        loop {
            let message = match before_timeout(silence, exchange.next()).await? {
                IncomingMessage::Response(response) => return Ok(response),
                IncomingMessage::Request { method, .. }
                    if self.connection.server().version == PROTOCOL_VERSION =>
                {
                    limited_event!(WARN, method, "request from a modern server ignored");
                    continue;
                }
                message => message,
            };
            let roots = self.connection.roots.as_deref();
            if let Some(reply) = handle_stray(message, &self.setup.notifications, roots) {
                let reply = OutgoingMessage::without_response(reply, headers.clone());
                if let Err(error) = before_timeout(silence, self.connection.link.send(&reply)).await
                {
                    tracing::debug!(?error, "failed to send response");
                }
            }
        }
    }

    /// The message of a request, with the context of its span.
    fn write(
        &self,
        plan: &RequestPlan<'_>,
        session: Option<&LegacySession>,
        id: u64,
        span: &Span,
    ) -> LinkResult<OutgoingMessage> {
        let request = &plan.request;
        let wants_progress = plan.call_id.is_some() && self.setup.notifications.progress.is_some();
        let progress_token = wants_progress.then_some(id);
        let (mut meta, headers) = match session {
            Some(session) => {
                let token = progress_token.map(|id| (PROGRESS_TOKEN_KEY.to_owned(), id.into()));
                (Map::from_iter(token), session.headers())
            }
            None => {
                let meta = RequestMeta {
                    client: &self.setup.info,
                    capabilities: self.setup.capabilities(false),
                    log_level: self.setup.notifications.log.as_ref().map(|log| log.0),
                    call_id: plan.call_id,
                    progress_token,
                };
                let headers = standard_headers(plan).map_err(LinkError::Final)?;
                (meta.to_json(), headers)
            }
        };
        for (key, value) in plan.meta.into_iter().flatten() {
            if RequestMeta::KEYS.contains(&key.as_str()) {
                let why = format!("invalid _meta of a call: the client sets {key:?} itself");
                return Err(LinkError::Final(ErrorKind::InvalidArgument(why)));
            }
            meta.insert(key.clone(), value.clone());
        }
        add_context(&mut meta, span);
        Ok(OutgoingMessage {
            id: Some(id),
            scope: self.scope,
            silence: self.setup.limits.silence,
            budget: self.setup.response_budget.clone(),
            is_call: request.call_kind().is_some(),
            // While the revision is unknown, the server might not understand a cancellation.
            is_cancellable: request.method != DISCOVER,
            is_resumable: session.is_some(),
            body: request.write(id, Some(meta)),
            headers,
            ..OutgoingMessage::default()
        })
    }
}

impl ClientBuilder {
    /// The capabilities of the client. Legacy servers cannot wait for manual answers.
    pub(crate) fn capabilities(&self, is_legacy: bool) -> Capabilities {
        let is_manual = |kind| !is_legacy && self.manual_kinds.contains(&kind);
        let can = |kind| self.handlers.has(kind) || is_manual(kind);
        Capabilities {
            form: can(AskKind::Form),
            url: can(AskKind::Url),
            sampling: can(AskKind::Sampling),
            sampling_tools: self.handlers.sampling_tools,
            sampling_context: self.handlers.sampling_context,
            roots: can(AskKind::Roots) || (is_legacy && self.connection_roots.is_some()),
            tasks: !is_legacy,
        }
    }
}

/// Cancels a request at a legacy HTTP server on drop. A modern server notices the closed response
/// stream, and over a pipe the dropped `PipeExchange` cancels the request.
struct CancelOnDrop<'a> {
    inner: &'a ClientInner,
    /// `None` once the request has ended.
    id: Option<u64>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let (Some(id), Some(legacy)) = (self.id, self.inner.connection.legacy()) {
            legacy.cancel(id);
        }
    }
}

/// Whether a server rejects our protocol version although it lists it as supported.
fn offers_our_version(failure: &RpcFailure) -> bool {
    let supported = failure.data["supported"].as_array();
    failure.is(ErrorCode::UnsupportedVersion)
        && supported.is_some_and(|list| list.iter().any(|version| version == PROTOCOL_VERSION))
}

fn standard_headers(plan: &RequestPlan<'_>) -> Result<HeaderMap, ErrorKind> {
    let mut headers = plan.headers.clone();
    let mut add = |name: &'static str, value: &str| {
        let invalid = || ErrorKind::InvalidArgument(format!("invalid header value {value:?}"));
        let value = HeaderValue::from_str(value).map_err(|_| invalid())?;
        headers.insert(HeaderName::from_static(name), value);
        Ok::<(), ErrorKind>(())
    };
    add("mcp-protocol-version", PROTOCOL_VERSION)?;
    add("mcp-method", plan.request.method)?;
    if let Some(subject) = plan.request.subject() {
        add("mcp-name", &encode_header(subject))?;
    }
    Ok(headers)
}
