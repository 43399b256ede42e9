//! Parameter headers as the client writes them; the server's checks are tested in refrain-server.

use refrain_wire::{
    InvalidHeaderArgument, ParamHeaderError, ParamHeaders, decode_header, encode_header,
};
use serde_json::{Value, json};

fn read(properties: &Value) -> Result<ParamHeaders, ParamHeaderError> {
    ParamHeaders::read(&json!({"type": "object", "properties": properties}))
}

fn write(
    properties: &Value,
    arguments: &Value,
) -> Result<Vec<(String, String)>, InvalidHeaderArgument> {
    let arguments = arguments.as_object().expect("an object");
    let headers = read(properties).expect("valid header names");
    let written = headers.write(arguments)?.into_iter();
    Ok(written
        .map(|(name, value)| (name.to_owned(), value))
        .collect())
}

#[test]
fn plain_text_is_not_encoded() {
    for text in ["", "us-west1", "us west 1", "=?base64?", "a ~ b"] {
        assert_eq!(encode_header(text), text);
    }
}

#[test]
fn other_text_is_encoded_in_base64() {
    for (text, sent) in [
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("a\tb", "=?base64?YQli?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
    ] {
        assert_eq!(encode_header(text), sent);
        assert_eq!(decode_header(sent).as_deref(), Some(text));
    }
}

#[test]
fn arguments_with_the_keyword_become_headers() {
    let properties = json!({
        "region": {"type": "string", "x-mcp-header": "Region"},
        "limit": {"type": "integer", "x-mcp-header": "Limit"},
        "dry": {"type": "boolean", "x-mcp-header": "Dry"},
        "gone": {"type": "string", "x-mcp-header": "Gone"},
        "null": {"type": "string", "x-mcp-header": "Null"},
        "plain": {"type": "string"},
        "inner": {"type": "object", "properties": {"deep": {"type": "string", "x-mcp-header": "Deep"}}},
    });
    let arguments = json!({
        "region": "eu", "limit": -7, "dry": false, "null": null, "plain": "x", "inner": {"deep": "d"},
    });
    let mut written = write(&properties, &arguments).expect("headers");
    written.sort();
    let expected = [
        ("deep", "d"),
        ("dry", "false"),
        ("limit", "-7"),
        ("region", "eu"),
    ];
    let expected = expected.map(|(name, value)| (format!("mcp-param-{name}"), value.to_owned()));
    assert_eq!(written, expected);
}

#[test]
fn unsupported_arguments_are_rejected() {
    let properties = json!({"n": {"type": "integer", "x-mcp-header": "N"}});
    assert!(write(&properties, &json!({"n": 9_007_199_254_740_991_i64})).is_ok());
    for n in [json!(9_007_199_254_740_992_i64), json!(1.5), json!([1])] {
        let error = write(&properties, &json!({"n": n})).expect_err("no header");
        assert_eq!(error, InvalidHeaderArgument("n".to_owned()), "{n}");
    }
}

#[test]
fn invalid_header_names_are_rejected() {
    for name in [
        json!(""),
        json!("My Region"),
        json!("Region:Primary"),
        json!("Région"),
        json!("Region\t1"),
        json!(7),
    ] {
        let properties = json!({"p": {"type": "string", "x-mcp-header": name}});
        let (path, name) = ("p".to_owned(), name.to_string());
        assert_eq!(
            read(&properties),
            Err(ParamHeaderError::Name { path, name })
        );
    }
}

#[test]
fn unsupported_types_are_rejected() {
    let wrong = ParamHeaderError::Type("p".to_owned());
    for kind in ["object", "array", "null", "number"] {
        let properties = json!({"p": {"type": kind, "x-mcp-header": "P"}});
        assert_eq!(read(&properties), Err(wrong.clone()));
    }
    assert_eq!(read(&json!({"p": {"x-mcp-header": "P"}})), Err(wrong));
}

#[test]
fn duplicate_header_name_is_rejected() {
    let properties = json!({
        "a": {"type": "string", "x-mcp-header": "MyField"},
        "b": {"type": "string", "x-mcp-header": "myfield"},
    });
    let twice = ParamHeaderError::Twice {
        path: "b".to_owned(),
        name: "mcp-param-myfield".to_owned(),
    };
    assert_eq!(read(&properties), Err(twice));
}

#[test]
fn keyword_outside_properties_is_rejected() {
    let marked = json!({"type": "string", "x-mcp-header": "X"});
    for (schema, at) in [
        (json!({"type": "array", "items": marked}), "p.items"),
        (json!({"anyOf": [marked]}), "p.anyOf[0]"),
        (
            json!({"if": {"properties": {"x": marked}}}),
            "p.if.properties.x",
        ),
    ] {
        let wrong = ParamHeaderError::Unreachable(at.to_owned());
        assert_eq!(read(&json!({"p": schema})), Err(wrong));
    }
    let defined = json!({"$defs": {"x": marked}, "properties": {"p": {"$ref": "#/$defs/x"}}});
    assert!(ParamHeaders::read(&defined).is_err());
    assert_eq!(ParamHeaders::read(&marked), Err(ParamHeaderError::Root));
}

#[test]
fn property_may_have_the_name_of_the_keyword() {
    let properties = json!({"p": {"items": {"properties": {"x-mcp-header": {"type": "string"}}}}});
    assert!(read(&properties).is_ok());
    let data = json!({"p": {"type": "object", "default": {"x-mcp-header": "data"}}});
    assert!(read(&data).is_ok());
}
