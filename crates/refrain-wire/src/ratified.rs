//! Messages of the ratified revision, 2026-07-28.
//!
//! Invariants: params are read in one pass and borrowed; a reply is serialized once, directly into the output buffer.

pub use crate::complete::decode_complete;
pub use crate::listen::{
    decode_listen, write_acknowledged, write_change, write_listen_cancelled, write_listen_end,
    write_task_change,
};
pub use crate::read_call::{Incoming, read_call, read_message};
pub use crate::skills::decode_skill;
pub use crate::tasks::decode_task;

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::ask::Ask;
use crate::call::{Answers, Call, CallKind, Incomplete, Reply, ResultBody};
use crate::decode::{RawObject, Text, is_object, read_once, read_once_nested, reason, skip_value};
use crate::envelope::Id;
use crate::error::RpcError;
use crate::members::{MISSING_META, Reader};
use crate::meta::{LogLevel, Meta, SERVER_INFO_KEY};
use crate::write;

/// The parameters of a list method.
#[derive(Debug, Clone)]
pub struct ListParams<'a> {
    /// The `_meta` of the request.
    pub meta: Meta<'a>,
    /// The cursor of the page to return. `None` is the first page.
    pub cursor: Option<Cow<'a, str>>,
}

/// Reads the params of a call.
pub fn decode_call<'a>(kind: CallKind, params: Option<&'a RawValue>) -> Result<Call<'a>, RpcError> {
    let raw = params.ok_or_else(|| {
        RpcError::invalid_params(format!(
            "params is missing; send an object with {} and _meta",
            kind.target_member()
        ))
    })?;
    if !is_object(raw) {
        return Err(RpcError::invalid_params("params must be an object"));
    }
    let mut deserializer = serde_json::Deserializer::from_str(raw.get());
    let mut call = None;
    let into = &mut call;
    CallSeed { kind, into }
        .deserialize(&mut deserializer)
        .map_err(|error| RpcError::invalid_params(reason(&error)))?;
    call.ok_or_else(|| RpcError::internal("Internal error"))
}

/// Reads the `_meta` from the params of any other method.
pub fn decode_meta<'a>(params: Option<&'a RawValue>) -> Result<Meta<'a>, RpcError> {
    Ok(Reader::params(params, "_meta")?.meta()?)
}

/// Reads the params of a list method.
pub fn decode_list<'a>(params: Option<&'a RawValue>) -> Result<ListParams<'a>, RpcError> {
    let params = Reader::params(params, "_meta")?;
    Ok(ListParams {
        meta: params.meta()?,
        cursor: params.text("cursor")?,
    })
}

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum CallKey {
    Name,
    Uri,
    Arguments,
    InputResponses,
    RequestState,
    #[serde(rename = "_meta")]
    Meta,
    #[serde(other)]
    Other,
}

/// Reads the params of a call of this kind.
pub(crate) struct CallSeed<'de, 'o> {
    pub(crate) kind: CallKind,
    /// The output. A `Call` is large, and returning it would copy it in every layer.
    pub(crate) into: &'o mut Option<Call<'de>>,
}

impl<'de> DeserializeSeed<'de> for CallSeed<'de, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for CallSeed<'de, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("params as an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let kind = self.kind;
        let by_uri = kind == CallKind::Resource;
        let mut target: Option<Text<'de>> = None;
        let mut arguments: Option<RawObject<'de>> = None;
        let mut answers: Option<Answers<'de>> = None;
        let mut state: Option<Text<'de>> = None;
        let mut meta: Option<Meta<'de>> = None;

        while let Some(key) = map.next_key()? {
            match key {
                CallKey::Name if !by_uri => read_once(&mut map, &mut target, "name", "a string")?,
                CallKey::Uri if by_uri => read_once(&mut map, &mut target, "uri", "a string")?,
                CallKey::Arguments if !by_uri => {
                    read_once(&mut map, &mut arguments, "arguments", "an object")?;
                }
                CallKey::InputResponses => {
                    read_once_nested(&mut map, &mut answers, "inputResponses")?;
                }
                CallKey::RequestState => {
                    read_once(&mut map, &mut state, "requestState", "a string")?;
                }
                CallKey::Meta => read_once_nested(&mut map, &mut meta, "_meta")?,
                _ => skip_value(&mut map)?,
            }
        }

        *self.into = Some(Call {
            kind,
            meta: meta.ok_or_else(|| A::Error::custom(MISSING_META))?,
            target: target
                .ok_or_else(|| {
                    let (name, method) = (kind.target_member(), kind.method());
                    A::Error::custom(format_args!("{name} is missing; {method} needs it"))
                })?
                .0,
            arguments: arguments.map(|raw| raw.0),
            answers,
            state: state.map(|text| text.0),
        });
        Ok(())
    }
}

