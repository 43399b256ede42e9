//! One message in, and what goes out in response, without a transport.

use crate::auth::{Caller, MissingScopes};
use crate::complete::{Later, NoReply};
use crate::dispatch::{Begin, Request};
use crate::listen::Subscription;
use crate::live::elsewhere;
use crate::metrics::{LiveCount, Refusal};
use crate::record;
use crate::rounds::{Round, RoundEvent};
use crate::server::Server;
use crate::tasks::Fetching;
use refrain_core::Note;
use refrain_wire::{
    Agreed, Draft, DraftExchange, DraftRequest, Id, Message, Rejection, Reply, RpcError, parse,
    write_error, write_log, write_progress, write_reply,
};
use serde_json::value::RawValue;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// What goes out in response to one message: notifications, and last the reply. Dropping it cancels the handler.
#[derive(Debug)]
pub struct Outgoing {
    server: Server,
    id: Option<Box<RawValue>>,
    ready: VecDeque<Vec<u8>>,
    work: Work,
    /// The method of the request, or nothing where it could not be read.
    method: &'static str,
    /// The request of a draft that this answers.
    exchange: Option<Arc<DraftExchange>>,
    /// Nothing more comes of the work.
    over: bool,
}

/// What there is still to wait for.
enum Work {
    None,
    Later(Later),
    Round(Box<Round>),
    Listen(Subscription),
    /// The token of a call is fetched; then its message is received anew.
    Fetch(Fetching, Vec<u8>, Caller),
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Later(_) => f.write_str("Later"),
            Self::Round(round) => round.fmt(f),
            Self::Listen(subscription) => subscription.fmt(f),
            Self::Fetch(..) => f.write_str("Fetch"),
        }
    }
}

impl Server {
    /// Takes one JSON-RPC message from this caller, as any transport would. A notification wants no response. A
    /// [`Principal`](refrain_core::Principal) by itself is a caller without scopes.
    ///
    /// ```
    /// # use refrain_core::Principal;
    /// # use refrain_server::Server;
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let server = Server::builder("docs", "1.0").build()?;
    /// let mut out = server.receive(b"not JSON", Principal::anonymous()).expect("a response");
    /// let reply = String::from_utf8(out.next().await.expect("a reply")).expect("text");
    /// assert!(reply.contains("-32700"));
    /// assert_eq!(out.next().await, None);
    /// # Ok::<(), refrain_server::BuildError>(())
    /// # }).unwrap();
    /// ```
    pub fn receive(&self, message: &[u8], caller: impl Into<Caller>) -> Option<Outgoing> {
        self.receive_with(message, caller.into(), None, None)
    }

    /// The same, with a message of a draft, of a client with which something may have been agreed before.
    pub(crate) fn receive_draft_of(
        &self,
        draft: Draft,
        agreed: Option<Agreed>,
        message: &[u8],
        caller: Caller,
    ) -> Option<Outgoing> {
        let known = match draft.read_request_of(agreed, message) {
            Ok(DraftRequest::Request { message, exchange }) => {
                let exchange = Some(Arc::new(exchange));
                return self.receive_with(&message, caller, None, exchange);
            }
            Ok(DraftRequest::Notification) => return None,
            Ok(DraftRequest::Known(reply)) => reply,
            Err(rejection) => self.reject(&rejection),
        };
        Some(Outgoing::known(self.clone(), known))
    }

    /// The answer to a message that was refused.
    fn reject(&self, rejection: &Rejection) -> Vec<u8> {
        let refusal = Refusal::error(rejection.error.code);
        self.0.metrics.request_refused(refusal);
        let mut out = Vec::with_capacity(256);
        let id = rejection.id.as_deref().map(RawValue::get);
        write_error(&mut out, id, &rejection.error);
        out
    }

