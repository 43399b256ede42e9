//! Limits of connections: of all backends, of one backend, of one caller.

use super::Pool;
use crate::config::{BackendSpec, GatewayTable};
use crate::metrics::GatewayMetrics;
use parking_lot::Mutex;
use refrain::auth::Principal;
use refrain::client::{ByteBudget, Client};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Connections that one caller may have replaced at once, and per second, without waiting for its next new one. A connection
/// is replaced after an abandoned call, and if an idle one is closed for a new one. Starting a process costs much more time
/// than a call.
const REPLACED: f64 = 16.0;
const REPLACED_PER_SECOND: f64 = 1.0;

/// Bytes of responses from HTTP backends that are not complete: of all calls, and of the calls of one caller.
const RESPONSE_BYTES: usize = 512 << 20;
const RESPONSE_BYTES_EACH: usize = 128 << 20;

/// Counts the connections of all backends.
pub(crate) struct ConnectionLimits {
    max_all: usize,
    max_each: usize,
    counts: Mutex<ConnectionCounts>,
    pools: Mutex<Vec<Weak<Pool>>>,
    /// The memory of responses from HTTP backends: of all calls, and of the calls of each account.
    responses: ByteBudget,
    responses_each: Mutex<HashMap<Principal, ByteBudget>>,
    /// Notified when a connection becomes free or ends.
    freed: Notify,
    metrics: Arc<GatewayMetrics>,
}

#[derive(Default)]
struct ConnectionCounts {
    total: usize,
    /// Connections that no longer have a permit, but whose process may still run.
    closing: usize,
    backends: HashMap<String, BackendCounts>,
    /// By account: see [`Principal::account`].
    callers: HashMap<Principal, usize>,
    /// Replaced connections by account.
    replaced: HashMap<Principal, ReplacedConnections>,
}

/// The connections of one backend.
#[derive(Default)]
struct BackendCounts {
    total: usize,
    /// By account.
    callers: HashMap<Principal, usize>,
}

/// A count that decreases with time.
struct ReplacedConnections {
    count: f64,
    updated: Instant,
}

impl ReplacedConnections {
    fn current(&self) -> f64 {
        let decay = self.updated.elapsed().as_secs_f64() * REPLACED_PER_SECOND;
        (self.count - decay).max(0.0)
    }

    /// How long the caller must wait for a new connection, if too many were replaced.
    fn delay(&self) -> Option<Duration> {
        let excess = self.current() - REPLACED;
        // At the limit, the excess is zero and the caller must still wait.
        let delay =
            || Duration::from_secs_f64(excess / REPLACED_PER_SECOND) + Duration::from_millis(1);
        (excess >= 0.0).then(delay)
    }
}

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionLimit {
    Total,
    Backend,
    Caller,
    /// Too many connections of the caller were replaced.
    Replaced,
    /// Too many processes have not exited yet.
    Closing,
}

/// Numbers of connections that a check leaves out, because they would be closed.
#[derive(Clone, Copy, Default)]
pub(super) struct ClosedConnections {
    total: usize,
    of_backend: usize,
    /// Of the account.
    own: usize,
    own_of_backend: usize,
}

impl ClosedConnections {
    /// Adds a connection of the account or of another, to the backend or to another.
    pub(super) fn add(&mut self, is_own: bool, is_of_backend: bool) {
        self.total += 1;
        self.of_backend += usize::from(is_of_backend);
        self.own += usize::from(is_own);
        self.own_of_backend += usize::from(is_own && is_of_backend);
    }
}

/// The right to have one connection.
pub(crate) struct ConnectionPermit {
    limits: Arc<ConnectionLimits>,
    backend: String,
    /// The number of connections that the backend may have.
    backend_limit: usize,
    /// The account that it counts for. `None` for a connection without an owner.
    account: Mutex<Option<Principal>>,
}

