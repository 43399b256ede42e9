//! Standard output: the result, and nothing else.

use super::exit::{Code, Stop};
use super::json::{Fold, shown};
use super::text::{harmless, one_line};
use crate::style::{BOLD, DIM};
use crate::terminal::text::is_hidden;
use anstream::AutoStream;
use refrain_wire::{CallKind, Content, ResourceContents};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{ErrorKind, IsTerminal, Write, stdout};

#[derive(Debug, PartialEq)]
enum Piece {
    /// Text of the server: sanitized on a terminal, verbatim elsewhere.
    Text(String),
    /// Text of ours, with colours for terminals.
    Made(String),
}

/// Writes lines of ours; their colours are for terminals only.
pub(super) fn print(text: &str) -> Result<(), Stop> {
    let mut out = AutoStream::auto(stdout());
    written(writeln!(out, "{text}").and_then(|()| out.flush()))
}

pub(super) fn print_json(value: &impl Serialize) -> Result<(), Stop> {
    let text = serde_json::to_string(value).map_err(|error| {
        let message = format!("this cannot be written as JSON: {error}");
        Stop::new(Code::Refused, message)
    })?;
    print_raw(&text)
}

/// Writes a line. On a terminal, control characters are written as JSON escapes.
fn print_raw(text: &str) -> Result<(), Stop> {
    let mut out = stdout().lock();
    let escaped = out.is_terminal().then(|| escaped(text));
    let text = escaped.as_deref().unwrap_or(text);
    written(writeln!(out, "{text}").and_then(|()| out.flush()))
}

/// The same JSON with escapes for invisible characters, which occur in strings only.
fn escaped(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        if !is_hidden(c) && c != '\u{7f}' {
            shown.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            shown.push_str(&format!("\\u{unit:04x}"));
        }
    }
    shown
}

fn written(written: std::io::Result<()>) -> Result<(), Stop> {
    match written {
        // The reader may close the pipe early.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let message = format!("standard output cannot be written: {error}");
            Err(Stop::new(Code::Refused, message).told())
        }
        _ => Ok(()),
    }
}

pub(super) fn result(kind: CallKind, result: &Value, json: bool) -> Result<(), Stop> {
    if json {
        return print_json(result);
    }
    let pieces = match kind {
        CallKind::Tool => tool(result),
        CallKind::Prompt => prompt(result),
        CallKind::Resource => contents(result),
    };
    let on_terminal = stdout().is_terminal();
    for piece in pieces {
        match piece {
            Piece::Text(text) if on_terminal => print_raw(&harmless(&text))?,
            Piece::Text(text) => print_raw(&text)?,
            Piece::Made(text) => print(&text)?,
        }
    }
    Ok(())
}

pub(super) fn is_error(result: &Value) -> bool {
    result.get("isError").and_then(Value::as_bool) == Some(true)
}

fn tool(result: &Value) -> Vec<Piece> {
    let blocks = result.get("content").and_then(Value::as_array);
    let blocks = blocks.map(Vec::as_slice).unwrap_or_default();
    let mut pieces: Vec<Piece> = blocks.iter().map(block).collect();
    let has_text = blocks.iter().any(|block| block["type"] == "text");
    if let Some(structured) = result.get("structuredContent").filter(|_| !has_text) {
        pieces.push(Piece::Made(pretty(structured, 0)));
    }
    pieces
}

fn prompt(result: &Value) -> Vec<Piece> {
    let mut pieces = Vec::new();
    if let Some(description) = result.get("description").and_then(Value::as_str) {
        let description = one_line(description);
        pieces.push(Piece::Made(format!("{DIM}{description}{DIM:#}")));
    }
    let messages = result.get("messages").and_then(Value::as_array);
    for message in messages.into_iter().flatten() {
        let role = one_line(message["role"].as_str().unwrap_or("nobody"));
        pieces.push(Piece::Made(format!("{BOLD}{role}:{BOLD:#}")));
        pieces.push(block(&message["content"]));
    }
    pieces
}

fn contents(result: &Value) -> Vec<Piece> {
    let parts = result.get("contents").and_then(Value::as_array);
    let part = |part: &Value| match ResourceContents::deserialize(part) {
        Ok(contents) => resource(&contents),
        Err(_) => Piece::Made(pretty(part, 0)),
    };
    parts.into_iter().flatten().map(part).collect()
}

fn block(block: &Value) -> Piece {
    match Content::deserialize(block) {
        Ok(Content::Text { text, .. }) => as_it_is(&text),
        Ok(Content::Image {
            data, mime_type, ..
        }) => bytes("image", Some(&mime_type), &data),
        Ok(Content::Audio {
            data, mime_type, ..
        }) => bytes("audio", Some(&mime_type), &data),
        Ok(Content::ResourceLink(link)) => {
            let (uri, name) = (one_line(&link.uri), one_line(&link.name));
            Piece::Made(format!("{DIM}[resource{DIM:#} {uri}{DIM}, {name}]{DIM:#}"))
        }
        Ok(Content::Resource {
            resource: contents, ..
        }) => resource(&contents),
        // A newer type, or a malformed block.
        Err(_) => Piece::Made(pretty(block, 0)),
    }
}

fn resource(contents: &ResourceContents) -> Piece {
    match contents {
        ResourceContents::Text { text, .. } => as_it_is(text),
        ResourceContents::Blob {
            mime_type, blob, ..
        } => bytes(contents.uri(), mime_type.as_deref(), blob),
    }
}

/// Text without its last line end, which printing adds.
fn as_it_is(text: &str) -> Piece {
    Piece::Text(text.strip_suffix('\n').unwrap_or(text).to_owned())
}

/// A line about binary content.
fn bytes(what: &str, mime_type: Option<&str>, base64: &str) -> Piece {
    let mime_type = mime_type.unwrap_or("application/octet-stream");
    let padding = base64.bytes().rev().take_while(|byte| *byte == b'=');
    let size = (base64.len() / 4 * 3).saturating_sub(padding.count());
    let (what, mime_type) = (one_line(what), one_line(mime_type));
    Piece::Made(format!(
        "{DIM}[{what}, {mime_type}, {size} bytes; --json has all of it]{DIM:#}"
    ))
}

/// The whole value with colours; further lines are indented.
pub(super) fn pretty(value: &Value, indent: usize) -> String {
    shown(value, Fold::NOTHING, indent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_on_a_terminal_steers_nothing_and_means_the_same() {
        let value = json!({"a\u{9b}": "b\u{202e}c\u{e0001}\u{7f}ä"});
        let text = serde_json::to_string(&value).expect("JSON");
        let shown = escaped(&text);
        assert_eq!(shown, r#"{"a\u009b":"b\u202ec\udb40\udc01\u007fä"}"#);
        let read: Value = serde_json::from_str(&shown).expect("JSON");
        assert_eq!(read, value);
    }

    fn plain(pieces: &[Piece]) -> String {
        let lines = pieces.iter().map(|piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Made(text) => anstream::adapter::strip_str(text).to_string(),
        });
        lines.collect::<Vec<_>>().join("\n")
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
             {\"type\": \"hologram\", \"data\": 1}"
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
