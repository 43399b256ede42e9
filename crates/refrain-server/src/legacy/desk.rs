//! The calls that are live here, and where their answers go.

use super::Session;
use super::carried::{Watching, watch};
use crate::live::LiveAnswer;
use crate::server::Server;
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

    /// A text for it that no other id has.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Text(text) => format!("\"{text}"),
            Self::Number(number) => number.clone(),
        }
    }

    /// The id that has this text.
    pub(super) fn of_text(text: &str) -> Self {
        match text.strip_prefix('"') {
            Some(text) => Self::Text(text.to_owned()),
            None => Self::Number(text.to_owned()),
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
    calls: HashMap<Arc<str>, HashMap<RequestId, Live>>,
    /// Does somebody take in what other instances note for these calls?
    watched: bool,
}

struct Live {
    cancelled: Arc<Notify>,
    /// When, in microseconds since 1970.
    began: u64,
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
            check_answer_shape(asked.kind, raw)?;
            Ok(json)
        });
        // There is room for as many answers as there are asks; an error means that the call is over.
        let _ = asked.answers.try_send(LiveAnswer { key, answer });
        Ok(())
    }

    /// The sessions that have calls here.
    pub(super) fn sessions(&self) -> Vec<Arc<str>> {
        self.lock().calls.keys().cloned().collect()
    }

    /// Has this session a call here?
    pub(super) fn has_calls(&self, session: &str) -> bool {
        self.lock().calls.contains_key(session)
    }

    /// Has this session such a call here?
    pub(super) fn has_call(&self, session: &str, id: &RequestId) -> bool {
        let open = self.lock();
        let calls = open.calls.get(session);
        calls.is_some_and(|calls| calls.contains_key(id))
    }

    /// Ends a call. `false`: there is no such call here.
    pub(super) fn cancel(&self, session: &str, id: &RequestId) -> bool {
        self.cancel_begun(session, id, u64::MAX)
    }

    /// Ends a call that began by then; a later one only has its id. `false`: there is no such call here.
    pub(super) fn cancel_begun(&self, session: &str, id: &RequestId, by: u64) -> bool {
        let mut open = self.lock();
        let call = open.calls.get(session).and_then(|calls| calls.get(id));
        let Some(call) = call else {
            return false;
        };
        if call.began <= by {
            let cancelled = call.cancelled.clone();
            open.forget(session, id, &cancelled);
            drop(open);
            cancelled.notify_one();
        }
        true
    }

    /// Ends all calls of a session.
    pub(super) fn end_session(&self, session: &str) {
        let calls = self.lock().calls.remove(session).unwrap_or_default();
        calls.values().for_each(|call| call.cancelled.notify_one());
    }

    /// Nobody takes in any longer what is noted for these calls, if there are none. `false`: there are some.
    pub(super) fn rest(&self) -> bool {
        let mut open = self.lock();
        if open.calls.is_empty() {
            open.watched = false;
        }
        !open.watched
    }

    /// Whoever took in what is noted is gone.
    pub(super) fn unwatched(&self) {
        self.lock().watched = false;
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
        let same = |known: &Live| Arc::ptr_eq(&known.cancelled, call);
        if calls.get(id).is_some_and(same) {
            calls.remove(id);
        }
        if calls.is_empty() {
            self.calls.remove(session);
        }
    }
}

impl Server {
    /// Begins a call that its client may cancel, or its session end. From now on it hears what other instances note for it.
    pub(crate) fn begin_call(&self, session: &Session, id: RequestId) -> Call {
        let legacy = &self.0.legacy;
        let cancelled = Arc::new(Notify::new());
        let live = Live {
            cancelled: cancelled.clone(),
            began: self.micros(),
        };
        let mut open = legacy.desk.lock();
        let calls = open.calls.entry(session.key.clone()).or_default();
        calls.insert(id.clone(), live);
        // Before this or another call has asked anything, so that no word is missed.
        let begin = legacy.notes.shared && !open.watched;
        let noted = begin.then(|| legacy.notes.changed());
        open.watched |= begin;
        drop(open);
        if let Some(noted) = noted {
            tokio::spawn(watch(Watching::new(self), noted));
        }
        Call {
            server: self.clone(),
            session: session.key.clone(),
            id,
            cancelled,
        }
    }
}

