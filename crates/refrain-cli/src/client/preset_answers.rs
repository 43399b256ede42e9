//! Preset answers from `--answer` and `--answers`.

use super::exit::CommandError;
use super::sampler::{self, SamplerError};
use crate::exact_number::check_exact;
use parking_lot::Mutex;
use refrain_app::input_file;
use refrain_client::{AskAnswer, IncomingAsk, InvalidAnswer};
use refrain_wire::{AskKind, Form, Root, similar_names};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

const WORDS: [&str; 3] = ["accept", "decline", "cancel"];

#[derive(Debug, thiserror::Error)]
pub(super) enum PresetError {
    #[error(transparent)]
    Invalid(#[from] InvalidAnswer),
    #[error("invalid answer {0:?}: expected one of {words}, or a JSON object", words = WORDS.join(", "))]
    Word(String),
    #[error("{0}; such an ask can only be declined or cancelled")]
    Unknown(String),
    #[error(transparent)]
    Sampling(#[from] SamplerError),
    #[error("invalid root: expected a URI, or an object with a uri: {0}")]
    Root(#[source] serde_json::Error),
}

/// Answers by the keys of asks. Each is used once: a repeated ask takes the next answer for its key.
#[derive(Debug, Default)]
pub(super) struct PresetAnswers(Mutex<BTreeMap<String, AnswerQueue>>);

#[derive(Debug, Default)]
struct AnswerQueue {
    unused: VecDeque<Value>,
    /// The number of answers that were used.
    used: usize,
}

impl PresetAnswers {
    /// Reads `--answer KEY=JSON` and the file of `--answers`.
    pub(super) fn read(answers: &[String], file: Option<&Path>) -> Result<Self, CommandError> {
        let mut by_key: BTreeMap<String, AnswerQueue> = BTreeMap::new();
        let mut all = answers
            .iter()
            .map(|text| parse_answer(text))
            .collect::<Result<Vec<_>, _>>()?;
        all.extend(file.map(read_file).transpose()?.unwrap_or_default());
        for (key, value) in all {
            by_key.entry(key).or_default().unused.push_back(value);
        }
        Ok(Self(Mutex::new(by_key)))
    }

    pub(super) fn take(&self, ask: &IncomingAsk) -> Option<Result<AskAnswer, PresetError>> {
        let value = {
            let mut answers = self.0.lock();
            let queue = answers.get_mut(ask.key())?;
            let value = queue.unused.pop_front()?;
            queue.used += 1;
            value
        };
        Some(match ask {
            IncomingAsk::Form(ask) => to_form(&ask.form, value),
            IncomingAsk::Url(_) => to_url(&value),
            IncomingAsk::Unknown(ask) => {
                to_url(&value).map_err(|_| PresetError::Unknown(ask.why.clone()))
            }
            IncomingAsk::Sampling(_) => to_sampling(value),
            IncomingAsk::Roots(_) => to_roots(value),
            _ => return None,
        })
    }

    /// Why there is no answer for this key. A tool that repeats an ask may give it another key.
    pub(super) fn missing(&self, key: &str) -> String {
        let answers = self.0.lock();
        if let Some((first, _)) = key.rsplit_once('#')
            && answers.contains_key(first)
        {
            return format!(
                "no answer was given: the answer for {first:?} is only for the first ask of that name"
            );
        }
        if let Some(AnswerQueue { used, .. }) = answers.get(key) {
            let were = if *used == 1 { "was" } else { "were" };
            return format!(
                "no answer is left: {used} {were} used for earlier asks of {key:?}; give --answer once for each time it asks"
            );
        }
        let unused = answers.iter().filter(|(_, queue)| queue.used == 0);
        match similar_names(key, unused.map(|(name, _)| name.as_str())).first() {
            Some(name) => {
                format!("no answer was given for {key:?}; is the answer for {name:?} meant for it?")
            }
            None => "no answer was given".to_owned(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// A warning for each key that has unused answers.
    pub(super) fn unused_warnings(&self) -> Vec<String> {
        let answers = self.0.lock();
        let unused = answers.iter().filter(|(_, queue)| !queue.unused.is_empty());
        let warning = |(key, queue): (&String, &AnswerQueue)| {
            let why = match queue.used {
                0 => "the server did not ask for it".to_owned(),
                1 => "the server asked for it only once".to_owned(),
                used => format!("the server asked for it only {used} times"),
            };
            format!("unused answer {key:?}: {why}")
        };
        unused.map(warning).collect()
    }
}

fn parse_answer(text: &str) -> Result<(String, Value), CommandError> {
    let Some((key, value)) = text.split_once('=').filter(|(key, _)| !key.is_empty()) else {
        return Err(CommandError::usage(format!(
            "invalid --answer {text:?}: expected KEY=JSON"
        )));
    };
    if WORDS.contains(&value) {
        return Ok((key.to_owned(), value.into()));
    }
    let answer = serde_json::from_str(value).map_err(|_| {
        let words = WORDS.join(", ");
        let message =
            format!("invalid --answer for {key:?}: {value:?} is neither JSON nor one of {words}");
        CommandError::usage(message).hint(format!(
            "a form takes an object, as in --answer '{key}={{\"FIELD\": \"VALUE\"}}'; {key:?} is read as the key of the ask, not as a field"
        ))
    })?;
    check_exact(value)
        .map_err(|why| CommandError::usage(format!("invalid --answer for {key:?}: {why}")))?;
    Ok((key.to_owned(), answer))
}

fn read_file(file: &Path) -> Result<Map<String, Value>, CommandError> {
    let file_name = file.display();
    let invalid =
        |why: String| CommandError::usage(format!("invalid --answers {file_name}: {why}"));
    let text = input_file::read_text(file).map_err(|error| {
        CommandError::usage(format!("cannot read --answers {file_name}: {error}"))
    })?;
    let answers = serde_json::from_str(&text).map_err(|error| {
        let expected = "expected a JSON object with an answer for each key";
        invalid(format!("{expected}: {error}"))
    })?;
    check_exact(&text).map_err(|error| invalid(error.to_string()))?;
    Ok(answers)
}

fn to_form(form: &Form, value: Value) -> Result<AskAnswer, PresetError> {
    let has_field = |name: &str| form.fields().iter().any(|field| field.name() == name);
    match value {
        Value::String(word) => from_word(&word),
        value if value.get("action").is_some() && !has_field("action") => {
            Ok(AskAnswer::read(AskKind::Form, &value)?)
        }
        value => Ok(AskAnswer::accept(value)?),
    }
}

fn to_url(value: &Value) -> Result<AskAnswer, PresetError> {
    match value {
        Value::String(word) => from_word(word),
        value => Ok(AskAnswer::read(AskKind::Url, value)?),
    }
}

fn from_word(word: &str) -> Result<AskAnswer, PresetError> {
    match word {
        "accept" => Ok(AskAnswer::visited()),
        "decline" => Ok(AskAnswer::Decline),
        "cancel" => Ok(AskAnswer::Cancel),
        _ => Err(PresetError::Word(word.to_owned())),
    }
}

fn to_sampling(value: Value) -> Result<AskAnswer, PresetError> {
    let answer = match value {
        Value::String(text) => sampler::from_text(text),
        value => sampler::from_json(value)?,
    };
    Ok(AskAnswer::Sampled(Box::new(answer)))
}

fn to_roots(value: Value) -> Result<AskAnswer, PresetError> {
    let root = |root: Value| match root {
        Value::String(uri) => Ok(Root { uri, name: None }),
        root => serde_json::from_value(root).map_err(PresetError::Root),
    };
    match value {
        Value::Array(roots) => {
            let roots = roots.into_iter().map(root).collect::<Result<_, _>>()?;
            Ok(AskAnswer::Roots(roots))
        }
        value => Ok(AskAnswer::read(AskKind::Roots, &value)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_client::{Asker, FormAsk};
    use refrain_wire::{CallKind, Field};
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn form_answer_is_content_a_word_or_a_whole_result() {
        let form = Form::new([Field::string("name")]);
        let content = json!({"name": "Ada"});
        let accepted = AskAnswer::accept(content.clone()).expect("an object");
        let to_answer = |form, value| to_form(form, value).ok();
        assert_eq!(to_answer(&form, content.clone()), Some(accepted.clone()));
        let whole = json!({"action": "accept", "content": content});
        assert_eq!(to_answer(&form, whole), Some(accepted));
        assert_eq!(to_answer(&form, json!("decline")), Some(AskAnswer::Decline));
        let cancelled = to_answer(&form, json!({"action": "cancel"}));
        assert_eq!(cancelled, Some(AskAnswer::Cancel));
        assert!(to_form(&form, json!({"action": "run"})).is_err());
        assert!(to_form(&form, json!("no")).is_err_and(|why| why.to_string().contains("decline")));
        assert!(to_form(&form, json!(1)).is_err());

        // A form may have a field named `action`.
        let form = Form::new([Field::string("action")]);
        let content = json!({"action": "run"});
        let accepted = AskAnswer::accept(content.clone()).expect("an object");
        assert_eq!(to_answer(&form, content), Some(accepted));
    }

    #[test]
    fn sampling_and_roots_have_short_answers() {
        let Ok(AskAnswer::Sampled(answer)) = to_sampling(json!("Paris")) else {
            panic!("not a sampling answer");
        };
        assert_eq!(answer.text(), "Paris");
        let roots = to_roots(json!(["file:///a", {"uri": "file:///b", "name": "b"}]));
        let Ok(AskAnswer::Roots(roots)) = roots else {
            panic!("not roots");
        };
        assert_eq!(roots[1].name.as_deref(), Some("b"));
        assert_eq!(roots.len(), 2);
        assert!(to_roots(json!({"roots": [{"uri": "file:///a"}]})).is_ok());
        assert!(to_roots(json!([1])).is_err());
    }

    #[test]
    fn unused_answer_with_a_similar_key_is_suggested() {
        let answers = PresetAnswers::read(&["adress={}".to_owned()], None).expect("an answer");
        assert_eq!(
            answers.missing("address"),
            "no answer was given for \"address\"; is the answer for \"adress\" meant for it?"
        );
        assert_eq!(answers.missing("size"), "no answer was given");
    }

    #[test]
    fn used_answers_are_counted() {
        let answers = PresetAnswers::read(&["a={}".to_owned()], None).expect("an answer");
        let form = FormAsk {
            key: "a".to_owned(),
            asker: Arc::new(Asker {
                server: None,
                address: "http://127.0.0.1:8080/mcp".to_owned(),
                kind: CallKind::Tool,
                target: "tool".to_owned(),
            }),
            message: String::new(),
            form: Form::new([Field::string("name")]),
        };
        let ask = IncomingAsk::Form(form);
        assert!(answers.take(&ask).is_some());
        assert!(answers.take(&ask).is_none());
        assert_eq!(
            answers.missing("a"),
            "no answer is left: 1 was used for earlier asks of \"a\"; give --answer once for each time it asks"
        );
    }

    #[test]
    fn malformed_answer_is_rejected() {
        for (bad, part) in [
            ("github_login", "expected KEY=JSON"),
            ("=1", "expected KEY=JSON"),
            ("key={name: Ada}", "neither JSON"),
            ("key=", "neither JSON"),
        ] {
            let error = parse_answer(bad).expect_err(bad);
            assert!(error.message.contains(part), "{bad}: {}", error.message);
        }
    }
}
