//! What a task is to a store.

use refrain_core::{FlowId, Principal};
use std::fmt;
use std::time::{Duration, SystemTime};

/// Names a task. It is the only secret of a task whose caller is anonymous, so it is made of randomness.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(Box<str>);

impl TaskId {
    /// Characters of the longest id that is looked for.
    const LONGEST: usize = 64;

    /// An id of 192 random bits, as 48 hexadecimal digits.
    pub fn new(random: [u8; 24]) -> Self {
        Self(random.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// An id as a client sent it. `None`: no task can have such an id.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        (plain && text.len() <= Self::LONGEST).then(|| Self(text.into()))
    }

    /// An id that was one when it was written into a table.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn stored(text: &str) -> Self {
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

/// Only its beginning: who knows the whole of it may have the task.
impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskId({}..)", self.0.get(..8).unwrap_or_default())
    }
}

/// How a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskStatus {
    /// It runs, or waits to be run.
    Working,
    /// It has open asks. Other branches of it may be running all the same.
    InputRequired,
    /// It is done, and has a result.
    Completed,
    /// It could not be done, and has an error.
    Failed,
    /// It was called off.
    Cancelled,
}

impl TaskStatus {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Working,
        Self::InputRequired,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Its name, as the protocol and the tables have it.
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

    /// Can nothing happen to it any more?
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

impl fmt::Display for TaskStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A task that is to be.
///
/// What a store is given as bytes it gives back as they are: it may be sealed.
#[derive(Clone)]
pub struct NewTask {
    /// Its id.
    pub id: TaskId,
    /// The flow that it carries on. There is at most one task of a flow.
    pub flow: FlowId,
    /// Whose it is.
    pub owner: Principal,
    /// The tool that was called.
    pub tool: String,
    /// What a worker needs to run the handler, beside the journal.
    pub call: Vec<u8>,
    /// The journal so far.
    pub journal: Vec<u8>,
    /// What it is doing, if the handler has said so.
    pub status_message: Option<String>,
    /// How long it may live.
    pub ttl: Duration,
    /// How often clients should look after it.
    pub poll_interval: Duration,
    /// Who runs it already and for how long they have it; `None` leaves it to whoever comes first.
    pub claimed: Option<(String, Duration)>,
}

/// What comes of creating a task.
#[derive(Clone, Debug)]
pub enum Created {
    /// It is there now. The lease is that of the worker that runs it already.
    New(Task, Option<Lease>),
    /// The flow had become a task before: this one.
    Before(Task),
}

/// A task as its owner may see it.
#[derive(Clone)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// The tool that was called.
    pub tool: String,
    /// How it stands.
    pub status: TaskStatus,
    /// What it is doing, in the handler's words.
    pub status_message: Option<String>,
    /// When it was made, by the store's clock.
    pub created: SystemTime,
    /// When it last changed, by the store's clock.
    pub updated: SystemTime,
    /// How long it may live from its creation.
    pub ttl: Duration,
    /// How often clients should look after it.
    pub poll_interval: Duration,
    /// Grows with every change.
    pub revision: u64,
    /// What it asks and has no answer to yet, by key, in the order asked. Empty unless it is `InputRequired`.
    pub asks: Vec<(String, Vec<u8>)>,
    /// Its result or its error, when it is completed or failed.
    pub outcome: Option<Vec<u8>>,
}

/// A task as an operator may see it.
#[derive(Clone, Debug)]
pub struct TaskRow {
    /// What its owner may see.
    pub task: Task,
    /// Whose it is.
    pub owner: Principal,
    /// The worker that has it now.
    pub worker: Option<String>,
    /// When it is next due: the end of the lease while a worker has it, else when a worker may take it. `None` once
    /// it is over.
    pub due: Option<SystemTime>,
    /// How often it was taken since it last got on.
    pub attempts: u32,
    /// What the last attempt failed of.
    pub last_error: Option<String>,
}

/// A worker's hold of a task. Whoever takes the task after it has a higher fence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The task.
    pub task: TaskId,
    /// The number of the hold.
    pub fence: u64,
}

/// What a worker wants to take.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// Who takes it.
    pub worker: &'a str,
    /// The tools that the worker has.
    pub tools: &'a [String],
    /// For how long.
    pub lease: Duration,
    /// How many at most.
    pub most: usize,
}

