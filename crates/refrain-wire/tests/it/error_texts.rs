//! Error texts use terms of the protocol, never those of Rust or serde.

use refrain_wire::drafts::Draft;
use refrain_wire::legacy::{
    self, Revision, SessionSettings, decode_initialize, decode_set_level, decode_uri,
};
use refrain_wire::ratified::{
    decode_call, decode_complete, decode_list, decode_listen, decode_meta, decode_task,
};
use refrain_wire::{
    AskKind, CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY, CallKind, Capabilities, PROTOCOL_VERSION,
    PROTOCOL_VERSION_KEY, RpcError, TaskMethod, check_answer_shape, parse,
};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

const SESSION: SessionSettings = SessionSettings {
    revision: Revision::LATEST,
    capabilities: Capabilities {
        form: true,
        url: true,
        sampling: true,
        sampling_tools: true,
        sampling_context: true,
        roots: true,
        tasks: false,
    },
    log_level: None,
};

/// All values in which one part of `value`, or the whole, is replaced by `with`.
fn mutations(value: &Value, with: &Value) -> Vec<Value> {
    let mut all = vec![with.clone()];
    let keys: Vec<String> = match value {
        Value::Object(members) => members.keys().cloned().collect(),
        Value::Array(items) => (0..items.len()).map(|at| at.to_string()).collect(),
        _ => Vec::new(),
    };
    for key in keys {
        let pointer = format!("/{}", key.replace('~', "~0").replace('/', "~1"));
        let part = value.pointer(&pointer).unwrap().clone();
        for part in mutations(&part, with) {
            let mut whole = value.clone();
            *whole.pointer_mut(&pointer).unwrap() = part;
            all.push(whole);
        }
    }
    all
}

/// Reads a valid value and all its mutations, and checks the error texts.
fn check(good: &Value, read: impl Fn(&RawValue) -> Result<(), String>) {
    let raw = |value: &Value| to_raw_value(value).unwrap();
    assert_eq!(read(&raw(good)), Ok(()));
    let others = [
        json!(5),
        json!(-1.5),
        json!("x"),
        json!(true),
        json!(null),
        json!([]),
        json!([null, null, null, null]),
        json!({}),
        json!({"x": 5}),
    ];
    let (mut rejections, mut bad_texts) = (0, Vec::new());
    for bad in others.iter().flat_map(|other| mutations(good, other)) {
        let Err(message) = read(&raw(&bad)) else {
            continue;
        };
        rejections += 1;
        let rust_terms = [
            "struct ", "enum ", "tuple", "variant ", "newtype", "Wire", "element",
        ];
        if rust_terms.iter().any(|word| message.contains(word)) || message.is_empty() {
            bad_texts.push(format!("{bad}: {message}"));
        }
    }
    assert!(rejections > 0);
    assert!(bad_texts.is_empty(), "{}", bad_texts.join("\n"));
}

fn error_text<T>(read: Result<T, RpcError>) -> Result<(), String> {
    read.map(|_| ()).map_err(|error| error.message.into_owned())
}

fn meta() -> Value {
    json!({
        PROTOCOL_VERSION_KEY: PROTOCOL_VERSION,
        CLIENT_INFO_KEY: {"name": "c", "version": "1"},
        CLIENT_CAPABILITIES_KEY: {"elicitation": {"form": {}}, "sampling": {"tools": {}}, "roots": {},
            "extensions": {"io.modelcontextprotocol/tasks": {}}},
        "progressToken": 7,
        "io.modelcontextprotocol/logLevel": "info",
    })
}

