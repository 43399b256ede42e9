//! What is asked and was not answered, for people and for programs.

use super::text::{harmless, one_line};
use anstyle::{AnsiColor, Style};
use refrain_client::{Ask, Unanswered};
use refrain_wire::{AskKind, Field, FieldKind, Form, Format, SamplingBlock, SamplingParams};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

const KEY: Style = AnsiColor::Yellow.on_default().bold();
const DIM: Style = Style::new().dimmed();
const BOLD: Style = Style::new().bold();

/// An ask that was not answered.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) ask: Ask,
    /// Why there is no answer.
    pub(super) why: String,
}

/// An ask as programs see it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Shown<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requested_schema: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a SamplingParams>,
    why: &'a str,
}

/// The asks that stopped a call. Those of an older server are not in the call, but `noted` when they were asked.
pub(super) fn asked(asks: Vec<Ask>, noted: Vec<Asked>, unanswered: &[Unanswered]) -> Vec<Asked> {
    let all = asks.into_iter();
    let all = all.chain(noted.into_iter().map(|noted| noted.ask));
    let mut found: Vec<Asked> = Vec::new();
    for ask in all {
        let none = unanswered.iter().find(|none| none.key == ask.key());
        let is_new = found.iter().all(|known| known.ask.key() != ask.key());
        if let Some(none) = none.filter(|_| is_new) {
            // The key is said already.
            let key = format!("{}: ", none.key);
            let why = none.why.strip_prefix(&key).unwrap_or(&none.why).to_owned();
            found.push(Asked { ask, why });
        }
    }
    found
}

impl Asked {
    /// For programs.
    pub(super) fn to_json(&self) -> Shown<'_> {
        let mut shown = Shown {
            key: self.ask.key(),
            kind: self.ask.kind().map(AskKind::as_str),
            message: None,
            requested_schema: None,
            url: None,
            params: None,
            why: &self.why,
        };
        match &self.ask {
            Ask::Form(ask) => {
                shown.message = Some(&ask.message);
                shown.requested_schema = Some(ask.form.json());
            }
            Ask::Url(ask) => {
                shown.message = Some(&ask.message);
                shown.url = Some(ask.url.as_str());
            }
            Ask::Sampling(ask) => shown.params = Some(&ask.params),
            _ => {}
        }
        shown
    }

    /// For people, a line for each thing there is to know.
    pub(super) fn lines(&self) -> Vec<String> {
        let kind = self.ask.kind().map_or("unknown", AskKind::as_str);
        let key = one_line(self.ask.key());
        let mut lines = vec![format!("  {KEY}{key}{KEY:#}  {DIM}{kind}{DIM:#}")];
        let mut tell = |text: &str| {
            let text = harmless(text);
            lines.extend(text.lines().map(|line| format!("    {line}")));
        };
        match &self.ask {
            Ask::Form(ask) => {
                tell(&ask.message);
                lines.extend(fields(&ask.form));
            }
            Ask::Url(ask) => {
                tell(&ask.message);
                tell(ask.url.as_str());
            }
            Ask::Sampling(ask) => tell(&conversation(&ask.params)),
            _ => {}
        }
        lines.push(format!("    {DIM}({}){DIM:#}", one_line(&self.why)));
        lines
    }

    /// What could be answered on the command line; nothing where nothing can.
    pub(super) fn example(&self) -> Option<String> {
        let key = self.ask.key();
        let answer = match &self.ask {
            Ask::Form(ask) => example(&ask.form).to_string(),
            Ask::Url(_) => "accept".to_owned(),
            Ask::Unknown(ask) if ask.can_decline => "decline".to_owned(),
            Ask::Sampling(_) => json!("…").to_string(),
            Ask::Roots(_) => json!(["file:///…"]).to_string(),
            _ => return None,
        };
        Some(format!("--answer {}", quoted(&format!("{key}={answer}"))))
    }
}

