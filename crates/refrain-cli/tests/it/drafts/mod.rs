//! The drafts that preceded MCP 2026-07-28: every JSON example of their documents is posted, or compared with a response.
//!
//! The examples are in `examples/DOCUMENT/NUMBER.json`, in the order of the documents, and repaired if they are not valid
//! JSON. docs/reference/dialects.md lists each of them with the story that uses it.

mod coverage;
mod first;
mod matrix;
mod paths;
mod second;
mod sketch;
mod speaker;
mod stories;
mod upgrades;

pub(crate) use speaker::{Speaker, Transport};

use serde_json::Value;
use std::path::PathBuf;
use stories::Use;

/// The directory of the examples.
fn examples() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/drafts/examples")
}

/// An example of a document, by its number.
fn example(document: u8, number: u8) -> Value {
    let file = examples().join(format!("{document}/{number:02}.json"));
    let text = std::fs::read_to_string(&file);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_str(&text).expect("an example is JSON")
}

/// An example that is posted.
fn posted(document: u8, number: u8) -> Value {
    stories::note(document, number, Use::Posted);
    example(document, number)
}

/// Members that are not compared: task ids, times and opaque strings.
const OPAQUE: [&str; 5] = [
    "taskId",
    "createdAt",
    "lastUpdatedAt",
    "requestState",
    "request_state",
];

/// A message without the ignored members. The default mode is a form.
fn comparable(mut value: Value) -> Value {
    match &mut value {
        Value::Array(items) => {
            let plain = items.drain(..).map(comparable).collect();
            Value::Array(plain)
        }
        Value::Object(members) => {
            if members.get("mode") == Some(&"form".into()) {
                members.remove("mode");
            }
            let members = std::mem::take(members).into_iter();
            let plain = members.map(|(name, value)| {
                let opaque = OPAQUE.contains(&name.as_str()) && value.is_string();
                let value = if opaque {
                    "…".into()
                } else {
                    comparable(value)
                };
                (name, value)
            });
            Value::Object(plain.collect())
        }
        _ => value,
    }
}

/// Compares a message with an example of a document.
#[track_caller]
fn assert_shown(document: u8, number: u8, reply: &Value) {
    assert_same(&example(document, number), reply, (document, number));
}

#[track_caller]
fn assert_same(shown: &Value, reply: &Value, which: (u8, u8)) {
    stories::note(which.0, which.1, Use::Compared);
    let mut reply = comparable(reply.clone());
    let shown = comparable(shown.clone());
    // The response may have a state that the document omits.
    for (parent, name) in [("/result", "requestState"), ("", "request_state")] {
        if shown
            .pointer(parent)
            .is_none_or(|shown| shown.get(name).is_none())
            && let Some(members) = reply.pointer_mut(parent).and_then(Value::as_object_mut)
        {
            members.remove(name);
        }
    }
    assert_eq!(reply, shown, "example {} of document {}", which.1, which.0);
}
