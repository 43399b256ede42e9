//! The response to one message, independent of the transport.

use crate::auth::MissingScopes;
use crate::catalog::complete::PendingReply;
use crate::dispatch::Dispatch;
use crate::legacy::{LegacyExchange, Session, session_expired};
use crate::live::held_elsewhere;
use crate::metrics::{ErrorType, LiveCallEvent, NonCall, Refusal};
use crate::relay::PendingRelay;
use crate::request_span::record_reply;
use crate::rounds::{Round, RoundEvent};
use crate::server::Server;
use crate::subscriptions::Subscription;
use crate::wire_recorder;
use refrain_core::Note;
use refrain_wire::ratified::{write_log, write_progress, write_reply};
use refrain_wire::{CallKind, ErrorCode, Id, IdBuf, Reply, RpcError};
use serde_json::value::RawValue;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tracing::Span;

/// The time after which a client should retry when a limit is reached.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The kind of an outgoing message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// A notification: progress, a log message, or a change that the client is subscribed to.
    Notification,
    /// A request to a legacy client, or its cancellation.
    Ask,
    /// The reply, which is the last message.
    Reply,
}

/// How a message was handled. Each variant maps to an HTTP status code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// The message needs no reply.
    Accepted,
    /// The request was handled. The reply is a result or an error.
    Replied,
    /// The message was rejected with this code.
    Rejected(ErrorCode),
    /// The caller lacks one of these scopes, separated by spaces.
    Forbidden(String),
    /// A limit is reached or a resource is in use; the client may retry after this time.
    Busy(Duration),
}

/// The response to one message: notifications, then the reply. Dropping it cancels the handler, except that of a live call
/// whose request can be repeated.
pub struct MessageResponse {
    server: Server,
    id: Option<IdBuf>,
    /// The method of the request; empty if unknown.
    method: &'static str,
    queue: VecDeque<(MessageKind, Vec<u8>)>,
    work: Work,
    status: Status,
    token_length: usize,
    translate: Option<Box<Translate>>,
    /// Set for a request of a legacy session.
    legacy: Option<Box<LegacyExchange>>,
    /// The span of the request, until its reply is written.
    span: Span,
    /// The method and start of a request that is not a call, until its reply is written.
    started: Option<(NonCall, Instant)>,
}

/// Translates outgoing messages. `None` drops the message.
type Translate = dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync;

/// The source of the messages that are not yet queued.
enum Work {
    /// No message follows. The round of a call is kept for its statistics.
    Done(Option<Box<Round>>),
    Reply(Reply),
    /// A future produces the reply.
    Pending(PendingReply),
    /// A future produces another response, which replaces this one.
    Deferred(Pin<Box<dyn Future<Output = MessageResponse> + Send>>),
    Round(Box<Round>),
    Subscription(Subscription),
}

impl std::fmt::Debug for MessageResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageResponse")
            .field("id", &self.id)
            .field("method", &self.method)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// A response to send, or a request to relay.
#[expect(
    clippy::large_enum_variant,
    reason = "the large variant is the common one; boxing it costs an allocation per request"
)]
pub(crate) enum Disposition<'a> {
    Response(MessageResponse),
    /// The id of the request, and its destination.
    Relay(Option<Id<'a>>, Box<PendingRelay>),
}

impl Disposition<'_> {
    /// The response of a transport that cannot relay: an error for a request to relay.
    pub(crate) fn without_relay(self, server: &Server) -> MessageResponse {
        match self {
            Self::Response(response) => response,
            Self::Relay(id, relay) => {
                server.0.services.metrics.live(LiveCallEvent::Elsewhere);
                let error = Work::Reply(Reply::Error(held_elsewhere()));
                MessageResponse::new(server, id, CallKind::Tool.method(), error).in_span(relay.span)
            }
        }
    }
}

impl MessageResponse {
    fn new(server: &Server, id: Option<Id<'_>>, method: &'static str, work: Work) -> Self {
        Self {
            server: server.clone(),
            id: id.map(|id| id.to_buf()),
            method,
            queue: VecDeque::new(),
            work,
            status: Status::Replied,
            token_length: 0,
            translate: None,
            legacy: None,
            span: Span::none(),
            started: None,
        }
    }

    pub(crate) fn accepted(server: &Server) -> Self {
        Self::new(server, None, "", Work::Done(None)).with_status(Status::Accepted)
    }

