//! The extension `io.modelcontextprotocol/tasks`: its three requests, and a task as clients see it.
//!
//! What always holds: a task is shown with what its status calls for, and with nothing of another status.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::call::{Answers, ResultBody};
use crate::decode::{Text, is_object, once, once_nested, reason, skip};
use crate::error::RpcError;
use crate::meta::Meta;
use crate::ratified::{missing_meta, write_error_object};
use crate::write;

/// The largest number of milliseconds that every reader has exactly.
const MOST_MILLIS: u64 = 9_007_199_254_740_991;

/// Which request about a task a request is.
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
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Get, Self::Update, Self::Cancel];

    /// The method's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "tasks/get",
            Self::Update => "tasks/update",
            Self::Cancel => "tasks/cancel",
        }
    }

    /// The request about a task that a method is, if it is one.
    pub fn from_method(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == method)
    }
}

/// The parameters of a request about a task.
#[derive(Debug, Clone)]
pub struct TaskParams<'a> {
    /// What the request says about itself and its sender.
    pub meta: Meta<'a>,
    /// Which request it is.
    pub method: TaskMethod,
    /// The id of the task.
    pub id: Cow<'a, str>,
    /// The answers that an update brings; none in any other request.
    pub answers: Answers<'a>,
}

/// Reads the params of a request about a task.
pub fn decode_task<'a>(
    method: TaskMethod,
    params: Option<&'a RawValue>,
) -> Result<TaskParams<'a>, RpcError> {
    let raw = params.ok_or_else(|| {
        RpcError::invalid_params("params is missing; send an object with taskId and _meta in it")
    })?;
    if !is_object(raw) {
        return Err(RpcError::invalid_params("params must be an object"));
    }
    let mut deserializer = serde_json::Deserializer::from_str(raw.get());
    TaskSeed(method)
        .deserialize(&mut deserializer)
        .map_err(|error| RpcError::invalid_params(reason(&error)))
}

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum TaskKey {
    TaskId,
    InputResponses,
    #[serde(rename = "_meta")]
    Meta,
    #[serde(other)]
    Other,
}

/// Reads the params of this request.
struct TaskSeed(TaskMethod);

impl<'de> DeserializeSeed<'de> for TaskSeed {
    type Value = TaskParams<'de>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TaskSeed {
    type Value = TaskParams<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("params as an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Self(method) = self;
        let updates = method == TaskMethod::Update;
        let mut id: Option<Text<'de>> = None;
        let mut answers: Option<Answers<'de>> = None;
        let mut meta: Option<Meta<'de>> = None;
        while let Some(key) = map.next_key()? {
            match key {
                TaskKey::TaskId => once(&mut map, &mut id, "taskId", "a string")?,
                TaskKey::InputResponses if updates => {
                    once_nested(&mut map, &mut answers, "inputResponses")?;
                }
                TaskKey::Meta => once_nested(&mut map, &mut meta, "_meta")?,
                _ => skip(&mut map)?,
            }
        }
        let missing = |name: &str| {
            let method = method.as_str();
            A::Error::custom(format_args!("{name} is missing; {method} needs it"))
        };
        if updates && answers.is_none() {
            return Err(missing("inputResponses"));
        }
        Ok(TaskParams {
            meta: meta.ok_or_else(missing_meta)?,
            method,
            id: id.ok_or_else(|| missing("taskId"))?.0,
            answers: answers.unwrap_or_default(),
        })
    }
}

/// A task as clients see it.
#[derive(Debug, Clone)]
pub struct TaskInfo {
    /// Its id.
    pub id: String,
    /// How it stands.
    pub state: TaskState,
    /// What it is doing, or why it ended as it did.
    pub status_message: Option<String>,
    /// When it was made.
    pub created_at: SystemTime,
    /// When it last changed.
    pub updated_at: SystemTime,
    /// How long it may live from its creation.
    pub ttl: Duration,
    /// How often to look after it.
    pub poll_interval: Duration,
}

