//! What of a request's body is repeated in its headers, so that it can be routed without being parsed.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue, InvalidHeaderValue};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// The annotation of a parameter that goes into a header too.
const ANNOTATION: &str = "x-mcp-header";
/// Integers beyond it may not be exact everywhere, and are not sent in headers.
const INTEGER_MAX: u64 = (1 << 53) - 1;

/// The parameters of a tool that go into headers too.
#[derive(Debug, Default)]
pub(crate) struct Mirrors(Vec<Mirror>);

#[derive(Debug)]
struct Mirror {
    header: HeaderName,
    /// The properties that lead to the value in the arguments.
    path: Vec<String>,
}

/// Why a tool must not be used: what is wrong with an annotation of its schema.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidAnnotation {
    #[error("{0}: {ANNOTATION} is not a header name")]
    Name(String),
    #[error("{0}: {ANNOTATION} is for strings, integers and booleans only")]
    Type(String),
    #[error("{0}: {ANNOTATION} names a header that another parameter has")]
    Twice(String),
    #[error("{0}: {ANNOTATION} is only for properties of objects")]
    Unreachable(String),
}

/// An argument that goes into a header and does not fit there.
#[derive(Debug, thiserror::Error)]
#[error("argument {0} is no string, integer or boolean that fits a header")]
pub(crate) struct InvalidArgument(String);

impl Mirrors {
    /// Reads the annotations of a tool's input schema.
    pub(crate) fn read(schema: &Value) -> Result<Self, InvalidAnnotation> {
        let mut mirrors = Self::default();
        mirrors.walk(schema, &mut Vec::new())?;
        Ok(mirrors)
    }

    fn walk(&mut self, schema: &Value, path: &mut Vec<String>) -> Result<(), InvalidAnnotation> {
        let Some(keywords) = schema.as_object() else {
            return Ok(());
        };
        for (keyword, value) in keywords {
            match (keyword.as_str(), value) {
                (ANNOTATION, name) => self.add(name, &schema["type"], path)?,
                ("properties", Value::Object(properties)) => {
                    for (property, schema) in properties {
                        path.push(property.clone());
                        self.walk(schema, path)?;
                        path.pop();
                    }
                }
                ("default" | "const" | "enum" | "examples", _) => {}
                (_, elsewhere) if is_annotated(elsewhere) => {
                    return Err(InvalidAnnotation::Unreachable(path.join(".")));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        name: &Value,
        kind: &Value,
        path: &[String],
    ) -> Result<(), InvalidAnnotation> {
        let place = || path.join(".");
        let header = name
            .as_str()
            .filter(|name| !name.is_empty())
            .and_then(|name| HeaderName::try_from(format!("mcp-param-{name}")).ok())
            .ok_or_else(|| InvalidAnnotation::Name(place()))?;
        if !matches!(kind.as_str(), Some("string" | "integer" | "boolean")) {
            return Err(InvalidAnnotation::Type(place()));
        }
        if self.0.iter().any(|mirror| mirror.header == header) {
            return Err(InvalidAnnotation::Twice(place()));
        }
        let path = path.to_vec();
        self.0.push(Mirror { header, path });
        Ok(())
    }

    /// The headers for a call. What is null or missing among the arguments has none.
    pub(crate) fn headers(
        &self,
        arguments: &Map<String, Value>,
    ) -> Result<HeaderMap, InvalidArgument> {
        let mut headers = HeaderMap::new();
        for mirror in &self.0 {
            let invalid = || InvalidArgument(mirror.path.join("."));
            let Some(argument) = lookup(arguments, &mirror.path) else {
                continue;
            };
            let text = match argument {
                Value::Null => continue,
                Value::String(text) => text.clone(),
                Value::Bool(truth) => truth.to_string(),
                Value::Number(number) => number
                    .as_i64()
                    .filter(|integer| integer.unsigned_abs() <= INTEGER_MAX)
                    .ok_or_else(invalid)?
                    .to_string(),
                Value::Array(_) | Value::Object(_) => return Err(invalid()),
            };
            let value = encode(&text).map_err(|_| invalid())?;
            headers.insert(mirror.header.clone(), value);
        }
        Ok(headers)
    }
}

fn lookup<'a>(arguments: &'a Map<String, Value>, path: &[String]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter()
        .try_fold(arguments.get(first)?, |value, name| value.get(name))
}

/// Whether there is an annotation anywhere in a schema. A property may have that name, but is no string.
fn is_annotated(schema: &Value) -> bool {
    match schema {
        Value::Array(schemas) => schemas.iter().any(is_annotated),
        Value::Object(keywords) => keywords.iter().any(|(keyword, value)| {
            (keyword == ANNOTATION && value.is_string()) || is_annotated(value)
        }),
        _ => false,
    }
}

/// A text as a header's value: as it is where that is safe and cannot be mistaken, else in base64.
pub(crate) fn encode(text: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    let is_plain = text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        && text.trim() == text
        && !(text.starts_with("=?base64?") && text.ends_with("?="));
    let value = if is_plain {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("=?base64?{}?=", STANDARD.encode(text)))
    };
    HeaderValue::from_str(&value)
}

#[cfg(test)]
mod tests;