/// A call that its client may cancel. It is over when this is dropped.
pub(crate) struct Call {
    server: Server,
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
        let mut open = self.server.0.legacy.desk.lock();
        open.forget(&self.session, &self.id, &self.cancelled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_core::Principal;
    use refrain_store::{MemoryStore, NewNote, SessionStore, StoreFuture};
    use refrain_wire::decode_initialize;
    use serde_json::json;
    use serde_json::value::to_raw_value;
    use std::sync::OnceLock;
    use tokio::runtime::Runtime;
    use tokio::sync::broadcast;

    /// A store that knows who listens.
    struct Heard {
        store: MemoryStore,
        said: broadcast::Sender<String>,
        server: OnceLock<Server>,
        /// Was each who listens there before another call could begin?
        before: Mutex<Vec<bool>>,
    }

    impl SessionStore for Heard {
        fn note<'a>(&'a self, note: NewNote<'a>) -> StoreFuture<'a, bool> {
            self.store.note(note)
        }

        fn take_note<'a>(&'a self, place: &'a str, name: &'a str) -> StoreFuture<'a, bool> {
            self.store.take_note(place, name)
        }

        fn notes<'a>(&'a self, place: &'a str) -> StoreFuture<'a, Vec<(String, Vec<u8>)>> {
            self.store.notes(place)
        }

        fn note_names<'a>(
            &'a self,
            places: &'a [String],
        ) -> StoreFuture<'a, Vec<(String, String)>> {
            self.store.note_names(places)
        }

        fn note_value<'a>(
            &'a self,
            place: &'a str,
            name: &'a str,
        ) -> StoreFuture<'a, Option<Vec<u8>>> {
            self.store.note_value(place, name)
        }

        fn noted(&self) -> broadcast::Receiver<String> {
            let server = self.server.get().expect("a server");
            let held = server.0.legacy.desk.open.try_lock().is_none();
            self.before.lock().push(held);
            self.said.subscribe()
        }
    }

    #[test]
    fn a_server_listens_for_its_calls_on_every_runtime_it_is_on() {
        let store = Arc::new(Heard {
            store: MemoryStore::new(),
            said: broadcast::Sender::new(4),
            server: OnceLock::new(),
            before: Mutex::default(),
        });
        let builder = Server::builder("older", "1").sessions(store.clone());
        let server = builder.build().expect("a usable server");
        assert!(store.server.set(server.clone()).is_ok());
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
        let params = to_raw_value(&params).expect("JSON");
        let initialize = decode_initialize(Some(&params)).expect("a greeting");
        let (session, _) = server.open_session(&initialize, &Principal::anonymous());
        for _ in 0..3 {
            let runtime = Runtime::new().expect("a runtime");
            runtime.block_on(async {
                let calls = ["1", "2"].map(|id| server.begin_call(&session, RequestId::read(id)));
                assert_eq!(store.said.receiver_count(), 1);
                drop(calls);
            });
            drop(runtime);
            assert_eq!(store.said.receiver_count(), 0);
        }
        assert_eq!(*store.before.lock(), [true; 3]);
    }

    #[test]
    fn an_id_is_a_text_or_a_number() {
        for (json, text) in [("7", "7"), ("-1.5", "-1.5"), (r#""a\u0062""#, "\"ab")] {
            let id = RequestId::parse(json).expect("an id");
            assert_eq!(id.text(), text);
            assert_eq!(RequestId::of_text(text), id);
        }
        for json in ["null", "true", "[7]", r#"{"a": 1}"#, ""] {
            assert_eq!(RequestId::parse(json), None, "{json}");
        }
    }
}
