//! Writes messages to legacy clients.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::Revision;
use super::downgrade::downgrade;
use crate::ask::{Ask, AskParams};
use crate::call::{Reply, ResultBody};
use crate::decode::Text;
use crate::envelope::Id;
use crate::error::{ErrorCode, RpcError};
use crate::info::ServerCapabilities;
use crate::listen::{Change, change_method};
use crate::members::Members;
use crate::ratified::{write_error_member, write_response_start};
use crate::sampling::{SamplingMessage, SamplingParams};
use crate::write;

/// The legacy error code of a missing resource. 2026-07-28 uses the code of invalid params.
const RESOURCE_NOT_FOUND: i32 = -32002;

/// The result of `initialize`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializeResult<'a> {
    /// The revision of the session.
    pub protocol_version: &'static str,
    /// The server's capabilities.
    pub capabilities: ServerCapabilities,
    /// The server's name and version.
    pub server_info: &'a RawValue,
    /// Instructions for the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<&'a str>,
}

/// Writes the response to a legacy request. Incomplete, task and recorded replies become internal errors.
pub fn write_reply(out: &mut Vec<u8>, id: Id<'_>, reply: &Reply, revision: Revision) {
    let id = Some(id.as_json());
    match reply {
        Reply::Complete(body) => {
            write_response_start(out, id);
            out.extend_from_slice(b",\"result\":");
            write_body(out, body, revision);
            out.push(b'}');
        }
        Reply::Error(error) | Reply::Busy { error, .. } => write_error(out, id, error),
        Reply::Incomplete(_) | Reply::Task(_) | Reply::Recorded(_) => {
            write_error(out, id, &RpcError::internal("Internal error"));
        }
    }
}

/// Writes an error response. `id` is raw JSON; it is omitted if the request has no valid id.
pub fn write_error(out: &mut Vec<u8>, id: Option<&str>, error: &RpcError) {
    let code = match error.code {
        ErrorCode::ResourceNotFound => RESOURCE_NOT_FOUND,
        code => code.as_i32(),
    };
    write_response_start(out, id);
    write_error_member(out, code, error);
}

fn write_body(out: &mut Vec<u8>, body: &ResultBody, revision: Revision) {
    out.push(b'{');
    let start = out.len();
    let begin = |out: &mut Vec<u8>, key: &str| {
        if out.len() > start {
            out.push(b',');
        }
        write::text(out, key);
        out.push(b':');
    };
    let text = format!("{{{}}}", body.members());
    let members = serde_json::from_str::<Members<'_>>(&text).map(|members| members.0);
    for (Text(key), value) in members.unwrap_or_default() {
        if let Some(value) = downgrade(&key, value, revision) {
            begin(out, &key);
            out.extend_from_slice(value.get().as_bytes());
        }
    }
    if let Some(meta) = body.meta() {
        begin(out, "_meta");
        out.push(b'{');
        out.extend_from_slice(meta.as_bytes());
        out.push(b'}');
    }
    out.push(b'}');
}

/// Writes an ask as a request with this id.
pub fn write_ask(out: &mut Vec<u8>, id: &str, ask: &Ask, revision: Revision) {
    let latest = revision >= Revision::V2025_11_25;
    let mut params = ask.params();
    match &mut params {
        Some(AskParams::Elicit(elicit)) => {
            if !latest && let Some(schema) = elicit.requested_schema.as_mut() {
                elicit.mode = None;
                if let Some(plain) = split_titles(schema) {
                    *schema = Cow::Owned(plain);
                }
            }
            elicit.elicitation_id = elicit.url.map(|_| id);
        }
        Some(AskParams::Sampling(params)) if !latest => {
            *params = Cow::Owned(split_blocks(params));
        }
        Some(AskParams::Sampling(_)) | None => {}
    }
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    write::text(out, id);
    out.extend_from_slice(b",\"method\":");
    write::text(out, ask.kind().method());
    if let Some(params) = params {
        out.extend_from_slice(b",\"params\":");
        let params = serde_json::to_string(&params).unwrap_or_else(|_| "{}".to_owned());
        out.extend_from_slice(write::one_line(params).as_bytes());
    }
    out.push(b'}');
}

/// Moves the titles of choices into `enumNames`, as before 2025-11-25. `None` if the form has no titled choices.
fn split_titles(schema: &RawValue) -> Option<Box<RawValue>> {
    if !schema.get().contains(r#""oneOf""#) {
        return None;
    }
    let mut schema: Value = serde_json::from_str(schema.get()).ok()?;
    let fields = schema.get_mut("properties")?.as_object_mut()?;
    for field in fields.values_mut().filter_map(Value::as_object_mut) {
        let Some(Value::Array(choices)) = field.get("oneOf") else {
            continue;
        };
        let value = |choice: &Value| choice.get("const").cloned();
        let title = |choice: &Value| {
            let title = choice.get("title").filter(|title| !title.is_null());
            title.cloned().or_else(|| value(choice))
        };
        let values: Option<Vec<Value>> = choices.iter().map(value).collect();
        let titles: Option<Vec<Value>> = choices.iter().map(title).collect();
        if let (Some(values), Some(titles)) = (values, titles) {
            field.shift_remove("oneOf");
            field.insert("enum".to_owned(), values.into());
            field.insert("enumNames".to_owned(), titles.into());
        }
    }
    to_raw_value(&schema).ok()
}

/// Splits messages so that each has one block, as before 2025-11-25.
fn split_blocks(params: &SamplingParams) -> SamplingParams {
    let messages = params.messages.iter().flat_map(|message| {
        message.content.iter().map(|block| SamplingMessage {
            role: message.role,
            content: vec![block.clone()],
        })
    });
    SamplingParams {
        messages: messages.collect(),
        ..params.clone()
    }
}

/// Writes the notification that cancels the request with this id.
pub fn write_cancelled(out: &mut Vec<u8>, id: &str, reason: &str) {
    let params = json!({"requestId": id, "reason": reason});
    write::json(
        out,
        &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}),
    );
}

/// Writes the notification of a change.
pub fn write_change(out: &mut Vec<u8>, change: Change<'_>) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","method":""#);
    out.extend_from_slice(change_method(change).as_bytes());
    out.push(b'"');
    if let Change::Resource(uri) = change {
        out.extend_from_slice(br#","params":{"uri":"#);
        write::text(out, uri);
        out.push(b'}');
    }
    out.push(b'}');
}
