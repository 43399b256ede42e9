//! The trait that every store implements.

use crate::quota::{Quota, QuotaReached};
use crate::task::{
    Claim, ClaimedTask, Commit, CommitResult, Creation, Delivery, Hint, Lease, ListTasks, NewTask,
    OpenAsks, StoredTask, SweepCounts, TaskId, TaskRow,
};
use refrain_core::{LogError, Principal};
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::broadcast;

/// Why a store operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store is unreachable or overloaded. The operation may have been applied; it is safe to repeat it.
    #[error("store unavailable: {0}")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
    /// The lease is no longer held: another worker has the task, or the task has ended. Nothing was written.
    #[error("lease lost")]
    Lost,
    /// Another owner has a task with the id of the new task. Ids are random, so the random source is broken.
    #[error("task id already in use")]
    IdInUse,
    /// A value is too long for an indexed column.
    #[error("{what} too long: {bytes} bytes, and the limit is {limit}")]
    TooLong {
        /// The name of the value.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The maximum length.
        limit: usize,
    },
    /// A limit of the store is reached. Nothing was written.
    #[error(transparent)]
    Quota(#[from] QuotaReached),
    /// The store contains invalid data.
    #[error("corrupt store: {0}")]
    Corrupt(#[source] Box<dyn Error + Send + Sync>),
    /// The store rejected the operation. A retry does not help.
    #[error("store failed: {0}")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
}

impl StoreError {
    /// The store did not respond in time.
    pub fn timed_out(after: Duration) -> Self {
        Self::Unavailable(format!("no response within {after:?}").into())
    }
}

impl From<StoreError> for LogError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(source) => Self::Unavailable(source),
            StoreError::Quota(reached) => reached.into(),
            error => Self::Failed(error.into()),
        }
    }
}

impl From<QuotaReached> for LogError {
    fn from(reached: QuotaReached) -> Self {
        Self::Quota(reached.into())
    }
}

