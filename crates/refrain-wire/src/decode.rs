//! Borrowing building blocks for the decoders.
//!
//! What always holds: nothing is copied unless a string has escapes in it, and a failure carries
//! the name of the member it is about.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A string, borrowed where the text allows it (also inside an `Option`, where `Cow` alone would
/// always copy).
#[derive(Debug, PartialEq)]
pub(crate) struct Text<'a>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
            fn visit_string<E: Error>(self, text: String) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text)))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// Any object, its members skipped.
pub(crate) struct Object;

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;
        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = Object;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Object)
            }
        }
        deserializer.deserialize_map(ObjectVisitor)
    }
}

/// The raw text of an object.
#[derive(Clone, Copy)]
pub(crate) struct RawObject<'a>(pub(crate) &'a RawValue);

impl<'de: 'a, 'a> Deserialize<'de> for RawObject<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        if is_object(raw) {
            Ok(Self(raw))
        } else {
            Err(Error::custom("expected an object"))
        }
    }
}

/// Whether the raw text is that of an object.
pub(crate) fn is_object(raw: &RawValue) -> bool {
    raw.get().starts_with('{')
}

/// Whether the raw text is that of a string or of an integer written without fraction or exponent.
pub(crate) fn is_string_or_integer(raw: &RawValue) -> bool {
    let text = raw.get();
    let digits = text.strip_prefix('-').unwrap_or(text);
    text.starts_with('"') || (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// Reads a member's value into its slot, which must still be empty.
pub(crate) fn once<'de, A, T>(
    map: &mut A,
    slot: &mut Option<T>,
    name: &str,
    expected: &str,
) -> Result<(), A::Error>
where
    A: MapAccess<'de>,
    T: Deserialize<'de>,
{
    refuse_second(slot.is_some(), name)?;
    let value = map.next_value();
    *slot = Some(value.map_err(|_| Error::custom(format_args!("{name} must be {expected}")))?);
    Ok(())
}

/// Like [`once`], for a value that names its own members when it fails.
pub(crate) fn once_nested<'de, A, T>(
    map: &mut A,
    slot: &mut Option<T>,
    name: &str,
) -> Result<(), A::Error>
where
    A: MapAccess<'de>,
    T: Deserialize<'de>,
{
    refuse_second(slot.is_some(), name)?;
    *slot = Some(map.next_value()?);
    Ok(())
}

fn refuse_second<E: Error>(filled: bool, name: &str) -> Result<(), E> {
    if filled {
        return Err(Error::custom(format_args!(
            "{name} is given twice; send it once"
        )));
    }
    Ok(())
}

/// Skips the value of a member nobody reads.
pub(crate) fn skip<'de, A: MapAccess<'de>>(map: &mut A) -> Result<(), A::Error> {
    map.next_value::<IgnoredAny>().map(|_| ())
}

/// What an error says, without the position in a text its reader never saw.
pub(crate) fn reason(error: &serde_json::Error) -> String {
    let mut text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    if text.ends_with(&position) {
        text.truncate(text.len() - position.len());
    }
    // To the reader it is a value that is none of those that there are.
    match text.strip_prefix("unknown variant ") {
        Some(rest) => format!("unknown value {rest}"),
        None => text,
    }
}
