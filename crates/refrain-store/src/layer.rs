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

/// Methods that pass the operation after `=` to the store behind the layer.
macro_rules! pass {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty = $operation:ident;)*) => {$(
        $(#[$doc])*
        fn $name<'a>(&'a self, $($argument: $type),*) -> StoreFuture<'a, $result> {
            self.pass(stringify!($operation), self.store().$operation($($argument),*))
        }
    )*};
}

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

    pass! {
        /// [`TaskStore::create`].
        fn layer_create(new: NewTask) -> Creation = create;
        /// [`TaskStore::claim`].
        fn layer_claim(claim: Claim<'a>) -> Vec<ClaimedTask> = claim;
        /// [`TaskStore::extend`].
        fn layer_extend(leases: &'a [Lease], lease: Duration) -> Vec<Lease> = extend;
        /// [`TaskStore::commit`].
        fn layer_commit(lease: &'a Lease, commit: Commit) -> CommitResult = commit;
    }
}

impl<L: StoreLayer> TaskStore for L {
    fn set_quota(&self, quota: Quota) {
        self.store().set_quota(quota);
    }

    fn create(&self, new: NewTask) -> StoreFuture<'_, Creation> {
        self.layer_create(new)
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

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.layer_hints()
    }

    pass! {
        fn get(id: &'a TaskId, owner: &'a Principal) -> Option<StoredTask> = get;
        fn open_asks(id: &'a TaskId, owner: &'a Principal, keys: &'a [&'a str]) -> Option<OpenAsks> = open_asks;
        fn answer(id: &'a TaskId, owner: &'a Principal, answers: Vec<(String, Vec<u8>)>) -> bool = answer;
        fn cancel(id: &'a TaskId, owner: &'a Principal) -> bool = cancel;
        fn answers(lease: &'a Lease) -> Vec<(String, Vec<u8>)> = answers;
        fn revisions(tasks: &'a [TaskId]) -> Vec<(TaskId, u64)> = revisions;
        fn check_quota(account: &'a Principal, bytes: usize) -> () = check_quota;
        fn spill(id: &'a str, account: &'a Principal, token: Vec<u8>, keep: Duration) -> () = spill;
        fn spilled(id: &'a str) -> Option<Vec<u8>> = spilled;
        fn sweep(keep: Duration, most: usize) -> SweepCounts = sweep;
        fn claim_deliveries(endpoint: &'a str, lease: Duration, most: usize) -> Vec<Delivery> = claim_deliveries;
        fn finish_delivery(delivery: &'a Delivery, retry: Option<Duration>) -> () = finish_delivery;
        fn trim_outbox(age: Duration, rows: usize, most: usize) -> u64 = trim_outbox;
        fn list(list: ListTasks) -> Vec<TaskRow> = list;
        fn find(id: &'a TaskId) -> Option<TaskRow> = find;
        fn requeue(id: &'a TaskId) -> Option<TaskRow> = requeue;
    }
}
