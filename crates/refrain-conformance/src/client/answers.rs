//! Generated answers to the asks of a server.

use refrain_client::wire::{Content, Form, Role, SamplingAnswer};
use serde_json::{Map, Value};

/// The content of a form, with a value for each field that is not a list.
pub(super) fn fill_in(form: &Form) -> Map<String, Value> {
    let schema = serde_json::from_str(form.json().get()).unwrap_or_default();
    example_object(&schema)
}

/// The answer of a client without a model.
pub(super) fn no_model() -> SamplingAnswer {
    SamplingAnswer {
        role: Role::Assistant,
        content: vec![Content::text("This client has no model.").into()],
        model: "none".to_owned(),
        stop_reason: None,
    }
}

/// An object with a value for each property that has a type or a default. Does not follow references.
pub(super) fn example_object(schema: &Value) -> Map<String, Value> {
    let Some(properties) = schema["properties"].as_object() else {
        return Map::new();
    };
    properties
        .iter()
        .filter_map(|(name, schema)| Some((name.clone(), example_value(schema)?)))
        .collect()
}

fn example_value(schema: &Value) -> Option<Value> {
    let candidates = [&schema["default"], &schema["enum"][0], &schema["minimum"]];
    if let Some(value) = candidates.into_iter().find(|value| !value.is_null()) {
        return Some(value.clone());
    }
    match schema["type"].as_str()? {
        "string" => Some("something".into()),
        "integer" | "number" => Some(1.into()),
        "boolean" => Some(true.into()),
        "object" => Some(example_object(schema).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_fields_with_a_type_get_a_value() {
        let schema = json!({
            "type": "object",
            "properties": {
                "sure": {"type": "boolean"},
                "colour": {"type": "string", "enum": ["red", "blue"]},
                "size": {"type": "integer", "minimum": 3},
                "name": {"type": "string", "default": "Ada"},
                "other": {"$ref": "https://example.com/schema.json"},
            },
        });
        let filled = json!({"sure": true, "colour": "red", "size": 3, "name": "Ada"});
        assert_eq!(Value::Object(example_object(&schema)), filled);
    }
}
