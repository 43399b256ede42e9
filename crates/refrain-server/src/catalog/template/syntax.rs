//! The syntax of a URI template: literal text and expressions in turn.

use super::normalise;
use std::collections::HashMap;

/// Why a URI template cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the URI template {template:?} is not usable: at byte {at}, {flaw}")]
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
    /// An expression does not end.
    #[error("a {{ has no }}")]
    Unclosed,
    /// An expression does not begin.
    #[error("a }} has no {{")]
    Unopened,
    /// A percent sign that encodes nothing.
    #[error("a % is not followed by two hexadecimal digits")]
    Percent,
    /// An operator that RFC 6570 reserves.
    #[error("the operator {0:?} has no meaning; there are + # . / ; ? &")]
    Operator(char),
    /// An invalid variable name.
    #[error("a variable has to be a name of letters, digits and _, with single dots between them")]
    Name,
    /// A prefix that is not a length.
    #[error("what follows the : has to be a length from 1 to 9999, as in {{name:3}}")]
    Prefix,
    /// More variables after one that takes all values.
    #[error("an exploded variable takes all values that are left: put it last in its expression")]
    NotLast,
    /// One variable that is a list and is not.
    #[error("a variable is used both with and without *")]
    Mixed,
    /// Two values that nothing separates.
    #[error(
        "two expressions follow each other and nothing tells their values apart: \
         put text between them, or use an operator such as {{/name}}"
    )]
    Adjacent,
    /// More than can be compiled.
    #[error("it is too large")]
    TooLarge,
}

pub(super) enum Part {
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
    /// The most characters of the value.
    pub(super) prefix: usize,
    /// A list whose items are expanded one by one.
    pub(super) exploded: bool,
}

/// A row of the table of operators in RFC 6570.
pub(super) struct Operator {
    /// Precedes the first value.
    pub(super) first: &'static str,
    pub(super) separator: char,
    /// Values come with the names of their variables.
    pub(super) is_named: bool,
    /// Characters that are not part of a value: of one, and of several in an expression.
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

/// The operator of an expression, and where its variables begin.
fn read_operator(expression: &str) -> Result<(&'static Operator, usize), TemplateFlaw> {
    let sign = expression.chars().next();
    if let Some(reserved @ ('=' | ',' | '!' | '@' | '|')) = sign {
        return Err(TemplateFlaw::Operator(reserved));
    }
    let known = OPERATORS.iter().find(|(known, _)| Some(*known) == sign);
    Ok(known.map_or((&SIMPLE, 0), |(_, operator)| (operator, 1)))
}

pub(super) fn parse(template: &str) -> Result<Vec<Part>, TemplateError> {
    let fail = |at, flaw| TemplateError::new(template, at, flaw);
    let mut parts = Vec::new();
    let mut lists = HashMap::new();
    let mut at = 0;
    while at < template.len() {
        let rest = &template[at..];
        let open = rest.find('{').unwrap_or(rest.len());
        if open > 0 {
            parts.push(Part::Literal(
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
        let follows = matches!(parts.last(), Some(Part::Expression(_)));
        if follows && expression.operator.first.is_empty() {
            return Err(fail(at, TemplateFlaw::Adjacent));
        }
        for variable in &expression.variables {
            let exploded = *lists
                .entry(variable.name.clone())
                .or_insert(variable.exploded);
            if exploded != variable.exploded {
                return Err(fail(at, TemplateFlaw::Mixed));
            }
        }
        parts.push(Part::Expression(expression));
        at += close + 1;
    }
    Ok(parts)
}

type Flawed<T> = Result<T, (usize, TemplateFlaw)>;

fn literal(text: &str) -> Flawed<String> {
    if let Some(at) = text.find('}') {
        return Err((at, TemplateFlaw::Unopened));
    }
    normalise(text).ok_or_else(|| (bad_percent(text), TemplateFlaw::Percent))
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

fn expression(text: &str) -> Flawed<Expression> {
    let (operator, mut at) = read_operator(text).map_err(|flaw| (0, flaw))?;
    let mut variables: Vec<Variable> = Vec::new();
    for spec in text[at..].split(',') {
        let ends = variables.last().is_some_and(|earlier| earlier.exploded);
        if ends && !operator.is_named {
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

fn variable(spec: &str) -> Flawed<Variable> {
    let (name, prefix) = match spec.split_once(':') {
        Some((name, length)) => {
            let digits = length.bytes().all(|byte| byte.is_ascii_digit());
            let length = length.parse().ok().filter(|_| digits);
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
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '%');
    let is_name = |part: &str| !part.is_empty() && part.chars().all(plain);
    let name = normalise(name).filter(|_| name.split('.').all(is_name));
    Ok(Variable {
        name: name.ok_or((0, TemplateFlaw::Name))?,
        prefix,
        exploded,
    })
}
