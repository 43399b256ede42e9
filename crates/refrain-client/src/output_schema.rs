//! Validation of results against the output schemas of tools.
//!
//! References are never fetched, and the cost of a validation is bounded in advance. A schema of unbounded cost, such as
//! a recursive schema, is not applied.

use jsonschema::{PatternOptions, Retrieve, Uri, Validator};
use serde_json::Value;
use std::collections::HashMap;
use std::error::Error;
use std::sync::OnceLock;

/// The limit of the product of schema parts (with references expanded) and value parts.
const STEPS_MAX: u64 = 20_000_000;
/// The maximum depth of a schema, with references expanded.
const DEPTH_MAX: usize = 128;
/// This many bytes of text count as one part of a value.
const TEXT_PART: usize = 64;
/// The maximum length of an error about a schema, which may repeat the schema.
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
    /// The cost is unbounded, so the schema is not applied.
    Skipped,
    /// The schema is invalid, so no result can match.
    Invalid(String),
}

impl OutputSchema {
    pub(crate) fn new(schema: Value) -> Self {
        Self {
            schema,
            compiled: OnceLock::new(),
        }
    }

    /// Why a result does not match the schema, if so. Error results are not validated.
    pub(crate) fn mismatch(&self, result: &Value) -> Option<String> {
        if result["isError"] == true {
            return None;
        }
        let Some(content) = result.get("structuredContent") else {
            return Some("no structuredContent, although the tool has an output schema".into());
        };
        match self.compiled.get_or_init(|| Compiled::new(&self.schema)) {
            Compiled::Valid { validator, cost }
                if cost.saturating_mul(parts(content)) <= STEPS_MAX =>
            {
                let error = validator.validate(content).err()?;
                let path = error.instance_path().as_str().to_owned();
                // Without the value, which may be long or private.
                let why = error.masked();
                Some(format!(
                    "it does not match the tool's output schema at {path:?}: {why}"
                ))
            }
            Compiled::Valid { .. } | Compiled::Skipped => {
                tracing::debug!("result not validated: schema too costly");
                None
            }
            Compiled::Invalid(why) => Some(format!("the tool's output schema is invalid: {why}")),
        }
    }
}

impl Compiled {
    fn new(schema: &Value) -> Self {
        let mut costs = Costs {
            root: schema,
            known: HashMap::new(),
            open: Vec::new(),
            is_exact: true,
        };
        let Ok(cost) = costs.of(schema, 0) else {
            return Self::Skipped;
        };
        let options = jsonschema::options().with_retriever(NoFetch);
        let linear_time = options
            .clone()
            .with_pattern_options(PatternOptions::regex());
        match linear_time.build(schema) {
            Ok(validator) if costs.is_exact => Self::Valid {
                validator: Box::new(validator),
                cost,
            },
            Ok(_) => Self::Skipped,
            // A pattern needs the backtracking engine, whose time is unbounded.
            Err(_) if options.build(schema).is_ok() => Self::Skipped,
            Err(error) => Self::Invalid(error.to_string().chars().take(WHY_MAX).collect()),
        }
    }
}

struct NoFetch;

impl Retrieve for NoFetch {
    fn retrieve(&self, _: &Uri<String>) -> Result<Value, Box<dyn Error + Send + Sync>> {
        Err("external schema references are not fetched".into())
    }
}

/// The cost of a schema is too high or unbounded.
struct UnboundedCost;

struct Costs<'a> {
    root: &'a Value,
    known: HashMap<&'a str, u64>,
    /// The references being expanded, to detect recursion.
    open: Vec<&'a str>,
    /// Whether all references were resolved with certainty.
    is_exact: bool,
}