/// A word as a shell takes it for one.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", one_line(word).replace('\'', r"'\''"))
}

fn fields(form: &Form) -> Vec<String> {
    let fields = form.fields();
    let width = fields.iter().map(|field| field.name().chars().count());
    let width = width.max().unwrap_or_default();
    let line = |field: &Field| {
        let name = one_line(field.name());
        let about = field.description().or_else(|| {
            let label = field.label();
            (label != field.name()).then_some(label)
        });
        let about = about.map_or(String::new(), |about| {
            format!("  {DIM}{}{DIM:#}", one_line(about))
        });
        format!(
            "    {BOLD}{name:<width$}{BOLD:#}  {}{about}",
            one_line(&kind(field))
        )
    };
    fields.iter().map(line).collect()
}

/// What can be filled into a field.
fn kind(field: &Field) -> String {
    let mut words = Vec::new();
    match field.kind() {
        FieldKind::String {
            format, min, max, ..
        } => {
            words.push(match format {
                None => "text".to_owned(),
                Some(Format::Email) => "an e-mail address".to_owned(),
                Some(Format::Uri) => "a URI".to_owned(),
                Some(Format::Date) => "a date, such as 2026-07-28".to_owned(),
                Some(Format::DateTime) => {
                    "a date and time, such as 2026-07-28T12:00:00Z".to_owned()
                }
            });
            words.extend(bounds(*min, *max, " characters"));
        }
        FieldKind::Number {
            integer, min, max, ..
        } => {
            words.push(
                if *integer {
                    "a whole number"
                } else {
                    "a number"
                }
                .to_owned(),
            );
            words.extend(bounds(*min, *max, ""));
        }
        FieldKind::Boolean { .. } => words.push("true or false".to_owned()),
        FieldKind::One { choices, .. } => {
            words.push(format!("one of {}", values(choices)));
        }
        FieldKind::Many {
            choices, min, max, ..
        } => {
            words.push(format!("any of {}", values(choices)));
            words.extend(bounds(*min, *max, " of them"));
        }
    }
    if let Some(preset) = field.preset() {
        words.push(format!("{preset} if left out"));
    } else if !field.is_required() {
        words.push("may be left out".to_owned());
    }
    words.join(", ")
}

fn values(choices: &[refrain_wire::Choice]) -> String {
    let values: Vec<String> = choices
        .iter()
        .map(|choice| match (choice.value(), choice.label()) {
            (value, label) if value == label => json!(value).to_string(),
            (value, label) => format!("{} ({label})", json!(value)),
        })
        .collect();
    values.join(", ")
}

fn bounds<T: std::fmt::Display>(min: Option<T>, max: Option<T>, of: &str) -> Option<String> {
    match (min, max) {
        (Some(min), Some(max)) => Some(format!("{min} to {max}{of}")),
        (Some(min), None) => Some(format!("at least {min}{of}")),
        (None, Some(max)) => Some(format!("at most {max}{of}")),
        (None, None) => None,
    }
}

/// A form as it might be filled in.
fn example(form: &Form) -> Value {
    let filled = form.fields().iter().filter(|field| field.is_required());
    let value = |field: &Field| {
        field.preset().unwrap_or_else(|| match field.kind() {
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

/// What a model is asked.
fn conversation(params: &SamplingParams) -> String {
    let mut lines = Vec::new();
    if let Some(system) = &params.system_prompt {
        lines.push(format!("system: {system}"));
    }
    for message in &params.messages {
        let texts = message.content.iter().map(|block| match block {
            SamplingBlock::Content(content) => content.as_text().unwrap_or("…").to_owned(),
            _ => "…".to_owned(),
        });
        let role = match message.role {
            refrain_wire::Role::User => "user",
            refrain_wire::Role::Assistant => "assistant",
        };
        lines.push(format!("{role}: {}", texts.collect::<Vec<_>>().join(" ")));
    }
    lines.join("\n")
}
