//! The extension `io.modelcontextprotocol/tasks`: its three requests, and the representation of a task.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::call::{Answers, ResultBody};
use crate::error::RpcError;
use crate::members::Reader;
use crate::meta::Meta;
use crate::ratified::write_error_object;
use crate::write::MAX_INTEGER;

/// The methods of the tasks extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskMethod {
    /// `tasks/get`.
    Get,
    /// `tasks/update`.
    Update,
    /// `tasks/cancel`.
    Cancel,
}

impl TaskMethod {
    /// All methods.
    pub const ALL: [Self; 3] = [Self::Get, Self::Update, Self::Cancel];

    /// The method's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "tasks/get",
            Self::Update => "tasks/update",
            Self::Cancel => "tasks/cancel",
        }
    }

    /// The task method with this name.
    pub fn from_method(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == method)
    }
}

/// The params of a task request.
#[derive(Debug, Clone)]
pub struct TaskParams<'a> {
    /// The `_meta` of the request.
    pub meta: Meta<'a>,
    /// The method.
    pub method: TaskMethod,
    /// The id of the task.
    pub id: Cow<'a, str>,
    /// The answers of an update.
    pub answers: Answers<'a>,
}

/// Reads the params of a task request.
pub fn decode_task<'a>(
    method: TaskMethod,
    params: Option<&'a RawValue>,
) -> Result<TaskParams<'a>, RpcError> {
    let params = Reader::params(params, "taskId and _meta")?;
    let missing = |name| params.error(name, &format!("is missing; {} needs it", method.as_str()));
    let answers = match method {
        TaskMethod::Update => {
            let answers = params.nested("inputResponses")?;
            answers.ok_or_else(|| missing("inputResponses"))?
        }
        TaskMethod::Get | TaskMethod::Cancel => Answers::default(),
    };
    Ok(TaskParams {
        meta: params.meta()?,
        method,
        id: params.text("taskId")?.ok_or_else(|| missing("taskId"))?,
        answers,
    })
}

/// A task, as clients see it.
#[derive(Debug, Clone)]
pub struct TaskInfo {
    /// Its id.
    pub id: String,
    /// Its state.
    pub state: TaskState,
    /// A description of the progress or of the outcome.
    pub status_message: Option<String>,
    /// The time of its creation.
    pub created_at: SystemTime,
    /// The time of its last change.
    pub updated_at: SystemTime,
    /// Its lifetime from its creation.
    pub ttl: Duration,
    /// The interval at which to poll it.
    pub poll_interval: Duration,
}

/// The state of a task, with its asks or its outcome.
#[derive(Debug, Clone)]
pub enum TaskState {
    /// It runs or is queued.
    Working,
    /// It waits for answers to these asks: JSON by key, in the order they were made.
    InputRequired(Vec<(String, Box<RawValue>)>),
    /// It has finished with a result from [`stored_result`].
    Completed(Box<RawValue>),
    /// It failed with an error from [`stored_error`].
    Failed(Box<RawValue>),
    /// It was cancelled.
    Cancelled,
}

impl TaskState {
    /// The name of the status.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired(_) => "input_required",
            Self::Completed(_) => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The JSON representation of a task.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TaskMembers<'a> {
    task_id: &'a str,
    status: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status_message: Option<&'a str>,
    created_at: String,
    last_updated_at: String,
    ttl_ms: u64,
    poll_interval_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_requests: Option<Asks<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RawValue>,
}

struct Asks<'a>(&'a [(String, Box<RawValue>)]);

impl Serialize for Asks<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, ask)| (key, ask)))
    }
}

impl TaskInfo {
    /// The reply to the call that created the task, for [`Reply::Task`](crate::Reply::Task).
    pub fn to_created(&self) -> ResultBody {
        to_body(&self.members())
    }

    /// The task with its asks and outcome, for `tasks/get` and `notifications/tasks`.
    pub fn to_detailed(&self) -> ResultBody {
        let mut members = self.members();
        match &self.state {
            TaskState::Working | TaskState::Cancelled => {}
            TaskState::InputRequired(asks) => members.input_requests = Some(Asks(asks)),
            TaskState::Completed(result) => members.result = Some(result),
            TaskState::Failed(error) => members.error = Some(error),
        }
        to_body(&members)
    }

    fn members(&self) -> TaskMembers<'_> {
        TaskMembers {
            task_id: &self.id,
            status: self.state.as_str(),
            status_message: self.status_message.as_deref(),
            created_at: timestamp(self.created_at),
            last_updated_at: timestamp(self.updated_at),
            ttl_ms: millis(self.ttl),
            poll_interval_ms: millis(self.poll_interval),
            input_requests: None,
            result: None,
            error: None,
        }
    }
}

fn to_body(members: &TaskMembers<'_>) -> ResultBody {
    ResultBody::from_members(members).expect("strings and numbers serialize")
}

/// Serializes a result for storage.
pub fn stored_result(body: &ResultBody) -> String {
    let mut text = format!("{{{}", body.members());
    if let Some(meta) = body.meta() {
        let comma = if text.len() == 1 { "" } else { "," };
        text.push_str(comma);
        text.push_str("\"_meta\":{");
        text.push_str(meta);
        text.push('}');
    }
    text.push('}');
    text
}

/// Serializes an error for storage.
pub fn stored_error(error: &RpcError) -> String {
    let mut out = Vec::with_capacity(128);
    write_error_object(&mut out, error.code.as_i32(), error);
    String::from_utf8_lossy(&out).into_owned()
}

/// Whole milliseconds, at least one.
fn millis(time: Duration) -> u64 {
    let millis = u64::try_from(time.as_millis()).unwrap_or(MAX_INTEGER);
    millis.clamp(1, MAX_INTEGER)
}

/// Formats a time as RFC 3339 in UTC with milliseconds. Clamps it to the years 1970 to 9999.
pub fn timestamp(time: SystemTime) -> String {
    const MAX_MILLIS: u128 = 253_402_300_799_999;
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let millis = u64::try_from(since.as_millis().min(MAX_MILLIS)).unwrap_or_default();
    let (seconds, millis) = (millis / 1000, millis % 1000);
    let (year, month, day) = date(seconds / 86400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// The year, month and day of a number of days after 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    // Count from 0000-03-01 in years that begin in March, so that the leap day is the last day of a year.
    let days = days + 719_468;
    let (era, day) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    // Leap days: every 4th year, except every 100th, except every 400th.
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // From March on, every five months have 153 days.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_rfc_3339() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_785_196_800_007, "2026-07-28T00:00:00.007Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
            (253_402_300_800_000, "9999-12-31T23:59:59.999Z"),
        ] {
            let time = UNIX_EPOCH + Duration::from_millis(millis);
            assert_eq!(timestamp(time), text);
        }
        let before = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(timestamp(before), "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn dates_of_eight_centuries_are_consecutive() {
        let leap = |year: u64| {
            year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
        };
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..300_000 {
            assert_eq!(date(days), (year, month, day));
            let last = match month {
                2 if leap(year) => 29,
                2 => 28,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > last {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
    }
}
