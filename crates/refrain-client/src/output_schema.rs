//! Validation of results against the output schemas of tools.
//!
//! References are never fetched, and the time and memory of a validation are bounded in advance. A schema whose cost is
//! unknown or too high, such as a recursive schema or one with large patterns, is not applied.

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, Retrieve, Uri, ValidationError, ValidationOptions, Validator};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::error::Error;
use std::ops::AddAssign;
use std::sync::OnceLock;

/// The limit of the product of schema parts (with references expanded) and value parts.
const STEPS_MAX: u64 = 20_000_000;
/// Up to this many steps, an error says where the value does not match. Each step may need memory for an error.
const EXPLAINED_STEPS_MAX: u64 = 100_000;
/// The maximum number of parts of a schema, with references expanded. The validator needs up to 2 KB for each.
const PARTS_MAX: u64 = 30_000;
/// The maximum sum of the lengths of the locations (base URI and path) of all parts, in bytes. The validator keeps a few copies.
const LOCATIONS_MAX: usize = 4 << 20;
/// An `$id` in a subschema counts as this many parts.
const ID_PARTS: u64 = 16;
/// The maximum depth of a schema, with references expanded.
const DEPTH_MAX: usize = 128;
/// The maximum number of patterns of a schema, with references expanded.
const PATTERNS_MAX: u64 = 50;
/// The maximum length of a pattern, in bytes.
const PATTERN_MAX: usize = 1000;
/// Limits for the size of each compiled pattern, in bytes. The first one that suffices determines the cost.
const PATTERN_SIZES: [usize; 4] = [1 << 10, 1 << 12, 1 << 14, 1 << 16];
/// The size of the cache for matching a pattern, in bytes.
const PATTERN_CACHE: usize = 1 << 16;
/// This many bytes of a compiled pattern count as one part of a schema.
const PATTERN_PART: usize = 16;
/// This many bytes of text count as one part of a value.
const TEXT_PART: usize = 64;
/// The maximum length of an error, which may repeat parts of the schema.
const EXCERPT_MAX: usize = 300;

pub(crate) struct OutputSchema {
    schema: Value,
    compiled: OnceLock<Compiled>,
}

enum Compiled {
    Valid {
        validator: Box<Validator>,
        parts: u64,
        /// `parts`, plus the cost of the patterns in parts.
        cost: u64,
    },
    /// The cost is too high or unknown, so the schema is not applied.
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

    /// Why a result does not match the schema. `None` if it matches, is an error, or was not validated.
    pub(crate) fn mismatch(&self, result: &Value) -> Option<String> {
        if result["isError"] == true {
            return None;
        }
        let Some(content) = result.get("structuredContent") else {
            return Some("no structuredContent, although the tool has an output schema".into());
        };
        let compiled = self.compiled.get_or_init(|| Compiled::new(&self.schema));
        let (validator, schema_parts, cost) = match compiled {
            Compiled::Valid {
                validator,
                parts,
                cost,
            } => (validator, *parts, *cost),
            Compiled::Skipped => return not_validated(),
            Compiled::Invalid(why) => {
                return Some(format!("the tool's output schema is invalid: {why}"));
            }
        };
        let content_parts = parts(content);
        if cost.saturating_mul(content_parts) > STEPS_MAX {
            return not_validated();
        }
        if validator.is_valid(content) {
            return None;
        }
        let mut why = "it does not match the tool's output schema".to_owned();
        if schema_parts.saturating_mul(content_parts) <= EXPLAINED_STEPS_MAX {
            let error = validator.validate(content).err()?;
            let path = error.instance_path().as_str();
            // Without the value, which may be long or private.
            let reason = excerpt(&error.masked());
            why = format!("{why} at {:?}: {reason}", excerpt(&path));
        }
        Some(why)
    }
}

fn not_validated() -> Option<String> {
    tracing::debug!("result not validated: schema too costly");
    None
}

fn excerpt(text: &impl ToString) -> String {
    text.to_string().chars().take(EXCERPT_MAX).collect()
}

impl Compiled {
    fn new(schema: &Value) -> Self {
        let mut costs = Costs {
            root: schema,
            by_reference: HashMap::new(),
            expanding: Vec::new(),
            is_exact: true,
            location: 0,
            locations: 0,
        };
        let cost = match costs.of(schema, 0) {
            Ok(cost) if cost.parts <= PARTS_MAX && cost.patterns <= PATTERNS_MAX => cost,
            _ => return Self::Skipped,
        };
        let mut rejection = None;
        for size in PATTERN_SIZES {
            match options(size).build(schema) {
                Ok(validator) if costs.is_exact => {
                    let pattern_parts = (size / PATTERN_PART) as u64;
                    return Self::Valid {
                        validator: Box::new(validator),
                        parts: cost.parts,
                        cost: cost.parts + cost.patterns * pattern_parts,
                    };
                }
                Ok(_) => return Self::Skipped,
                Err(error) => rejection = Some(error),
            }
        }
        match rejection {
            Some(error) if !is_costly_pattern(&error) => Self::Invalid(excerpt(&error)),
            _ => Self::Skipped,
        }
    }
}

