//! JSON objects whose members keep their order.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::canonical::{JsonError, parse_value};
use crate::members::Reader;

pub(super) type Object = Map<String, Value>;

/// Reads an object. A duplicate key at any depth is an error.
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

/// Serializes an object on one line.
pub(super) fn to_text(object: Object) -> String {
    Value::Object(object).to_string()
}

/// The raw id of a message.
pub(super) fn raw_id(message: &str) -> Option<&RawValue> {
    let members = Reader::new(serde_json::from_str(message).ok()?, "");
    members.raw("id").ok()?
}

/// Serializes `message`, which is a translation of the text `from`. The id is copied from `from` unchanged, since
/// parsing it would round numbers beyond 64 bits and change `-0`.
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

/// Sets a member; an existing one keeps its position.
pub(super) fn set(object: &mut Object, name: &str, value: impl Into<Value>) {
    object.insert(name.to_owned(), value.into());
}

/// Moves a member, if present, to another object under a new name.
pub(super) fn move_member(from: &mut Object, name: &str, to: &mut Object, new: &str) {
    if let Some(value) = from.shift_remove(name) {
        set(to, new, value);
    }
}

/// Renames a member; it keeps its position.
pub(super) fn rename(object: &mut Object, name: &str, new: &str) {
    let members = std::mem::take(object).into_iter();
    *object = members
        .map(|(key, value)| (if key == name { new.to_owned() } else { key }, value))
        .collect();
}
