//! Tool arguments that clients repeat in HTTP headers (`x-mcp-header`), for routing by proxies.
//!
//! In a schema, `"x-mcp-header": "Region"` maps an argument to the header `Mcp-Param-Region`. The client writes the
//! headers, and the server checks them against the arguments. Values that are not printable ASCII, begin or end with a
//! space, or look encoded are sent as `=?base64?…?=`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use std::borrow::Cow;

use crate::error::RpcError;
use crate::excerpt::Excerpt;
use crate::write::MAX_INTEGER;

const KEYWORD: &str = "x-mcp-header";
const PREFIX: &str = "mcp-param-";
/// Keywords whose values are data, not schemas.
const DATA_KEYWORDS: [&str; 4] = ["default", "const", "enum", "examples"];

/// The arguments of a tool that have headers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParamHeaders(Vec<ParamHeader>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct ParamHeader {
    /// In lower case.
    name: String,
    /// The property names that lead to the argument.
    path: Vec<String>,
}

/// An `x-mcp-header` that clients must reject, with its path in the schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParamHeaderError {
    /// The keyword is at the top level of the schema.
    #[error("{KEYWORD} at the top level of the schema; put it into a property")]
    Root,
    /// The header's name is missing or invalid.
    #[error("{path}: invalid header name {name}")]
    Name {
        /// The argument.
        path: String,
        /// The name as JSON.
        name: String,
    },
    /// The argument's type cannot be written into a header.
    #[error("{0}: {KEYWORD} requires the type string, integer or boolean")]
    Type(String),
    /// Two arguments have the same header.
    #[error("{path}: another argument already has the header {name}")]
    Twice {
        /// The second argument.
        path: String,
        /// The header.
        name: String,
    },
    /// The keyword is not on a property.
    #[error("{0}: {KEYWORD} is supported only in properties of objects")]
    Unreachable(String),
}

/// An argument that cannot be written into its header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "argument {0} cannot be sent in a header; it must be a string, a boolean or an integer up to 2^53 - 1"
)]
pub struct InvalidHeaderArgument(pub String);

impl ParamHeaders {
    /// Whether the name begins with `Mcp-Param-`.
    pub fn is_name(name: &str) -> bool {
        let start = name.as_bytes().get(..PREFIX.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(PREFIX.as_bytes()))
    }

    /// Reads a tool's input schema.
    ///
    /// ```
    /// # use refrain_wire::ParamHeaders;
    /// # use serde_json::json;
    /// let schema = json!({"properties": {"region": {"type": "string", "x-mcp-header": "Region"}}});
    /// let headers = ParamHeaders::read(&schema)?;
    /// let arguments = json!({"region": "eu"});
    /// let written = headers.write(arguments.as_object().unwrap())?;
    /// assert_eq!(written, [("mcp-param-region", "eu".to_owned())]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(schema: &Value) -> Result<Self, ParamHeaderError> {
        let mut headers = Self::default();
        if let Some(root) = schema.as_object() {
            if root.contains_key(KEYWORD) {
                return Err(ParamHeaderError::Root);
            }
            headers.read_object(root, &mut Vec::new())?;
        }
        Ok(headers)
    }

    fn read_object(
        &mut self,
        schema: &Map<String, Value>,
        path: &mut Vec<String>,
    ) -> Result<(), ParamHeaderError> {
        for (keyword, value) in schema {
            if keyword == "properties" {
                for (property, schema) in value.as_object().into_iter().flatten() {
                    path.push(property.clone());
                    if let Some(schema) = schema.as_object() {
                        self.read_property(schema, path)?;
                    }
                    path.pop();
                }
            } else if keyword != KEYWORD
                && !DATA_KEYWORDS.contains(&keyword.as_str())
                && let Some(inner) = find_keyword(value)
            {
                path.push(format!("{keyword}{inner}"));
                return Err(ParamHeaderError::Unreachable(path.join(".")));
            }
        }
        Ok(())
    }

    fn read_property(
        &mut self,
        schema: &Map<String, Value>,
        path: &mut Vec<String>,
    ) -> Result<(), ParamHeaderError> {
        if let Some(declared) = schema.get(KEYWORD) {
            let joined = path.join(".");
            let name = declared.as_str().filter(|name| is_token(name));
            let Some(name) = name else {
                let name = declared.to_string();
                return Err(ParamHeaderError::Name { path: joined, name });
            };
            let name = format!("{PREFIX}{}", name.to_ascii_lowercase());
            let kind = schema.get("type").and_then(Value::as_str);
            if !matches!(kind, Some("string" | "integer" | "boolean")) {
                return Err(ParamHeaderError::Type(joined));
            }
            if self.0.iter().any(|header| header.name == name) {
                return Err(ParamHeaderError::Twice { path: joined, name });
            }
            let path = path.clone();
            self.0.push(ParamHeader { name, path });
        }
        self.read_object(schema, path)
    }

    /// The headers of a call, with lower-case names. Missing and null arguments have no header.
    pub fn write(
        &self,
        arguments: &Map<String, Value>,
    ) -> Result<Vec<(&str, String)>, InvalidHeaderArgument> {
        let mut headers = Vec::new();
        for header in &self.0 {
            let invalid = || InvalidHeaderArgument(header.path.join("."));
            let (first, rest) = header.path.split_first().ok_or_else(invalid)?;
            let argument = arguments.get(first);
            let argument = rest
                .iter()
                .try_fold(argument, |value, name| Some(value?.get(name)));
            let text = match argument.flatten() {
                None | Some(Value::Null) => continue,
                Some(Value::String(text)) => encode_header(text).into_owned(),
                Some(Value::Bool(flag)) => flag.to_string(),
                Some(Value::Number(number)) => number
                    .as_i64()
                    .filter(|integer| integer.unsigned_abs() <= MAX_INTEGER)
                    .ok_or_else(invalid)?
                    .to_string(),
                Some(Value::Array(_) | Value::Object(_)) => return Err(invalid()),
            };
            headers.push((header.name.as_str(), text));
        }
        Ok(headers)
    }

    /// Checks that the headers of a call match its arguments. `sent` returns the values of a header by lower-case name.
    pub fn check<'h, I>(
        &self,
        arguments: Option<&Value>,
        sent: impl Fn(&str) -> I,
    ) -> Result<(), RpcError>
    where
        I: Iterator<Item = &'h [u8]>,
    {
        self.0
            .iter()
            .try_for_each(|header| header.check(arguments, sent(&header.name)))
    }
}

