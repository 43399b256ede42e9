//! A request of a legacy session while it is answered: how messages are written, and the asks that are open.

use super::{LegacySessions, Session};
use crate::live::LiveAnswer;
use crate::record;
use crate::rounds::Round;
use refrain_wire::legacy::{self, write_ask, write_cancelled};
use refrain_wire::{Ask, Id, Reply, RpcError};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use tokio::sync::mpsc;
use tokio::time::Sleep;

/// A request of a legacy session. Dropping it withdraws its asks.
pub(crate) struct LegacyExchange {
    legacy: Arc<LegacySessions>,
    pub(crate) session: Session,
    /// The id of the session, if this request opened it.
    pub(crate) opened: Option<String>,
    /// The ids of the open asks, by key.
    open: BTreeMap<String, String>,
    answers: Option<mpsc::Sender<LiveAnswer>>,
    /// Fires when the session expires and answers are rejected. Set with the first ask.
    session_ends: Option<Pin<Box<Sleep>>>,
}

impl LegacyExchange {
    pub(crate) fn new(
        legacy: &Arc<LegacySessions>,
        session: &Session,
        opened: Option<String>,
    ) -> Box<Self> {
        Box::new(Self {
            legacy: legacy.clone(),
            session: session.clone(),
            opened,
            open: BTreeMap::new(),
            answers: None,
            session_ends: None,
        })
    }

    /// Connects a call with the answers to its asks.
    pub(crate) fn connect(&mut self, round: &mut Round) {
        let limit = self.legacy.services.limits.flow.asks;
        let (sender, answers) = mpsc::channel(limit.max(1));
        round.answers_from(answers);
        self.answers = Some(sender);
    }

    /// Does a call only wait for answers that would be rejected, since the session has expired?
    pub(crate) fn is_over(&mut self, round: &Round, cx: &mut Context<'_>) -> bool {
        let ends = self.session_ends.as_mut();
        if !ends.is_some_and(|ends| ends.as_mut().poll(cx).is_ready()) {
            return false;
        }
        let is_open = |id: &String| self.legacy.is_open(&self.session, id);
        round.is_idle() && self.open.values().any(is_open)
    }

    /// The messages for new asks, and for those that are withdrawn.
    pub(crate) fn write_asks(
        &mut self,
        asks: Vec<(String, Ask)>,
        withdrawn: &[String],
    ) -> Vec<Vec<u8>> {
        let mut messages: Vec<Vec<u8>> = Vec::with_capacity(asks.len());
        messages.extend(withdrawn.iter().filter_map(|key| self.withdraw(key)));
        for (key, ask) in asks {
            // An ask that was dropped and is made again has another id.
            messages.extend(self.withdraw(&key));
            messages.extend(self.ask(key, &ask));
        }
        messages
    }

    fn ask(&mut self, key: String, ask: &Ask) -> Option<Vec<u8>> {
        let (legacy, session) = (&self.legacy, &self.session);
        let answers = self.answers.as_ref()?;
        let ends = || Box::pin(tokio::time::sleep(legacy.left(session)));
        self.session_ends.get_or_insert_with(ends);
        let id = legacy.open_ask(session, &key, ask.kind(), answers);
        let mut out = Vec::with_capacity(512);
        write_ask(&mut out, &id, ask, session.revision);
        self.open.insert(key, id);
        Some(out)
    }

    /// Withdraws an ask. One that was answered needs no message.
    fn withdraw(&mut self, key: &str) -> Option<Vec<u8>> {
        let id = self.open.remove(key)?;
        self.legacy.withdraw_ask(&id).then(|| {
            let mut out = Vec::with_capacity(256);
            write_cancelled(&mut out, &id, "the answer is no longer needed");
            out
        })
    }

    /// Withdraws all open asks.
    pub(crate) fn withdraw_all(&mut self) -> Vec<Vec<u8>> {
        let keys: Vec<String> = self.open.keys().cloned().collect();
        keys.iter().filter_map(|key| self.withdraw(key)).collect()
    }

    /// Writes the reply. An error has no id if the message had none.
    pub(crate) fn write_reply(&self, out: &mut Vec<u8>, id: Option<Id<'_>>, reply: &Reply) {
        match (id, reply) {
            (Some(id), reply) => legacy::write_reply(out, id, reply, self.session.revision),
            (None, Reply::Error(error)) => legacy::write_error(out, None, error),
            (None, _) => {}
        }
    }

    pub(crate) fn record(&self, method: &str, message: &[u8]) {
        record::sent_older(self.session.revision, method, message);
    }
}

/// The error of a call that waits for an answer when its session expires.
pub(crate) fn session_over() -> RpcError {
    RpcError::call_over(
        "the call was given up: the time of the session is over, and no answer is taken any more; what it did so far is done; \
         open another session with initialize, and call again",
    )
}

impl Drop for LegacyExchange {
    fn drop(&mut self) {
        for id in self.open.values() {
            self.legacy.withdraw_ask(id);
        }
    }
}
