//! A layer around a task store: a store that observes or changes the operations of another one.

use crate::quota::Quota;
use crate::store::{StoreFuture, TaskStore};
use crate::task::{
    Claim, ClaimedTask, Commit, CommitResult, Creation, Delivery, Hint, Lease, ListTasks, NewTask,
    OpenAsks, StoredTask, SweepCounts, TaskId, TaskRow,
};
use refrain_core::Principal;
use std::time::Duration;
use tokio::sync::broadcast;

/// A layer around a store. Every layer is a [`TaskStore`].
pub trait StoreLayer: Send + Sync + 'static {
    /// The store behind the layer.
    fn store(&self) -> &dyn TaskStore;

    /// Runs an operation of the store behind the layer. `name` is the name of its method.
    fn pass<'a, T: Send + 'a>(
        &'a self,
        _name: &'static str,
        operation: StoreFuture<'a, T>,
    ) -> StoreFuture<'a, T> {
        operation
    }

    /// [`TaskStore::hints`].
    fn layer_hints(&self) -> broadcast::Receiver<Hint> {
        self.store().hints()
    }

    /// [`TaskStore::create`].
    fn layer_create(&self, new: NewTask) -> StoreFuture<'_, Creation> {
        self.pass("create", self.store().create(new))
    }

    /// [`TaskStore::claim`].
    fn layer_claim<'a>(&'a self, claim: Claim<'a>) -> StoreFuture<'a, Vec<ClaimedTask>> {
        self.pass("claim", self.store().claim(claim))
    }

    /// [`TaskStore::extend`].
    fn layer_extend<'a>(
        &'a self,
        leases: &'a [Lease],
        lease: Duration,
    ) -> StoreFuture<'a, Vec<Lease>> {
        self.pass("extend", self.store().extend(leases, lease))
    }

    /// [`TaskStore::commit`].
    fn layer_commit<'a>(
        &'a self,
        lease: &'a Lease,
        commit: Commit,
    ) -> StoreFuture<'a, CommitResult> {
        self.pass("commit", self.store().commit(lease, commit))
    }
}

impl<L: StoreLayer> TaskStore for L {
    fn set_quota(&self, quota: Quota) {
        self.store().set_quota(quota);
    }

    fn create(&self, new: NewTask) -> StoreFuture<'_, Creation> {
        self.layer_create(new)
    }

    fn get<'a>(
        &'a self,
        id: &'a TaskId,
        owner: &'a Principal,
    ) -> StoreFuture<'a, Option<StoredTask>> {
        self.pass("get", self.store().get(id, owner))
    }

    fn open_asks<'a>(
        &'a self,
        id: &'a TaskId,
        owner: &'a Principal,
        keys: &'a [&'a str],
    ) -> StoreFuture<'a, Option<OpenAsks>> {
        self.pass("open_asks", self.store().open_asks(id, owner, keys))
    }

    fn answer<'a>(
        &'a self,
        id: &'a TaskId,
        owner: &'a Principal,
        answers: Vec<(String, Vec<u8>)>,
    ) -> StoreFuture<'a, bool> {
        self.pass("answer", self.store().answer(id, owner, answers))
    }

    fn cancel<'a>(&'a self, id: &'a TaskId, owner: &'a Principal) -> StoreFuture<'a, bool> {
        self.pass("cancel", self.store().cancel(id, owner))
    }

    fn claim<'a>(&'a self, claim: Claim<'a>) -> StoreFuture<'a, Vec<ClaimedTask>> {
        self.layer_claim(claim)
    }

    fn extend<'a>(&'a self, leases: &'a [Lease], lease: Duration) -> StoreFuture<'a, Vec<Lease>> {
        self.layer_extend(leases, lease)
    }

    fn commit<'a>(&'a self, lease: &'a Lease, commit: Commit) -> StoreFuture<'a, CommitResult> {
        self.layer_commit(lease, commit)
    }

    fn answers<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, Vec<(String, Vec<u8>)>> {
        self.pass("answers", self.store().answers(lease))
    }

    fn revisions<'a>(&'a self, tasks: &'a [TaskId]) -> StoreFuture<'a, Vec<(TaskId, u64)>> {
        self.pass("revisions", self.store().revisions(tasks))
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.layer_hints()
    }

    fn check_quota<'a>(&'a self, account: &'a Principal, bytes: usize) -> StoreFuture<'a, ()> {
        self.pass("check_quota", self.store().check_quota(account, bytes))
    }

    fn spill<'a>(
        &'a self,
        id: &'a str,
        account: &'a Principal,
        token: Vec<u8>,
        keep: Duration,
    ) -> StoreFuture<'a, ()> {
        self.pass("spill", self.store().spill(id, account, token, keep))
    }

    fn spilled<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        self.pass("spilled", self.store().spilled(id))
    }

    fn sweep(&self, keep: Duration, most: usize) -> StoreFuture<'_, SweepCounts> {
        self.pass("sweep", self.store().sweep(keep, most))
    }

    fn claim_deliveries<'a>(
        &'a self,
        endpoint: &'a str,
        lease: Duration,
        most: usize,
    ) -> StoreFuture<'a, Vec<Delivery>> {
        let claim = self.store().claim_deliveries(endpoint, lease, most);
        self.pass("claim_deliveries", claim)
    }

    fn finish_delivery<'a>(
        &'a self,
        delivery: &'a Delivery,
        retry: Option<Duration>,
    ) -> StoreFuture<'a, ()> {
        let finish = self.store().finish_delivery(delivery, retry);
        self.pass("finish_delivery", finish)
    }

    fn trim_outbox(&self, age: Duration, rows: usize, most: usize) -> StoreFuture<'_, u64> {
        self.pass("trim_outbox", self.store().trim_outbox(age, rows, most))
    }

    fn list(&self, list: ListTasks) -> StoreFuture<'_, Vec<TaskRow>> {
        self.pass("list", self.store().list(list))
    }

    fn find<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
        self.pass("find", self.store().find(id))
    }

    fn requeue<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
        self.pass("requeue", self.store().requeue(id))
    }
}
