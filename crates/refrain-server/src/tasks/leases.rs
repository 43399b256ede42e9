//! The leases that an instance holds, one for each task that it runs.

use parking_lot::Mutex;
use refrain_store::{Lease, TaskId};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Notify;

/// Times to take tasks up again that are remembered here; whatever is later or more than that is found in the store.
const SOON: Duration = Duration::from_secs(60);
const WAKES: usize = 10_000;

/// The leases that this instance holds.
pub(crate) struct Leases {
    /// What this instance is called in the store.
    pub(crate) worker: String,
    most: usize,
    running: Mutex<HashMap<TaskId, Arc<HeldLease>>>,
    /// Is somebody holding the leases?
    pub(super) kept: AtomicBool,
    /// There is room again, or nothing runs any more.
    pub(super) room: Notify,
    /// When tasks that were set down here are to be taken up again, the soonest first.
    wakes: Mutex<BinaryHeap<Reverse<Instant>>>,
    /// There is a wake that is sooner than the others.
    pub(super) sooner: Notify,
    /// Does anybody here take up tasks that are due?
    pub(super) claims: AtomicBool,
}

/// The lease of a task that this instance runs.
#[derive(Debug)]
pub(crate) struct HeldLease {
    pub(crate) lease: Lease,
    lost: AtomicBool,
    dropped: AtomicBool,
    revision: AtomicU64,
    news: AtomicBool,
    /// Until when the lease is sure to be held, by two clocks: one stands still while the machine does, the other may be
    /// set.
    until: Mutex<(Instant, SystemTime)>,
    changed: Notify,
}

impl Leases {
    /// Room for `most` tasks.
    pub(crate) fn new(random: [u8; 4], most: usize) -> Self {
        let random = u32::from_be_bytes(random);
        Self {
            worker: format!("{}-{random:08x}", std::process::id()),
            most,
            running: Mutex::default(),
            kept: AtomicBool::new(false),
            room: Notify::new(),
            wakes: Mutex::default(),
            sooner: Notify::new(),
            claims: AtomicBool::new(false),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.running.lock().len()
    }

    /// Begins to hold a lease that was asked for at `asked`.
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
        self.running
            .lock()
            .insert(hold.lease.task.clone(), hold.clone());
        hold
    }

    pub(super) fn release(&self, hold: &Arc<HeldLease>) {
        let mut running = self.running.lock();
        let full = running.len() >= self.most;
        // The same task may have been taken anew by this instance.
        if running
            .get(&hold.lease.task)
            .is_some_and(|held| Arc::ptr_eq(held, hold))
        {
            running.remove(&hold.lease.task);
        }
        let empty = running.is_empty();
        drop(running);
        if full || empty {
            self.room.notify_one();
        }
    }

    /// A task was set down here, to be taken up again after this time.
    pub(super) fn set_down(&self, wake: Option<Duration>) {
        static TOLD: Once = Once::new();
        if !self.claims.load(Ordering::Acquire) {
            TOLD.call_once(|| {
                tracing::warn!("a task waits in the store, and nobody here takes tasks up again: call Server::work(..)");
            });
        }
        // The others are found by looking.
        let Some(wake) = wake.filter(|wake| *wake < SOON) else {
            return;
        };
        let mut wakes = self.wakes.lock();
        if wakes.len() < WAKES {
            wakes.push(Reverse(Instant::now() + wake));
            self.sooner.notify_one();
        }
    }

    /// How long until the first of them.
    pub(super) fn until_wake(&self) -> Option<Duration> {
        let now = Instant::now();
        let mut wakes = self.wakes.lock();
        while wakes.peek().is_some_and(|Reverse(at)| *at <= now) {
            wakes.pop();
        }
        wakes.peek().map(|Reverse(at)| *at - now)
    }

    /// Waits until nothing runs here.
    pub(super) async fn empty(&self) {
        while self.len() > 0 {
            let room = self.room.notified();
            // A task may have ended before we listened.
            let _ = tokio::time::timeout(Duration::from_millis(50), room).await;
        }
    }

    /// Is there room for one more?
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

    /// Is the lease sure to be held now?
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

    /// The instance gives the task up, whatever it is doing.
    pub(super) fn give_up(&self) {
        self.dropped.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// The task has this revision now. Has somebody else changed it?
    pub(super) fn seen(&self, revision: u64) {
        if revision > self.revision.load(Ordering::Acquire) {
            self.look();
        }
    }

    /// There may be news of the task.
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
