//! The leases that an instance holds, one for each task that it runs.

use parking_lot::Mutex;
use refrain_store::{Lease, TaskId};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Notify;

/// Wake-ups within this time are remembered, up to this number; others are found by polling the store.
const SOON: Duration = Duration::from_secs(60);
const WAKES: usize = 10_000;

pub(crate) struct Leases {
    /// The name of this instance in the store.
    pub(crate) worker: String,
    most: usize,
    running: Mutex<HashMap<TaskId, Arc<HeldLease>>>,
    /// Is there a tokio task that renews the leases?
    pub(super) kept: AtomicBool,
    /// Notified when another task fits in or a sooner wake-up is added, and when the last task ends.
    pub(super) room: Notify,
    /// Wake-ups of tasks that left memory here, the soonest first.
    wakes: Mutex<BinaryHeap<Reverse<Instant>>>,
    /// Does this instance claim due tasks?
    pub(super) claims: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct HeldLease {
    pub(crate) lease: Lease,
    lost: AtomicBool,
    dropped: AtomicBool,
    revision: AtomicU64,
    news: AtomicBool,
    /// When the lease expires, by two clocks: one stands still while the machine sleeps, the other may be set.
    until: Mutex<(Instant, SystemTime)>,
    changed: Notify,
}

impl Leases {
    /// For at most `most` tasks.
    pub(crate) fn new(random: [u8; 4], most: usize) -> Self {
        let random = u32::from_be_bytes(random);
        Self {
            worker: format!("{}-{random:08x}", std::process::id()),
            most,
            running: Mutex::default(),
            kept: AtomicBool::new(false),
            room: Notify::new(),
            wakes: Mutex::default(),
            claims: AtomicBool::new(false),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.running.lock().len()
    }

    /// Adds a lease that was requested at `asked`.
    pub(super) fn hold(
        &self,
        lease: Lease,
        revision: u64,
        asked: Instant,
        time: Duration,
    ) -> Arc<HeldLease> {
        let hold = Arc::new(HeldLease {
            lost: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
            revision: AtomicU64::new(revision),
            news: AtomicBool::new(false),
            until: Mutex::new((asked + time, wall(asked) + time)),
            changed: Notify::new(),
            lease,
        });
        let mut running = self.running.lock();
        running.insert(hold.lease.task.clone(), hold.clone());
        hold
    }

    pub(super) fn release(&self, hold: &Arc<HeldLease>) {
        let mut running = self.running.lock();
        let full = running.len() >= self.most;
        // This instance may have claimed the same task again.
        let held = running.get(&hold.lease.task);
        if held.is_some_and(|held| Arc::ptr_eq(held, hold)) {
            running.remove(&hold.lease.task);
        }
        let empty = running.is_empty();
        drop(running);
        if full || empty {
            self.room.notify_one();
        }
    }

    /// Remembers the wake-up of a task that left memory.
    pub(super) fn set_down(&self, wake: Option<Duration>) {
        static WARNED: Once = Once::new();
        if !self.claims.load(Ordering::Acquire) {
            WARNED.call_once(|| {
                tracing::warn!("a task waits in the store, and nobody here takes tasks up again: call Server::work(..)");
            });
        }
        // Others are found by polling.
        let Some(wake) = wake.filter(|wake| *wake < SOON) else {
            return;
        };
        let mut wakes = self.wakes.lock();
        if wakes.len() < WAKES {
            wakes.push(Reverse(Instant::now() + wake));
            self.room.notify_one();
        }
    }

    /// The time until the first wake-up.
    pub(super) fn until_wake(&self) -> Option<Duration> {
        let now = Instant::now();
        let mut wakes = self.wakes.lock();
        while wakes.peek().is_some_and(|Reverse(at)| *at <= now) {
            wakes.pop();
        }
        wakes.peek().map(|Reverse(at)| *at - now)
    }

    /// Waits until no task runs here.
    pub(super) async fn empty(&self) {
        while self.len() > 0 {
            let room = self.room.notified();
            // A notification may have come before this waits.
            let _ = tokio::time::timeout(Duration::from_millis(50), room).await;
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.len() < self.most
    }

    pub(super) fn all(&self) -> Vec<Arc<HeldLease>> {
        self.running.lock().values().cloned().collect()
    }

    pub(super) fn get(&self, task: &TaskId) -> Option<Arc<HeldLease>> {
        self.running.lock().get(task).cloned()
    }
}

impl HeldLease {
    pub(super) fn extended(&self, asked: Instant, time: Duration) {
        *self.until.lock() = (asked + time, wall(asked) + time);
    }

    /// Is the lease certainly held now?
    pub(super) fn is_sure(&self) -> bool {
        let (until, wall) = *self.until.lock();
        Instant::now() < until && SystemTime::now() < wall
    }

    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Makes the driver hand the task on at once.
    pub(super) fn give_up(&self) {
        self.dropped.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// The store has this revision of the task: another instance may have written it.
    pub(super) fn seen(&self, revision: u64) {
        if revision > self.revision.load(Ordering::Acquire) {
            self.look();
        }
    }

    /// Makes the driver look at the task.
    pub(super) fn look(&self) {
        self.news.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    pub(super) fn take_news(&self) -> bool {
        self.news.swap(false, Ordering::AcqRel)
    }

    pub(super) fn wrote(&self, revision: u64) {
        self.revision.fetch_max(revision, Ordering::AcqRel);
    }

    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// The time of day at this instant.
fn wall(at: Instant) -> SystemTime {
    let now = SystemTime::now();
    now.checked_sub(at.elapsed()).unwrap_or(now)
}
