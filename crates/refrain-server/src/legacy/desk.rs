//! The calls and open asks of legacy sessions on this instance.

use super::{LegacySessions, Session};
use crate::live::LiveAnswer;
use parking_lot::{Mutex, MutexGuard};
use refrain_wire::{AskKind, check_answer_shape};
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Notify, mpsc};

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

    /// The same, of what may be no id. `None`: it is neither a text nor a number.
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

/// What a client answers: a result, or why there is none.
pub(crate) type Answer = Result<String, String>;

/// The calls that are live on this instance.
pub(crate) struct Desk {
    next: AtomicU64,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    /// What is asked, by the id of the request that asks it.
    asks: HashMap<String, Asked>,
    /// By session and by the id of their request.
    calls: HashMap<Arc<str>, HashMap<RequestId, Arc<Notify>>>,
}

struct Asked {
    session: Arc<str>,
    key: String,
    kind: AskKind,
    answers: mpsc::Sender<LiveAnswer>,
}

impl Desk {
    pub(super) fn new() -> Self {
        Self {
            next: AtomicU64::new(1),
            open: Mutex::default(),
        }
    }

    /// The number of the next ask.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Opens an ask of a session, under the id of the request that asks it.
    pub(super) fn ask(
        &self,
        session: &Session,
        id: String,
        (key, kind): (&str, AskKind),
        answers: &mpsc::Sender<LiveAnswer>,
    ) {
        let asked = Asked {
            session: session.key.clone(),
            key: key.to_owned(),
            kind,
            answers: answers.clone(),
        };
        self.lock().asks.insert(id, asked);
    }

    /// Closes an ask. `false`: it has an answer.
    pub(super) fn withdraw(&self, ask: &str) -> bool {
        self.lock().asks.remove(ask).is_some()
    }

    /// Is something asked in this session under this id, and has no answer yet?
    pub(super) fn is_open(&self, session: &str, ask: &str) -> bool {
        let open = self.lock();
        let asked = open.asks.get(ask);
        asked.is_some_and(|asked| *asked.session == *session)
    }

    /// Takes in what a client answers in this session. Gives it back where nothing is asked so here. An answer that is
    /// none ends the ask like an error of the client's: its request gets no other.
    pub(super) fn answer(&self, session: &str, ask: &str, answer: Answer) -> Result<(), Answer> {
        let asked = {
            let mut open = self.lock();
            match open.asks.get(ask) {
                Some(asked) if *asked.session == *session => open.asks.remove(ask),
                _ => None,
            }
        };
        let Some(asked) = asked else {
            return Err(answer);
        };
        let key = asked.key;
        let answer = answer.and_then(|json| {
            let raw: &RawValue = serde_json::from_str(&json).map_err(|error| error.to_string())?;
            check_answer_shape(asked.kind, raw).map_err(|error| error.to_string())?;
            Ok(json)
        });
        // There is room for as many answers as there are asks; an error means that the call is over.
        let _ = asked.answers.try_send(LiveAnswer { key, answer });
        Ok(())
    }

    /// Cancels a call. `false`: there is no such call here.
    pub(super) fn cancel(&self, session: &str, id: &RequestId) -> bool {
        let mut open = self.lock();
        let call = open.calls.get(session).and_then(|calls| calls.get(id));
        let Some(cancelled) = call.cloned() else {
            return false;
        };
        open.forget(session, id, &cancelled);
        drop(open);
        cancelled.notify_one();
        true
    }

    /// Ends all calls of a session.
    pub(super) fn end_session(&self, session: &str) {
        let calls = self.lock().calls.remove(session).unwrap_or_default();
        calls.values().for_each(|call| call.notify_one());
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock()
    }
}

impl Open {
    /// Forgets a call, unless another has its id now.
    fn forget(&mut self, session: &str, id: &RequestId, call: &Arc<Notify>) {
        let Some(calls) = self.calls.get_mut(session) else {
            return;
        };
        if calls.get(id).is_some_and(|known| Arc::ptr_eq(known, call)) {
            calls.remove(id);
        }
        if calls.is_empty() {
            self.calls.remove(session);
        }
    }
}

impl LegacySessions {
    /// Begins a call that its client can cancel.
    pub(crate) fn begin_call(&self, session: &Session, id: RequestId) -> Call {
        let cancelled = Arc::new(Notify::new());
        let mut open = self.desk.lock();
        let calls = open.calls.entry(session.key.clone()).or_default();
        calls.insert(id.clone(), cancelled.clone());
        drop(open);
        Call {
            desk: self.desk.clone(),
            session: session.key.clone(),
            id,
            cancelled,
        }
    }
}

/// A call that its client can cancel. It is over when this is dropped.
pub(crate) struct Call {
    desk: Arc<Desk>,
    session: Arc<str>,
    id: RequestId,
    cancelled: Arc<Notify>,
}

impl Call {
    /// Waits until it is cancelled.
    pub(crate) async fn cancelled(&self) {
        self.cancelled.notified().await;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut open = self.desk.lock();
        open.forget(&self.session, &self.id, &self.cancelled);
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