    /// The response to a rejected message. Counts the rejection.
    pub(crate) fn rejected(server: &Server, id: Option<Id<'_>>, error: RpcError) -> Self {
        let metrics = &server.0.services.metrics;
        metrics.request_refused(Refusal::error(error.code));
        let status = Status::Rejected(error.code);
        let reply = Work::Reply(Reply::Error(error));
        Self::new(server, id, "", reply).with_status(status)
    }

    pub(crate) fn error(server: &Server, id: Option<Id<'_>>, error: RpcError) -> Self {
        Self::new(server, id, "", Work::Reply(Reply::Error(error)))
    }

    /// A response that a future produces.
    pub(crate) fn deferred(
        server: &Server,
        response: impl Future<Output = Self> + Send + 'static,
    ) -> Self {
        Self::new(server, None, "", Work::Deferred(Box::pin(response)))
    }

    pub(crate) fn reply(server: &Server, id: Id<'_>, method: &'static str, reply: Reply) -> Self {
        Self::new(server, Some(id), method, Work::Reply(reply))
    }

    pub(crate) fn from_dispatch<'a>(
        server: &Server,
        id: Option<Id<'a>>,
        method: &'static str,
        dispatch: Dispatch,
        legacy: Option<Box<LegacyExchange>>,
        span: Span,
    ) -> Disposition<'a> {
        let metrics = &server.0.services.metrics;
        let mut response = Self::new(server, id, method, Work::Done(None));
        response.legacy = legacy;
        response.span = span;
        // Rounds record their durations themselves.
        if !matches!(dispatch, Dispatch::Round(_)) {
            response.started = NonCall::of(method).map(|method| (method, Instant::now()));
        }
        response.work = match dispatch {
            Dispatch::Reply(reply) => Work::Reply(reply),
            Dispatch::Pending(pending) => Work::Pending(pending),
            Dispatch::Round(mut round) => {
                if let Some(legacy) = &mut response.legacy {
                    legacy.connect(&mut round);
                }
                Work::Round(round)
            }
            Dispatch::Subscription(subscription) => Work::Subscription(subscription),
            Dispatch::Accepted => {
                response.status = Status::Accepted;
                Work::Done(None)
            }
            Dispatch::Invalid(error) => {
                // In legacy revisions, an error of a request is a reply with HTTP status 200.
                if response.legacy.is_none() {
                    response.status = Status::Rejected(error.code);
                }
                metrics.request_refused(Refusal::error(error.code));
                Work::Reply(Reply::Error(error))
            }
            Dispatch::Rejected(refusal, error) => {
                response.status = Status::Rejected(ErrorCode::InvalidRequest);
                metrics.request_refused(refusal);
                Work::Reply(Reply::Error(error))
            }
            Dispatch::Forbidden(missing) => Work::Reply(response.forbid(missing)),
            Dispatch::Busy(error) => {
                response.status = Status::Busy(RETRY_AFTER);
                Work::Reply(Reply::Error(error))
            }
            Dispatch::Relay(mut relay) => {
                relay.span = response.span;
                return Disposition::Relay(id, relay);
            }
        };
        Disposition::Response(response)
    }

    /// The response with an already serialized reply.
    pub(crate) fn serialized(server: &Server, reply: Vec<u8>) -> Self {
        let mut response = Self::new(server, None, "", Work::Done(None));
        response.queue.push_back((MessageKind::Reply, reply));
        response
    }

    /// The response to a request that exceeds a limit.
    pub(crate) fn busy(server: &Server, id: Id<'_>, error: RpcError) -> Self {
        server.0.services.metrics.request_refused(Refusal::Busy);
        Self::reply(server, id, "", Reply::Error(error)).with_status(Status::Busy(RETRY_AFTER))
    }

    /// Sets the span of the request, which ends with the reply.
    pub(crate) fn in_span(self, span: Span) -> Self {
        Self { span, ..self }
    }

    pub(crate) fn with_status(mut self, status: Status) -> Self {
        self.status = status;
        self
    }

    pub(crate) fn translate(
        &mut self,
        translate: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) {
        self.translate = Some(Box::new(translate));
    }

    /// How the message was handled. Final once the reply was returned.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// The next message to send. `None` after the reply.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        self.next_message().await.map(|(_, message)| message)
    }

    /// The next message to send, with its kind. `None` after the reply.
    pub async fn next_message(&mut self) -> Option<(MessageKind, Vec<u8>)> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next message to send, with its kind. `None` after the reply.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(MessageKind, Vec<u8>)>> {
        loop {
            let Some((kind, message)) = ready!(self.poll_message(cx)) else {
                return Poll::Ready(None);
            };
            let Some(translate) = &self.translate else {
                return Poll::Ready(Some((kind, message)));
            };
            if let Some(message) = translate(&message) {
                return Poll::Ready(Some((kind, message)));
            }
        }
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<(MessageKind, Vec<u8>)>> {
        loop {
            if let Some(message) = self.queue.pop_front() {
                return Poll::Ready(Some(message));
            }
            let reply = match std::mem::replace(&mut self.work, Work::Done(None)) {
                Work::Done(round) => {
                    self.work = Work::Done(round);
                    return Poll::Ready(None);
                }
                Work::Reply(reply) => reply,
                Work::Pending(mut pending) => {
                    match self.span.in_scope(|| pending.as_mut().poll(cx)) {
                        Poll::Ready(Ok(reply)) => reply,
                        Poll::Ready(Err(missing)) => self.forbid(missing),
                        Poll::Pending => {
                            self.work = Work::Pending(pending);
                            return Poll::Pending;
                        }
                    }
                }
                Work::Deferred(mut response) => {
                    if let Poll::Ready(response) = response.as_mut().poll(cx) {
                        let translate = self.translate.take();
                        *self = Self {
                            translate,
                            ..response
                        };
                        continue;
                    }
                    self.work = Work::Deferred(response);
                    return Poll::Pending;
                }
                Work::Round(round) => match ready!(self.poll_round(round, cx)) {
                    Some(reply) => reply,
                    None => continue,
                },
                Work::Subscription(subscription) => {
                    return self.poll_subscription(subscription, cx);
                }
            };
            self.end_request(&reply);
            let cancellations = self.legacy.as_mut().map(|legacy| legacy.withdraw_all());
            self.queue_asks(cancellations.unwrap_or_default());
            let reply = (MessageKind::Reply, self.write(&reply));
            if self.queue.is_empty() {
                return Poll::Ready(Some(reply));
            }
            self.queue.push_back(reply);
        }
    }

    fn poll_subscription(
        &mut self,
        mut subscription: Subscription,
        cx: &mut Context<'_>,
    ) -> Poll<Option<(MessageKind, Vec<u8>)>> {
        let next = match &self.id {
            Some(id) => subscription.poll(cx, id.as_id(), &self.server.0.services.info),
            None => Poll::Ready(None),
        };
        self.work = Work::Subscription(subscription);
        let next = ready!(next);
        // The span ends with the first message, the acknowledgement, not with the subscription.
        self.span = Span::none();
        Poll::Ready(next.map(|message| self.notification(message)))
    }

    /// Ends the span of the request, and records its duration.
    fn end_request(&mut self, reply: &Reply) {
        record_reply(&self.span, reply);
        self.span = Span::none();
        if let Some((method, started)) = self.started.take() {
            let metrics = &self.server.0.services.metrics;
            metrics.duration(method, started.elapsed(), ErrorType::of(reply));
        }
    }

    /// Continues a call. `None` if messages were queued, or if a test made the call crash.
    fn poll_round(&mut self, mut round: Box<Round>, cx: &mut Context<'_>) -> Poll<Option<Reply>> {
        let event = match round.poll(cx) {
            Poll::Ready(event) => event,
            Poll::Pending => {
                if let Some(legacy) = &mut self.legacy
                    && legacy.is_expired(&round, cx)
                {
                    self.server.0.services.metrics.live(LiveCallEvent::GivenUp);
                    return Poll::Ready(Some(Reply::Error(session_expired())));
                }
                self.work = Work::Round(round);
                return Poll::Pending;
            }
        };
        match event {
            RoundEvent::Notes(notes) => self.queue_notes(round.progress_token(), &notes),
            RoundEvent::Asks { asks, withdrawn } => {
                if let Some(legacy) = &mut self.legacy {
                    let messages = legacy.write_asks(asks, &withdrawn);
                    self.queue_asks(messages);
                }
            }
            RoundEvent::Reply(reply) => {
                self.work = Work::Done(Some(round));
                return Poll::Ready(Some(reply));
            }
            RoundEvent::Crashed => {
                self.work = Work::Done(Some(round));
                return Poll::Ready(None);
            }
        }
        self.work = Work::Round(round);
        Poll::Ready(None)
    }

    /// The reply to a caller that lacks scopes.
    fn forbid(&mut self, missing: MissingScopes) -> Reply {
        let metrics = &self.server.0.services.metrics;
        metrics.request_refused(Refusal::InsufficientScope);
        self.status = Status::Forbidden(missing.0.clone());
        Reply::Error(missing.into())
    }

    fn queue_notes(&mut self, token: Option<&RawValue>, notes: &[Note]) {
        for note in notes {
            let mut out = Vec::with_capacity(256);
            match (note, token) {
                (Note::Log { level, data }, _) => write_log(&mut out, *level, None, data),
                (Note::Progress { .. }, None) => continue,
                (
                    Note::Progress {
                        done,
                        total,
                        message,
                    },
                    Some(token),
                ) => write_progress(&mut out, token, *done, *total, message.as_deref()),
            }
            let message = self.notification(out);
            self.queue.push_back(message);
        }
    }

    fn queue_asks(&mut self, messages: Vec<Vec<u8>>) {
        for message in messages {
            self.record(&message);
            self.queue.push_back((MessageKind::Ask, message));
        }
    }

    fn notification(&self, message: Vec<u8>) -> (MessageKind, Vec<u8>) {
        self.record(&message);
        (MessageKind::Notification, message)
    }

    fn record(&self, message: &[u8]) {
        match &self.legacy {
            None => wire_recorder::record(self.method, message),
            Some(legacy) => legacy.record(self.method, message),
        }
    }

    fn write(&mut self, reply: &Reply) -> Vec<u8> {
        match reply {
            Reply::Incomplete(incomplete) => {
                self.token_length = incomplete.state.as_ref().map_or(0, String::len);
            }
            // The protocol requires an HTTP error status for this code. Other errors of a call have status 200.
            Reply::Error(error)
                if error.code == ErrorCode::MissingCapability && self.legacy.is_none() =>
            {
                self.status = Status::Rejected(error.code);
            }
            Reply::Busy { retry_after, .. } => self.status = Status::Busy(*retry_after),
            _ => {}
        }
        let mut out = Vec::new();
        let id = self.id.as_ref().map(IdBuf::as_id);
        match &self.legacy {
            None => write_reply(&mut out, id, reply, &self.server.0.services.info),
            Some(legacy) => {
                out.reserve(1024);
                legacy.write_reply(&mut out, id, self.method, reply);
            }
        }
        self.record(&out);
        out
    }

    /// The round, if the request is a call.
    pub fn round(&mut self) -> Option<&mut Round> {
        match &mut self.work {
            Work::Round(round) | Work::Done(Some(round)) => Some(round),
            _ => None,
        }
    }

    /// The legacy session that this request opened.
    pub(crate) fn opened_session(&self) -> Option<&Session> {
        let legacy = self.legacy.as_ref()?;
        legacy.new_session_id.as_ref().map(|_| &legacy.session)
    }

    /// The id of the legacy session that this request opened.
    pub(crate) fn session_id(&self) -> Option<&str> {
        self.legacy.as_ref()?.new_session_id.as_deref()
    }

    pub(crate) fn id(&self) -> Option<Id<'_>> {
        self.id.as_ref().map(IdBuf::as_id)
    }

    pub(crate) fn is_call(&self) -> bool {
        matches!(self.work, Work::Round(_))
    }

    /// Whether the reply exists, and only has to be serialized.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.work, Work::Reply(_))
    }

    pub(crate) fn token_length(&self) -> usize {
        self.token_length
    }

    pub(crate) fn is_subscription(&self) -> bool {
        matches!(self.work, Work::Subscription(_))
    }

    /// If this is a subscription, ends it: its last messages follow.
    pub(crate) fn end_subscription(&self) {
        if let Work::Subscription(subscription) = &self.work {
            subscription.end();
        }
    }

    /// Cancels the call because the client requested it.
    pub(crate) fn cancel(&mut self) {
        if let Work::Round(round) = &mut self.work {
            round.cancel_call();
        }
    }
}
