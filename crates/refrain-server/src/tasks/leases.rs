//! The leases of an instance, one for each task that it runs, and the slots that limit the number of tasks.

use crate::limits::quarter;
use crate::timer::within;
use parking_lot::Mutex;
use refrain_core::Principal;
use refrain_store::{Lease, TaskId, is_anonymous_account};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Notify;

/// Only sleeps that end within this time have a wake-up. Polling the store finds the others.
const WAKEUP_HORIZON: Duration = Duration::from_secs(60);
/// Maximum number of wake-ups. Polling the store finds further sleeping tasks.
const MAX_WAKEUPS: usize = 10_000;

/// The leases and slots of an instance.
pub(crate) struct Leases {
    /// The name of this instance in the store.
    pub(crate) worker: String,
    /// Maximum number of tasks.
    limit: usize,
    /// Slots that tasks of anonymous callers cannot use.
    reserved_for_principals: usize,
    held: Mutex<HashMap<TaskId, Arc<HeldLease>>>,
    slots: Mutex<Slots>,
    /// Whether a Tokio task renews the leases.
    pub(super) is_renewing: AtomicBool,
    /// Notified when capacity may be freed, a wake-up is added or the last task ends.
    pub(super) changed: Notify,
    /// When sleeping tasks that left memory must run again, the soonest first.
    wakeups: Mutex<BinaryHeap<Reverse<Instant>>>,
    /// Whether a worker of this instance claims due tasks.
    pub(super) is_claiming: AtomicBool,
}

/// The slots in use.
#[derive(Default)]
struct Slots {
    used: usize,
    /// The used slots of each account.
    accounts: HashMap<Principal, usize>,
    /// Slots for the tasks of a claim whose accounts are not yet known.
    claiming: usize,
}

/// A slot for one task of the account. A new task takes it before it is created, a claimed task after the claim
/// ([`ClaimedSlots`] reserves it). It is returned when the task leaves memory, and while a live task waits.
pub(crate) struct TaskSlot {
    leases: Arc<Leases>,
    account: Principal,
    is_returned: bool,
}

/// Slots that are reserved for a claim, until its tasks have taken theirs.
pub(super) struct ClaimedSlots {
    leases: Arc<Leases>,
    pub(super) capacity: Capacity,
}

/// The capacity of this instance for claims.
pub(super) struct Capacity {
    /// The maximum number of tasks to claim, even if all of them belong to one account.
    pub(super) most: usize,
    /// The accounts without capacity.
    pub(super) except: Vec<Principal>,
    /// Whether there is capacity for anonymous callers.
    pub(super) anonymous: bool,
}

/// A lease of this instance, and requests to the driver of its task.
#[derive(Debug)]
pub(crate) struct HeldLease {
    pub(crate) lease: Lease,
    is_lost: AtomicBool,
    hand_on_requested: AtomicBool,
    revision: AtomicU64,
    check_requested: AtomicBool,
    /// When the lease expires, by two clocks: the first one stops while the machine sleeps, the second one can be set.
    expires: Mutex<(Instant, SystemTime)>,
    changed: Notify,
}

