//! The common case in one pass: a well-formed call whose method comes before its params.
//!
//! What always holds: what is read here is what [`parse`](crate::parse) and
//! [`decode_call`](crate::decode_call) would have read. Whatever is out of the ordinary is left to
//! them, and to their error messages.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::call::{Call, CallKind};
use crate::decode::Text;
use crate::envelope::Id;
use crate::ratified::CallSeed;

/// Reads a call in one pass, or `None` if the message is anything but a plain one.
pub fn read_call(bytes: &[u8]) -> Option<(Id<'_>, Call<'_>)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let mut call = None;
    let into = &mut call;
    let id = EnvelopeVisitor { into }
        .deserialize(&mut deserializer)
        .ok()?;
    deserializer.end().ok()?;
    call.map(|call| (id, call))
}

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Key {
    Jsonrpc,
    Id,
    Method,
    Params,
}

/// Reads the envelope, and the call into its place.
struct EnvelopeVisitor<'de, 'o> {
    into: &'o mut Option<Call<'de>>,
}

impl<'de> DeserializeSeed<'de> for EnvelopeVisitor<'de, '_> {
    type Value = Id<'de>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EnvelopeVisitor<'de, '_> {
    type Value = Id<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a call")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        // The long way says better what is wrong; here it is enough to stop.
        let odd = || A::Error::custom("not a plain call");
        let mut version = false;
        let mut id: Option<Id<'de>> = None;
        let mut kind: Option<CallKind> = None;
        let call = self.into;
        while let Some(key) = map.next_key()? {
            match key {
                Key::Jsonrpc if !version => {
                    let Text(text) = map.next_value()?;
                    version = text == "2.0";
                    if !version {
                        return Err(odd());
                    }
                }
                Key::Id if id.is_none() => {
                    let raw: &'de RawValue = map.next_value()?;
                    id = Some(Id::from_raw(raw).ok_or_else(odd)?);
                }
                Key::Method if kind.is_none() => {
                    let Text(text): Text<'de> = map.next_value()?;
                    kind = Some(CallKind::from_method(&text).ok_or_else(odd)?);
                }
                Key::Params if call.is_none() => {
                    let kind = kind.ok_or_else(odd)?;
                    map.next_value_seed(CallSeed { kind, into: call })?;
                }
                _ => return Err(odd()),
            }
        }
        match id {
            Some(id) if version && call.is_some() => Ok(id),
            _ => Err(odd()),
        }
    }
}
