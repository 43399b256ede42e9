//! Parser for URI templates: literal text and expressions.

use super::normalize;
use std::collections::HashMap;

/// An invalid URI template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid URI template {template:?}: at byte {at}: {flaw}")]
pub struct TemplateError {
    /// The template.
    pub template: String,
    /// The position of the defect, in bytes.
    pub at: usize,
    /// The defect.
    pub flaw: TemplateFlaw,
}

impl TemplateError {
    pub(super) fn new(template: &str, at: usize, flaw: TemplateFlaw) -> Self {
        Self {
            template: template.to_owned(),
            at,
            flaw,
        }
    }
}

/// The defect of a URI template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateFlaw {
    /// `{` without `}`.
    #[error("{{ without }}")]
    Unclosed,
    /// `}` without `{`.
    #[error("}} without {{")]
    Unopened,
    /// `%` without two hexadecimal digits.
    #[error("% without two hexadecimal digits")]
    Percent,
    /// An operator that RFC 6570 reserves.
    #[error("unknown operator {0:?}: expected one of + # . / ; ? &")]
    Operator(char),
    /// An invalid variable name.
    #[error("invalid variable name: use letters, digits and _, separated by single dots")]
    Name,
    /// An invalid prefix length.
    #[error("invalid prefix length: expected 1 to 9999 after the colon, as in {{name:3}}")]
    Prefix,
    /// An exploded variable that is not the last in its expression.
    #[error("an exploded variable matches all remaining values: put it last in its expression")]
    NotLast,
    /// A variable that is used both with and without `*`.
    #[error("a variable is used both with and without *")]
    Mixed,
    /// Two expressions without a separator.
    #[error(
        "no text or operator separates two expressions: \
         put text between them, or use an operator such as {{/name}}"
    )]
    Adjacent,
    /// A template that is too large to compile.
    #[error("the template is too large")]
    TooLarge,
}

pub(super) enum TemplatePart {
    /// In normal form.
    Literal(String),
    Expression(Expression),
}

pub(super) struct Expression {
    pub(super) operator: &'static Operator,
    /// At least one.
    pub(super) variables: Vec<Variable>,
}

#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub(super) name: String,
    /// Maximum number of characters of the value.
    pub(super) prefix: usize,
    /// Whether the variable has a `*`, so that its value is a list.
    pub(super) exploded: bool,
}

