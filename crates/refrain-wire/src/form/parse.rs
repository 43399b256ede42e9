//! A form read from a schema that somebody else wrote.
//!
//! What always holds: a form that was read can be shown and its answer checked, its size is bounded, and nothing that a
//! schema refers to was followed.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{Choice, Field, FieldKind, Format};
use crate::decode::{once, once_nested};
use crate::strict::{JsonError, Strict};

/// The greatest number of fields of a form that is read.
const MAX_FIELDS: usize = 256;

/// The greatest number of choices of one field that is read.
const MAX_CHOICES: usize = 1024;

/// Why a schema is not a form that can be filled in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// The schema as a whole.
    #[error("the requested schema is not a form: {0}")]
    Schema(JsonError),
    /// One field of it.
    #[error("the field {name:?}: {flaw}")]
    Field {
        /// The field's name.
        name: String,
        /// What is wrong with it.
        #[source]
        flaw: FieldFlaw,
    },
}

/// Why the schema of a field cannot be shown in a form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldFlaw {
    /// It is required, and is not a property.
    #[error("is required, and is not among the properties")]
    Undefined,
    /// A keyword that forms do not have.
    #[error("{0} is not part of a form, and is not followed")]
    Keyword(&'static str),
    /// A type that forms do not have.
    #[error(
        "a value of type {0:?} is not part of a form; it can be a string, number, integer, boolean, or an array of choices"
    )]
    Type(String),
    /// No type, or several.
    #[error("{0}")]
    Untyped(&'static str),
    /// A keyword whose value has another type.
    #[error("{key} must be {expected}")]
    Value {
        /// The keyword.
        key: &'static str,
        /// What its value must be.
        expected: &'static str,
    },
    /// The choices are not a list of strings, with or without titles.
    #[error("{0}")]
    Choices(&'static str),
    /// More choices than are read.
    #[error("has more than {MAX_CHOICES} choices")]
    TooManyChoices,
    /// The minimum is above the maximum.
    #[error("nothing fits: it needs {0}")]
    Empty(String),
}

impl FieldFlaw {
    const fn value(key: &'static str, expected: &'static str) -> Self {
        Self::Value { key, expected }
    }
}

pub(super) fn fields(schema: &RawValue) -> Result<Vec<Field>, FormError> {
    let Schema {
        properties,
        required,
    } = serde_json::from_str(schema.get()).map_err(|error| FormError::Schema(error.into()))?;
    let mut required: HashSet<String> = required.into_iter().collect();
    let fields = properties
        .into_iter()
        .map(|(name, schema)| match field(&name, &schema) {
            Ok(field) if required.remove(&name) => Ok(field),
            Ok(field) => Ok(field.optional()),
            Err(flaw) => Err(FormError::Field { name, flaw }),
        })
        .collect::<Result<Vec<Field>, FormError>>()?;
    match required.into_iter().min() {
        None => Ok(fields),
        Some(name) => Err(FormError::Field {
            name,
            flaw: FieldFlaw::Undefined,
        }),
    }
}

/// The schema of a form, its fields still as they were written and in that order.
struct Schema {
    properties: Vec<(String, Value)>,
    required: Vec<String>,
}

impl<'de> Deserialize<'de> for Schema {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(SchemaVisitor)
    }
}

struct SchemaVisitor;

