//! The connections to one backend.
//!
//! | connection | used by | because |
//! | --- | --- | --- |
//! | exclusive: a server on pipes or HTTP+SSE | one call at a time | its asks or logs do not name their call |
//! | shared: a server on HTTP | all calls of one owner | its messages are in the response of their call |
//!
//! Invariants: a connection never changes its owner, except that a prewarmed one gets its first; a connection whose call
//! was abandoned is closed, unless the backend keeps state for its owner.

mod limits;

pub(crate) use limits::{ConnectionLimits, Slot};

use crate::backend::StartError;
use crate::config::{BackendSpec, Sessions};
use crate::support::AskSupport;
use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use refrain::auth::Principal;
use refrain::client::Client;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio::time::timeout_at;

/// The caller, or the handle, that a connection belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) principal: Principal,
    /// The id of a handle that the caller opened.
    pub(crate) handle: Option<Arc<str>>,
}

/// What a connection can be used for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionKey {
    pub(crate) owner: Owner,
    pub(crate) support: AskSupport,
}

/// Why there is no connection for a call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AcquireError {
    #[error(
        "all connections to backend {backend} are in use, and none became free within {} seconds; retry later",
        waited.as_secs()
    )]
    Busy { backend: String, waited: Duration },
    #[error(transparent)]
    Start(#[from] Arc<StartError>),
    #[error("the session has ended; call open_session again")]
    SessionEnded,
    #[error("the gateway is shutting down")]
    Closed,
}

/// Starts connections. The backend implements it.
pub(crate) trait Connect: Send + Sync + 'static {
    /// Connects to the backend for callers with this support.
    fn connect(&self, support: AskSupport) -> BoxFuture<'_, Result<Client, Arc<StartError>>>;
    /// Whether one connection serves concurrent calls. `None` until a connection was made.
    fn is_shared(&self) -> Option<bool>;
}

pub(crate) struct Pool {
    spec: Arc<BackendSpec>,
    limits: Arc<ConnectionLimits>,
    connector: Arc<dyn Connect>,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    /// Free exclusive connections, the least recently used first.
    idle: Vec<Connection>,
    /// Prewarmed connections, which have no owner yet.
    spare: Vec<(AskSupport, Client, Slot)>,
    spares_starting: usize,
    shared: Vec<Arc<SharedConnection>>,
    /// The owners of connections in use, one entry per connection.
    busy: Vec<Owner>,
    is_closed: bool,
}

/// An exclusive connection.
struct Connection {
    key: ConnectionKey,
    client: Client,
    calls: u64,
    idle_since: Instant,
    slot: Slot,
}

struct SharedConnection {
    key: ConnectionKey,
    client: OnceCell<(Client, Slot)>,
    state: Mutex<SharedState>,
}

struct SharedState {
    users: usize,
    idle_since: Instant,
}

/// The right to use a connection. Dropping it without [`finish`](Self::finish) means that the call was abandoned.
pub(crate) struct Lease {
    pool: Arc<Pool>,
    held: Option<Held>,
    is_reusable: bool,
}

enum Held {
    Exclusive(Connection),
    Shared(Arc<SharedConnection>),
}

enum Attempt {
    Leased(Held),
    /// Start a connection with this slot.
    Start(Slot),
    /// The session of a handle has ended.
    Ended,
    Wait,
}

impl Pool {
    pub(crate) fn new(
        spec: Arc<BackendSpec>,
        limits: Arc<ConnectionLimits>,
        connector: Arc<dyn Connect>,
    ) -> Arc<Self> {
        let pool = Arc::new(Self {
            spec,
            limits,
            connector,
            state: Mutex::default(),
        });
        pool.limits.add(&pool);
        pool
    }

