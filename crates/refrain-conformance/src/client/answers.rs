//! What the client answers when a server asks it something. Nobody is there to be asked, so it makes something up
//! that has the right form.

use serde_json::{Map, Value, json};

/// What is declared, which is what [`answer`] can answer.
pub(super) fn capabilities() -> Value {
    json!({"elicitation": {"form": {}}, "sampling": {}, "roots": {}})
}

/// Answers one input request, if its method is among those that are declared.
pub(super) fn answer(ask: &Value) -> Option<Value> {
    let params = &ask["params"];
    match ask["method"].as_str()? {
        "elicitation/create" if params["mode"] != "url" => {
            let content = sample(&params["requestedSchema"]);
            Some(json!({"action": "accept", "content": content}))
        }
        "sampling/createMessage" => Some(json!({
            "role": "assistant",
            "content": {"type": "text", "text": "There is no model here."},
            "model": "none",
        })),
        "roots/list" => Some(json!({"roots": []})),
        _ => None,
    }
}

/// An object with a value for each property of the schema whose type is plain to see. References are not followed.
pub(super) fn sample(schema: &Value) -> Map<String, Value> {
    let Some(properties) = schema["properties"].as_object() else {
        return Map::new();
    };
    properties
        .iter()
        .filter_map(|(name, schema)| Some((name.clone(), sample_value(schema)?)))
        .collect()
}

fn sample_value(schema: &Value) -> Option<Value> {
    let given = [&schema["default"], &schema["enum"][0], &schema["minimum"]];
    if let Some(given) = given.into_iter().find(|value| !value.is_null()) {
        return Some(given.clone());
    }
    match schema["type"].as_str()? {
        "string" => Some("something".into()),
        "integer" | "number" => Some(1.into()),
        "boolean" => Some(true.into()),
        "object" => Some(sample(schema).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_filled_in() {
        let ask = json!({
            "method": "elicitation/create",
            "params": {
                "message": "Well?",
                "requestedSchema": {
                    "type": "object",
                    "properties": {
                        "sure": {"type": "boolean"},
                        "colour": {"type": "string", "enum": ["red", "blue"]},
                        "size": {"type": "integer", "minimum": 3},
                        "name": {"type": "string", "default": "Ada"},
                    },
                },
            },
        });
        assert_eq!(
            answer(&ask),
            Some(json!({
                "action": "accept",
                "content": {"sure": true, "colour": "red", "size": 3, "name": "Ada"},
            }))
        );
    }

    #[test]
    fn what_was_not_declared_is_not_answered() {
        assert_eq!(answer(&json!({"method": "tools/call"})), None);
        let url = json!({"method": "elicitation/create", "params": {"mode": "url"}});
        assert_eq!(answer(&url), None);
        assert_eq!(answer(&json!("elicitation/create")), None);
    }

    #[test]
    fn references_are_left_out() {
        let schema =
            json!({"properties": {"id": {"$ref": "#/$defs/id"}, "all": {"type": "boolean"}}});
        assert_eq!(Value::from(sample(&schema)), json!({"all": true}));
    }
}
