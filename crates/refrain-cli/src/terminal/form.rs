//! The dialog for a form: field by field, and a review before it is sent.

use super::asker::{CHANGE, SEND, decide, introduce, prompt, quote, say_hanging};
use super::console::{Console, InputPrompt, InvalidInput, PromptError, PromptSource};
use super::display_text::{StyledLine, one_line, truncate, width};
use crate::exact_number::check_exact;
use crate::style::{BOLD, DIM, VALUE};
use anstyle::Style;
use refrain_client::FormAsk;
use refrain_client::wire::{Choice, Field, FieldKind, Form, Format};
use serde_json::{Map, Number, Value};

const LEFT_OUT: &str = "(left out)";
const NONE: &str = "(none)";
const EMPTY: &str = "(empty)";

/// The input that stands for an empty text. The enter key alone does not, because it may be an accident.
const TYPED_EMPTY: &str = "\"\"";

/// The maximum width of the label of a field.
const MAX_LABEL: usize = 30;

/// Asks for all fields of a form. A field that the user leaves out is null in the result if it has a default; otherwise it
/// is missing.
pub(super) fn ask(
    console: &mut dyn Console,
    ask: &FormAsk,
) -> Result<Map<String, Value>, PromptError> {
    introduce(console, &ask.asker, "asks you to fill in a form")?;
    quote(console, &ask.message)?;
    ask_fields(console, &(&ask.asker).into(), &ask.form)
}

/// Asks for all fields, and reviews them until the user sends them.
pub(super) fn ask_fields(
    console: &mut dyn Console,
    source: &PromptSource,
    form: &Form,
) -> Result<Map<String, Value>, PromptError> {
    let fields = form.fields();
    let mut values = Vec::with_capacity(fields.len());
    for field in fields {
        let start = field.default_json().unwrap_or_default();
        let value = ask_field(console, source, field, &start)?;
        // With a single field, the review that follows shows the same.
        if fields.len() > 1 {
            let (style, text) = display(field, &value);
            let label = truncate(&one_line(field.label()), MAX_LABEL);
            say_hanging(console, &format!("  {label}: "), style, &text)?;
        }
        values.push(value);
    }
    while !review(console, source, fields, &mut values)? {}
    let filled = fields.iter().zip(values);
    Ok(filled
        .filter(|(field, value)| !value.is_null() || field.default_json().is_some())
        .map(|(field, value)| (field.name().to_owned(), value))
        .collect())
}

/// Shows all fields, and asks whether to send them or to change one. Returns true to send them.
fn review(
    console: &mut dyn Console,
    source: &PromptSource,
    fields: &[Field],
    values: &mut [Value],
) -> Result<bool, PromptError> {
    console.say(&StyledLine::default())?;
    say_hanging(console, "This would be sent to ", BOLD, source.address())?;
    if fields.is_empty() {
        console.say(&StyledLine::styled(DIM, "  (a form without fields)"))?;
    }
    let labels: Vec<String> = fields
        .iter()
        .map(|f| truncate(&one_line(f.label()), MAX_LABEL))
        .collect();
    let widest = labels.iter().map(|label| width(label)).max().unwrap_or(0);
    for ((field, value), label) in fields.iter().zip(&*values).zip(&labels) {
        let space = " ".repeat(widest - width(label) + 2);
        let (style, text) = display(field, value);
        say_hanging(console, &format!("  {label}{space}"), style, &text)?;
    }
    let choices: &[&str] = match fields {
        [] => &[SEND],
        _ => &[SEND, CHANGE],
    };
    // No choice is preselected for an empty form, so that a stray key cannot send it.
    let start = (!fields.is_empty()).then_some(0);
    if decide(console, source.clone(), "Send it?", choices, start)? == 0 {
        return Ok(true);
    }
    let field_prompt = prompt(source.clone(), "Change which field?", "");
    let at = match fields {
        [_] => 0,
        _ => console.choose(&field_prompt, &labels, Some(0))?,
    };
    values[at] = ask_field(console, source, &fields[at], &values[at])?;
    Ok(false)
}

