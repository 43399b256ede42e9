//! A task as a client reads it.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::time::Duration;

use super::message::{ReadError, RpcFailure};
use super::reply::read_asks;

/// The longest duration that is read, in seconds: some thousand years.
const LONGEST: f64 = 1e11;

/// A task as the server shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Its id.
    pub id: String,
    /// Its status.
    pub status: TaskStatus,
    /// A description of the progress or of the outcome.
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
    /// It runs, or waits to be run.
    Working,
    /// It asks something.
    InputRequired,
    /// It is done, and this is its result.
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
    /// The keys of its asks.
    pub fn asks(&self) -> impl Iterator<Item = &str> {
        self.asks.keys().map(String::as_str)
    }

    /// Its asks by key.
    pub fn into_asks(self) -> Map<String, Value> {
        self.asks
    }

    /// Reads the result of `tasks/get`, or the params of `notifications/tasks`.
    pub fn read(raw: &RawValue) -> Result<Self, ReadError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Shape {
            task_id: String,
            status: String,
            status_message: Option<String>,
            #[serde(default)]
            created_at: String,
            #[serde(default)]
            last_updated_at: String,
            ttl_ms: Option<Box<RawValue>>,
            poll_interval_ms: Option<Box<RawValue>>,
            input_requests: Option<Box<RawValue>>,
            result: Option<Value>,
            error: Option<RpcFailure>,
        }

        let bad = |why: &str| ReadError::Task(why.to_owned());
        let shape: Shape = serde_json::from_str(raw.get())
            .map_err(ReadError::result("the task cannot be read"))?;
        let status = match (shape.status.as_str(), shape.result, shape.error) {
            ("working", ..) => TaskStatus::Working,
            ("input_required", ..) => TaskStatus::InputRequired,
            ("completed", Some(result), _) => TaskStatus::Completed(result),
            ("completed", None, _) => return Err(bad("it is completed without a result")),
            ("failed", _, Some(error)) => TaskStatus::Failed(error),
            ("failed", _, None) => return Err(bad("it has failed without an error")),
            ("cancelled", ..) => TaskStatus::Cancelled,
            (other, ..) => return Err(bad(&format!("its status is {other:?}"))),
        };
        Ok(Self {
            id: shape.task_id,
            status,
            message: shape.status_message,
            created_at: shape.created_at,
            updated_at: shape.last_updated_at,
            ttl: shape.ttl_ms.and_then(|raw| milliseconds(&raw)),
            poll_interval: shape.poll_interval_ms.and_then(|raw| milliseconds(&raw)),
            asks: read_asks(shape.input_requests)?,
        })
    }
}

/// A duration as tasks have it: any number of milliseconds. An invalid one is ignored; the task is not lost with it.
fn milliseconds(raw: &RawValue) -> Option<Duration> {
    let time: f64 = raw.get().parse().ok()?;
    (time >= 0.0).then(|| Duration::from_secs_f64((time / 1000.0).min(LONGEST)))
}
