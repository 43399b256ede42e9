//! Forms: parsing schemas, and validating content.

use refrain_wire::{Field, FieldError, FieldKind, Form, FormError, Format};
use serde_json::{Map, Value, json};

use crate::support::{raw, to_raw};

fn parse(schema: &Value) -> Result<Form, FormError> {
    Form::parse(&to_raw(schema))
}

/// The field of a form with this schema.
fn field(schema: &Value) -> Field {
    let form = parse(&json!({"type": "object", "properties": {"x": schema}})).unwrap();
    form.fields()[0].clone()
}

fn rejection_text(schema: &Value) -> String {
    let error = parse(&json!({"type": "object", "properties": {"x": schema}})).unwrap_err();
    let text = error.to_string();
    text.strip_prefix("field \"x\": ").unwrap().to_owned()
}

fn choices(field: &Field) -> Vec<(&str, &str)> {
    let (FieldKind::One { choices, .. } | FieldKind::Many { choices, .. }) = field.kind() else {
        panic!("{field:?} has no choices");
    };
    choices
        .iter()
        .map(|choice| (choice.value(), choice.label()))
        .collect()
}

#[test]
fn parsed_form_keeps_field_order_and_schema_text() {
    let text = r#"{"$schema":"https://json-schema.org/draft/2020-12/schema", "type":"object","title":"T","additionalProperties":false,"required":["b"],
        "properties":{"z":{"type":"string"},"b":{"type":"boolean","title":"Really?","description":"d"},"a":{"type":"number"}}}"#;
    let form = Form::parse(&raw(text)).unwrap();
    let fields: Vec<(&str, &str, bool)> = form
        .fields()
        .iter()
        .map(|field| (field.name(), field.label(), field.is_required()))
        .collect();
    assert_eq!(
        fields,
        [("z", "z", false), ("b", "Really?", true), ("a", "a", false)]
    );
    assert_eq!(form.fields()[1].description(), Some("d"));
    assert_eq!(form.json().get(), text);
}

#[test]
fn all_field_kinds_are_parsed() {
    assert_eq!(
        field(&json!({"type": "string", "format": "date", "minLength": 1, "maxLength": 20.0}))
            .kind(),
        &FieldKind::String {
            format: Some(Format::Date),
            min: Some(1),
            max: Some(20),
            default: None,
        }
    );
    assert_eq!(
        field(&json!({"type": "integer", "minimum": -1, "maximum": 2.5, "default": 2.0})).kind(),
        &FieldKind::Number {
            integer: true,
            min: Some(-1.0),
            max: Some(2.5),
            default: Some(2.into()),
        }
    );
    assert_eq!(
        field(&json!({"type": "boolean", "default": false})).kind(),
        &FieldKind::Boolean {
            default: Some(false)
        }
    );

    let plain = field(&json!({"type": "string", "enum": ["r", "g"], "default": "g"}));
    assert_eq!(choices(&plain), [("r", "r"), ("g", "g")]);
    assert_eq!(plain.default_json(), Some(json!("g")));
    let legacy =
        field(&json!({"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]}));
    assert_eq!(choices(&legacy), [("r", "Red"), ("g", "Green")]);
    let short = field(&json!({"type": "string", "enum": ["r", "g"], "enumNames": ["Green"]}));
    assert_eq!(choices(&short), [("r", "r"), ("g", "g")]);
    let titled = field(
        &json!({"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g"}]}),
    );
    assert_eq!(choices(&titled), [("r", "Red"), ("g", "g")]);

    let many = field(
        &json!({"type": "array", "items": {"type": "string", "enum": ["r", "g"]},
        "minItems": 1, "maxItems": 2, "default": ["g"]}),
    );
    assert_eq!(choices(&many), [("r", "r"), ("g", "g")]);
    assert_eq!(many.default_json(), Some(json!(["g"])));
    assert_eq!(
        many.check(&json!([])).unwrap_err().to_string(),
        "needs at least 1 choice"
    );
    let titled =
        field(&json!({"type": "array", "items": {"anyOf": [{"const": "r", "title": "Red"}]}}));
    assert_eq!(choices(&titled), [("r", "Red")]);
    assert_eq!(
        titled.check(&json!(["b"])).unwrap_err(),
        FieldError::NotAChoice(vec!["r".to_owned()])
    );
}

#[test]
fn nullable_field_counts_as_optional() {
    for schema in [
        json!({"title": "Age", "anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": null}),
        json!({"title": "Age", "anyOf": [{"type": "null"}, {"type": "integer", "minimum": 1}]}),
        json!({"title": "Age", "type": ["integer", "null"], "minimum": 1}),
    ] {
        let field = field(&schema);
        assert_eq!(field.label(), "Age");
        assert_eq!(field.default_json(), None);
        assert_eq!(field.check(&json!(0)), Err(FieldError::TooSmall(1.0)));
        assert_eq!(field.check(&json!(null)), Ok(()));
    }
}

#[test]
fn unknown_formats_and_patterns_are_ignored() {
    let field = field(&json!({"type": "string", "format": "uuid", "pattern": "^[a-f]+$"}));
    assert!(matches!(
        field.kind(),
        FieldKind::String { format: None, .. }
    ));
}

#[test]
fn mismatched_default_is_ignored() {
    for schema in [
        json!({"type": "string", "minLength": 1, "default": ""}),
        json!({"type": "string", "default": 3}),
        json!({"type": "integer", "default": 1.5}),
        json!({"type": "boolean", "default": "yes"}),
        json!({"type": "string", "enum": ["a"], "default": "b"}),
        json!({"type": "array", "items": {"enum": ["a"]}, "default": ["a", 3]}),
    ] {
        assert_eq!(field(&schema).default_json(), None, "{schema}");
    }
}

#[test]
fn missing_fields_get_defaults() {
    let form = parse(&json!({"type": "object", "properties": {
        "name": {"type": "string", "default": "John"},
        "id": {"type": "integer", "default": 9_007_199_254_740_993_u64},
        "score": {"type": "number", "default": 95.5},
        "verified": {"type": "boolean", "default": true},
        "status": {"type": "string", "enum": ["on", "off"], "default": "on"},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "default": ["b"]},
        "note": {"type": "string"},
        "greeting": {"type": "string", "default": "Dear"},
    }}))
    .unwrap();
    let mut content = Map::new();
    content.insert("name".into(), json!("Ann"));
    content.insert("verified".into(), json!(false));
    content.insert("greeting".into(), json!(null));
    form.fill_defaults(&mut content);
    let content = Value::from(content);
    assert_eq!(
        content,
        json!({"name": "Ann", "id": 9_007_199_254_740_993_u64, "score": 95.5, "verified": false,
            "status": "on", "tags": ["b"]})
    );
    assert_eq!(form.check(&content), Ok(()));
}

