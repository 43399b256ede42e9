//! Translates tasks between the ratified revision and a draft.

use serde_json::Value;
use serde_json::value::RawValue;

use super::object::{Object, read_object, rename, set, to_text};
use super::{Draft, RATIFIED};

/// The members for asks and outcome, which the drafts do not have in a task.
const OUTCOME: [&str; 3] = [RATIFIED.asks, "result", "error"];

impl Draft {
    /// Translates a task to the draft.
    pub(super) fn write_task(self, mut task: Object) -> Object {
        if task.get("result").is_some_and(is_error) {
            // In 2025-11-25, a task whose result has `isError` counts as failed.
            set(&mut task, "status", "failed");
        }
        for name in OUTCOME {
            task.shift_remove(name);
        }
        rename(&mut task, "ttlMs", "ttl");
        rename(&mut task, "pollIntervalMs", "pollInterval");
        if self == Self::First {
            task.shift_remove("lastUpdatedAt");
            if let Some(Value::String(status)) = task.get_mut("status") {
                *status = capitalised(status);
            }
        }
        task
    }

    /// Translates a task to the ratified revision.
    pub(super) fn read_task(self, mut task: Object) -> Object {
        rename(&mut task, "ttl", "ttlMs");
        rename(&mut task, "pollInterval", "pollIntervalMs");
        if self == Self::First {
            if let Some(Value::String(status)) = task.get_mut("status") {
                status.make_ascii_lowercase();
            }
            if let Some(created) = task.get("createdAt").cloned() {
                task.entry("lastUpdatedAt").or_insert(created);
            }
        }
        task
    }
}

/// Merges a translated task with its translated outcome into one result of `tasks/get`.
pub fn join_task(task: &RawValue, outcome: &RawValue) -> Box<RawValue> {
    let read = (read_object(task.get()), read_object(outcome.get()));
    let (Ok(mut joined), Ok(outcome)) = read else {
        return task.to_owned();
    };
    joined.extend(outcome);
    RawValue::from_string(to_text(joined)).unwrap_or_else(|_| task.to_owned())
}

fn is_error(result: &Value) -> bool {
    result.get("isError") == Some(&Value::Bool(true))
}

/// A status in the first draft's spelling: capitalised, except `input_required`.
fn capitalised(status: &str) -> String {
    if status.contains('_') {
        return status.to_owned();
    }
    let mut chars = status.chars();
    let first = chars.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(chars).collect()
}
