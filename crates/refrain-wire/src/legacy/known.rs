//! What a revision knows of a result: everything else is left out, and the order of the rest is kept.
//!
//! | what | does not know |
//! | --- | --- |
//! | 2025-11-25 | output schemas and structured content that are no objects |
//! | 2025-06-18 | icons; description and website of the server; whether a tool may be a task |
//! | 2025-03-26 | titles but a tool's, output schemas, structured content, `_meta` within results, times of change, links to resources |
//!
//! The title of a tool is among its annotations in 2025-03-26, and a link to a resource becomes a text.

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::Revision;
use crate::decode::Text;
use crate::envelope::Members;
use crate::write;

/// Members of results that no earlier revision knows.
pub(crate) const LATER: [&str; 3] = ["resultType", "ttlMs", "cacheScope"];

/// A part of a result.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// The server's name and version.
    Server,
    Tool,
    Prompt,
    /// What a prompt can be given.
    Argument,
    /// A resource in a list, or a template of some.
    Resource,
    /// A block of content.
    Block,
    /// A message of a prompt.
    Message,
    /// What is in a resource.
    Contents,
    Annotations,
}

/// Writes an object, member by member.
pub(super) struct Object<'a> {
    out: &'a mut Vec<u8>,
    is_empty: bool,
}

impl<'a> Object<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        out.push(b'{');
        Self {
            out,
            is_empty: true,
        }
    }

    /// Begins a member. Its value is to be written next.
    pub(super) fn member(&mut self, key: &str) -> &mut Vec<u8> {
        if !std::mem::replace(&mut self.is_empty, false) {
            self.out.push(b',');
        }
        write::text(self.out, key);
        self.out.push(b':');
        self.out
    }

    pub(super) fn end(self) {
        self.out.push(b'}');
    }
}

/// Writes a member of a result as the revision has it, if it has it.
pub(super) fn write_member(
    result: &mut Object<'_>,
    key: &str,
    value: &RawValue,
    revision: Revision,
) {
    let earliest = revision < Revision::V2025_06_18;
    let is_unknown = LATER.contains(&key)
        || (key == "structuredContent" && (earliest || !value.get().starts_with('{')));
    if is_unknown {
        return;
    }
    let out = result.member(key);
    let part = match key {
        "tools" => Part::Tool,
        // All that is left is known to it.
        _ if revision == Revision::V2025_11_25 => return copy(out, value),
        "prompts" => Part::Prompt,
        "resources" | "resourceTemplates" => Part::Resource,
        "content" => Part::Block,
        "messages" => Part::Message,
        "contents" => Part::Contents,
        "serverInfo" => return write_part(out, Part::Server, value, revision),
        _ => return copy(out, value),
    };
    write_all(out, part, value, revision);
}

fn copy(out: &mut Vec<u8>, value: &RawValue) {
    out.extend_from_slice(value.get().as_bytes());
}

fn write_all(out: &mut Vec<u8>, part: Part, value: &RawValue, revision: Revision) {
    let Ok(parts) = serde_json::from_str::<Vec<&RawValue>>(value.get()) else {
        return copy(out, value);
    };
    out.push(b'[');
    for (place, value) in parts.into_iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        write_part(out, part, value, revision);
    }
    out.push(b']');
}

fn write_part(out: &mut Vec<u8>, part: Part, value: &RawValue, revision: Revision) {
    let Ok(Members(members)) = serde_json::from_str::<Members<'_>>(value.get()) else {
        return copy(out, value);
    };
    let earliest = revision < Revision::V2025_06_18;
    let find = |name: &str| {
        let mut members = members.iter();
        members.find_map(|(key, value)| (key.0 == name).then_some(*value))
    };
    if earliest && part == Part::Block && find("type").is_some_and(is_link) {
        return write_link(out, find("name"), find("uri"));
    }
    let has_annotations = find("annotations").is_some();
    let title = find("title").filter(|_| earliest && part == Part::Tool);
    let mut object = Object::new(out);
    for (key, value) in &members {
        let key = key.0.as_ref();
        if !is_known(part, key, value, revision) {
            continue;
        }
        let out = object.member(key);
        match (part, key) {
            (Part::Tool, "annotations") => write_titled(out, value, title),
            (Part::Resource | Part::Block, "annotations") => {
                write_part(out, Part::Annotations, value, revision);
            }
            (Part::Prompt, "arguments") => write_all(out, Part::Argument, value, revision),
            (Part::Message, "content") => write_part(out, Part::Block, value, revision),
            (Part::Block, "resource") => write_part(out, Part::Contents, value, revision),
            _ => copy(out, value),
        }
    }
    if let Some(title) = title.filter(|_| !has_annotations) {
        let mut annotations = Object::new(object.member("annotations"));
        copy(annotations.member("title"), title);
        annotations.end();
    }
    object.end();
}

/// Whether a revision knows a member.
fn is_known(part: Part, key: &str, value: &RawValue, revision: Revision) -> bool {
    let since = match (part, key) {
        (Part::Tool, "outputSchema") if !describes_object(value) => return false,
        (Part::Server, "icons" | "description" | "websiteUrl") => Revision::V2025_11_25,
        (Part::Tool | Part::Prompt | Part::Resource | Part::Block, "icons")
        | (Part::Tool, "execution") => Revision::V2025_11_25,
        (Part::Server | Part::Tool | Part::Prompt | Part::Argument | Part::Resource, "title") => {
            Revision::V2025_06_18
        }
        (Part::Tool, "outputSchema") | (Part::Annotations, "lastModified") => Revision::V2025_06_18,
        (Part::Tool | Part::Prompt | Part::Resource | Part::Block | Part::Contents, "_meta") => {
            Revision::V2025_06_18
        }
        _ => Revision::V2025_03_26,
    };
    revision >= since
}

/// Structured content was an object before it could be anything.
fn describes_object(schema: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Schema<'a> {
        #[serde(rename = "type", borrow)]
        kind: Text<'a>,
    }
    let schema = serde_json::from_str::<Schema<'_>>(schema.get());
    schema.is_ok_and(|schema| schema.kind.0 == "object")
}

/// Writes the annotations of a tool, with its title if they have none.
fn write_titled(out: &mut Vec<u8>, annotations: &RawValue, title: Option<&RawValue>) {
    let members = serde_json::from_str::<Members<'_>>(annotations.get());
    let (Some(title), Ok(Members(members))) = (title, members) else {
        return copy(out, annotations);
    };
    let mut object = Object::new(out);
    let mut is_titled = false;
    for (key, value) in members {
        is_titled |= key.0 == "title";
        copy(object.member(&key.0), value);
    }
    if !is_titled {
        copy(object.member("title"), title);
    }
    object.end();
}

fn is_link(kind: &RawValue) -> bool {
    serde_json::from_str::<Text<'_>>(kind.get()).is_ok_and(|kind| kind.0 == "resource_link")
}

/// Writes a link to a resource as a text that says where it is.
fn write_link(out: &mut Vec<u8>, name: Option<&RawValue>, uri: Option<&RawValue>) {
    let read = |raw: Option<&RawValue>| -> String {
        raw.and_then(|raw| serde_json::from_str(raw.get()).ok())
            .unwrap_or_default()
    };
    let text = format!("{}: {}", read(name), read(uri));
    write::json(out, &json!({"type": "text", "text": text}));
}