fn options(pattern_size: usize) -> ValidationOptions<'static> {
    // The `regex` engine takes linear time. Its patterns may be larger than the text that describes them.
    let patterns = PatternOptions::regex()
        .size_limit(pattern_size)
        .dfa_size_limit(PATTERN_CACHE);
    jsonschema::options()
        .with_retriever(NoFetch)
        .with_pattern_options(patterns)
        // These formats would parse a text of the result as a pattern or as JSON.
        .with_format("regex", |_| true)
        .without_content_media_type_support("application/json")
}

/// Whether a schema was rejected for a valid pattern that is too large or needs the backtracking engine, whose time is
/// unbounded.
fn is_costly_pattern(error: &ValidationError<'_>) -> bool {
    let is_pattern =
        matches!(error.kind(), ValidationErrorKind::Format { format } if format == "regex");
    let syntax = jsonschema::options().should_validate_formats(true);
    let syntax = syntax.build(&json!({"format": "regex"}));
    is_pattern && syntax.is_ok_and(|syntax| syntax.is_valid(error.instance()))
}

struct NoFetch;

impl Retrieve for NoFetch {
    fn retrieve(&self, _: &Uri<String>) -> Result<Value, Box<dyn Error + Send + Sync>> {
        Err("external schema references are not fetched".into())
    }
}

/// The cost of a schema is too high or unbounded.
struct UnboundedCost;

/// The parts and patterns of a schema, with references expanded.
#[derive(Clone, Copy)]
struct Cost {
    parts: u64,
    patterns: u64,
}

impl Cost {
    const PART: Self = Self {
        parts: 1,
        patterns: 0,
    };

    fn of_pattern(pattern: &str) -> Result<Self, UnboundedCost> {
        if pattern.len() > PATTERN_MAX {
            return Err(UnboundedCost);
        }
        Ok(Self {
            parts: 1,
            patterns: 1,
        })
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.parts = self.parts.saturating_add(other.parts);
        self.patterns = self.patterns.saturating_add(other.patterns);
    }
}

/// Computes the cost of a schema.
struct Costs<'a> {
    root: &'a Value,
    by_reference: HashMap<&'a str, Cost>,
    /// The references being expanded, to detect recursion.
    expanding: Vec<&'a str>,
    /// Whether all references were resolved with certainty.
    is_exact: bool,
    /// The length of the location of the current part.
    location: usize,
    /// The sum of the lengths of the locations of all parts.
    locations: usize,
}

impl<'a> Costs<'a> {
    fn of(&mut self, schema: &'a Value, depth: usize) -> Result<Cost, UnboundedCost> {
        self.locations = self.locations.saturating_add(self.location);
        if depth > DEPTH_MAX || self.locations > LOCATIONS_MAX {
            return Err(UnboundedCost);
        }
        let mut cost = Cost::PART;
        match schema {
            Value::Array(schemas) => {
                for schema in schemas {
                    cost += self.of(schema, depth + 1)?;
                }
            }
            Value::Object(keywords) => {
                let parent = self.location;
                let base = ["$id", "id"].map(|id| schema[id].as_str().map_or(0, str::len));
                for (keyword, value) in keywords {
                    self.location = parent + base[0] + base[1] + keyword.len() + 1;
                    cost += self.of_keyword(keyword, value, depth)?;
                }
                self.location = parent;
            }
            _ => {}
        }
        Ok(cost)
    }

    fn of_keyword(
        &mut self,
        keyword: &str,
        value: &'a Value,
        depth: usize,
    ) -> Result<Cost, UnboundedCost> {
        match (keyword, value) {
            ("$ref", Value::String(reference)) => self.of_reference(reference, depth + 1),
            ("$dynamicRef" | "$recursiveRef", Value::String(_)) => Err(UnboundedCost),
            // These keywords evaluate their siblings again.
            ("unevaluatedProperties" | "unevaluatedItems", _) => Err(UnboundedCost),
            ("$id" | "id", Value::String(_)) if depth > 0 => {
                self.is_exact = false;
                Ok(Cost {
                    parts: ID_PARTS,
                    patterns: 0,
                })
            }
            ("pattern", Value::String(pattern)) => Cost::of_pattern(pattern),
            ("patternProperties", Value::Object(schemas)) => {
                let mut cost = self.of(value, depth + 1)?;
                for pattern in schemas.keys() {
                    cost += Cost::of_pattern(pattern)?;
                }
                Ok(cost)
            }
            (_, value) => self.of(value, depth + 1),
        }
    }

