//! The JSON-RPC envelope of a message.
//!
//! Invariants of a parsed message: the id is a string or an integer, the method is a string, the params are an object or
//! absent. A valid message is read in one pass. An invalid one is read again to find the error.

use std::borrow::Cow;

use serde::de::{Deserialize, Deserializer, IgnoredAny};
use serde_json::value::RawValue;

use crate::decode::{Text, is_id, is_object};
use crate::error::RpcError;
use crate::members::{Members, Reader};

/// A JSON-RPC message.
#[derive(Debug, Clone)]
pub enum Message<'a> {
    /// A message that requires a response.
    Request {
        /// The id that the response must echo.
        id: Id<'a>,
        /// The method.
        method: Cow<'a, str>,
        /// The raw `params` object.
        params: Option<&'a RawValue>,
    },
    /// A message without a response.
    Notification {
        /// The method.
        method: Cow<'a, str>,
        /// The raw `params` object.
        params: Option<&'a RawValue>,
    },
    /// A response to our own request.
    Response(Response<'a>),
}

/// A response to our own request.
#[derive(Debug, Clone)]
pub struct Response<'a> {
    /// The id of the request.
    pub id: Id<'a>,
    /// The raw result object, or the error message.
    pub outcome: Result<&'a RawValue, Cow<'a, str>>,
}

/// The id of a request: the raw JSON of a string or an integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id<'a>(&'a str);

impl<'a> Id<'a> {
    /// Returns `None` unless the value is a string or an integer of up to 8192 bytes.
    pub fn from_raw(raw: &'a RawValue) -> Option<Self> {
        Self::from_json(raw.get())
    }

    /// Like [`from_raw`](Self::from_raw). `text` must be a valid JSON value.
    pub(crate) fn from_json(text: &'a str) -> Option<Self> {
        is_id(text).then_some(Self(text))
    }

    /// The raw JSON.
    pub fn as_json(&self) -> &str {
        self.0
    }

    /// An owned copy.
    pub fn to_buf(&self) -> IdBuf {
        let mut text = [0; IdBuf::INLINE];
        match (text.get_mut(..self.0.len()), u8::try_from(self.0.len())) {
            (Some(start), Ok(len)) => {
                start.copy_from_slice(self.0.as_bytes());
                IdBuf(IdText::Inline { text, len })
            }
            _ => IdBuf(IdText::Heap(self.0.into())),
        }
    }
}

/// An owned [`Id`]. Ids up to the length of a UUID need no allocation.
#[derive(Debug, Clone)]
pub struct IdBuf(IdText);

#[derive(Debug, Clone)]
enum IdText {
    Inline { text: [u8; IdBuf::INLINE], len: u8 },
    Heap(Box<str>),
}

impl IdBuf {
    /// The length of a UUID in quotes.
    const INLINE: usize = 38;

    /// The id.
    pub fn as_id(&self) -> Id<'_> {
        Id(match &self.0 {
            IdText::Inline { text, len } => {
                std::str::from_utf8(&text[..usize::from(*len)]).expect("an id is UTF-8")
            }
            IdText::Heap(text) => text,
        })
    }
}

/// A rejected message: the error response and its id.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{error}")]
pub struct Rejection {
    /// The id of the message, if it has a valid one.
    pub id: Option<Box<RawValue>>,
    /// The error.
    pub error: RpcError,
}

pub(crate) const UNEXPECTED_RESPONSE: &str =
    "responses are not accepted here; send a request or a notification";

/// Reads one message.
pub fn parse(bytes: &[u8]) -> Result<Message<'_>, Box<Rejection>> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        let message = format!("the message is not UTF-8: invalid byte at offset {at}");
        reject(None, RpcError::parse(message))
    })?;
    let start = text.trim_start_matches([' ', '\t', '\r', '\n']);
    match start.starts_with('{') {
        true => read(text),
        false => Err(explain(text)),
    }
}

/// Finds the id of a request without reading its params. `None` if the message is malformed or not a request.
pub fn find_request_id(bytes: &[u8]) -> Option<Id<'_>> {
    #[derive(serde::Deserialize)]
    struct RequestHead<'a> {
        #[serde(borrow)]
        id: &'a RawValue,
        #[serde(rename = "method")]
        _method: IgnoredAny,
    }
    let request: RequestHead<'_> = serde_json::from_slice(bytes).ok()?;
    Id::from_raw(request.id)
}

/// The members of a message. The derived `Deserialize` rejects duplicates.
#[derive(serde::Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// Distinguishes a `null` member from an absent one.
pub(crate) fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

