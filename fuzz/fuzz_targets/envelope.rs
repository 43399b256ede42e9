//! Any bytes can come in: they are read or refused, both readers read the same, and what goes out is JSON on one line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain_wire::ratified::{
    decode_call, decode_list, decode_meta, read_call, record_reply, write_error, write_log,
    write_progress, write_reply,
};
use refrain_wire::{
    Answers, Ask, AskKind, Call, CallKind, ElicitAnswer, ErrorCode, Id, Incomplete, LogLevel,
    Message, Meta, Rejection, Reply, RootsAnswer, RpcError, SamplingAnswer, SamplingParams,
    ToolResult, check_answer_shape, parse, parse_value, write_canonical,
};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

fuzz_target!(|data: &[u8]| {
    let fast = read_call(data);
    match parse(data) {
        Err(rejection) => {
            assert!(fast.is_none(), "read, and refused");
            rejected(data, &rejection);
        }
        Ok(Message::Response(response)) => {
            assert!(fast.is_none(), "read as a call, and as a response");
            if let Ok(result) = response.outcome {
                assert!(result.get().starts_with('{'));
            }
        }
        Ok(Message::Notification { params, .. }) => {
            assert!(fast.is_none(), "read as a call, and as a notification");
            others(params);
        }
        Ok(Message::Request { id, method, params }) => {
            let kind = CallKind::from_method(&method);
            let call = kind.map(|kind| decode_call(kind, params));
            match (&fast, &call) {
                (Some((fast_id, fast)), Some(Ok(call))) => {
                    assert_eq!(*fast_id, id);
                    assert_eq!(call_texts(fast), call_texts(call));
                }
                (Some(_), other) => panic!("read in one pass, and otherwise {other:?}"),
                (None, _) => {}
            }
            let meta = others(params);
            match &call {
                Some(Ok(call)) => {
                    let meta = meta.expect("what a call says of itself can be read without it");
                    assert_eq!(meta_texts(&meta), meta_texts(&call.meta));
                    called(id, call);
                }
                Some(Err(error)) => {
                    assert_eq!(error.code, ErrorCode::InvalidParams);
                    replied(id, &Reply::Error(error.clone()));
                }
                None => replied(id, &Reply::Error(RpcError::method_not_found(&method))),
            }
        }
    }
});

// Every other change is one that leaves JSON as JSON.
refrain_fuzz::mutate_json!();

/// A message was refused: the reason given must be true, and can be sent.
fn rejected(data: &[u8], rejection: &Rejection) {
    let error = &rejection.error;
    let text = std::str::from_utf8(data).ok();
    let is_json = text.is_some_and(|text| serde_json::from_str::<Value>(text).is_ok());
    match error.code {
        ErrorCode::Parse => assert!(!is_json, "JSON, and refused as something else"),
        ErrorCode::InvalidRequest => {
            let ignored = text.map(serde_json::from_str::<IgnoredAny>);
            assert!(matches!(ignored, Some(Ok(_))));
        }
        other => panic!("refused as {other:?}"),
    }
    if error.message.starts_with("params must") {
        let value = text.map(serde_json::from_str::<Value>);
        if let Some(Ok(value)) = value {
            let params = value.get("params").expect("params are there");
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

/// The params of anything but a call.
fn others(params: Option<&RawValue>) -> Option<Meta<'_>> {
    let meta = decode_meta(params).ok();
    if let Ok(list) = decode_list(params) {
        let meta = meta.as_ref().expect("a list's params are params");
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

fn called(id: Id<'_>, call: &Call<'_>) {
    if let Some(arguments) = call.arguments {
        canonical(arguments.get());
        shapes(arguments);
    }
    if let Some(Answers(answers)) = &call.answers {
        for (at, (key, raw)) in answers.iter().enumerate() {
            assert!(answers[..at].iter().all(|(earlier, _)| earlier != key));
            shapes(raw);
            canonical(raw.get());
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
    replied(id, &Reply::Incomplete(incomplete));
    replied(id, &Reply::complete(ToolResult::text(call.target.as_ref())));
    replied(id, &Reply::complete(call.arguments));
    let failed = RpcError::internal("no").with_data(&call.arguments);
    replied(id, &Reply::Error(failed));
    let version = &call.meta.protocol_version;
    replied(
        id,
        &Reply::Error(RpcError::unsupported_version(version, &["1"])),
    );
    let mut out = Vec::new();
    let data = Value::from(call.target.as_ref());
    let level = call.meta.log_level.unwrap_or(LogLevel::Debug);
    write_log(&mut out, level, Some(&call.target), &data);
    one_line(&out);
}

/// A reply goes out under its id, and once more as it was recorded.
fn replied(id: Id<'_>, reply: &Reply) {
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

/// The canonical text of a value is that of the value it is read as.
fn canonical(raw: &str) {
    let Ok(value) = parse_value(raw) else { return };
    let mut once = Vec::new();
    write_canonical(&value, &mut once);
    let text = std::str::from_utf8(&once).expect("UTF-8");
    let again = parse_value(text).expect("canonical text can be read");
    let mut twice = Vec::new();
    write_canonical(&again, &mut twice);
    assert_eq!(text, String::from_utf8_lossy(&twice));
}

const KINDS: [AskKind; 4] = [
    AskKind::Form,
    AskKind::Url,
    AskKind::Sampling,
    AskKind::Roots,
];

/// What has the shape of an answer can be read as one.
fn shapes(raw: &RawValue) {
    for kind in KINDS {
        if let Err(why) = check_answer_shape(kind, raw) {
            assert!(!why.to_string().is_empty());
            continue;
        }
        let text = raw.get();
        if let Err(why) = parse_value(text) {
            let why = why.to_string();
            assert!(!why.contains("recursion"), "it has the shape: {why}");
        }
        let read = match kind {
            AskKind::Form | AskKind::Url => serde_json::from_str::<ElicitAnswer<'_>>(text).is_ok(),
            AskKind::Sampling => serde_json::from_str::<SamplingAnswer>(text)
                .map(|answer| answer.text())
                .is_ok(),
            AskKind::Roots => serde_json::from_str::<RootsAnswer>(text).is_ok(),
        };
        assert!(read, "it has the shape, and cannot be read");
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

/// All that a call says.
fn call_texts<'a>(call: &'a Call<'_>) -> impl PartialEq + std::fmt::Debug + use<'a> {
    let answers = call.answers.as_ref().map(|Answers(answers)| {
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

/// All that a request says about itself.
fn meta_texts<'a>(meta: &'a Meta<'_>) -> impl PartialEq + std::fmt::Debug + use<'a> {
    (
        meta.protocol_version.as_ref(),
        meta.client_info.map(RawValue::get),
        meta.capabilities,
        meta.log_level,
        meta.progress_token.map(RawValue::get),
        meta.call_id.as_deref(),
        &meta.trace,
    )
}
