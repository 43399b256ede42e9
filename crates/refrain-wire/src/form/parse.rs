//! Reads a form from a JSON schema.
//!
//! Invariants: the number of fields and choices is bounded; references are not followed.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{Choice, Field, FieldKind, Format};
use crate::canonical::{JsonError, UniqueKeys};
use crate::members::Reader;

/// The maximum number of fields.
const MAX_FIELDS: usize = 256;

/// The maximum number of choices of a field.
const MAX_CHOICES: usize = 1024;

/// A schema that is not a form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// The schema as a whole is invalid.
    #[error("the requested schema is not a form: {0}")]
    Schema(JsonError),
    /// A field is invalid.
    #[error("field {name:?}: {flaw}")]
    Field {
        /// The field's name.
        name: String,
        /// The error.
        #[source]
        flaw: JsonError,
    },
}

pub(super) fn read_fields(schema: &RawValue) -> Result<Vec<Field>, FormError> {
    let (properties, required) = read_schema(schema).map_err(FormError::Schema)?;
    let mut required: HashSet<String> = required.into_iter().collect();
    let fields = properties
        .0
        .into_iter()
        .map(|(name, schema)| match read_field(&name, &schema) {
            Ok(field) if required.remove(&name) => Ok(field),
            Ok(field) => Ok(field.optional()),
            Err(flaw) => Err(FormError::Field { name, flaw }),
        })
        .collect::<Result<Vec<Field>, FormError>>()?;
    match required.into_iter().min() {
        None => Ok(fields),
        Some(name) => Err(FormError::Field {
            name,
            flaw: JsonError::new("is required but not among the properties"),
        }),
    }
}

/// The properties in order, and the names of the required ones.
fn read_schema(schema: &RawValue) -> Result<(Properties, Vec<String>), JsonError> {
    let schema = Reader::new(serde_json::from_str(schema.get())?, "");
    for key in ["$ref", "$dynamicRef", "allOf", "anyOf", "oneOf"] {
        if schema.raw(key)?.is_some() {
            return Err(schema.error(key, "is not supported"));
        }
    }
    let kind: Option<String> = schema.value("type", "\"object\"")?;
    if kind.as_deref() != Some("object") {
        return Err(schema.error("type", "must be \"object\""));
    }
    let dialect: Option<String> = schema.value("$schema", "the URI of a dialect")?;
    if let Some(dialect) = dialect.filter(|uri| !is_official(uri)) {
        let message = format!("unsupported $schema {dialect:?}; use 2020-12");
        return Err(JsonError::new(message));
    }
    let properties: Option<Properties> = schema.nested("properties")?;
    let properties = properties.ok_or_else(|| JsonError::new("missing field `properties`"))?;
    let required: Option<Vec<String>> = schema.value("required", "a list of names")?;
    Ok((properties, required.unwrap_or_default()))
}

/// Whether a JSON Schema dialect is an official one. The keywords of forms are the same in all of them.
fn is_official(dialect: &str) -> bool {
    let rest = ["http://", "https://"]
        .iter()
        .find_map(|scheme| dialect.strip_prefix(scheme));
    rest.is_some_and(|rest| rest.starts_with("json-schema.org/"))
}

struct Properties(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Properties {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PropertiesVisitor)
    }
}

struct PropertiesVisitor;

impl<'de> Visitor<'de> for PropertiesVisitor {
    type Value = Properties;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("properties as an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Properties, A::Error> {
        let mut fields: Vec<(String, Value)> = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if fields.len() == MAX_FIELDS {
                return Err(Error::custom(format_args!("more than {MAX_FIELDS} fields")));
            }
            if fields.iter().any(|(other, _)| *other == name) {
                return Err(Error::custom(format_args!("duplicate field {name:?}")));
            }
            fields.push((name, map.next_value_seed(UniqueKeys)?));
        }
        Ok(Properties(fields))
    }
}

fn read_field(name: &str, schema: &Value) -> Result<Field, JsonError> {
    let schema = schema.as_object();
    let schema = schema.ok_or_else(|| JsonError::new("must be an object"))?;
    let inner = without_null(schema);
    let either = |key: &str| match read_text(schema, key)? {
        None => read_text(inner, key),
        found => Ok(found),
    };
    let mut field = Field::new(name.to_owned(), read_kind(inner)?);
    field.title = either("title")?.map(|title| title.to_owned().into());
    field.description = either("description")?.map(|text| text.to_owned().into());
    match schema.get("default").or_else(|| inner.get("default")) {
        Some(default) if field.check(default).is_ok() => Ok(field.default_value(default.clone())),
        _ => Ok(field),
    }
}

/// Unwraps `anyOf: [schema, null]`, which some servers write for an optional field.
fn without_null(schema: &Map<String, Value>) -> &Map<String, Value> {
    let is_null = |schema: &Value| schema.get("type").is_some_and(|kind| kind == "null");
    let Some(Value::Array(members)) = schema.get("anyOf") else {
        return schema;
    };
    match &members[..] {
        [Value::Object(inner), null] | [null, Value::Object(inner)] if is_null(null) => inner,
        _ => schema,
    }
}

fn read_kind(schema: &Map<String, Value>) -> Result<FieldKind, JsonError> {
    let reference = ["$ref", "$dynamicRef", "allOf"];
    if let Some(key) = reference.iter().find(|key| schema.contains_key(**key)) {
        let message = format!("{key} is not supported in a form");
        return Err(JsonError::new(message));
    }
    match type_name(schema)? {
        "string" => read_string(schema),
        name @ ("number" | "integer") => read_number(schema, name == "integer"),
        "boolean" => Ok(FieldKind::Boolean { default: None }),
        "array" => read_many(schema),
        other => Err(JsonError::new(format!(
            "type {other:?} is not supported in a form; use string, number, integer, boolean, or an array of choices"
        ))),
    }
}

