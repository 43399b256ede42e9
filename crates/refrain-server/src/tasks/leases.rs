//! The leases of an instance, one for each task that it runs.

use crate::timer::within;
use parking_lot::Mutex;
use refrain_core::Principal;
use refrain_store::{Lease, TaskId};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Notify;

/// Sleeps that end later are found by polling the store.
const WAKEUP_HORIZON: Duration = Duration::from_secs(60);
/// Further wake-ups are found by polling the store.
const MAX_WAKEUPS: usize = 10_000;

pub(crate) struct Leases {
    /// The name of this instance in the store.
    pub(crate) worker: String,
    /// Maximum number of tasks.
    limit: usize,
    running: Mutex<Running>,
    /// Whether a runtime task renews the leases.
    pub(super) is_renewing: AtomicBool,
    /// Notified when capacity may be freed, a wake-up is added or the last task ends.
    pub(super) changed: Notify,
    /// When sleeping tasks that left memory must run again, the soonest first.
    wakeups: Mutex<BinaryHeap<Reverse<Instant>>>,
    /// Whether a worker of this instance claims due tasks.
    pub(super) is_claiming: AtomicBool,
}

#[derive(Default)]
struct Running {
    leases: HashMap<TaskId, Arc<HeldLease>>,
    /// The number of leases of each account's tasks.
    accounts: HashMap<Principal, usize>,
}

/// What this instance can claim.
pub(super) struct Capacity {
    /// The maximum number of tasks, for any distribution over their accounts.
    pub(super) most: usize,
    /// The accounts without capacity.
    pub(super) except: Vec<Principal>,
}

#[derive(Debug)]
pub(crate) struct HeldLease {
    pub(crate) lease: Lease,
    account: Principal,
    is_lost: AtomicBool,
    hand_on_requested: AtomicBool,
    revision: AtomicU64,
    check_requested: AtomicBool,
    /// When the lease expires, by two clocks: one stops while the machine sleeps, the other can be set.
    expires: Mutex<(Instant, SystemTime)>,
    changed: Notify,
}

