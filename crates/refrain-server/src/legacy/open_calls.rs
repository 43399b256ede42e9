//! Calls and open asks of legacy sessions on this instance.
//!
//! The request id of an ask is `number ‖ - ‖ base64url( sealed( holder ) )`, bound to the number and the session. So every
//! instance can verify the id and find the instance that waits for the answer.

use super::{LegacySessions, Session};
use crate::limits::LimitReached;
use crate::live::{AnswerSender, LiveAnswer, LiveAnswerError};
use crate::relay::Holder;
use crate::services::{open_text, seal_text};
use refrain_wire::{AskKind, Response, check_answer_shape};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use tokio::sync::Notify;

/// The longest request id of an ask, in bytes.
const MAX_ID: usize = 1024;

/// A normalized request id: an unescaped string, or a number as the client wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RequestId {
    Text(String),
    Number(String),
}

impl RequestId {
    /// Reads the id of a valid message.
    pub(crate) fn read(json: &str) -> Self {
        match serde_json::from_str(json) {
            Ok(text) => Self::Text(text),
            Err(_) => Self::Number(json.to_owned()),
        }
    }

    /// Parses a request id. `None` if it is neither a string nor a number.
    pub(crate) fn parse(json: &str) -> Option<Self> {
        match Self::read(json) {
            Self::Number(number) => {
                let parsed = serde_json::from_str::<serde_json::Number>(&number);
                parsed.is_ok().then_some(Self::Number(number))
            }
            text => Some(text),
        }
    }
}

/// The open asks, and the calls that can be cancelled.
#[derive(Default)]
pub(super) struct OpenCalls {
    last_ask_number: u64,
    /// By request id.
    asks: HashMap<String, OpenAsk>,
    /// By session key and request id. Notified to cancel the call.
    calls: HashMap<(Arc<str>, RequestId), Arc<Notify>>,
}

/// An ask that was sent and not yet answered.
struct OpenAsk {
    /// The key of the session.
    session: Arc<str>,
    key: String,
    kind: AskKind,
    answers: AnswerSender,
}

impl LegacySessions {
    /// Opens an ask of a session. Returns its request id.
    pub(super) fn open_ask(
        &self,
        session: &Session,
        key: &str,
        kind: AskKind,
        answers: &AnswerSender,
    ) -> String {
        let mut open = self.open_calls.lock();
        open.last_ask_number += 1;
        let number = open.last_ask_number.to_string();
        let holder = self.seal_own_holder(&ask_binding(session, &number));
        let id = format!("{number}-{holder}");
        let ask = OpenAsk {
            session: session.key.clone(),
            key: key.to_owned(),
            kind,
            answers: answers.clone(),
        };
        open.asks.insert(id.clone(), ask);
        id
    }

    /// The holder in the request id of an ask. `None` if the id is invalid for this session.
    pub(super) fn holder_of_ask(&self, session: &Session, id: &str) -> Option<Holder> {
        if id.len() > MAX_ID {
            return None;
        }
        let (number, sealed) = id.split_once('-')?;
        self.open_holder(&ask_binding(session, number), sealed)
    }

    /// Seals this instance as the holder, for an id that clients send back.
    pub(super) fn seal_own_holder(&self, binding: &str) -> String {
        let holder = self.relay.own.to_string();
        let sealer = &self.services.sealer;
        seal_text(sealer, binding.as_bytes(), holder.as_bytes())
    }

    pub(super) fn open_holder(&self, binding: &str, sealed: &str) -> Option<Holder> {
        let opened = open_text(&self.services.sealer, binding.as_bytes(), sealed);
        Holder::parse(std::str::from_utf8(&opened.ok()?).ok()?)
    }

    /// Withdraws an ask. Returns false if it was already answered.
    pub(super) fn withdraw_ask(&self, id: &str) -> bool {
        self.open_calls.lock().asks.remove(id).is_some()
    }

