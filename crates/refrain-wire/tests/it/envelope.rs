//! The JSON-RPC envelope: valid and invalid messages, and error texts.

use std::borrow::Cow;

use refrain_wire::{ErrorCode, Message, parse};

fn rejection(text: &str) -> (ErrorCode, String, Option<String>) {
    let rejection = parse(text.as_bytes()).expect_err(text);
    let id = rejection.id.map(|raw| raw.get().to_owned());
    (
        rejection.error.code,
        rejection.error.message.into_owned(),
        id,
    )
}

#[test]
fn request_is_parsed_without_copies() {
    let bytes = br#" {"jsonrpc":"2.0","id":"call-1","method":"tools/call","params":{"name":"x"}} "#;
    let Message::Request { id, method, params } = parse(bytes).unwrap() else {
        panic!()
    };
    assert_eq!(id.as_json(), r#""call-1""#);
    assert!(matches!(method, Cow::Borrowed("tools/call")));
    assert_eq!(params.unwrap().get(), r#"{"name":"x"}"#);
}

#[test]
fn notification_has_no_id_and_optional_params() {
    let bytes = br#"{"method":"notifications/cancelled","jsonrpc":"2.0","extra":[1,{"a":null}]}"#;
    let Message::Notification { method, params } = parse(bytes).unwrap() else {
        panic!()
    };
    assert_eq!(method, "notifications/cancelled");
    assert!(params.is_none());
}

#[test]
fn ids_are_strings_or_integers_and_kept_verbatim() {
    for id in [
        "0",
        "-7",
        "12345678901234567890123",
        r#""""#,
        r#""a\u00e9""#,
    ] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
        let Message::Request { id: read, .. } = parse(text.as_bytes()).unwrap() else {
            panic!()
        };
        assert_eq!(read.as_json(), id);
    }
    let long = format!("\"{}\"", "x".repeat(8191));
    for id in ["null", "1.5", "1.0", "1e3", "true", "{}", "[1]", &long] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
        let (code, message, echoed) = rejection(&text);
        assert_eq!(code, ErrorCode::InvalidRequest, "{id}");
        assert!(message.starts_with("id must be"), "{message}");
        assert_eq!(echoed, None);
    }
}

#[test]
fn malformed_json_is_a_parse_error() {
    for text in [
        "",
        "  ",
        "{",
        "[1,",
        "{]",
        "nope",
        r#"{"jsonrpc":"2.0"} x"#,
        r#"{"a":"\q"}"#,
    ] {
        let (code, message, id) = rejection(text);
        assert_eq!(code, ErrorCode::Parse, "{text}");
        assert!(message.contains("not JSON"), "{message}");
        assert_eq!(id, None);
    }
    let rejection = parse(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}").unwrap_err();
    assert_eq!(rejection.error.code, ErrorCode::Parse);
    assert!(rejection.error.message.contains("not UTF-8"));
}

#[test]
fn lone_surrogate_is_rejected_in_key_and_method() {
    assert_eq!(rejection(r#"{"\ud800":1}"#).0, ErrorCode::Parse);
    let (code, message, id) = rejection(r#"{"jsonrpc":"2.0","id":1,"method":"\ud800"}"#);
    assert_eq!(code, ErrorCode::InvalidRequest);
    assert_eq!(message, "method must be a string");
    assert_eq!(id.as_deref(), Some("1"));
}

#[test]
fn non_message_json_is_an_invalid_request() {
    let cases = [
        (
            r#"[{"jsonrpc":"2.0","id":1,"method":"m"}]"#,
            "batches",
            None,
        ),
        ("[]", "batches", None),
        (r#"["2.0",1,"m",{},1,1]"#, "batches", None),
        ("1", "must be an object", None),
        ("null", "must be an object", None),
        (r#""text""#, "must be an object", None),
        ("{}", "jsonrpc must be", None),
        (
            r#"{"jsonrpc":"1.0","id":1,"method":"m"}"#,
            "jsonrpc must be",
            Some("1"),
        ),
        (
            r#"{"jsonrpc":2.0,"id":1,"method":"m"}"#,
            "jsonrpc must be",
            Some("1"),
        ),
        (
            r#"{"id":"a","method":"m"}"#,
            "jsonrpc must be",
            Some(r#""a""#),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1}"#,
            "method is missing",
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":7}"#,
            "method must be a string",
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":null}"#,
            "method must be a string",
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","result":{}}"#,
            "a response needs an id",
            None,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"m","result":null}"#,
            "a response needs an id",
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}"#,
            "params must be",
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":null}"#,
            "params must be",
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"m","method":"n"}"#,
            "method is given twice",
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}"#,
            "id is given twice",
            None,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{},"par\u0061ms":{}}"#,
            "params is given twice",
            Some("1"),
        ),
    ];
    for (text, says, echoed) in cases {
        let (code, message, id) = rejection(text);
        assert_eq!(code, ErrorCode::InvalidRequest, "{text}");
        assert!(message.contains(says), "{text}: {message}");
        assert_eq!(id.as_deref(), echoed, "{text}");
    }
}

#[test]
fn deeply_nested_params_stay_raw_text() {
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"a":{deep}}}}}"#);
    assert!(parse(text.as_bytes()).is_ok());
    assert_eq!(rejection(&deep).0, ErrorCode::InvalidRequest);
}
