//! A message read in one pass: a well-formed call, whose method comes before its params, straight into a [`Call`].
//!
//! The result is what [`parse`](crate::parse) and [`decode_call`](crate::ratified::decode_call) would have read. Messages that are
//! out of the ordinary are left to them, and to their error messages.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::call::{Call, CallKind};
use crate::decode::{Text, is_object};
use crate::envelope::{Id, Message, Rejection, parse};
use crate::ratified::CallSeed;

/// A message from a client.
#[derive(Debug, Clone)]
pub enum Incoming<'a> {
    /// A call of 2026-07-28, its params decoded.
    Call(Id<'a>, Call<'a>),
    /// Any other message, its params as text.
    Message(Message<'a>),
}

/// Reads one message; a call together with its params.
pub fn read_message(bytes: &[u8]) -> Result<Incoming<'_>, Box<Rejection>> {
    let mut call = None;
    let read = read_plain(bytes, &mut call);
    match (read, call) {
        (Some(Plain { id: Some(id), .. }), Some(call)) => Ok(Incoming::Call(id, call)),
        (Some(Plain { id, method, params }), None) if params.is_none_or(is_object) => {
            Ok(Incoming::Message(match id {
                Some(id) => Message::Request { id, method, params },
                None => Message::Notification { method, params },
            }))
        }
        _ => parse(bytes).map(Incoming::Message),
    }
}

/// Reads a call in one pass, or `None` if the message is anything but a plain one.
pub fn read_call(bytes: &[u8]) -> Option<(Id<'_>, Call<'_>)> {
    let mut call = None;
    let id = read_plain(bytes, &mut call)?.id?;
    call.map(|call| (id, call))
}

fn read_plain<'a>(bytes: &'a [u8], into: &mut Option<Call<'a>>) -> Option<Plain<'a>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let plain = EnvelopeVisitor { into }
        .deserialize(&mut deserializer)
        .ok()?;
    deserializer.end().ok()?;
    Some(plain)
}

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Key {
    Jsonrpc,
    Id,
    Method,
    Params,
}

/// The envelope of a request or notification; its params too, unless they were read as those of a call.
struct Plain<'a> {
    id: Option<Id<'a>>,
    method: Cow<'a, str>,
    params: Option<&'a RawValue>,
}

/// Reads the envelope, and the call into its place.
struct EnvelopeVisitor<'de, 'o> {
    into: &'o mut Option<Call<'de>>,
}

impl<'de> DeserializeSeed<'de> for EnvelopeVisitor<'de, '_> {
    type Value = Plain<'de>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EnvelopeVisitor<'de, '_> {
    type Value = Plain<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        // `parse` says better what is wrong; here it is enough to stop.
        let odd = || A::Error::custom("not a plain message");
        let mut version = false;
        let mut id: Option<Id<'de>> = None;
        let mut method: Option<Cow<'de, str>> = None;
        let mut params: Option<&'de RawValue> = None;
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
                Key::Method if method.is_none() => {
                    let Text(text): Text<'de> = map.next_value()?;
                    method = Some(text);
                }
                Key::Params if call.is_none() && params.is_none() => {
                    match method.as_deref().and_then(CallKind::from_method) {
                        Some(kind) => map.next_value_seed(CallSeed { kind, into: call })?,
                        None => params = Some(map.next_value()?),
                    }
                }
                _ => return Err(odd()),
            }
        }
        match method {
            Some(method) if version => Ok(Plain { id, method, params }),
            _ => Err(odd()),
        }
    }
}
