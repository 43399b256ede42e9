//! The frontmatter of `SKILL.md`: YAML between two lines `---`.
//!
//! The supported part of YAML is what frontmatter uses: nested mappings, lists of scalars, plain and quoted scalars, and
//! block scalars. Everything else is an error, so that a value is never published differently from the file.

use serde_json::{Map, Number, Value};
use std::iter::Peekable;
use std::str::Lines;

/// Why the frontmatter is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrontmatterError {
    /// The text does not begin with frontmatter.
    #[error("expected a line `---`, then `key: value` lines, then another line `---`")]
    Missing,
    /// A line is malformed, or uses YAML that is not supported.
    #[error("unsupported or malformed YAML: {0:?}; quote the value, or write it as a block")]
    Line(String),
    /// A key occurs twice.
    #[error("key {0:?} occurs twice")]
    Duplicate(String),
}

type Result<T> = std::result::Result<T, FrontmatterError>;

/// Parses the frontmatter at the start of a text.
pub(super) fn parse(text: &str) -> Result<Map<String, Value>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let rest = text
        .strip_prefix("---\n")
        .or_else(|| text.strip_prefix("---\r\n"));
    let rest = rest.ok_or(FrontmatterError::Missing)?;
    let mut lines = Vec::new();
    let mut is_closed = false;
    for line in rest.lines() {
        is_closed = line.trim_end() == "---";
        if is_closed {
            break;
        }
        lines.push(line);
    }
    if !is_closed {
        return Err(FrontmatterError::Missing);
    }
    let block = lines.join("\n");
    let mut lines = block.lines().peekable();
    let members = mapping(&mut lines, 0)?;
    match lines.next() {
        Some(line) => Err(invalid(line)),
        None => Ok(members),
    }
}

fn invalid(line: &str) -> FrontmatterError {
    FrontmatterError::Line(line.to_owned())
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// The next line that is neither blank nor a comment.
fn peek<'a>(lines: &mut Peekable<Lines<'a>>) -> Option<&'a str> {
    while let Some(line) = lines.peek() {
        let text = line.trim();
        if !text.is_empty() && !text.starts_with('#') {
            return Some(line);
        }
        lines.next();
    }
    None
}

/// The mapping whose keys are indented by this many spaces.
fn mapping(lines: &mut Peekable<Lines<'_>>, depth: usize) -> Result<Map<String, Value>> {
    let mut members = Map::new();
    while let Some(line) = peek(lines).filter(|line| indent(line) == depth) {
        lines.next();
        let (key, rest) = split_key(line.trim()).ok_or_else(|| invalid(line))?;
        let value = match rest {
            "" => nested(lines, depth)?,
            "|" | "|-" | ">" | ">-" => Value::String(block(lines, depth, rest)?),
            rest => scalar(rest).ok_or_else(|| invalid(line))?,
        };
        if members.insert(key.to_owned(), value).is_some() {
            return Err(FrontmatterError::Duplicate(key.to_owned()));
        }
    }
    Ok(members)
}

/// The value below a key without a value on its line.
fn nested(lines: &mut Peekable<Lines<'_>>, depth: usize) -> Result<Value> {
    match peek(lines) {
        Some(line) if line.trim_start().starts_with("- ") && indent(line) >= depth => {
            let inner = indent(line);
            let mut items = Vec::new();
            while let Some(line) = peek(lines).filter(|line| indent(line) == inner) {
                let Some(item) = line.trim().strip_prefix("- ") else {
                    break;
                };
                lines.next();
                let is_mapping = split_key(item).is_some();
                let item = Some(item.trim()).filter(|_| !is_mapping);
                items.push(item.and_then(scalar).ok_or_else(|| invalid(line))?);
            }
            Ok(Value::Array(items))
        }
        Some(line) if indent(line) > depth => Ok(Value::Object(mapping(lines, indent(line))?)),
        _ => Ok(Value::Null),
    }
}

/// The key and the rest of a line `key: value`.
fn split_key(line: &str) -> Option<(&str, &str)> {
    let (key, rest) = match line.split_once(": ") {
        Some((key, rest)) => (key, rest.trim()),
        None => (line.strip_suffix(':')?, ""),
    };
    let is_plain = |c: char| c.is_alphanumeric() || "-_./".contains(c);
    let rest = match rest.starts_with('#') {
        true => "",
        false => rest,
    };
    (!key.is_empty() && key.chars().all(is_plain)).then_some((key, rest))
}

/// The lines of a block scalar, which are indented more than `depth`.
fn block(lines: &mut Peekable<Lines<'_>>, depth: usize, style: &str) -> Result<String> {
    let mut block: Vec<&str> = Vec::new();
    let mut inner = None;
    while let Some(line) = lines.peek() {
        if !line.trim().is_empty() {
            if indent(line) <= depth {
                break;
            }
            if indent(line) < *inner.get_or_insert(indent(line)) {
                return Err(invalid(line));
            }
        }
        block.push(line.get(inner.unwrap_or(0)..).unwrap_or_default());
        lines.next();
    }
    while block.last().is_some_and(|line| line.trim().is_empty()) {
        block.pop();
    }
    let mut text = String::new();
    for (index, line) in block.iter().enumerate() {
        let is_folded = style.starts_with('>');
        if is_folded && line.starts_with(' ') {
            return Err(invalid(line));
        }
        match (index, is_folded) {
            (0, _) => {}
            (_, false) => text.push('\n'),
            (_, true) if line.is_empty() => text.push('\n'),
            (_, true) if text.ends_with('\n') => {}
            (_, true) => text.push(' '),
        }
        text.push_str(line);
    }
    if !style.ends_with('-') && !text.is_empty() {
        text.push('\n');
    }
    Ok(text)
}

