//! In-memory state of sessions: log level, subscriptions, and whether the client ended the session.
//!
//! Sessions with default state have no entry. Entries are removed when their session expires.

use super::{LegacySessions, Session};
use refrain_core::limited_event;
use refrain_wire::LogLevel;
use refrain_wire::legacy::SessionSettings;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::watch;

const MAX_SESSIONS: usize = 65_536;
/// The maximum size of the subscribed URIs of all sessions.
const MAX_BYTES: usize = 64 * 1024 * 1024;
const DEFAULT_LEVEL: LogLevel = LogLevel::Info;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SessionState {
    pub(super) ended: bool,
    level: Option<LogLevel>,
    pub(super) uris: Vec<String>,
}

impl SessionState {
    fn bytes(&self) -> usize {
        self.uris.iter().map(String::len).sum()
    }
}

/// The limit that a change of state would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateError {
    Session,
    Instance,
}

#[derive(Default)]
pub(super) struct SessionStates {
    entries: HashMap<Arc<str>, StateEntry>,
    bytes: usize,
}

struct StateEntry {
    state: Arc<watch::Sender<SessionState>>,
    expires: u64,
}

impl SessionStates {
    /// The state of a session. Adds an entry if necessary.
    fn entry(
        &mut self,
        session: &Session,
        now: u64,
    ) -> Result<Arc<watch::Sender<SessionState>>, StateError> {
        if let Some(entry) = self.entries.get(&session.key) {
            return Ok(entry.state.clone());
        }
        if self.entries.len() >= MAX_SESSIONS {
            self.remove_expired(now);
        }
        if self.entries.len() >= MAX_SESSIONS {
            return Err(StateError::Instance);
        }
        let entry = StateEntry {
            state: Arc::default(),
            expires: session.expires,
        };
        let state = entry.state.clone();
        self.entries.insert(session.key.clone(), entry);
        Ok(state)
    }

    /// Removes entries of expired sessions, and default entries that no stream watches.
    fn remove_expired(&mut self, now: u64) {
        self.entries.retain(|_, StateEntry { state, expires }| {
            let is_unused =
                state.receiver_count() == 0 && *state.borrow() == SessionState::default();
            now < *expires && !is_unused
        });
        let states = self
            .entries
            .values()
            .map(|entry| entry.state.borrow().bytes());
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
        read(&states.entries.get(&session.key)?.state.borrow())
    }

    /// Changes the state of a session, which may grow by `more` bytes.
    fn change_state(
        &self,
        session: &Session,
        more: usize,
        change: impl FnOnce(&mut SessionState) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let mut states = self.states.lock();
        let state = states.entry(session, self.services.source.unix_seconds())?;
        if states.bytes.saturating_add(more) > MAX_BYTES {
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

    pub(super) fn watch(&self, session: &Session) -> watch::Receiver<SessionState> {
        let now = self.services.source.unix_seconds();
        // If the limit prevents an entry, the state cannot change either.
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
        // Fails only if an entry cannot be added, and then there is no subscription.
        let _ = self.change_state(session, 0, |state| {
            state.uris.retain(|known| known != uri);
            Ok(())
        });
    }

    /// Ends a session with its calls and streams on this instance. If no entry can be added, the session id stays valid.
    pub(crate) fn end(&self, session: &Session) {
        let ended = self.change_state(session, 0, |state| {
            *state = SessionState {
                ended: true,
                ..SessionState::default()
            };
            Ok(())
        });
        if ended.is_err() {
            limited_event!(WARN, "session limit reached, ended session stays valid");
        }
        self.cancel_calls(session);
    }

    /// Removes the state of a session whose id cannot be used again.
    pub(crate) fn forget(&self, session: &Session) {
        let mut states = self.states.lock();
        if let Some(entry) = states.entries.remove(&session.key) {
            states.bytes -= entry.state.borrow().bytes();
        }
    }
}
