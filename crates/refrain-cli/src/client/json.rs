//! JSON as people read it: coloured, in the order it was written, short things on one line.

use super::text::{harmless, shortened};
use anstyle::{AnsiColor, Style};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;
use std::fmt;

/// What is wider is spread over several lines.
const WIDTH: usize = 100;
const INDENT: usize = 2;
/// How much is shown of a text that is too long.
const START: usize = 24;

/// The member in which messages speak of themselves.
const META: &str = "_meta";

const KEY: Style = AnsiColor::Cyan.on_default();
const TEXT: Style = AnsiColor::Green.on_default();
const NUMBER: Style = AnsiColor::Yellow.on_default();
const WORD: Style = AnsiColor::Magenta.on_default();
const FOLDED: Style = Style::new().dimmed();

/// A JSON value whose members keep their order.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    /// `null`, `true` or `false`.
    Word(&'static str),
    Number(Number),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

/// How much of a value is shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fold {
    /// What is nested deeper is left out, and counted.
    pub(super) depth: usize,
    /// Of a text with more characters only the start is shown, with its length.
    pub(super) text: usize,
    /// Whether what messages say of themselves, in `_meta`, is left out too.
    pub(super) meta: bool,
}

impl Fold {
    /// Everything is shown.
    pub(super) const NOTHING: Self = Self {
        depth: usize::MAX,
        text: usize::MAX,
        meta: false,
    };

    /// What is shown one level deeper, in the member of this name.
    fn inside(self, member: &str) -> Self {
        let is_left_out = self.meta && member == META;
        Self {
            depth: if is_left_out {
                0
            } else {
                self.depth.saturating_sub(1)
            },
            ..self
        }
    }
}

impl Json {
    pub(super) fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// A member of an object.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => {
                let found = members.iter().find(|(name, _)| name == key);
                found.map(|(_, value)| value)
            }
            _ => None,
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The value with its colours, without a line end. Further lines are indented by so many columns.
    pub(super) fn shown(&self, fold: Fold, indent: usize) -> String {
        let mut out = String::new();
        self.write(&mut out, fold, indent, indent);
        out
    }

    /// Writes the value at a column, with the lines after it indented.
    fn write(&self, out: &mut String, fold: Fold, indent: usize, column: usize) {
        let (line, width) = self.line(fold);
        let fits = column + width <= WIDTH || fold.depth == 0;
        let deeper = indent + INDENT;
        match self {
            Self::Object(members) if !fits && !members.is_empty() => {
                out.push('{');
                for (at, (key, value)) in members.iter().enumerate() {
                    let (name, width) = quoted(key, usize::MAX, KEY);
                    out.push_str(if at == 0 { "\n" } else { ",\n" });
                    out.push_str(&format!("{:deeper$}{name}: ", ""));
                    value.write(out, fold.inside(key), deeper, deeper + width + 2);
                }
                out.push_str(&format!("\n{:indent$}}}", ""));
            }
            Self::List(items) if !fits && !items.is_empty() => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    out.push_str(if at == 0 { "\n" } else { ",\n" });
                    out.push_str(&format!("{:deeper$}", ""));
                    item.write(out, fold.inside(""), deeper, deeper);
                }
                out.push_str(&format!("\n{:indent$}]", ""));
            }
            _ => out.push_str(&line),
        }
    }

    /// The value on one line, and how wide it is.
    fn line(&self, fold: Fold) -> (String, usize) {
        match self {
            Self::Word(word) => styled(word, WORD),
            Self::Number(number) => styled(&number.to_string(), NUMBER),
            Self::Text(text) => quoted(text, fold.text, TEXT),
            Self::List(items) if fold.depth == 0 && !items.is_empty() => {
                styled(&format!("[… {} …]", items.len()), FOLDED)
            }
            Self::Object(members) if fold.depth == 0 && !members.is_empty() => {
                styled(&format!("{{… {} …}}", members.len()), FOLDED)
            }
            Self::List(items) => joined(
                '[',
                ']',
                items.iter().map(|item| item.line(fold.inside(""))),
            ),
            Self::Object(members) => {
                let each = members.iter().map(|(key, value)| {
                    let (name, width) = quoted(key, usize::MAX, KEY);
                    let (value, more) = value.line(fold.inside(key));
                    (format!("{name}: {value}"), width + 2 + more)
                });
                joined('{', '}', each)
            }
        }
    }
}

