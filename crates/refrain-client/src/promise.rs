//! What a tool promises of its results by its output schema, and whether a result keeps to it.
//!
//! Always: nothing that a schema refers to is fetched, and what a check may cost is known before it is made. A schema
//! whose cost cannot be told, such as one that refers to itself, is not applied.

use jsonschema::{PatternOptions, Retrieve, Uri, Validator};
use serde_json::Value;
use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::sync::OnceLock;

/// How many steps a check may take: the parts of the schema, references followed, for each part of the value.
const MOST_STEPS: u64 = 20_000_000;
/// How deep a schema may be nested, references followed.
const DEEPEST: usize = 128;
/// So many bytes of a text are one part of a value.
const TEXT_PART: usize = 64;
/// How much is shown of why a schema cannot be applied: the schema itself may be in it.
const WHY: usize = 300;

/// The output schema of a tool.
pub(crate) struct Promise {
    schema: Value,
    /// Made when it is needed.
    usable: OnceLock<Usable>,
}

/// What can be done with a schema.
enum Usable {
    Applied {
        validator: Box<Validator>,
        cost: u64,
    },
    /// Nobody knows what it would cost.
    Passed,
    /// It makes no sense here, and so does no result.
    Refused(String),
}

impl fmt::Debug for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Promise").field(&self.schema).finish()
    }
}

impl Promise {
    pub(crate) fn new(schema: Value) -> Self {
        Self {
            schema,
            usable: OnceLock::new(),
        }
    }

    /// Why a result is not as promised, if it is not. A tool that says that it failed has kept its promise.
    pub(crate) fn broken_by(&self, result: &Value) -> Option<String> {
        if result["isError"] == true {
            return None;
        }
        let Some(content) = result.get("structuredContent") else {
            return Some("it has no structuredContent, and the tool has an output schema".into());
        };
        match self.usable.get_or_init(|| Usable::of(&self.schema)) {
            Usable::Applied { validator, cost }
                if cost.saturating_mul(parts(content)) <= MOST_STEPS =>
            {
                let error = validator.validate(content).err()?;
                let at = error.instance_path().as_str().to_owned();
                // Not the value itself: it may be long, or private.
                let why = error.masked();
                Some(format!(
                    "it does not fit the tool's output schema at {at:?}: {why}"
                ))
            }
            Usable::Applied { .. } | Usable::Passed => {
                tracing::debug!("a result is not checked: that could take too long");
                None
            }
            Usable::Refused(why) => {
                Some(format!("the tool's output schema cannot be applied: {why}"))
            }
        }
    }
}

impl Usable {
    fn of(schema: &Value) -> Self {
        let mut costs = Costs {
            root: schema,
            known: HashMap::new(),
            open: Vec::new(),
            is_sure: true,
        };
        let Ok(cost) = costs.of(schema, 0) else {
            return Self::Passed;
        };
        let is_sure = costs.is_sure;
        let validator = jsonschema::options()
            .with_pattern_options(PatternOptions::regex())
            .with_retriever(Nothing)
            .build(schema);
        match validator {
            Ok(validator) if is_sure => Self::Applied {
                validator: Box::new(validator),
                cost,
            },
            Ok(_) => Self::Passed,
            // A pattern may need an engine that takes as long as the text makes it.
            Err(_)
                if jsonschema::options()
                    .with_retriever(Nothing)
                    .build(schema)
                    .is_ok() =>
            {
                Self::Passed
            }
            Err(error) => Self::Refused(error.to_string().chars().take(WHY).collect()),
        }
    }
}

/// Fetches nothing, whatever else in the program has jsonschema fetch.
struct Nothing;

impl Retrieve for Nothing {
    fn retrieve(&self, _: &Uri<String>) -> Result<Value, Box<dyn Error + Send + Sync>> {
        Err("nothing that a schema refers to is fetched".into())
    }
}

/// A schema that costs too much, or as much as the value makes it cost.
struct TooMuch;

