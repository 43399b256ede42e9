//! URI templates (RFC 6570), read backwards: a URI goes in, the values of the template's variables come out.
//!
//! The RFC says how a template is expanded and leaves matching open. A template is compiled to a regular expression
//! without back references, so that the time to match is linear in the length of the URI, whatever a caller sends.
//!
//! Always true: template and URI are compared in one normal form, in which only what must be percent-encoded is.

#[cfg(test)]
mod random;
mod syntax;
#[cfg(test)]
mod tests;

pub use syntax::{TemplateError, TemplateFlaw};

use regex::Regex;
use serde_json::{Map, Value};
use std::cmp::Reverse;
use syntax::{Expression, Operator, Part, Variable};

/// The longest URI that is matched, in bytes.
const LONGEST_URI: usize = 8 * 1024;

const DIGITS: &[u8; 16] = b"0123456789ABCDEF";

/// A URI template that URIs can be matched against.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    regex: Regex,
    /// What the regex captures, in this order.
    groups: Vec<Group>,
    /// How much of the template is literal text.
    literal: usize,
}

/// What one group of the regex captures.
#[derive(Clone, Debug)]
enum Group {
    /// The value of a variable, or all values of an exploded one, with this between them.
    Values(Variable, char),
    /// Pairs of names and values in any order, with this between them.
    Pairs(Vec<Variable>, char),
}