impl<'de> Visitor<'de> for SchemaVisitor {
    type Value = Schema;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Schema, A::Error> {
        let mut kind = None::<String>;
        let mut properties = None::<Properties>;
        let mut required = None::<Vec<String>>;
        let mut dialect = None::<String>;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "type" => once(&mut map, &mut kind, "type", "\"object\"")?,
                "properties" => once_nested(&mut map, &mut properties, "properties")?,
                "required" => once(&mut map, &mut required, "required", "a list of names")?,
                "$schema" => once(&mut map, &mut dialect, "$schema", "the URI of a dialect")?,
                "$ref" | "$dynamicRef" | "allOf" | "anyOf" | "oneOf" => {
                    return Err(Error::custom(format_args!("{key} has no place in it")));
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if kind.as_deref() != Some("object") {
            return Err(Error::custom("type must be \"object\""));
        }
        if let Some(dialect) = dialect.filter(|uri| !is_known(uri)) {
            return Err(Error::custom(format_args!(
                "its dialect {dialect:?} is not supported; 2020-12 is"
            )));
        }
        let properties = properties.ok_or_else(|| Error::missing_field("properties"))?;
        Ok(Schema {
            properties: properties.0,
            required: required.unwrap_or_default(),
        })
    }
}

/// Whether a schema of this dialect can be read: what a form may have is the same in all that were ever published.
fn is_known(dialect: &str) -> bool {
    let place = ["http://", "https://"]
        .iter()
        .find_map(|scheme| dialect.strip_prefix(scheme));
    place.is_some_and(|place| place.starts_with("json-schema.org/"))
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
        f.write_str("properties to be an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Properties, A::Error> {
        let mut fields: Vec<(String, Value)> = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if fields.len() == MAX_FIELDS {
                return Err(Error::custom(format_args!(
                    "it has more than {MAX_FIELDS} fields"
                )));
            }
            if fields.iter().any(|(other, _)| *other == name) {
                return Err(Error::custom(format_args!(
                    "the field {name:?} is given twice"
                )));
            }
            fields.push((name, map.next_value_seed(Strict)?));
        }
        Ok(Properties(fields))
    }
}

fn field(name: &str, schema: &Value) -> Result<Field, FieldFlaw> {
    let schema = schema
        .as_object()
        .ok_or(FieldFlaw::Untyped("must be an object"))?;
    let inner = without_null(schema);
    let either = |key: &'static str| match text(schema, key)? {
        None => text(inner, key),
        found => Ok::<_, FieldFlaw>(found),
    };
    let mut field = Field::new(name.to_owned(), kind(inner)?);
    field.title = either("title")?.map(|title| title.to_owned().into());
    field.description = either("description")?.map(|text| text.to_owned().into());
    match schema.get("default").or_else(|| inner.get("default")) {
        Some(default) if field.check(default).is_ok() => Ok(field.default_value(default.clone())),
        _ => Ok(field),
    }
}

/// The schema beside `null` in an `anyOf` of the two, which is how some servers write an optional field.
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

fn kind(schema: &Map<String, Value>) -> Result<FieldKind, FieldFlaw> {
    for key in ["$ref", "$dynamicRef", "allOf"] {
        if schema.contains_key(key) {
            return Err(FieldFlaw::Keyword(key));
        }
    }
    match type_name(schema)? {
        "string" => string(schema),
        name @ ("number" | "integer") => number(schema, name == "integer"),
        "boolean" => Ok(FieldKind::Boolean { default: None }),
        "array" => many(schema),
        other => Err(FieldFlaw::Type(other.to_owned())),
    }
}

fn type_name(schema: &Map<String, Value>) -> Result<&str, FieldFlaw> {
    match schema.get("type") {
        Some(Value::String(name)) => Ok(name),
        Some(Value::Array(names)) => match &names[..] {
            [Value::String(name), Value::String(null)]
            | [Value::String(null), Value::String(name)]
                if null == "null" =>
            {
                Ok(name)
            }
            _ => Err(FieldFlaw::Untyped("must have one type")),
        },
        Some(_) => Err(FieldFlaw::value("type", "a string")),
        None if schema.contains_key("enum") || schema.contains_key("oneOf") => Ok("string"),
        None => Err(FieldFlaw::Untyped("has no type")),
    }
}

fn string(schema: &Map<String, Value>) -> Result<FieldKind, FieldFlaw> {
    if let Some(choices) = choices(schema)? {
        return Ok(FieldKind::One {
            choices,
            default: None,
        });
    }
    let (min, max) = (count(schema, "minLength")?, count(schema, "maxLength")?);
    in_order(min, max, "characters")?;
    Ok(FieldKind::String {
        format: text(schema, "format")?.and_then(Format::of),
        min,
        max,
        default: None,
    })
}

fn number(schema: &Map<String, Value>, integer: bool) -> Result<FieldKind, FieldFlaw> {
    if schema.contains_key("enum") || schema.contains_key("oneOf") {
        return Err(FieldFlaw::Choices("choices must be strings"));
    }
    let limit = |key: &'static str| match schema.get(key) {
        None => Ok(None),
        Some(limit) => match limit.as_f64() {
            Some(limit) => Ok(Some(limit)),
            None => Err(FieldFlaw::value(key, "a number")),
        },
    };
    let (min, max) = (limit("minimum")?, limit("maximum")?);
    in_order(min, max, "")?;
    Ok(FieldKind::Number {
        integer,
        min,
        max,
        default: None,
    })
}

