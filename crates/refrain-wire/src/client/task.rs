//! Tasks, as the client reads them.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::time::Duration;

use super::message::{ReadError, RpcFailure, read};
use super::reply::read_asks;

/// Longer status messages are cut to this many bytes.
const STATUS_MESSAGE_MAX: usize = 64 * 1024;

/// Longer durations are clamped to this many seconds (about 3000 years).
const MAX_SECONDS: f64 = 1e11;

/// A task on a server.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Its id.
    pub id: String,
    /// Its status.
    pub status: TaskStatus,
    /// A description of the progress or of the outcome, at most 64 KiB of it.
    pub message: Option<String>,
    /// The time of its creation, as sent.
    pub created_at: String,
    /// The time of its last change, as sent.
    pub updated_at: String,
    /// Its lifetime from its creation, if it is limited.
    pub ttl: Option<Duration>,
    /// The interval at which to poll it.
    pub poll_interval: Option<Duration>,
    asks: Map<String, Value>,
}

/// The status of a task, with its outcome.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum TaskStatus {
    /// It runs or is queued.
    Working,
    /// It waits for answers.
    InputRequired,
    /// It has finished with this result.
    Completed(Value),
    /// It failed.
    Failed(RpcFailure),
    /// It was cancelled.
    Cancelled,
}

impl TaskStatus {
    /// The name of the status.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed(_) => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the task has ended.
    pub fn is_over(&self) -> bool {
        !matches!(self, Self::Working | Self::InputRequired)
    }
}

impl Task {
    /// Its asks by key.
    pub fn asks(&self) -> &Map<String, Value> {
        &self.asks
    }

    /// Its asks by key.
    pub fn into_asks(self) -> Map<String, Value> {
        self.asks
    }

    /// Reads the result of `tasks/get`, or the params of `notifications/tasks`.
    pub fn read(raw: &RawValue) -> Result<Self, ReadError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct RawTask<'a> {
            task_id: String,
            status: String,
            status_message: Option<String>,
            #[serde(default)]
            created_at: String,
            #[serde(default)]
            last_updated_at: String,
            ttl_ms: Option<Box<RawValue>>,
            poll_interval_ms: Option<Box<RawValue>>,
            #[serde(borrow)]
            input_requests: Option<&'a RawValue>,
            result: Option<Value>,
            error: Option<RpcFailure>,
        }

        let invalid = |why: &str| ReadError::Task(why.to_owned());
        let task: RawTask<'_> = read(raw, "invalid task")?;
        let status = match (task.status.as_str(), task.result, task.error) {
            ("working", ..) => TaskStatus::Working,
            ("input_required", ..) => TaskStatus::InputRequired,
            ("completed", Some(result), _) => TaskStatus::Completed(result),
            ("completed", None, _) => return Err(invalid("completed without a result")),
            ("failed", _, Some(error)) => TaskStatus::Failed(error),
            ("failed", _, None) => return Err(invalid("failed without an error")),
            ("cancelled", ..) => TaskStatus::Cancelled,
            (other, ..) => return Err(invalid(&format!("unknown status {other:?}"))),
        };
        Ok(Self {
            id: task.task_id,
            status,
            message: task.status_message.map(cut),
            created_at: task.created_at,
            updated_at: task.last_updated_at,
            ttl: task.ttl_ms.and_then(|raw| milliseconds(&raw)),
            poll_interval: task.poll_interval_ms.and_then(|raw| milliseconds(&raw)),
            asks: read_asks(task.input_requests)?,
        })
    }
}

fn cut(mut message: String) -> String {
    if message.len() > STATUS_MESSAGE_MAX {
        message.truncate(message.floor_char_boundary(STATUS_MESSAGE_MAX));
        message.shrink_to_fit();
    }
    message
}

/// A number of milliseconds. An invalid one is ignored, so that the rest of the task can still be read.
fn milliseconds(raw: &RawValue) -> Option<Duration> {
    let time: f64 = raw.get().parse().ok()?;
    (time >= 0.0).then(|| Duration::from_secs_f64((time / 1000.0).min(MAX_SECONDS)))
}