fn type_name(schema: &Map<String, Value>) -> Result<&str, JsonError> {
    match schema.get("type") {
        Some(Value::Array(names)) => match &names[..] {
            [Value::String(name), Value::String(null)]
            | [Value::String(null), Value::String(name)]
                if null == "null" =>
            {
                Ok(name)
            }
            _ => Err(JsonError::new("must have one type")),
        },
        None if schema.contains_key("enum") || schema.contains_key("oneOf") => Ok("string"),
        _ => read_text(schema, "type")?.ok_or_else(|| JsonError::new("has no type")),
    }
}

fn read_string(schema: &Map<String, Value>) -> Result<FieldKind, JsonError> {
    let default = None;
    if let Some(choices) = read_choices(schema)? {
        return Ok(FieldKind::One { choices, default });
    }
    let (min, max) = read_limits(["minLength", "maxLength"], |key| read_count(schema, key))?;
    Ok(FieldKind::String {
        format: read_text(schema, "format")?.and_then(Format::from_name),
        min,
        max,
        default,
    })
}

fn read_number(schema: &Map<String, Value>, integer: bool) -> Result<FieldKind, JsonError> {
    if schema.contains_key("enum") || schema.contains_key("oneOf") {
        return Err(JsonError::new("choices must be strings"));
    }
    let read_limit = |key: &str| read_keyword(schema, key, "a number", Value::as_f64);
    let (min, max) = read_limits(["minimum", "maximum"], read_limit)?;
    Ok(FieldKind::Number {
        integer,
        min,
        max,
        default: None,
    })
}

fn read_many(schema: &Map<String, Value>) -> Result<FieldKind, JsonError> {
    let choices = match schema.get("items") {
        Some(Value::Object(items)) if !items.contains_key("$ref") => read_choices(items)?,
        _ => None,
    };
    let expected = "an array must list choices: items with enum or anyOf";
    let choices = choices.ok_or_else(|| JsonError::new(expected))?;
    let (min, max) = read_limits(["minItems", "maxItems"], |key| read_count(schema, key))?;
    Ok(FieldKind::Many {
        choices,
        min,
        max,
        default: None,
    })
}

/// The choices of a schema, if it has any.
fn read_choices(schema: &Map<String, Value>) -> Result<Option<Vec<Choice>>, JsonError> {
    let mut keys = ["enum", "oneOf", "anyOf"].into_iter();
    let Some(key) = keys.find(|key| schema.contains_key(*key)) else {
        return Ok(None);
    };
    let list = read_keyword(schema, key, "a list", Value::as_array)?;
    let list = list.map(Vec::as_slice).unwrap_or_default();
    if list.is_empty() {
        return Err(JsonError::new("the list of choices is empty"));
    }
    if list.len() > MAX_CHOICES {
        let message = format!("more than {MAX_CHOICES} choices");
        return Err(JsonError::new(message));
    }
    if key != "enum" {
        let choices: Result<_, _> = list.iter().map(read_titled_choice).collect();
        return choices.map(Some);
    }
    // Legacy revisions have the titles in a second list.
    let titles = schema.get("enumNames").and_then(Value::as_array);
    let titles = titles.filter(|titles| titles.len() == list.len());
    let choice = |(i, value): (usize, &Value)| {
        let value = value.as_str();
        let value = value.ok_or_else(|| JsonError::new("choices must be strings"))?;
        let title = titles.and_then(|titles| titles[i].as_str());
        Ok(Choice {
            value: value.to_owned().into(),
            title: title.map(|title| title.to_owned().into()),
        })
    };
    let choices: Result<_, _> = list.iter().enumerate().map(choice).collect();
    choices.map(Some)
}

fn read_titled_choice(schema: &Value) -> Result<Choice, JsonError> {
    let Some(Value::String(value)) = schema.get("const") else {
        let message = "a choice must be an object with a string in const";
        return Err(JsonError::new(message));
    };
    let choice = Choice::new(value.clone());
    match schema.get("title") {
        None => Ok(choice),
        Some(Value::String(title)) => Ok(choice.title(title.clone())),
        Some(_) => Err(JsonError::new("the title of a choice must be a string")),
    }
}

/// Reads a keyword, if present.
fn read_keyword<'a, T>(
    schema: &'a Map<String, Value>,
    key: &str,
    expected: &str,
    read: impl FnOnce(&'a Value) -> Option<T>,
) -> Result<Option<T>, JsonError> {
    let Some(value) = schema.get(key) else {
        return Ok(None);
    };
    let read = read(value).map(Some);
    read.ok_or_else(|| JsonError::new(format!("{key} must be {expected}")))
}

fn read_text<'a>(schema: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>, JsonError> {
    read_keyword(schema, key, "a string", Value::as_str)
}

fn read_count(schema: &Map<String, Value>, key: &str) -> Result<Option<u64>, JsonError> {
    read_keyword(schema, key, "a whole number, 0 or more", |value| {
        let whole = value.as_f64().filter(|n| n.fract() == 0.0 && *n >= 0.0);
        value.as_u64().or(whole.map(|n| n as u64))
    })
}

/// Reads a minimum and a maximum, and checks that the minimum is not above the maximum.
fn read_limits<T: PartialOrd + fmt::Display>(
    [min, max]: [&str; 2],
    read: impl Fn(&str) -> Result<Option<T>, JsonError>,
) -> Result<(Option<T>, Option<T>), JsonError> {
    match (read(min)?, read(max)?) {
        (Some(min), Some(max)) if min > max => Err(JsonError::new(format!(
            "the minimum {min} is greater than the maximum {max}"
        ))),
        limits => Ok(limits),
    }
}