fn styled(text: &str, style: Style) -> (String, usize) {
    (format!("{style}{text}{style:#}"), text.chars().count())
}

fn quoted(text: &str, most: usize, style: Style) -> (String, usize) {
    let (start, whole) = match shortened(text, most) {
        (all, None) => (all, None),
        (_, Some(whole)) => (shortened(text, START).0, Some(whole)),
    };
    let escaped = serde_json::Value::from(start).to_string();
    let (shown, width) = styled(&harmless(&escaped), style);
    match whole {
        None => (shown, width),
        Some(whole) => {
            let (rest, more) = styled(&format!("… ({whole} characters)"), FOLDED);
            (shown + &rest, width + more)
        }
    }
}

fn joined(open: char, close: char, each: impl Iterator<Item = (String, usize)>) -> (String, usize) {
    let mut line = String::from(open);
    let mut width = 2;
    for (at, (text, more)) in each.enumerate() {
        if at > 0 {
            line.push_str(", ");
            width += 2;
        }
        line.push_str(&text);
        width += more;
    }
    line.push(close);
    (line, width)
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Json;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }

            fn visit_unit<E>(self) -> Result<Json, E> {
                Ok(Json::Word("null"))
            }

            fn visit_bool<E>(self, truth: bool) -> Result<Json, E> {
                Ok(Json::Word(if truth { "true" } else { "false" }))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Json, E> {
                Ok(Json::Number(number.into()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Json, E> {
                Ok(Json::Number(number.into()))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Json, E> {
                Ok(Number::from_f64(number).map_or(Json::Word("null"), Json::Number))
            }

            fn visit_str<E>(self, text: &str) -> Result<Json, E> {
                Ok(Json::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Json::List(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Json::Object(members))
            }
        }

        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str, fold: Fold) -> String {
        let json = Json::parse(text).expect("JSON");
        anstream::adapter::strip_str(&json.shown(fold, 0)).to_string()
    }

    #[test]
    fn short_values_take_one_line_and_keep_their_order() {
        let text = r#"{"b": [1, -2.5, true, null], "a": {}, "c": [], "d": "x\"\u0007"}"#;
        assert_eq!(plain(text, Fold::NOTHING), text);
    }

    #[test]
    fn long_values_are_spread() {
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
    fn what_is_deep_or_long_is_folded_and_counted() {
        let fold = Fold {
            depth: 1,
            text: 30,
            meta: false,
        };
        let long = "y".repeat(31);
        let text = format!(r#"{{"a": {{"b": 1, "c": 2}}, "d": [1], "e": {{}}, "f": "{long}"}}"#);
        let start = "y".repeat(START);
        assert_eq!(
            plain(&text, fold),
            format!(
                r#"{{"a": {{… 2 …}}, "d": [… 1 …], "e": {{}}, "f": "{start}"… (31 characters)}}"#
            )
        );
    }

    #[test]
    fn what_messages_say_of_themselves_can_be_left_out() {
        let fold = Fold {
            meta: true,
            ..Fold::NOTHING
        };
        let text = r#"{"_meta": {"a": 1}, "b": {"c": {"_meta": {}}}}"#;
        let shown = r#"{"_meta": {… 1 …}, "b": {"c": {"_meta": {}}}}"#;
        assert_eq!(plain(text, fold), shown);
    }

    #[test]
    fn nothing_in_a_text_steers_the_terminal() {
        let shown = plain("\"\\u001b[2J\u{9b}\u{202e}\"", Fold::NOTHING);
        assert_eq!(shown, "\"\\u001b[2J\\u{9b}\\u{202e}\"");
    }
}
