//! The connections to one backend.
//!
//! | connection | used by | because |
//! | --- | --- | --- |
//! | exclusive: a server on pipes or HTTP+SSE | one call at a time | its asks or logs do not name their call |
//! | shared: a server on HTTP, unless `exclusive` is set | all calls of one owner | its messages are in the response of their call |
//!
//! Invariants: a connection never changes its owner; a prewarmed connection has no owner until its first call; a connection
//! whose call was abandoned is closed, unless the backend keeps state for its owner; a connection with state is never closed to make
//! room for another, and its process is never restarted under the same handle.

mod guard;
mod limits;
mod shared;
mod state;

pub(crate) use guard::{CallEnd, ConnectionGuard};
pub(crate) use limits::{ConnectionLimits, ConnectionPermit};

use guard::HeldConnection;
use limits::{ClosedConnections, ConnectionLimit};
use state::{ExclusiveConnection, IdlePosition, PoolState, SpareConnection};

use crate::backend::{BackendStartError, ConnectionPurpose, Connector};
use crate::config::{BackendSpec, Sessions};
use crate::sessions;
use crate::support::AskSupport;
use futures_util::future::join_all;
use parking_lot::Mutex;
use refrain::auth::Principal;
use refrain::client::{ByteBudget, Client};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout_at;

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
    Start(#[from] Arc<BackendStartError>),
    #[error("the session has ended; call {tool} again")]
    SessionEnded { tool: String },
    #[error("the gateway is shutting down")]
    Closed,
}

pub(crate) struct Pool {
    spec: Arc<BackendSpec>,
    limits: Arc<ConnectionLimits>,
    connector: Arc<Connector>,
    state: Mutex<PoolState>,
}

enum Acquisition {
    Acquired(HeldConnection),
    /// Start a connection with this permit.
    Start(ConnectionPermit),
    /// Use the shared connection of the owner.
    Share,
    /// The session of a handle has ended.
    Ended,
}

