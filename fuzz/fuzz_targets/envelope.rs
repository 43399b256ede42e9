//! Random messages are decoded or rejected, both decoders agree, and all output is JSON on one line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain_wire::ratified::{
    decode_call, decode_list, decode_meta, read_call, record_reply, write_error, write_log,
    write_progress, write_reply,
};
use refrain_wire::{
    Ask, AskKind, Call, CallKind, ElicitAnswer, ErrorCode, Id, Incomplete, LogLevel, Message, Meta,
    Rejection, Reply, RootsAnswer, RpcError, SamplingAnswer, SamplingParams, ToolResult,
    check_answer_shape, parse, parse_value, write_canonical,
};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

fuzz_target!(|data: &[u8]| {
    let one_pass = read_call(data);
    match parse(data) {
        Err(rejection) => {
            assert!(one_pass.is_none(), "one decoder accepts, the other rejects");
            check_rejection(data, &rejection);
        }
        Ok(Message::Response(response)) => {
            assert!(one_pass.is_none(), "decoded as a call and as a response");
            if let Ok(result) = response.outcome {
                assert!(result.get().starts_with('{'));
            }
        }
        Ok(Message::Notification { params, .. }) => {
            assert!(
                one_pass.is_none(),
                "decoded as a call and as a notification"
            );
            check_params(params);
        }
        Ok(Message::Request { id, method, params }) => {
            let kind = CallKind::from_method(&method);
            let call = kind.map(|kind| decode_call(kind, params));
            match (&one_pass, &call) {
                (Some((one_pass_id, one_pass)), Some(Ok(call))) => {
                    assert_eq!(*one_pass_id, id);
                    assert_eq!(call_texts(one_pass), call_texts(call));
                }
                (Some(_), other) => {
                    panic!("decoded in one pass, but decode_call returns {other:?}")
                }
                (None, _) => {}
            }
            let meta = check_params(params);
            match &call {
                Some(Ok(call)) => {
                    let meta = meta.expect("the meta of a valid call is valid");
                    assert_eq!(meta_texts(&meta), meta_texts(&call.meta));
                    check_call(id, call);
                }
                Some(Err(error)) => {
                    assert_eq!(error.code, ErrorCode::InvalidParams);
                    check_reply(id, &Reply::Error(error.clone()));
                }
                None => check_reply(id, &Reply::Error(RpcError::method_not_found(&method))),
            }
        }
    }
});

refrain_fuzz::mutate_json!();

/// The reason of a rejection is correct and serializes.
fn check_rejection(data: &[u8], rejection: &Rejection) {
    let error = &rejection.error;
    let text = std::str::from_utf8(data).ok();
    let is_json = text.is_some_and(|text| serde_json::from_str::<Value>(text).is_ok());
    match error.code {
        ErrorCode::Parse => assert!(!is_json, "valid JSON rejected as malformed"),
        ErrorCode::InvalidRequest => {
            let ignored = text.map(serde_json::from_str::<IgnoredAny>);
            assert!(matches!(ignored, Some(Ok(_))));
        }
        other => panic!("rejected with {other:?}"),
    }
    if error.message.starts_with("params must") {
        let value = text.map(serde_json::from_str::<Value>);
        if let Some(Ok(value)) = value {
            let params = value.get("params").expect("the message has params");
            assert!(!params.is_object(), "params are an object");
        }
    }
    let id = rejection.id.as_deref();
    assert!(id.is_none_or(|id| Id::from_raw(id).is_some()));
    let mut out = Vec::new();
    write_error(&mut out, id.map(RawValue::get), error);
    let response = response(&out);
    assert_eq!(response.id.map(RawValue::get), id.map(RawValue::get));
    assert!(response.error.is_some() && response.result.is_none());
}

/// Decodes the params as those of a list and of other methods.
fn check_params(params: Option<&RawValue>) -> Option<Meta<'_>> {
    let meta = decode_meta(params).ok();
    if let Ok(list) = decode_list(params) {
        let meta = meta.as_ref().expect("the meta of a valid list is valid");
        assert_eq!(meta_texts(&list.meta), meta_texts(meta));
    }
    if let Some(token) = meta.as_ref().and_then(|meta| meta.progress_token) {
        for done in [0.0, 0.1, -1e300, f64::NAN] {
            let mut out = Vec::new();
            write_progress(&mut out, token, done, Some(done), Some(token.get()));
            one_line(&out);
        }
    }
    meta
}