impl Leases {
    /// With an authenticator, a quarter of the slots is reserved for tasks of authenticated callers.
    pub(crate) fn new(random: [u8; 4], limit: usize, has_authenticator: bool) -> Self {
        let random = u32::from_be_bytes(random);
        Self {
            worker: format!("{}-{random:08x}", std::process::id()),
            limit,
            reserved_for_principals: if has_authenticator { quarter(limit) } else { 0 },
            held: Mutex::default(),
            slots: Mutex::default(),
            is_renewing: AtomicBool::new(false),
            changed: Notify::new(),
            wakeups: Mutex::default(),
            is_claiming: AtomicBool::new(false),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.held.lock().len()
    }

    pub(super) fn hold(
        &self,
        lease: Lease,
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
        });
        let task = held.lease.task.clone();
        self.held.lock().insert(task, held.clone());
        held
    }

    pub(super) fn release(&self, held: &Arc<HeldLease>) {
        let mut leases = self.held.lock();
        // This instance may already hold a new lease of the same task.
        let current = leases.get(&held.lease.task);
        if current.is_some_and(|current| Arc::ptr_eq(current, held)) {
            leases.remove(&held.lease.task);
        }
        let is_empty = leases.is_empty();
        drop(leases);
        if is_empty {
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

    pub(super) fn time_until_wakeup(&self) -> Option<Duration> {
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

    fn free_slots(&self, slots: &Slots, is_anonymous: bool) -> FreeSlots {
        let reserved = match is_anonymous {
            true => self.reserved_for_principals,
            false => 0,
        };
        let used = slots.used + slots.claiming;
        FreeSlots {
            count: self.limit.saturating_sub(used + reserved),
            left_to_new: quarter(self.limit - reserved),
        }
    }

    /// Takes a slot for another task of the account, which must have fewer running tasks than slots are free. So one account
    /// gets half of the slots, and two get a third each. The last quarter is for accounts without a running task.
    pub(super) fn try_slot(self: &Arc<Self>, account: &Principal) -> Option<TaskSlot> {
        let mut slots = self.slots.lock();
        let count = slots.accounts.get(account).copied().unwrap_or(0);
        let free = self.free_slots(&slots, is_anonymous_account(account));
        // All tasks of a pending claim may belong to this account.
        let free_for_account = free.count.saturating_sub(slots.claiming);
        if count >= free_for_account || !free.has_slot_for(count) {
            return None;
        }
        slots.add(account);
        drop(slots);
        Some(self.slot_of(account))
    }

    /// Takes the slot of a claimed task. `claim_slots` has already checked the limit.
    pub(super) fn take_slot(self: &Arc<Self>, account: &Principal) -> TaskSlot {
        self.slots.lock().add(account);
        self.slot_of(account)
    }

    fn slot_of(self: &Arc<Self>, account: &Principal) -> TaskSlot {
        TaskSlot {
            leases: self.clone(),
            account: account.clone(),
            is_returned: false,
        }
    }

    /// Reserves slots for a claim of at most this many tasks. `None` if no slot is free.
    pub(super) fn claim_slots(self: &Arc<Self>, most: usize) -> Option<ClaimedSlots> {
        let mut slots = self.slots.lock();
        let mut capacity = self.capacity_of(&slots);
        capacity.most = capacity.most.min(most);
        if capacity.most == 0 {
            return None;
        }
        slots.claiming += capacity.most;
        drop(slots);
        Some(ClaimedSlots {
            leases: self.clone(),
            capacity,
        })
    }

    pub(super) fn capacity(&self) -> Capacity {
        self.capacity_of(&self.slots.lock())
    }

    fn capacity_of(&self, slots: &Slots) -> Capacity {
        let free = [false, true].map(|is_anonymous| self.free_slots(slots, is_anonymous));
        let (mut except, mut largest) = (Vec::new(), [0; 2]);
        for (account, count) in &slots.accounts {
            let kind = usize::from(is_anonymous_account(account));
            if free[kind].has_slot_for(*count) {
                largest[kind] = largest[kind].max(*count);
            } else {
                except.push(account.clone());
            }
        }
        let anonymous = free[1].count > 0;
        let mut most = free[0].max_claim(largest[0]);
        if anonymous {
            most = most.min(free[1].max_claim(largest[1]));
        }
        Capacity {
            most,
            except,
            anonymous,
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<HeldLease>> {
        self.held.lock().values().cloned().collect()
    }

    pub(super) fn get(&self, task: &TaskId) -> Option<Arc<HeldLease>> {
        self.held.lock().get(task).cloned()
    }
}

/// The free slots for anonymous or for authenticated accounts.
#[derive(Clone, Copy)]
struct FreeSlots {
    count: usize,
    /// The number of slots that accounts with running tasks leave to accounts without any.
    left_to_new: usize,
}

impl FreeSlots {
    /// Whether an account with this many running tasks may run another one.
    fn has_slot_for(self, running: usize) -> bool {
        running < self.count && (running == 0 || self.count > self.left_to_new)
    }

    /// The maximum number of tasks to claim at once. All of them may belong to the account with
    /// the most running tasks, whose number is `largest`. That account must then still have a slot
    /// for the last of them.
    fn max_claim(self, largest: usize) -> usize {
        let available = self.count.saturating_sub(self.left_to_new).max(1);
        ((self.count + 1 - largest) / 2).min(available)
    }
}

impl Slots {
    fn add(&mut self, account: &Principal) {
        self.used += 1;
        *self.accounts.entry(account.clone()).or_default() += 1;
    }

    fn remove(&mut self, account: &Principal) {
        self.used -= 1;
        if let Some(count) = self.accounts.get_mut(account) {
            *count -= 1;
            if *count == 0 {
                self.accounts.remove(account);
            }
        }
    }
}

impl TaskSlot {
    /// Takes a returned slot again, above the limit if necessary: the handler is in memory and cannot wait.
    pub(super) fn take_again(&mut self) {
        if std::mem::take(&mut self.is_returned) {
            self.leases.slots.lock().add(&self.account);
        }
    }

    /// Returns the slot, unless it already is.
    pub(super) fn give_back(&mut self) {
        if std::mem::replace(&mut self.is_returned, true) {
            return;
        }
        let mut slots = self.leases.slots.lock();
        let before = self.leases.capacity_of(&slots);
        slots.remove(&self.account);
        drop(slots);
        if before.most == 0 || !before.except.is_empty() || !before.anonymous {
            self.leases.changed.notify_one();
        }
    }
}

impl Drop for TaskSlot {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Drop for ClaimedSlots {
    fn drop(&mut self) {
        self.leases.slots.lock().claiming -= self.capacity.most;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all slots that the account may have.
    fn take_all(leases: &Arc<Leases>, account: &Principal) -> Vec<TaskSlot> {
        std::iter::from_fn(|| leases.try_slot(account)).collect()
    }

    #[test]
    fn tasks_of_a_claim_count_before_their_accounts_are_known() {
        let leases = Arc::new(Leases::new([0; 4], 64, false));
        let [alice, bob] = ["alice", "bob"].map(Principal::new);
        let claim = leases.claim_slots(16).expect("free slots");
        let created = take_all(&leases, &alice);
        let claimed: Vec<_> = (0..16).map(|_| leases.take_slot(&alice)).collect();
        drop(claim);
        // Half of the slots, as without a claim.
        assert_eq!(created.len() + claimed.len(), 32);
        assert!(leases.try_slot(&alice).is_none());
        assert!(leases.try_slot(&bob).is_some());
        drop((created, claimed));
        assert_eq!(take_all(&leases, &alice).len(), 32);
    }
}