impl ParamHeader {
    fn check<'h>(
        &self,
        arguments: Option<&Value>,
        mut sent: impl Iterator<Item = &'h [u8]>,
    ) -> Result<(), RpcError> {
        let mismatch = |problem: &str| {
            let argument = self.path.join(".");
            Err(RpcError::header_mismatch(format!(
                "the {} header {problem}; it must equal the argument {argument:?}",
                self.name
            )))
        };
        let mut path = self.path.iter();
        let argument = arguments.and_then(|all| path.try_fold(all, |value, key| value.get(key)));
        let (argument, header) = match (argument.filter(|value| !value.is_null()), sent.next()) {
            (None, None) => return Ok(()),
            (None, Some(_)) => return mismatch("is present but the argument is missing"),
            (Some(_), None) => return mismatch("is missing"),
            (Some(argument), Some(header)) => (argument, header),
        };
        if sent.next().is_some() {
            return mismatch("is present more than once");
        }
        let plain = std::str::from_utf8(header).ok();
        let plain =
            plain.filter(|text| text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t')));
        let Some(sent_value) = plain.and_then(decode_header) else {
            return mismatch("is not plain ASCII or base64 of UTF-8");
        };
        let is_same = match argument {
            Value::String(text) => *text == sent_value,
            Value::Bool(flag) => sent_value == if *flag { "true" } else { "false" },
            Value::Number(number) => sent_value
                .parse::<f64>()
                .is_ok_and(|sent_value| Some(sent_value) == number.as_f64()),
            // Schema validation rejects these with a better message.
            Value::Null | Value::Array(_) | Value::Object(_) => true,
        };
        if !is_same {
            return mismatch(&format!("has the value {:?}", Excerpt(sent_value)));
        }
        let is_large = |number: f64| number.abs() > MAX_INTEGER as f64;
        if argument.as_f64().is_some_and(is_large) {
            return mismatch("has a number beyond 2^53 - 1");
        }
        Ok(())
    }
}

/// The path of the first header keyword in a schema. If its value is not a string, it is a property of that name.
fn find_keyword(value: &Value) -> Option<String> {
    match value {
        Value::Object(schema) if schema.get(KEYWORD).is_some_and(Value::is_string) => {
            Some(String::new())
        }
        Value::Object(schema) => schema
            .iter()
            .find_map(|(key, inner)| Some(format!(".{key}{}", find_keyword(inner)?))),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(i, inner)| Some(format!("[{i}]{}", find_keyword(inner)?))),
        _ => None,
    }
}

/// Whether the text is a token (RFC 9110, section 5.6.2).
fn is_token(text: &str) -> bool {
    let is_special = |byte| b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || is_special(byte))
}

const BASE64_MARKERS: (&str, &str) = ("=?base64?", "?=");

/// Encodes a text as a header value: base64, except for printable ASCII without outer spaces that does not look encoded.
pub fn encode_header(text: &str) -> Cow<'_, str> {
    let (start, end) = BASE64_MARKERS;
    let is_plain = text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        && text.trim() == text
        && !(text.starts_with(start) && text.ends_with(end));
    if is_plain {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{start}{}{end}", STANDARD.encode(text)))
}

/// Decodes a value from [`encode_header`]. `None` if it is not valid base64 of UTF-8.
pub fn decode_header(value: &str) -> Option<Cow<'_, str>> {
    let (start, end) = BASE64_MARKERS;
    let inner = value.strip_prefix(start);
    let Some(inner) = inner.and_then(|rest| rest.strip_suffix(end)) else {
        return Some(Cow::Borrowed(value));
    };
    let bytes = STANDARD.decode(inner).ok()?;
    String::from_utf8(bytes).ok().map(Cow::Owned)
}
