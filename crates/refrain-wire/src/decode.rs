//! Building blocks for decoders.
//!
//! Invariants: only strings with escapes are copied; every error names the invalid member.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::excerpt::Excerpt;

/// A string that borrows unless it has escapes. A plain `Cow` inside an `Option` would always copy.
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

/// Any object; its members are skipped.
pub(crate) struct AnyObject;

impl<'de> Deserialize<'de> for AnyObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;
        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = AnyObject;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<AnyObject, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(AnyObject)
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

/// Whether the raw value is an object.
pub(crate) fn is_object(raw: &RawValue) -> bool {
    raw.get().starts_with('{')
}

/// The maximum size of an id or a progress token, in bytes. The call keeps them, and repeats them in its messages.
const MAX_ID: usize = 8192;
/// The description of a valid id in error messages.
pub(crate) const EXPECTED_ID: &str = "a string or an integer of up to 8192 bytes";

/// Whether a JSON value is a string, or an integer without fraction and exponent, of up to 8192 bytes.
pub(crate) fn is_id(text: &str) -> bool {
    if text.len() > MAX_ID {
        return false;
    }
    let digits = text.strip_prefix('-').unwrap_or(text);
    text.starts_with('"') || (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// Reads a member's value into an empty slot. A filled slot means a duplicate member.
pub(crate) fn read_once<'de, A, T>(
    map: &mut A,
    slot: &mut Option<T>,
    name: &str,
    expected: &str,
) -> Result<(), A::Error>
where
    A: MapAccess<'de>,
    T: Deserialize<'de>,
{
    reject_duplicate(slot.is_some(), name)?;
    let value = map.next_value();
    *slot = Some(value.map_err(|_| Error::custom(format_args!("{name} must be {expected}")))?);
    Ok(())
}

/// Like [`read_once`], for a type whose errors already name the invalid member.
pub(crate) fn read_once_nested<'de, A, T>(
    map: &mut A,
    slot: &mut Option<T>,
    name: &str,
) -> Result<(), A::Error>
where
    A: MapAccess<'de>,
    T: Deserialize<'de>,
{
    reject_duplicate(slot.is_some(), name)?;
    *slot = Some(map.next_value()?);
    Ok(())
}

fn reject_duplicate<E: Error>(filled: bool, name: &str) -> Result<(), E> {
    if filled {
        return Err(Error::custom(format_args!(
            "{name} is given twice; send it once"
        )));
    }
    Ok(())
}

/// Skips the value of an unknown member.
pub(crate) fn skip_value<'de, A: MapAccess<'de>>(map: &mut A) -> Result<(), A::Error> {
    map.next_value::<IgnoredAny>().map(|_| ())
}

/// An excerpt of an error message, which may contain values of the caller. Omits the position: it refers to a text that the
/// client does not see.
pub(crate) fn reason(error: &serde_json::Error) -> String {
    let mut text = Excerpt(error).to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    if text.ends_with(&position) {
        text.truncate(text.len() - position.len());
    }
    // Serde's "variant" is a Rust term; the reader sees a value.
    match text.strip_prefix("unknown variant ") {
        Some(rest) => format!("unknown value {rest}"),
        None => text,
    }
}
