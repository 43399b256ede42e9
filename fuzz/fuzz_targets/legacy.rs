//! Random messages from legacy clients are decoded or rejected, and all output is JSON on one line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain_wire::legacy::{
    self, Revision, SessionSettings, decode_initialize, decode_set_level, decode_uri, is_modern,
    split_batch, write_ask,
};
use refrain_wire::{Ask, CallKind, Id, LogLevel, Message, Reply, ResultBody, RpcError, parse};
use serde_json::Value;
use serde_json::value::RawValue;

fuzz_target!(|data: &[u8]| {
    check_message(data);
    for message in split_batch(data).unwrap_or_default() {
        check_message(message.get().as_bytes());
    }
});

refrain_fuzz::mutate_json!();

fn check_message(data: &[u8]) {
    let parsed = parse(data);
    if let Ok(Message::Response(response)) = parsed {
        if let Ok(result) = response.outcome {
            assert!(result.get().starts_with('{'));
        }
        return;
    }
    let Ok(Message::Request { id, params, .. }) = parsed else {
        return;
    };
    // An id is copied to the output. serde_json cannot read a number over the range of f64.
    if serde_json::from_str::<Value>(id.as_json()).is_err() {
        return;
    }
    is_modern(params);
    for revision in Revision::ALL {
        let session = SessionSettings {
            revision,
            capabilities: Default::default(),
            log_level: Some(LogLevel::Info),
        };
        for kind in [CallKind::Tool, CallKind::Prompt, CallKind::Resource] {
            match legacy::decode_call(kind, params, session) {
                Ok(call) => {
                    assert!(call.answers.is_none() && call.state.is_none());
                    assert_eq!(call.meta.protocol_version, revision.as_str());
                }
                Err(error) => check_error(id, &error),
            }
        }
        let _ = legacy::decode_list(params, session);
        let _ = legacy::decode_complete(params, session);
        check_output(id, params, revision);
    }
    let _ = decode_set_level(params);
    let _ = decode_uri(params);
    if let Ok(initialize) = decode_initialize(params) {
        assert!(!initialize.capabilities.tasks);
    }
}

fn check_error(id: Id<'_>, error: &RpcError) {
    let mut out = Vec::new();
    legacy::write_error(&mut out, Some(id.as_json()), error);
    one_line(&out);
}

/// Writes the params as a result, and as the schema of a form.
fn check_output(id: Id<'_>, params: Option<&RawValue>, revision: Revision) {
    // A lone surrogate in raw text is copied to the output and cannot be parsed. The output is nested deeper than the
    // params, and serde_json reads at most 128 levels.
    let readable = |params: &&RawValue| {
        let nested = format!("[[[[{}]]]]", params.get());
        serde_json::from_str::<Value>(&nested).is_ok()
    };
    let Some(params) = params.filter(readable) else {
        return;
    };
    if let Ok(body) = ResultBody::from_members(params) {
        let mut out = Vec::new();
        legacy::write_reply(&mut out, id, &Reply::Complete(body), revision);
        let reply = one_line(&out);
        for new_member in ["resultType", "ttlMs", "cacheScope"] {
            assert!(reply["result"].get(new_member).is_none());
        }
        let structured = reply["result"].get("structuredContent");
        assert!(structured.is_none_or(|it| it.is_object() && revision > Revision::V2025_03_26));
    }
    let ask = Ask::Form {
        message: params.get().to_owned(),
        schema: params.to_owned().into(),
    };
    let mut out = Vec::new();
    write_ask(&mut out, "an id", &ask, revision);
    assert_eq!(one_line(&out)["method"], "elicitation/create");
}

fn one_line(out: &[u8]) -> Value {
    assert!(!out.contains(&b'\n'), "output has line breaks");
    serde_json::from_slice(out).expect("output is JSON")
}