/// A row of the table of operators in RFC 6570.
pub(super) struct Operator {
    /// The sign before the first value.
    pub(super) first: &'static str,
    pub(super) separator: char,
    /// Whether values are written as `name=value`.
    pub(super) is_named: bool,
    /// Characters that end a value: for a single value, and for several values in one expression.
    pub(super) excluded: [&'static str; 2],
}

const fn operator(
    first: &'static str,
    separator: char,
    is_named: bool,
    excluded: [&'static str; 2],
) -> Operator {
    Operator {
        first,
        separator,
        is_named,
        excluded,
    }
}

static SIMPLE: Operator = operator("", ',', false, ["/?#", "/?#,"]);

static OPERATORS: [(char, Operator); 7] = [
    ('+', operator("", ',', false, ["", ","])),
    ('#', operator("#", ',', false, ["", ","])),
    ('.', operator(".", '.', false, ["/?#", "/?#."])),
    ('/', operator("/", '/', false, ["/?#", "/?#"])),
    (';', operator(";", ';', true, ["/?#;", "/?#;"])),
    ('?', operator("?", '&', true, ["#&", "#&"])),
    ('&', operator("&", '&', true, ["#&", "#&"])),
];

/// The operator of an expression, and the offset of its variables.
fn read_operator(expression: &str) -> Result<(&'static Operator, usize), TemplateFlaw> {
    let sign = expression.chars().next();
    if let Some(reserved @ ('=' | ',' | '!' | '@' | '|')) = sign {
        return Err(TemplateFlaw::Operator(reserved));
    }
    let found = OPERATORS
        .iter()
        .find(|(operator, _)| Some(*operator) == sign);
    Ok(found.map_or((&SIMPLE, 0), |(_, operator)| (operator, 1)))
}

pub(super) fn parse(template: &str) -> Result<Vec<TemplatePart>, TemplateError> {
    let fail = |at, flaw| TemplateError::new(template, at, flaw);
    let mut parts = Vec::new();
    let mut exploded_by_name = HashMap::new();
    let mut at = 0;
    while at < template.len() {
        let rest = &template[at..];
        let open = rest.find('{').unwrap_or(rest.len());
        if open > 0 {
            parts.push(TemplatePart::Literal(
                literal(&rest[..open]).map_err(|(within, flaw)| fail(at + within, flaw))?,
            ));
            at += open;
            continue;
        }
        let close = rest
            .find('}')
            .ok_or_else(|| fail(at, TemplateFlaw::Unclosed))?;
        let expression =
            expression(&rest[1..close]).map_err(|(within, flaw)| fail(at + 1 + within, flaw))?;
        let is_adjacent = matches!(parts.last(), Some(TemplatePart::Expression(_)));
        if is_adjacent && expression.operator.first.is_empty() {
            return Err(fail(at, TemplateFlaw::Adjacent));
        }
        for variable in &expression.variables {
            let exploded = *exploded_by_name
                .entry(variable.name.clone())
                .or_insert(variable.exploded);
            if exploded != variable.exploded {
                return Err(fail(at, TemplateFlaw::Mixed));
            }
        }
        parts.push(TemplatePart::Expression(expression));
        at += close + 1;
    }
    Ok(parts)
}

type ParseResult<T> = Result<T, (usize, TemplateFlaw)>;

fn literal(text: &str) -> ParseResult<String> {
    if let Some(at) = text.find('}') {
        return Err((at, TemplateFlaw::Unopened));
    }
    normalize(text).ok_or_else(|| (bad_percent(text), TemplateFlaw::Percent))
}

/// The position of the first `%` without two hexadecimal digits.
fn bad_percent(text: &str) -> usize {
    let mut percents = text.match_indices('%').map(|(at, _)| at);
    let bad = percents.find(|at| {
        let digits = text.as_bytes().get(at + 1..at + 3);
        !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    });
    bad.unwrap_or(0)
}

fn expression(text: &str) -> ParseResult<Expression> {
    let (operator, mut at) = read_operator(text).map_err(|flaw| (0, flaw))?;
    let mut variables: Vec<Variable> = Vec::new();
    for spec in text[at..].split(',') {
        let follows_list = variables.last().is_some_and(|earlier| earlier.exploded);
        if follows_list && !operator.is_named {
            return Err((at, TemplateFlaw::NotLast));
        }
        variables.push(variable(spec).map_err(|(within, flaw)| (at + within, flaw))?);
        at += spec.len() + 1;
    }
    Ok(Expression {
        operator,
        variables,
    })
}

fn variable(spec: &str) -> ParseResult<Variable> {
    let (name, prefix) = match spec.split_once(':') {
        Some((name, length)) => {
            let has_only_digits = length.bytes().all(|byte| byte.is_ascii_digit());
            let length = length.parse().ok().filter(|_| has_only_digits);
            let length = length.filter(|length| (1..=9999).contains(length));
            let prefix = length.ok_or((name.len() + 1, TemplateFlaw::Prefix))?;
            (name, prefix)
        }
        None => (spec, usize::MAX),
    };
    let (name, exploded) = match name.strip_suffix('*') {
        Some(name) if prefix == usize::MAX => (name, true),
        _ => (name, false),
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '%');
    let is_name = |part: &str| !part.is_empty() && part.chars().all(is_plain);
    let name = normalize(name).filter(|_| name.split('.').all(is_name));
    Ok(Variable {
        name: name.ok_or((0, TemplateFlaw::Name))?,
        prefix,
        exploded,
    })
}
