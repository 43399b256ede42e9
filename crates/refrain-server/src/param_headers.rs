//! Arguments that a client repeats in headers of its own (`x-mcp-header`), so that a proxy can route by them.
//!
//! An argument is marked in the tool's schema. With schemars that is
//! `#[schemars(extend("x-mcp-header" = "Region"))]` on the field: the client then sends `Mcp-Param-Region`.

use crate::http::decode_header;
use http::{HeaderMap, HeaderName};
use refrain_wire::RpcError;
use serde_json::{Map, Value};

const MARK: &str = "x-mcp-header";
/// Integers beyond this are not exact everywhere.
const EXACT: f64 = ((1_u64 << 53) - 1) as f64;

/// An argument that has a header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ParamHeader {
    name: HeaderName,
    /// The chain of property names that leads to the argument.
    path: Vec<String>,
}

impl ParamHeader {
    /// Is this the name of such a header?
    pub(crate) fn is_one(name: &HeaderName) -> bool {
        name.as_str().starts_with("mcp-param-")
    }

    /// All marked arguments of a schema, or what is wrong with a mark.
    pub(crate) fn all(schema: &Value) -> Result<Vec<Self>, String> {
        let mut found = Vec::new();
        let mut path = Vec::new();
        if let Some(root) = schema.as_object() {
            if root.contains_key(MARK) {
                return Err("the schema itself is marked; only an argument can be".into());
            }
            collect(root, &mut path, &mut found)?;
        }
        for (i, header) in found.iter().enumerate() {
            if found[..i].iter().any(|other| other.name == header.name) {
                return Err(format!("{} is there twice", header.name));
            }
        }
        Ok(found)
    }

    /// Does the header say what the argument says?
    pub(crate) fn check(
        &self,
        arguments: Option<&Value>,
        headers: &HeaderMap,
    ) -> Result<(), RpcError> {
        let wrong = |problem: String| {
            let argument = self.path.join(".");
            Err(RpcError::header_mismatch(format!(
                "the {} header {problem}; it must say what the argument {argument:?} says",
                self.name
            )))
        };
        let mut path = self.path.iter();
        let argument = arguments.and_then(|all| path.try_fold(all, |value, key| value.get(key)));
        let mut sent = headers.get_all(&self.name).iter();
        let value = match (argument.filter(|value| !value.is_null()), sent.next()) {
            (None, None) => return Ok(()),
            (None, Some(_)) => return wrong("is there and the argument is not".into()),
            (Some(_), None) => return wrong("is missing".into()),
            (Some(value), Some(header)) => (value, header),
        };
        let (argument, header) = value;
        if sent.next().is_some() {
            return wrong("is there more than once".into());
        }
        let Some(said) = header.to_str().ok().and_then(decode_header) else {
            return wrong("is not plain ASCII or base64 of UTF-8".into());
        };
        let same = match argument {
            Value::String(text) => *text == said,
            Value::Bool(flag) => said == if *flag { "true" } else { "false" },
            Value::Number(number) => said
                .parse::<f64>()
                .is_ok_and(|said| Some(said) == number.as_f64()),
            // The schema demands one of the above; its own check says so better.
            Value::Null | Value::Array(_) | Value::Object(_) => true,
        };
        if !same {
            return wrong(format!("says {said:?}"));
        }
        if argument.as_f64().is_some_and(|number| number.abs() > EXACT) {
            return wrong("holds a number beyond 2^53 - 1".into());
        }
        Ok(())
    }
}

/// Collects the marks of an object's properties, which are the only ones a client can follow.
fn collect(
    object: &Map<String, Value>,
    path: &mut Vec<String>,
    found: &mut Vec<ParamHeader>,
) -> Result<(), String> {
    for (key, value) in object {
        if key != "properties" {
            if let Some(place) = marked(value) {
                let at = [path.as_slice(), std::slice::from_ref(key)]
                    .concat()
                    .join(".");
                return Err(format!(
                    "{at}{place} is marked, and clients look only into properties; #[schemars(inline)] on a type \
                     puts its fields there"
                ));
            }
            continue;
        }
        let Some(properties) = value.as_object() else {
            continue;
        };
        for (name, property) in properties {
            let Some(property) = property.as_object() else {
                continue;
            };
            path.push(name.clone());
            if let Some(mark) = property.get(MARK) {
                found.push(ParamHeader {
                    name: header_name(mark, &path.join("."))?,
                    path: path.clone(),
                });
                is_primitive(property.get("type"), &path.join("."))?;
            }
            collect(property, path, found)?;
            path.pop();
        }
    }
    Ok(())
}

/// Where in a value there is a mark, if anywhere.
fn marked(value: &Value) -> Option<String> {
    match value {
        Value::Object(object) if object.contains_key(MARK) => Some(String::new()),
        Value::Object(object) => object
            .iter()
            .find_map(|(key, inner)| Some(format!(".{key}{}", marked(inner)?))),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(i, inner)| Some(format!("[{i}]{}", marked(inner)?))),
        _ => None,
    }
}

fn header_name(mark: &Value, argument: &str) -> Result<HeaderName, String> {
    let Some(name) = mark.as_str().filter(|name| !name.is_empty()) else {
        return Err(format!("{argument}: give the header a name"));
    };
    HeaderName::try_from(format!("mcp-param-{name}")).map_err(|_| {
        format!("{argument}: {name:?} has characters that a header's name cannot have")
    })
}

fn is_primitive(kind: Option<&Value>, argument: &str) -> Result<(), String> {
    match kind.and_then(Value::as_str) {
        Some("string" | "integer" | "boolean") => Ok(()),
        _ => Err(format!(
            "{argument}: its type must be one of string, integer and boolean, in place and not null; \
             an Option<String> takes #[serde(default)] and #[schemars(with = \"String\")]"
        )),
    }
}
