//! The arguments of a call on the command line.

use super::exit::CommandError;
use crate::exact_number::check_exact;
use refrain_app::input_file;
use refrain_wire::did_you_mean;
use serde_json::{Map, Value};

/// Arguments by name, parsed as far as possible without the tool's schema.
#[derive(Debug)]
pub(super) struct Arguments(Vec<(String, Argument)>);

#[derive(Debug)]
enum Argument {
    /// A member of a JSON object.
    Value(Value),
    /// The VALUE of `NAME=VALUE`.
    Text(String),
}

impl Arguments {
    /// Reads one JSON object, pairs, or `-` for an object on standard input.
    pub(super) fn read(words: &[String]) -> Result<Self, CommandError> {
        let arguments = match words {
            [word] if word == "-" => parse_object("standard input", &read_standard_input()?),
            [word] if word.trim_start().starts_with('{') => parse_object("the arguments", word),
            words => parse_pairs(words),
        };
        arguments.map(Self)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A warning for each argument that is not in the schema. The tool may accept it nevertheless.
    pub(super) fn unlisted_warnings(&self, schema: &Value) -> Vec<String> {
        let Some(properties) = closed_properties(schema) else {
            return Vec::new();
        };
        let names = self.0.iter().map(|(name, _)| name.as_str());
        let unlisted = names.filter(|name| !properties.contains(name));
        unlisted
            .map(|name| unknown_argument_warning(name, &properties))
            .collect()
    }

    /// Whether the schema is needed to tell JSON from text.
    pub(super) fn need_schema(&self) -> bool {
        let is_json = |text: &str| parse_json(text).is_some();
        let mut arguments = self.0.iter();
        arguments.any(|(_, argument)| matches!(argument, Argument::Text(text) if is_json(text)))
    }

    /// The arguments for a tool with this schema. Text is parsed as JSON if possible, unless the schema expects a string.
    pub(super) fn for_tool(self, schema: &Value) -> Result<Map<String, Value>, CommandError> {
        let value = |(name, argument): (String, Argument)| {
            let text = match argument {
                Argument::Value(value) => return Ok((name, value)),
                Argument::Text(text) => text,
            };
            let types = types(&schema["properties"][&name]);
            let json = parse_json(&text).filter(|json| {
                !types.contains(&"string")
                    || types.iter().any(|name| has_non_string_type(json, name))
            });
            if json.is_some() {
                check_exact(&text).map_err(|why| {
                    CommandError::usage(format!("invalid argument {name:?}: {why}"))
                })?;
            }
            Ok((name, json.unwrap_or(Value::String(text))))
        };
        self.0.into_iter().map(value).collect()
    }

    /// The arguments of a prompt. Text is never parsed as JSON.
    pub(super) fn for_prompt(self) -> Map<String, Value> {
        let value = |argument| match argument {
            Argument::Value(value) => value,
            Argument::Text(text) => Value::String(text),
        };
        let arguments = self.0.into_iter();
        arguments
            .map(|(name, argument)| (name, value(argument)))
            .collect()
    }
}

fn read_standard_input() -> Result<String, CommandError> {
    let read = input_file::read_text_limited(std::io::stdin(), input_file::SIZE_MAX);
    read.map_err(|error| CommandError::usage(format!("cannot read standard input: {error}")))
}

fn parse_object(source: &str, text: &str) -> Result<Vec<(String, Argument)>, CommandError> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => {
            check_exact(text)
                .map_err(|why| CommandError::usage(format!("invalid number in {source}: {why}")))?;
            let members = object.into_iter();
            Ok(members
                .map(|(name, value)| (name, Argument::Value(value)))
                .collect())
        }
        Ok(_) => Err(CommandError::usage(format!(
            "invalid arguments in {source}: expected a JSON object like {{\"name\": value, …}}"
        ))),
        Err(error) => Err(CommandError::usage(format!(
            "invalid JSON in {source}: {error}"
        ))),
    }
}

fn parse_pairs(words: &[String]) -> Result<Vec<(String, Argument)>, CommandError> {
    let mut pairs: Vec<(String, Argument)> = Vec::new();
    for word in words {
        let Some((name, text)) = word.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return Err(CommandError::usage(format!(
                "invalid argument {word:?}: expected NAME=VALUE"
            ))
            .hint("a JSON object must be the only argument, and contain all of them"));
        };
        if pairs.iter().any(|(earlier, _)| earlier == name) {
            let message = format!("argument {name:?} is given twice");
            return Err(CommandError::usage(message));
        }
        pairs.push((name.to_owned(), Argument::Text(text.to_owned())));
    }
    Ok(pairs)
}

fn parse_json(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok()
}

/// The names of the properties; `None` if the schema says that it allows further properties, or may do so by another keyword.
/// A schema that is silent counts as closed.
fn closed_properties(schema: &Value) -> Option<Vec<&str>> {
    /// Keywords that can allow further properties.
    const OPENING_KEYWORDS: [&str; 9] = [
        "$ref",
        "$dynamicRef",
        "allOf",
        "anyOf",
        "oneOf",
        "if",
        "dependentSchemas",
        "patternProperties",
        "unevaluatedProperties",
    ];
    let is_open = match &schema["additionalProperties"] {
        Value::Null | Value::Bool(false) => OPENING_KEYWORDS
            .iter()
            .any(|keyword| schema.get(keyword).is_some()),
        _ => true,
    };
    let properties = schema["properties"].as_object().filter(|_| !is_open)?;
    Some(properties.keys().map(String::as_str).collect())
}