#[test]
fn unknown_schema_dialect_is_rejected() {
    let of = |dialect: Value| json!({"$schema": dialect, "type": "object", "properties": {}});
    for dialect in [
        "https://json-schema.org/draft/2020-12/schema",
        "http://json-schema.org/draft-07/schema#",
    ] {
        assert!(parse(&of(json!(dialect))).is_ok(), "{dialect}");
    }
    for dialect in [
        json!("https://example.com/own"),
        json!("json-schema.org/x"),
        json!(7),
    ] {
        let why = parse(&of(dialect.clone())).unwrap_err().to_string();
        let named = dialect.as_str().unwrap_or("$schema").to_owned();
        assert!(why.contains(&named), "{named}: {why}");
    }
}

#[test]
fn non_form_schema_is_rejected() {
    for (schema, why) in [
        ("[]", "invalid type: sequence, expected an object"),
        ("{}", "type must be \"object\""),
        (r#"{"type":"array"}"#, "type must be \"object\""),
        (r#"{"type":["object"]}"#, "type must be \"object\""),
        (r#"{"type":"object"}"#, "missing field `properties`"),
        (
            r#"{"type":"object","properties":[]}"#,
            "invalid type: sequence, expected properties as an object",
        ),
        (
            r#"{"type":"object","properties":{},"required":"x"}"#,
            "required must be a list of names",
        ),
        (
            r#"{"type":"object","properties":{"a":{},"a":{}}}"#,
            r#"duplicate field "a""#,
        ),
        (
            r#"{"type":"object","properties":{"a":{"type":"string","type":"string"}}}"#,
            r#"duplicate key "type""#,
        ),
        (
            r#"{"type":"object","properties":{},"$ref":"https://example.com/form"}"#,
            "$ref is not supported",
        ),
        (
            r#"{"type":"object","properties":{},"allOf":[]}"#,
            "allOf is not supported",
        ),
    ] {
        let error = Form::parse(&raw(schema)).unwrap_err();
        assert!(matches!(error, FormError::Schema(_)), "{schema}");
        assert_eq!(
            error.to_string(),
            format!("the requested schema is not a form: {why}")
        );
    }
    let error = Form::parse(&raw(
        r#"{"type":"object","properties":{},"required":["b","a"]}"#,
    ));
    assert_eq!(
        error.unwrap_err().to_string(),
        r#"field "a": is required but not among the properties"#
    );
}

#[test]
fn unsupported_field_error_names_the_field() {
    let unsupported =
        "is not supported in a form; use string, number, integer, boolean, or an array of choices";
    for (schema, why) in [
        (json!(true), "must be an object".to_owned()),
        (json!({}), "has no type".into()),
        (json!({"type": 3}), "type must be a string".into()),
        (
            json!({"type": ["string", "number"]}),
            "must have one type".into(),
        ),
        (
            json!({"type": "object", "properties": {}}),
            format!("type \"object\" {unsupported}"),
        ),
        (
            json!({"$ref": "https://example.com/x"}),
            "$ref is not supported in a form".into(),
        ),
        (
            json!({"type": "string", "allOf": []}),
            "allOf is not supported in a form".into(),
        ),
        (
            json!({"type": "string", "enum": []}),
            "the list of choices is empty".into(),
        ),
        (
            json!({"type": "string", "enum": ["a", 1]}),
            "choices must be strings".into(),
        ),
        (
            json!({"type": "integer", "enum": [1, 2]}),
            "choices must be strings".into(),
        ),
        (
            json!({"type": "string", "enum": "a"}),
            "enum must be a list".into(),
        ),
        (
            json!({"type": "string", "oneOf": [{"title": "A"}]}),
            "a choice must be an object with a string in const".into(),
        ),
        (
            json!({"type": "string", "oneOf": [{"const": "a", "title": 1}]}),
            "the title of a choice must be a string".into(),
        ),
        (
            json!({"type": "array", "items": {"type": "string"}}),
            "an array must list choices: items with enum or anyOf".into(),
        ),
        (
            json!({"type": "array", "items": {"$ref": "#/x", "enum": ["a"]}}),
            "an array must list choices: items with enum or anyOf".into(),
        ),
        (
            json!({"type": "string", "title": 1}),
            "title must be a string".into(),
        ),
        (
            json!({"type": "string", "minLength": -1}),
            "minLength must be a whole number, 0 or more".into(),
        ),
        (
            json!({"type": "number", "minimum": "1"}),
            "minimum must be a number".into(),
        ),
        (
            json!({"type": "number", "minimum": 2, "maximum": 1.5}),
            "the minimum 2 is greater than the maximum 1.5".into(),
        ),
        (
            json!({"type": "string", "minLength": 2, "maxLength": 1}),
            "the minimum 2 is greater than the maximum 1".into(),
        ),
    ] {
        assert_eq!(rejection_text(&schema), why, "{schema}");
    }
}

#[test]
fn form_size_is_bounded() {
    let fields = |n: usize| -> Map<String, Value> {
        (0..n)
            .map(|i| (format!("f{i}"), json!({"type": "string"})))
            .collect()
    };
    let form = |n: usize| parse(&json!({"type": "object", "properties": fields(n)}));
    assert_eq!(form(256).unwrap().fields().len(), 256);
    assert!(form(257).unwrap_err().to_string().contains("256 fields"));

    let choices = |n: usize| (0..n).map(|i| i.to_string()).collect::<Vec<_>>();
    let one = |n: usize| json!({"type": "string", "enum": choices(n)});
    assert_eq!(self::choices(&field(&one(1024))).len(), 1024);
    assert_eq!(rejection_text(&one(1025)), "more than 1024 choices");

    let deep = format!(
        r#"{{"type":"object","properties":{{"x":{}{}}}}}"#,
        r#"{"a":"#.repeat(200_000),
        "}".repeat(200_000).replacen('}', "1}", 1)
    );
    let error = Form::parse(&raw(&deep)).unwrap_err();
    assert!(error.to_string().contains("recursion limit"), "{error}");
}

#[test]
fn form_survives_the_round_trip() {
    let written = Form::new([
        Field::email("to").title("To").describe("Who gets it"),
        Field::integer("copies").min(1.0).max(9.0).default_value(1),
        Field::one_of("colour", ["red", "green"]).optional(),
        Field::any_of("extras", ["stamp", "wax"]).min(1.0),
        Field::boolean("sure").default_value(true),
    ]);
    let read = Form::parse(written.json()).unwrap();
    assert_eq!(
        Form::new(read.fields().to_vec()).json().get(),
        written.json().get()
    );
    assert_eq!(read.fingerprint(), written.fingerprint());
}

#[test]
fn single_field_is_validated() {
    let name = Field::string("name").min(2.0);
    assert_eq!(name.check(&json!("Jo")), Ok(()));
    assert_eq!(
        name.check(&json!("J")).unwrap_err().to_string(),
        "needs at least 2 characters"
    );
    assert_eq!(name.check(&Value::Null), Err(FieldError::Required));
    assert_eq!(name.optional().check(&Value::Null), Ok(()));
}

#[test]
fn all_invalid_fields_are_named() {
    let fields = |count: usize| (0..count).map(|n| Field::integer(format!("f{n}")));
    let error = |count: usize, content: Value| {
        let error = Form::new(fields(count)).check(&content);
        error.unwrap_err().to_string()
    };
    assert_eq!(
        error(2, json!({"f0": "x", "f1": 1})),
        "f0 must be a whole number"
    );
    assert_eq!(
        error(3, json!({"f0": "x", "f2": 1.5})),
        "f0 must be a whole number; f1 is required; f2 must be a whole number"
    );
    let many = error(12, json!({}));
    assert!(many.ends_with("; f9 is required; and 2 more"), "{many}");
}
