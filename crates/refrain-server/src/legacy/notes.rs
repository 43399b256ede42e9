//! What is kept of sessions beside their ids.
//!
//! | place | note | what it says |
//! | --- | --- | --- |
//! | a session | `ended` | the client has ended it |
//! | | `level` | which log messages it wants |
//! | | `uri/…` | a resource whose changes it wants to hear of |
//! | the calls of a session | `ended` | the same, for the instances that have them |
//! | | `cancel/…` | a call that the client no longer wants, and since when |
//! | an instance | `session/ask` | an answer to what it has asked, sealed |
//! | its presence | `here` | it takes in such answers, and keeps the streams of its calls |
//! | | `was` | it did, and may have ended since |
//!
//! Where a store is shared, any instance reads those of a session with every request, so that none of them knows more than
//! the others. Those of a process stay in its memory. They are few and small; what is for the instance that has a call is elsewhere, and read only there.

use super::desk::Answer;
use super::{RequestId, Session};
use crate::server::Server;
use refrain_core::OpenError;
use refrain_store::{NewNote, Room, SessionStore, StoreError};
use refrain_wire::LogLevel;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio::sync::broadcast;

pub(super) const ENDED: &str = "ended";
const LEVEL: &str = "level";
const URI: &str = "uri/";
pub(super) const CANCEL: &str = "cancel/";
/// How the place begins where the calls of a session are told of their ends.
pub(super) const CALLS: &str = "calls-";

/// How long answers and cancellations are kept for the instance they are for.
const CARRIED: Duration = Duration::from_secs(600);
/// Answers of one session that wait for one other instance.
const ANSWERS: usize = 256;
/// Calls of one session that are to be cancelled by other instances.
const CANCELLED: usize = 256;
/// Bytes of the longest id of a call that is cancelled by another instance.
const LONGEST_ID: usize = 256;

/// Notes about sessions.
pub(crate) struct Notes {
    pub(super) store: Arc<dyn SessionStore>,
    /// Do other instances read them?
    pub(crate) shared: bool,
}

/// What is noted of one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) ended: bool,
    pub(crate) level: Option<LogLevel>,
    pub(crate) uris: Vec<String>,
}

impl Known {
    fn read(notes: Vec<(String, Vec<u8>)>) -> Self {
        let mut known = Self::default();
        for (name, value) in notes {
            match name.strip_prefix(URI) {
                Some(uri) => known.uris.push(uri.to_owned()),
                None if name == ENDED => known.ended = true,
                None if name == LEVEL => known.level = serde_json::from_slice(&value).ok(),
                None => tracing::debug!(name, "a note that is not known here"),
            }
        }
        known
    }
}

impl Notes {
    pub(super) fn new(store: Arc<dyn SessionStore>, shared: bool) -> Self {
        Self { store, shared }
    }

    /// What is noted of a session.
    pub(crate) async fn read(&self, session: &Session) -> Result<Known, StoreError> {
        let store = self.store_of(session);
        store.notes(&session.key).await.map(Known::read)
    }

    /// Where a session has its notes.
    fn store_of<'a>(&'a self, session: &'a Session) -> &'a dyn SessionStore {
        match &session.own {
            Some(own) => own,
            None => &*self.store,
        }
    }

    /// Places where something was noted for calls, or taken back.
    pub(super) fn changed(&self) -> broadcast::Receiver<String> {
        self.store.noted()
    }

    /// Places where something was noted of sessions, this one among them.
    pub(super) fn changed_with(&self, session: &Session) -> broadcast::Receiver<String> {
        self.store_of(session).noted()
    }
}

/// Notes something. `false`: there is no room for it.
impl Server {
    /// What lasts as long as the session.
    async fn note(
        &self,
        session: &Session,
        name: &str,
        value: Vec<u8>,
        room: Room<'_>,
    ) -> Result<bool, StoreError> {
        let note = NewNote {
            place: &session.key,
            name,
            value,
            keep: session.left(self),
            room,
        };
        self.0.legacy.notes.store_of(session).note(note).await
    }

    pub(crate) async fn note_level(
        &self,
        session: &Session,
        level: LogLevel,
    ) -> Result<bool, StoreError> {
        let value = format!("{:?}", level.as_str()).into_bytes();
        self.note(session, LEVEL, value, Room::ANY).await
    }