/// Writes the response to a call. An empty buffer usually gets exactly the capacity that the response needs.
pub fn write_reply(out: &mut Vec<u8>, id: Option<Id<'_>>, reply: &Reply, server_info: &RawValue) {
    let id = id.as_ref().map(Id::as_json);
    out.reserve_exact(size_of_reply(id.unwrap_or_default(), reply, server_info));
    write_response_start(out, id);
    write_outcome(out, reply, server_info);
}

/// The size of a response if no text in it needs escapes.
fn size_of_reply(id: &str, reply: &Reply, server_info: &RawValue) -> usize {
    const FRAME: &str = r#"{"jsonrpc":"2.0","id":,"result":{"resultType":"","_meta":{"":}}}"#;
    const FORM: &str = r#"{"":{"method":"elicitation/create","params":{"mode":"form","message":"","requestedSchema":}}"#;
    /// The assumed size of other asks and of errors.
    const OTHER: usize = 512;
    let body_size = |kind: &str, body: &ResultBody| {
        let members = match body.members_size() {
            0 => 0,
            length => length + 1,
        };
        kind.len() + members + body.meta().map_or(0, |meta| meta.len() + 1)
    };
    let ask_size = |(key, ask): &(String, Ask)| match ask {
        Ask::Form { message, schema } => {
            FORM.len() + key.len() + message.len() + schema.get().len()
        }
        _ => OTHER,
    };
    let result = match reply {
        Reply::Complete(result) => body_size("complete", result),
        Reply::Task(result) => body_size("task", result),
        Reply::Incomplete(Incomplete { asks, state }) => {
            let asks = match asks.is_empty() {
                true => 0,
                false => r#","inputRequests":}"#.len() + asks.iter().map(ask_size).sum::<usize>(),
            };
            let state = state.as_ref();
            let state = state.map_or(0, |state| r#","requestState":"""#.len() + state.len());
            "input_required".len() + asks + state
        }
        Reply::Error(_) | Reply::Busy { .. } => OTHER,
        Reply::Recorded(rest) => rest.len(),
    };
    FRAME.len() + id.len() + result + SERVER_INFO_KEY.len() + server_info.get().len()
}

/// Serializes a reply without its id, to be sent again as [`Reply::Recorded`].
pub fn record_reply(reply: &Reply, server_info: &RawValue) -> String {
    let mut out = Vec::new();
    write_outcome(&mut out, reply, server_info);
    String::from_utf8_lossy(&out).into_owned()
}

fn write_outcome(out: &mut Vec<u8>, reply: &Reply, server_info: &RawValue) {
    match reply {
        Reply::Complete(body) => write_result(out, "complete", body, server_info),
        Reply::Task(body) => write_result(out, "task", body, server_info),
        Reply::Incomplete(incomplete) => {
            write_incomplete(out, incomplete);
            write_meta(out, None, server_info);
        }
        Reply::Error(error) | Reply::Busy { error, .. } => {
            write_error_member(out, error.code.as_i32(), error);
        }
        Reply::Recorded(rest) => out.extend_from_slice(rest.as_bytes()),
    }
}

/// Writes an error response. `id` is raw JSON; it is omitted if the request has no valid id.
pub fn write_error(out: &mut Vec<u8>, id: Option<&str>, error: &RpcError) {
    write_response_start(out, id);
    write_error_member(out, error.code.as_i32(), error);
}

/// Writes the `error` member and the end of a response.
pub(crate) fn write_error_member(out: &mut Vec<u8>, code: i32, error: &RpcError) {
    out.extend_from_slice(b",\"error\":");
    write_error_object(out, code, error);
    out.push(b'}');
}

pub(crate) fn write_error_object(out: &mut Vec<u8>, code: i32, error: &RpcError) {
    out.extend_from_slice(b"{\"code\":");
    write::json(out, &code);
    out.extend_from_slice(b",\"message\":");
    write::text(out, error.message.as_ref());
    if let Some(data) = &error.data {
        out.extend_from_slice(b",\"data\":");
        out.extend_from_slice(data.get().as_bytes());
    }
    out.push(b'}');
}

/// Writes a progress notification.
pub fn write_progress(
    out: &mut Vec<u8>,
    token: &RawValue,
    progress: f64,
    total: Option<f64>,
    message: Option<&str>,
) {
    out.extend_from_slice(
        br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"#,
    );
    out.extend_from_slice(token.get().as_bytes());
    out.extend_from_slice(b",\"progress\":");
    write::number(out, progress);
    if let Some(total) = total.filter(|total| total.is_finite()) {
        out.extend_from_slice(b",\"total\":");
        write::number(out, total);
    }
    if let Some(message) = message {
        out.extend_from_slice(b",\"message\":");
        write::text(out, message);
    }
    out.extend_from_slice(b"}}");
}

/// Writes a log notification.
pub fn write_log(out: &mut Vec<u8>, level: LogLevel, logger: Option<&str>, data: &Value) {
    out.extend_from_slice(
        br#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"#,
    );
    write::json(out, level.as_str());
    if let Some(logger) = logger {
        out.extend_from_slice(b",\"logger\":");
        write::json(out, logger);
    }
    out.extend_from_slice(b",\"data\":");
    write::json(out, data);
    out.extend_from_slice(b"}}");
}

pub(crate) fn write_response_start(out: &mut Vec<u8>, id: Option<&str>) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0""#);
    if let Some(id) = id {
        out.extend_from_slice(b",\"id\":");
        out.extend_from_slice(id.as_bytes());
    }
}