fn read(text: &str) -> Result<Message<'_>, Box<Rejection>> {
    let Ok(envelope) = serde_json::from_str::<Envelope<'_>>(text) else {
        return Err(explain(text));
    };
    envelope.read().ok_or_else(|| explain(text))
}

impl<'a> Envelope<'a> {
    fn read(self) -> Option<Message<'a>> {
        if self.jsonrpc != "2.0" {
            return None;
        }
        let id = match self.id {
            Some(raw) => Some(Id::from_raw(raw)?),
            None => None,
        };
        let params = self.params;
        match (self.method, self.result, self.error) {
            (Some(Text(method)), None, None) if params.is_none_or(is_object) => Some(match id {
                Some(id) => Message::Request { id, method, params },
                None => Message::Notification { method, params },
            }),
            (None, result, error) if result.is_some() || error.is_some() => {
                let outcome = outcome(result, error);
                Some(Message::Response(Response { id: id?, outcome }))
            }
            _ => None,
        }
    }
}

/// The outcome of a response. If both members are present, a null one counts as absent.
fn outcome<'a>(
    result: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
) -> Result<&'a RawValue, Cow<'a, str>> {
    #[derive(serde::Deserialize)]
    struct ErrorMember<'a> {
        #[serde(borrow)]
        message: Text<'a>,
    }
    let is_null = |raw: &&RawValue| raw.get() == "null";
    let (result, error) = match (result, error) {
        (Some(result), Some(error)) if is_null(&error) => (Some(result), None),
        (Some(result), Some(error)) if is_null(&result) => (None, Some(error)),
        both => both,
    };
    match (result, error) {
        (Some(result), None) if is_object(result) => Ok(result),
        (Some(_), Some(_)) => Err("the response has both a result and an error".into()),
        (_, None) => Err("the result is not an object".into()),
        (None, Some(error)) => Err(match serde_json::from_str(error.get()) {
            Ok(ErrorMember { message }) => message.0,
            Err(_) => "the error has no message".into(),
        }),
    }
}

fn reject(id: Option<&RawValue>, error: RpcError) -> Box<Rejection> {
    Box::new(Rejection {
        id: id.map(ToOwned::to_owned),
        error,
    })
}

/// Finds the error in a message that could not be read.
fn explain(text: &str) -> Box<Rejection> {
    let not_json = |error| {
        let message = format!("the message is not JSON: {error}");
        reject(None, RpcError::parse(message))
    };
    if let Err(error) = serde_json::from_str::<IgnoredAny>(text) {
        return not_json(error);
    }
    if text.trim_start().starts_with('[') {
        let message = "batches are not supported; send one message at a time";
        return reject(None, RpcError::invalid_request(message));
    }
    match serde_json::from_str::<Members<'_>>(text) {
        Ok(members) => {
            let members = Reader::new(members, "");
            let id = find(&members, "id").filter(|raw| is_id(raw.get()));
            reject(id, RpcError::invalid_request(find_error(&members)))
        }
        Err(error) if error.is_syntax() => not_json(error),
        Err(_) => {
            let message = "a message must be an object with jsonrpc, method and, in a request, id";
            reject(None, RpcError::invalid_request(message))
        }
    }
}

fn find_error(members: &Reader<'_>) -> Cow<'static, str> {
    for name in ["jsonrpc", "id", "method", "params", "result", "error"] {
        if let Err(duplicate) = members.raw(name) {
            return duplicate.to_string().into();
        }
    }
    let is_string = |raw: &RawValue| serde_json::from_str::<Text<'_>>(raw.get()).is_ok();
    let is_version_2 = |raw: &RawValue| {
        serde_json::from_str::<Text<'_>>(raw.get()).is_ok_and(|text| text.0 == "2.0")
    };
    let text = if !find(members, "jsonrpc").is_some_and(is_version_2) {
        "jsonrpc must be \"2.0\""
    } else if find(members, "id").is_some_and(|raw| !is_id(raw.get())) {
        "id must be a string or an integer of up to 8192 bytes; leave it out to send a notification"
    } else if find(members, "result").is_some() || find(members, "error").is_some() {
        "a response needs an id and cannot have a method"
    } else if find(members, "method").is_none() {
        "method is missing; send its name as a string"
    } else if !find(members, "method").is_some_and(is_string) {
        "method must be a string"
    } else {
        "params must be an object; leave it out if there is nothing to send"
    };
    Cow::Borrowed(text)
}

/// A member, unless it is missing or duplicate.
fn find<'a>(members: &Reader<'a>, name: &str) -> Option<&'a RawValue> {
    members.raw(name).ok().flatten()
}
