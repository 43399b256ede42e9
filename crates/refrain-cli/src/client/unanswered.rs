//! Asks without an answer, printed as text or JSON.

use super::output::COLUMN_MAX;
use super::sanitize::{one_line, paragraph, paragraph_of};
use crate::style::{BOLD, DIM, WARNING};
use crate::terminal::expectations;
use refrain_client::{IncomingAsk, UnansweredAsk};
use refrain_wire::{AskKind, Choice, Field, FieldKind, Form, Role, SamplingBlock, SamplingParams};
use serde_json::{Map, Value, json};
use std::iter;

#[derive(Debug, Clone)]
pub(super) struct MissingAnswer {
    pub(super) ask: IncomingAsk,
    pub(super) why: String,
    /// Whether an answer was given that cannot be sent.
    pub(super) is_invalid: bool,
}

/// The asks that interrupted a call. Asks of a legacy server are in `recorded`, not in the call's `asks`.
pub(super) fn unanswered_asks(
    asks: Vec<IncomingAsk>,
    recorded: &[MissingAnswer],
    unanswered: &[UnansweredAsk],
) -> Vec<MissingAnswer> {
    let is_invalid = |key: &str| {
        let mut recorded = recorded.iter();
        // An ask whose handler returned an answer is not recorded: the client rejected the answer.
        recorded
            .find(|missing| missing.ask.key() == key)
            .is_none_or(|missing| missing.is_invalid)
    };
    let mut found: Vec<MissingAnswer> = Vec::new();
    let recorded_asks = recorded.iter().map(|missing| missing.ask.clone());
    for ask in asks.into_iter().chain(recorded_asks) {
        let missing = unanswered.iter().find(|missing| missing.key == ask.key());
        let is_new = found.iter().all(|earlier| earlier.ask.key() != ask.key());
        if let Some(UnansweredAsk { key, why }) = missing.filter(|_| is_new) {
            // The key is printed already.
            let why = why
                .strip_prefix(&format!("{key}: "))
                .unwrap_or(why)
                .to_owned();
            let is_invalid = is_invalid(key);
            found.push(MissingAnswer {
                ask,
                why,
                is_invalid,
            });
        }
    }
    found
}

impl MissingAnswer {
    pub(super) fn to_json(&self) -> Value {
        let kind = self.ask.kind().map(AskKind::as_str);
        let mut shown = json!({"key": self.ask.key(), "kind": kind});
        match &self.ask {
            IncomingAsk::Form(ask) => {
                shown["message"] = json!(ask.message);
                shown["requestedSchema"] = json!(ask.form.json());
            }
            IncomingAsk::Url(ask) => {
                shown["message"] = json!(ask.message);
                shown["url"] = json!(ask.url.as_str());
            }
            IncomingAsk::Sampling(ask) => shown["params"] = json!(ask.params),
            _ => {}
        }
        shown["why"] = json!(self.why);
        if let Some(members) = shown.as_object_mut() {
            members.retain(|_, value| !value.is_null());
        }
        shown
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let kind = self.ask.kind().map_or("unknown", AskKind::as_str);
        let key = one_line(self.ask.key());
        let mut lines = vec![format!("  {WARNING}{key}{WARNING:#}  {DIM}{kind}{DIM:#}")];
        let mut add = |text: String| {
            lines.extend(text.lines().map(|line| format!("    {line}")));
        };
        match &self.ask {
            IncomingAsk::Form(ask) => {
                add(paragraph(&ask.message));
                lines.extend(field_lines(&ask.form));
            }
            IncomingAsk::Url(ask) => {
                add(paragraph(&ask.message));
                add(paragraph(ask.url.as_str()));
            }
            IncomingAsk::Sampling(ask) => add(paragraph_of(conversation(&ask.params))),
            _ => {}
        }
        lines.push(format!("    {DIM}({}){DIM:#}", one_line(&self.why)));
        lines
    }

