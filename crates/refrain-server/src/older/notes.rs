//! What is kept of sessions beside their ids.
//!
//! | note | what it says |
//! | --- | --- |
//! | `ended` | the client has ended the session |
//! | `level` | which log messages it wants |
//! | `uri/…` | a resource whose changes it wants to hear of |
//! | `answer/…` | an answer for another instance, sealed |
//! | `cancel/…` | a call of another instance that the client no longer wants |
//!
//! Where a store is shared, any instance reads them with every request, so that none of them knows more than the others.

use super::listening::LOOK;
use super::{RequestId, Session};
use crate::server::Server;
use refrain_store::{SessionStore, StoreError};
use refrain_wire::LogLevel;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// How long answers and cancellations are kept for the instance they are for.
const CARRIED: Duration = Duration::from_secs(600);
/// Notes of one session before nothing more is carried for it.
const MOST: usize = 1024;

/// Notes about sessions.
pub(crate) struct Notes {
    store: Arc<dyn SessionStore>,
    /// Do other instances read them?
    pub(crate) shared: bool,
}

/// What is noted of one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) ended: bool,
    pub(crate) level: Option<LogLevel>,
    pub(crate) uris: Vec<String>,
    /// Answers for other instances, by the id of their ask.
    pub(crate) answers: Vec<(String, Vec<u8>)>,
    /// The ids of calls that the client no longer wants, as they are noted.
    pub(crate) cancelled: Vec<String>,
    notes: usize,
}

impl Known {
    fn read(notes: Vec<(String, Vec<u8>)>) -> Self {
        let mut known = Self {
            notes: notes.len(),
            ..Self::default()
        };
        for (name, value) in notes {
            match name.split_once('/') {
                None if name == "ended" => known.ended = true,
                None if name == "level" => known.level = serde_json::from_slice(&value).ok(),
                Some(("uri", uri)) => known.uris.push(uri.to_owned()),
                Some(("answer", ask)) => known.answers.push((ask.to_owned(), value)),
                Some(("cancel", id)) => known.cancelled.push(id.to_owned()),
                _ => tracing::debug!(name, "a note that is not known here"),
            }
        }
        known
    }

    /// May more be carried for this session?
    pub(crate) fn has_room(&self) -> bool {
        self.notes < MOST
    }
}

impl Notes {
    pub(super) fn new(store: Arc<dyn SessionStore>, shared: bool) -> Self {
        Self { store, shared }
    }

    /// What is noted of a session.
    pub(crate) async fn read(&self, session: &Session) -> Result<Known, StoreError> {
        self.store.notes(&session.key).await.map(Known::read)
    }

    /// Sessions of which something was noted, or taken back.
    pub(crate) fn changed(&self) -> broadcast::Receiver<String> {
        self.store.noted()
    }
}

impl Server {
    async fn note(&self, session: &Session, name: &str, value: Vec<u8>) -> Result<(), StoreError> {
        let store = &self.0.older.notes.store;
        let left = session.left(self);
        store.note(&session.key, name, value, left).await
    }

    pub(crate) async fn note_level(
        &self,
        session: &Session,
        level: LogLevel,
    ) -> Result<(), StoreError> {
        let value = format!("{:?}", level.as_str()).into_bytes();
        self.note(session, "level", value).await
    }

    pub(crate) async fn note_uri(&self, session: &Session, uri: &str) -> Result<(), StoreError> {
        self.note(session, &format!("uri/{uri}"), Vec::new()).await
    }

    pub(crate) async fn forget_uri(&self, session: &Session, uri: &str) -> Result<(), StoreError> {
        let store = &self.0.older.notes.store;
        let name = format!("uri/{uri}");
        store.take_note(&session.key, &name).await.map(|_| ())
    }

    pub(crate) async fn note_end(&self, session: &Session) -> Result<(), StoreError> {
        self.note(session, "ended", Vec::new()).await
    }

    /// Carries an answer to the instance that has asked.
    pub(crate) async fn carry_answer(
        &self,
        session: &Session,
        ask: &str,
        answer: &Result<String, String>,
    ) -> Result<(), StoreError> {
        let content = serde_json::to_vec(answer).unwrap_or_default();
        let sealed = self.0.sealer.seal_bytes(&place(session, ask), &content);
        let store = &self.0.older.notes.store;
        let name = format!("answer/{ask}");
        store.note(&session.key, &name, sealed, CARRIED).await
    }

    /// Takes in an answer that was carried here. `None`: somebody else has, or it does not open.
    pub(crate) async fn take_answer(
        &self,
        session: &Session,
        ask: &str,
        sealed: Vec<u8>,
    ) -> Option<Result<String, String>> {
        let store = &self.0.older.notes.store;
        let name = format!("answer/{ask}");
        match store.take_note(&session.key, &name).await {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => {
                tracing::warn!(%error, "an answer could not be taken in");
                return None;
            }
        }
        let opened = self.0.sealer.open_bytes(&place(session, ask), sealed);
        let content = opened.map_err(|reason| {
            tracing::error!(%reason, "an answer that was carried here does not open");
        });
        serde_json::from_slice(&content.ok()?).ok()
    }

    /// Tells the instance that has this call that it is no longer wanted.
    pub(crate) async fn carry_cancel(
        &self,
        session: &Session,
        id: &RequestId,
    ) -> Result<(), StoreError> {
        let store = &self.0.older.notes.store;
        let name = format!("cancel/{}", id.text());
        store.note(&session.key, &name, Vec::new(), CARRIED).await
    }
}

/// Takes in what other instances note for a call of this one. Returns when it is no longer wanted, or its session is over.
///
/// Where no store is shared there are no other instances to hear from, and this only waits.
pub(crate) async fn watch_notes(server: &Server, session: &Session, call: &RequestId) {
    let older = &server.0.older;
    if !older.notes.shared {
        return std::future::pending().await;
    }
    let mut noted = older.notes.changed();
    let call = call.text();
    loop {
        match tokio::time::timeout(LOOK, noted.recv()).await {
            Ok(Ok(other)) if *other != *session.key => continue,
            // Something was noted, or a word of it may be lost.
            Ok(Ok(_) | Err(RecvError::Lagged(_))) | Err(_) => {}
            Ok(Err(RecvError::Closed)) => tokio::time::sleep(LOOK).await,
        }
        let known = match older.notes.read(session).await {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(%error, "a session could not be looked up");
                continue;
            }
        };
        if known.ended || known.cancelled.contains(&call) {
            return;
        }
        for (ask, sealed) in known.answers {
            if older.desk.is_open(session, &ask)
                && let Some(answer) = server.take_answer(session, &ask, sealed).await
            {
                older.desk.answer(session, &ask, answer);
            }
        }
    }
}

/// What an answer is sealed for.
fn place(session: &Session, ask: &str) -> Vec<u8> {
    format!("answer {} {ask}", session.key).into_bytes()
}
