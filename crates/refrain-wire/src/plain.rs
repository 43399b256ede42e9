//! A deserializer for valid messages, which is faster than that of serde_json.
//!
//! It reads objects, ids, and strings without escapes itself, and passes all other values to serde_json. It does not explain
//! errors: [`parse`](crate::parse) reads an invalid message again. It does not limit the nesting of objects.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::de::StrRead;
use serde_json::value::RawValue;

use crate::meta::META_TYPE;
use crate::meta_cache;
use crate::read_call::ID_TYPE;
use crate::write::find_special;

type JsonDeserializer<'de> = serde_json::Deserializer<StrRead<'de>>;

/// The text is not a valid value of the expected type.
#[derive(Debug)]
pub(crate) struct InvalidText;

impl fmt::Display for InvalidText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid text")
    }
}

impl std::error::Error for InvalidText {}

impl Error for InvalidText {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

/// Reads a value whose nesting the caller has checked. `None` if the text is invalid.
pub(crate) fn read<'de, S: DeserializeSeed<'de>>(text: &'de str, seed: S) -> Option<S::Value> {
    let mut deserializer = PlainDeserializer::new(text);
    let value = seed.deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    Some(value)
}

pub(crate) struct PlainDeserializer<'de> {
    text: &'de str,
    /// The position of the next byte to read.
    position: usize,
    /// The text of a `_meta` that was parsed.
    parsed_meta: Option<&'de str>,
}

impl<'de> PlainDeserializer<'de> {
    pub(crate) fn new(text: &'de str) -> Self {
        Self {
            text,
            position: 0,
            parsed_meta: None,
        }
    }

    /// Checks that only white space is left. Returns the text of a `_meta` that was parsed.
    pub(crate) fn end(mut self) -> Result<Option<&'de str>, InvalidText> {
        match self.peek() {
            None => Ok(self.parsed_meta),
            Some(_) => Err(InvalidText),
        }
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        loop {
            match self.text.as_bytes().get(self.position)? {
                b' ' | b'\t' | b'\n' | b'\r' => self.position += 1,
                byte => return Some(*byte),
            }
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), InvalidText> {
        if self.peek() != Some(byte) {
            return Err(InvalidText);
        }
        self.position += 1;
        Ok(())
    }

    /// The next string. `None` if it has escapes.
    fn string(&mut self) -> Result<Option<&'de str>, InvalidText> {
        if self.peek() != Some(b'"') {
            return Err(InvalidText);
        }
        let content = &self.text[self.position + 1..];
        let end = find_special(content.as_bytes());
        match content.as_bytes().get(end) {
            Some(b'"') => {
                self.position += end + 2;
                Ok(Some(&content[..end]))
            }
            Some(b'\\') => Ok(None),
            _ => Err(InvalidText),
        }
    }

    /// The text of the next value. Reads natural numbers and strings without escapes itself.
    fn id(&mut self) -> Result<&'de str, InvalidText> {
        let first = self.peek();
        let start = self.position;
        match first {
            Some(b'"') if self.string()?.is_some() => {}
            Some(b'1'..=b'9') => {
                let digits = self.text[start..].bytes();
                self.position += digits.take_while(u8::is_ascii_digit).count();
            }
            _ => {
                let raw = self.with_serde_json(|json| <&'de RawValue>::deserialize(json));
                return raw.map(RawValue::get);
            }
        }
        Ok(&self.text[start..self.position])
    }

    /// Reads a value with serde_json.
    fn with_serde_json<T>(
        &mut self,
        read: impl FnOnce(&mut JsonDeserializer<'de>) -> serde_json::Result<T>,
    ) -> Result<T, InvalidText> {
        let mut json = serde_json::Deserializer::from_str(&self.text[self.position..]);
        let value = read(&mut json).map_err(|_| InvalidText)?;
        self.position += json.into_iter::<IgnoredAny>().byte_offset();
        Ok(value)
    }
}

impl<'de> Deserializer<'de> for &mut PlainDeserializer<'de> {
    type Error = InvalidText;

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidText> {
        self.expect(b'{')?;
        let value = visitor.visit_map(PlainMembers {
            deserializer: self,
            is_first: true,
        })?;
        self.expect(b'}')?;
        Ok(value)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidText> {
        match self.string()? {
            Some(text) => visitor.visit_borrowed_str(text),
            None => self.with_serde_json(|json| json.deserialize_str(visitor)),
        }
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidText> {
        self.deserialize_str(visitor)
    }

    /// A `_meta`, the id of a request, or a raw value.
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, InvalidText> {
        if name == ID_TYPE {
            return visitor.visit_borrowed_str(self.id()?);
        }
        if name != META_TYPE {
            return self.with_serde_json(|json| json.deserialize_newtype_struct(name, visitor));
        }
        self.peek();
        let start = self.position;
        let rest = &self.text[start..];
        if let Some((length, _)) = meta_cache::find(rest) {
            self.position += length;
            return visitor.visit_borrowed_str(&rest[..length]);
        }
        let value = self.deserialize_map(visitor)?;
        self.parsed_meta = Some(&self.text[start..self.position]);
        Ok(value)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, InvalidText> {
        self.with_serde_json(|json| json.deserialize_enum(name, variants, visitor))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidText> {
        self.with_serde_json(|json| json.deserialize_ignored_any(visitor))
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidText> {
        match self.peek() {
            Some(b'{') => self.deserialize_map(visitor),
            Some(b'"') => self.deserialize_str(visitor),
            _ => self.with_serde_json(|json| json.deserialize_any(visitor)),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char string bytes byte_buf option unit unit_struct seq tuple
        tuple_struct struct
    }
}

/// The members of an object, up to its closing brace.
struct PlainMembers<'a, 'de> {
    deserializer: &'a mut PlainDeserializer<'de>,
    is_first: bool,
}

impl<'de> MapAccess<'de> for PlainMembers<'_, 'de> {
    type Error = InvalidText;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, InvalidText> {
        if self.deserializer.peek() == Some(b'}') {
            return Ok(None);
        }
        if !std::mem::take(&mut self.is_first) {
            self.deserializer.expect(b',')?;
        }
        match self.deserializer.peek() {
            Some(b'"') => seed.deserialize(&mut *self.deserializer).map(Some),
            _ => Err(InvalidText),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, InvalidText> {
        self.deserializer.expect(b':')?;
        seed.deserialize(&mut *self.deserializer)
    }
}
