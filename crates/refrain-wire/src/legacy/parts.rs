//! Results reduced to the members that a revision knows.
//!
//! | revision | unknown to it |
//! | --- | --- |
//! | 2025-11-25 | output schemas and structured content that are not objects |
//! | 2025-06-18 | icons; description and website of the server; whether a tool may be a task |
//! | 2025-03-26 | titles except a tool's, output schemas, structured content, `_meta` within results, times of change, links to resources |
//!
//! In 2025-03-26 the title of a tool is among its annotations, and a link to a resource becomes a text.

use std::borrow::Cow;

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::Revision;
use crate::decode::is_object;

/// Members of results that no earlier revision knows.
pub(crate) const LATER: [&str; 3] = ["resultType", "ttlMs", "cacheScope"];

/// A part of a result.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Server,
    Tool,
    Prompt,
    /// An argument of a prompt.
    Argument,
    /// A resource or template in a list.
    Resource,
    /// A block of content.
    Block,
    /// A message of a prompt.
    Message,
    /// The contents of a resource.
    Contents,
    Annotations,
}

/// A member of a result as the revision has it; `None` if it has no such member.
pub(super) fn reduce<'a>(
    key: &str,
    value: &'a RawValue,
    revision: Revision,
) -> Option<Cow<'a, RawValue>> {
    let has_structured = revision >= Revision::V2025_06_18 && is_object(value);
    if LATER.contains(&key) || (key == "structuredContent" && !has_structured) {
        return None;
    }
    let part = match key {
        "tools" => Part::Tool,
        _ if revision == Revision::V2025_11_25 => return Some(Cow::Borrowed(value)),
        "prompts" => Part::Prompt,
        "resources" | "resourceTemplates" => Part::Resource,
        "content" => Part::Block,
        "messages" => Part::Message,
        "contents" => Part::Contents,
        "serverInfo" => Part::Server,
        _ => return Some(Cow::Borrowed(value)),
    };
    let reduced = serde_json::from_str(value.get()).and_then(|mut value| {
        part.reduce(&mut value, revision);
        to_raw_value(&value)
    });
    Some(reduced.map_or(Cow::Borrowed(value), Cow::Owned))
}

impl Part {
    /// Reduces a part, or each of a list of them.
    fn reduce(self, value: &mut Value, revision: Revision) {
        let members = match value {
            Value::Array(parts) => {
                return parts
                    .iter_mut()
                    .for_each(|part| self.reduce(part, revision));
            }
            Value::Object(members) => members,
            _ => return,
        };
        let earliest = revision < Revision::V2025_06_18;
        let is_link = members
            .get("type")
            .is_some_and(|kind| kind == "resource_link");
        if earliest && self == Self::Block && is_link {
            let text = |name| {
                members
                    .get(name)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            let text = format!("{}: {}", text("name"), text("uri"));
            *value = json!({"type": "text", "text": text});
            return;
        }
        if earliest
            && self == Self::Tool
            && let Some(title) = members.get("title").cloned()
            && let Value::Object(annotations) = members.entry("annotations").or_insert(json!({}))
        {
            annotations.entry("title").or_insert(title);
        }
        members.retain(|key, value| revision >= self.since(key) && !self.is_later(key, value));
        for (key, value) in members {
            if let Some(part) = self.inner(key) {
                part.reduce(value, revision);
            }
        }
    }

    /// The first revision that knows a member.
    fn since(self, key: &str) -> Revision {
        match (self, key) {
            (Self::Server, "icons" | "description" | "websiteUrl")
            | (Self::Tool, "icons" | "execution")
            | (Self::Prompt | Self::Resource | Self::Block, "icons") => Revision::V2025_11_25,
            (Self::Server | Self::Argument, "title")
            | (Self::Tool, "title" | "outputSchema" | "_meta")
            | (Self::Prompt | Self::Resource, "title" | "_meta")
            | (Self::Block | Self::Contents, "_meta")
            | (Self::Annotations, "lastModified") => Revision::V2025_06_18,
            _ => Revision::V2025_03_26,
        }
    }

    /// Whether no earlier revision has a value: structured content was always an object.
    fn is_later(self, key: &str, value: &Value) -> bool {
        let is_schema = self == Self::Tool && key == "outputSchema";
        is_schema && value.get("type").is_none_or(|kind| kind != "object")
    }

    fn inner(self, key: &str) -> Option<Self> {
        match (self, key) {
            (Self::Resource | Self::Block, "annotations") => Some(Self::Annotations),
            (Self::Prompt, "arguments") => Some(Self::Argument),
            (Self::Message, "content") => Some(Self::Block),
            (Self::Block, "resource") => Some(Self::Contents),
            _ => None,
        }
    }
}
