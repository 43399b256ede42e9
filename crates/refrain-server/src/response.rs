//! The response to one message, for every transport.

use crate::auth::MissingScopes;
use crate::catalog::complete::PendingReply;
use crate::dispatch::Begin;
use crate::legacy::{LegacyExchange, Session, session_over};
use crate::live::held_elsewhere;
use crate::metrics::{LiveCallEvent, Refusal};
use crate::record;
use crate::relay::RelayTo;
use crate::rounds::{Round, RoundEvent};
use crate::server::Server;
use crate::subscriptions::Subscription;
use refrain_core::Note;
use refrain_wire::ratified::{write_log, write_progress, write_reply};
use refrain_wire::{CallKind, ErrorCode, Id, IdBuf, Reply, RpcError};
use serde_json::value::RawValue;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The kind of a message that goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// A notification: progress, a log message, or a change that the client is subscribed to.
    Notification,
    /// A request to a legacy client, or its withdrawal.
    Ask,
    /// The reply, after which nothing follows.
    Reply,
}

/// How a message was answered. HTTP has a status code for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// The message wants no reply.
    Accepted,
    /// The request was carried out; the reply is its result or its error.
    Replied,
    /// The message was refused with this code.
    Refused(ErrorCode),
    /// The caller lacks one of these scopes, separated by spaces.
    Forbidden(String),
    /// This instance has no capacity left at present; the client may try again.
    Busy,
}

/// The response to one message: notifications, and last the reply. Dropping it cancels the handler.
pub struct Response {
    server: Server,
    id: Option<IdBuf>,
    /// The method of the request; empty where it could not be read.
    method: &'static str,
    queue: VecDeque<(MessageKind, Vec<u8>)>,
    work: Work,
    status: Status,
    /// The length of the token in the reply.
    token: usize,
    map: Option<Box<Translate>>,
    /// The exchange with a legacy client.
    legacy: Option<Box<LegacyExchange>>,
}

/// A translation of the messages that go out; `None` leaves one out.
type Translate = dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync;

/// The work before the reply.
enum Work {
    /// Nothing. The round that ran is kept for its figures.
    Done(Option<Box<Round>>),
    Reply(Reply),
    Later(PendingReply),
    Deferred(Pin<Box<dyn Future<Output = Response> + Send>>),
    Round(Box<Round>),
    Subscription(Subscription),
}

impl std::fmt::Debug for Response {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Response")
            .field("id", &self.id)
            .field("method", &self.method)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// The response to a message, or the instance that has to give it.
#[expect(
    clippy::large_enum_variant,
    reason = "the large variant is the common one; boxing it costs an allocation per request"
)]
pub(crate) enum Handled<'a> {
    Response(Response),
    Relay(Option<Id<'a>>, Box<RelayTo>),
}

impl Handled<'_> {
    /// The response where nothing is relayed.
    pub(crate) fn here(self, server: &Server) -> Response {
        match self {
            Self::Response(response) => response,
            Self::Relay(id, _) => {
                server.0.services.metrics.live(LiveCallEvent::Elsewhere);
                let error = Work::Reply(Reply::Error(held_elsewhere()));
                Response::new(server, id, CallKind::Tool.method(), error)
            }
        }
    }
}

impl Response {
    fn new(server: &Server, id: Option<Id<'_>>, method: &'static str, work: Work) -> Self {
        Self {
            server: server.clone(),
            id: id.map(|id| id.to_buf()),
            method,
            queue: VecDeque::new(),
            work,
            status: Status::Replied,
            token: 0,
            map: None,
            legacy: None,
        }
    }

    /// The response to a message that wants none.
    pub(crate) fn accepted(server: &Server) -> Self {
        Self::new(server, None, "", Work::Done(None)).with_status(Status::Accepted)
    }

    /// The response to a message that is refused.
    pub(crate) fn refused(server: &Server, id: Option<Id<'_>>, error: RpcError) -> Self {
        let metrics = &server.0.services.metrics;
        metrics.request_refused(Refusal::error(error.code));
        let status = Status::Refused(error.code);
        let reply = Work::Reply(Reply::Error(error));
        Self::new(server, id, "", reply).with_status(status)
    }