fn write_result(out: &mut Vec<u8>, kind: &str, body: &ResultBody, server_info: &RawValue) {
    out.extend_from_slice(br#","result":{"resultType":""#);
    out.extend_from_slice(kind.as_bytes());
    out.push(b'"');
    let empty = out.len() + 1;
    out.push(b',');
    body.write_members(out);
    if out.len() == empty {
        out.pop();
    }
    write_meta(out, body.meta(), server_info);
}

fn write_incomplete(out: &mut Vec<u8>, incomplete: &Incomplete) {
    out.extend_from_slice(br#","result":{"resultType":"input_required""#);
    if !incomplete.asks.is_empty() {
        out.extend_from_slice(b",\"inputRequests\":");
        for (i, (key, ask)) in incomplete.asks.iter().enumerate() {
            out.push(if i == 0 { b'{' } else { b',' });
            write::text(out, key);
            out.push(b':');
            write_ask(out, ask);
        }
        out.push(b'}');
    }
    if let Some(state) = &incomplete.state {
        out.extend_from_slice(b",\"requestState\":");
        write::text(out, state);
    }
}

/// Writes an ask. Forms bypass serde, because they are the most frequent.
fn write_ask(out: &mut Vec<u8>, ask: &Ask) {
    let Ask::Form { message, schema } = ask else {
        return write::json(out, ask);
    };
    out.extend_from_slice(br#"{"method":"elicitation/create","params":{"mode":"form","message":"#);
    write::text(out, message);
    out.extend_from_slice(b",\"requestedSchema\":");
    out.extend_from_slice(schema.get().as_bytes());
    out.extend_from_slice(b"}}");
}

fn write_meta(out: &mut Vec<u8>, more: Option<&str>, server_info: &RawValue) {
    out.extend_from_slice(b",\"_meta\":{");
    if let Some(members) = more {
        out.extend_from_slice(members.as_bytes());
        out.push(b',');
    }
    out.push(b'"');
    out.extend_from_slice(SERVER_INFO_KEY.as_bytes());
    out.extend_from_slice(b"\":");
    out.extend_from_slice(server_info.get().as_bytes());
    out.extend_from_slice(b"}}}");
}
