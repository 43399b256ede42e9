//! Standard output: the result of a command, and nothing else.

use super::exit::{Code, CommandError};
use super::json::{self, Fold};
use super::sanitize::{chunks, one_line, sanitize};
use crate::style::{BOLD, DIM};
use anstream::AutoStream;
use refrain_app::sanitize::is_hidden;
use refrain_wire::{CallKind, Content, ResourceContents};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};
use std::fmt;
use std::io::{BufWriter, ErrorKind, IsTerminal, Write, stdout};

/// The maximum width of a column of a table. A wider text does not widen it.
pub(super) const COLUMN_MAX: usize = 60;

#[derive(Debug, PartialEq)]
enum OutputBlock<'a> {
    /// Text of the server: sanitized on a terminal, verbatim otherwise.
    ServerText(String),
    /// A value of the server, formatted with colours for terminals.
    Json(&'a Value),
    /// Text of this program, with colours for terminals.
    ProgramText(String),
}

/// Writes formatted text to an output, and keeps the I/O error.
struct Printer<W> {
    out: W,
    written: std::io::Result<()>,
}

impl<W: Write> fmt::Write for Printer<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.written = self.out.write_all(text.as_bytes());
        self.written.as_ref().map_err(|_| fmt::Error).copied()
    }
}

/// Prints text of this program; colours are removed unless it goes to a terminal.
pub(super) fn print(text: &str) -> Result<(), CommandError> {
    let mut out = AutoStream::auto(stdout());
    let written = write!(out, "{text}");
    finish_line(out, written)
}

/// Prints text of the server. On a terminal it is sanitized, in chunks: the replacement of a hidden
/// character is longer than the character, so the whole text could become large.
fn print_text(text: &str) -> Result<(), CommandError> {
    let mut out = stdout().lock();
    let written = match out.is_terminal() {
        true => chunks(text).try_for_each(|chunk| out.write_all(sanitize(chunk).as_bytes())),
        false => out.write_all(text.as_bytes()),
    };
    finish_line(out, written)
}

/// Prints a whole value with colours, without building its text in memory.
fn print_value(value: &Value) -> Result<(), CommandError> {
    let mut printer = Printer {
        out: BufWriter::new(AutoStream::auto(stdout())),
        written: Ok(()),
    };
    let _ = json::write(value, &mut printer, Fold::NOTHING, 0, 0);
    finish_line(printer.out, printer.written)
}

/// Prints a value as one line of JSON, without building its text in memory. On a terminal, control and invisible characters
/// are written as JSON escapes.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), CommandError> {
    let is_terminal = stdout().is_terminal();
    let mut out = BufWriter::new(stdout().lock());
    let written = match is_terminal {
        true => value.serialize(&mut Serializer::with_formatter(&mut out, EscapeHidden)),
        false => value.serialize(&mut Serializer::new(&mut out)),
    };
    finish_line(out, written.map_err(std::io::Error::from))
}

/// Writes compact JSON with escaped control and invisible characters. In JSON they occur only in strings.
struct EscapeHidden;

impl Formatter for EscapeHidden {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> std::io::Result<()> {
        let mut written = 0;
        for (at, c) in fragment.char_indices() {
            if !is_hidden(c) && c != '\u{7f}' {
                continue;
            }
            out.write_all(&fragment.as_bytes()[written..at])?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
            written = at + c.len_utf8();
        }
        out.write_all(&fragment.as_bytes()[written..])
    }

    fn write_raw_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> std::io::Result<()> {
        self.write_string_fragment(out, fragment)
    }
}

/// Ends the line and flushes. `written` is the outcome of writing its text.
fn finish_line(mut out: impl Write, written: std::io::Result<()>) -> Result<(), CommandError> {
    let finished = written
        .and_then(|()| writeln!(out))
        .and_then(|()| out.flush());
    match finished {
        // The reader may close the pipe early.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let message = format!("cannot write to standard output: {error}");
            Err(CommandError::new(Code::Failed, message).printed_on_stderr_only())
        }
        _ => Ok(()),
    }
}

pub(super) fn print_result(kind: CallKind, result: &Value, json: bool) -> Result<(), CommandError> {
    if json {
        return print_json(result);
    }
    let blocks = match kind {
        CallKind::Tool => tool_blocks(result),
        CallKind::Prompt => prompt_blocks(result),
        CallKind::Resource => resource_blocks(result),
    };
    for block in blocks {
        match block {
            OutputBlock::ServerText(text) => print_text(&text)?,
            OutputBlock::Json(value) => print_value(value)?,
            OutputBlock::ProgramText(text) => print(&text)?,
        }
    }
    Ok(())
}

pub(super) fn is_error(result: &Value) -> bool {
    result.get("isError").and_then(Value::as_bool) == Some(true)
}

fn tool_blocks(result: &Value) -> Vec<OutputBlock<'_>> {
    let blocks = result.get("content").and_then(Value::as_array);
    let blocks = blocks.map(Vec::as_slice).unwrap_or_default();
    let mut output: Vec<OutputBlock<'_>> = blocks.iter().map(content_block).collect();
    let has_text = blocks.iter().any(|block| block["type"] == "text");
    if let Some(structured) = result.get("structuredContent").filter(|_| !has_text) {
        output.push(OutputBlock::Json(structured));
    }
    output
}

fn prompt_blocks(result: &Value) -> Vec<OutputBlock<'_>> {
    let mut output = Vec::new();
    if let Some(description) = result.get("description").and_then(Value::as_str) {
        let description = one_line(description);
        output.push(OutputBlock::ProgramText(format!(
            "{DIM}{description}{DIM:#}"
        )));
    }
    let messages = result.get("messages").and_then(Value::as_array);
    for message in messages.into_iter().flatten() {
        let role = one_line(message["role"].as_str().unwrap_or("(no role)"));
        output.push(OutputBlock::ProgramText(format!("{BOLD}{role}:{BOLD:#}")));
        output.push(content_block(&message["content"]));
    }
    output
}

