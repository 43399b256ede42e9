//! What goes out in response to one request of an older client.

use super::{Purpose, RequestId, Session};
use crate::catalog::complete::Later;
use crate::live::LiveAnswer;
use crate::metrics::LiveCount;
use crate::record;
use crate::response::write_note;
use crate::rounds::{Round, RoundEvent};
use crate::server::Server;
use refrain_wire::{Ask, Id, Reply, RpcError, write_ask, write_cancelled, write_older_reply};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;
use tokio::time::Sleep;

/// What a message is, that goes out in response to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Progress, or a log message. It may be left out where there is no room.
    Note,
    /// An ask, or that one is withdrawn.
    Ask,
    /// The response, after which nothing comes.
    Reply,
}

/// What goes out in response to one request: notifications, asks, and last the reply. Dropping it cancels the handler.
pub(crate) struct Talk {
    server: Server,
    session: Session,
    id: Box<RawValue>,
    method: &'static str,
    ready: VecDeque<(Sent, Vec<u8>)>,
    work: Work,
    /// The ids of the open asks, by key.
    open: BTreeMap<String, String>,
    answers: Option<mpsc::Sender<LiveAnswer>>,
    /// Until the session is over, and answers are no longer taken. There is none before something is asked.
    session_ends: Option<Pin<Box<Sleep>>>,
}

enum Work {
    Over,
    Later(Later),
    Round(Box<Round>),
}

impl Talk {
    fn new(server: &Server, session: &Session, id: Id<'_>, method: &'static str) -> Self {
        let id = RawValue::from_string(id.as_json().to_owned())
            .expect("an id that was parsed from JSON is JSON");
        Self {
            server: server.clone(),
            session: session.clone(),
            id,
            method,
            ready: VecDeque::new(),
            work: Work::Over,
            open: BTreeMap::new(),
            answers: None,
            session_ends: None,
        }
    }

    /// A reply that is there already.
    pub(super) fn of_reply(
        server: &Server,
        session: &Session,
        id: Id<'_>,
        method: &'static str,
        reply: &Reply,
    ) -> Self {
        let mut talk = Self::new(server, session, id, method);
        talk.reply(reply);
        talk
    }

    /// A reply that takes its time.
    pub(super) fn of_later(
        server: &Server,
        session: &Session,
        id: Id<'_>,
        method: &'static str,
        later: Later,
    ) -> Self {
        let mut talk = Self::new(server, session, id, method);
        talk.work = Work::Later(later);
        talk
    }

    /// A call that is live.
    pub(super) fn of_round(
        server: &Server,
        session: &Session,
        id: Id<'_>,
        mut round: Box<Round>,
    ) -> Self {
        let (sender, answers) = mpsc::channel(server.0.limits.flow.asks.max(1));
        round.answers(&id);
        round.answers_from(answers);
        let mut talk = Self::new(server, session, id, round.kind().method());
        talk.answers = Some(sender);
        talk.work = Work::Round(round);
        talk
    }