impl Leases {
    pub(crate) fn new(random: [u8; 4], limit: usize) -> Self {
        let random = u32::from_be_bytes(random);
        Self {
            worker: format!("{}-{random:08x}", std::process::id()),
            limit,
            running: Mutex::default(),
            is_renewing: AtomicBool::new(false),
            changed: Notify::new(),
            wakeups: Mutex::default(),
            is_claiming: AtomicBool::new(false),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.running.lock().leases.len()
    }

    pub(super) fn hold(
        &self,
        (lease, account): (Lease, &Principal),
        revision: u64,
        requested_at: Instant,
        time: Duration,
    ) -> Arc<HeldLease> {
        let held = Arc::new(HeldLease {
            is_lost: AtomicBool::new(false),
            hand_on_requested: AtomicBool::new(false),
            revision: AtomicU64::new(revision),
            check_requested: AtomicBool::new(false),
            expires: Mutex::new((requested_at + time, wall_clock_at(requested_at) + time)),
            changed: Notify::new(),
            lease,
            account: account.clone(),
        });
        let mut running = self.running.lock();
        let task = held.lease.task.clone();
        let before = running.leases.insert(task, held.clone());
        if before.is_none() {
            *running.accounts.entry(account.clone()).or_default() += 1;
        }
        held
    }

    pub(super) fn release(&self, held: &Arc<HeldLease>) {
        let mut running = self.running.lock();
        let free = running.free(self.limit);
        let limited = running.accounts.values().any(|count| *count >= free);
        // This instance may already hold a new lease of the same task.
        let current = running.leases.get(&held.lease.task);
        if current.is_some_and(|current| Arc::ptr_eq(current, held)) {
            running.remove(held);
        }
        let empty = running.leases.is_empty();
        drop(running);
        if limited || empty {
            self.changed.notify_one();
        }
    }

    /// Adds the wake-up of a task that left memory.
    pub(super) fn add_wakeup(&self, wait: Option<Duration>) {
        static WARNED: Once = Once::new();
        if !self.is_claiming.load(Ordering::Acquire) {
            WARNED.call_once(|| {
                tracing::warn!("task stored, but this process runs no worker: call Server::work");
            });
        }
        let Some(wait) = wait.filter(|wait| *wait < WAKEUP_HORIZON) else {
            return;
        };
        let mut wakeups = self.wakeups.lock();
        if wakeups.len() < MAX_WAKEUPS {
            wakeups.push(Reverse(Instant::now() + wait));
            self.changed.notify_one();
        }
    }

    pub(super) fn until_wakeup(&self) -> Option<Duration> {
        let now = Instant::now();
        let mut wakeups = self.wakeups.lock();
        while wakeups.peek().is_some_and(|Reverse(at)| *at <= now) {
            wakeups.pop();
        }
        wakeups.peek().map(|Reverse(at)| *at - now)
    }

    pub(super) async fn wait_until_empty(&self) {
        while self.len() > 0 {
            // The notification may come before the wait starts, so the wait is short.
            within(Duration::from_millis(50), self.changed.notified()).await;
        }
    }

    /// Whether this instance can run another task of the account. An account has fewer tasks than there are free places: one
    /// gets half of the places, two get a third each. So there is a place for every further account.
    pub(super) fn has_capacity(&self, account: &Principal) -> bool {
        let running = self.running.lock();
        let count = running.accounts.get(account).copied().unwrap_or(0);
        count < running.free(self.limit)
    }

    pub(super) fn capacity(&self) -> Capacity {
        let running = self.running.lock();
        let free = running.free(self.limit);
        let (mut except, mut largest) = (Vec::new(), 0);
        for (account, count) in &running.accounts {
            if *count < free {
                largest = largest.max(*count);
            } else {
                except.push(account.clone());
            }
        }
        // If the tasks all belong to the account with the most, the last one still needs more free places than that.
        let most = (free + 1 - largest.min(free)) / 2;
        Capacity { most, except }
    }

    pub(super) fn all(&self) -> Vec<Arc<HeldLease>> {
        self.running.lock().leases.values().cloned().collect()
    }

    pub(super) fn get(&self, task: &TaskId) -> Option<Arc<HeldLease>> {
        self.running.lock().leases.get(task).cloned()
    }
}

impl Running {
    fn free(&self, limit: usize) -> usize {
        limit.saturating_sub(self.leases.len())
    }

    fn remove(&mut self, held: &HeldLease) {
        self.leases.remove(&held.lease.task);
        if let Some(count) = self.accounts.get_mut(&held.account) {
            *count -= 1;
            if *count == 0 {
                self.accounts.remove(&held.account);
            }
        }
    }
}

impl HeldLease {
    pub(super) fn renewed(&self, requested_at: Instant, time: Duration) {
        *self.expires.lock() = (requested_at + time, wall_clock_at(requested_at) + time);
    }

    /// Whether the lease is certainly held.
    pub(super) fn is_certain(&self) -> bool {
        let (monotonic, wall_clock) = *self.expires.lock();
        Instant::now() < monotonic && SystemTime::now() < wall_clock
    }

    pub(super) fn lose(&self) {
        self.is_lost.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Makes the driver hand the task on immediately.
    pub(super) fn request_hand_on(&self) {
        self.hand_on_requested.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    pub(super) fn must_hand_on(&self) -> bool {
        self.hand_on_requested.load(Ordering::Acquire)
    }

    /// Makes the driver check the task if another instance wrote this revision.
    pub(super) fn observe_revision(&self, revision: u64) {
        if revision > self.revision.load(Ordering::Acquire) {
            self.request_check();
        }
    }

    /// Makes the driver check for answers.
    pub(super) fn request_check(&self) {
        self.check_requested.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    pub(super) fn take_check_request(&self) -> bool {
        self.check_requested.swap(false, Ordering::AcqRel)
    }

    pub(super) fn committed(&self, revision: u64) {
        self.revision.fetch_max(revision, Ordering::AcqRel);
    }

    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// The wall-clock time at a monotonic instant.
fn wall_clock_at(at: Instant) -> SystemTime {
    let now = SystemTime::now();
    now.checked_sub(at.elapsed()).unwrap_or(now)
}
