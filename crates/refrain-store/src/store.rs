//! The trait that every store implements.

use crate::task::{
    Claim, Claimed, Commit, Committed, Created, Hint, Lease, ListTasks, NewTask, Swept, Task,
    TaskId, TaskRow,
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
    /// The store cannot be reached or is overloaded. The operation may have been done; repeating it is safe.
    #[error("store unavailable: {0}")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
    /// The lease is no longer held: another worker has the task, or the task has ended. Nothing was written.
    #[error("lease lost")]
    Lost,
    /// Another owner has a task with the id of the new one. Ids are random, so the random source is broken.
    #[error("task id already in use")]
    IdInUse,
    /// A value is too long for an indexed column.
    #[error("{what} has {bytes} bytes, more than the limit of {limit}")]
    TooLong {
        /// The value.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The longest value that the store accepts.
        limit: usize,
    },
    /// The store contains data that Refrain did not write.
    #[error("corrupt store: {0}")]
    Corrupt(#[source] Box<dyn Error + Send + Sync>),
    /// The store rejected the operation. Repeating it does not help.
    #[error("store failed: {0}")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
}

impl StoreError {
    /// The store did not respond in time.
    pub fn timed_out(after: Duration) -> Self {
        Self::Unavailable(format!("no response within {after:?}").into())
    }
}

/// The replay log of a store fails as the store does.
impl From<StoreError> for LogError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(source) => Self::Unavailable(source),
            error => Self::Failed(error.into()),
        }
    }
}

/// A future of a store.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The tasks of a fleet.
///
/// Rules of every store:
///
/// - Operations of an owner see only that owner's tasks.
/// - Times are those of the store's clock.
/// - [`create`](Self::create) and [`claim`](Self::claim) give out leases, each with a higher fence. A write with a lower
///   fence, or to an ended task, is [`StoreError::Lost`].
/// - An operation that failed with [`StoreError::Unavailable`] may have been done. Repeating it does no harm.
/// - The status of a task that has not ended is `InputRequired` while an ask is open, else `Working`.
pub trait TaskStore: Send + Sync + 'static {
    /// Creates a task that every instance can find. If the owner has a task of the same id or flow, that one is returned.
    fn create(&self, new: NewTask) -> StoreFuture<'_, Created>;

    /// Reads a task.
    fn get<'a>(&'a self, id: &'a TaskId, owner: &'a Principal) -> StoreFuture<'a, Option<Task>>;

    /// Stores answers, by key. Answers to keys that are not open are ignored. A task that was set down is due at once if
    /// one of them is new. `false`: there is no such task.
    fn answer<'a>(
        &'a self,
        id: &'a TaskId,
        owner: &'a Principal,
        answers: Vec<(String, Vec<u8>)>,
    ) -> StoreFuture<'a, bool>;

    /// Cancels a task that has not ended. Its worker loses the lease. `false`: there is no such task.
    fn cancel<'a>(&'a self, id: &'a TaskId, owner: &'a Principal) -> StoreFuture<'a, bool>;

    /// Claims tasks that are due, each for one worker: new tasks, and those whose wait or lease has ended. Expired tasks
    /// are claimed whatever their tool.
    fn claim<'a>(&'a self, claim: Claim<'a>) -> StoreFuture<'a, Vec<Claimed>>;

    /// Extends leases to this time from now, and returns those that are still held. An expired lease is held until
    /// another worker claims the task.
    fn extend<'a>(&'a self, leases: &'a [Lease], lease: Duration) -> StoreFuture<'a, Vec<Lease>>;

    /// Writes the progress of a task.
    fn commit<'a>(&'a self, lease: &'a Lease, commit: Commit) -> StoreFuture<'a, Committed>;

    /// The answers that are not in the journal, by key, in the order of their asks.
    fn answers<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, Vec<(String, Vec<u8>)>>;

    /// The revisions of those of these tasks that exist.
    fn revisions<'a>(&'a self, tasks: &'a [TaskId]) -> StoreFuture<'a, Vec<(TaskId, u64)>>;

    /// Hints of this instance, and of others if the store can deliver them.
    fn hints(&self) -> broadcast::Receiver<Hint>;

    /// Keeps a token that is too large to travel, for this time.
    fn spill<'a>(&'a self, id: &'a str, token: Vec<u8>, keep: Duration) -> StoreFuture<'a, ()>;

    /// Reads a spilled token.
    fn spilled<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<Vec<u8>>>;

    /// Deletes expired records and tokens, and tasks that have expired and ended more than `keep` ago; at most `most` of
    /// each.
    fn sweep(&self, keep: Duration, most: usize) -> StoreFuture<'_, Swept>;

    /// Lists tasks of all owners, for operators.
    fn list(&self, list: ListTasks) -> StoreFuture<'_, Vec<TaskRow>>;

    /// Reads a task of any owner, for operators.
    fn find<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>>;

    /// Makes a task due at once with no attempts, for operators, and returns it. Its worker loses the lease. A failed task
    /// runs again with its whole time to live; a completed or cancelled task does not change. `None`: there is no such task.
    fn requeue<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>>;
}

/// A store of tasks and of the replay log.
pub trait Store: TaskStore + refrain_core::ReplayLog {}

impl<S: TaskStore + refrain_core::ReplayLog> Store for S {}