    /// Waits for a connection.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        key: ConnectionKey,
    ) -> Result<Lease, AcquireError> {
        let deadline = tokio::time::Instant::now() + self.spec.queue;
        loop {
            let mut freed = pin!(self.limits.freed());
            // Enabled before the attempt, so that no notification is missed.
            freed.as_mut().enable();
            if self.state.lock().is_closed {
                return Err(AcquireError::Closed);
            }
            if self.connector.is_shared() == Some(true) {
                return self.acquire_shared(key).await;
            }
            match self.attempt(&key) {
                Attempt::Leased(held) => return Ok(self.lease(held)),
                Attempt::Start(slot) => return self.start(key, slot).await,
                Attempt::Ended => return Err(AcquireError::SessionEnded),
                Attempt::Wait => {}
            }
            let waited = self.spec.queue;
            timeout_at(deadline, freed)
                .await
                .map_err(|_| AcquireError::Busy {
                    backend: self.spec.name.clone(),
                    waited,
                })?;
        }
    }

    fn lease(self: &Arc<Self>, held: Held) -> Lease {
        Lease {
            pool: self.clone(),
            held: Some(held),
            is_reusable: false,
        }
    }

    /// Takes an idle or prewarmed connection, or the right to start one.
    fn attempt(self: &Arc<Self>, key: &ConnectionKey) -> Attempt {
        let mut state = self.state.lock();
        if let Some(at) = state.idle.iter().rposition(|idle| idle.key == *key) {
            let connection = state.idle.remove(at);
            state.busy.push(key.owner.clone());
            return Attempt::Leased(Held::Exclusive(connection));
        }
        let keeps_state = self.spec.sessions != Sessions::None;
        if keeps_state && state.busy.contains(&key.owner) {
            return Attempt::Wait;
        }
        if key.owner.handle.is_some() {
            return Attempt::Ended;
        }
        let matches = |(support, _, _): &(AskSupport, Client, Slot)| *support == key.support;
        if let Some(at) = state.spare.iter().position(matches)
            && state.spare[at].2.assign(&key.owner.principal)
        {
            let (_, client, slot) = state.spare.remove(at);
            state.busy.push(key.owner.clone());
            drop(state);
            self.prewarm(key.support);
            return Attempt::Leased(Held::Exclusive(Connection::new(key.clone(), client, slot)));
        }
        drop(state);
        match self.slot(&key.owner.principal) {
            Some(slot) => {
                self.state.lock().busy.push(key.owner.clone());
                Attempt::Start(slot)
            }
            None => Attempt::Wait,
        }
    }

    /// Starts the connection of a handle.
    pub(crate) async fn open(
        self: &Arc<Self>,
        owner: Owner,
        support: AskSupport,
    ) -> Result<(), AcquireError> {
        let Some(slot) = self.slot(&owner.principal) else {
            let (backend, waited) = (self.spec.name.clone(), Duration::ZERO);
            return Err(AcquireError::Busy { backend, waited });
        };
        self.state.lock().busy.push(owner.clone());
        let lease = self.start(ConnectionKey { owner, support }, slot).await?;
        lease.finish();
        Ok(())
    }

    /// A slot for a new connection. Closes the connection that was idle longest, here or at another backend, if that helps.
    fn slot(self: &Arc<Self>, principal: &Principal) -> Option<Slot> {
        loop {
            match self.limits.try_acquire(&self.spec, Some(principal)) {
                Ok(slot) => return Some(slot),
                Err(full) if full.is_of_caller() => {
                    if !self.evict(Some(principal)) {
                        return None;
                    }
                }
                Err(full) if full.is_of_backend() => {
                    if !self.evict(None) {
                        return None;
                    }
                }
                Err(_) => {
                    if !self.limits.pools().iter().any(|pool| pool.evict(None)) {
                        return None;
                    }
                }
            }
        }
    }

    /// Closes the connection that was idle longest, of this principal or of any. Returns whether there was one.
    fn evict(&self, principal: Option<&Principal>) -> bool {
        if self.spec.sessions == Sessions::Handle {
            return false;
        }
        let mut state = self.state.lock();
        if principal.is_none()
            && let Some((_, client, _slot)) = state.spare.pop()
        {
            drop(state);
            close(client);
            return true;
        }
        let is_of = |idle: &Connection| {
            principal.is_none_or(|principal| idle.key.owner.principal == *principal)
        };
        let Some(at) = state.idle.iter().position(is_of) else {
            return false;
        };
        let connection = state.idle.remove(at);
        drop(state);
        connection.close();
        true
    }

    async fn start(
        self: &Arc<Self>,
        key: ConnectionKey,
        slot: Slot,
    ) -> Result<Lease, AcquireError> {
        let mut starting = BusyGuard {
            pool: self,
            owner: Some(key.owner.clone()),
        };
        let client = self.connector.connect(key.support).await?;
        starting.owner = None;
        drop(starting);
        self.prewarm(key.support);
        Ok(self.lease(Held::Exclusive(Connection::new(key, client, slot))))
    }

    async fn acquire_shared(self: &Arc<Self>, key: ConnectionKey) -> Result<Lease, AcquireError> {
        let connection = self.shared(key);
        connection.state.lock().users += 1;
        let lease = self.lease(Held::Shared(connection.clone()));
        let deadline = tokio::time::Instant::now() + self.spec.queue;
        let started = connection.client.get_or_try_init(async || {
            let slot = self.shared_slot(&connection.key, deadline).await?;
            let client = self.connector.connect(connection.key.support).await?;
            Ok::<_, AcquireError>((client, slot))
        });
        started.await?;
        Ok(lease)
    }

    async fn shared_slot(
        self: &Arc<Self>,
        key: &ConnectionKey,
        deadline: tokio::time::Instant,
    ) -> Result<Slot, AcquireError> {
        loop {
            let mut freed = pin!(self.limits.freed());
            freed.as_mut().enable();
            self.close_idle_shared(Duration::ZERO, Some(key));
            if let Some(slot) = self.slot(&key.owner.principal) {
                return Ok(slot);
            }
            let waited = self.spec.queue;
            timeout_at(deadline, freed)
                .await
                .map_err(|_| AcquireError::Busy {
                    backend: self.spec.name.clone(),
                    waited,
                })?;
        }
    }

    fn shared(&self, key: ConnectionKey) -> Arc<SharedConnection> {
        let mut state = self.state.lock();
        if let Some(found) = state.shared.iter().find(|shared| shared.key == key) {
            return found.clone();
        }
        let connection = Arc::new(SharedConnection {
            key,
            client: OnceCell::new(),
            state: Mutex::new(SharedState {
                users: 0,
                idle_since: Instant::now(),
            }),
        });
        state.shared.push(connection.clone());
        connection
    }

    /// Starts prewarmed connections in the background, up to the configured number.
    pub(crate) fn prewarm(self: &Arc<Self>, support: AskSupport) {
        if self.connector.is_shared() != Some(false) || self.spec.sessions != Sessions::None {
            return;
        }
        let mut state = self.state.lock();
        let count = state.spare.len() + state.spares_starting;
        if state.is_closed || count >= self.spec.prewarm {
            return;
        }
        let Ok(slot) = self.limits.try_acquire(&self.spec, None) else {
            return;
        };
        state.spares_starting += 1;
        drop(state);
        let pool = self.clone();
        tokio::spawn(async move {
            let started = pool.connector.connect(support).await;
            let mut state = pool.state.lock();
            state.spares_starting -= 1;
            match started {
                Ok(client) if state.is_closed => close(client),
                Ok(client) => state.spare.push((support, client, slot)),
                Err(error) => {
                    tracing::debug!(backend = pool.spec.name, %error, "failed to prewarm connection");
                }
            }
        });
    }

    /// Adds a connection that has served no call, for the next caller with this support.
    pub(crate) fn add_spare(&self, support: AskSupport, client: Client, slot: Slot) {
        let mut state = self.state.lock();
        match state.is_closed || self.spec.prewarm == 0 {
            true => close(client),
            false => state.spare.push((support, client, slot)),
        }
    }

    fn release(&self, held: Held, is_finished: bool) {
        match held {
            Held::Shared(connection) => {
                let mut state = connection.state.lock();
                state.users -= 1;
                state.idle_since = Instant::now();
                let is_unused = state.users == 0 && connection.client.get().is_none();
                drop(state);
                if is_unused {
                    self.forget_shared(&connection);
                }
            }
            Held::Exclusive(mut connection) => {
                connection.calls += 1;
                connection.idle_since = Instant::now();
                let keeps_state = self.spec.sessions != Sessions::None;
                let is_reusable =
                    keeps_state || (is_finished && connection.calls < self.spec.calls_per_process);
                let mut state = self.state.lock();
                state.free(&connection.key.owner);
                match is_reusable && !state.is_closed {
                    true => state.idle.push(connection),
                    false => {
                        drop(state);
                        connection.close();
                    }
                }
            }
        }
        self.limits.notify();
    }

    /// Removes a shared connection that could not be started and has no user.
    fn forget_shared(&self, connection: &Arc<SharedConnection>) {
        let mut state = self.state.lock();
        if connection.state.lock().users == 0 {
            state
                .shared
                .retain(|shared| !Arc::ptr_eq(shared, connection));
        }
    }

    /// Closes connections that were idle for too long.
    pub(crate) fn close_idle(&self) {
        let idle = self.spec.idle;
        let mut state = self.state.lock();
        let expired: Vec<Connection> = state
            .idle
            .extract_if(.., |connection| connection.idle_since.elapsed() >= idle)
            .collect();
        drop(state);
        expired.into_iter().for_each(Connection::close);
        self.close_idle_shared(idle, None);
    }

    /// Closes shared connections without users, except the one with this key.
    fn close_idle_shared(&self, idle: Duration, except: Option<&ConnectionKey>) {
        let mut state = self.state.lock();
        let is_idle = |shared: &mut Arc<SharedConnection>| {
            let state = shared.state.lock();
            let is_other = except.is_none_or(|key| *key != shared.key);
            state.users == 0 && is_other && state.idle_since.elapsed() >= idle
        };
        let expired: Vec<_> = state.shared.extract_if(.., is_idle).collect();
        drop(state);
        for shared in expired {
            if let Some((client, _slot)) =
                Arc::into_inner(shared).and_then(|it| it.client.into_inner())
            {
                close(client);
            }
        }
    }

    /// Closes all idle connections and waits for that. Connections in use are closed when their calls end.
    pub(crate) async fn close(&self) {
        let clients = self.take_all();
        self.limits.notify();
        join_all(clients.into_iter().map(Client::close)).await;
    }

    /// Takes all connections without users. No connection is added from now on.
    fn take_all(&self) -> Vec<Client> {
        let mut state = self.state.lock();
        state.is_closed = true;
        let idle = std::mem::take(&mut state.idle).into_iter();
        let spare = std::mem::take(&mut state.spare).into_iter();
        let shared = std::mem::take(&mut state.shared).into_iter();
        let idle = idle.map(|connection| connection.client);
        let spare = spare.map(|(_, client, _)| client);
        let shared = shared.filter_map(|shared| {
            let (client, _slot) = Arc::into_inner(shared)?.client.into_inner()?;
            Some(client)
        });
        idle.chain(spare).chain(shared).collect()
    }
}

