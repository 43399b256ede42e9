//! What older clients are sent.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Revision;
use super::known::{Object, write_member};
use crate::ask::Ask;
use crate::call::{Reply, ResultBody};
use crate::decode::Text;
use crate::envelope::{Id, Members};
use crate::error::{ErrorCode, RpcError};
use crate::info::ServerCapabilities;
use crate::listen::{Change, change_method};
use crate::ratified::open;
use crate::sampling::{SamplingMessage, SamplingParams};
use crate::write;

/// The number for a resource that is not there, which later became that of invalid parameters.
const RESOURCE_NOT_FOUND: i32 = -32002;

/// What `initialize` returns.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializeResult<'a> {
    /// The revision that is spoken from now on.
    pub protocol_version: &'static str,
    /// What the server can do.
    pub capabilities: ServerCapabilities,
    /// The server's name and version.
    pub server_info: &'a RawValue,
    /// How to use the server, for the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<&'a str>,
}

/// Writes the response to a request of an older client. What such a client cannot be told is an internal error.
pub fn write_reply(out: &mut Vec<u8>, id: Id<'_>, reply: &Reply, revision: Revision) {
    match reply {
        Reply::Complete(body) => {
            open(out, Some(id.as_json()));
            out.extend_from_slice(b",\"result\":");
            write_body(out, body, revision);
            out.push(b'}');
        }
        Reply::Error(error) => write_error(out, Some(id.as_json()), error),
        Reply::Incomplete(_) | Reply::Task(_) | Reply::Recorded(_) => {
            let error = RpcError::internal("Internal error");
            write_error(out, Some(id.as_json()), &error);
        }
    }
}

/// Writes an error response; the id is raw JSON, left out where the request had none to read.
pub fn write_error(out: &mut Vec<u8>, id: Option<&str>, error: &RpcError) {
    let code = match error.code {
        ErrorCode::ResourceNotFound => RESOURCE_NOT_FOUND,
        code => code.as_i32(),
    };
    open(out, id);
    out.extend_from_slice(b",\"error\":{\"code\":");
    write::json(out, &code);
    out.extend_from_slice(b",\"message\":");
    write::text(out, error.message.as_ref());
    if let Some(data) = &error.data {
        out.extend_from_slice(b",\"data\":");
        out.extend_from_slice(data.get().as_bytes());
    }
    out.extend_from_slice(b"}}");
}

fn write_body(out: &mut Vec<u8>, body: &ResultBody, revision: Revision) {
    let text = format!("{{{}}}", body.members());
    let members = serde_json::from_str::<Members<'_>>(&text).map(|members| members.0);
    let mut result = Object::new(out);
    for (key, value) in members.unwrap_or_default() {
        write_member(&mut result, &key.0, value, revision);
    }
    if let Some(meta) = body.meta() {
        let out = result.member("_meta");
        out.push(b'{');
        out.extend_from_slice(meta.as_bytes());
        out.push(b'}');
    }
    result.end();
}

/// Writes an ask as a request with this id.
pub fn write_ask(out: &mut Vec<u8>, id: &str, ask: &Ask, revision: Revision) {
    let latest = revision >= Revision::V2025_11_25;
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    write::text(out, id);
    out.extend_from_slice(br#","method":""#);
    out.extend_from_slice(ask.kind().method().as_bytes());
    out.push(b'"');
    match ask {
        Ask::Form { message, schema } => {
            out.extend_from_slice(br#","params":{"#);
            if latest {
                out.extend_from_slice(br#""mode":"form","#);
            }
            out.extend_from_slice(br#""message":"#);
            write::text(out, message);
            out.extend_from_slice(br#","requestedSchema":"#);
            // In any case in the order in which it was written: that of the fields is the author's.
            match plain_choices(schema).filter(|_| !latest) {
                Some(plain) => write::raw(out, &plain),
                None => write::raw(out, schema),
            }
            out.push(b'}');
        }
        Ask::Url { message, url } => {
            out.extend_from_slice(b",\"params\":");
            let params =
                json!({"mode": "url", "message": message, "url": url, "elicitationId": id});
            write::json(out, &params);
        }
        Ask::Sampling(params) => {
            out.extend_from_slice(b",\"params\":");
            if latest {
                write::json(out, params);
            } else {
                write::json(out, &one_block_each(params));
            }
        }
        Ask::Roots => {}
    }
    out.push(b'}');
}

/// A form whose choices have their titles beside them, as they had before 2025-11-25. `None`: it has no such choices.
fn plain_choices(schema: &RawValue) -> Option<Box<RawValue>> {
    if !schema.get().contains(r#""oneOf""#) {
        return None;
    }
    let Members(members) = serde_json::from_str(schema.get()).ok()?;
    let mut out = Vec::new();
    let mut form = Object::new(&mut out);
    for (key, value) in members {
        let out = form.member(&key.0);
        match serde_json::from_str::<Members<'_>>(value.get()) {
            Ok(Members(fields)) if key.0 == "properties" => write_fields(out, &fields),
            _ => write::raw(out, value),
        }
    }
    form.end();
    RawValue::from_string(String::from_utf8(out).ok()?).ok()
}

fn write_fields(out: &mut Vec<u8>, fields: &[(Text<'_>, &RawValue)]) {
    let mut properties = Object::new(out);
    for (name, field) in fields {
        let out = properties.member(&name.0);
        match serde_json::from_str::<Members<'_>>(field.get()) {
            Ok(Members(members)) => write_field(out, &members),
            Err(_) => write::raw(out, field),
        }
    }
    properties.end();
}

fn write_field(out: &mut Vec<u8>, members: &[(Text<'_>, &RawValue)]) {
    #[derive(Deserialize)]
    struct Choice {
        r#const: Value,
        title: Option<Value>,
    }
    let mut field = Object::new(out);
    for (key, value) in members {
        match serde_json::from_str::<Vec<Choice>>(value.get()) {
            Ok(choices) if key.0 == "oneOf" => {
                let values: Vec<&Value> = choices.iter().map(|choice| &choice.r#const).collect();
                // One that has no title is called by its value.
                let titles = choices
                    .iter()
                    .map(|choice| choice.title.as_ref().unwrap_or(&choice.r#const));
                let titles: Vec<&Value> = titles.collect();
                write::json(field.member("enum"), &values);
                write::json(field.member("enumNames"), &titles);
            }
            _ => write::raw(field.member(&key.0), value),
        }
    }
    field.end();
}

/// A conversation with one block in each message, as they had before 2025-11-25.
fn one_block_each(params: &SamplingParams) -> SamplingParams {
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

/// Writes that the request with this id needs no response any more.
pub fn write_cancelled(out: &mut Vec<u8>, id: &str, reason: &str) {
    let params = json!({"requestId": id, "reason": reason});
    write::json(
        out,
        &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}),
    );
}

/// Writes that something changed.
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
