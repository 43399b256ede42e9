//! The data types of tasks.

use bytes::Bytes;
use refrain_core::{FlowId, Principal};
use std::fmt;
use std::time::{Duration, SystemTime};

/// The id of a task. It is random, since it is the only secret of an anonymous caller's task.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(Box<str>);

impl TaskId {
    const MAX_LEN: usize = 64;

    /// Makes an id from 192 random bits, as 48 hexadecimal digits.
    pub fn new(random: [u8; 24]) -> Self {
        Self(random.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Parses an id from a client. `None`: no task can have this id.
    pub fn parse(text: &str) -> Option<Self> {
        let is_valid = (1..=Self::MAX_LEN).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_valid.then(|| Self(text.into()))
    }

    /// Makes an id from a database column.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn stored(text: String) -> Self {
        Self(text.into())
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Prints only the first digits, since the id grants access to the task.
impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskId({}..)", self.0.get(..8).unwrap_or_default())
    }
}

/// The status of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoredStatus {
    /// It runs, sleeps, or waits for a worker.
    Working,
    /// It has open asks. Other branches may be running.
    InputRequired,
    /// It ended with a result.
    Completed,
    /// It ended with an error.
    Failed,
    /// Its owner or an operator cancelled it.
    Cancelled,
}

impl StoredStatus {
    /// All statuses.
    pub const ALL: [Self; 5] = [
        Self::Working,
        Self::InputRequired,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Returns the name in the protocol and in the tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns the status with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }

    /// Returns whether the task has ended.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

impl fmt::Display for StoredStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A task to create.
///
/// The bytes may be sealed; a store returns them unchanged.
#[derive(Clone)]
pub struct NewTask {
    /// Its id.
    pub id: TaskId,
    /// Its flow. An owner has at most one task per flow.
    pub flow: FlowId,
    /// Its owner.
    pub owner: Principal,
    /// The account whose quota and turns it counts for. Usually the owner. For an anonymous caller whose address is known, a
    /// name that stands for the address. It grants no access.
    pub account: Principal,
    /// The tool that was called.
    pub tool: String,
    /// The call, for the worker that runs the handler.
    pub call: Vec<u8>,
    /// Its journal.
    pub journal: Vec<u8>,
    /// The handler's status message.
    pub status_message: Option<String>,
    /// Its time to live.
    pub ttl: Duration,
    /// How often clients should poll it.
    pub poll_interval: Duration,
    /// The worker that already runs it, and the time of its lease. `None`: it is due at once.
    pub claimed: Option<(String, Duration)>,
    /// The endpoints to notify when it ends. Its end adds a [`Delivery`] to the outbox for each of them.
    pub webhooks: Vec<String>,
}

/// The result of creating a task.
#[derive(Clone, Debug)]
pub enum Creation {
    /// The new task, and the lease if a worker already runs it.
    New(StoredTask, Option<Lease>),
    /// The existing task with the same id or flow.
    Existing(StoredTask),
}

/// A task, as visible to its owner.
#[derive(Clone)]
pub struct StoredTask {
    /// Its id.
    pub id: TaskId,
    /// The tool that was called.
    pub tool: String,
    /// Its status.
    pub status: StoredStatus,
    /// The handler's status message.
    pub status_message: Option<String>,
    /// When it was created, by the store's clock.
    pub created: SystemTime,
    /// When it last changed, by the store's clock.
    pub updated: SystemTime,
    /// Its time to live, since its creation.
    pub ttl: Duration,
    /// How often clients should poll it.
    pub poll_interval: Duration,
    /// Increases with every change.
    pub revision: u64,
    /// Its open asks by key, in order. Empty unless it is `InputRequired`.
    pub asks: Vec<(String, Bytes)>,
    /// Its result if it is completed, its error if it failed.
    pub outcome: Option<Bytes>,
}

/// The tool of a task, and some of its open asks.
#[derive(Clone)]
pub struct OpenAsks {
    /// The tool that was called.
    pub tool: String,
    /// Open asks by key, in order.
    pub asks: Vec<(String, Bytes)>,
}

/// A task, as visible to an operator.
#[derive(Clone, Debug)]
pub struct TaskRow {
    /// The task, as visible to its owner.
    pub task: StoredTask,
    /// Its owner.
    pub owner: Principal,
    /// The worker that holds its lease.
    pub worker: Option<String>,
    /// When a worker may claim it: the end of the lease, if there is one. `None`: it has ended.
    pub due: Option<SystemTime>,
    /// The number of claims since its last progress.
    pub attempts: u32,
    /// The error of the last failed attempt.
    pub last_error: Option<String>,
}

/// A worker's lease of a task. Later leases have a higher fence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The task.
    pub task: TaskId,
    /// The fencing token: the number of the claim.
    pub fence: u64,
}

/// A request to claim due tasks.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The name of the worker.
    pub worker: &'a str,
    /// The tools that the worker can run.
    pub tools: &'a [String],
    /// The duration of the lease.
    pub lease: Duration,
    /// The maximum number of tasks.
    pub most: usize,
    /// Accounts whose tasks are not claimed.
    pub except: &'a [Principal],
    /// Whether tasks of anonymous callers are claimed.
    pub anonymous: bool,
}

