//! Standard output: the result, and nothing else.

use super::exit::{Code, Stop};
use super::json::{Fold, Json};
use super::text::{harmless, one_line};
use anstream::AutoStream;
use anstyle::Style;
use refrain_wire::{CallKind, Content, ResourceContents};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{ErrorKind, IsTerminal, Write, stdout};

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();

/// Writes text as it is; colours are for terminals only.
pub(super) fn print(text: &str) -> Result<(), Stop> {
    let mut out = AutoStream::auto(stdout());
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    match written {
        // Whoever read it has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Stop {
            code: Code::Refused,
            message: format!("standard output cannot be written: {error}"),
        }),
        Ok(()) => Ok(()),
    }
}

/// Writes one line of JSON.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), Stop> {
    let text = serde_json::to_string(value).map_err(|error| Stop {
        code: Code::Refused,
        message: format!("this cannot be written as JSON: {error}"),
    })?;
    let mut out = stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Stop {
            code: Code::Refused,
            message: format!("standard output cannot be written: {error}"),
        }),
        _ => Ok(()),
    }
}

/// Writes the result of a call.
pub(super) fn result(kind: CallKind, result: &Value, json: bool) -> Result<(), Stop> {
    if json {
        return print_json(result);
    }
    let lines = match kind {
        CallKind::Tool => tool(result),
        CallKind::Prompt => prompt(result),
        CallKind::Resource => contents(result),
    };
    if lines.is_empty() {
        return Ok(());
    }
    print(&lines.join("\n"))
}

/// Whether a tool says that it failed.
pub(super) fn is_error(result: &Value) -> bool {
    result.get("isError").and_then(Value::as_bool) == Some(true)
}

fn tool(result: &Value) -> Vec<String> {
    let blocks = result.get("content").and_then(Value::as_array);
    let blocks = blocks.map(Vec::as_slice).unwrap_or_default();
    let mut lines: Vec<String> = blocks.iter().map(block).collect();
    let has_text = blocks.iter().any(|block| block["type"] == "text");
    if let Some(structured) = result.get("structuredContent").filter(|_| !has_text) {
        lines.push(pretty(structured, 0));
    }
    lines
}

fn prompt(result: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(description) = result.get("description").and_then(Value::as_str) {
        lines.push(format!("{DIM}{}{DIM:#}", one_line(description)));
    }
    let messages = result.get("messages").and_then(Value::as_array);
    for message in messages.into_iter().flatten() {
        let role = message["role"].as_str().unwrap_or("nobody");
        lines.push(format!("{BOLD}{}:{BOLD:#}", one_line(role)));
        lines.push(block(&message["content"]));
    }
    lines
}

fn contents(result: &Value) -> Vec<String> {
    let parts = result.get("contents").and_then(Value::as_array);
    let part = |part: &Value| match ResourceContents::deserialize(part) {
        Ok(contents) => resource(&contents),
        Err(_) => pretty(part, 0),
    };
    parts.into_iter().flatten().map(part).collect()
}

/// One block of content.
fn block(block: &Value) -> String {
    match Content::deserialize(block) {
        Ok(Content::Text { text, .. }) => safe(text.trim_end_matches('\n')),
        Ok(Content::Image {
            data, mime_type, ..
        }) => bytes("image", Some(&mime_type), &data),
        Ok(Content::Audio {
            data, mime_type, ..
        }) => bytes("audio", Some(&mime_type), &data),
        Ok(Content::ResourceLink(link)) => {
            let (uri, name) = (one_line(&link.uri), one_line(&link.name));
            format!("{DIM}[resource{DIM:#} {uri}{DIM}, {name}]{DIM:#}")
        }
        Ok(Content::Resource {
            resource: contents, ..
        }) => resource(&contents),
        // A type that came later, or a block that is not as it should be.
        Err(_) => pretty(block, 0),
    }
}

fn resource(contents: &ResourceContents) -> String {
    match contents {
        ResourceContents::Text { text, .. } => safe(text.trim_end_matches('\n')),
        ResourceContents::Blob {
            mime_type, blob, ..
        } => bytes(contents.uri(), mime_type.as_deref(), blob),
    }
}

/// A line for something that is no text.
fn bytes(what: &str, mime_type: Option<&str>, base64: &str) -> String {
    let mime_type = mime_type.unwrap_or("application/octet-stream");
    let padding = base64.bytes().rev().take_while(|byte| *byte == b'=');
    let size = (base64.len() / 4 * 3).saturating_sub(padding.count());
    let (what, mime_type) = (one_line(what), one_line(mime_type));
    format!("{DIM}[{what}, {mime_type}, {size} bytes; --json has all of it]{DIM:#}")
}

/// A value with its colours, on as many lines as it takes. Those after the first are indented.
pub(super) fn pretty(value: &Value, indent: usize) -> String {
    let text = value.to_string();
    match Json::parse(&text) {
        Ok(json) => json.shown(Fold::NOTHING, indent),
        Err(_) => text,
    }
}

/// Text as it is, but for a terminal, which it must not steer.
fn safe(text: &str) -> String {
    if stdout().is_terminal() {
        harmless(text)
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plain(lines: &[String]) -> String {
        anstream::adapter::strip_str(&lines.join("\n")).to_string()
    }

    #[test]
    fn every_kind_of_content_has_its_line() {
        let result = json!({"content": [
            {"type": "text", "text": "two\nlines\n"},
            {"type": "image", "data": "AAAA", "mimeType": "image/png"},
            {"type": "audio", "data": "AAA=", "mimeType": "audio/wav"},
            {"type": "resource_link", "uri": "file:///a", "name": "a"},
            {"type": "resource", "resource": {"uri": "file:///b", "text": "b"}},
            {"type": "resource", "resource": {"uri": "file:///c", "blob": "AA=="}},
            {"type": "hologram", "data": 1},
        ], "structuredContent": {"never": "shown beside text"}});
        assert_eq!(
            plain(&tool(&result)),
            "two\nlines\n\
             [image, image/png, 3 bytes; --json has all of it]\n\
             [audio, audio/wav, 2 bytes; --json has all of it]\n\
             [resource file:///a, a]\n\
             b\n\
             [file:///c, application/octet-stream, 1 bytes; --json has all of it]\n\
             {\"data\": 1, \"type\": \"hologram\"}"
        );
    }

    #[test]
    fn structured_content_is_shown_where_there_is_no_text() {
        let result = json!({"content": [], "structuredContent": {"degrees": 21.5}});
        assert_eq!(plain(&tool(&result)), r#"{"degrees": 21.5}"#);
    }

    #[test]
    fn prompts_and_resources_are_shown_as_text() {
        let result = json!({"description": "Greets", "messages": [
            {"role": "user", "content": {"type": "text", "text": "Hello"}},
            {"role": "assistant", "content": {"type": "text", "text": "Hi"}},
        ]});
        assert_eq!(
            plain(&prompt(&result)),
            "Greets\nuser:\nHello\nassistant:\nHi"
        );
        let result = json!({"contents": [{"uri": "file:///a", "text": "a\n"}]});
        assert_eq!(plain(&contents(&result)), "a");
    }
}