fn resource_blocks(result: &Value) -> Vec<OutputBlock<'_>> {
    let parts = result.get("contents").and_then(Value::as_array);
    let parts = parts.into_iter().flatten();
    parts
        .map(|part| match ResourceContents::deserialize(part) {
            Ok(contents) => resource_block(contents),
            Err(_) => OutputBlock::Json(part),
        })
        .collect()
}

fn content_block(block: &Value) -> OutputBlock<'_> {
    match Content::deserialize(block) {
        Ok(Content::Text { text, .. }) => text_block(text),
        Ok(Content::Image {
            data, mime_type, ..
        }) => binary_block("image", Some(&mime_type), &data),
        Ok(Content::Audio {
            data, mime_type, ..
        }) => binary_block("audio", Some(&mime_type), &data),
        Ok(Content::ResourceLink(link)) => {
            let (uri, name) = (one_line(&link.uri), one_line(&link.name));
            OutputBlock::ProgramText(format!("{DIM}[resource{DIM:#} {uri}{DIM}, {name}]{DIM:#}"))
        }
        Ok(Content::Resource {
            resource: contents, ..
        }) => resource_block(contents),
        // A newer type, or a malformed block.
        Err(_) => OutputBlock::Json(block),
    }
}

fn resource_block(contents: ResourceContents) -> OutputBlock<'static> {
    match contents {
        ResourceContents::Text { text, .. } => text_block(text),
        ResourceContents::Blob {
            uri,
            mime_type,
            blob,
            ..
        } => binary_block(&uri, mime_type.as_deref(), &blob),
    }
}

/// A block of text without its final line end, which printing adds.
fn text_block(mut text: String) -> OutputBlock<'static> {
    if text.ends_with('\n') {
        text.pop();
    }
    OutputBlock::ServerText(text)
}

fn binary_block(what: &str, mime_type: Option<&str>, base64: &str) -> OutputBlock<'static> {
    let mime_type = mime_type.unwrap_or("application/octet-stream");
    let padding = base64.bytes().rev().take_while(|byte| *byte == b'=');
    let size = (base64.len() / 4 * 3).saturating_sub(padding.count());
    let (what, mime_type) = (one_line(what), one_line(mime_type));
    OutputBlock::ProgramText(format!(
        "{DIM}[{what}, {mime_type}, {size} bytes; use --json to get it]{DIM:#}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn escaped_json_has_no_control_characters_and_the_same_value() {
        let value = json!({"a\u{9b}": "b\u{202e}c\u{e0001}\u{7f}ä"});
        let raw = serde_json::value::to_raw_value(&value).expect("JSON");
        let mut shown = Vec::new();
        let mut serializer = Serializer::with_formatter(&mut shown, EscapeHidden);
        (&value, raw).serialize(&mut serializer).expect("JSON");
        let one = r#"{"a\u009b":"b\u202ec\udb40\udc01\u007fä"}"#;
        assert_eq!(
            String::from_utf8(shown).expect("UTF-8"),
            format!("[{one},{one}]")
        );
        let read: Value = serde_json::from_str(one).expect("JSON");
        assert_eq!(read, value);
    }

    fn plain(blocks: &[OutputBlock<'_>]) -> String {
        let lines = blocks.iter().map(|block| match block {
            OutputBlock::ServerText(text) => text.clone(),
            OutputBlock::Json(value) => {
                anstream::adapter::strip_str(&json::format(value, Fold::NOTHING, 0)).to_string()
            }
            OutputBlock::ProgramText(text) => anstream::adapter::strip_str(text).to_string(),
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn every_kind_of_content_is_printed() {
        let result = json!({"content": [
            {"type": "text", "text": "two\nlines\n"},
            {"type": "image", "data": "AAAA", "mimeType": "image/png"},
            {"type": "audio", "data": "AAA=", "mimeType": "audio/wav"},
            {"type": "resource_link", "uri": "file:///a", "name": "a"},
            {"type": "resource", "resource": {"uri": "file:///b", "text": "b"}},
            {"type": "resource", "resource": {"uri": "file:///c", "blob": "AA=="}},
            {"type": "hologram", "data": 1},
        ], "structuredContent": {"unused": "there is a text"}});
        assert_eq!(
            plain(&tool_blocks(&result)),
            "two\nlines\n\
             [image, image/png, 3 bytes; use --json to get it]\n\
             [audio, audio/wav, 2 bytes; use --json to get it]\n\
             [resource file:///a, a]\n\
             b\n\
             [file:///c, application/octet-stream, 1 bytes; use --json to get it]\n\
             {\"type\": \"hologram\", \"data\": 1}"
        );
    }

    #[test]
    fn structured_content_is_printed_if_there_is_no_text() {
        let result = json!({"content": [], "structuredContent": {"degrees": 21.5}});
        assert_eq!(plain(&tool_blocks(&result)), r#"{"degrees": 21.5}"#);
    }

    #[test]
    fn prompts_and_resources_are_printed_as_text() {
        let result = json!({"description": "Greets", "messages": [
            {"role": "user", "content": {"type": "text", "text": "Hello"}},
            {"role": "assistant", "content": {"type": "text", "text": "Hi"}},
        ]});
        assert_eq!(
            plain(&prompt_blocks(&result)),
            "Greets\nuser:\nHello\nassistant:\nHi"
        );
        let result = json!({"contents": [{"uri": "file:///a", "text": "a\n"}]});
        assert_eq!(plain(&resource_blocks(&result)), "a");
    }
}