/// A claimed task.
#[derive(Clone)]
pub struct ClaimedTask {
    /// The lease.
    pub lease: Lease,
    /// Its owner.
    pub owner: Principal,
    /// The account that it counts for.
    pub account: Principal,
    /// Its flow.
    pub flow: FlowId,
    /// The tool that was called.
    pub tool: String,
    /// The call, for the worker that runs the handler.
    pub call: Vec<u8>,
    /// Its journal.
    pub journal: Vec<u8>,
    /// The answers that are not in the journal, each with its key, in the order of their asks.
    pub answers: Vec<(String, Vec<u8>)>,
    /// The number of claims since its last progress, including this one.
    pub attempt: u32,
    /// The error of the last failed attempt.
    pub last_error: Option<String>,
    /// The remaining time to live. Zero: it has expired, and the worker must fail it.
    pub left: Duration,
    /// Its time to live.
    pub ttl: Duration,
    /// Its revision after the claim.
    pub revision: u64,
}

/// An atomic write of a worker.
#[derive(Clone, Default)]
pub struct Commit {
    /// The new journal. `None`: unchanged.
    pub journal: Option<Vec<u8>>,
    /// Whether the task made progress. This resets its attempts and its last error.
    pub progress: bool,
    /// New asks, by key. A key that this task used before is ignored.
    pub publish: Vec<(String, Vec<u8>)>,
    /// Keys of asks whose answers are in the journal.
    pub taken: Vec<String>,
    /// Keys of asks to withdraw.
    pub withdrawn: Vec<String>,
    /// The handler's new status message. `None`: the last one is kept, or removed if the task completes.
    pub status_message: Option<String>,
    /// The state of the task after the commit.
    pub next: Next,
}

impl Commit {
    /// The number of bytes that it stores, apart from the journal.
    pub(crate) fn new_bytes(&self) -> usize {
        let asks = self.publish.iter().map(|(_, ask)| ask.len());
        let outcome = match &self.next {
            Next::Complete(outcome) | Next::Fail(outcome) => outcome.len(),
            _ => 0,
        };
        asks.sum::<usize>() + outcome
    }

    /// Returns whether it changes asks.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn has_asks(&self) -> bool {
        !(self.publish.is_empty() && self.taken.is_empty() && self.withdrawn.is_empty())
    }

    /// Returns whether it changes anything that is visible to the owner.
    pub(crate) fn is_visible(&self) -> bool {
        let asks = !self.publish.is_empty() || !self.withdrawn.is_empty();
        asks || self.status_message.is_some()
            || matches!(self.next, Next::Complete(_) | Next::Fail(_))
    }
}

/// The state of a task after a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Next {
    /// The worker continues to run it.
    #[default]
    Keep,
    /// It is due after an answer, or after this time (`None`: when it expires). The attempt does
    /// not count.
    Suspend(Option<Duration>),
    /// It is due at once. The attempt does not count.
    HandOn,
    /// The attempt failed with this error. The task is due after this time.
    Retry(Duration, String),
    /// It ends with this result.
    Complete(Vec<u8>),
    /// It ends with this error.
    Fail(Vec<u8>),
}

/// The result of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitResult {
    /// The new revision of the task.
    pub revision: u64,
    /// Whether there are answers that are not in the journal.
    pub answers: bool,
}

/// A query for tasks, the latest first.
#[derive(Clone, Debug, Default)]
pub struct ListTasks {
    /// Only tasks with this status.
    pub status: Option<StoredStatus>,
    /// Only tasks of this tool.
    pub tool: Option<String>,
    /// The maximum number of tasks.
    pub most: usize,
}

/// A notification that a task has changed. Hints can be lost, so receivers must also poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The task.
    pub task: TaskId,
    /// Whether a worker may claim it.
    pub due: bool,
    /// Whether the task's worker made the change. Otherwise the worker should read the task.
    pub own: bool,
}

/// A row of the outbox: a notification to an endpoint that a task has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The name of the endpoint.
    pub endpoint: String,
    /// The id of the event, the same in every attempt and for every endpoint. A requeued task that
    /// ends again has a new event.
    pub id: String,
    /// The task.
    pub task: TaskId,
    /// The tool that was called.
    pub tool: String,
    /// The status in which the task ended.
    pub status: StoredStatus,
    /// When the task was created, by the store's clock.
    pub created: SystemTime,
    /// When it ended, by the store's clock.
    pub ended: SystemTime,
    /// The number of claims, including this one.
    pub attempt: u32,
}

/// The numbers of rows that a sweep deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepCounts {
    /// Ended tasks.
    pub tasks: u64,
    /// Records of the replay log.
    pub records: u64,
    /// Spilled tokens.
    pub tokens: u64,
}

/// Implements `Debug` with these fields only; the others are secret or long.
macro_rules! impl_debug {
    ($($type:ident { $($field:ident),+ })+) => {$(
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($type))
                    $(.field(stringify!($field), &self.$field))+
                    .finish_non_exhaustive()
            }
        }
    )+};
}

impl_debug! {
    NewTask { id, tool }
    StoredTask { id, tool, status, revision }
    OpenAsks { tool }
    ClaimedTask { lease, tool, attempt }
    Commit { progress, taken, withdrawn }
}
