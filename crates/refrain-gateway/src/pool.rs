//! The connections to one backend.
//!
//! | connection | used by | because |
//! | --- | --- | --- |
//! | exclusive: a server on pipes or HTTP+SSE | one call at a time | its asks or logs do not name their call |
//! | shared: a server on HTTP, unless `exclusive` is set | all calls of one owner | its messages are in the response of their call |
//!
//! Invariants: a connection never changes its owner, except that a prewarmed one gets its first; a connection whose call
//! was abandoned is closed, unless the backend keeps state for its owner; a connection with state is never closed to make
//! room for another, and its process is never restarted under the same handle.

mod limits;
mod shared;

pub(crate) use limits::{ConnectionLimits, Slot};

use limits::LimitReached;
use shared::SharedConnection;

use crate::backend::StartError;
use crate::config::{BackendSpec, Sessions};
use crate::sessions;
use crate::support::AskSupport;
use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use refrain::auth::Principal;
use refrain::client::{ByteBudget, Client};
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout_at;

/// How often a call that waits for a connection tries again without a notification.
const RETRY_EVERY: Duration = Duration::from_millis(250);

/// The caller, or the handle, that a connection belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) principal: Principal,
    /// The id of a handle that the caller opened.
    pub(crate) handle: Option<Arc<str>>,
}

/// The calls that may use a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionKey {
    pub(crate) owner: Owner,
    pub(crate) support: AskSupport,
}

/// Why there is no connection for a call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AcquireError {
    #[error("no connection to backend {backend} became free within {} seconds; retry later", waited.as_secs())]
    Busy { backend: String, waited: Duration },
    #[error(transparent)]
    Start(#[from] Arc<StartError>),
    #[error("the session has ended; call {tool} again")]
    SessionEnded { tool: String },
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
    spare: Vec<SpareConnection>,
    /// One entry for each prewarmed connection that is being started.
    spares_starting: Vec<AskSupport>,
    shared: Vec<Arc<SharedConnection>>,
    /// The owners of connections that are in use or being started, one entry per connection.
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

struct SpareConnection {
    support: AskSupport,
    client: Client,
    started: Instant,
    slot: Slot,
}

/// The right to use a connection. Dropping it without [`finish`](Self::finish) means that the call was abandoned.
pub(crate) struct Lease {
    pool: Arc<Pool>,
    held: Option<Held>,
    end: LeaseEnd,
}

/// What happens to the connection of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseEnd {
    /// The call was abandoned: it may still run at the backend.
    Abandoned,
    /// The connection has no request in flight.
    Finished,
    /// The connection failed.
    Broken,
}

enum Held {
    Exclusive(Connection),
    Shared(Arc<SharedConnection>),
}

enum Attempt {
    Leased(Held),
    /// Start a connection with this slot.
    Start(Slot),
    /// Use the shared connection of the owner.
    Share,
    /// The session of a handle has ended.
    Ended,
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

    /// The budget for the memory of responses to calls of this account.
    pub(crate) fn response_budget(&self, account: Principal) -> ByteBudget {
        self.limits.response_budget(account)
    }

