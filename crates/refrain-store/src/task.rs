//! Tasks as a store keeps them.

use refrain_core::{FlowId, Principal};
use std::fmt;
use std::time::{Duration, SystemTime};

/// The id of a task. It is random: for anonymous callers it is the only secret.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(Box<str>);

impl TaskId {
    const LONGEST: usize = 64;

    /// An id of 192 random bits, as 48 hexadecimal digits.
    pub fn new(random: [u8; 24]) -> Self {
        Self(random.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// An id from a client. `None`: no task can have this id.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        (plain && text.len() <= Self::LONGEST).then(|| Self(text.into()))
    }

    /// An id from a table.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn stored(text: String) -> Self {
        Self(text.into())
    }

    /// The text of the id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Prints only the start, since the whole id gives access to the task.
impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskId({}..)", self.0.get(..8).unwrap_or_default())
    }
}

/// The status of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskStatus {
    /// It runs or waits for a worker.
    Working,
    /// It has open asks. Other branches of it may be running.
    InputRequired,
    /// It ended with a result.
    Completed,
    /// It ended with an error.
    Failed,
    /// Its owner cancelled it.
    Cancelled,
}

impl TaskStatus {
    /// Every status.
    pub const ALL: [Self; 5] = [
        Self::Working,
        Self::InputRequired,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Its name in the protocol and in the tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The status of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }

    /// Whether the task has ended.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

impl fmt::Display for TaskStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A task to create.
///
/// A store returns all bytes unchanged; they may be sealed.
#[derive(Clone)]
pub struct NewTask {
    /// Its id.
    pub id: TaskId,
    /// Its flow. An owner has at most one task of a flow.
    pub flow: FlowId,
    /// Its owner.
    pub owner: Principal,
    /// The tool that was called.
    pub tool: String,
    /// The call, as a worker needs it to run the handler.
    pub call: Vec<u8>,
    /// Its journal.
    pub journal: Vec<u8>,
    /// The handler's message.
    pub status_message: Option<String>,
    /// Its time to live.
    pub ttl: Duration,
    /// How often clients should poll it.
    pub poll_interval: Duration,
    /// The worker that runs it already, and the time of its lease. `None`: it is due at once.
    pub claimed: Option<(String, Duration)>,
}

/// The result of creating a task.
#[derive(Clone, Debug)]
pub enum Created {
    /// The new task, and the lease of the worker that runs it already.
    New(Task, Option<Lease>),
    /// The task with the same id or flow that existed before.
    Before(Task),
}

/// A task as its owner sees it.
#[derive(Clone)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// The tool that was called.
    pub tool: String,
    /// Its status.
    pub status: TaskStatus,
    /// The handler's message.
    pub status_message: Option<String>,
    /// When it was created, by the store's clock.
    pub created: SystemTime,
    /// When it last changed, by the store's clock.
    pub updated: SystemTime,
    /// Its time to live, from its creation.
    pub ttl: Duration,
    /// How often clients should poll it.
    pub poll_interval: Duration,
    /// Grows with every change.
    pub revision: u64,
    /// Its open asks by key, in the order asked. Empty unless it is `InputRequired`.
    pub asks: Vec<(String, Vec<u8>)>,
    /// Its result if it is completed, its error if it failed.
    pub outcome: Option<Vec<u8>>,
}

/// A task as an operator sees it.
#[derive(Clone, Debug)]
pub struct TaskRow {
    /// The task as its owner sees it.
    pub task: Task,
    /// Its owner.
    pub owner: Principal,
    /// The worker that holds a lease of it.
    pub worker: Option<String>,
    /// When a worker may claim it: at the end of the lease if there is one. `None`: it has ended.
    pub due: Option<SystemTime>,
    /// How often it was claimed since its last progress.
    pub attempts: u32,
    /// The error of the last failed attempt.
    pub last_error: Option<String>,
}