    /// Is a handler at work?
    pub(crate) fn is_call(&self) -> bool {
        matches!(self.work, Work::Round(_))
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// The id of the request.
    pub(crate) fn request_id(&self) -> RequestId {
        RequestId::read(self.id.get())
    }

    /// What a stream is for that has only this on it.
    pub(crate) fn purpose(&self) -> Purpose {
        Purpose::Call(self.id.get().to_owned())
    }

    /// The next message to send. `None` after the reply.
    pub(crate) async fn next(&mut self) -> Option<(Sent, Vec<u8>)> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(Sent, Vec<u8>)>> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                record::sent_older(self.session.revision, self.method, &message.1);
                return Poll::Ready(Some(message));
            }
            match &mut self.work {
                Work::Over => return Poll::Ready(None),
                Work::Later(later) => {
                    let reply = ready!(later.as_mut().poll(cx));
                    let reply = reply.unwrap_or_else(|none| Reply::Error(none.into()));
                    self.reply(&reply);
                }
                Work::Round(round) => match round.poll(cx) {
                    Poll::Pending if self.waits_in_vain(cx) => {
                        self.server.0.metrics.live(LiveCount::GivenUp);
                        self.reply(&Reply::Error(session_over()));
                    }
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(event) => self.take(event),
                },
            }
        }
    }

    /// Takes what a call reports.
    fn take(&mut self, event: RoundEvent) {
        match event {
            RoundEvent::Notes(notes) => {
                let Work::Round(round) = &self.work else {
                    return;
                };
                let token = round.progress_token();
                for note in &notes {
                    let mut out = Vec::with_capacity(256);
                    write_note(&mut out, token, note);
                    if !out.is_empty() {
                        self.ready.push_back((Sent::Note, out));
                    }
                }
            }
            RoundEvent::Asks { asks, withdrawn } => {
                for key in withdrawn {
                    self.withdraw(&key);
                }
                for (key, ask) in asks {
                    self.ask(key, &ask);
                }
            }
            RoundEvent::Reply(reply) => self.reply(&reply),
            RoundEvent::Crashed => self.work = Work::Over,
        }
    }

    /// Is nothing left but to wait for an answer that would be refused, because the session is over?
    fn waits_in_vain(&mut self, cx: &mut Context<'_>) -> bool {
        let rests = matches!(&self.work, Work::Round(round) if round.rests());
        let ends = self.session_ends.as_mut();
        if !ends.is_some_and(|ends| ends.as_mut().poll(cx).is_ready()) {
            return false;
        }
        let desk = &self.server.0.legacy.desk;
        let is_open = |ask: &String| desk.is_open(&self.session.key, ask);
        rests && self.open.values().any(is_open)
    }

    fn ask(&mut self, key: String, ask: &Ask) {
        // One that was dropped and is asked again has another id.
        self.withdraw(&key);
        let Some(answers) = self.answers.clone() else {
            return;
        };
        let left = self.session.left(&self.server);
        let ends = || Box::pin(tokio::time::sleep(left));
        self.session_ends.get_or_insert_with(ends);
        let id = self.server.0.legacy.new_ask(&self.session);
        let desk = &self.server.0.legacy.desk;
        desk.ask(&self.session, id.clone(), (&key, ask.kind()), &answers);
        let mut out = Vec::with_capacity(512);
        write_ask(&mut out, &id, ask, self.session.revision);
        self.ready.push_back((Sent::Ask, out));
        self.open.insert(key, id);
    }

    fn withdraw(&mut self, key: &str) {
        let Some(id) = self.open.remove(key) else {
            return;
        };
        // One that has its answer needs no word.
        if self.server.0.legacy.desk.withdraw(&id) {
            let mut out = Vec::with_capacity(256);
            write_cancelled(&mut out, &id, "the answer is no longer needed");
            self.ready.push_back((Sent::Ask, out));
        }
    }

    fn reply(&mut self, reply: &Reply) {
        let open: Vec<String> = self.open.keys().cloned().collect();
        for key in open {
            self.withdraw(&key);
        }
        let mut out = Vec::with_capacity(512);
        let reply_to = Id::from_raw(&self.id);
        if let Some(id) = reply_to {
            write_older_reply(&mut out, id, reply, self.session.revision);
        }
        self.ready.push_back((Sent::Reply, out));
        self.work = Work::Over;
    }
}

/// What a call is told that waits for an answer when its session is over.
fn session_over() -> RpcError {
    RpcError::call_over(
        "the call was given up: the time of the session is over, and no answer is taken any more; what it did so far is done; \
         open another session with initialize, and call again",
    )
}

impl Drop for Talk {
    fn drop(&mut self) {
        for id in self.open.values() {
            self.server.0.legacy.desk.withdraw(id);
        }
    }
}
