//! Unambiguous JSON: rejects duplicate keys, and serializes equal values to equal text.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::decode::reason;
use crate::excerpt::Excerpt;
use crate::{plain, write};

/// Reads a value. Duplicate keys and nesting of 128 levels or more are errors.
///
/// ```
/// assert!(refrain_wire::parse_value(r#"{"a":1,"b":{"a":1}}"#).is_ok());
/// let duplicate = refrain_wire::parse_value(r#"{"a":1,"a":2}"#).unwrap_err();
/// assert!(duplicate.to_string().contains("\"a\""));
/// ```
pub fn parse_value(raw: &str) -> Result<Value, JsonError> {
    if !is_too_deep(raw)
        && let Some(value) = plain::read(raw, UniqueKeys)
    {
        return Ok(value);
    }
    // serde_json explains the error.
    let mut deserializer = serde_json::Deserializer::from_str(raw);
    let value = UniqueKeys.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Malformed or unexpected JSON. The message has no position, because the input is often a part of a larger message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct JsonError {
    message: Box<str>,
}

impl JsonError {
    pub(crate) fn new(message: impl Into<Box<str>>) -> Self {
        let message = message.into();
        Self { message }
    }
}

impl From<serde_json::Error> for JsonError {
    fn from(error: serde_json::Error) -> Self {
        Self::new(reason(&error))
    }
}

/// The maximum nesting of [`parse_value`].
pub(crate) const MAX_DEPTH: usize = 127;

/// Whether JSON exceeds the nesting limit of [`parse_value`].
pub(crate) fn is_too_deep(json: &str) -> bool {
    // Each level needs two characters.
    if json.len() <= 2 * MAX_DEPTH {
        return false;
    }
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
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
            // The text may be malformed.
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// Reads a value and rejects duplicate keys.
pub(crate) struct UniqueKeys;

impl<'de> DeserializeSeed<'de> for UniqueKeys {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueKeys {
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
                let key = Excerpt(&key);
                return Err(Error::custom(format_args!("duplicate key {key:?}")));
            }
            let value = map.next_value_seed(Self)?;
            members.insert(key, value);
        }
        Ok(Value::Object(members))
    }
}

/// Appends the canonical text of a value: keys are sorted, white space is removed, and a float with a whole value, such as
/// `2.0`, becomes an integer.
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
        // A feature of serde_json decides whether maps are sorted, and any crate in the build may change it.
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
    match write::float_as_whole(number) {
        Some(whole) => write::json(out, &whole),
        None => write::json(out, number),
    }
}