    /// Waits for a connection, which counts for the account.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        key: ConnectionKey,
        account: &Principal,
    ) -> Result<Lease, AcquireError> {
        match self.retry(|| self.attempt(&key, account)).await? {
            Attempt::Leased(held) => Ok(self.lease(held)),
            Attempt::Start(slot) => self.start(key, slot).await,
            Attempt::Share => self.acquire_shared(key, account).await,
            Attempt::Ended => Err(AcquireError::SessionEnded {
                tool: sessions::open_tool_name(&self.spec),
            }),
        }
    }

    /// Starts the connection of a new handle.
    pub(crate) async fn open(
        self: &Arc<Self>,
        owner: Owner,
        account: &Principal,
        support: AskSupport,
    ) -> Result<(), AcquireError> {
        let slot = self.retry(|| self.slot(account)).await?;
        self.state.lock().busy.push(owner.clone());
        let lease = self.start(ConnectionKey { owner, support }, slot).await?;
        lease.finish();
        Ok(())
    }

    /// Repeats an attempt whenever a connection becomes free, until the queue time has passed.
    async fn retry<T>(&self, attempt: impl Fn() -> Option<T>) -> Result<T, AcquireError> {
        let waited = self.spec.queue;
        let deadline = tokio::time::Instant::now() + waited;
        loop {
            let mut freed = pin!(self.limits.freed());
            // Enabled before the attempt, so that no notification is missed.
            freed.as_mut().enable();
            if self.state.lock().is_closed {
                return Err(AcquireError::Closed);
            }
            if let Some(done) = attempt() {
                return Ok(done);
            }
            let now = tokio::time::Instant::now();
            if now >= deadline {
                return Err(AcquireError::Busy {
                    backend: self.spec.name.clone(),
                    waited,
                });
            }
            // Abandoned calls are forgotten without a notification.
            let _ = timeout_at(deadline.min(now + RETRY_EVERY), freed).await;
        }
    }

    fn lease(self: &Arc<Self>, held: Held) -> Lease {
        Lease {
            pool: self.clone(),
            held: Some(held),
            end: LeaseEnd::Abandoned,
        }
    }

    /// Takes an idle or prewarmed connection, or the right to start one. `None` if the call must wait.
    fn attempt(self: &Arc<Self>, key: &ConnectionKey, account: &Principal) -> Option<Attempt> {
        if self.connector.is_shared() == Some(true) {
            return Some(Attempt::Share);
        }
        let mut state = self.state.lock();
        let exited = state.take_exited();
        let fits = |idle: &Connection| idle.key == *key && idle.slot.assign(account);
        if let Some(at) = state.idle.iter().rposition(fits) {
            let connection = state.idle.remove(at);
            state.busy.push(key.owner.clone());
            return Some(Attempt::Leased(Held::Exclusive(connection)));
        }
        if self.keeps_state() && state.busy.contains(&key.owner) {
            return None;
        }
        if key.owner.handle.is_some() {
            return Some(Attempt::Ended);
        }
        let spare = state
            .spare
            .iter()
            .position(|spare| spare.support == key.support);
        if let Some(at) = spare
            && state.spare[at].slot.assign(account)
        {
            let SpareConnection { client, slot, .. } = state.spare.remove(at);
            state.busy.push(key.owner.clone());
            drop(state);
            self.prewarm(key.support);
            let connection = Connection::new(key.clone(), client, slot);
            return Some(Attempt::Leased(Held::Exclusive(connection)));
        }
        // Before the lock is released, so that a concurrent call of the same owner waits.
        state.busy.push(key.owner.clone());
        drop(state);
        // Their slots are free now.
        drop(exited);
        let slot = self.slot(account);
        if slot.is_none() {
            self.state.lock().free(&key.owner);
        }
        slot.map(Attempt::Start)
    }

    /// Whether the backend keeps state between calls of one owner.
    fn keeps_state(&self) -> bool {
        self.spec.sessions != Sessions::None
    }

    /// A slot for a new connection. If a limit is reached, closes the connection that was idle longest among those that
    /// count for this limit.
    fn slot(self: &Arc<Self>, account: &Principal) -> Option<Slot> {
        loop {
            let reached = match self.limits.try_acquire(&self.spec, Some(account)) {
                Ok(slot) => return Some(slot),
                Err(reached) => reached,
            };
            let (pools, account) = match reached {
                LimitReached::Closing | LimitReached::Abandoned => return None,
                LimitReached::Caller => (self.limits.pools(), Some(account)),
                LimitReached::Backend => (vec![self.clone()], None),
                LimitReached::Total => (self.limits.pools(), None),
            };
            let idle = pools.iter().filter_map(|pool| {
                let since = pool.state.lock().oldest(pool.keeps_state(), account)?.0;
                Some((since, pool))
            });
            let (_, pool) = idle.min_by_key(|(since, _)| *since)?;
            pool.evict(account);
        }
    }

    /// Closes the connection that was idle longest, of this account or of any.
    fn evict(&self, account: Option<&Principal>) {
        let mut state = self.state.lock();
        let Some((_, idle)) = state.oldest(self.keeps_state(), account) else {
            return;
        };
        match idle {
            Idle::Exclusive(at) => {
                let connection = state.idle.remove(at);
                drop(state);
                self.close_connection(connection);
            }
            Idle::Spare(at) => {
                let spare = state.spare.remove(at);
                drop(state);
                self.limits.close(spare.client, Some(spare.slot));
            }
            Idle::Shared(at) => {
                let connection = state.shared.remove(at);
                drop(state);
                self.close_shared(connection);
            }
        }
    }

    async fn start(
        self: &Arc<Self>,
        key: ConnectionKey,
        slot: Slot,
    ) -> Result<Lease, AcquireError> {
        let mut starting = StartGuard {
            pool: self,
            owner: Some(key.owner.clone()),
            slot: &slot,
            is_abandoned: true,
        };
        let connected = self.connector.connect(key.support).await;
        starting.is_abandoned = false;
        let client = connected?;
        starting.owner = None;
        drop(starting);
        self.prewarm(key.support);
        Ok(self.lease(Held::Exclusive(Connection::new(key, client, slot))))
    }

    /// Starts prewarmed connections for callers with this support in the background, up to the configured number.
    pub(crate) fn prewarm(self: &Arc<Self>, support: AskSupport) {
        if self.connector.is_shared() != Some(false) || self.keeps_state() {
            return;
        }
        let mut state = self.state.lock();
        let spare = state.spare.iter().map(|spare| spare.support);
        let all = spare.chain(state.spares_starting.iter().copied());
        let count = all.filter(|it| *it == support).count();
        if state.is_closed || count >= self.spec.prewarm {
            return;
        }
        let Ok(slot) = self.limits.try_acquire(&self.spec, None) else {
            return;
        };
        state.spares_starting.push(support);
        drop(state);
        let pool = self.clone();
        tokio::spawn(async move {
            let started = pool.connector.connect(support).await;
            let mut state = pool.state.lock();
            if let Some(at) = state.spares_starting.iter().position(|it| *it == support) {
                state.spares_starting.swap_remove(at);
            }
            drop(state);
            match started {
                Ok(client) => pool.add_spare(support, client, slot),
                Err(error) => {
                    tracing::debug!(backend = pool.spec.name, %error, "failed to prewarm connection");
                }
            }
        });
    }

    /// Adds a connection that has served no call, for the next caller with this support.
    pub(crate) fn add_spare(&self, support: AskSupport, client: Client, slot: Slot) {
        let mut state = self.state.lock();
        let is_useful = self.connector.is_shared() == Some(false) && !self.keeps_state();
        let is_wanted = is_useful && self.spec.prewarm > 0 && !state.is_closed;
        match is_wanted {
            false => self.limits.close(client, Some(slot)),
            true => state.spare.push(SpareConnection {
                support,
                client,
                started: Instant::now(),
                slot,
            }),
        }
        drop(state);
        self.limits.notify();
    }

    fn release(&self, held: Held, end: LeaseEnd) {
        match held {
            Held::Shared(connection) => self.release_shared(&connection, end),
            Held::Exclusive(mut connection) => {
                connection.calls += 1;
                connection.idle_since = Instant::now();
                let is_finished = end == LeaseEnd::Finished;
                let is_fresh = is_finished && connection.calls < self.spec.calls_per_process;
                let is_reusable =
                    (self.keeps_state() || is_fresh) && !connection.client.has_exited();
                let mut state = self.state.lock();
                state.free(&connection.key.owner);
                match is_reusable && !state.is_closed {
                    true => state.idle.push(connection),
                    false => {
                        drop(state);
                        if !is_finished {
                            connection.slot.add_abandoned();
                        }
                        self.close_connection(connection);
                    }
                }
            }
        }
        self.limits.notify();
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
        expired
            .into_iter()
            .for_each(|connection| self.close_connection(connection));
        self.close_idle_shared(idle);
    }

    fn close_connection(&self, connection: Connection) {
        let Connection { client, slot, .. } = connection;
        self.limits.close(client, Some(slot));
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
        let spare = spare.map(|spare| spare.client);
        let shared = shared.filter_map(shared::into_client);
        idle.chain(spare).chain(shared).collect()
    }
}