/// Asks for one field, with `start` preset. Null means that the field is left out.
fn ask_field(
    console: &mut dyn Console,
    source: &PromptSource,
    field: &Field,
    start: &Value,
) -> Result<Value, PromptError> {
    console.say(&StyledLine::default())?;
    if let Some(description) = field.description() {
        quote(console, description)?;
    }
    let mut prompt = prompt(source.clone(), field.label(), hint(field));
    prompt.is_multiline = matches!(field.kind(), FieldKind::String { format: None, .. });
    match field.kind() {
        FieldKind::String { .. } => {
            let start = match start.as_str() {
                Some("") => TYPED_EMPTY,
                start => start.unwrap_or_default(),
            };
            let read = |text: &str| match text {
                // An error of the field's own limits says more than `EmptyText`.
                "" => Err(field
                    .check(&"".into())
                    .map_or_else(Into::into, |()| InvalidInput::EmptyText)),
                TYPED_EMPTY => Ok("".into()),
                text => Ok(text.into()),
            };
            ask_text(console, &prompt, field, start, &read)
        }
        FieldKind::Number { integer, .. } => {
            let start = match start {
                Value::Number(number) => number.to_string(),
                _ => String::new(),
            };
            let read = |text: &str| parse_number(text, *integer);
            ask_text(console, &prompt, field, &start, &read)
        }
        FieldKind::Boolean { .. } => {
            let choices = [(true, "Yes"), (false, "No")];
            let choices = choices.map(|(value, label)| (Value::from(value), label.to_owned()));
            // No is preselected, so that a stray key cannot agree.
            let start = if start.is_null() {
                &choices[1].0
            } else {
                start
            };
            ask_choice(console, &prompt, field, choices.clone(), start)
        }
        FieldKind::One { choices, .. } => {
            let choices = choices
                .iter()
                .map(|choice| (choice.value().into(), label(choice)));
            ask_choice(console, &prompt, field, choices, start)
        }
        FieldKind::Many { choices, .. } => ask_choices(console, &prompt, field, choices, start),
    }
}

fn ask_text(
    console: &mut dyn Console,
    prompt: &InputPrompt,
    field: &Field,
    start: &str,
    read: &dyn Fn(&str) -> Result<Value, InvalidInput>,
) -> Result<Value, PromptError> {
    let value = |text: &str| match text {
        "" if !field.is_required() => Ok(Value::Null),
        text => read(text),
    };
    let validate = |text: &str| Ok(field.check(&value(text)?)?);
    let text = console.read_text(prompt, start, &validate)?;
    // Cannot fail: `validate` has accepted the text.
    Ok(value(&text).unwrap_or_default())
}

fn ask_choice(
    console: &mut dyn Console,
    prompt: &InputPrompt,
    field: &Field,
    choices: impl IntoIterator<Item = (Value, String)>,
    start: &Value,
) -> Result<Value, PromptError> {
    let left_out = (Value::Null, "(leave it out)".to_owned());
    let left_out = (!field.is_required()).then_some(left_out);
    let (mut values, labels): (Vec<_>, Vec<_>) = left_out.into_iter().chain(choices).unzip();
    let start = values.iter().position(|value| value == start).unwrap_or(0);
    let at = console.choose(prompt, &labels, Some(start))?;
    Ok(values.swap_remove(at))
}

fn ask_choices(
    console: &mut dyn Console,
    prompt: &InputPrompt,
    field: &Field,
    choices: &[Choice],
    start: &Value,
) -> Result<Value, PromptError> {
    let value = |ticked: &[bool]| {
        let chosen = choices.iter().zip(ticked).filter(|(_, ticked)| **ticked);
        let values: Vec<Value> = chosen.map(|(choice, _)| choice.value().into()).collect();
        let nothing = values.is_empty() && !field.is_required();
        let values = Value::Array(values);
        match field.check(&values) {
            Err(_) if nothing => Value::Null,
            _ => values,
        }
    };
    let validate = |ticked: &[bool]| Ok(field.check(&value(ticked))?);
    let is_preset = |choice: &Choice| {
        let start = start.as_array().map(Vec::as_slice).unwrap_or_default();
        start.iter().any(|value| value == choice.value())
    };
    let ticked: Vec<bool> = choices.iter().map(is_preset).collect();
    let labels: Vec<String> = choices.iter().map(label).collect();
    let ticked = console.choose_many(prompt, &labels, &ticked, &validate)?;
    Ok(value(&ticked))
}