/// A task that a worker took.
#[derive(Clone)]
pub struct Claimed {
    /// The hold of it.
    pub lease: Lease,
    /// Whose it is.
    pub owner: Principal,
    /// The flow that it carries on.
    pub flow: FlowId,
    /// The tool that was called.
    pub tool: String,
    /// What is needed to run the handler, beside the journal.
    pub call: Vec<u8>,
    /// The journal.
    pub journal: Vec<u8>,
    /// The answers that are not in the journal yet, by key, in the order in which they were asked for.
    pub answers: Vec<(String, Vec<u8>)>,
    /// How often it was taken since it last got on, this time included.
    pub attempt: u32,
    /// What the last attempt failed of.
    pub last_error: Option<String>,
    /// How long it has to live. Zero: its time is over, and it is to be failed.
    pub left: Duration,
    /// How long it was to live in all.
    pub ttl: Duration,
    /// Its revision after it was taken.
    pub revision: u64,
}

/// What a worker writes. All of it or nothing is done.
#[derive(Clone, Default)]
pub struct Commit {
    /// The journal as it is now; `None` leaves it.
    pub journal: Option<Vec<u8>>,
    /// Has the task got on? Then its attempts begin anew, and what the last one failed of is forgotten.
    pub progress: bool,
    /// New asks, by key. A key that was used before in this task is left as it is.
    pub publish: Vec<(String, Vec<u8>)>,
    /// Keys whose answers are in this journal.
    pub taken: Vec<String>,
    /// Keys that need no answer any more.
    pub withdrawn: Vec<String>,
    /// What the task is doing; `None` leaves what was said before, but for a task that is done: then nothing is said.
    pub status_message: Option<String>,
    /// How it goes on.
    pub next: Next,
}

impl Commit {
    /// Is there something in it that whoever looks after the task can see?
    pub(crate) fn is_seen(&self) -> bool {
        let asks = !self.publish.is_empty() || !self.withdrawn.is_empty();
        asks || self.status_message.is_some()
            || matches!(self.next, Next::Complete(_) | Next::Fail(_))
    }
}

/// How a task goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Next {
    /// The worker keeps it.
    #[default]
    Keep,
    /// It leaves memory until an answer comes, or this time has passed. The attempt does not count.
    SetDown(Option<Duration>),
    /// Another worker may take it at once. The attempt does not count.
    HandOn,
    /// The attempt failed: it may be tried again after this time.
    Retry(Duration, String),
    /// It is done, with this result.
    Complete(Vec<u8>),
    /// It is over, with this error.
    Fail(Vec<u8>),
}

/// What a store says of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The task's revision now.
    pub revision: u64,
    /// Are there answers that no journal has yet?
    pub answers: bool,
}

/// What of a store's tasks an operator wants to see: the latest first.
#[derive(Clone, Debug, Default)]
pub struct ListTasks {
    /// Only those that stand so.
    pub status: Option<TaskStatus>,
    /// Only those of this tool.
    pub tool: Option<String>,
    /// How many at most.
    pub most: usize,
}

/// A word that something happened to a task. One may be lost at any time: whoever needs to know looks by themselves, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The task.
    pub task: TaskId,
    /// May a worker take it?
    pub due: bool,
    /// Was it written by the worker that has it? If not, that worker should look.
    pub own: bool,
}

/// What a sweep has thrown away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Tasks that were over, and whose time was.
    pub tasks: u64,
    /// Records of the replay log.
    pub records: u64,
    /// Tokens that had waited here.
    pub tokens: u64,
}

// What tasks hold is private, and may be long.

impl fmt::Debug for NewTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewTask")
            .field("id", &self.id)
            .field("tool", &self.tool)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("id", &self.id)
            .field("tool", &self.tool)
            .field("status", &self.status)
            .field("revision", &self.revision)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Claimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claimed")
            .field("lease", &self.lease)
            .field("tool", &self.tool)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = |asks: &[(String, Vec<u8>)]| asks.iter().map(|(key, _)| key.clone()).collect();
        let published: Vec<String> = keys(&self.publish);
        f.debug_struct("Commit")
            .field("journal", &self.journal.as_ref().map(Vec::len))
            .field("publish", &published)
            .field("taken", &self.taken)
            .field("withdrawn", &self.withdrawn)
            .finish_non_exhaustive()
    }
}