impl<'a> Costs<'a> {
    fn of(&mut self, schema: &'a Value, depth: usize) -> Result<u64, UnboundedCost> {
        if depth > DEPTH_MAX {
            return Err(UnboundedCost);
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
                        ("$ref", Value::String(reference)) => {
                            self.of_reference(reference, depth + 1)?
                        }
                        ("$dynamicRef" | "$recursiveRef", Value::String(_)) => {
                            return Err(UnboundedCost);
                        }
                        // These evaluate their siblings again.
                        ("unevaluatedProperties" | "unevaluatedItems", _) => {
                            return Err(UnboundedCost);
                        }
                        ("$id" | "id", Value::String(_)) if depth > 0 => {
                            self.is_exact = false;
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

    /// The cost of a reference. References to other documents are not followed.
    fn of_reference(&mut self, reference: &'a str, depth: usize) -> Result<u64, UnboundedCost> {
        if let Some(cost) = self.known.get(reference) {
            return Ok(*cost);
        }
        if self.open.contains(&reference) {
            return Err(UnboundedCost);
        }
        let root = self.root;
        let schema = reference
            .strip_prefix('#')
            .and_then(|pointer| root.pointer(pointer));
        let Some(schema) = schema else {
            self.is_exact = false;
            return Ok(1);
        };
        self.open.push(reference);
        let cost = self.of(schema, depth)?;
        self.open.pop();
        self.known.insert(reference, cost);
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

    fn mismatch(schema: &Value, content: &Value) -> Option<String> {
        let result = json!({"content": [], "structuredContent": content});
        OutputSchema::new(schema.clone()).mismatch(&result)
    }

    #[test]
    fn result_is_validated_against_the_schema() {
        let schema = json!({"type": "object", "required": ["degrees"], "properties": {
            "degrees": {"$ref": "#/$defs/degrees"}, "sky": {"$ref": "#/$defs/sky"},
        }, "$defs": {"degrees": {"type": "number"}, "sky": {"pattern": "^c"}}});
        assert_eq!(
            mismatch(&schema, &json!({"degrees": 21.5, "sky": "clear"})),
            None
        );
        let secret =
            mismatch(&schema, &json!({"degrees": "secret"})).expect("degrees is no number");
        assert!(
            secret.contains("\"/degrees\"") && !secret.contains("secret"),
            "{secret}"
        );
        assert!(mismatch(&schema, &json!({})).is_some_and(|why| why.contains("degrees")));
        assert!(mismatch(&schema, &json!({"degrees": 1, "sky": "grey"})).is_some());
        let schema = OutputSchema::new(schema);
        let without = schema.mismatch(&json!({"content": []}));
        assert!(without.is_some_and(|why| why.contains("no structuredContent")));
        assert_eq!(
            schema.mismatch(&json!({"content": [], "isError": true})),
            None
        );
        // A schema may allow any JSON value, including null.
        assert_eq!(mismatch(&json!({"type": "null"}), &Value::Null), None);
        assert!(mismatch(&json!({"type": "null"}), &json!([])).is_some());
        let draft_07 = json!({"$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"a": {"type": "string"}}, "items": [{"$ref": "#/definitions/a"}]});
        assert_eq!(mismatch(&draft_07, &json!(["x", 1])), None);
        assert!(mismatch(&draft_07, &json!([1])).is_some());
    }

    #[test]
    fn external_or_invalid_schema_rejects_every_result() {
        for schema in [
            json!({"$ref": "http://127.0.0.1:1/schema.json"}),
            json!({"properties": {"a": {"$ref": "file:///etc/hostname"}}}),
            json!({"$ref": "#/$defs/nowhere"}),
            json!({"$schema": "https://example.com/dialect"}),
            json!({"type": "nonsense"}),
            json!({"pattern": "("}),
        ] {
            let why = mismatch(&schema, &json!({})).expect("the schema is invalid");
            assert!(why.contains("output schema is invalid"), "{schema}: {why}");
        }
    }

    /// Each of these schemas could take unbounded time for some value.
    #[test]
    fn schema_of_unbounded_cost_is_not_applied() {
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
        // An `id` inside the schema changes what its references resolve to.
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
            assert_eq!(mismatch(&schema, &deep), None);
        }
        // A large schema is applied to a small value, and not to a large one.
        let many: serde_json::Map<_, _> = (0..2000)
            .map(|at| (format!("p{at}"), json!({"type": "string"})))
            .collect();
        let wide = json!({"properties": many});
        assert!(mismatch(&wide, &json!({"p7": 7})).is_some());
        assert_eq!(
            mismatch(&wide, &json!({"p7": 7, "rest": vec![0; 20_000]})),
            None
        );
    }
}