    pub(crate) async fn note_uri(&self, session: &Session, uri: &str) -> Result<bool, StoreError> {
        let limits = &self.0.limits;
        let room = Room {
            prefix: URI,
            notes: limits.subscribed_resources,
            bytes: limits.subscribed_bytes,
        };
        let name = format!("{URI}{uri}");
        self.note(session, &name, Vec::new(), room).await
    }

    pub(crate) async fn forget_uri(&self, session: &Session, uri: &str) -> Result<(), StoreError> {
        let store = self.0.legacy.notes.store_of(session);
        let name = format!("{URI}{uri}");
        store.take_note(&session.key, &name).await.map(|_| ())
    }

    /// Ends a session, and its calls wherever they are.
    pub(crate) async fn note_end(&self, session: &Session) -> Result<bool, StoreError> {
        let room = Room::ANY;
        let place = format!("{CALLS}{}", session.key);
        let calls = self.carry(&place, ENDED, Vec::new(), room).await?;
        Ok(calls && self.note(session, ENDED, Vec::new(), room).await?)
    }

    /// What is for another instance.
    async fn carry(
        &self,
        place: &str,
        name: &str,
        value: Vec<u8>,
        room: Room<'_>,
    ) -> Result<bool, StoreError> {
        let note = NewNote {
            place,
            name,
            value,
            keep: CARRIED,
            room,
        };
        self.0.legacy.notes.store.note(note).await
    }

    /// Carries an answer to the instance that has asked.
    pub(super) async fn carry_answer(
        &self,
        session: &Session,
        (instance, ask): (&str, &str),
        answer: &Answer,
    ) -> Result<bool, StoreError> {
        let (kind, text) = match answer {
            Ok(result) => (RESULT, result),
            Err(message) => (ERROR, message),
        };
        let content = [&[kind], text.as_bytes()].concat();
        let sealed = self
            .0
            .sealer
            .seal_bytes(&place(&session.key, ask), &content);
        let prefix = format!("{}/", session.key);
        let room = Room {
            prefix: &prefix,
            notes: ANSWERS,
            bytes: self.0.limits.carried_bytes,
        };
        let name = format!("{prefix}{ask}");
        self.carry(&mailbox(instance), &name, sealed, room).await
    }

    /// Tells the instance that has this call that it is no longer wanted.
    pub(super) async fn carry_cancel(
        &self,
        session: &Session,
        id: &RequestId,
    ) -> Result<bool, StoreError> {
        let id = id.text();
        if id.len() > LONGEST_ID {
            return Ok(false);
        }
        let room = Room {
            prefix: CANCEL,
            notes: CANCELLED,
            bytes: usize::MAX,
        };
        let place = format!("{CALLS}{}", session.key);
        let name = format!("{CANCEL}{id}");
        let came = self.micros().to_be_bytes().to_vec();
        self.carry(&place, &name, came, room).await
    }

    /// The time now, in microseconds since 1970.
    pub(super) fn micros(&self) -> u64 {
        let since = self.0.source.now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| since.as_micros() as u64)
    }
}

const RESULT: u8 = 0;
const ERROR: u8 = 1;

/// When a cancellation came that was carried here. `None`: whoever carried it has not said so.
pub(super) fn came(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_be_bytes)
}

/// An answer that was carried here. `None`: what was sealed is none.
pub(super) fn opened(
    server: &Server,
    session: &str,
    ask: &str,
    sealed: Vec<u8>,
) -> Result<Option<Answer>, OpenError> {
    let mut content = server.0.sealer.open_bytes(&place(session, ask), sealed)?;
    if content.is_empty() {
        return Ok(None);
    }
    let kind = content.remove(0);
    let text = String::from_utf8(content).ok();
    Ok(match kind {
        RESULT => text.map(Ok),
        ERROR => text.map(Err),
        _ => None,
    })
}

/// Where the answers for an instance are.
pub(super) fn mailbox(instance: &str) -> String {
    format!("to-{instance}")
}

/// Where an instance notes that it is there.
pub(super) fn presence(instance: &str) -> String {
    format!("here-{instance}")
}

/// What an answer is sealed for.
fn place(session: &str, ask: &str) -> Vec<u8> {
    format!("answer {session} {ask}").into_bytes()
}
