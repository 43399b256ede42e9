//! In-memory state of sessions: log level, subscriptions, and whether the client has ended the session.
//!
//! A session with default state has no entry, unless a stream watches it. Entries are removed when their session expires.

use super::{LegacySessions, Session};
use crate::limits::{InstanceLimits, LimitKey, LimitReached, Limiter, Permit};
use refrain_wire::LogLevel;
use refrain_wire::legacy::SessionSettings;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use tokio::sync::watch;

const DEFAULT_LOG_LEVEL: LogLevel = LogLevel::Info;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SessionState {
    pub(super) ended: bool,
    level: Option<LogLevel>,
    /// The URIs of the subscribed resources.
    pub(super) uris: Vec<String>,
}

impl SessionState {
    fn uri_bytes(&self) -> usize {
        self.uris.iter().map(String::len).sum()
    }
}

/// The limit that a change of state would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateError {
    /// The limit of resources or bytes per session.
    PerSession,
    /// A limit of the caller or the instance.
    Limit(LimitReached),
}

impl From<LimitReached> for StateError {
    fn from(reached: LimitReached) -> Self {
        Self::Limit(reached)
    }
}

pub(super) struct SessionStates {
    entries: HashMap<Arc<str>, StateEntry>,
    by_expiry: BTreeSet<(u64, Arc<str>)>,
    ended: EndedSessions,
    sessions: Arc<Limiter>,
    bytes: Arc<Limiter>,
}

/// The state of one session, with its permits.
struct StateEntry {
    state: Arc<watch::Sender<SessionState>>,
    expires: u64,
    /// `None` while the state is the default: then only streams keep the entry, and they have permits themselves.
    permits: Option<StatePermits>,
}

struct StatePermits {
    _session: Permit,
    /// For the subscribed URIs.
    bytes: Permit,
}

impl SessionStates {
    pub(super) fn new(limits: &InstanceLimits) -> Self {
        Self {
            entries: HashMap::new(),
            by_expiry: BTreeSet::new(),
            ended: EndedSessions::new(limits.sessions, limits.sessions_each),
            sessions: Limiter::new(
                "sessions with a log level or subscriptions",
                limits.sessions,
                limits.sessions_each,
            )
            .reserve_for_principals(limits.has_authenticator),
            bytes: Limiter::leaving_room(
                "bytes of subscribed URIs",
                limits.session_bytes,
                limits.session_bytes_each,
            )
            .reserve_for_principals(limits.has_authenticator),
        }
    }

    /// The entry of a session. Adds one with default state if necessary.
    fn entry(&mut self, session: &Session) -> &mut StateEntry {
        let entry = self.entries.entry(session.key.clone());
        entry.or_insert_with(|| {
            let expiry = (session.expires, session.key.clone());
            self.by_expiry.insert(expiry);
            StateEntry {
                state: Arc::default(),
                expires: session.expires,
                permits: None,
            }
        })
    }

    fn acquire_permits(&self, caller: LimitKey) -> Result<StatePermits, LimitReached> {
        Ok(StatePermits {
            bytes: self.bytes.acquire_bytes(caller.clone(), 0)?,
            _session: self.sessions.acquire(caller)?,
        })
    }

    fn change(
        &mut self,
        session: &Session,
        caller: LimitKey,
        added_bytes: usize,
        change: impl FnOnce(&mut SessionState) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let mut permits = match self.entry(session).permits.take() {
            Some(permits) => permits,
            None => self.acquire_permits(caller)?,
        };
        let mut result = permits
            .bytes
            .grow_bytes(added_bytes)
            .map_err(StateError::Limit);
        let entry = self.entry(session);
        if result.is_ok() {
            entry.state.send_if_modified(|state| {
                result = change(state);
                result.is_ok()
            });
        }
        let state = entry.state.borrow();
        permits.bytes.shrink_to_bytes(state.uri_bytes());
        entry.permits = (*state != SessionState::default()).then_some(permits);
        result
    }

    fn remove_expired(&mut self, now: u64) {
        while let Some((expires, key)) = self.by_expiry.first()
            && *expires <= now
        {
            let key = key.clone();
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &Arc<str>) -> Option<StateEntry> {
        let entry = self.entries.remove(key)?;
        self.by_expiry.remove(&(entry.expires, key.clone()));
        Some(entry)
    }

    /// Removes an entry with default state, unless more than `watchers` streams watch it.
    fn remove_default(&mut self, key: &Arc<str>, watchers: usize) {
        if let Some(StateEntry { state, .. }) = self.entries.get(key)
            && state.receiver_count() <= watchers
            && *state.borrow() == SessionState::default()
        {
            self.remove(key);
        }
    }
}

/// The sessions that their clients ended, until they expire. At the limit, the entry that was
/// added first for the caller with the most entries is dropped; the id of its session is then
/// valid again.
struct EndedSessions {
    limit: usize,
    limit_per_caller: usize,
    keys: HashSet<Arc<str>>,
    /// The expiry and key of each session, in the order in which the sessions ended.
    by_caller: HashMap<LimitKey, VecDeque<(u64, Arc<str>)>>,
}

impl EndedSessions {
    fn new(limit: usize, limit_per_caller: usize) -> Self {
        Self {
            limit,
            limit_per_caller,
            keys: HashSet::new(),
            by_caller: HashMap::new(),
        }
    }