/// The future of a store operation.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The tasks of a fleet.
///
/// Rules of every store:
///
/// - Operations of an owner see only that owner's tasks.
/// - All times are of the store's clock.
/// - [`create`](Self::create) and [`claim`](Self::claim) grant leases, each with a higher fence. A write with a lower fence,
///   or to an ended task, fails with [`StoreError::Lost`].
/// - An operation that failed with [`StoreError::Unavailable`] may have been applied. It is safe to repeat it.
/// - The status of a task that has not ended is `InputRequired` while an ask is open, otherwise `Working`.
/// - The write that ends a task adds its deliveries to the outbox, atomically.
pub trait TaskStore: Send + Sync + 'static {
    /// Sets the limits for writes of this instance. Writes over a limit fail with [`StoreError::Quota`]: new tasks, spilled
    /// tokens, answers, and commits that store more bytes, unless they fail the task. New records of the replay log fail
    /// with [`LogError::Quota`]; their outcomes are stored in any case. Concurrent writes may exceed a limit a little.
    fn set_quota(&self, quota: Quota);

    /// Creates a task. If the owner already has a task with this id or flow, returns that task.
    fn create(&self, new: NewTask) -> StoreFuture<'_, Creation>;

    /// Reads a task.
    fn get<'a>(
        &'a self,
        id: &'a TaskId,
        owner: &'a Principal,
    ) -> StoreFuture<'a, Option<StoredTask>>;

    /// Reads the tool of a task, and its open asks with these keys, in order. Reads no other content of the task, so that it
    /// is fast for a large task.
    fn open_asks<'a>(
        &'a self,
        id: &'a TaskId,
        owner: &'a Principal,
        keys: &'a [&'a str],
    ) -> StoreFuture<'a, Option<OpenAsks>>;

    /// Stores answers, by key. Answers to keys that are not open are ignored. A new answer makes a suspended task due at
    /// once. `false`: there is no such task.
    fn answer<'a>(
        &'a self,
        id: &'a TaskId,
        owner: &'a Principal,
        answers: Vec<(String, Vec<u8>)>,
    ) -> StoreFuture<'a, bool>;

    /// Cancels a task that has not ended. Its worker loses the lease. `false`: there is no such task.
    fn cancel<'a>(&'a self, id: &'a TaskId, owner: &'a Principal) -> StoreFuture<'a, bool>;

    /// Claims due tasks, each for one worker: new tasks, and tasks whose wait or lease has ended. Expired tasks of any tool
    /// are claimed too. Accounts take turns: one due task of each account is claimed before a second one of any account.
    /// Otherwise the task that has been due longest comes first.
    fn claim<'a>(&'a self, claim: Claim<'a>) -> StoreFuture<'a, Vec<ClaimedTask>>;

    /// Extends leases so that they end after the time `lease` from now. Returns the leases that are still held. A lease that
    /// has run out still counts as held until the task is claimed, requeued or cancelled.
    fn extend<'a>(&'a self, leases: &'a [Lease], lease: Duration) -> StoreFuture<'a, Vec<Lease>>;

    /// Writes the progress of a task.
    fn commit<'a>(&'a self, lease: &'a Lease, commit: Commit) -> StoreFuture<'a, CommitResult>;

    /// Reads the answers that are not in the journal, each with its key, in the order of their asks.
    fn answers<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, Vec<(String, Vec<u8>)>>;

    /// Reads the revisions of these tasks. Missing tasks are omitted.
    fn revisions<'a>(&'a self, tasks: &'a [TaskId]) -> StoreFuture<'a, Vec<(TaskId, u64)>>;

    /// Subscribes to the hints of this instance, and of other instances if the store supports it.
    fn hints(&self) -> broadcast::Receiver<Hint>;

    /// Fails with [`StoreError::Quota`] if the account cannot store this many bytes more.
    fn check_quota<'a>(&'a self, account: &'a Principal, bytes: usize) -> StoreFuture<'a, ()>;

    /// Stores a token that is too large for the client, for the time `keep`. It counts as data of the account.
    fn spill<'a>(
        &'a self,
        id: &'a str,
        account: &'a Principal,
        token: Vec<u8>,
        keep: Duration,
    ) -> StoreFuture<'a, ()>;

    /// Reads a spilled token.
    fn spilled<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<Vec<u8>>>;

    /// Deletes expired records and tokens, and expired tasks that ended more than `keep` ago; at most `most` of each.
    fn sweep(&self, keep: Duration, most: usize) -> StoreFuture<'_, SweepCounts>;

    /// Claims due deliveries to an endpoint. Accounts take turns; within a turn, the delivery that
    /// has been due longest comes first. A claimed delivery is due again after the lease.
    fn claim_deliveries<'a>(
        &'a self,
        endpoint: &'a str,
        lease: Duration,
        most: usize,
    ) -> StoreFuture<'a, Vec<Delivery>>;

    /// Makes a claimed delivery due again after `retry`, unless it was claimed again since. `None`: deletes it.
    fn finish_delivery<'a>(
        &'a self,
        delivery: &'a Delivery,
        retry: Option<Duration>,
    ) -> StoreFuture<'a, ()>;

    /// Deletes deliveries of tasks that ended more than `age` ago and, if there are more than
    /// `rows`, the oldest ones of the accounts with the most rows; at most `most` in total.
    /// Deliveries of tasks that ended at the same time may be deleted together. Returns the number
    /// of deleted deliveries.
    fn trim_outbox(&self, age: Duration, rows: usize, most: usize) -> StoreFuture<'_, u64>;

    /// Lists tasks of all owners. For operators.
    fn list(&self, list: ListTasks) -> StoreFuture<'_, Vec<TaskRow>>;

    /// Reads a task of any owner. For operators.
    fn find<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>>;

    /// Makes a task due at once, resets its attempts, and returns it. For operators. Its worker loses the lease. A failed
    /// task runs again with its full time to live; a completed or cancelled task does not change. `None`: there is no
    /// such task.
    fn requeue<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>>;
}

/// A store of tasks and of the replay log.
pub trait Store: TaskStore + refrain_core::ReplayLog {}

impl<S: TaskStore + refrain_core::ReplayLog> Store for S {}
