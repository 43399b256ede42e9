//! Removes from a result the members that a legacy revision does not have.
//!
//! | revision | removed |
//! | --- | --- |
//! | 2025-11-25 | `resultType`, `ttlMs`, `cacheScope`, output schemas and structured content that are not objects |
//! | 2025-06-18 | also icons, the server's description and website, `execution` of tools |
//! | 2025-03-26 | also titles (except those of tools), output schemas, structured content, nested `_meta`, `lastModified`, resource links |
//!
//! In 2025-03-26, the title of a tool moves to its annotations, and a resource link becomes a text.

use std::borrow::Cow;

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::Revision;
use crate::decode::is_object;

/// Members of results that no legacy revision has.
pub(crate) const NEW_MEMBERS: [&str; 3] = ["resultType", "ttlMs", "cacheScope"];

/// A part of a result with its own rules.
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

/// Downgrades a member of a result. `None` if the revision does not have it.
pub(super) fn downgrade<'a>(
    key: &str,
    value: &'a RawValue,
    revision: Revision,
) -> Option<Cow<'a, RawValue>> {
    let has_structured = revision >= Revision::V2025_06_18 && is_object(value);
    if NEW_MEMBERS.contains(&key) || (key == "structuredContent" && !has_structured) {
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
    let downgraded = serde_json::from_str(value.get()).and_then(|mut value| {
        part.downgrade(&mut value, revision);
        to_raw_value(&value)
    });
    Some(downgraded.map_or(Cow::Borrowed(value), Cow::Owned))
}

impl Part {
    /// Downgrades a part, or each part of an array.
    fn downgrade(self, value: &mut Value, revision: Revision) {
        let members = match value {
            Value::Array(parts) => {
                return parts
                    .iter_mut()
                    .for_each(|part| self.downgrade(part, revision));
            }
            Value::Object(members) => members,
            _ => return,
        };
        let is_earliest = revision < Revision::V2025_06_18;
        let is_link = members
            .get("type")
            .is_some_and(|kind| kind == "resource_link");
        if is_earliest && self == Self::Block && is_link {
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
        if is_earliest
            && self == Self::Tool
            && let Some(title) = members.get("title").cloned()
            && let Value::Object(annotations) = members.entry("annotations").or_insert(json!({}))
        {
            annotations.entry("title").or_insert(title);
        }
        members.retain(|key, value| revision >= self.since(key) && !self.is_new(key, value));
        for (key, value) in members {
            if let Some(part) = self.nested(key) {
                part.downgrade(value, revision);
            }
        }
    }

    /// The first revision that has a member.
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

    /// Whether a value is too new for every legacy revision: an output schema whose type is not object.
    fn is_new(self, key: &str, value: &Value) -> bool {
        let is_schema = self == Self::Tool && key == "outputSchema";
        is_schema && value.get("type").is_none_or(|kind| kind != "object")
    }

    fn nested(self, key: &str) -> Option<Self> {
        match (self, key) {
            (Self::Resource | Self::Block, "annotations") => Some(Self::Annotations),
            (Self::Prompt, "arguments") => Some(Self::Argument),
            (Self::Message, "content") => Some(Self::Block),
            (Self::Block, "resource") => Some(Self::Contents),
            _ => None,
        }
    }
}