impl ConnectionLimits {
    pub(crate) fn new(table: &GatewayTable, metrics: Arc<GatewayMetrics>) -> Arc<Self> {
        Arc::new(Self {
            max_all: table.connections,
            max_each: table.connections_each,
            counts: Mutex::default(),
            pools: Mutex::default(),
            responses: ByteBudget::new(RESPONSE_BYTES),
            responses_each: Mutex::default(),
            freed: Notify::new(),
            metrics,
        })
    }

    pub(super) fn add(&self, pool: &Arc<Pool>) {
        self.pools.lock().push(Arc::downgrade(pool));
    }

    pub(super) fn pools(&self) -> Vec<Arc<Pool>> {
        self.pools.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// The budget for responses to calls of this account.
    pub(crate) fn response_budget(&self, account: Principal) -> ByteBudget {
        let mut budgets = self.responses_each.lock();
        if let Some(budget) = budgets.get(&account) {
            return budget.clone();
        }
        budgets.retain(|_, budget| !budget.is_unused());
        let budget = self.responses.part(RESPONSE_BYTES_EACH);
        budgets.insert(account, budget.clone());
        budget
    }

    /// How long this account must wait for a new connection after too many were replaced.
    pub(super) fn start_delay(&self, account: &Principal) -> Option<Duration> {
        self.counts.lock().start_delay(account)
    }

    /// Counts a connection that is replaced for this account.
    pub(super) fn add_replaced(&self, account: &Principal) {
        let mut counts = self.counts.lock();
        let replaced = &mut counts.replaced;
        replaced.retain(|_, replaced| replaced.current() > 0.0);
        let previous = replaced.get(account);
        let count = 1.0 + previous.map_or(0.0, ReplacedConnections::current);
        let updated = Instant::now();
        replaced.insert(account.clone(), ReplacedConnections { count, updated });
    }

    /// Whether a caller with `own` of the used connections may have another one. It must leave as many connections to others
    /// as it has, unless its limit is the total.
    fn has_share(&self, own: usize, used: usize, limit: usize) -> bool {
        let own = if self.max_each < self.max_all { own } else { 0 };
        own < limit.saturating_sub(used)
    }

    pub(crate) fn freed(&self) -> Notified<'_> {
        self.freed.notified()
    }

    pub(super) fn notify(&self) {
        self.freed.notify_waiters();
    }

    /// Closes a connection in the background, and frees its permit at once.
    pub(crate) fn close(self: &Arc<Self>, client: Client, permit: Option<ConnectionPermit>) {
        drop(permit);
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        self.counts.lock().closing += 1;
        let limits = self.clone();
        runtime.spawn(async move {
            client.close().await;
            limits.counts.lock().closing -= 1;
            limits.notify();
        });
    }

    /// Waits until all closing connections are closed.
    pub(crate) async fn closed(&self) {
        loop {
            let mut freed = pin!(self.freed());
            freed.as_mut().enable();
            if self.counts.lock().closing == 0 {
                return;
            }
            freed.await;
        }
    }

    /// Checks whether an account may have another connection after these are closed.
    pub(super) fn check_without(
        &self,
        backend: &BackendSpec,
        account: &Principal,
        closed: ClosedConnections,
    ) -> Result<(), ConnectionLimit> {
        let counts = self.counts.lock();
        let backend = (&*backend.name, backend.connections);
        self.check(&counts, backend, Some(account), closed)
    }

    /// Checks whether an account may have another connection to a backend with this limit, without the `closed` ones.
    fn check(
        &self,
        counts: &ConnectionCounts,
        (backend, limit): (&str, usize),
        account: Option<&Principal>,
        closed: ClosedConnections,
    ) -> Result<(), ConnectionLimit> {
        let own = count_of(&counts.callers, account).saturating_sub(closed.own);
        if account.is_some() && own >= self.max_each {
            return Err(ConnectionLimit::Caller);
        }
        let delay = account.and_then(|account| counts.start_delay(account));
        if delay.is_some() {
            return Err(ConnectionLimit::Replaced);
        }
        let used = counts.backends.get(backend);
        let (used, own_used) = used.map_or((0, 0), |used| {
            (used.total, count_of(&used.callers, account))
        });
        let used = used.saturating_sub(closed.of_backend);
        if !self.has_share(own_used.saturating_sub(closed.own_of_backend), used, limit) {
            return Err(ConnectionLimit::Backend);
        }
        let total = counts.total.saturating_sub(closed.total);
        match self.has_share(own, total, self.max_all) {
            true => Ok(()),
            false => Err(ConnectionLimit::Total),
        }
    }

