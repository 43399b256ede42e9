//! The calls and open asks of legacy sessions on this instance.
//!
//! The id of an ask is `number ‖ - ‖ base64url( sealed( holder ) )`. The seal is made for this number and session. So any
//! instance tells an ask of the session from an invented id, and knows which instance waits for the answer.

use super::{LegacySessions, Session};
use crate::live::{LiveAnswer, LiveAnswerError};
use crate::relay::Holder;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use refrain_wire::{AskKind, Response, check_answer_shape};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{Notify, mpsc};

/// Characters of the longest id of an ask.
const LONGEST: usize = 1024;

/// The id of a request as it is compared: a text, however it was escaped, or a number as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RequestId {
    Text(String),
    Number(String),
}

impl RequestId {
    pub(crate) fn read(json: &str) -> Self {
        match serde_json::from_str(json) {
            Ok(text) => Self::Text(text),
            Err(_) => Self::Number(json.to_owned()),
        }
    }

    /// Reads a value that may be neither a text nor a number.
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

/// The open calls and asks.
#[derive(Default)]
pub(super) struct OpenCalls {
    /// The number of the last ask.
    last: u64,
    /// By the id of the request that asks.
    asks: HashMap<String, OpenAsk>,
    /// How each call is cancelled, by session and request id.
    calls: HashMap<(Arc<str>, RequestId), Arc<Notify>>,
}

struct OpenAsk {
    session: Arc<str>,
    key: String,
    kind: AskKind,
    answers: mpsc::Sender<LiveAnswer>,
}

impl LegacySessions {
    /// Opens an ask of a session. Returns the id of the request that asks.
    pub(super) fn open_ask(
        &self,
        session: &Session,
        key: &str,
        kind: AskKind,
        answers: &mpsc::Sender<LiveAnswer>,
    ) -> String {
        let mut open = self.open.lock();
        open.last += 1;
        let number = open.last.to_string();
        let holder = self.relay.own.to_string();
        let binding = binding(session, &number);
        let sealed = self.services.sealer.seal_bytes(&binding, holder.as_bytes());
        let id = format!("{number}-{}", URL_SAFE_NO_PAD.encode(sealed));
        let ask = OpenAsk {
            session: session.key.clone(),
            key: key.to_owned(),
            kind,
            answers: answers.clone(),
        };
        open.asks.insert(id.clone(), ask);
        id
    }

    /// The instance that asked under this id in this session. `None`: the id is invented.
    pub(super) fn asked_by(&self, session: &Session, id: &str) -> Option<Holder> {
        if id.len() > LONGEST {
            return None;
        }
        let (number, sealed) = id.split_once('-')?;
        let sealed = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let binding = binding(session, number);
        let holder = self.services.sealer.open_bytes(&binding, sealed).ok()?;
        Holder::parse(std::str::from_utf8(&holder).ok()?)
    }

    /// Closes an ask. `false`: it was answered.
    pub(super) fn withdraw_ask(&self, id: &str) -> bool {
        self.open.lock().asks.remove(id).is_some()
    }

    /// Does this ask of the session wait for its answer?
    pub(super) fn is_open(&self, session: &Session, id: &str) -> bool {
        let open = self.open.lock();
        let ask = open.asks.get(id);
        ask.is_some_and(|ask| ask.session == session.key)
    }

    /// Receives an answer. `false`: the ask is not open here. A malformed answer ends the ask like an error of the client:
    /// its request gets no other.
    pub(super) fn answer_ask(&self, session: &Session, id: &str, response: &Response<'_>) -> bool {
        if !self.is_open(session, id) {
            return false;
        }
        let Some(ask) = self.open.lock().asks.remove(id) else {
            return false;
        };
        let answer = match &response.outcome {
            Ok(result) => match check_answer_shape(ask.kind, result) {
                Ok(()) => Ok(result.get().to_owned()),
                Err(error) => Err(error.into()),
            },
            Err(message) => Err(LiveAnswerError::Client(message.clone().into_owned())),
        };
        // The channel has room for as many answers as there are asks; an error means that the call is over.
        let key = ask.key;
        let _ = ask.answers.try_send(LiveAnswer { key, answer });
        true
    }

    /// Begins a call that its client can cancel.
    pub(super) fn begin_call(self: &Arc<Self>, session: &Session, id: RequestId) -> Call {
        let call = Call {
            legacy: self.clone(),
            key: (session.key.clone(), id),
            cancelled: Arc::default(),
        };
        let mut open = self.open.lock();
        open.calls.insert(call.key.clone(), call.cancelled.clone());
        drop(open);
        call
    }

    /// Cancels a call. `false`: there is no such call here.
    pub(super) fn cancel_call(&self, session: &Session, id: RequestId) -> bool {
        let key = (session.key.clone(), id);
        let cancelled = self.open.lock().calls.remove(&key);
        cancelled.inspect(|call| call.notify_one()).is_some()
    }

    /// Cancels all calls of a session.
    pub(super) fn cancel_calls(&self, session: &Session) {
        let mut open = self.open.lock();
        let ended = open.calls.extract_if(|(of, _), _| *of == session.key);
        let ended: Vec<_> = ended.collect();
        drop(open);
        ended.iter().for_each(|(_, call)| call.notify_one());
    }
}

fn binding(session: &Session, number: &str) -> Vec<u8> {
    format!("ask {} {number}", session.key).into_bytes()
}

/// A call that its client can cancel. It is over when this is dropped.
pub(super) struct Call {
    legacy: Arc<LegacySessions>,
    key: (Arc<str>, RequestId),
    cancelled: Arc<Notify>,
}

impl Call {
    /// Waits until it is cancelled.
    pub(super) async fn cancelled(&self) {
        self.cancelled.notified().await;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut open = self.legacy.open.lock();
        // Another call may have its id now.
        let known = open.calls.get(&self.key);
        if known.is_some_and(|known| Arc::ptr_eq(known, &self.cancelled)) {
            open.calls.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_text_or_a_number() {
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