    /// The error for a message without an id.
    pub(crate) fn failed(server: &Server, error: RpcError) -> Self {
        Self::new(server, None, "", Work::Reply(Reply::Error(error)))
    }

    /// A response that takes its time.
    pub(crate) fn deferred(
        server: &Server,
        response: impl Future<Output = Self> + Send + 'static,
    ) -> Self {
        Self::new(server, None, "", Work::Deferred(Box::pin(response)))
    }

    /// A reply that is ready.
    pub(crate) fn reply(server: &Server, id: Id<'_>, method: &'static str, reply: Reply) -> Self {
        Self::new(server, Some(id), method, Work::Reply(reply))
    }

    /// The response to a message that was accepted.
    pub(crate) fn begun<'a>(
        server: &Server,
        id: Option<Id<'a>>,
        method: &'static str,
        begin: Begin,
        legacy: Option<Box<LegacyExchange>>,
    ) -> Handled<'a> {
        let metrics = &server.0.services.metrics;
        let mut response = Self::new(server, id, method, Work::Done(None));
        response.legacy = legacy;
        response.work = match begin {
            Begin::Reply(reply) => Work::Reply(reply),
            Begin::Later(later) => Work::Later(later),
            Begin::Round(mut round) => {
                if let Some(id) = &id {
                    round.record_id(id);
                }
                if let Some(legacy) = &mut response.legacy {
                    legacy.connect(&mut round);
                }
                Work::Round(round)
            }
            Begin::Listen(subscription) => Work::Subscription(subscription),
            Begin::Accepted => {
                response.status = Status::Accepted;
                Work::Done(None)
            }
            Begin::Refused(error) => {
                // An error of a request is a reply like any other in legacy revisions.
                if response.legacy.is_none() {
                    response.status = Status::Refused(error.code);
                }
                metrics.request_refused(Refusal::error(error.code));
                Work::Reply(Reply::Error(error))
            }
            Begin::Rejected(refusal, error) => {
                response.status = Status::Refused(ErrorCode::InvalidRequest);
                metrics.request_refused(refusal);
                Work::Reply(Reply::Error(error))
            }
            Begin::Forbidden(missing) => Work::Reply(response.forbid(missing)),
            Begin::Busy(error) => {
                response.status = Status::Busy;
                Work::Reply(Reply::Error(error))
            }
            Begin::Relay(relay) => return Handled::Relay(id, relay),
        };
        Handled::Response(response)
    }

    /// A reply that is written already.
    pub(crate) fn written(server: &Server, reply: Vec<u8>) -> Self {
        let mut response = Self::new(server, None, "", Work::Done(None));
        response.queue.push_back((MessageKind::Reply, reply));
        response
    }

    /// The response to a request for which there is no capacity.
    pub(crate) fn busy(server: &Server, id: Id<'_>, error: RpcError) -> Self {
        server.0.services.metrics.request_refused(Refusal::Busy);
        Self::reply(server, id, "", Reply::Error(error)).with_status(Status::Busy)
    }

    pub(crate) fn with_status(mut self, status: Status) -> Self {
        self.status = status;
        self
    }

    /// Translates the messages on their way out; `None` leaves one out.
    pub(crate) fn map(&mut self, map: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync + 'static) {
        self.map = Some(Box::new(map));
    }

    /// How the message was answered. Final once the reply was taken out.
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
            let Some(map) = &self.map else {
                return Poll::Ready(Some((kind, message)));
            };
            if let Some(message) = map(&message) {
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
                Work::Later(mut later) => match later.as_mut().poll(cx) {
                    Poll::Ready(Ok(reply)) => reply,
                    Poll::Ready(Err(missing)) => self.forbid(missing),
                    Poll::Pending => {
                        self.work = Work::Later(later);
                        return Poll::Pending;
                    }
                },
                Work::Deferred(mut response) => {
                    if let Poll::Ready(response) = response.as_mut().poll(cx) {
                        let map = self.map.take();
                        *self = Self { map, ..response };
                        continue;
                    }
                    self.work = Work::Deferred(response);
                    return Poll::Pending;
                }
                Work::Round(round) => match ready!(self.poll_round(round, cx)) {
                    Some(reply) => reply,
                    None => continue,
                },
                Work::Subscription(mut subscription) => {
                    let polled = match &self.id {
                        Some(id) => subscription.poll(cx, id.as_id(), &self.server.0.services.info),
                        None => Poll::Ready(None),
                    };
                    self.work = Work::Subscription(subscription);
                    return polled.map(|next| next.map(|message| self.notification(message)));
                }
            };
            let withdrawn = self.legacy.as_mut().map(|legacy| legacy.withdraw_all());
            self.queue_asks(withdrawn.unwrap_or_default());
            let reply = (MessageKind::Reply, self.write(&reply));
            if self.queue.is_empty() {
                return Poll::Ready(Some(reply));
            }
            self.queue.push_back(reply);
        }
    }

    /// Goes on with a call. `None`: its messages were queued, or it was made to crash.
    fn poll_round(&mut self, mut round: Box<Round>, cx: &mut Context<'_>) -> Poll<Option<Reply>> {
        let event = match round.poll(cx) {
            Poll::Ready(event) => event,
            Poll::Pending => {
                if let Some(legacy) = &mut self.legacy
                    && legacy.is_over(&round, cx)
                {
                    self.server.0.services.metrics.live(LiveCallEvent::GivenUp);
                    return Poll::Ready(Some(Reply::Error(session_over())));
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

    /// The reply to a caller who lacks scopes.
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
            None => record::sent(self.method, message),
            Some(legacy) => legacy.record(self.method, message),
        }
    }

    fn write(&mut self, reply: &Reply) -> Vec<u8> {
        match reply {
            Reply::Incomplete(incomplete) => {
                self.token = incomplete.state.as_ref().map_or(0, String::len);
            }
            // The protocol demands a status for this one; any other error of a call is a reply like its result.
            Reply::Error(error)
                if error.code == ErrorCode::MissingCapability && self.legacy.is_none() =>
            {
                self.status = Status::Refused(error.code);
            }
            _ => {}
        }
        let mut out = Vec::with_capacity(1024);
        let id = self.id.as_ref().map(IdBuf::as_id);
        match &self.legacy {
            None => write_reply(&mut out, id, reply, &self.server.0.services.info),
            Some(legacy) => legacy.write_reply(&mut out, id, reply),
        }
        self.record(&out);
        out
    }

    /// The round that runs or ran, where the request is a call.
    pub fn round(&mut self) -> Option<&mut Round> {
        match &mut self.work {
            Work::Round(round) | Work::Done(Some(round)) => Some(round),
            _ => None,
        }
    }

    /// The session that the request opened.
    pub(crate) fn opened_session(&self) -> Option<&Session> {
        let legacy = self.legacy.as_ref()?;
        legacy.opened.as_ref().map(|_| &legacy.session)
    }

    /// The id of that session.
    pub(crate) fn session_id(&self) -> Option<&str> {
        self.legacy.as_ref()?.opened.as_deref()
    }

    /// The id of the request.
    pub(crate) fn id(&self) -> Option<Id<'_>> {
        self.id.as_ref().map(IdBuf::as_id)
    }

    /// Whether a handler is at work.
    pub(crate) fn is_call(&self) -> bool {
        matches!(self.work, Work::Round(_))
    }

    /// The length of the token in the reply.
    pub(crate) fn token(&self) -> usize {
        self.token
    }

    pub(crate) fn is_subscription(&self) -> bool {
        matches!(self.work, Work::Subscription(_))
    }

    /// Ends a subscription from this side, so that its last messages follow. Anything else goes on.
    pub(crate) fn end_subscription(&self) {
        if let Work::Subscription(subscription) = &self.work {
            subscription.end();
        }
    }

    /// Ends the call because its client cancelled it, and not only stopped to listen.
    pub(crate) fn cancel(&mut self) {
        if let Work::Round(round) = &mut self.work {
            round.cancel_call();
        }
    }
}
