//! The state of sessions that is held in memory: log level, subscriptions, and whether the client ended it.
//!
//! A session that never set anything has no entry. Entries are removed when their session expires.

use super::{LegacySessions, Session};
use crate::limits::ServerLimits;
use parking_lot::{Mutex, MutexGuard};
use refrain_wire::LogLevel;
use refrain_wire::legacy::Agreed;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::watch;

/// Sessions that have an entry.
const SESSIONS: usize = 65_536;
/// Bytes of the subscribed URIs of all sessions.
const BYTES: usize = 64 * 1024 * 1024;

/// The state of one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionState {
    /// The client has ended it.
    pub(crate) ended: bool,
    pub(crate) level: Option<LogLevel>,
    /// The resources that it is subscribed to.
    pub(crate) uris: Vec<String>,
}

impl SessionState {
    fn bytes(&self) -> usize {
        self.uris.iter().map(String::len).sum()
    }
}

/// The state, and those who wait for changes of it.
pub(super) type SharedState = Arc<watch::Sender<SessionState>>;

/// A limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateError {
    /// That of this session.
    Session,
    /// That of the instance.
    Instance,
}

/// The state of all sessions that are held here.
pub(super) struct HeldSessions {
    /// Resources of one session, and the bytes of their URIs.
    most: (usize, usize),
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    of: HashMap<Arc<str>, Entry>,
    /// Bytes of all subscribed URIs.
    bytes: usize,
}

struct Entry {
    state: SharedState,
    /// When the session expires, in seconds since 1970.
    expires: u64,
}

impl HeldSessions {
    pub(super) fn new(limits: &ServerLimits) -> Self {
        Self {
            most: (limits.subscribed_resources, limits.subscribed_bytes),
            entries: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock()
    }

    /// The state of a session, if there is an entry.
    fn get(&self, session: &Session) -> Option<SharedState> {
        match &session.own {
            Some(own) => Some(own.clone()),
            None => self
                .lock()
                .of
                .get(&session.key)
                .map(|entry| entry.state.clone()),
        }
    }

    fn read<T>(&self, session: &Session, read: impl Fn(&SessionState) -> T) -> Option<T> {
        self.get(session).map(|state| read(&state.borrow()))
    }

    /// Changes the state of a session, which may need this many bytes more.
    fn change(
        &self,
        session: &Session,
        now: u64,
        more: usize,
        change: impl FnOnce(&mut SessionState) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let modify = |state: &SharedState| {
            let mut changed = Ok(());
            state.send_if_modified(|state| {
                changed = change(state);
                changed.is_ok()
            });
            changed
        };
        if let Some(own) = &session.own {
            return modify(own);
        }
        let mut entries = self.lock();
        let state = entries.entry(session, now)?;
        if entries.bytes.saturating_add(more) > BYTES {
            return Err(StateError::Instance);
        }
        let before = state.borrow().bytes();
        let changed = modify(&state);
        entries.bytes = entries.bytes + state.borrow().bytes() - before;
        changed
    }

    /// Marks a session as ended. Without room for an entry, its id stays valid.
    pub(super) fn end(&self, session: &Session, now: u64) {
        let ended = self.change(session, now, 0, |state| {
            *state = SessionState {
                ended: true,
                ..SessionState::default()
            };
            Ok(())
        });
        if ended.is_err() {
            tracing::warn!("no room to remember that a session ended");
        }
    }
}

impl Entries {
    /// The state of a session, with a new entry if there is none.
    fn entry(&mut self, session: &Session, now: u64) -> Result<SharedState, StateError> {
        if let Some(entry) = self.of.get(&session.key) {
            return Ok(entry.state.clone());
        }
        if self.of.len() >= SESSIONS {
            self.forget(now);
        }
        if self.of.len() >= SESSIONS {
            return Err(StateError::Instance);
        }
        let state = SharedState::default();
        let entry = Entry {
            state: state.clone(),
            expires: session.expires,
        };
        self.of.insert(session.key.clone(), entry);
        Ok(state)
    }

    /// Removes the entries of expired sessions, and those without content that nobody waits for.
    fn forget(&mut self, now: u64) {
        self.of.retain(|_, entry| {
            let state = &entry.state;
            let empty = state.receiver_count() == 0 && *state.borrow() == SessionState::default();
            now < entry.expires && !empty
        });
        let states = self.of.values().map(|entry| entry.state.borrow().bytes());
        self.bytes = states.sum();
    }
}

impl LegacySessions {
    /// What was agreed in the session, with its present log level.
    pub(crate) fn agreed(&self, session: &Session) -> Agreed {
        let level = self.held.read(session, |state| state.level);
        session.agreed(level.flatten())
    }

    pub(crate) fn has_ended(&self, session: &Session) -> bool {
        self.held
            .read(session, |state| state.ended)
            .unwrap_or(false)
    }

    /// The state of a session, and its changes.
    pub(crate) fn watch(&self, session: &Session) -> watch::Receiver<SessionState> {
        if let Some(own) = &session.own {
            return own.subscribe();
        }
        let entry = self
            .held
            .lock()
            .entry(session, self.services.source.unix_seconds());
        // Without room for an entry the state does not change either.
        entry.unwrap_or_default().subscribe()
    }

    pub(crate) fn set_level(&self, session: &Session, level: LogLevel) -> Result<(), StateError> {
        let now = self.services.source.unix_seconds();
        self.held.change(session, now, 0, |state| {
            state.level = Some(level);
            Ok(())
        })
    }

    pub(crate) fn subscribe(&self, session: &Session, uri: &str) -> Result<(), StateError> {
        let now = self.services.source.unix_seconds();
        let (resources, bytes) = self.held.most;
        self.held.change(session, now, uri.len(), |state| {
            if state.uris.iter().any(|known| known == uri) {
                return Ok(());
            }
            if state.uris.len() >= resources || state.bytes() + uri.len() > bytes {
                return Err(StateError::Session);
            }
            state.uris.push(uri.to_owned());
            Ok(())
        })
    }

    pub(crate) fn unsubscribe(&self, session: &Session, uri: &str) {
        let now = self.services.source.unix_seconds();
        // Only a new entry can be refused, and that would be empty.
        let _ = self.held.change(session, now, 0, |state| {
            state.uris.retain(|known| known != uri);
            Ok(())
        });
    }
}
