//! The calls that are live here, and where their answers go.

use super::Session;
use crate::live::LiveAnswer;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

    /// A text for it that no other id has.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Text(text) => format!("\"{text}"),
            Self::Number(number) => number.clone(),
        }
    }
}

/// The calls that are live on this instance.
pub(crate) struct Desk {
    instance: String,
    next: AtomicU64,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    /// What is asked, by the id of the request that asks it.
    asks: HashMap<String, Asked>,
    calls: HashMap<(Arc<str>, RequestId), Arc<Notify>>,
}

struct Asked {
    session: Arc<str>,
    key: String,
    answers: mpsc::Sender<LiveAnswer>,
}

/// Where an answer belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Its ask was open here, and has it now.
    Taken,
    /// It was asked here, and is no longer.
    Over,
    /// It was asked by another instance.
    Elsewhere,
    /// Nothing was ever asked so.
    Nobody,
}

impl Desk {
    pub(super) fn new(instance: &str) -> Self {
        Self {
            instance: instance.to_owned(),
            next: AtomicU64::new(1),
            open: Mutex::default(),
        }
    }

    /// Opens an ask of a session. Gives the id of the request that asks it, which names this instance.
    pub(super) fn ask(
        &self,
        session: &Session,
        key: &str,
        answers: &mpsc::Sender<LiveAnswer>,
    ) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{number}", self.instance);
        let asked = Asked {
            session: session.key.clone(),
            key: key.to_owned(),
            answers: answers.clone(),
        };
        self.lock().asks.insert(id.clone(), asked);
        id
    }

    /// Closes an ask. `false`: it has an answer.
    pub(super) fn withdraw(&self, ask: &str) -> bool {
        self.lock().asks.remove(ask).is_some()
    }

    /// Is something asked in this session under this id, and has no answer yet?
    pub(super) fn is_open(&self, session: &Session, ask: &str) -> bool {
        let open = self.lock();
        let asked = open.asks.get(ask);
        asked.is_some_and(|asked| asked.session == session.key)
    }

    /// Takes in what a client answers in this session.
    pub(crate) fn answer(
        &self,
        session: &Session,
        ask: &str,
        answer: Result<String, String>,
    ) -> Whose {
        let asked = {
            let mut open = self.lock();
            match open.asks.get(ask) {
                Some(asked) if asked.session == session.key => open.asks.remove(ask),
                _ => None,
            }
        };
        if let Some(asked) = asked {
            let key = asked.key;
            // There is room for as many answers as there are asks; an error means that the call is over.
            let _ = asked.answers.try_send(LiveAnswer { key, answer });
            return Whose::Taken;
        }
        match ask.split_once('-') {
            Some((instance, _)) if instance == self.instance => Whose::Over,
            Some((instance, number)) if is_instance(instance) && number.parse::<u64>().is_ok() => {
                Whose::Elsewhere
            }
            _ => Whose::Nobody,
        }
    }

    /// Begins a call that its client may cancel, or its session end.
    pub(crate) fn begin(self: &Desk, session: &Session, id: RequestId) -> Call {
        let cancelled = Arc::new(Notify::new());
        let key = (session.key.clone(), id);
        self.lock().calls.insert(key.clone(), cancelled.clone());
        Call { key, cancelled }
    }

    /// Forgets a call that is over.
    pub(crate) fn end(&self, call: &Call) {
        let mut open = self.lock();
        let same = |known: &mut Arc<Notify>| Arc::ptr_eq(known, &call.cancelled);
        if open.calls.get_mut(&call.key).is_some_and(same) {
            open.calls.remove(&call.key);
        }
    }

    /// Ends a call. `false`: there is no such call here.
    pub(crate) fn cancel(&self, session: &Session, id: &RequestId) -> bool {
        let key = (session.key.clone(), id.clone());
        let call = self.lock().calls.remove(&key);
        call.inspect(|call| call.notify_one()).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_instance(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A call that its client may cancel.
pub(crate) struct Call {
    key: (Arc<str>, RequestId),
    cancelled: Arc<Notify>,
}

impl Call {
    /// The id of its request.
    pub(crate) fn id(&self) -> &RequestId {
        &self.key.1
    }

    /// Waits until it is cancelled.
    pub(crate) async fn cancelled(&self) {
        self.cancelled.notified().await;
    }
}