    /// The same, with the token of a call that was fetched from where it waited.
    fn receive_with(
        &self,
        message: &[u8],
        caller: Caller,
        fetched: Option<Result<String, RpcError>>,
        exchange: Option<Arc<DraftExchange>>,
    ) -> Option<Outgoing> {
        let (id, method, params) = match parse(message) {
            Ok(Message::Request { id, method, params }) => (id, method, params),
            Ok(Message::Notification { .. }) => return None,
            Ok(Message::Response(response)) => {
                let mut outgoing = Outgoing::new(self.clone(), response.id, "");
                outgoing.refuse(RpcError::unexpected_response());
                return Some(outgoing);
            }
            Err(rejection) => {
                let answer = self.reject(&rejection);
                return Some(Outgoing::known(self.clone(), answer));
            }
        };
        let mut outgoing = Outgoing::new(self.clone(), id, "");
        outgoing.exchange = exchange;
        let request = Request::decode(self, &method, params)
            .and_then(|request| request.check_version().map(|()| request));
        let begun = match request {
            Err(error) => Begin::Refused(error),
            Ok(mut request) => {
                if let Some(exchange) = &outgoing.exchange {
                    request.suit(exchange);
                }
                outgoing.method = request.method();
                match fetched {
                    Some(fetched) => self.answer_fetched(request, fetched, caller, None),
                    None => {
                        if let Some(fetching) = self.fetch(&request) {
                            let message = message.to_vec();
                            outgoing.work = Work::Fetch(fetching, message, caller);
                            return Some(outgoing);
                        }
                        self.answer(request, caller, None)
                    }
                }
            }
        };
        let reply = match begun {
            Begin::Round(round) => {
                round.answers(&id);
                outgoing.work = Work::Round(round);
                return Some(outgoing);
            }
            Begin::Later(later) => {
                outgoing.work = Work::Later(later);
                return Some(outgoing);
            }
            Begin::Listen(subscription) => {
                outgoing.work = Work::Listen(subscription);
                return Some(outgoing);
            }
            Begin::Reply(reply) => reply,
            Begin::Refused(error) => {
                self.0.metrics.request_refused(Refusal::error(error.code));
                Reply::Error(error)
            }
            Begin::Forbidden(missing) => self.forbid(missing),
            Begin::Busy(error) => Reply::Error(error),
            // There is nothing here to send it with.
            Begin::Relay(_) => {
                self.0.metrics.live(LiveCount::Elsewhere);
                Reply::Error(elsewhere())
            }
        };
        outgoing.reply(&reply);
        Some(outgoing)
    }

    /// The reply to a caller who lacks a scope.
    fn forbid(&self, missing: MissingScopes) -> Reply {
        self.0.metrics.request_refused(Refusal::InsufficientScope);
        Reply::Error(missing.into())
    }
}

impl Outgoing {
    fn new(server: Server, id: Id<'_>, method: &'static str) -> Self {
        let id = RawValue::from_string(id.as_json().to_owned())
            .expect("an id that was parsed from JSON is JSON");
        Self {
            server,
            id: Some(id),
            ready: VecDeque::new(),
            work: Work::None,
            method,
            exchange: None,
            over: false,
        }
    }

    /// An answer that is known.
    fn known(server: Server, answer: Vec<u8>) -> Self {
        Self {
            server,
            id: None,
            ready: VecDeque::from([answer]),
            work: Work::None,
            method: "",
            exchange: None,
            over: true,
        }
    }

    /// Has what goes out translated.
    pub(crate) fn translate(&mut self, exchange: Option<Arc<DraftExchange>>) {
        self.exchange = exchange;
    }

    /// What goes out for a round that has these notes to send first.
    pub(crate) fn of_round(server: Server, id: Id<'_>, round: Box<Round>, notes: &[Note]) -> Self {
        let mut outgoing = Self::new(server, id, round.kind().method());
        outgoing.notes(round.progress_token(), notes);
        outgoing.work = Work::Round(round);
        outgoing
    }

    /// What goes out to a client that listens.
    pub(crate) fn of_listener(server: Server, id: Id<'_>, subscription: Subscription) -> Self {
        let mut outgoing = Self::new(server, id, "subscriptions/listen");
        outgoing.work = Work::Listen(subscription);
        outgoing
    }

