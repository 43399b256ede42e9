//! JSON values without room for two readings.
//!
//! What always holds: a value read here had each key of an object once, and the canonical text of
//! a value depends on what it says and not on how it was written.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::{Map, Number, Value};

use crate::decode::reason;
use crate::write;

/// Reads a value; a key given twice and nesting of 128 levels or more are errors.
///
/// ```
/// assert!(refrain_wire::parse_value(r#"{"a":1,"b":{"a":1}}"#).is_ok());
/// let twice = refrain_wire::parse_value(r#"{"a":1,"a":2}"#).unwrap_err();
/// assert!(twice.to_string().contains("\"a\""));
/// ```
pub fn parse_value(raw: &str) -> Result<Value, JsonError> {
    // serde_json itself stops at the depth.
    let mut deserializer = serde_json::Deserializer::from_str(raw);
    let value = Strict.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Malformed JSON. Its text omits the position, because the text that was read is often part of a larger message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct JsonError {
    message: Box<str>,
    category: Category,
}

impl JsonError {
    pub(crate) fn new(message: impl Into<Box<str>>) -> Self {
        Self {
            message: message.into(),
            category: Category::Data,
        }
    }

    /// Whether the text is malformed JSON, or JSON of an unexpected shape.
    pub fn classify(&self) -> Category {
        self.category
    }
}

impl From<serde_json::Error> for JsonError {
    fn from(error: serde_json::Error) -> Self {
        Self {
            message: reason(&error).into(),
            category: error.classify(),
        }
    }
}

/// The deepest nesting that [`parse_value`] reads.
pub(crate) const MAX_DEPTH: usize = 127;

/// Whether JSON text is nested deeper than [`parse_value`] would read.
pub(crate) fn is_too_deep(json: &str) -> bool {
    // Each level takes two characters.
    if json.len() <= 2 * MAX_DEPTH {
        return false;
    }
    let (mut depth, mut in_string, mut escaped) = (0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return true;
                }
            }
            b'}' | b']' if !in_string => depth -= 1,
            _ => {}
        }
    }
    false
}

/// Reads a value with each key of an object once.
pub(crate) struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| Error::custom("a number is out of range"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Self)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if members.contains_key(&key) {
                return Err(Error::custom(format_args!(
                    "the key {key:?} is given twice"
                )));
            }
            let value = map.next_value_seed(Self)?;
            members.insert(key, value);
        }
        Ok(Value::Object(members))
    }
}

/// Appends the canonical text of a value: keys in byte order at every level, no spaces, and whole
/// numbers as integers where a double holds them exactly.
pub fn write_canonical(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Number(number) => write_number(number, out),
        Value::Array(items) => {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write_canonical(item, out);
            }
            out.push(b']');
        }
        Value::Object(members) if members.keys().is_sorted() => write_members(members, out),
        // Whether a map is sorted is a feature that any crate in the build may switch off.
        Value::Object(members) => {
            let mut sorted: Vec<(&String, &Value)> = members.iter().collect();
            sorted.sort_unstable_by_key(|(key, _)| *key);
            write_members(sorted, out);
        }
        Value::Null | Value::Bool(_) => write::json(out, value),
        Value::String(text) => write::text(out, text),
    }
}

fn write_members<'a>(
    members: impl IntoIterator<Item = (&'a String, &'a Value)>,
    out: &mut Vec<u8>,
) {
    out.push(b'{');
    for (i, (key, value)) in members.into_iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write::text(out, key);
        out.push(b':');
        write_canonical(value, out);
    }
    out.push(b'}');
}

fn write_number(number: &Number, out: &mut Vec<u8>) {
    let whole = if number.is_f64() {
        number.as_f64().and_then(write::as_whole)
    } else {
        None
    };
    match whole {
        Some(whole) => write::json(out, &whole),
        None => write::json(out, number),
    }
}
