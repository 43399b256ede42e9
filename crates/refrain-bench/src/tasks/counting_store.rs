//! A store that counts its calls and their time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use refrain_core::Principal;
use refrain_store::{
    Claim, ClaimedTask, Commit, CommitResult, Creation, Hint, Lease, ListTasks, NewTask, Quota,
    Store, StoreFuture, StoredTask, SweepCounts, TaskId, TaskRow, TaskStore,
};
use tokio::sync::broadcast;

/// The number of calls and their total time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StoreCalls {
    pub(crate) count: u64,
    pub(crate) time: Duration,
}

/// The calls of a store, by operation.
pub(crate) type CallCounts = BTreeMap<&'static str, StoreCalls>;

/// A store that counts its calls.
pub(crate) struct CountingStore {
    store: Arc<dyn Store>,
    counts: Mutex<CallCounts>,
}

impl CountingStore {
    pub(crate) fn new(store: Arc<dyn Store>) -> Arc<Self> {
        let counts = Mutex::default();
        Arc::new(Self { store, counts })
    }

    pub(crate) fn counts(&self) -> CallCounts {
        self.counts.lock().clone()
    }

    /// All calls together.
    pub(crate) fn total(&self) -> StoreCalls {
        let counts = self.counts.lock();
        StoreCalls {
            count: counts.values().map(|calls| calls.count).sum(),
            time: counts.values().map(|calls| calls.time).sum(),
        }
    }

    fn count_call<'a, T: Send + 'a>(
        &'a self,
        name: &'static str,
        work: StoreFuture<'a, T>,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            // Count at the start, because the effect of a call can be visible before it returns.
            self.update(name, |calls| calls.count += 1);
            let begun = Instant::now();
            let done = work.await;
            self.update(name, |calls| calls.time += begun.elapsed());
            done
        })
    }

    fn update(&self, name: &'static str, change: impl FnOnce(&mut StoreCalls)) {
        change(self.counts.lock().entry(name).or_default());
    }
}

impl TaskStore for CountingStore {
    fn set_quota(&self, quota: Quota) {
        self.store.set_quota(quota);
    }

    fn create(&self, new: NewTask) -> StoreFuture<'_, Creation> {
        self.count_call("create", self.store.create(new))
    }

    fn get<'a>(
        &'a self,
        id: &'a TaskId,
        owner: &'a Principal,
    ) -> StoreFuture<'a, Option<StoredTask>> {
        self.count_call("get", self.store.get(id, owner))
    }

    fn answer<'a>(
        &'a self,
        id: &'a TaskId,
        owner: &'a Principal,
        answers: Vec<(String, Vec<u8>)>,
    ) -> StoreFuture<'a, bool> {
        self.count_call("answer", self.store.answer(id, owner, answers))
    }

    fn cancel<'a>(&'a self, id: &'a TaskId, owner: &'a Principal) -> StoreFuture<'a, bool> {
        self.count_call("cancel", self.store.cancel(id, owner))
    }

    fn claim<'a>(&'a self, claim: Claim<'a>) -> StoreFuture<'a, Vec<ClaimedTask>> {
        self.count_call("claim", self.store.claim(claim))
    }

    fn extend<'a>(&'a self, leases: &'a [Lease], lease: Duration) -> StoreFuture<'a, Vec<Lease>> {
        self.count_call("extend", self.store.extend(leases, lease))
    }

    fn commit<'a>(&'a self, lease: &'a Lease, commit: Commit) -> StoreFuture<'a, CommitResult> {
        self.count_call("commit", self.store.commit(lease, commit))
    }

    fn answers<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, Vec<(String, Vec<u8>)>> {
        self.count_call("answers", self.store.answers(lease))
    }

    fn revisions<'a>(&'a self, tasks: &'a [TaskId]) -> StoreFuture<'a, Vec<(TaskId, u64)>> {
        self.count_call("revisions", self.store.revisions(tasks))
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.store.hints()
    }

    fn spill<'a>(
        &'a self,
        id: &'a str,
        owner: &'a Principal,
        token: Vec<u8>,
        keep: Duration,
    ) -> StoreFuture<'a, ()> {
        self.count_call("spill", self.store.spill(id, owner, token, keep))
    }

    fn spilled<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        self.count_call("spilled", self.store.spilled(id))
    }

    fn sweep(&self, keep: Duration, most: usize) -> StoreFuture<'_, SweepCounts> {
        self.count_call("sweep", self.store.sweep(keep, most))
    }

    fn list(&self, list: ListTasks) -> StoreFuture<'_, Vec<TaskRow>> {
        self.count_call("list", self.store.list(list))
    }

    fn find<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
        self.count_call("find", self.store.find(id))
    }

    fn requeue<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
        self.count_call("requeue", self.store.requeue(id))
    }
}