impl PoolState {
    fn free(&mut self, owner: &Owner) {
        if let Some(at) = self.busy.iter().position(|busy| busy == owner) {
            self.busy.swap_remove(at);
        }
    }

    /// Removes the free connections whose process has exited.
    fn take_exited(&mut self) -> Vec<Connection> {
        self.spare.retain(|spare| !spare.client.has_exited());
        let has_exited = |idle: &mut Connection| idle.client.has_exited();
        self.idle.extract_if(.., has_exited).collect()
    }

    /// The connection that may be closed first, and since when it is idle.
    fn oldest(&self, keeps_state: bool, account: Option<&Principal>) -> Option<(Instant, Idle)> {
        let may_close =
            |slot: &Slot| !keeps_state && account.is_none_or(|account| slot.is_of(account));
        let idle = self.idle.iter().enumerate();
        let idle = idle
            .filter(|(_, idle)| may_close(&idle.slot))
            .map(|(at, idle)| (idle.idle_since, Idle::Exclusive(at)));
        let spare = self.spare.iter().enumerate().filter(|_| account.is_none());
        let spare = spare.map(|(at, spare)| (spare.started, Idle::Spare(at)));
        let shared = self.shared.iter().enumerate();
        let shared = shared
            .filter(|(_, shared)| shared.slot().is_some_and(may_close))
            .filter_map(|(at, shared)| Some((shared.idle_since()?, Idle::Shared(at))));
        idle.chain(spare)
            .chain(shared)
            .min_by_key(|(since, _)| *since)
    }
}

/// The position of a connection without a call.
enum Idle {
    Exclusive(usize),
    Spare(usize),
    Shared(usize),
}

/// Frees the owner if the connection cannot be started, or if its call is abandoned before.
struct StartGuard<'a> {
    pool: &'a Pool,
    owner: Option<Owner>,
    slot: &'a Slot,
    is_abandoned: bool,
}

impl Drop for StartGuard<'_> {
    fn drop(&mut self) {
        if self.is_abandoned {
            self.slot.add_abandoned();
        }
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
}

impl Lease {
    pub(crate) fn client(&self) -> &Client {
        match &self.held {
            Some(Held::Exclusive(connection)) => &connection.client,
            Some(Held::Shared(connection)) => connection.client(),
            None => unreachable!("only drop takes the connection"),
        }
    }

    /// Ends the lease after a completed call, so that the connection can be used again.
    pub(crate) fn finish(mut self) {
        self.end = LeaseEnd::Finished;
    }

    /// Sets what happens to the connection if the lease is dropped now.
    pub(crate) fn set_end(&mut self, end: LeaseEnd) {
        self.end = end;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.pool.release(held, self.end);
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
