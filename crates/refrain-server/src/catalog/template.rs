//! URI templates (RFC 6570), matched against URIs.
//!
//! The RFC defines expansion but not matching. A template is compiled to a regular expression without backreferences, so
//! matching is linear in the length of the URI.
//!
//! Invariant: templates and URIs are compared in normal form, which percent-encodes only where necessary.

#[cfg(test)]
mod random;
mod syntax;
#[cfg(test)]
mod tests;

pub use syntax::{TemplateError, TemplateFlaw};

use regex::Regex;
use serde_json::{Map, Value};
use std::cmp::Reverse;
use std::fmt::Write;
use syntax::{Expression, TemplatePart, Variable};

/// Maximum length of a URI that is matched, in bytes.
const MAX_URI: usize = 8 * 1024;

/// A compiled URI template.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    regex: Regex,
    /// The capture groups of the regex, in order.
    groups: Vec<Capture>,
    /// The length of the literal text.
    literal: usize,
}

/// The content of a capture group.
#[derive(Clone, Debug)]
enum Capture {
    /// The value of a variable, or all values of an exploded variable, with this separator.
    Values(Variable, char),
    /// Pairs of names and values in any order, with this separator.
    Pairs(Vec<Variable>, char),
}

impl Pattern {
    pub(crate) fn parse(template: &str) -> Result<Self, TemplateError> {
        let mut pattern = String::from("^");
        let mut groups = Vec::new();
        let mut literal = 0;
        for part in syntax::parse(template)? {
            match part {
                TemplatePart::Literal(text) => {
                    literal += text.len();
                    pattern.push_str(&regex::escape(&text));
                }
                TemplatePart::Expression(expression) => {
                    let separator = expression.operator.separator;
                    if expression.operator.is_named {
                        pattern.push_str(&pairs(&expression));
                        groups.push(Capture::Pairs(expression.variables, separator));
                    } else {
                        pattern.push_str(&values(&expression));
                        let variables = expression.variables.into_iter();
                        groups
                            .extend(variables.map(|variable| Capture::Values(variable, separator)));
                    }
                }
            }
        }
        pattern.push('$');
        let regex = Regex::new(&pattern)
            .map_err(|_| TemplateError::new(template, template.len(), TemplateFlaw::TooLarge))?;
        Ok(Self {
            regex,
            groups,
            literal,
        })
    }

    /// The variables of a matching URI in normal form: an array for an exploded variable, otherwise a string. A variable
    /// that does not occur is left out, or is an empty array.
    fn matches(&self, normal: &str) -> Option<Value> {
        let captures = self.regex.captures(normal)?;
        let captured = captures.iter().skip(1);
        let captured = captured.map(|capture| capture.map(|found| found.as_str()));
        let mut found = Vec::new();
        for (group, text) in self.groups.iter().zip(captured) {
            match group {
                Capture::Values(variable, separator) if variable.exploded => {
                    let items = text.map(|text| text.split(*separator).map(decode));
                    let items = items.map_or_else(|| Some(Vec::new()), Iterator::collect)?;
                    found.push((variable, Value::Array(items)));
                }
                Capture::Values(variable, _) => {
                    if let Some(text) = text {
                        found.push((variable, decode(text)?));
                    }
                }
                Capture::Pairs(variables, separator) => {
                    read_pairs(variables, text.unwrap_or_default(), *separator, &mut found)?;
                }
            }
        }
        merge(found).map(Value::Object)
    }

    pub(crate) fn variables(&self) -> Vec<&str> {
        self.uses().map(|variable| variable.name.as_str()).collect()
    }

    /// Whether both match the same URIs with the same values. Names of variables may differ.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let first_use =
            |pattern: &Self, name: &str| pattern.uses().position(|variable| variable.name == name);
        let is_alike = |(one, two): (&Variable, &Variable)| {
            one.prefix == two.prefix && first_use(self, &one.name) == first_use(other, &two.name)
        };
        self.regex.as_str() == other.regex.as_str() && self.uses().zip(other.uses()).all(is_alike)
    }

    /// The variables, repeated for each use.
    fn uses(&self) -> impl Iterator<Item = &Variable> {
        self.groups.iter().flat_map(|group| match group {
            Capture::Values(variable, _) => std::slice::from_ref(variable),
            Capture::Pairs(variables, _) => variables,
        })
    }
}

/// The variables and item of the matching pattern. If several match, the first with the most literal text wins.
pub(crate) fn find<'a, T>(
    patterns: impl Iterator<Item = (&'a Pattern, T)>,
    uri: &str,
) -> Option<(Value, T)> {
    if uri.len() > MAX_URI {
        return None;
    }
    let uri = normalize(uri)?;
    let matching =
        patterns.filter_map(|(pattern, item)| Some((pattern, (pattern.matches(&uri)?, item))));
    // `min_by_key` returns the first of several minima.
    let best = matching.min_by_key(|(pattern, _)| Reverse(pattern.literal));
    best.map(|(_, found)| found)
}