impl Pattern {
    pub(crate) fn parse(template: &str) -> Result<Self, TemplateError> {
        let mut pattern = String::from("^");
        let mut groups = Vec::new();
        let mut literal = 0;
        for part in syntax::parse(template)? {
            match part {
                Part::Literal(text) => {
                    literal += text.len();
                    pattern.push_str(&regex::escape(&text));
                }
                Part::Expression(expression) if expression.operator.is_named() => {
                    pattern.push_str(&pairs(&expression));
                    let separator = expression.operator.separator();
                    groups.push(Group::Pairs(expression.variables, separator));
                }
                Part::Expression(expression) => {
                    pattern.push_str(&values(&expression));
                    let separator = expression.operator.separator();
                    let variables = expression.variables.into_iter();
                    groups.extend(variables.map(|variable| Group::Values(variable, separator)));
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

    /// The variables of a URI (in normal form) that matches: an array for an exploded variable, a string for any
    /// other. What is left out of the URI has no value; an exploded variable then is empty.
    fn matches(&self, normal: &str) -> Option<Value> {
        let captures = self.regex.captures(normal)?;
        let captured = captures.iter().skip(1);
        let captured = captured.map(|capture| capture.map(|found| found.as_str()));
        let mut found = Vec::new();
        for (group, text) in self.groups.iter().zip(captured) {
            match group {
                Group::Values(variable, separator) if variable.exploded => {
                    let items = text.map(|text| text.split(*separator).map(decode));
                    let items = items.map_or_else(|| Some(Vec::new()), Iterator::collect)?;
                    found.push((variable, Value::Array(items)));
                }
                Group::Values(variable, _) => {
                    if let Some(text) = text {
                        found.push((variable, decode(text)?));
                    }
                }
                Group::Pairs(variables, separator) => {
                    read_pairs(variables, text.unwrap_or_default(), *separator, &mut found)?;
                }
            }
        }
        agree(found).map(Value::Object)
    }

    /// The names of its variables.
    pub(crate) fn variables(&self) -> Vec<&str> {
        self.uses().map(|variable| variable.name.as_str()).collect()
    }

    /// Whether both match the same URIs, however their variables are called.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let first_use =
            |pattern: &Self, name: &str| pattern.uses().position(|variable| variable.name == name);
        let alike = |(one, two): (&Variable, &Variable)| {
            one.prefix == two.prefix && first_use(self, &one.name) == first_use(other, &two.name)
        };
        self.regex.as_str() == other.regex.as_str() && self.uses().zip(other.uses()).all(alike)
    }

    /// Its variables, one that is used twice twice.
    fn uses(&self) -> impl Iterator<Item = &Variable> {
        self.groups.iter().flat_map(|group| match group {
            Group::Values(variable, _) => std::slice::from_ref(variable),
            Group::Pairs(variables, _) => variables,
        })
    }
}

/// The pattern that a URI matches, and its variables. Of several, the one with the most literal text, and the first of
/// those.
pub(crate) fn find<'a, T>(
    patterns: impl Iterator<Item = (&'a Pattern, T)>,
    uri: &str,
) -> Option<(Value, T)> {
    if uri.len() > LONGEST_URI {
        return None;
    }
    let uri = normalise(uri)?;
    let mut found: Option<(usize, (Value, T))> = None;
    for (pattern, item) in patterns {
        if found
            .as_ref()
            .is_none_or(|(most, _)| pattern.literal > *most)
            && let Some(variables) = pattern.matches(&uri)
        {
            found = Some((pattern.literal, (variables, item)));
        }
    }
    found.map(|(_, found)| found)
}

/// One character of a value.
fn character(expression: &Expression) -> String {
    let several = expression.variables.len() > 1 || expression.variables[0].exploded;
    let excluded = match expression.operator {
        Operator::Simple if several => "/?#,",
        Operator::Label if several => "/?#.",
        Operator::Simple | Operator::Label | Operator::Path => "/?#",
        Operator::Reserved | Operator::Fragment if several => ",",
        Operator::Reserved | Operator::Fragment => "",
        Operator::Parameter => "/?#;",
        Operator::Query | Operator::Continuation => "#&",
    };
    format!("(?:[^%{excluded}]|%[0-9A-F]{{2}})")
}

/// Values one after the other; those at the end may be missing, and where there is a sign before the first, all.
fn values(expression: &Expression) -> String {
    let character = character(expression);
    let first = regex::escape(expression.operator.first());
    let separator = regex::escape(&expression.operator.separator().to_string());
    let mut pattern = String::new();
    // From the last to the first: each is followed by the next ones, or by none of them.
    for (at, variable) in expression.variables.iter().enumerate().rev() {
        let needed = at == 0 && first.is_empty();
        let (lead, some) = match at {
            0 => (&first, if needed { "+?" } else { "*?" }),
            _ => (&separator, "*?"),
        };
        let more = match variable.exploded {
            true => format!("(?:{separator}{character}*?)*?"),
            false => String::new(),
        };
        let value = format!("{lead}({character}{some}{more}){pattern}");
        pattern = if needed {
            value
        } else {
            format!("(?:{value})?")
        };
    }
    pattern
}

/// Pairs of names and values, none of them needed.
fn pairs(expression: &Expression) -> String {
    let character = character(expression);
    let names: Vec<String> = expression
        .variables
        .iter()
        .map(|variable| regex::escape(&variable.name))
        .collect();
    let names = names.join("|");
    let first = regex::escape(expression.operator.first());
    let separator = expression.operator.separator();
    let pair = format!("(?:{names})(?:={character}*?)?");
    format!("(?:{first}({pair}(?:{separator}{pair})*?))?")
}

/// Sorts pairs to their variables. `None` if a variable that is not exploded comes twice.
fn read_pairs<'a>(
    variables: &'a [Variable],
    text: &str,
    separator: char,
    found: &mut Vec<(&'a Variable, Value)>,
) -> Option<()> {
    let mut values: Vec<Vec<Value>> = vec![Vec::new(); variables.len()];
    for pair in text.split(separator).filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let at = variables.iter().position(|known| known.name == name)?;
        values[at].push(decode(value)?);
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

/// Puts the values together. A variable that is used twice must have one value, of which a prefix may be a part.
fn agree(mut found: Vec<(&Variable, Value)>) -> Option<Map<String, Value>> {
    found.sort_by_key(|(variable, _)| Reverse(variable.prefix));
    let mut values = Map::with_capacity(found.len());
    for (variable, value) in found {
        let fits = match (values.get(&variable.name), &value) {
            (Some(Value::String(known)), Value::String(value)) => {
                known.chars().take(variable.prefix).eq(value.chars())
            }
            (Some(known), value) => known == value,
            (None, Value::String(value)) => value.chars().nth(variable.prefix).is_none(),
            (None, _) => true,
        };
        if !fits {
            return None;
        }
        values.entry(variable.name.clone()).or_insert(value);
    }
    Some(values)
}

/// The normal form of a URI or a part of one: letters, digits, `-._~` and the reserved characters as they are, hence
/// decoded where they need not be encoded, and all else percent-encoded. An encoded reserved character stays encoded, since
/// it means something else then. `None` if a `%` is not followed by two hexadecimal digits.
pub(crate) fn normalise(text: &str) -> Option<String> {
    let mut normal = String::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let (byte, encoded) = match byte {
            b'%' => (hex(bytes.next()?)? << 4 | hex(bytes.next()?)?, true),
            byte => (byte, false),
        };
        let unreserved = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let reserved = b":/?#[]@!$&'()*+,;=".contains(&byte);
        if unreserved || (reserved && !encoded) {
            normal.push(char::from(byte));
        } else {
            normal.push('%');
            normal.push(char::from(DIGITS[usize::from(byte >> 4)]));
            normal.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
    Some(normal)
}

/// Decodes a value in normal form. `None` if it is not UTF-8.
fn decode(value: &str) -> Option<Value> {
    let mut decoded = Vec::with_capacity(value.len());
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => hex(bytes.next()?)? << 4 | hex(bytes.next()?)?,
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok().map(Value::String)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}