fn many(schema: &Map<String, Value>) -> Result<FieldKind, FieldFlaw> {
    let choices = match schema.get("items") {
        Some(Value::Object(items)) if !items.contains_key("$ref") => choices(items)?,
        _ => None,
    };
    let choices = choices.ok_or(FieldFlaw::Choices(
        "an array must be one of choices: items with enum or anyOf",
    ))?;
    let (min, max) = (count(schema, "minItems")?, count(schema, "maxItems")?);
    in_order(min, max, "choices")?;
    Ok(FieldKind::Many {
        choices,
        min,
        max,
        default: None,
    })
}

/// The choices that a schema lists, if it lists any.
fn choices(schema: &Map<String, Value>) -> Result<Option<Vec<Choice>>, FieldFlaw> {
    let listed = ["enum", "oneOf", "anyOf"]
        .into_iter()
        .find_map(|key| schema.get(key).map(|list| (key, list)));
    let Some((key, list)) = listed else {
        return Ok(None);
    };
    let list = list.as_array().ok_or(FieldFlaw::value(key, "a list"))?;
    if list.is_empty() {
        return Err(FieldFlaw::Choices("has no choices"));
    }
    if list.len() > MAX_CHOICES {
        return Err(FieldFlaw::TooManyChoices);
    }
    let choices = if key == "enum" {
        plain(list, schema.get("enumNames"))
    } else {
        list.iter().map(titled).collect()
    };
    choices.map(Some)
}

/// Choices that are values alone, or with titles in a list of the same length, as older revisions have them.
fn plain(values: &[Value], titles: Option<&Value>) -> Result<Vec<Choice>, FieldFlaw> {
    let titles = titles
        .and_then(Value::as_array)
        .filter(|titles| titles.len() == values.len());
    let title = |i: usize| titles.and_then(|titles| titles[i].as_str());
    let choice = |(i, value): (usize, &Value)| {
        let value = value
            .as_str()
            .ok_or(FieldFlaw::Choices("choices must be strings"))?
            .to_owned();
        Ok(Choice {
            value: value.into(),
            title: title(i).map(|title| title.to_owned().into()),
        })
    };
    values.iter().enumerate().map(choice).collect()
}

fn titled(schema: &Value) -> Result<Choice, FieldFlaw> {
    let Some(Value::String(value)) = schema.get("const") else {
        return Err(FieldFlaw::Choices(
            "a choice must be an object with a string as const",
        ));
    };
    let choice = Choice::new(value.clone());
    match schema.get("title") {
        None => Ok(choice),
        Some(Value::String(title)) => Ok(choice.title(title.clone())),
        Some(_) => Err(FieldFlaw::Choices("the title of a choice must be a string")),
    }
}

fn text<'a>(
    schema: &'a Map<String, Value>,
    key: &'static str,
) -> Result<Option<&'a str>, FieldFlaw> {
    match schema.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(FieldFlaw::value(key, "a string")),
    }
}

fn count(schema: &Map<String, Value>, key: &'static str) -> Result<Option<u64>, FieldFlaw> {
    let whole = |value: &Value| {
        let number = value.as_f64().filter(|n| n.fract() == 0.0 && *n >= 0.0);
        value.as_u64().or(number.map(|n| n as u64))
    };
    match schema.get(key).map(whole) {
        None => Ok(None),
        Some(Some(count)) => Ok(Some(count)),
        Some(None) => Err(FieldFlaw::value(key, "a whole number, 0 or more")),
    }
}

/// An error where no value can lie between the limits.
fn in_order<T: PartialOrd + fmt::Display>(
    min: Option<T>,
    max: Option<T>,
    what: &str,
) -> Result<(), FieldFlaw> {
    match (min, max) {
        (Some(min), Some(max)) if min > max => {
            let limits = format!("at least {min} and at most {max} {what}");
            Err(FieldFlaw::Empty(limits.trim_end().to_owned()))
        }
        _ => Ok(()),
    }
}
