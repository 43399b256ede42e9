//! A task store that fails on demand.

use super::until;
use parking_lot::Mutex;
use refrain_core::Principal;
use refrain_store::{
    Claim, ClaimedTask, Commit, CommitResult, Creation, Hint, Lease, ListTasks, MemoryStore,
    NewTask, Quota, StoreError, StoreFuture, StoredTask, SweepCounts, TaskId, TaskRow, TaskStore,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::broadcast;

/// A task store in front of a [`MemoryStore`] that fails or hangs on demand.
pub struct FaultyStore {
    store: Arc<dyn TaskStore>,
    fault: Mutex<Option<StoreError>>,
    hanging: AtomicBool,
    hints: broadcast::Sender<Hint>,
}

impl FaultyStore {
    /// A second handle to this store, without its hints.
    pub fn new(store: &MemoryStore) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::new(store.clone()),
            fault: Mutex::default(),
            hanging: AtomicBool::new(false),
            hints: broadcast::Sender::new(1),
        })
    }

    /// Makes every operation fail with this error, or none.
    pub fn fail(&self, fault: Option<StoreError>) {
        *self.fault.lock() = fault;
    }

    pub fn hang(&self) {
        self.hanging.store(true, Ordering::SeqCst);
    }

    /// Waits until the hints have this number of receivers.
    pub async fn has_watchers(&self, count: usize) {
        let reached = || self.hints.receiver_count() == count;
        until("the number of watchers", reached).await;
    }

    fn through<'a, T: Send + 'a>(&'a self, done: StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        if self.hanging.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        let fault = match &*self.fault.lock() {
            Some(StoreError::Unavailable(source)) => {
                StoreError::Unavailable(source.to_string().into())
            }
            Some(StoreError::Failed(source)) => StoreError::Failed(source.to_string().into()),
            Some(fault) => StoreError::Failed(fault.to_string().into()),
            None => return done,
        };
        Box::pin(std::future::ready(Err(fault)))
    }
}

impl TaskStore for FaultyStore {
    fn set_quota(&self, quota: Quota) {
        self.store.set_quota(quota);
    }

    fn create(&self, new: NewTask) -> StoreFuture<'_, Creation> {
        self.through(self.store.create(new))
    }

    fn get<'a>(
        &'a self,
        id: &'a TaskId,
        owner: &'a Principal,
    ) -> StoreFuture<'a, Option<StoredTask>> {
        self.through(self.store.get(id, owner))
    }

    fn answer<'a>(
        &'a self,
        id: &'a TaskId,
        owner: &'a Principal,
        answers: Vec<(String, Vec<u8>)>,
    ) -> StoreFuture<'a, bool> {
        self.through(self.store.answer(id, owner, answers))
    }

    fn cancel<'a>(&'a self, id: &'a TaskId, owner: &'a Principal) -> StoreFuture<'a, bool> {
        self.through(self.store.cancel(id, owner))
    }

    fn claim<'a>(&'a self, claim: Claim<'a>) -> StoreFuture<'a, Vec<ClaimedTask>> {
        self.through(self.store.claim(claim))
    }

    fn extend<'a>(&'a self, leases: &'a [Lease], lease: Duration) -> StoreFuture<'a, Vec<Lease>> {
        self.through(self.store.extend(leases, lease))
    }

    fn commit<'a>(&'a self, lease: &'a Lease, commit: Commit) -> StoreFuture<'a, CommitResult> {
        self.through(self.store.commit(lease, commit))
    }

    fn answers<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, Vec<(String, Vec<u8>)>> {
        self.through(self.store.answers(lease))
    }

    fn revisions<'a>(&'a self, tasks: &'a [TaskId]) -> StoreFuture<'a, Vec<(TaskId, u64)>> {
        self.through(self.store.revisions(tasks))
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    fn spill<'a>(
        &'a self,
        id: &'a str,
        owner: &'a Principal,
        token: Vec<u8>,
        keep: Duration,
    ) -> StoreFuture<'a, ()> {
        self.through(self.store.spill(id, owner, token, keep))
    }

    fn spilled<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        self.through(self.store.spilled(id))
    }

    fn sweep(&self, keep: Duration, most: usize) -> StoreFuture<'_, SweepCounts> {
        self.through(self.store.sweep(keep, most))
    }

    fn list(&self, list: ListTasks) -> StoreFuture<'_, Vec<TaskRow>> {
        self.through(self.store.list(list))
    }

    fn find<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
        self.through(self.store.find(id))
    }

    fn requeue<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
        self.through(self.store.requeue(id))
    }
}
