//! Serializes a form as a JSON schema.

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::{Choice, Field, FieldKind, Format};

pub(super) fn schema(fields: &[Field]) -> Box<RawValue> {
    let properties = fields
        .iter()
        .map(|field| (field.name.to_string(), property(field)));
    let properties: Map<String, Value> = properties.collect();
    let required = fields.iter().filter(|field| field.required);
    let required: Vec<&str> = required.map(Field::name).collect();
    let mut schema = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    to_raw_value(&schema).expect("strings and numbers serialize")
}

fn property(field: &Field) -> Value {
    let mut schema = Map::new();
    let mut set = |key: &str, value: Value| {
        if !value.is_null() {
            schema.insert(key.to_owned(), value);
        }
    };
    let json_type = match &field.kind {
        FieldKind::String { .. } | FieldKind::One { .. } => "string",
        FieldKind::Number { integer: true, .. } => "integer",
        FieldKind::Number { .. } => "number",
        FieldKind::Boolean { .. } => "boolean",
        FieldKind::Many { .. } => "array",
    };
    set("type", json_type.into());
    if let FieldKind::One { choices, .. } = &field.kind {
        set(
            if is_titled(choices) { "oneOf" } else { "enum" },
            choices_to_json(choices),
        );
    }
    set("title", json!(field.title));
    set("description", json!(field.description));
    match &field.kind {
        FieldKind::String {
            format, min, max, ..
        } => {
            set("format", json!(format.map(Format::name)));
            set("minLength", json!(min));
            set("maxLength", json!(max));
        }
        FieldKind::Number { min, max, .. } => {
            set("minimum", json!(min.map(number)));
            set("maximum", json!(max.map(number)));
        }
        FieldKind::Boolean { .. } | FieldKind::One { .. } => {}
        FieldKind::Many {
            choices, min, max, ..
        } => {
            let items = if is_titled(choices) {
                json!({"anyOf": choices_to_json(choices)})
            } else {
                json!({"type": "string", "enum": choices_to_json(choices)})
            };
            set("items", items);
            set("minItems", json!(min));
            set("maxItems", json!(max));
        }
    }
    set("default", json!(field.default_json()));
    schema.into()
}

fn is_titled(choices: &[Choice]) -> bool {
    choices.iter().any(|choice| choice.title.is_some())
}

/// The choices as strings, or as objects if any has a title.
fn choices_to_json(choices: &[Choice]) -> Value {
    let is_titled = is_titled(choices);
    let choices = choices.iter().map(|choice| match is_titled {
        true => json!({"const": choice.value, "title": choice.label()}),
        false => json!(choice.value),
    });
    choices.collect()
}

/// Serializes a whole float as an integer.
fn number(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 9e15 {
        json!(number as i64)
    } else {
        json!(number)
    }
}