/// How a task stands, with what belongs to that.
#[derive(Debug, Clone)]
pub enum TaskState {
    /// It runs, or waits to be run.
    Working,
    /// It asks something: the asks as JSON, by key, in the order they were made.
    InputRequired(Vec<(String, Box<RawValue>)>),
    /// It is done: its result, as [`result_at_rest`] wrote it.
    Completed(Box<RawValue>),
    /// It could not be done: its error, as [`error_at_rest`] wrote it.
    Failed(Box<RawValue>),
    /// It was called off.
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

impl TaskInfo {
    /// The members of the reply to a call that has become this task, for [`Reply::Task`](crate::Reply::Task).
    pub fn to_created(&self) -> ResultBody {
        let mut out = self.open();
        out.push(b'}');
        ResultBody::from_object(out)
    }

    /// The members of the result of `tasks/get`, and of the news of a change: what it asks and how it ended included.
    pub fn to_detailed(&self) -> ResultBody {
        let mut out = self.open();
        match &self.state {
            TaskState::Working | TaskState::Cancelled => {}
            TaskState::InputRequired(asks) => {
                out.extend_from_slice(b",\"inputRequests\":{");
                for (i, (key, ask)) in asks.iter().enumerate() {
                    if i > 0 {
                        out.push(b',');
                    }
                    write::text(&mut out, key);
                    out.push(b':');
                    write::raw(&mut out, ask);
                }
                out.push(b'}');
            }
            TaskState::Completed(result) => {
                out.extend_from_slice(b",\"result\":");
                write::raw(&mut out, result);
            }
            TaskState::Failed(error) => {
                out.extend_from_slice(b",\"error\":");
                write::raw(&mut out, error);
            }
        }
        out.push(b'}');
        ResultBody::from_object(out)
    }

    /// The object up to where the members of its status would follow.
    fn open(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        out.extend_from_slice(b"{\"taskId\":");
        write::text(&mut out, &self.id);
        out.extend_from_slice(b",\"status\":");
        write::text(&mut out, self.state.as_str());
        if let Some(message) = &self.status_message {
            out.extend_from_slice(b",\"statusMessage\":");
            write::text(&mut out, message);
        }
        out.extend_from_slice(b",\"createdAt\":");
        write::text(&mut out, &timestamp(self.created_at));
        out.extend_from_slice(b",\"lastUpdatedAt\":");
        write::text(&mut out, &timestamp(self.updated_at));
        out.extend_from_slice(b",\"ttlMs\":");
        write::json(&mut out, &millis(self.ttl));
        out.extend_from_slice(b",\"pollIntervalMs\":");
        write::json(&mut out, &millis(self.poll_interval));
        out
    }
}

/// A result as it is kept until somebody asks for it: the text of an object.
pub fn result_at_rest(body: &ResultBody) -> String {
    let mut text = format!("{{{}", body.members());
    if let Some(meta) = body.meta() {
        let comma = if body.members().is_empty() { "" } else { "," };
        text.push_str(comma);
        text.push_str("\"_meta\":{");
        text.push_str(meta);
        text.push('}');
    }
    text.push('}');
    text
}

/// An error as it is kept until somebody asks for it: the text of an object.
pub fn error_at_rest(error: &RpcError) -> String {
    let mut out = Vec::with_capacity(128);
    write_error_object(&mut out, error.code.as_i32(), error);
    String::from_utf8_lossy(&out).into_owned()
}

/// Whole milliseconds, at least one: none would say that there is no time at all.
fn millis(time: Duration) -> u64 {
    let millis = u64::try_from(time.as_millis()).unwrap_or(MOST_MILLIS);
    millis.clamp(1, MOST_MILLIS)
}

/// A time in UTC as ISO 8601 and RFC 3339 have it, to the millisecond. One before 1970 or after 9999 is the nearest that
/// is not.
pub fn timestamp(time: SystemTime) -> String {
    const LAST: u128 = 253_402_300_799_999;
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let millis = u64::try_from(since.as_millis().min(LAST)).unwrap_or_default();
    let (seconds, millis) = (millis / 1000, millis % 1000);
    let (year, month, day) = date(seconds / 86400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// The year, month and day that is so many days after the first of January 1970.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    // Counted in years that begin on the first of March, so that a leap day is the last of its year; from the first of
    // March of the year 0, which is where 400 years begin.
    let days = days + 719_468;
    let (era, day) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    // Every fourth year has a leap day, every hundredth has none, the four hundredth has one.
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Five months from March have 153 days, in the same order again and again.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339_has_them() {
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
    fn every_day_of_eight_centuries_follows_the_one_before() {
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