#[test]
fn ratified_request_errors_use_protocol_terms() {
    let call = json!({"name": "t", "arguments": {"a": 1}, "inputResponses": {"k": {"action": "accept"}},
        "requestState": "s", "_meta": meta()});
    check(&call, |raw| {
        error_text(decode_call(CallKind::Tool, Some(raw)))
    });
    let list = json!({"cursor": "c", "_meta": meta()});
    check(&list, |raw| error_text(decode_list(Some(raw))));
    check(&list, |raw| error_text(decode_meta(Some(raw))));
    let typed = json!({"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": "v"},
        "context": {"arguments": {"b": "w"}}, "_meta": meta()});
    check(&typed, |raw| error_text(decode_complete(Some(raw))));
    let listen = json!({"notifications": {"toolsListChanged": true, "resourceSubscriptions": ["a:b"],
        "taskIds": ["t"]}, "_meta": meta()});
    check(&listen, |raw| error_text(decode_listen(Some(raw))));
    let task =
        json!({"taskId": "t", "inputResponses": {"k": {"action": "accept"}}, "_meta": meta()});
    check(&task, |raw| {
        error_text(decode_task(TaskMethod::Update, Some(raw)))
    });
}

#[test]
fn legacy_request_errors_use_protocol_terms() {
    let hello = json!({"protocolVersion": "2025-11-25", "clientInfo": {"name": "c", "version": "1"},
        "capabilities": {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}, "context": {}},
            "roots": {"listChanged": true}}});
    check(&hello, |raw| error_text(decode_initialize(Some(raw))));
    let meta = json!({"progressToken": 7, "traceparent": "x"});
    let call = json!({"name": "t", "arguments": {"a": 1}, "_meta": meta});
    check(&call, |raw| {
        error_text(legacy::decode_call(CallKind::Tool, Some(raw), SESSION))
    });
    let list = json!({"cursor": "c", "_meta": meta});
    check(&list, |raw| {
        error_text(legacy::decode_list(Some(raw), SESSION))
    });
    let typed = json!({"ref": {"type": "ref/resource", "uri": "a:{b}"}, "argument": {"name": "a", "value": "v"},
        "context": {"arguments": {"b": "w"}}, "_meta": meta});
    check(&typed, |raw| {
        error_text(legacy::decode_complete(Some(raw), SESSION))
    });
    check(&json!({"level": "info"}), |raw| {
        error_text(decode_set_level(Some(raw)))
    });
    check(&json!({"uri": "a:b"}), |raw| {
        error_text(decode_uri(Some(raw)))
    });
}

#[test]
fn answer_errors_use_protocol_terms() {
    let filled = json!({"action": "accept", "content": {"name": "octocat"}});
    let shape =
        |kind, raw: &RawValue| check_answer_shape(kind, raw).map_err(|error| error.to_string());
    check(&filled, |raw| shape(AskKind::Form, raw));
    let answer = json!({"role": "assistant", "model": "m", "stopReason": "endTurn", "content":
        [{"type": "text", "text": "t"}, {"type": "image", "data": "", "mimeType": "image/png"},
         {"type": "tool_use", "id": "1", "name": "n", "input": {}}]});
    check(&answer, |raw| shape(AskKind::Sampling, raw));
    let roots = json!({"roots": [{"uri": "file:///a", "name": "a"}]});
    check(&roots, |raw| shape(AskKind::Roots, raw));
}

#[test]
fn message_errors_use_protocol_terms() {
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"a": 1}});
    check(&message, |raw| {
        let read = parse(raw.get().as_bytes()).map_err(|rejection| rejection.error);
        error_text(read)
    });
    for draft in Draft::ALL {
        let read = |raw: &RawValue| {
            let read = draft.read_request(raw.get().as_bytes());
            error_text(read.map_err(|rejection| rejection.error))
        };
        let names = match draft {
            Draft::Sketch => ("dependent_responses", "request_state"),
            Draft::First => ("input_responses", "request_state"),
            Draft::Second => ("inputResponses", "requestState"),
        };
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", names.1: "s",
            names.0: {"k": {"result": {"action": "accept"}}},
            "params": {"name": "t", "arguments": {}, "task": {"ttl": 5}, "_meta": meta()}});
        check(&call, read);
        let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}});
        check(&hello, read);
    }
}