/// The warning about an unlisted argument, with similar names if there are any, or else all names.
fn unknown_argument_warning(name: &str, properties: &[&str]) -> String {
    let suggestion = did_you_mean(name, properties.iter().copied());
    let advice = suggestion.unwrap_or_else(|| {
        let all: Vec<String> = properties.iter().map(|name| format!("{name:?}")).collect();
        match all.as_slice() {
            [] => "the tool takes no arguments".to_owned(),
            all => format!("the tool's arguments are {}", all.join(", ")),
        }
    });
    format!("unknown argument {name:?}; {advice}")
}

/// The types that a schema allows.
fn types(schema: &Value) -> Vec<&str> {
    let mut all = match &schema["type"] {
        Value::String(one) => vec![one.as_str()],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    for keyword in ["anyOf", "oneOf"] {
        let alternatives = schema[keyword].as_array().into_iter().flatten();
        all.extend(alternatives.flat_map(types));
    }
    all
}

/// Whether a value has this type; never true for `string`.
fn has_non_string_type(value: &Value, type_name: &str) -> bool {
    match type_name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(words: &[&str]) -> Result<Arguments, CommandError> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Arguments::read(&words)
    }

    #[test]
    fn values_are_json_unless_the_schema_expects_a_string() {
        let schema = json!({"properties": {
            "id": {"type": "string"},
            "count": {"type": "integer"},
            "maybe": {"type": ["string", "null"]},
            "either": {"anyOf": [{"type": "string"}, {"type": "number"}]},
        }});
        let words = [
            "id=5",
            "count=5",
            "maybe=null",
            "either=1.5",
            "other={\"a\":[1]}",
            "text=Paris",
            "empty=",
            "same=a=b",
        ];
        let arguments = read(&words).expect("valid arguments");
        assert!(arguments.need_schema());
        assert_eq!(
            Value::Object(arguments.for_tool(&schema).expect("valid arguments")),
            json!({"id": "5", "count": 5, "maybe": null, "either": 1.5, "other": {"a": [1]},
                "text": "Paris", "empty": "", "same": "a=b"})
        );
        let maybe = read(&["maybe=5"]).expect("valid arguments");
        let maybe = maybe.for_tool(&schema).expect("valid arguments");
        assert_eq!(Value::Object(maybe), json!({"maybe": "5"}));
        assert!(
            !read(&["text=Paris"])
                .expect("valid arguments")
                .need_schema()
        );
        let prompt = read(&["n=5"]).expect("valid arguments").for_prompt();
        assert_eq!(Value::Object(prompt), json!({"n": "5"}));
    }

    #[test]
    fn unlisted_arguments_are_reported_with_suggestions() {
        let schema = json!({"properties": {"location": {}, "locale": {}, "days": {}}});
        let unlisted =
            |words: &[&str], schema: &Value| read(words).unwrap().unlisted_warnings(schema);
        assert_eq!(unlisted(&["location=x", "days=1"], &schema), [""; 0]);
        assert_eq!(
            unlisted(&["locat=x", "weight=1"], &schema),
            [
                r#"unknown argument "locat"; did you mean "location", "locale"?"#,
                r#"unknown argument "weight"; the tool's arguments are "location", "locale", "days""#,
            ]
        );
        assert_eq!(unlisted(&[r#"{"locat": 1}"#], &schema).len(), 1);
        let none = json!({"properties": {}});
        assert!(unlisted(&["a=1"], &none)[0].ends_with("the tool takes no arguments"));
        for (mut schema, is_reported) in [
            (json!({"additionalProperties": false}), true),
            (json!({"additionalProperties": true}), false),
            (json!({"additionalProperties": {"type": "string"}}), false),
            (json!({"patternProperties": {"^x": {}}}), false),
            (json!({"allOf": [{"properties": {"a": {}}}]}), false),
        ] {
            schema["properties"] = json!({"b": {}});
            assert_eq!(unlisted(&["a=1"], &schema).len(), usize::from(is_reported));
        }
        assert_eq!(unlisted(&["a=1"], &json!({"type": "object"})), [""; 0]);
        assert_eq!(unlisted(&["a=1"], &Value::Null), [""; 0]);
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        assert!(read(&[]).expect("no arguments").is_empty());
        for (words, part) in [
            (&["Paris"][..], "NAME=VALUE"),
            (&["=1"], "NAME=VALUE"),
            (&["a=1", "a=2"], "twice"),
            (&["{\"a\": }"], "invalid JSON"),
            (&["{}", "a=1"], "NAME=VALUE"),
        ] {
            let error = read(words).expect_err("invalid arguments");
            assert!(error.message.contains(part), "{words:?}: {}", error.message);
        }
    }
}