/// The regex for one character of a value.
fn character(expression: &Expression) -> String {
    let has_several = expression.variables.len() > 1 || expression.variables[0].exploded;
    let excluded = expression.operator.excluded[usize::from(has_several)];
    format!("(?:[^%{excluded}]|%[0-9A-F]{{2}})")
}

/// The regex for values in order. Values after the first are optional; so is the first, if the operator puts a sign before it.
fn values(expression: &Expression) -> String {
    let character = character(expression);
    let first = regex::escape(expression.operator.first);
    let separator = regex::escape(&expression.operator.separator.to_string());
    let mut pattern = String::new();
    // From last to first, because each group contains the following ones.
    for (at, variable) in expression.variables.iter().enumerate().rev() {
        let is_required = at == 0 && first.is_empty();
        let (lead, repetition) = match at {
            0 => (&first, if is_required { "+?" } else { "*?" }),
            _ => (&separator, "*?"),
        };
        let further_items = match variable.exploded {
            true => format!("(?:{separator}{character}*?)*?"),
            false => String::new(),
        };
        pattern = format!("{lead}({character}{repetition}{further_items}){pattern}");
        if !is_required {
            pattern = format!("(?:{pattern})?");
        }
    }
    pattern
}

/// The regex for pairs of names and values, all optional.
fn pairs(expression: &Expression) -> String {
    let character = character(expression);
    let variables = expression.variables.iter();
    let names: Vec<String> = variables.map(|it| regex::escape(&it.name)).collect();
    let names = names.join("|");
    let first = regex::escape(expression.operator.first);
    let separator = expression.operator.separator;
    let pair = format!("(?:{names})(?:={character}*?)?");
    format!("(?:{first}({pair}(?:{separator}{pair})*?))?")
}

/// Assigns pairs to their variables. `None` if a variable that is not exploded is repeated.
fn read_pairs<'a>(
    variables: &'a [Variable],
    text: &str,
    separator: char,
    found: &mut Vec<(&'a Variable, Value)>,
) -> Option<()> {
    let mut values: Vec<Vec<Value>> = vec![Vec::new(); variables.len()];
    for pair in text.split(separator).filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let index = variables
            .iter()
            .position(|variable| variable.name == name)?;
        values[index].push(decode(value)?);
    }
    for (variable, mut values) in variables.iter().zip(values) {
        if variable.exploded {
            found.push((variable, Value::Array(values)));
        } else if let Some(value) = values.pop() {
            if !values.is_empty() {
                return None;
            }
            found.push((variable, value));
        }
    }
    Some(())
}

/// Merges the values. All uses of a variable must have the same value, or prefixes of it.
fn merge(mut found: Vec<(&Variable, Value)>) -> Option<Map<String, Value>> {
    found.sort_by_key(|(variable, _)| Reverse(variable.prefix));
    let mut values = Map::with_capacity(found.len());
    for (variable, value) in found {
        let is_same = match (values.get(&variable.name), &value) {
            (Some(Value::String(first)), Value::String(value)) => {
                first.chars().take(variable.prefix).eq(value.chars())
            }
            (Some(first), value) => first == value,
            (None, Value::String(value)) => value.chars().nth(variable.prefix).is_none(),
            (None, _) => true,
        };
        if !is_same {
            return None;
        }
        values.entry(variable.name.clone()).or_insert(value);
    }
    Some(values)
}

/// The normal form of a URI or a part of it: letters, digits, `-._~` and reserved characters are plain, all others are
/// percent-encoded. Encoded reserved characters stay encoded, because their meaning differs. `None` if a `%` is not
/// followed by two hexadecimal digits.
pub(crate) fn normalize(text: &str) -> Option<String> {
    let mut normal = String::with_capacity(text.len());
    for byte in decode_bytes(text) {
        let (byte, is_encoded) = byte?;
        let is_unreserved = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let is_reserved = b":/?#[]@!$&'()*+,;=".contains(&byte);
        if is_unreserved || (is_reserved && !is_encoded) {
            normal.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(normal, "%{byte:02X}");
        }
    }
    Some(normal)
}

/// Decodes a value in normal form. `None` if it is not UTF-8.
fn decode(value: &str) -> Option<Value> {
    let bytes = decode_bytes(value).map(|byte| byte.map(|(byte, _)| byte));
    let text = String::from_utf8(bytes.collect::<Option<_>>()?);
    text.ok().map(Value::String)
}

/// The bytes of a text, and whether each was percent-encoded. `None` for an invalid `%`.
fn decode_bytes(text: &str) -> impl Iterator<Item = Option<(u8, bool)>> {
    let mut bytes = text.bytes();
    let digit = |bytes: &mut std::str::Bytes<'_>| {
        let digit = char::from(bytes.next()?).to_digit(16)?;
        u8::try_from(digit).ok()
    };
    std::iter::from_fn(move || {
        let encoded = match bytes.next()? {
            b'%' => digit(&mut bytes).zip(digit(&mut bytes)),
            byte => return Some(Some((byte, false))),
        };
        Some(encoded.map(|(high, low)| (high << 4 | low, true)))
    })
}