fn parse_number(text: &str, is_integer: bool) -> Result<Value, InvalidInput> {
    let number = text
        .trim()
        .parse::<Number>()
        .map_err(|_| match is_integer {
            true => InvalidInput::NotWhole,
            false => InvalidInput::NotANumber,
        })?;
    check_exact(text)?;
    Ok(number.into())
}

/// A choice's title, and its value if that differs.
fn label(choice: &Choice) -> String {
    let (title, value) = (one_line(choice.label()), one_line(choice.value()));
    if title == value {
        value
    } else {
        format!("{title} ({value})")
    }
}

fn display(field: &Field, value: &Value) -> (Style, String) {
    let title = |value: &Value| match field.kind() {
        FieldKind::One { choices, .. } | FieldKind::Many { choices, .. } => choices
            .iter()
            .find(|choice| value == choice.value())
            .map(label),
        _ => None,
    };
    let text = |value: &Value| match value {
        Value::String(text) => one_line(text),
        Value::Bool(true) => "Yes".to_owned(),
        Value::Bool(false) => "No".to_owned(),
        value => value.to_string(),
    };
    let one = |value: &Value| title(value).unwrap_or_else(|| text(value));
    match value {
        Value::Null => (DIM, LEFT_OUT.to_owned()),
        Value::Array(values) if values.is_empty() => (DIM, NONE.to_owned()),
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(one).collect();
            (VALUE, values.join(", "))
        }
        Value::String(text) if text.is_empty() && title(value).is_none() => (DIM, EMPTY.to_owned()),
        value => (VALUE, one(value)),
    }
}

/// The format and the limits of a field's value.
pub(crate) fn expectations(field: &Field) -> Vec<String> {
    let (name, limits) = match field.kind() {
        FieldKind::String {
            format, min, max, ..
        } => (format.map(format_name), limits(*min, *max, " characters")),
        FieldKind::Number {
            integer, min, max, ..
        } => {
            let name = match integer {
                true => "a whole number",
                false => "a number",
            };
            (Some(name), limits(*min, *max, ""))
        }
        FieldKind::Boolean { .. } | FieldKind::One { .. } => (None, None),
        FieldKind::Many { min, max, .. } => (None, limits(*min, *max, " choices")),
    };
    name.map(str::to_owned).into_iter().chain(limits).collect()
}

fn hint(field: &Field) -> String {
    let mut hints = expectations(field);
    let is_typed = matches!(
        field.kind(),
        FieldKind::String { .. } | FieldKind::Number { .. }
    );
    if is_typed && !field.is_required() {
        hints.push("optional".to_owned());
    }
    hints.join(", ")
}

fn format_name(format: Format) -> &'static str {
    match format {
        Format::Email => "an e-mail address",
        Format::Uri => "a URI, as in https://example.com/",
        Format::Date => "a date, as in 2026-07-28",
        Format::DateTime => "a date and time, as in 2026-07-28T12:00:00Z",
    }
}

fn limits<T: std::fmt::Display + PartialEq>(
    min: Option<T>,
    max: Option<T>,
    unit: &str,
) -> Option<String> {
    let counted = |count: T| {
        let count = count.to_string();
        let singular = unit.strip_suffix('s').filter(|_| count == "1");
        count + singular.unwrap_or(unit)
    };
    match (min, max) {
        (None, None) => None,
        (Some(min), None) => Some(format!("at least {}", counted(min))),
        (None, Some(max)) => Some(format!("at most {}", counted(max))),
        (Some(min), Some(max)) if min == max => Some(format!("exactly {}", counted(min))),
        (Some(min), Some(max)) => Some(format!("{min} to {max}{unit}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use serde_json::value::to_raw_value;

    #[test]
    fn choice_with_an_empty_value_is_shown_with_its_title() {
        let choices =
            json!([{"const": "", "title": "No preference"}, {"const": "w", "title": "Window"}]);
        let seat = json!({"type": "string", "oneOf": choices});
        let schema = to_raw_value(&json!({"type": "object", "properties": {"seat": seat}}));
        let form = Form::parse(&schema.expect("it is JSON")).expect("a valid form");
        let shown = |value| display(&form.fields()[0], &value).1;
        assert_eq!(shown(json!("")), "No preference ()");
        assert_eq!(shown(json!("w")), "Window (w)");
    }
}