    fn insert(&mut self, session: &Session, caller: LimitKey, now: u64) {
        if self.keys.contains(&session.key) {
            return;
        }
        if self.keys.len() >= self.limit
            && let Some(largest) = self.by_caller.values_mut().max_by_key(|ended| ended.len())
        {
            remove_first(largest, &mut self.keys);
            self.by_caller.retain(|_, ended| !ended.is_empty());
        }
        let ended = self.by_caller.entry(caller).or_default();
        while let Some((expires, _)) = ended.front()
            && (*expires <= now || ended.len() >= self.limit_per_caller)
        {
            remove_first(ended, &mut self.keys);
        }
        ended.push_back((session.expires, session.key.clone()));
        self.keys.insert(session.key.clone());
    }
}

fn remove_first(sessions: &mut VecDeque<(u64, Arc<str>)>, keys: &mut HashSet<Arc<str>>) {
    if let Some((_, key)) = sessions.pop_front() {
        keys.remove(&key);
    }
}

impl LegacySessions {
    /// Changes the state of a session, which may grow by `added_bytes`.
    fn change_state(
        &self,
        session: &Session,
        caller: LimitKey,
        added_bytes: usize,
        change: impl FnOnce(&mut SessionState) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let mut states = self.states.lock();
        states.remove_expired(self.services.source.unix_seconds());
        let result = states.change(session, caller, added_bytes, change);
        states.remove_default(&session.key, 0);
        result
    }

    pub(crate) fn settings(&self, session: &Session) -> SessionSettings {
        let states = self.states.lock();
        let entry = states.entries.get(&session.key);
        let level = entry.and_then(|entry| entry.state.borrow().level);
        SessionSettings {
            revision: session.revision,
            capabilities: session.capabilities,
            log_level: Some(level.unwrap_or(DEFAULT_LOG_LEVEL)),
        }
    }

    pub(crate) fn has_ended(&self, session: &Session) -> bool {
        self.states.lock().ended.keys.contains(&session.key)
    }

    /// Watches the state of a session for a stream, which has a permit for its subscription.
    pub(super) fn watch(&self, session: &Session) -> watch::Receiver<SessionState> {
        self.states.lock().entry(session).state.subscribe()
    }

    /// Removes the entry of a session with default state when its last watcher is dropped.
    pub(super) fn unwatch(&self, session: &Session) {
        self.states.lock().remove_default(&session.key, 1);
    }

    pub(super) fn set_level(
        &self,
        session: &Session,
        caller: LimitKey,
        level: LogLevel,
    ) -> Result<(), StateError> {
        self.change_state(session, caller, 0, |state| {
            state.level = Some(level);
            Ok(())
        })
    }

    pub(super) fn subscribe(
        &self,
        session: &Session,
        caller: LimitKey,
        uri: &str,
    ) -> Result<(), StateError> {
        let limits = &self.services.limits;
        self.change_state(session, caller, uri.len(), |state| {
            if state.uris.iter().any(|subscribed| subscribed == uri) {
                return Ok(());
            }
            if state.uris.len() >= limits.subscribed_resources
                || state.uri_bytes() + uri.len() > limits.subscribed_bytes
            {
                return Err(StateError::PerSession);
            }
            state.uris.push(uri.to_owned());
            Ok(())
        })
    }

    pub(super) fn unsubscribe(&self, session: &Session, caller: LimitKey, uri: &str) {
        // Fails only if there is no entry, hence no subscription, and no permit for an entry.
        let _ = self.change_state(session, caller, 0, |state| {
            state.uris.retain(|subscribed| subscribed != uri);
            Ok(())
        });
    }

    /// Ends a session with its calls and streams on this instance.
    pub(crate) fn end(&self, session: &Session, caller: LimitKey) {
        let now = self.services.source.unix_seconds();
        let mut states = self.states.lock();
        states.ended.insert(session, caller, now);
        let entry = states.remove(&session.key);
        drop(states);
        if let Some(entry) = entry {
            entry.state.send_replace(SessionState {
                ended: true,
                ..SessionState::default()
            });
        }
        self.cancel_calls(session);
    }

    /// Removes the state of a session that can receive no further requests.
    pub(crate) fn forget(&self, session: &Session) {
        self.states.lock().remove(&session.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::legacy::session::tests::open;
    use crate::server::Server;

    #[test]
    fn ended_sessions_over_the_limit_are_dropped_from_the_largest_caller() {
        let server = Server::builder("legacy", "1").build();
        let server = server.expect("a valid server");
        let caller = |number: u8| LimitKey::address([127, 0, 0, number].into());
        let mut ended = EndedSessions::new(4, 3);
        let mut end = |number: u8| {
            let session = open(&server);
            ended.insert(&session, caller(number), 0);
            session.key
        };
        let first = end(1);
        let most: Vec<_> = (0..5).map(|_| end(2)).collect();
        let last = end(3);
        let is_stored = |key: &Arc<str>| ended.keys.contains(key);
        assert!(is_stored(&first) && is_stored(&last));
        assert_eq!(most.iter().filter(|key| is_stored(key)).count(), 2);
        assert!(is_stored(&most[4]), "the newest is kept");
        assert_eq!(ended.by_caller.len(), 3);
    }
}