/// A scalar or a list of scalars on one line. `None`: it is not supported.
fn scalar(text: &str) -> Option<Value> {
    if let Some(list) = text.strip_prefix('[') {
        let list = list.strip_suffix(']')?.trim();
        if list.is_empty() {
            return Some(Value::Array(Vec::new()));
        }
        let item = |item: &str| match item.contains(['[', ']', '{', '"', '\'']) {
            true => None,
            false => scalar(item.trim()),
        };
        return list.split(',').map(item).collect();
    }
    if text.starts_with('"') {
        // Double-quoted scalars are JSON strings, apart from escapes that JSON does not have.
        return serde_json::from_str(text).ok().map(Value::String);
    }
    if let Some(quoted) = text.strip_prefix('\'') {
        let inner = quoted.strip_suffix('\'')?.replace("''", "\u{0}");
        let is_closed_once = !inner.contains('\'');
        return is_closed_once.then(|| Value::String(inner.replace('\u{0}', "'")));
    }
    plain(text)
}

fn plain(text: &str) -> Option<Value> {
    let is_unsupported = text.is_empty()
        || text.starts_with([
            '&', '*', '!', '|', '>', '%', '@', '`', '{', '}', ']', ',', '#', '?',
        ])
        || text.starts_with("- ")
        || text.contains(": ")
        || text.ends_with(':')
        || text.contains(" #");
    if is_unsupported {
        return None;
    }
    // Numbers in other notations, such as `1e3`, `0x10` and `.inf`, are not supported.
    let starts_like_number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    let is_special = [".inf", ".nan", "0x", "0o"].iter().any(|start| {
        let unsigned = text.trim_start_matches(['+', '-']);
        unsigned.to_ascii_lowercase().starts_with(start)
    });
    if number(text).is_none() && starts_like_number && (is_special || text.parse::<f64>().is_ok()) {
        return None;
    }
    Some(match text {
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        "null" | "Null" | "NULL" | "~" => Value::Null,
        _ => number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number),
    })
}

/// A decimal number. `None`: it is text.
fn number(text: &str) -> Option<Number> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.chars().all(|c| c.is_ascii_digit() || c == '.')
        && digits.matches('.').count() <= 1;
    if !is_number {
        return None;
    }
    let text = text.strip_prefix('+').unwrap_or(text);
    match text.parse::<i64>() {
        Ok(number) => Some(number.into()),
        Err(_) => Number::from_f64(text.parse().ok()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parsed(text: &str) -> Value {
        let parsed = parse(&format!("---\n{text}\n---\nbody\n"));
        Value::Object(parsed.unwrap_or_else(|error| panic!("{text}: {error}")))
    }

    #[test]
    fn frontmatter_is_rendered_as_json() {
        let text = "# comment
name: refunds
description: >-
  Refund an order
  and tell the customer.

  Ask first.
license: \"Apache-2.0 \\\"or\\\" MIT\"
note: 'it''s'
allowed-tools: Bash(git:*) Read
metadata:
  version: 1.2.0
  level: 3
  ratio: 0.5
  draft: false
  owner: ~
tags: [a, b c]
steps:
  - one
  - 'two: 2'
text: |
  line one
    line two
empty:";
        let expected = json!({
            "name": "refunds",
            "description": "Refund an order and tell the customer.\nAsk first.",
            "license": "Apache-2.0 \"or\" MIT",
            "note": "it's",
            "allowed-tools": "Bash(git:*) Read",
            "metadata": {"version": "1.2.0", "level": 3, "ratio": 0.5, "draft": false, "owner": null},
            "tags": ["a", "b c"],
            "steps": ["one", "two: 2"],
            "text": "line one\n  line two\n",
            "empty": null,
        });
        assert_eq!(parsed(text), expected);
        assert_eq!(parsed(&text.replace('\n', "\r\n")), expected);
    }

    #[test]
    fn unsupported_yaml_is_an_error() {
        for line in [
            "name: &anchor a",
            "name: *a",
            "name: {a: 1}",
            "name: a: b",
            "name: !!str a",
            "name: 'a' b",
            "name: a # comment",
            "- a",
            "name",
            "  name: a",
            "list:\n  - a: b",
            "name: [a, [b]]",
            "name: \"\\x41\"",
            "name: a\n   continued",
            "name: 1e3",
            "name: .inf",
            "name: 0x10",
            "name: >\n  a\n    b",
            "name: |\n    four\n  two",
        ] {
            let error = parse(&format!("---\n{line}\n---\n")).expect_err(line);
            assert!(
                matches!(error, FrontmatterError::Line(_)),
                "{line}: {error}"
            );
        }
        let twice = parse("---\nname: a\nname: b\n---\n");
        assert_eq!(twice, Err(FrontmatterError::Duplicate("name".into())));
        for text in ["", "name: a", "---\nname: a\n", "--- \nname: a\n---\n"] {
            assert_eq!(parse(text), Err(FrontmatterError::Missing), "{text:?}");
        }
    }
}