impl Pool {
    pub(crate) fn new(
        spec: Arc<BackendSpec>,
        limits: Arc<ConnectionLimits>,
        connector: Arc<Connector>,
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
    ) -> Result<ConnectionGuard, AcquireError> {
        match self.retry(account, || self.attempt(&key, account)).await? {
            Acquisition::Acquired(held) => Ok(ConnectionGuard::new(self.clone(), held)),
            Acquisition::Start(permit) => self.start(key, permit).await,
            Acquisition::Share => self.acquire_shared(key, account).await,
            Acquisition::Ended => Err(AcquireError::SessionEnded {
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
        let permit = self.retry(account, || self.acquire_permit(account)).await?;
        self.state.lock().busy.push(owner.clone());
        let connection = self.start(ConnectionKey { owner, support }, permit).await?;
        connection.finish();
        Ok(())
    }

    /// Repeats an attempt whenever a connection becomes free or the account may start one, until the queue time has passed.
    async fn retry<T>(
        &self,
        account: &Principal,
        attempt: impl Fn() -> Option<T>,
    ) -> Result<T, AcquireError> {
        let waited = self.spec.queue_timeout;
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
            let delay = self.limits.start_delay(account);
            let next = delay.map_or(deadline, |delay| deadline.min(now + delay));
            let _ = timeout_at(next, freed).await;
        }
    }

    /// Takes an idle or prewarmed connection, or the right to start one. `None` if the call must wait.
    fn attempt(self: &Arc<Self>, key: &ConnectionKey, account: &Principal) -> Option<Acquisition> {
        if self.connector.is_shared() == Some(true) {
            return Some(Acquisition::Share);
        }
        let exited = self.state.lock().take_exited();
        for (client, permit) in exited {
            // Other processes of its group may still run.
            self.limits.close(client, Some(permit));
        }
        let mut state = self.state.lock();
        let fits = |idle: &ExclusiveConnection| idle.key == *key && idle.permit.assign(account);
        if let Some(index) = state.idle.iter().rposition(fits) {
            let connection = state.idle.remove(index);
            state.busy.push(key.owner.clone());
            return Some(Acquisition::Acquired(HeldConnection::Exclusive(connection)));
        }
        if self.keeps_state() && state.busy.contains(&key.owner) {
            return None;
        }
        if key.owner.handle.is_some() {
            return Some(Acquisition::Ended);
        }
        let spare = state
            .spare
            .iter()
            .position(|spare| spare.support == key.support);
        if let Some(index) = spare
            && state.spare[index].permit.assign(account)
        {
            let SpareConnection { client, permit, .. } = state.spare.remove(index);
            state.busy.push(key.owner.clone());
            drop(state);
            self.prewarm(key.support);
            let connection = ExclusiveConnection::new(key.clone(), client, permit);
            return Some(Acquisition::Acquired(HeldConnection::Exclusive(connection)));
        }
        // Added before the lock is released, so that a concurrent call of the same owner waits.
        state.busy.push(key.owner.clone());
        drop(state);
        let permit = self.acquire_permit(account);
        if permit.is_none() {
            self.state.lock().free(&key.owner);
        }
        permit.map(Acquisition::Start)
    }

    /// Whether the backend keeps state between calls of one owner.
    fn keeps_state(&self) -> bool {
        self.spec.sessions != Sessions::None
    }

    /// A permit for a new connection. If a limit is reached, closes the connections that were idle longest among those that
    /// count for this limit. A caller at its share closes only its own.
    fn acquire_permit(self: &Arc<Self>, account: &Principal) -> Option<ConnectionPermit> {
        loop {
            let reached = match self.limits.try_acquire(&self.spec, Some(account)) {
                Ok(permit) => return Some(permit),
                Err(ConnectionLimit::Closing | ConnectionLimit::Replaced) => return None,
                Err(reached) => reached,
            };
            let pools = self.limits.pools();
            let mut idle = Vec::new();
            for pool in &pools {
                let state = pool.state.lock();
                let evictable = state.evictable(pool.keeps_state(), account);
                idle.extend(evictable.map(|(since, is_own, _)| (since, is_own, pool)));
            }
            let check = |closes_own: bool| {
                let mut closed = ClosedConnections::default();
                for (_, is_own, pool) in &idle {
                    if closes_own || !is_own {
                        closed.add(*is_own, Arc::ptr_eq(pool, self));
                    }
                }
                self.limits.check_without(&self.spec, account, closed)
            };
            // Nothing is closed if the limits do not allow a connection even then.
            check(true).ok()?;
            let (limit, own_only) = match check(false) {
                Ok(()) => (reached, false),
                // The caller is at its share.
                Err(reached) => (reached, true),
            };
            let counted = idle.iter().filter(|(_, is_own, pool)| {
                let is_counted = limit != ConnectionLimit::Backend || Arc::ptr_eq(pool, self);
                is_counted && (*is_own || !own_only)
            });
            let (_, _, pool) = counted.min_by_key(|(since, ..)| *since)?;
            self.limits.add_replaced(account);
            pool.evict(account, own_only);
        }
    }

    /// Closes the connection that was idle longest, of this account or of any account.
    fn evict(&self, account: &Principal, own_only: bool) {
        let mut state = self.state.lock();
        let evictable = state.evictable(self.keeps_state(), account);
        let evictable = evictable.filter(|(_, is_own, _)| *is_own || !own_only);
        let Some((_, _, idle)) = evictable.min_by_key(|(since, ..)| *since) else {
            return;
        };
        match idle {
            IdlePosition::Exclusive(index) => {
                let connection = state.idle.remove(index);
                drop(state);
                self.close_connection(connection);
            }
            IdlePosition::Spare(index) => {
                let spare = state.spare.remove(index);
                drop(state);
                self.limits.close(spare.client, Some(spare.permit));
            }
            IdlePosition::Shared(index) => {
                let connection = state.shared.remove(index);
                drop(state);
                self.close_shared(connection);
            }
        }
    }

    async fn start(
        self: &Arc<Self>,
        key: ConnectionKey,
        permit: ConnectionPermit,
    ) -> Result<ConnectionGuard, AcquireError> {
        let mut starting = StartGuard {
            pool: self,
            owner: Some(key.owner.clone()),
            permit: &permit,
            is_abandoned: true,
        };
        let connected = self
            .connector
            .connect(key.support, ConnectionPurpose::Calls)
            .await;
        starting.is_abandoned = false;
        let client = connected?;
        starting.owner = None;
        drop(starting);
        self.prewarm(key.support);
        Ok(ConnectionGuard::new(
            self.clone(),
            HeldConnection::Exclusive(ExclusiveConnection::new(key, client, permit)),
        ))
    }

    /// Starts prewarmed connections for callers with this support in the background, up to the configured number.
    pub(crate) fn prewarm(self: &Arc<Self>, support: AskSupport) {
        if self.connector.is_shared() != Some(false) || self.keeps_state() {
            return;
        }
        let mut state = self.state.lock();
        let spare = state.spare.iter().map(|spare| spare.support);
        let all = spare.chain(state.spares_starting.iter().copied());
        let count = all.filter(|spare| *spare == support).count();
        if state.is_closed || count >= self.spec.prewarm {
            return;
        }
        let Ok(permit) = self.limits.try_acquire(&self.spec, None) else {
            return;
        };
        state.spares_starting.push(support);
        drop(state);
        let pool = self.clone();
        tokio::spawn(async move {
            let started = pool
                .connector
                .connect(support, ConnectionPurpose::Calls)
                .await;
            let mut state = pool.state.lock();
            let mut starting = state.spares_starting.iter();
            if let Some(index) = starting.position(|spare| *spare == support) {
                state.spares_starting.swap_remove(index);
            }
            drop(state);
            match started {
                Ok(client) => pool.add_spare(support, client, permit),
                Err(error) => {
                    tracing::debug!(backend = pool.spec.name, %error, "failed to prewarm connection");
                }
            }
        });
    }

    /// Adds a connection that has served no call, for the next caller with this support.
    pub(crate) fn add_spare(&self, support: AskSupport, client: Client, permit: ConnectionPermit) {
        let mut state = self.state.lock();
        let is_useful = self.connector.is_shared() == Some(false) && !self.keeps_state();
        let is_wanted = is_useful && self.spec.prewarm > 0 && !state.is_closed;
        match is_wanted {
            false => self.limits.close(client, Some(permit)),
            true => state.spare.push(SpareConnection {
                support,
                client,
                started: Instant::now(),
                permit,
            }),
        }
        drop(state);
        self.limits.notify();
    }

    fn release(&self, held: HeldConnection, end: CallEnd) {
        match held {
            HeldConnection::Shared(connection) => self.release_shared(&connection, end),
            HeldConnection::Exclusive(mut connection) => {
                connection.calls += 1;
                connection.idle_since = Instant::now();
                let is_finished = end == CallEnd::Finished;
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
                            connection.permit.add_replaced();
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
        let idle = self.spec.idle_timeout;
        let mut state = self.state.lock();
        let expired: Vec<ExclusiveConnection> = state
            .idle
            .extract_if(.., |connection| connection.idle_since.elapsed() >= idle)
            .collect();
        drop(state);
        expired
            .into_iter()
            .for_each(|connection| self.close_connection(connection));
        self.close_idle_shared(idle);
    }

    fn close_connection(&self, connection: ExclusiveConnection) {
        let ExclusiveConnection { client, permit, .. } = connection;
        self.limits.close(client, Some(permit));
    }

    /// Closes all idle connections, and waits until they are closed. Connections in use are closed when their calls end.
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

/// Frees the owner if the connection cannot be started, or if the call is abandoned before it is started.
struct StartGuard<'a> {
    pool: &'a Pool,
    owner: Option<Owner>,
    permit: &'a ConnectionPermit,
    is_abandoned: bool,
}

impl Drop for StartGuard<'_> {
    fn drop(&mut self) {
        if self.is_abandoned {
            self.permit.add_replaced();
        }
        if let Some(owner) = &self.owner {
            self.pool.state.lock().free(owner);
            self.pool.limits.notify();
        }
    }
}