    /// The flag with an example answer, if the ask can be answered on the command line.
    pub(super) fn example(&self) -> Option<String> {
        let key = self.ask.key();
        let answer = match &self.ask {
            IncomingAsk::Form(ask) => example(&ask.form).to_string(),
            IncomingAsk::Url(_) => "accept".to_owned(),
            IncomingAsk::Unknown(ask) if ask.can_decline => "decline".to_owned(),
            IncomingAsk::Sampling(_) => json!("…").to_string(),
            IncomingAsk::Roots(_) => json!(["file:///…"]).to_string(),
            _ => return None,
        };
        Some(format!("--answer {}", quoted(&format!("{key}={answer}"))))
    }
}

/// Quotes a word for a shell.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", one_line(word).replace('\'', r"'\''"))
}

fn field_lines(form: &Form) -> Vec<String> {
    let fields = form.fields();
    let width = fields.iter().map(|field| field.name().chars().count());
    let width = width.max().unwrap_or_default().min(COLUMN_MAX);
    let line = |field: &Field| {
        let name = one_line(field.name());
        let about = field.description().or_else(|| {
            let label = field.label();
            (label != field.name()).then_some(label)
        });
        let about = about.map_or(String::new(), |about| {
            format!("  {DIM}{}{DIM:#}", one_line(about))
        });
        let kind = one_line(&describe_field(field));
        format!("    {BOLD}{name:<width$}{BOLD:#}  {kind}{about}")
    };
    fields.iter().map(line).collect()
}

fn describe_field(field: &Field) -> String {
    let mut words = Vec::new();
    match field.kind() {
        FieldKind::String { format: None, .. } => words.push("text".to_owned()),
        FieldKind::Boolean { .. } => words.push("true or false".to_owned()),
        FieldKind::One { choices, .. } => words.push(format!("one of {}", join_choices(choices))),
        FieldKind::Many { choices, .. } => words.push(format!("any of {}", join_choices(choices))),
        FieldKind::String { .. } | FieldKind::Number { .. } => {}
    }
    words.extend(expectations(field));
    if let Some(preset) = field.default_json() {
        words.push(format!("default {preset}"));
    } else if !field.is_required() {
        words.push("optional".to_owned());
    }
    words.join(", ")
}

fn join_choices(choices: &[Choice]) -> String {
    let value = |choice: &Choice| match (choice.value(), choice.label()) {
        (value, label) if value == label => json!(value).to_string(),
        (value, label) => format!("{} ({label})", json!(value)),
    };
    choices.iter().map(value).collect::<Vec<_>>().join(", ")
}

fn example(form: &Form) -> Value {
    let filled = form.fields().iter().filter(|field| field.is_required());
    let value = |field: &Field| {
        field.default_json().unwrap_or_else(|| match field.kind() {
            FieldKind::String { .. } => json!("…"),
            FieldKind::Number { min, .. } => match min {
                Some(min) if min.fract() == 0.0 => json!(*min as i64),
                Some(min) => json!(min),
                None => json!(1),
            },
            FieldKind::Boolean { .. } => json!(true),
            FieldKind::One { choices, .. } => json!(choices.first().map(|choice| choice.value())),
            FieldKind::Many { choices, .. } => {
                json!([choices.first().map(|choice| choice.value())])
            }
        })
    };
    Value::Object(Map::from_iter(
        filled.map(|field| (field.name().to_owned(), value(field))),
    ))
}

/// The text of a conversation in pieces: the whole text could be large.
fn conversation(params: &SamplingParams) -> impl Iterator<Item = &str> {
    let system = params.system_prompt.as_deref();
    let system = system.into_iter().flat_map(|text| ["system: ", text, "\n"]);
    let messages = params.messages.iter().flat_map(|message| {
        let role = match message.role {
            Role::User => "user:",
            Role::Assistant => "assistant:",
        };
        let blocks = message.content.iter().flat_map(|block| match block {
            SamplingBlock::Content(content) => [" ", content.as_text().unwrap_or("…")],
            _ => [" ", "…"],
        });
        iter::once(role).chain(blocks).chain(["\n"])
    });
    system.chain(messages)
}
