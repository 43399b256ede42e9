//! What older clients are sent.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::Revision;
use crate::ask::Ask;
use crate::call::{Reply, ResultBody};
use crate::envelope::{Id, Members};
use crate::error::{ErrorCode, RpcError};
use crate::info::ServerCapabilities;
use crate::listen::{Change, change_method};
use crate::ratified::open;
use crate::sampling::{SamplingMessage, SamplingParams};
use crate::write;

/// The number for a resource that is not there, which later became that of invalid parameters.
const RESOURCE_NOT_FOUND: i32 = -32002;
/// Members of results that these revisions do not know.
pub(crate) const LATER: [&str; 3] = ["resultType", "ttlMs", "cacheScope"];

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
pub fn write_older_reply(out: &mut Vec<u8>, id: Id<'_>, reply: &Reply, revision: Revision) {
    match reply {
        Reply::Complete(body) => {
            open(out, Some(id.as_json()));
            out.extend_from_slice(b",\"result\":");
            write_body(out, body, revision);
            out.push(b'}');
        }
        Reply::Error(error) => write_older_error(out, Some(id.as_json()), error),
        Reply::Incomplete(_) | Reply::Task(_) | Reply::Recorded(_) => {
            let error = RpcError::internal("Internal error");
            write_older_error(out, Some(id.as_json()), &error);
        }
    }
}

/// Writes an error response; the id is raw JSON, left out where the request had none to read.
pub fn write_older_error(out: &mut Vec<u8>, id: Option<&str>, error: &RpcError) {
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
    let mut first = true;
    let mut begin = |out: &mut Vec<u8>, key: &str| {
        out.push(if first { b'{' } else { b',' });
        first = false;
        write::text(out, key);
        out.push(b':');
    };
    for (key, value) in members.unwrap_or_default() {
        let key = key.0.as_ref();
        if LATER.contains(&key) || (key == "structuredContent" && !value.get().starts_with('{')) {
            continue;
        }
        begin(out, key);
        match translated(key, value, revision) {
            Some(value) => write::json(out, &value),
            None => out.extend_from_slice(value.get().as_bytes()),
        }
    }
    if let Some(meta) = body.meta() {
        begin(out, "_meta");
        out.push(b'{');
        out.extend_from_slice(meta.as_bytes());
        out.push(b'}');
    }
    out.extend_from_slice(if first { b"{}" } else { b"}" });
}

/// A member of a result as the revision has it. `None`: as it is.
fn translated(key: &str, value: &RawValue, revision: Revision) -> Option<Value> {
    let text = value.get();
    let links = revision < Revision::V2025_06_18 && text.contains(r#""resource_link""#);
    match key {
        "tools" if text.contains(r#""outputSchema""#) => {
            let mut tools: Vec<Map<String, Value>> = serde_json::from_str(text).ok()?;
            for tool in &mut tools {
                // Structured content was an object before it could be anything.
                let schema = tool.get("outputSchema");
                if schema.is_some_and(|schema| schema["type"] != "object") {
                    tool.remove("outputSchema");
                }
            }
            Some(json!(tools))
        }
        "content" if links => {
            let mut blocks: Vec<Value> = serde_json::from_str(text).ok()?;
            blocks.iter_mut().for_each(unlink);
            Some(json!(blocks))
        }
        "messages" if links => {
            let mut messages: Vec<Value> = serde_json::from_str(text).ok()?;
            for message in &mut messages {
                unlink(&mut message["content"]);
            }
            Some(json!(messages))
        }
        _ => None,
    }
}

/// Makes a link to a resource a text that says where it is.
fn unlink(block: &mut Value) {
    if block["type"] == "resource_link" {
        let (name, uri) = (&block["name"], &block["uri"]);
        let text = format!(
            "{}: {}",
            name.as_str().unwrap_or_default(),
            uri.as_str().unwrap_or_default()
        );
        *block = json!({"type": "text", "text": text});
    }
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
            match plain_choices(schema).filter(|_| !latest) {
                Some(plain) => write::json(out, &plain),
                // As it was written: the order of the fields is the author's.
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
fn plain_choices(schema: &RawValue) -> Option<Value> {
    if !schema.get().contains(r#""oneOf""#) {
        return None;
    }
    let mut schema: Value = serde_json::from_str(schema.get()).ok()?;
    let fields = schema["properties"].as_object_mut();
    for field in fields.into_iter().flat_map(Map::values_mut) {
        let Some(choices) = field.get("oneOf").and_then(Value::as_array) else {
            continue;
        };
        let member = |name: &str| -> Vec<Value> {
            let members = choices.iter().map(|choice| choice[name].clone());
            members.collect()
        };
        let (values, titles) = (member("const"), member("title"));
        if let Some(field) = field.as_object_mut() {
            field.remove("oneOf");
            field.insert("enum".to_owned(), values.into());
            field.insert("enumNames".to_owned(), titles.into());
        }
    }
    Some(schema)
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
pub fn write_older_change(out: &mut Vec<u8>, change: Change<'_>) {
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