/// A worker's claim to a task. Later claims have a higher fence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The task.
    pub task: TaskId,
    /// The number of the claim.
    pub fence: u64,
}

/// A request for tasks that are due.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The name of the worker.
    pub worker: &'a str,
    /// The tools that the worker has.
    pub tools: &'a [String],
    /// The time of the lease.
    pub lease: Duration,
    /// The largest number of tasks.
    pub most: usize,
}

/// A task that a worker claimed.
#[derive(Clone)]
pub struct Claimed {
    /// The lease.
    pub lease: Lease,
    /// Its owner.
    pub owner: Principal,
    /// Its flow.
    pub flow: FlowId,
    /// The tool that was called.
    pub tool: String,
    /// The call, to run the handler.
    pub call: Vec<u8>,
    /// Its journal.
    pub journal: Vec<u8>,
    /// The answers that are not in the journal, by key, in the order of their asks.
    pub answers: Vec<(String, Vec<u8>)>,
    /// How often it was claimed since its last progress, including this claim.
    pub attempt: u32,
    /// The error of the last failed attempt.
    pub last_error: Option<String>,
    /// The time left to live. Zero: it has expired, and the worker fails it.
    pub left: Duration,
    /// Its time to live.
    pub ttl: Duration,
    /// Its revision after the claim.
    pub revision: u64,
}

/// A write of a worker, done completely or not at all.
#[derive(Clone, Default)]
pub struct Commit {
    /// The new journal; `None` keeps it.
    pub journal: Option<Vec<u8>>,
    /// Whether the task made progress. This resets its attempts and its last error.
    pub progress: bool,
    /// New asks, by key. A key that this task used before is ignored.
    pub publish: Vec<(String, Vec<u8>)>,
    /// Keys whose answers are in the journal.
    pub taken: Vec<String>,
    /// Keys of asks that are withdrawn.
    pub withdrawn: Vec<String>,
    /// The handler's message; `None` keeps the last one, or removes it if the task completes.
    pub status_message: Option<String>,
    /// The continuation.
    pub next: Next,
}

impl Commit {
    /// Whether it changes asks.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn has_asks(&self) -> bool {
        !(self.publish.is_empty() && self.taken.is_empty() && self.withdrawn.is_empty())
    }

    /// Whether it changes what the owner sees.
    pub(crate) fn is_seen(&self) -> bool {
        let asks = !self.publish.is_empty() || !self.withdrawn.is_empty();
        asks || self.status_message.is_some()
            || matches!(self.next, Next::Complete(_) | Next::Fail(_))
    }
}

/// The continuation of a task after a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Next {
    /// The worker keeps running it.
    #[default]
    Keep,
    /// It is due after an answer or after this time. The attempt does not count.
    SetDown(Option<Duration>),
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
pub struct Committed {
    /// The new revision of the task.
    pub revision: u64,
    /// Whether there are answers that are not in the journal.
    pub answers: bool,
}

/// A query for tasks, the latest first.
#[derive(Clone, Debug, Default)]
pub struct ListTasks {
    /// Only tasks with this status.
    pub status: Option<TaskStatus>,
    /// Only tasks of this tool.
    pub tool: Option<String>,
    /// The largest number of tasks.
    pub most: usize,
}

/// A notification of a change of a task. Hints may be lost, so receivers poll as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The task.
    pub task: TaskId,
    /// Whether a worker may claim it.
    pub due: bool,
    /// Whether its own worker made the change. If not, the worker should read the task.
    pub own: bool,
}

/// The numbers of rows that a sweep deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Ended tasks.
    pub tasks: u64,
    /// Records of the replay log.
    pub records: u64,
    /// Spilled tokens.
    pub tokens: u64,
}

/// Implements `Debug` with these fields only: the others are private to the owner, or long.
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
    Task { id, tool, status, revision }
    Claimed { lease, tool, attempt }
    Commit { progress, taken, withdrawn }
}
