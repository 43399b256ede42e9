//! Formats JSON for people: coloured, in its original order, short values on one line.

use super::sanitize::{chunks, sanitize, truncated};
use anstyle::{AnsiColor, Style};
use serde_json::Value;
use std::fmt;

/// Wider values are split over several lines.
const WIDTH: usize = 100;
const INDENT: usize = 2;
/// Deeper values are not indented further.
const INDENT_MAX: usize = 60;
/// Longer texts, in bytes, are written in chunks.
const LARGE_TEXT: usize = 64 * 1024;
/// How many characters of a folded text are printed.
const EXCERPT: usize = 24;

const META: &str = "_meta";

const KEY: Style = AnsiColor::Cyan.on_default();
const TEXT: Style = AnsiColor::Green.on_default();
const NUMBER: Style = AnsiColor::Yellow.on_default();
const LITERAL: Style = AnsiColor::Magenta.on_default();
const FOLDED: Style = Style::new().dimmed();

/// How a value is truncated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fold {
    /// Deeper values are replaced by their size.
    pub(super) depth: usize,
    /// Longer texts and keys are truncated, and their length is added.
    pub(super) text: usize,
    /// Whether `_meta` is folded.
    pub(super) meta: bool,
}

impl Fold {
    pub(super) const NOTHING: Self = Self {
        depth: usize::MAX,
        text: usize::MAX,
        meta: false,
    };

    fn inside(self, member: &str) -> Self {
        let is_folded = self.meta && member == META;
        Self {
            depth: if is_folded {
                0
            } else {
                self.depth.saturating_sub(1)
            },
            ..self
        }
    }
}

/// Formats a value with colours. Further lines are indented by `indent` columns.
pub(super) fn format(value: &Value, fold: Fold, indent: usize) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(value, &mut out, fold, indent, indent);
    out
}

/// Writes a value with colours. It starts at `column`; further lines are indented by `indent` columns.
pub(super) fn write(
    value: &Value,
    out: &mut impl fmt::Write,
    fold: Fold,
    indent: usize,
    column: usize,
) -> fmt::Result {
    if let Value::String(text) = value
        && text.len() > LARGE_TEXT
        && fold.text == usize::MAX
    {
        return write_large(text, out, TEXT);
    }
    let room = match fold.depth {
        0 => usize::MAX,
        _ => WIDTH.saturating_sub(column),
    };
    let line = leaf(value, fold).or_else(|| line(value, fold, room));
    let deeper = (indent + INDENT).min(INDENT_MAX);
    match value {
        Value::Object(members) if line.is_none() => {
            out.write_char('{')?;
            for (at, (key, value)) in members.iter().enumerate() {
                out.write_str(if at == 0 { "\n" } else { ",\n" })?;
                write!(out, "{:deeper$}", "")?;
                let width = if key.len() > LARGE_TEXT && fold.text == usize::MAX {
                    write_large(key, out, KEY)?;
                    WIDTH
                } else {
                    let (name, width) = quoted(key, fold.text, KEY);
                    out.write_str(&name)?;
                    width
                };
                out.write_str(": ")?;
                write(value, out, fold.inside(key), deeper, deeper + width + 2)?;
            }
            write!(out, "\n{:indent$}}}", "")
        }
        Value::Array(items) if line.is_none() => {
            out.write_char('[')?;
            for (at, item) in items.iter().enumerate() {
                out.write_str(if at == 0 { "\n" } else { ",\n" })?;
                write!(out, "{:deeper$}", "")?;
                write(item, out, fold.inside(""), deeper, deeper)?;
            }
            write!(out, "\n{:indent$}]", "")
        }
        _ => out.write_str(&line.unwrap_or_default().0),
    }
}

/// Writes a large text in chunks, because sanitizing makes hidden characters several times longer.
fn write_large(text: &str, out: &mut impl fmt::Write, style: Style) -> fmt::Result {
    write!(out, "{style}\"")?;
    for chunk in chunks(text) {
        let quoted = serde_json::to_string(chunk).unwrap_or_default();
        let inside = quoted
            .strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'));
        out.write_str(&sanitize(inside.unwrap_or_default()))?;
    }
    write!(out, "\"{style:#}")
}

/// The value on one line, and its width, unless it is wider than `room`. Stops at the first part that is too wide.
fn line(value: &Value, fold: Fold, room: usize) -> Option<(String, usize)> {
    match value {
        Value::Array(items) if fold.depth > 0 => {
            let part = |item, room| line(item, fold.inside(""), room);
            joined('[', ']', items.iter(), room, part)
        }
        Value::Object(members) if fold.depth > 0 => {
            let part = |(key, value): (&String, &Value), room: usize| {
                let (name, width) = may_fit(key, room).then(|| quoted(key, fold.text, KEY))?;
                let rest = room.checked_sub(width + 2)?;
                let (value, more) = line(value, fold.inside(key), rest)?;
                Some((format!("{name}: {value}"), width + 2 + more))
            };
            joined('{', '}', members.iter(), room, part)
        }
        Value::String(text) if text.len() <= fold.text && !may_fit(text, room) => None,
        value => leaf(value, fold).filter(|(_, width)| *width <= room),
    }
}

