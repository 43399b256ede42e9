//! JSON objects whose members keep their order.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::members::Reader;
use crate::strict::{JsonError, parse_value};

pub(super) type Object = Map<String, Value>;

/// Reads an object; a key given twice is an error at any depth.
pub(super) fn read_object(text: &str) -> Result<Object, JsonError> {
    into_object(parse_value(text)?).ok_or_else(|| JsonError::new("expected an object"))
}

pub(super) fn into_object(value: Value) -> Option<Object> {
    match value {
        Value::Object(members) => Some(members),
        _ => None,
    }
}

pub(super) fn object<const N: usize>(members: [(&str, Value); N]) -> Object {
    let members = members.into_iter();
    let members = members.map(|(name, value)| (name.to_owned(), value));
    members.collect()
}

/// The text of an object, on one line.
pub(super) fn to_text(object: Object) -> String {
    Value::Object(object).to_string()
}

/// The id of a message as it was written.
pub(super) fn raw_id(message: &str) -> Option<&RawValue> {
    let members = Reader::new(serde_json::from_str(message).ok()?, "");
    members.raw("id").ok()?
}

/// The text of a message that was made from the message `from`, with the id as it was written there: a number that has no
/// exact value here, such as `-0` or one beyond 64 bits, is not rounded.
pub(super) fn to_message(mut message: Object, from: &str) -> String {
    match (message.get("id").map(Value::to_string), raw_id(from)) {
        (Some(id), Some(raw)) if id != raw.get() => {
            message.shift_remove("id");
            let rest = to_text(message);
            let comma = if rest.len() > 2 { "," } else { "" };
            format!(r#"{{"id":{raw}{comma}{}"#, &rest[1..])
        }
        _ => to_text(message),
    }
}

/// Sets a member in place, or appends it.
pub(super) fn set(object: &mut Object, name: &str, value: impl Into<Value>) {
    object.insert(name.to_owned(), value.into());
}

/// Moves a member, if present, to another object under another name.
pub(super) fn move_member(from: &mut Object, name: &str, to: &mut Object, new: &str) {
    if let Some(value) = from.shift_remove(name) {
        set(to, new, value);
    }
}

/// Renames a member in place.
pub(super) fn rename(object: &mut Object, name: &str, new: &str) {
    let members = std::mem::take(object).into_iter();
    *object = members
        .map(|(key, value)| (if key == name { new.to_owned() } else { key }, value))
        .collect();
}
