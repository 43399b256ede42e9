//! Tasks as the drafts show them.

use serde_json::value::RawValue;

use super::object::{Object, json, string};
use super::{Draft, RATIFIED};

/// The members of a task that say what became of it; the drafts tell that elsewhere.
const BECAME: [&str; 3] = [RATIFIED.asks, "result", "error"];

impl Draft {
    /// A task as the draft shows it.
    pub(super) fn write_task(self, mut task: Object) -> Object {
        if task.get("result").is_some_and(is_error) {
            // As it was before: what a tool says of its own failure is a result, but its task has failed.
            task.set("status", "failed");
        }
        for name in BECAME {
            task.take(name);
        }
        task.rename("ttlMs", "ttl");
        task.rename("pollIntervalMs", "pollInterval");
        if self == Self::First {
            task.take("lastUpdatedAt");
            if let Some(status) = task.get("status").and_then(string) {
                task.set("status", capitalised(&status).as_str());
            }
        }
        task
    }

    /// A task as the ratified revision shows it, as far as the draft tells.
    pub(super) fn read_task(self, mut task: Object) -> Object {
        task.rename("ttl", "ttlMs");
        task.rename("pollInterval", "pollIntervalMs");
        if self == Self::First {
            if let Some(status) = task.get("status").and_then(string) {
                task.set("status", status.to_ascii_lowercase().as_str());
            }
            let created = task.get("createdAt").map(ToOwned::to_owned);
            if let Some(created) = created.filter(|_| !task.has("lastUpdatedAt")) {
                task.set("lastUpdatedAt", created);
            }
        }
        task
    }
}

/// A task of a draft, with what became of it: both as they were read in place of `tasks/get`.
pub fn join_task(stands: &RawValue, became: &RawValue) -> Box<RawValue> {
    let read = (Object::read(stands.get()), Object::read(became.get()));
    let (Ok(mut task), Ok(became)) = read else {
        return stands.to_owned();
    };
    for (name, value) in became.members() {
        task.set(&name, value);
    }
    json(task.to_text())
}

/// Does a tool say in its result that it failed?
fn is_error(result: &RawValue) -> bool {
    let result = Object::read(result.get());
    result.is_ok_and(|result| {
        result
            .get("isError")
            .is_some_and(|told| told.get() == "true")
    })
}

/// A status as the first draft writes it: with a capital, but for the one of two words.
fn capitalised(status: &str) -> String {
    if status.contains('_') {
        return status.to_owned();
    }
    let mut chars = status.chars();
    let first = chars.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(chars).collect()
}