/// A value that has no parts, or whose parts are folded.
fn leaf(value: &Value, fold: Fold) -> Option<(String, usize)> {
    let folded = |text: String| styled(&text, FOLDED);
    match value {
        Value::Null | Value::Bool(_) => Some(styled(&value.to_string(), LITERAL)),
        Value::Number(number) => Some(styled(&number.to_string(), NUMBER)),
        Value::String(text) => Some(quoted(text, fold.text, TEXT)),
        Value::Array(items) if items.is_empty() => Some(("[]".to_owned(), 2)),
        Value::Object(members) if members.is_empty() => Some(("{}".to_owned(), 2)),
        Value::Array(items) if fold.depth == 0 => Some(folded(format!("[… {} …]", items.len()))),
        Value::Object(members) if fold.depth == 0 => {
            Some(folded(format!("{{… {} …}}", members.len())))
        }
        Value::Array(_) | Value::Object(_) => None,
    }
}

/// Whether a text may fit into this width, estimated from its size.
fn may_fit(text: &str, room: usize) -> bool {
    text.len() / char::MAX.len_utf8() <= room
}

fn styled(text: &str, style: Style) -> (String, usize) {
    (format!("{style}{text}{style:#}"), text.chars().count())
}

fn quoted(text: &str, max: usize, style: Style) -> (String, usize) {
    let (start, whole) = match truncated(text, max) {
        (all, None) => (all, None),
        (_, Some(whole)) => (truncated(text, EXCERPT).0, Some(whole)),
    };
    let text = sanitize(&serde_json::to_string(start).unwrap_or_default());
    let (shown, width) = styled(&text, style);
    match whole {
        None => (shown, width),
        Some(whole) => {
            let (rest, more) = styled(&format!("… ({whole} characters)"), FOLDED);
            (shown + &rest, width + more)
        }
    }
}

fn joined<T>(
    open: char,
    close: char,
    parts: impl Iterator<Item = T>,
    room: usize,
    format: impl Fn(T, usize) -> Option<(String, usize)>,
) -> Option<(String, usize)> {
    let mut line = String::from(open);
    let mut width = 2;
    for (at, part) in parts.enumerate() {
        if at > 0 {
            line.push_str(", ");
            width += 2;
        }
        let (text, more) = format(part, room.checked_sub(width)?)?;
        line.push_str(&text);
        width += more;
    }
    line.push(close);
    (width <= room).then_some((line, width))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str, fold: Fold) -> String {
        let value = serde_json::from_str(text).expect("JSON");
        anstream::adapter::strip_str(&format(&value, fold, 0)).to_string()
    }

    #[test]
    fn short_value_takes_one_line_and_keeps_its_order() {
        let text = r#"{"b": [1, -2.5, true, null], "a": {}, "c": [], "d": "x\"\u0007"}"#;
        assert_eq!(plain(text, Fold::NOTHING), text);
    }

    #[test]
    fn long_value_takes_several_lines() {
        let long = "x".repeat(60);
        let text = format!(r#"{{"one": "{long}", "two": ["{long}", 2], "three": {{}}}}"#);
        assert_eq!(
            plain(&text, Fold::NOTHING),
            format!(
                "{{\n  \"one\": \"{long}\",\n  \"two\": [\"{long}\", 2],\n  \"three\": {{}}\n}}"
            )
        );
    }

    #[test]
    fn deep_or_long_value_is_folded_with_its_size() {
        let fold = Fold {
            depth: 1,
            text: 30,
            meta: false,
        };
        let long = "y".repeat(31);
        let text = format!(r#"{{"a": {{"b": 1, "c": 2}}, "d": [1], "e": {{}}, "f": "{long}"}}"#);
        let start = "y".repeat(EXCERPT);
        assert_eq!(
            plain(&text, fold),
            format!(
                r#"{{"a": {{… 2 …}}, "d": [… 1 …], "e": {{}}, "f": "{start}"… (31 characters)}}"#
            )
        );
    }

    #[test]
    fn meta_can_be_folded() {
        let fold = Fold {
            meta: true,
            ..Fold::NOTHING
        };
        let text = r#"{"_meta": {"a": 1}, "b": {"c": {"_meta": {}}}}"#;
        let shown = r#"{"_meta": {… 1 …}, "b": {"c": {"_meta": {}}}}"#;
        assert_eq!(plain(text, fold), shown);
    }

    #[test]
    fn control_characters_are_escaped() {
        let shown = plain("\"\\u001b[2J\u{9b}\u{202e}\"", Fold::NOTHING);
        assert_eq!(shown, "\"\\u001b[2J\\u{9b}\\u{202e}\"");
    }

    #[test]
    fn large_text_is_the_same_in_parts() {
        let large = "\"a\u{202e}\n".repeat(20_000);
        let text = serde_json::json!({&large: [&large]}).to_string();
        let quoted = sanitize(&serde_json::to_string(&large).expect("JSON"));
        let expected = format!("{{\n  {quoted}: [\n    {quoted}\n  ]\n}}");
        assert_eq!(plain(&text, Fold::NOTHING), expected);
    }

    #[test]
    fn deep_value_is_indented_up_to_a_limit() {
        let text = "x".repeat(200);
        let text = format!("{}\"{text}\"{}", "[".repeat(120), "]".repeat(120));
        let shown = plain(&text, Fold::NOTHING);
        let longest = shown.lines().map(str::len).max();
        assert_eq!(longest, Some(INDENT_MAX + 202));
    }
}