/// What schemas cost that refer to each other.
struct Costs<'a> {
    root: &'a Value,
    /// The costs of what is referred to.
    known: HashMap<&'a str, u64>,
    /// The references that are being followed.
    open: Vec<&'a str>,
    /// There was nothing that may lead elsewhere than it seems.
    is_sure: bool,
}

impl<'a> Costs<'a> {
    /// How many parts a schema has.
    fn of(&mut self, schema: &'a Value, depth: usize) -> Result<u64, TooMuch> {
        if depth > DEEPEST {
            return Err(TooMuch);
        }
        let mut cost: u64 = 1;
        match schema {
            Value::Array(schemas) => {
                for schema in schemas {
                    cost = cost.saturating_add(self.of(schema, depth + 1)?);
                }
            }
            Value::Object(keywords) => {
                for (keyword, value) in keywords {
                    let part = match (keyword.as_str(), value) {
                        ("$ref", Value::String(place)) => self.referred(place, depth + 1)?,
                        ("$dynamicRef" | "$recursiveRef", Value::String(_)) => return Err(TooMuch),
                        // Each looks through all that is beside it again.
                        ("unevaluatedProperties" | "unevaluatedItems", _) => return Err(TooMuch),
                        ("$id" | "id", Value::String(_)) if depth > 0 => {
                            self.is_sure = false;
                            1
                        }
                        (_, value) => self.of(value, depth + 1)?,
                    };
                    cost = cost.saturating_add(part);
                }
            }
            _ => {}
        }
        Ok(cost)
    }

    /// What is referred to. What is not a place in this schema is not followed.
    fn referred(&mut self, place: &'a str, depth: usize) -> Result<u64, TooMuch> {
        if let Some(cost) = self.known.get(place) {
            return Ok(*cost);
        }
        if self.open.contains(&place) {
            return Err(TooMuch);
        }
        let root = self.root;
        let schema = place
            .strip_prefix('#')
            .and_then(|place| root.pointer(place));
        let Some(schema) = schema else {
            self.is_sure = false;
            return Ok(1);
        };
        self.open.push(place);
        let cost = self.of(schema, depth)?;
        self.open.pop();
        self.known.insert(place, cost);
        Ok(cost)
    }
}