    /// The cost of a reference. References to other documents are not followed.
    fn of_reference(&mut self, reference: &'a str, depth: usize) -> Result<Cost, UnboundedCost> {
        if let Some(cost) = self.by_reference.get(reference) {
            return Ok(*cost);
        }
        if self.expanding.contains(&reference) {
            return Err(UnboundedCost);
        }
        let root = self.root;
        let schema = reference
            .strip_prefix('#')
            .and_then(|pointer| root.pointer(pointer));
        let Some(schema) = schema else {
            self.is_exact = false;
            return Ok(Cost::PART);
        };
        self.expanding.push(reference);
        let cost = self.of(schema, depth)?;
        self.expanding.pop();
        self.by_reference.insert(reference, cost);
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

    /// The validator needs memory for the location of each part.
    #[test]
    fn schema_with_long_locations_is_not_applied() {
        let nested = |name_length, parts| {
            let names = (0..parts).map(|at| (format!("p{at}"), json!({"type": "string"})));
            let inner: serde_json::Map<_, _> = names.collect();
            json!({"properties": {"x".repeat(name_length): {"properties": inner}, "a": {"type": "string"}}})
        };
        let content = json!({"a": 1});
        assert!(mismatch(&nested(20, 2000), &content).is_some());
        assert_eq!(mismatch(&nested(20_000, 2000), &content), None);
        let mut with_id = nested(20, 2000);
        with_id["$id"] = json!(format!("http://x/{}", "y".repeat(20_000)));
        assert_eq!(mismatch(&with_id, &content), None);
    }

    #[test]
    fn schema_with_costly_patterns_is_not_applied() {
        let many = |count| -> Value {
            let patterns = (0..count).map(|at| json!({"pattern": format!("^[a-f]{at}+$")}));
            json!({"allOf": patterns.collect::<Vec<_>>()})
        };
        assert!(mismatch(&many(PATTERNS_MAX), &json!("x")).is_some());
        let named: serde_json::Map<_, _> = (0..=PATTERNS_MAX)
            .map(|at| (format!("^[a-f]{at}+$"), json!(false)))
            .collect();
        let mut repeated = many(PATTERNS_MAX / 2 + 1);
        repeated = json!({"$defs": {"p": repeated}, "allOf": [{"$ref": "#/$defs/p"}, {"$ref": "#/$defs/p"}]});
        for schema in [
            many(PATTERNS_MAX + 1),
            repeated,
            json!({"pattern": "(?:[a-f]{99}){99}"}),
            json!({"pattern": "[a-f]?".repeat(PATTERN_MAX)}),
        ] {
            assert_eq!(mismatch(&schema, &json!("x")), None);
        }
        let named = json!({"patternProperties": named});
        assert_eq!(mismatch(&named, &json!({"aa0": 1, "a0": 1})), None);
        // The larger the pattern, the shorter the text that may be matched with it.
        let large = json!({"pattern": "^[a-f]{400}$"});
        assert!(mismatch(&large, &json!("x")).is_some());
        assert_eq!(mismatch(&large, &json!("x".repeat(1_000_000))), None);
        let small = json!({"pattern": "^[a-f]+$"});
        assert!(mismatch(&small, &json!("x".repeat(1_000_000))).is_some());
    }

    #[test]
    fn text_of_a_result_is_not_parsed() {
        let draft_07 = "http://json-schema.org/draft-07/schema#";
        let pattern = json!({"$schema": draft_07, "format": "regex"});
        assert_eq!(mismatch(&pattern, &json!("(")), None);
        let media_type = json!({"$schema": draft_07, "contentMediaType": "application/json"});
        assert_eq!(mismatch(&media_type, &json!("{")), None);
    }

    /// Each branch that does not match would need memory for an error per item.
    #[test]
    fn mismatch_of_a_large_result_is_not_explained() {
        let branch = json!({"items": {"type": "string"}});
        let schema = json!({"anyOf": vec![branch; 10]});
        let why = mismatch(&schema, &json!(vec![0; 10])).expect("no string");
        assert!(why.contains("anyOf"), "{why}");
        let why = mismatch(&schema, &json!(vec![0; 100_000])).expect("no string");
        assert_eq!(why, "it does not match the tool's output schema");
    }
}