fn check_call(id: Id<'_>, call: &Call<'_>) {
    if let Some(arguments) = call.arguments {
        check_canonical(arguments.get());
        check_shapes(arguments);
    }
    if let Some(answers) = &call.answers {
        for (at, (key, raw)) in answers.iter().enumerate() {
            let mut earlier = answers.iter().take(at);
            assert!(earlier.all(|(earlier, _)| earlier != key));
            check_shapes(raw);
            check_canonical(raw.get());
        }
    }
    let text = |kind: AskKind| match kind {
        AskKind::Form => Ask::Form {
            message: call.target.to_string(),
            schema: RawValue::from_string("{}".into()).expect("JSON").into(),
        },
        AskKind::Url => Ask::Url {
            message: call.target.to_string(),
            url: call.target.to_string(),
        },
        AskKind::Sampling => {
            let params = SamplingParams::new(1).user(call.target.as_ref());
            Ask::Sampling(Box::new(params))
        }
        AskKind::Roots => Ask::Roots,
    };
    let asks = KINDS.map(|kind| (format!("{}{}", call.target, kind.as_str()), text(kind)));
    let incomplete = Incomplete {
        asks: asks.to_vec(),
        state: call.state.as_deref().map(str::to_owned),
    };
    check_reply(id, &Reply::Incomplete(incomplete));
    check_reply(id, &Reply::complete(ToolResult::text(call.target.as_ref())));
    check_reply(id, &Reply::complete(call.arguments));
    let failed = RpcError::internal("no").with_data(&call.arguments);
    check_reply(id, &Reply::Error(failed));
    let version = &call.meta.protocol_version;
    check_reply(
        id,
        &Reply::Error(RpcError::unsupported_version(version, &["1"])),
    );
    let mut out = Vec::new();
    let data = Value::from(call.target.as_ref());
    let level = call.meta.log_level.unwrap_or(LogLevel::Debug);
    write_log(&mut out, level, Some(&call.target), &data);
    one_line(&out);
}

/// A reply has the id of the request, and a recorded reply has the same bytes.
fn check_reply(id: Id<'_>, reply: &Reply) {
    let server = RawValue::from_string(r#"{"name":"f","version":"1"}"#.into()).expect("JSON");
    let mut out = Vec::new();
    write_reply(&mut out, Some(id), reply, &server);
    let response = response(&out);
    assert_eq!(response.id.map(RawValue::get), Some(id.as_json()));
    assert!(response.error.is_some() != response.result.is_some());
    let mut again = Vec::new();
    let recorded = Reply::Recorded(record_reply(reply, &server));
    write_reply(&mut again, Some(id), &recorded, &server);
    assert_eq!(out, again);
}

/// Canonical text is stable when it is parsed again.
fn check_canonical(raw: &str) {
    let Ok(value) = parse_value(raw) else { return };
    let mut first = Vec::new();
    write_canonical(&value, &mut first);
    let text = std::str::from_utf8(&first).expect("UTF-8");
    let again = parse_value(text).expect("canonical text is JSON");
    let mut second = Vec::new();
    write_canonical(&again, &mut second);
    assert_eq!(text, String::from_utf8_lossy(&second));
}

const KINDS: [AskKind; 4] = [
    AskKind::Form,
    AskKind::Url,
    AskKind::Sampling,
    AskKind::Roots,
];

/// An answer that passes the shape check can be decoded.
fn check_shapes(raw: &RawValue) {
    for kind in KINDS {
        if let Err(why) = check_answer_shape(kind, raw) {
            assert!(!why.to_string().is_empty());
            continue;
        }
        let text = raw.get();
        if let Err(why) = parse_value(text) {
            let why = why.to_string();
            assert!(
                !why.contains("recursion"),
                "accepted by the shape check: {why}"
            );
        }
        let read = match kind {
            AskKind::Form | AskKind::Url => serde_json::from_str::<ElicitAnswer<'_>>(text).is_ok(),
            AskKind::Sampling => serde_json::from_str::<SamplingAnswer>(text)
                .map(|answer| answer.text())
                .is_ok(),
            AskKind::Roots => serde_json::from_str::<RootsAnswer>(text).is_ok(),
        };
        assert!(read, "accepted by the shape check, but cannot be decoded");
    }
}

#[derive(Deserialize)]
struct Response<'a> {
    jsonrpc: &'a str,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

fn response(out: &[u8]) -> Response<'_> {
    let text = one_line(out);
    let response: Response<'_> = serde_json::from_str(text).expect("a response");
    assert_eq!(response.jsonrpc, "2.0");
    response
}

fn one_line(out: &[u8]) -> &str {
    let text = std::str::from_utf8(out).expect("UTF-8");
    assert!(serde_json::from_str::<IgnoredAny>(text).is_ok(), "{text}");
    assert!(!text.contains('\n'), "{text}");
    text
}

/// All values of a call, for comparison.
fn call_texts<'a>(call: &'a Call<'_>) -> impl PartialEq + std::fmt::Debug + use<'a> {
    let answers = call.answers.as_ref().map(|answers| {
        let texts = answers.iter().map(|(key, raw)| (key.as_ref(), raw.get()));
        texts.collect::<Vec<_>>()
    });
    (
        call.kind,
        call.target.as_ref(),
        call.arguments.map(RawValue::get),
        answers,
        call.state.as_deref(),
        meta_texts(&call.meta),
    )
}

/// All values of a `_meta`, for comparison.
fn meta_texts<'a>(meta: &'a Meta<'_>) -> impl PartialEq + std::fmt::Debug + use<'a> {
    (
        meta.protocol_version.as_ref(),
        meta.client_info,
        meta.capabilities,
        meta.log_level,
        meta.progress_token.map(RawValue::get),
        meta.call_id.as_deref(),
        &meta.trace,
    )
}