/// How many parts a value has.
fn parts(value: &Value) -> u64 {
    match value {
        Value::String(text) => 1 + (text.len() / TEXT_PART) as u64,
        Value::Array(values) => 1 + values.iter().map(parts).sum::<u64>(),
        Value::Object(members) => {
            let names = members.keys().map(|name| (name.len() / TEXT_PART) as u64);
            1 + names.sum::<u64>() + members.values().map(parts).sum::<u64>()
        }
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn why(schema: &Value, content: &Value) -> Option<String> {
        let result = json!({"content": [], "structuredContent": content});
        Promise::new(schema.clone()).broken_by(&result)
    }

    #[test]
    fn a_result_is_held_against_the_schema() {
        let schema = json!({"type": "object", "required": ["degrees"], "properties": {
            "degrees": {"$ref": "#/$defs/degrees"}, "sky": {"$ref": "#/$defs/sky"},
        }, "$defs": {"degrees": {"type": "number"}, "sky": {"pattern": "^c"}}});
        assert_eq!(
            why(&schema, &json!({"degrees": 21.5, "sky": "clear"})),
            None
        );
        let secret = why(&schema, &json!({"degrees": "secret"})).expect("a number is promised");
        assert!(
            secret.contains("\"/degrees\"") && !secret.contains("secret"),
            "{secret}"
        );
        assert!(why(&schema, &json!({})).is_some_and(|why| why.contains("degrees")));
        assert!(why(&schema, &json!({"degrees": 1, "sky": "grey"})).is_some());
        let promise = Promise::new(schema);
        let without = promise.broken_by(&json!({"content": []}));
        assert!(without.is_some_and(|why| why.contains("no structuredContent")));
        assert_eq!(
            promise.broken_by(&json!({"content": [], "isError": true})),
            None
        );
        // Any value can be promised, and null is one.
        assert_eq!(why(&json!({"type": "null"}), &Value::Null), None);
        assert!(why(&json!({"type": "null"}), &json!([])).is_some());
        let older = json!({"$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"a": {"type": "string"}}, "items": [{"$ref": "#/definitions/a"}]});
        assert_eq!(why(&older, &json!(["x", 1])), None);
        assert!(why(&older, &json!([1])).is_some());
    }

    #[test]
    fn a_schema_that_leads_elsewhere_or_makes_no_sense_is_not_permissive() {
        for schema in [
            json!({"$ref": "http://127.0.0.1:1/schema.json"}),
            json!({"properties": {"a": {"$ref": "file:///etc/hostname"}}}),
            json!({"$ref": "#/$defs/nowhere"}),
            json!({"$schema": "https://example.com/dialect"}),
            json!({"type": "nonsense"}),
            json!({"pattern": "("}),
        ] {
            let why = why(&schema, &json!({})).expect("it is refused");
            assert!(why.contains("cannot be applied"), "{schema}: {why}");
        }
    }

    /// Each of these would take for ever, or could with another value.
    #[test]
    fn what_may_cost_too_much_is_not_applied() {
        let doubled = |at: usize| {
            let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
            (format!("d{at}"), json!({"allOf": [next, next]}))
        };
        let mut doubling: serde_json::Map<_, _> = (0..28).map(doubled).collect();
        doubling.insert("d28".into(), json!({"type": "string"}));
        let chain = |at: usize| {
            let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
            (format!("d{at}"), next)
        };
        let mut chain: serde_json::Map<_, _> = (0..100_000).map(chain).collect();
        chain.insert("d100000".into(), json!({"type": "string"}));
        let twice = json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}]});
        let mut deep = json!({});
        for _ in 0..100 {
            deep = json!({"x": deep});
        }
        let mut unevaluated = json!({"type": "string"});
        for _ in 0..40 {
            let within = json!({"properties": {"x": unevaluated}, "unevaluatedProperties": false});
            unevaluated = json!({"anyOf": [within, {"type": "null"}]});
        }
        // What its references mean there is not what they seem to.
        let within = serde_json::to_string(&doubling).expect("JSON");
        let within: Value =
            serde_json::from_str(&within.replace("$defs", "definitions")).expect("JSON");
        let mut seeming: serde_json::Map<_, _> =
            (0..=28).map(|at| (format!("d{at}"), json!({}))).collect();
        seeming.insert(
            "within".into(),
            json!({"id": "urn:within", "definitions": within, "allOf": [{"$ref": "#/definitions/d0"}]}),
        );
        let hidden = json!({"$schema": "http://json-schema.org/draft-04/schema#",
            "definitions": seeming, "properties": {"x": {"$ref": "#/definitions/within"}}});
        for schema in [
            json!({"$ref": "#/$defs/d0", "$defs": doubling}),
            json!({"$ref": "#/$defs/d0", "$defs": chain}),
            json!({"properties": {"x": twice}, "required": ["x"]}),
            json!({"$dynamicAnchor": "x", "properties": {"x": {"$dynamicRef": "#x"}}, "required": ["x"]}),
            json!({"$defs": {"a": {"$id": "urn:a", "type": "string"}}, "$ref": "urn:a"}),
            unevaluated,
            hidden,
            json!({"properties": {"x": {"properties": {"x": {"pattern": "^(?!x)"}}}}}),
        ] {
            assert_eq!(why(&schema, &deep), None);
        }
        // One that is large, but not too large, is applied to a value that is not.
        let many: serde_json::Map<_, _> = (0..2000)
            .map(|at| (format!("p{at}"), json!({"type": "string"})))
            .collect();
        let wide = json!({"properties": many});
        assert!(why(&wide, &json!({"p7": 7})).is_some());
        assert_eq!(why(&wide, &json!({"p7": 7, "rest": vec![0; 20_000]})), None);
    }
}
