//! Comparison of two outcomes, and a readable difference.

use serde_json::Value;
use std::fmt::Write;

/// The number of hexadecimal digits of an idempotency key.
const KEY_DIGITS: usize = 32;
/// Equal lines shown before and after the difference.
const CONTEXT: usize = 3;

/// The value with its idempotency keys numbered in their order: two runs of a call have different keys.
pub(crate) fn with_numbered_keys(mut value: Value) -> Value {
    number_keys(&mut value, &mut Vec::new());
    value
}

fn number_keys(value: &mut Value, keys: &mut Vec<String>) {
    match value {
        Value::String(text) => *text = number_keys_in_text(text, keys),
        Value::Array(items) => items.iter_mut().for_each(|item| number_keys(item, keys)),
        Value::Object(members) => {
            let values = members.values_mut();
            values.for_each(|member| number_keys(member, keys));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn number_keys_in_text(text: &str, keys: &mut Vec<String>) -> String {
    let is_digit = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    let mut numbered = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_digit(c)).unwrap_or(rest.len());
        let (digits, after) = rest.split_at(end);
        if digits.len() == KEY_DIGITS {
            let known = keys.iter().position(|key| key == digits);
            let number = known.unwrap_or_else(|| {
                keys.push(digits.to_owned());
                keys.len() - 1
            });
            let _ = write!(numbered, "<key {}>", number + 1);
        } else {
            numbered.push_str(digits);
        }
        let end = after.find(is_digit).unwrap_or(after.len());
        numbered.push_str(&after[..end]);
        rest = &after[end..];
    }
    numbered
}

/// The lines in which two texts differ: those of the first with `-`, those of the second with `+`.
pub(crate) fn difference(one: &str, other: &str) -> String {
    let (one, other): (Vec<_>, Vec<_>) = (one.lines().collect(), other.lines().collect());
    let pairs = one.iter().zip(&other);
    let before = pairs.take_while(|(one, other)| one == other).count();
    let pairs = one[before..].iter().rev().zip(other[before..].iter().rev());
    let after = pairs.take_while(|(one, other)| one == other).count();
    let (end_of_one, end_of_other) = (one.len() - after, other.len() - after);
    let context_end = (end_of_one + CONTEXT).min(one.len());
    let sections = [
        (' ', &one[before.saturating_sub(CONTEXT)..before]),
        ('-', &one[before..end_of_one]),
        ('+', &other[before..end_of_other]),
        (' ', &one[end_of_one..context_end]),
    ];
    let mut lines = String::new();
    for (mark, section) in sections {
        for line in section {
            let _ = writeln!(lines, "{mark} {line}");
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_are_numbered_by_their_first_use() {
        let (one, other) = ("0123456789abcdef".repeat(2), "f".repeat(32));
        let value =
            json!({"a": [format!("lamp-{one}"), other, format!("{other} {one}.")], "b": "ff"});
        let numbered = json!({"a": ["lamp-<key 1>", "<key 2>", "<key 2> <key 1>."], "b": "ff"});
        assert_eq!(with_numbered_keys(value), numbered);
    }

    #[test]
    fn difference_has_only_the_lines_around_it() {
        let one = "1\n2\n3\n4\nold\n5\n6\n7\n8";
        let other = "1\n2\n3\n4\nnew\nnewer\n5\n6\n7\n8";
        assert_eq!(
            difference(one, other),
            "  2\n  3\n  4\n- old\n+ new\n+ newer\n  5\n  6\n  7\n"
        );
        assert_eq!(difference("a\na", "a"), "  a\n- a\n");
    }
}
