use super::*;
use serde_json::json;

fn read(properties: &Value) -> Result<Mirrors, InvalidAnnotation> {
    Mirrors::read(&json!({"type": "object", "properties": properties}))
}

fn headers(properties: &Value, arguments: &Value) -> Result<HeaderMap, InvalidArgument> {
    let arguments = arguments.as_object().unwrap();
    read(properties).unwrap().headers(arguments)
}

#[test]
fn plain_text_is_sent_as_it_is() {
    for text in ["", "us-west1", "us west 1", "=?base64?", "a ~ b"] {
        assert_eq!(encode(text).unwrap(), text);
    }
}

#[test]
fn other_text_is_sent_in_base64() {
    for (text, sent) in [
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("a\tb", "=?base64?YQli?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
    ] {
        assert_eq!(encode(text).unwrap(), sent);
    }
}

#[test]
fn annotated_arguments_become_headers() {
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
    let headers = headers(&properties, &arguments).unwrap();
    assert_eq!(headers.len(), 4);
    assert_eq!(headers["mcp-param-region"], "eu");
    assert_eq!(headers["mcp-param-limit"], "-7");
    assert_eq!(headers["mcp-param-dry"], "false");
    assert_eq!(headers["mcp-param-deep"], "d");
}

#[test]
fn arguments_that_fit_no_header_are_refused() {
    let properties = json!({"n": {"type": "integer", "x-mcp-header": "N"}});
    assert!(headers(&properties, &json!({"n": 9_007_199_254_740_991_i64})).is_ok());
    for n in [json!(9_007_199_254_740_992_i64), json!(1.5), json!([1])] {
        assert!(headers(&properties, &json!({"n": n})).is_err(), "{n}");
    }
}

#[test]
fn names_that_are_no_header_names_are_refused() {
    for name in [
        json!(""),
        json!("My Region"),
        json!("Region:Primary"),
        json!("Région"),
        json!("Region\t1"),
        json!(7),
    ] {
        let properties = json!({"p": {"type": "string", "x-mcp-header": name}});
        assert_eq!(
            read(&properties).unwrap_err(),
            InvalidAnnotation::Name("p".to_owned())
        );
    }
}

#[test]
fn types_that_fit_no_header_are_refused() {
    for kind in ["object", "array", "null", "number"] {
        let properties = json!({"p": {"type": kind, "x-mcp-header": "P"}});
        assert_eq!(
            read(&properties).unwrap_err(),
            InvalidAnnotation::Type("p".to_owned())
        );
    }
    let untyped = json!({"p": {"x-mcp-header": "P"}});
    assert_eq!(
        read(&untyped).unwrap_err(),
        InvalidAnnotation::Type("p".to_owned())
    );
}

#[test]
fn a_header_belongs_to_one_parameter() {
    let properties = json!({
        "a": {"type": "string", "x-mcp-header": "MyField"},
        "b": {"type": "string", "x-mcp-header": "myfield"},
    });
    assert_eq!(
        read(&properties).unwrap_err(),
        InvalidAnnotation::Twice("b".to_owned())
    );
}

#[test]
fn annotations_that_lead_nowhere_are_refused() {
    let annotated = json!({"type": "string", "x-mcp-header": "X"});
    for schema in [
        json!({"type": "array", "items": annotated}),
        json!({"anyOf": [annotated]}),
        json!({"if": {"properties": {"x": annotated}}}),
    ] {
        assert_eq!(
            read(&json!({"p": schema})).unwrap_err(),
            InvalidAnnotation::Unreachable("p".to_owned())
        );
    }
    let defined = json!({"$defs": {"x": annotated}, "properties": {"p": {"$ref": "#/$defs/x"}}});
    assert!(Mirrors::read(&defined).is_err());
}

#[test]
fn a_property_may_have_the_annotations_name() {
    let properties = json!({"p": {"items": {"properties": {"x-mcp-header": {"type": "string"}}}}});
    assert!(read(&properties).is_ok());
}
