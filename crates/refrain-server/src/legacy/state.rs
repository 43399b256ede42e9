//! The state of sessions that is held in memory: log level, subscriptions, and whether the client ended it.
//!
//! A session that never set anything has no entry. Entries are removed when their session expires.

use super::{LegacySessions, Session};
use refrain_wire::LogLevel;
use refrain_wire::legacy::SessionSettings;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::watch;

/// Sessions that have an entry.
const SESSIONS: usize = 65_536;
/// Bytes of the subscribed URIs of all sessions.
const BYTES: usize = 64 * 1024 * 1024;
/// The log level of a session that set none.
const DEFAULT_LEVEL: LogLevel = LogLevel::Info;

/// The state of one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SessionState {
    /// The client has ended it.
    pub(super) ended: bool,
    level: Option<LogLevel>,
    /// The resources that it is subscribed to.
    pub(super) uris: Vec<String>,
}

impl SessionState {
    fn bytes(&self) -> usize {
        self.uris.iter().map(String::len).sum()
    }
}

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateError {
    Session,
    Instance,
}

/// The state of all sessions that are held here.
#[derive(Default)]
pub(super) struct States {
    of: HashMap<Arc<str>, Entry>,
    /// Bytes of all subscribed URIs.
    bytes: usize,
}

struct Entry {
    state: Arc<watch::Sender<SessionState>>,
    /// When the session expires, in seconds since 1970.
    expires: u64,
}

impl States {
    /// The state of a session, with a new entry if there is none.
    fn entry(
        &mut self,
        session: &Session,
        now: u64,
    ) -> Result<Arc<watch::Sender<SessionState>>, StateError> {
        if let Some(entry) = self.of.get(&session.key) {
            return Ok(entry.state.clone());
        }
        if self.of.len() >= SESSIONS {
            self.remove_expired(now);
        }
        if self.of.len() >= SESSIONS {
            return Err(StateError::Instance);
        }
        let entry = Entry {
            state: Arc::default(),
            expires: session.expires,
        };
        let state = entry.state.clone();
        self.of.insert(session.key.clone(), entry);
        Ok(state)
    }

    /// Removes the entries of expired sessions, and empty ones that no stream watches.
    fn remove_expired(&mut self, now: u64) {
        self.of.retain(|_, Entry { state, expires }| {
            let empty = state.receiver_count() == 0 && *state.borrow() == SessionState::default();
            now < *expires && !empty
        });
        let states = self.of.values().map(|entry| entry.state.borrow().bytes());
        self.bytes = states.sum();
    }
}

impl LegacySessions {
    fn read_state<T>(
        &self,
        session: &Session,
        read: impl Fn(&SessionState) -> Option<T>,
    ) -> Option<T> {
        let states = self.states.lock();
        read(&states.of.get(&session.key)?.state.borrow())
    }

    /// Changes the state of a session, which may need this many bytes more.
    fn change_state(
        &self,
        session: &Session,
        more: usize,
        change: impl FnOnce(&mut SessionState) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let mut states = self.states.lock();
        let state = states.entry(session, self.services.source.unix_seconds())?;
        if states.bytes.saturating_add(more) > BYTES {
            return Err(StateError::Instance);
        }
        let before = state.borrow().bytes();
        let mut changed = Ok(());
        state.send_if_modified(|state| {
            changed = change(state);
            changed.is_ok()
        });
        states.bytes = states.bytes + state.borrow().bytes() - before;
        changed
    }

    /// The revision, capabilities and log level of the session.
    pub(crate) fn agreed(&self, session: &Session) -> SessionSettings {
        let level = self.read_state(session, |state| state.level);
        SessionSettings {
            revision: session.revision,
            capabilities: session.capabilities,
            log_level: Some(level.unwrap_or(DEFAULT_LEVEL)),
        }
    }

    pub(crate) fn has_ended(&self, session: &Session) -> bool {
        let ended = self.read_state(session, |state| state.ended.then_some(()));
        ended.is_some()
    }

    /// The state of a session, and its changes.
    pub(super) fn watch(&self, session: &Session) -> watch::Receiver<SessionState> {
        let now = self.services.source.unix_seconds();
        // Without room for an entry the state does not change either.
        let state = self.states.lock().entry(session, now).unwrap_or_default();
        state.subscribe()
    }

    pub(super) fn set_level(&self, session: &Session, level: LogLevel) -> Result<(), StateError> {
        self.change_state(session, 0, |state| {
            state.level = Some(level);
            Ok(())
        })
    }

    pub(super) fn subscribe(&self, session: &Session, uri: &str) -> Result<(), StateError> {
        let limits = &self.services.limits;
        self.change_state(session, uri.len(), |state| {
            if state.uris.iter().any(|known| known == uri) {
                return Ok(());
            }
            if state.uris.len() >= limits.subscribed_resources
                || state.bytes() + uri.len() > limits.subscribed_bytes
            {
                return Err(StateError::Session);
            }
            state.uris.push(uri.to_owned());
            Ok(())
        })
    }

    pub(super) fn unsubscribe(&self, session: &Session, uri: &str) {
        // Only a new entry can be refused, and that would be empty.
        let _ = self.change_state(session, 0, |state| {
            state.uris.retain(|known| known != uri);
            Ok(())
        });
    }

    /// Ends a session, and its calls and streams here. Without room for an entry, its id stays valid.
    pub(crate) fn end(&self, session: &Session) {
        let ended = self.change_state(session, 0, |state| {
            *state = SessionState {
                ended: true,
                ..SessionState::default()
            };
            Ok(())
        });
        if ended.is_err() {
            tracing::warn!("no room to remember that a session ended");
        }
        self.cancel_calls(session);
    }

    /// Removes the state of a session whose id cannot be used again.
    pub(crate) fn forget(&self, session: &Session) {
        let mut states = self.states.lock();
        if let Some(entry) = states.of.remove(&session.key) {
            states.bytes -= entry.state.borrow().bytes();
        }
    }
}
