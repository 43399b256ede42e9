//! Converts text arguments to the numbers and booleans of the handler's argument struct.
//!
//! Prompt arguments and URI variables are strings on the wire. Text that does not convert is left unchanged, and
//! deserialization rejects it.

use serde_json::{Number, Value};

/// Maximum depth of references and alternatives that are followed to find a field's type.
const MAX_DEPTH: usize = 4;

/// The fields of an argument struct that are converted from text.
#[derive(Default)]
pub(crate) struct TextFields(Vec<(String, ScalarType)>);

#[derive(Clone, Copy)]
enum ScalarType {
    Integer,
    Number,
    Boolean,
}

impl TextFields {
    /// The numeric and boolean fields in the schema of an argument struct.
    pub(crate) fn new(schema: &Value) -> Self {
        let fields = schema["properties"].as_object().into_iter().flatten();
        let converted = fields.filter_map(|(name, field)| {
            let scalar = ScalarType::of(field, schema, MAX_DEPTH)?;
            Some((name.clone(), scalar))
        });
        Self(converted.collect())
    }

    pub(crate) fn convert(&self, arguments: &mut Value) {
        for (name, scalar) in &self.0 {
            match arguments.get_mut(name) {
                Some(Value::Array(items)) => items.iter_mut().for_each(|item| scalar.convert(item)),
                Some(value) => scalar.convert(value),
                None => {}
            }
        }
    }
}

impl ScalarType {
    /// The type of a field or of its items. `None` if it is not converted.
    fn of(field: &Value, schema: &Value, depth: usize) -> Option<Self> {
        let depth = depth.checked_sub(1)?;
        let type_of = |field: &Value| Self::of(field, schema, depth);
        if let Some(path) = field["$ref"].as_str() {
            return type_of(schema.pointer(path.strip_prefix('#')?)?);
        }
        if let Some(choices) = field["anyOf"].as_array() {
            return choices.iter().find_map(type_of);
        }
        let types = match &field["type"] {
            Value::Array(types) => types.as_slice(),
            single => std::slice::from_ref(single),
        };
        if types.iter().any(|name| name == "string") {
            return None;
        }
        types.iter().find_map(|name| match name.as_str()? {
            "integer" => Some(Self::Integer),
            "number" => Some(Self::Number),
            "boolean" => Some(Self::Boolean),
            "array" => type_of(&field["items"]),
            _ => None,
        })
    }

    fn convert(self, value: &mut Value) {
        let Some(text) = value.as_str() else { return };
        let converted = match self {
            Self::Integer => text
                .parse::<i64>()
                .map(Value::from)
                .or_else(|_| text.parse::<u64>().map(Value::from))
                .ok(),
            Self::Number => {
                let number = text.parse().ok().and_then(Number::from_f64);
                number.map(Value::Number)
            }
            Self::Boolean => text.parse().map(Value::Bool).ok(),
        };
        if let Some(converted) = converted {
            *value = converted;
        }
    }
}