    pub(crate) fn try_acquire(
        self: &Arc<Self>,
        backend: &BackendSpec,
        account: Option<&Principal>,
    ) -> Result<ConnectionPermit, ConnectionLimit> {
        let mut counts = self.counts.lock();
        if counts.closing >= self.max_all {
            return Err(ConnectionLimit::Closing);
        }
        let limit = (&*backend.name, backend.connections);
        self.check(&counts, limit, account, ClosedConnections::default())?;
        counts.total += 1;
        let of_backend = counts.backends.entry(backend.name.clone()).or_default();
        of_backend.total += 1;
        self.metrics
            .set_connections(&backend.name, of_backend.total);
        counts.add(&backend.name, account);
        Ok(ConnectionPermit {
            limits: self.clone(),
            backend: backend.name.clone(),
            backend_limit: backend.connections,
            account: Mutex::new(account.cloned()),
        })
    }
}

/// The number of connections of an account; 0 for a connection without an owner.
fn count_of(callers: &HashMap<Principal, usize>, account: Option<&Principal>) -> usize {
    let count = account.and_then(|account| callers.get(account));
    count.copied().unwrap_or(0)
}

impl ConnectionCounts {
    fn add(&mut self, backend: &str, account: Option<&Principal>) {
        let Some(account) = account else { return };
        *self.callers.entry(account.clone()).or_default() += 1;
        if let Some(counts) = self.backends.get_mut(backend) {
            *counts.callers.entry(account.clone()).or_default() += 1;
        }
    }

    fn remove(&mut self, backend: &str, account: Option<&Principal>) {
        let Some(account) = account else { return };
        decrement(&mut self.callers, account);
        if let Some(counts) = self.backends.get_mut(backend) {
            decrement(&mut counts.callers, account);
        }
    }

    fn start_delay(&self, account: &Principal) -> Option<Duration> {
        self.replaced.get(account)?.delay()
    }
}

impl ConnectionPermit {
    /// Counts this connection as replaced, because its call was abandoned.
    pub(super) fn add_replaced(&self) {
        let account = self.account.lock().clone();
        account.inspect(|account| self.limits.add_replaced(account));
    }

    /// Counts the connection for this account from now on. Returns `false` if the account is at a limit.
    pub(super) fn assign(&self, account: &Principal) -> bool {
        let mut counts = self.limits.counts.lock();
        let mut current = self.account.lock();
        if current.as_ref() == Some(account) {
            return true;
        }
        let backend = (&*self.backend, self.backend_limit);
        // The connection exists, and only changes its account.
        let mut closed = ClosedConnections::default();
        closed.add(false, true);
        let checked = self.limits.check(&counts, backend, Some(account), closed);
        if checked.is_err() {
            return false;
        }
        counts.add(&self.backend, Some(account));
        let previous = current.replace(account.clone());
        counts.remove(&self.backend, previous.as_ref());
        true
    }

    pub(super) fn is_of(&self, account: &Principal) -> bool {
        self.account.lock().as_ref() == Some(account)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = self.limits.counts.lock();
        counts.total -= 1;
        counts.remove(&self.backend, self.account.get_mut().as_ref());
        if let Some(of_backend) = counts.backends.get_mut(&self.backend) {
            of_backend.total -= 1;
            self.limits
                .metrics
                .set_connections(&self.backend, of_backend.total);
        }
        drop(counts);
        self.limits.notify();
    }
}

fn decrement(counts: &mut HashMap<Principal, usize>, account: &Principal) {
    if let Some(count) = counts.get_mut(account) {
        *count -= 1;
        if *count == 0 {
            counts.remove(account);
        }
    }
}
