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

/// Where tasks live, shared by all instances of a fleet.
///
/// What always holds, on every store:
///
/// - Whatever is done by an owner is done for that owner's tasks only. A stranger's task is not there.
/// - Times are those of the store's own clock.
/// - A lease is taken by [`create`](Self::create) or [`claim`](Self::claim). With each the fence grows, and a write with
///   a lower fence is [`StoreError::Lost`]. So is one to a task that is over.
/// - A call that failed with [`StoreError::Unavailable`] may have been done. Doing it again does no harm.
/// - The status of a task that is not over is `InputRequired` while it has an ask without an answer, else `Working`.
pub trait TaskStore: Send + Sync + 'static {
    /// Makes a task. When this returns, every instance finds it. A flow that has become a task before, of the same owner,
    /// is found instead; a repeated creation of the same id too.
    fn create(&self, new: NewTask) -> StoreFuture<'_, Created>;

    /// The task of this id.
    fn get<'a>(&'a self, id: &'a TaskId, owner: &'a Principal) -> StoreFuture<'a, Option<Task>>;

    /// Takes in answers, by key. Those to keys that are not open are ignored: never asked, answered before, or withdrawn.
    /// A task that was set down is due at once if there was a new one. `false`: there is no such task.
    fn answer<'a>(
        &'a self,
        id: &'a TaskId,
        owner: &'a Principal,
        answers: Vec<(String, Vec<u8>)>,
    ) -> StoreFuture<'a, bool>;

    /// Calls a task off, unless it is over. Whoever runs it has lost its lease. `false`: there is no such task.
    fn cancel<'a>(&'a self, id: &'a TaskId, owner: &'a Principal) -> StoreFuture<'a, bool>;

    /// Takes tasks that are due: those that wait to be run, whose wait is over, or whose lease is. Each is taken by one
    /// worker. Tasks whose life is over are taken whatever their tool.
    fn claim<'a>(&'a self, claim: Claim<'a>) -> StoreFuture<'a, Vec<Claimed>>;

    /// Holds leases for so much longer from now. Gives those that are still held; also one that had run out, if nobody
    /// has taken the task since.
    fn extend<'a>(&'a self, leases: &'a [Lease], lease: Duration) -> StoreFuture<'a, Vec<Lease>>;

    /// Writes what became of a task.
    fn commit<'a>(&'a self, lease: &'a Lease, commit: Commit) -> StoreFuture<'a, Committed>;

    /// The answers that no journal has yet, by key, in the order in which they were asked for.
    fn answers<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, Vec<(String, Vec<u8>)>>;

    /// The revisions of those of these tasks that are there.
    fn revisions<'a>(&'a self, tasks: &'a [TaskId]) -> StoreFuture<'a, Vec<(TaskId, u64)>>;

    /// Words that something happened to a task, as far as the store can give them, on this instance or another.
    fn hints(&self) -> broadcast::Receiver<Hint>;

    /// Keeps a token that is too large to travel, for so long.
    fn spill<'a>(&'a self, id: &'a str, token: Vec<u8>, keep: Duration) -> StoreFuture<'a, ()>;

    /// A token that was kept here.
    fn spilled<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<Vec<u8>>>;

    /// Throws away what is over: tasks that ended and whose time to live has passed since their creation and `keep`
    /// since their end, records and tokens that are no longer needed. At most `most` of each at a time.
    fn sweep(&self, keep: Duration, most: usize) -> StoreFuture<'_, Swept>;

    /// Tasks of all owners, for operators.
    fn list(&self, list: ListTasks) -> StoreFuture<'_, Vec<TaskRow>>;

    /// A task of any owner, for operators.
    fn find<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>>;

    /// Makes a task due at once, with its attempts before it, for operators. Whoever runs it has lost its lease. One that
    /// failed works again, for as long as it was to live; one that is completed or cancelled stays as it is. Gives the
    /// task as it is then; `None`: there is no such task.
    fn requeue<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>>;
}

/// A store of everything: tasks and the replay log.
pub trait Store: TaskStore + refrain_core::ReplayLog {}

impl<S: TaskStore + refrain_core::ReplayLog> Store for S {}