impl PoolState {
    fn free(&mut self, owner: &Owner) {
        if let Some(at) = self.busy.iter().position(|busy| busy == owner) {
            self.busy.swap_remove(at);
        }
    }
}

/// Frees the owner if the connection cannot be started.
struct BusyGuard<'a> {
    pool: &'a Pool,
    owner: Option<Owner>,
}

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        if let Some(owner) = &self.owner {
            self.pool.state.lock().free(owner);
            self.pool.limits.notify();
        }
    }
}

impl Connection {
    fn new(key: ConnectionKey, client: Client, slot: Slot) -> Self {
        Self {
            key,
            client,
            calls: 0,
            idle_since: Instant::now(),
            slot,
        }
    }

    fn close(self) {
        let Self { client, slot, .. } = self;
        close(client);
        drop(slot);
    }
}

/// Closes a connection in the background.
fn close(client: Client) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(client.close());
    }
}

impl Lease {
    pub(crate) fn client(&self) -> &Client {
        match &self.held {
            Some(Held::Exclusive(connection)) => &connection.client,
            Some(Held::Shared(connection)) => {
                let started = connection.client.get();
                &started.expect("a lease is returned after the start").0
            }
            None => unreachable!("only drop takes the connection"),
        }
    }

    /// Marks the call as completed, so that the connection can be used again.
    pub(crate) fn finish(mut self) {
        self.is_reusable = true;
    }

    /// Whether the connection can be used again if the lease is dropped now.
    pub(crate) fn set_reusable(&mut self, is_reusable: bool) {
        self.is_reusable = is_reusable;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.pool.release(held, self.is_reusable);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("backend", &self.pool.spec.name)
            .finish_non_exhaustive()
    }
}
