//! Decoding calls, lists and `_meta` of 2026-07-28.

use std::borrow::Cow;

use refrain_wire::ratified::{decode_call, decode_list, decode_meta};
use refrain_wire::{CALL_ID_KEY, CallKind, Capabilities, Capability, LogLevel, PROTOCOL_VERSION};
use serde_json::value::RawValue;

use crate::support::{raw, rejection_text, with_meta};

/// Params with only a `_meta` that has additional members.
fn meta(members: &str) -> Box<RawValue> {
    raw(&format!(
        r#"{{"_meta":{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{{}}{members}}}}}"#
    ))
}

#[test]
fn second_round_is_decoded_without_copies() {
    let params = with_meta(
        r#""name":"get_weather","arguments":{"location":"New York"},"later":[{"x":1}],
           "inputResponses":{"github_login":{"action":"accept","content":{"name":"octocat"}},"roots":{"roots":[]}},
           "requestState":"eyJsb2NhdGlvbiI6Ik5ldyBZb3JrIn0""#,
    );
    let call = decode_call(CallKind::Tool, Some(&params)).unwrap();
    assert_eq!(call.kind, CallKind::Tool);
    assert!(matches!(call.target, Cow::Borrowed("get_weather")));
    assert_eq!(call.arguments.unwrap().get(), r#"{"location":"New York"}"#);
    assert!(matches!(
        call.state,
        Some(Cow::Borrowed("eyJsb2NhdGlvbiI6Ik5ldyBZb3JrIn0"))
    ));
    let answers = call.answers.unwrap();
    let keys: Vec<_> = answers.iter().map(|(key, _)| key).collect();
    assert!(matches!(keys[..], [Cow::Borrowed("github_login"), _]));
    assert_eq!(answers.get("roots").unwrap().get(), r#"{"roots":[]}"#);
    assert!(answers.get("other").is_none());
    assert!(matches!(
        call.meta.protocol_version,
        Cow::Borrowed(PROTOCOL_VERSION)
    ));
}

#[test]
fn resource_call_uses_uri_and_ignores_name() {
    let params = with_meta(r#""uri":"test://a","name":7,"arguments":8"#);
    let call = decode_call(CallKind::Resource, Some(&params)).unwrap();
    assert_eq!(call.target, "test://a");
    assert!(call.arguments.is_none());
    let params = with_meta(r#""name":"x""#);
    let missing = decode_call(CallKind::Resource, Some(&params));
    assert_eq!(
        rejection_text(missing),
        "uri is missing; resources/read needs it"
    );
}

#[test]
fn invalid_call_error_names_the_member() {
    let cases = [
        (r#""arguments":{}"#, "name is missing"),
        (r#""name":7"#, "name must be a string"),
        (r#""name":null"#, "name must be a string"),
        (r#""name":"a","name":"b""#, "name is given twice"),
        (
            r#""name":"a","arguments":[]"#,
            "arguments must be an object",
        ),
        (
            r#""name":"a","arguments":null"#,
            "arguments must be an object",
        ),
        (
            r#""name":"a","arguments":{},"arguments":{}"#,
            "arguments is given twice",
        ),
        (
            r#""name":"a","inputResponses":null"#,
            "inputResponses as an object",
        ),
        (
            r#""name":"a","inputResponses":[]"#,
            "inputResponses as an object",
        ),
        (
            r#""name":"a","inputResponses":{"user_name":12345}"#,
            r#"inputResponses["user_name"] must be an object"#,
        ),
        (
            r#""name":"a","inputResponses":{"k":null}"#,
            r#"inputResponses["k"] must be an object"#,
        ),
        (
            r#""name":"a","inputResponses":{"k":{},"l":{},"k":{}}"#,
            r#"inputResponses["k"] is given twice"#,
        ),
        (
            r#""name":"a","inputResponses":{},"inputResponses":{}"#,
            "inputResponses is given twice",
        ),
        (
            r#""name":"a","requestState":5"#,
            "requestState must be a string",
        ),
        (
            r#""name":"a","requestState":null"#,
            "requestState must be a string",
        ),
        (
            r#""name":"a","_meta":{"io.modelcontextprotocol/protocolVersion":"x","io.modelcontextprotocol/clientCapabilities":{}}"#,
            "_meta is given twice",
        ),
    ];
    for (members, says) in cases {
        let params = with_meta(members);
        let message = rejection_text(decode_call(CallKind::Tool, Some(&params)));
        assert!(message.contains(says), "{members}: {message}");
        assert!(!message.contains(" at line "), "{message}");
    }
    assert!(rejection_text(decode_call(CallKind::Tool, None)).contains("params is missing"));
    assert!(
        rejection_text(decode_call(CallKind::Tool, Some(&raw("[]")))).contains("must be an object")
    );
}

#[test]
fn duplicate_among_many_answers_is_rejected() {
    let many: Vec<String> = (0..5000)
        .map(|i| format!(r#""k{}":{{}}"#, i % 4999))
        .collect();
    let params = with_meta(&format!(
        r#""name":"a","inputResponses":{{{}}}"#,
        many.join(",")
    ));
    let message = rejection_text(decode_call(CallKind::Tool, Some(&params)));
    assert!(
        message.contains(r#"inputResponses["k0"] is given twice"#),
        "{message}"
    );
}

#[test]
fn meta_requires_version_and_capabilities() {
    let cases = [
        (r#"{"name":"a"}"#, "params._meta is missing"),
        (r#"{"name":"a","_meta":null}"#, "params._meta as an object"),
        (
            r#"{"name":"a","_meta":{"io.modelcontextprotocol/clientCapabilities":{}}}"#,
            "protocolVersion is missing",
        ),
        (
            r#"{"name":"a","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#,
            "clientCapabilities is missing",
        ),
        (
            r#"{"name":"a","_meta":{"io.modelcontextprotocol/protocolVersion":1}}"#,
            "protocolVersion must be a string",
        ),
        (
            r#"{"name":"a","_meta":{"io.modelcontextprotocol/clientCapabilities":[]}}"#,
            "clientCapabilities as an object",
        ),
        (
            r#"{"name":"a","_meta":{"io.modelcontextprotocol/clientCapabilities":{"sampling":true}}}"#,
            "clientCapabilities.sampling as an object",
        ),
        (
            r#"{"name":"a","_meta":{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"url":1}}}}"#,
            "clientCapabilities.elicitation.url must be an object",
        ),
        (
            r#"{"name":"a","_meta":{"io.modelcontextprotocol/clientCapabilities":{"roots":{},"roots":{}}}}"#,
            "clientCapabilities.roots is given twice",
        ),
    ];
    for (params, says) in cases {
        let params = raw(params);
        let from_call = rejection_text(decode_call(CallKind::Tool, Some(&params)));
        assert!(from_call.contains(says), "{params}: {from_call}");
        assert_eq!(rejection_text(decode_meta(Some(&params))), from_call);
        assert_eq!(rejection_text(decode_list(Some(&params))), from_call);
    }
    assert!(rejection_text(decode_meta(None)).contains("params is missing"));
}

#[test]
fn all_meta_members_are_decoded() {
    let params = meta(
        r#","io.modelcontextprotocol/clientInfo":{"name":"ExampleClient","version":"1.0.0"},
            "io.modelcontextprotocol/logLevel":"warning","progressToken":-4,"refrain/callId":"c-1",
            "traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","tracestate":"a=1,b=2",
            "baggage":"user=alice","com.example/x":{"y":[]}"#,
    );
    let meta = decode_meta(Some(&params)).unwrap();
    assert_eq!(
        meta.client_info.unwrap(),
        r#"{"name":"ExampleClient","version":"1.0.0"}"#
    );
    assert_eq!(meta.log_level, Some(LogLevel::Warning));
    assert_eq!(meta.progress_token.unwrap().get(), "-4");
    assert!(matches!(meta.call_id, Some(Cow::Borrowed("c-1"))));
    let trace = meta.trace.unwrap();
    let parent = trace.parent.unwrap();
    assert_eq!(
        parent.to_string(),
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    );
    assert!(matches!(trace.state, Some(Cow::Borrowed("a=1,b=2"))));
    assert!(matches!(trace.baggage, Some(Cow::Borrowed("user=alice"))));
    assert_eq!(trace.ignored, None);
}

#[test]
fn optional_meta_of_wrong_type_is_rejected() {
    let long = format!(r#","{CALL_ID_KEY}":"{}""#, "x".repeat(129));
    let long_token = format!(r#","progressToken":"{}""#, "x".repeat(8191));
    let cases = [
        (
            r#","io.modelcontextprotocol/logLevel":"loud""#,
            "logLevel must be one of debug, info",
        ),
        (
            r#","io.modelcontextprotocol/clientInfo":"me""#,
            "clientInfo must be an object",
        ),
        (
            r#","progressToken":1.5"#,
            "progressToken must be a string or an integer",
        ),
        (
            r#","progressToken":null"#,
            "progressToken must be a string or an integer",
        ),
        (&long_token, "integer of up to 8192 bytes"),
        (
            r#","progressToken":1,"progressToken":1"#,
            "progressToken is given twice",
        ),
        (
            r#","refrain/callId":"""#,
            "refrain/callId must be a string of 1 to 128 bytes",
        ),
        (&long, "refrain/callId must be a string of 1 to 128 bytes"),
        (r#","refrain/callId":1"#, "refrain/callId must be"),
        (
            r#","traceparent":1,"traceparent":1"#,
            "traceparent is given twice",
        ),
    ];
    for (members, says) in cases {
        let params = meta(members);
        let message = rejection_text(decode_meta(Some(&params)));
        assert!(message.contains(says), "{members}: {message}");
    }
    let fits = meta(&format!(r#","{CALL_ID_KEY}":"{}""#, "x".repeat(128)));
    assert!(decode_meta(Some(&fits)).is_ok());
}

#[test]
fn capabilities_are_decoded_as_declared() {
    let none = Capabilities::default();
    let cases = [
        ("{}", none),
        (r#"{"elicitation":{}}"#, Capabilities { form: true, ..none }),
        (
            r#"{"elicitation":{"form":{}}}"#,
            Capabilities { form: true, ..none },
        ),
        (
            r#"{"elicitation":{"url":{}}}"#,
            Capabilities { url: true, ..none },
        ),
        (
            r#"{"elicitation":{"form":{},"url":{}}}"#,
            Capabilities {
                form: true,
                url: true,
                ..none
            },
        ),
        (
            r#"{"sampling":{}}"#,
            Capabilities {
                sampling: true,
                ..none
            },
        ),
        (
            r#"{"sampling":{"tools":{},"context":{}}}"#,
            Capabilities {
                sampling: true,
                sampling_tools: true,
                sampling_context: true,
                ..none
            },
        ),
        (
            r#"{"roots":{"listChanged":true},"extensions":{"a/b":{}}}"#,
            Capabilities {
                roots: true,
                ..none
            },
        ),
    ];
    for (text, expected) in cases {
        let params = raw(&format!(
            r#"{{"_meta":{{"io.modelcontextprotocol/clientCapabilities":{text},"io.modelcontextprotocol/protocolVersion":"v"}}}}"#
        ));
        assert_eq!(
            decode_meta(Some(&params)).unwrap().capabilities,
            expected,
            "{text}"
        );
    }
    let url = Capabilities { url: true, ..none };
    assert!(url.has(Capability::Url) && !url.has(Capability::Form) && !url.has(Capability::Roots));
}

#[test]
fn list_cursor_is_optional() {
    let params = with_meta(r#""cursor":"next-page""#);
    assert_eq!(
        decode_list(Some(&params)).unwrap().cursor.as_deref(),
        Some("next-page")
    );
    let params = with_meta(r#""cursor":3"#);
    assert_eq!(
        rejection_text(decode_list(Some(&params))),
        "cursor must be a string"
    );
    assert!(
        decode_meta(Some(&params)).is_ok(),
        "other methods have no cursor to check"
    );
}

#[test]
fn call_kinds_and_log_levels_have_wire_names() {
    for kind in [CallKind::Tool, CallKind::Prompt, CallKind::Resource] {
        assert_eq!(CallKind::from_method(kind.method()), Some(kind));
    }
    assert_eq!(CallKind::from_method("tools/list"), None);
    assert!(LogLevel::Debug < LogLevel::Info && LogLevel::Alert < LogLevel::Emergency);
}