    /// Whether this ask of the session waits for its answer.
    pub(super) fn is_open(&self, session: &Session, id: &str) -> bool {
        let open = self.open_calls.lock();
        let ask = open.asks.get(id);
        ask.is_some_and(|ask| ask.session == session.key)
    }

    /// Delivers an answer. Returns false if the ask is not open on this instance. A malformed answer fails the ask, because
    /// the client has responded to the request and will not respond again. An answer over the limit of bytes has no effect.
    pub(super) fn answer_ask(
        &self,
        session: &Session,
        id: &str,
        response: &Response<'_>,
    ) -> Result<bool, LimitReached> {
        let mut open = self.open_calls.lock();
        let ask = match open.asks.entry(id.to_owned()) {
            Entry::Occupied(ask) if ask.get().session == session.key => ask,
            _ => return Ok(false),
        };
        let bytes = match &response.outcome {
            Ok(result) => result.get().len(),
            Err(message) => message.len(),
        };
        let permit = ask.get().answers.acquire(bytes)?;
        let ask = ask.remove();
        drop(open);
        let answer = match &response.outcome {
            Ok(result) => match check_answer_shape(ask.kind, result) {
                Ok(()) => Ok(result.get().to_owned()),
                Err(error) => Err(error.into()),
            },
            Err(message) => Err(LiveAnswerError::Client(message.clone().into_owned())),
        };
        ask.answers.send(LiveAnswer {
            key: ask.key,
            answer,
            permit,
        });
        Ok(true)
    }

    /// Registers a call, so that its client can cancel it.
    pub(super) fn register_call(
        self: &Arc<Self>,
        session: &Session,
        id: RequestId,
    ) -> CancellableCall {
        let call = CancellableCall {
            legacy: self.clone(),
            key: (session.key.clone(), id),
            cancelled: Arc::default(),
        };
        let mut open = self.open_calls.lock();
        open.calls.insert(call.key.clone(), call.cancelled.clone());
        drop(open);
        call
    }

    /// Cancels a call. Returns false if it does not run on this instance.
    pub(super) fn cancel_call(&self, session: &Session, id: RequestId) -> bool {
        let key = (session.key.clone(), id);
        let cancelled = self.open_calls.lock().calls.remove(&key);
        cancelled.inspect(|call| call.notify_one()).is_some()
    }

    pub(super) fn cancel_calls(&self, session: &Session) {
        let mut open = self.open_calls.lock();
        let calls = open.calls.extract_if(|(key, _), _| *key == session.key);
        let calls: Vec<_> = calls.collect();
        drop(open);
        calls.iter().for_each(|(_, call)| call.notify_one());
    }
}

fn ask_binding(session: &Session, number: &str) -> String {
    format!("ask {} {number}", session.key)
}

/// A registered call. Dropping it removes the registration.
pub(super) struct CancellableCall {
    legacy: Arc<LegacySessions>,
    key: (Arc<str>, RequestId),
    cancelled: Arc<Notify>,
}

impl CancellableCall {
    pub(super) async fn cancelled(&self) {
        self.cancelled.notified().await;
    }
}

impl Drop for CancellableCall {
    fn drop(&mut self) {
        let mut open = self.legacy.open_calls.lock();
        // A later call may have replaced this one under the same id.
        let registered = open.calls.get(&self.key);
        if registered.is_some_and(|call| Arc::ptr_eq(call, &self.cancelled)) {
            open.calls.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_id_is_a_string_or_a_number() {
        for json in ["7", "-1.5"] {
            let id = RequestId::Number(json.to_owned());
            assert_eq!(RequestId::parse(json), Some(id));
        }
        let escaped = RequestId::parse(r#""a\u0062""#);
        assert_eq!(escaped, Some(RequestId::Text("ab".to_owned())));
        for json in ["null", "true", "[7]", r#"{"a": 1}"#, ""] {
            assert_eq!(RequestId::parse(json), None, "{json}");
        }
    }
}
