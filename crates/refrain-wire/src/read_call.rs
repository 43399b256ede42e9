//! Reads a call in one pass: a valid call whose method precedes its params becomes a [`Call`] directly.
//!
//! The result equals that of [`parse`](crate::parse) and [`decode_call`](crate::ratified::decode_call), which read all
//! other messages and report errors.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::call::{Call, CallKind};
use crate::decode::{Text, is_object};
use crate::envelope::{Id, Message, Rejection, parse};
use crate::meta_cache;
use crate::plain::PlainDeserializer;
use crate::ratified::CallSeed;

/// A message from a client.
#[derive(Debug, Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "the large variant is the common one; boxing it costs an allocation per request"
)]
pub enum Incoming<'a> {
    /// A call of 2026-07-28 with decoded params.
    Call(Id<'a>, Call<'a>),
    /// Any other message with raw params.
    Message(Message<'a>),
}

/// Reads a message. Decodes the params of a call.
pub fn read_message(bytes: &[u8]) -> Result<Incoming<'_>, Box<Rejection>> {
    let mut call = None;
    let read = read_plain(bytes, &mut call);
    match (read, call) {
        (Some(PlainMessage { id: Some(id), .. }), Some(call)) => Ok(Incoming::Call(id, call)),
        (Some(PlainMessage { id, method, params }), None) if params.is_none_or(is_object) => {
            Ok(Incoming::Message(match id {
                Some(id) => Message::Request { id, method, params },
                None => Message::Notification { method, params },
            }))
        }
        _ => parse(bytes).map(Incoming::Message),
    }
}

/// Reads a call in one pass. `None` if the message needs [`parse`].
pub fn read_call(bytes: &[u8]) -> Option<(Id<'_>, Call<'_>)> {
    let mut call = None;
    let id = read_plain(bytes, &mut call)?.id?;
    call.map(|call| (id, call))
}

fn read_plain<'a>(bytes: &'a [u8], into: &mut Option<Call<'a>>) -> Option<PlainMessage<'a>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut deserializer = PlainDeserializer::new(text);
    let plain = EnvelopeVisitor { into: &mut *into }
        .deserialize(&mut deserializer)
        .ok()?;
    if let Some(text) = deserializer.end().ok()?
        && let Some(call) = into
    {
        meta_cache::insert(text, &call.meta);
    }
    Some(plain)
}

/// The name by which [`PlainDeserializer`] recognizes an id.
pub(crate) const ID_TYPE: &str = "refrain::Id";

/// The text of an id, as [`PlainDeserializer`] reads it.
struct PlainId<'a>(&'a str);

impl<'de: 'a, 'a> Deserialize<'de> for PlainId<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IdVisitor;
        impl<'de> Visitor<'de> for IdVisitor {
            type Value = PlainId<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an id")
            }
            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<PlainId<'de>, E> {
                Ok(PlainId(text))
            }
        }
        deserializer.deserialize_newtype_struct(ID_TYPE, IdVisitor)
    }
}

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum EnvelopeKey {
    Jsonrpc,
    Id,
    Method,
    Params,
}

/// The envelope of a request or notification. `params` is `None` if they were decoded as a call.
struct PlainMessage<'a> {
    id: Option<Id<'a>>,
    method: Cow<'a, str>,
    params: Option<&'a RawValue>,
}

/// Reads the envelope, and stores a call in `into`.
struct EnvelopeVisitor<'de, 'o> {
    into: &'o mut Option<Call<'de>>,
}

impl<'de> DeserializeSeed<'de> for EnvelopeVisitor<'de, '_> {
    type Value = PlainMessage<'de>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EnvelopeVisitor<'de, '_> {
    type Value = PlainMessage<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        // `parse` reports the actual error.
        let unsupported = || A::Error::custom("not a plain message");
        let mut version = false;
        let mut id: Option<Id<'de>> = None;
        let mut method: Option<Cow<'de, str>> = None;
        let mut params: Option<&'de RawValue> = None;
        let call = self.into;
        while let Some(key) = map.next_key()? {
            match key {
                EnvelopeKey::Jsonrpc if !version => {
                    let Text(text) = map.next_value()?;
                    version = text == "2.0";
                    if !version {
                        return Err(unsupported());
                    }
                }
                EnvelopeKey::Id if id.is_none() => {
                    let PlainId(text) = map.next_value()?;
                    id = Some(Id::from_json(text).ok_or_else(unsupported)?);
                }
                EnvelopeKey::Method if method.is_none() => {
                    let Text(text): Text<'de> = map.next_value()?;
                    method = Some(text);
                }
                EnvelopeKey::Params if call.is_none() && params.is_none() => {
                    match method.as_deref().and_then(CallKind::from_method) {
                        Some(kind) => map.next_value_seed(CallSeed { kind, into: call })?,
                        None => params = Some(map.next_value()?),
                    }
                }
                _ => return Err(unsupported()),
            }
        }
        match method {
            Some(method) if version => Ok(PlainMessage { id, method, params }),
            _ => Err(unsupported()),
        }
    }
}
