//! The check of a result against the output schema of its tool.
//!
//! References are not fetched, and the cost of a check is bounded before it starts. A schema of unknown cost, such as a
//! recursive one, is not applied.

use jsonschema::{PatternOptions, Retrieve, Uri, Validator};
use serde_json::Value;
use std::collections::HashMap;
use std::error::Error;
use std::sync::OnceLock;

/// The maximum of the parts of the schema, references followed, times the parts of the value.
const STEPS_MAX: u64 = 20_000_000;
/// The maximum depth of a schema, references followed.
const DEPTH_MAX: usize = 128;
/// This many bytes of a text are one part of a value.
const TEXT_PART: usize = 64;
/// The longest error message about a schema: it may repeat the schema.
const WHY_MAX: usize = 300;

pub(crate) struct OutputSchema {
    schema: Value,
    compiled: OnceLock<Compiled>,
}

enum Compiled {
    Valid {
        validator: Box<Validator>,
        cost: u64,
    },
    /// The cost is unknown, so it is not applied.
    Skipped,
    /// The schema is invalid, and so is every result.
    Invalid(String),
}

impl OutputSchema {
    pub(crate) fn new(schema: Value) -> Self {
        Self {
            schema,
            compiled: OnceLock::new(),
        }
    }

    /// Why a result does not match the schema. The result of a failed tool need not match.
    pub(crate) fn mismatch(&self, result: &Value) -> Option<String> {
        if result["isError"] == true {
            return None;
        }
        let Some(content) = result.get("structuredContent") else {
            return Some("it has no structuredContent, and the tool has an output schema".into());
        };
        match self.compiled.get_or_init(|| Compiled::new(&self.schema)) {
            Compiled::Valid { validator, cost }
                if cost.saturating_mul(parts(content)) <= STEPS_MAX =>
            {
                let error = validator.validate(content).err()?;
                let at = error.instance_path().as_str().to_owned();
                // Without the value: it may be long, or private.
                let why = error.masked();
                Some(format!(
                    "it does not fit the tool's output schema at {at:?}: {why}"
                ))
            }
            Compiled::Valid { .. } | Compiled::Skipped => {
                tracing::debug!("result not checked: the check could take too long");
                None
            }
            Compiled::Invalid(why) => {
                Some(format!("the tool's output schema cannot be applied: {why}"))
            }
        }
    }
}

impl Compiled {
    fn new(schema: &Value) -> Self {
        let mut costs = Costs {
            root: schema,
            known: HashMap::new(),
            open: Vec::new(),
            is_sure: true,
        };
        let Ok(cost) = costs.of(schema, 0) else {
            return Self::Skipped;
        };
        let options = jsonschema::options().with_retriever(NoFetch);
        let linear = options
            .clone()
            .with_pattern_options(PatternOptions::regex());
        match linear.build(schema) {
            Ok(validator) if costs.is_sure => Self::Valid {
                validator: Box::new(validator),
                cost,
            },
            Ok(_) => Self::Skipped,
            // A pattern may need the backtracking engine, whose time depends on the text.
            Err(_) if options.build(schema).is_ok() => Self::Skipped,
            Err(error) => Self::Invalid(error.to_string().chars().take(WHY_MAX).collect()),
        }
    }
}

/// Rejects references to other documents.
struct NoFetch;

impl Retrieve for NoFetch {
    fn retrieve(&self, _: &Uri<String>) -> Result<Value, Box<dyn Error + Send + Sync>> {
        Err("nothing that a schema refers to is fetched".into())
    }
}

/// The cost of a schema is too high, or depends on the value.
struct TooMuch;

/// The costs of a schema and its references.
struct Costs<'a> {
    root: &'a Value,
    known: HashMap<&'a str, u64>,
    /// The references that are being followed.
    open: Vec<&'a str>,
    /// Whether every reference leads where it seems to.
    is_sure: bool,
}

impl<'a> Costs<'a> {
    fn of(&mut self, schema: &'a Value, depth: usize) -> Result<u64, TooMuch> {
        if depth > DEPTH_MAX {
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
                        // Each evaluates its siblings again.
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

    /// The cost of a reference. References out of this document are not followed.
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
        OutputSchema::new(schema.clone()).mismatch(&result)
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
        let schema = OutputSchema::new(schema);
        let without = schema.mismatch(&json!({"content": []}));
        assert!(without.is_some_and(|why| why.contains("no structuredContent")));
        assert_eq!(
            schema.mismatch(&json!({"content": [], "isError": true})),
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
