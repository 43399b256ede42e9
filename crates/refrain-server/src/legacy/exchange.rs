//! A request of a legacy session in flight: serializes its messages and tracks its open asks.

use super::{LegacySessions, Session};
use crate::live::AnswerSender;
use crate::rounds::Round;
use crate::wire_recorder;
use refrain_wire::legacy::{self, write_ask, write_cancelled};
use refrain_wire::{Ask, CallKind, ErrorCode, Id, Reply, RpcError, ToolResult};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use tokio::time::Sleep;

/// A request of a legacy session in flight. Dropping it withdraws its asks.
pub(crate) struct LegacyExchange {
    legacy: Arc<LegacySessions>,
    pub(crate) session: Session,
    /// The id of the session, if this request opened it.
    pub(crate) new_session_id: Option<String>,
    /// The request ids of the open asks, by key.
    open_asks: BTreeMap<String, String>,
    answers: Option<AnswerSender>,
    /// Elapses when the session expires, after which answers are rejected. Set with the first ask.
    session_expiry: Option<Pin<Box<Sleep>>>,
}

impl LegacyExchange {
    pub(crate) fn new(
        legacy: &Arc<LegacySessions>,
        session: &Session,
        new_session_id: Option<String>,
    ) -> Box<Self> {
        Box::new(Self {
            legacy: legacy.clone(),
            session: session.clone(),
            new_session_id,
            open_asks: BTreeMap::new(),
            answers: None,
            session_expiry: None,
        })
    }

    /// Delivers the answers of this exchange to the handler of a round.
    pub(crate) fn connect(&mut self, round: &mut Round) {
        self.answers = round.open_answers();
    }

    /// Whether the session has expired and the call only waits for answers, which would be rejected.
    pub(crate) fn is_expired(&mut self, round: &Round, cx: &mut Context<'_>) -> bool {
        let expiry = self.session_expiry.as_mut();
        if !expiry.is_some_and(|expiry| expiry.as_mut().poll(cx).is_ready()) {
            return false;
        }
        let is_open = |id: &String| self.legacy.is_open(&self.session, id);
        round.is_idle() && self.open_asks.values().any(is_open)
    }

    /// Serializes new asks, and cancellations of withdrawn ones.
    pub(crate) fn write_asks(
        &mut self,
        asks: Vec<(String, Ask)>,
        withdrawn: &[String],
    ) -> Vec<Vec<u8>> {
        let mut messages: Vec<Vec<u8>> = Vec::with_capacity(asks.len());
        messages.extend(withdrawn.iter().filter_map(|key| self.withdraw(key)));
        for (key, ask) in asks {
            // A repeated ask gets a new id.
            messages.extend(self.withdraw(&key));
            messages.extend(self.open_ask(key, &ask));
        }
        messages
    }

    fn open_ask(&mut self, key: String, ask: &Ask) -> Option<Vec<u8>> {
        let (legacy, session) = (&self.legacy, &self.session);
        let answers = self.answers.as_ref()?;
        let expiry = || Box::pin(tokio::time::sleep(legacy.time_left(session)));
        self.session_expiry.get_or_insert_with(expiry);
        let id = legacy.open_ask(session, &key, ask.kind(), answers);
        let mut out = Vec::with_capacity(512);
        write_ask(&mut out, &id, ask, session.revision);
        self.open_asks.insert(key, id);
        Some(out)
    }

    /// Withdraws an ask. Returns the message that cancels it, unless it was answered.
    fn withdraw(&mut self, key: &str) -> Option<Vec<u8>> {
        let id = self.open_asks.remove(key)?;
        self.legacy.withdraw_ask(&id).then(|| {
            let mut out = Vec::with_capacity(256);
            write_cancelled(&mut out, &id, "the answer is no longer needed");
            out
        })
    }

    /// Withdraws all open asks. Returns the messages that cancel them.
    pub(crate) fn withdraw_all(&mut self) -> Vec<Vec<u8>> {
        let keys: Vec<String> = self.open_asks.keys().cloned().collect();
        keys.iter().filter_map(|key| self.withdraw(key)).collect()
    }

    /// Serializes the reply to a request. Without an id, only errors are written.
    pub(crate) fn write_reply(
        &self,
        out: &mut Vec<u8>,
        id: Option<Id<'_>>,
        method: &str,
        reply: &Reply,
    ) {
        match (id, reply) {
            (Some(id), Reply::Error(error))
                if error.code == ErrorCode::MissingCapability
                    && method == CallKind::Tool.method() =>
            {
                let reply = unsupported_tool_result(error);
                legacy::write_reply(out, id, &reply, self.session.revision);
            }
            (Some(id), reply) => legacy::write_reply(out, id, reply, self.session.revision),
            (None, Reply::Error(error)) => legacy::write_error(out, None, error),
            (None, _) => {}
        }
    }

    pub(crate) fn record(&self, method: &str, message: &[u8]) {
        wire_recorder::record_legacy(self.session.revision, method, message);
    }
}

/// The result of a tool that needs a capability which the client lacks. Not an error, because applications show results to
/// the model, but drop errors.
fn unsupported_tool_result(error: &RpcError) -> Reply {
    let text = format!(
        "{}. Do not repeat the call: tell the user that this application does not support the tool, or continue without it",
        error.message
    );
    Reply::of_tool(ToolResult::error(text))
}

/// The error of a call that waits for an answer while its session expires.
pub(crate) fn session_expired() -> RpcError {
    RpcError::call_over(
        "the session expired while the call waited for an answer. Completed work is not undone. Open another session with \
         initialize, then call again",
    )
}

impl Drop for LegacyExchange {
    fn drop(&mut self) {
        for id in self.open_asks.values() {
            self.legacy.withdraw_ask(id);
        }
    }
}