    /// The next message to send. `None` after the reply, or when the round was made to crash.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next message to send. `None` after the reply, or when the round was made to crash.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        loop {
            let Some(message) = ready!(self.poll_message(cx)) else {
                return Poll::Ready(None);
            };
            record::sent(self.method, &message);
            let Some(exchange) = &self.exchange else {
                return Poll::Ready(Some(message));
            };
            // Of some a draft says nothing.
            if let Some(translated) = exchange.write_reply(&message) {
                return Poll::Ready(Some(translated));
            }
        }
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Poll::Ready(Some(message));
            }
            let event = match &mut self.work {
                _ if self.over => return Poll::Ready(None),
                Work::None => return Poll::Ready(None),
                Work::Later(later) => {
                    let reply = ready!(later.as_mut().poll(cx));
                    RoundEvent::Reply(reply.unwrap_or_else(|none| match none {
                        NoReply::Forbidden(missing) => self.server.forbid(missing),
                        NoReply::Busy(error) => Reply::Error(error),
                    }))
                }
                Work::Round(round) => ready!(round.poll(cx)),
                Work::Fetch(fetching, message, caller) => {
                    let fetched = ready!(fetching.as_mut().poll(cx));
                    let (message, caller) = (std::mem::take(message), caller.clone());
                    let server = self.server.clone();
                    let exchange = self.exchange.clone();
                    match server.receive_with(&message, caller, Some(fetched), exchange) {
                        Some(next) => *self = next,
                        None => self.over = true,
                    }
                    continue;
                }
                Work::Listen(subscription) => {
                    let Some(id) = self.id.as_deref().and_then(Id::from_raw) else {
                        return Poll::Ready(None);
                    };
                    return subscription.poll(cx, id, &self.server.0.info);
                }
            };
            match event {
                RoundEvent::Notes(notes) => {
                    let token = match &self.work {
                        Work::Round(round) => round.progress_token().map(ToOwned::to_owned),
                        _ => None,
                    };
                    self.notes(token.as_deref(), &notes);
                }
                RoundEvent::Reply(reply) => self.reply(&reply),
                RoundEvent::Asks { .. } | RoundEvent::Crashed => self.over = true,
            }
        }
    }

    /// The round that is at work, where a handler is needed to reply.
    pub fn round(&mut self) -> Option<&mut Round> {
        match &mut self.work {
            Work::Round(round) => Some(round),
            _ => None,
        }
    }

    /// Ends a subscription from this side, so that its last messages follow. Anything else goes on.
    pub(crate) fn end_listening(&self) {
        if let Work::Listen(subscription) = &self.work {
            subscription.end();
        }
    }

    fn notes(&mut self, token: Option<&RawValue>, notes: &[Note]) {
        for note in notes {
            let mut out = Vec::with_capacity(256);
            write_note(&mut out, token, note);
            if !out.is_empty() {
                self.ready.push_back(out);
            }
        }
    }

    fn refuse(&mut self, error: RpcError) {
        let metrics = &self.server.0.metrics;
        metrics.request_refused(Refusal::error(error.code));
        self.reply(&Reply::Error(error));
    }

    fn reply(&mut self, reply: &Reply) {
        let mut out = Vec::with_capacity(512);
        let id = self.id.as_deref().and_then(Id::from_raw);
        write_reply(&mut out, id, reply, &self.server.0.info);
        self.ready.push_back(out);
        self.over = true;
    }
}

/// Writes one note as a notification.
pub(crate) fn write_note(out: &mut Vec<u8>, token: Option<&RawValue>, note: &Note) {
    match note {
        Note::Progress {
            done,
            total,
            message,
        } => {
            if let Some(token) = token {
                write_progress(out, token, *done, *total, message.as_deref());
            }
        }
        Note::Log { level, data } => write_log(out, *level, None, data),
    }
}
