//! The answers that were given beforehand, with `--answer` and `--answers`.

use super::exit::Stop;
use super::sampler;
use crate::number::exact;
use parking_lot::Mutex;
use refrain_client::{Answer, Ask};
use refrain_wire::{AskKind, Form, Root};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

/// What a form or a URL can be answered with in one word.
const WORDS: [&str; 3] = ["accept", "decline", "cancel"];

/// Answers by the keys of asks. Each is used once: what is asked again is answered by the next one for its key.
#[derive(Debug, Default)]
pub(super) struct Given(Mutex<BTreeMap<String, VecDeque<Value>>>);

impl Given {
    /// Reads `--answer KEY=JSON` and the file of `--answers`.
    pub(super) fn read(answers: &[String], file: Option<&Path>) -> Result<Self, Stop> {
        let mut given: BTreeMap<String, VecDeque<Value>> = BTreeMap::new();
        for text in answers {
            let (key, value) = pair(text)?;
            given.entry(key).or_default().push_back(value);
        }
        for (key, value) in file.map(from_file).transpose()?.unwrap_or_default() {
            given.entry(key).or_default().push_back(value);
        }
        Ok(Self(Mutex::new(given)))
    }

    /// The next answer to an ask, if one was given.
    pub(super) fn take(&self, ask: &Ask) -> Option<Result<Answer, String>> {
        let mut given = self.0.lock();
        let value = given.get_mut(ask.key())?.pop_front()?;
        drop(given);
        Some(match ask {
            Ask::Form(ask) => to_form(&ask.form, value),
            Ask::Url(_) => to_url(&value),
            Ask::Unknown(ask) => to_url(&value)
                .map_err(|_| format!("{}; it can only be declined or cancelled", ask.why)),
            Ask::Sampling(_) => to_sampling(value),
            Ask::Roots(_) => to_roots(value),
            _ => return None,
        })
    }

    /// Why there is no answer for this key. What a tool asks again by the same name has a key of its own.
    pub(super) fn none(&self, key: &str) -> String {
        let given = self.0.lock();
        match key.rsplit_once('#') {
            Some((first, _)) if given.contains_key(first) => format!(
                "no answer was given: the one for {first:?} is for the first time that it is asked"
            ),
            _ => "no answer was given".to_owned(),
        }
    }

    /// Whether no answers were given at all.
    pub(super) fn is_empty(&self) -> bool {
        let given = self.0.lock();
        given.is_empty()
    }

    /// The keys of answers that nothing asked for.
    pub(super) fn left(&self) -> Vec<String> {
        let given = self.0.lock();
        let left = given.iter().filter(|(_, answers)| !answers.is_empty());
        left.map(|(key, _)| key.clone()).collect()
    }
}

fn pair(text: &str) -> Result<(String, Value), Stop> {
    let Some((key, value)) = text.split_once('=').filter(|(key, _)| !key.is_empty()) else {
        return Err(Stop::usage(format!(
            "--answer {text:?}: write the key of an ask, `=`, and the answer to it as JSON"
        )));
    };
    if WORDS.contains(&value) {
        return Ok((key.to_owned(), value.into()));
    }
    let read = serde_json::from_str(value).map_err(|error| {
        Stop::usage(format!(
            "--answer for {key:?}: this is neither JSON nor one of {}: {error}",
            WORDS.join(", ")
        ))
    })?;
    exact(value).map_err(|why| Stop::usage(format!("--answer for {key:?}: {why}")))?;
    Ok((key.to_owned(), read))
}

fn from_file(file: &Path) -> Result<Map<String, Value>, Stop> {
    let wrong = |why: String| Stop::usage(format!("--answers {}: {why}", file.display()));
    let text =
        std::fs::read_to_string(file).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let answers = serde_json::from_str(&text).map_err(|error| {
        wrong(format!(
            "it must be one JSON object, with an answer for each key: {error}"
        ))
    })?;
    exact(&text).map_err(wrong)?;
    Ok(answers)
}

fn to_form(form: &Form, value: Value) -> Result<Answer, String> {
    let has_field = |name: &str| form.fields().iter().any(|field| field.name() == name);
    match value {
        Value::String(word) => by_word(&word),
        value if value.get("action").is_some() && !has_field("action") => {
            Answer::read(AskKind::Form, &value).map_err(|error| error.to_string())
        }
        value => Answer::accept(value).map_err(|error| error.to_string()),
    }
}

fn to_url(value: &Value) -> Result<Answer, String> {
    match value {
        Value::String(word) => by_word(word),
        value => Answer::read(AskKind::Url, value).map_err(|error| error.to_string()),
    }
}

fn by_word(word: &str) -> Result<Answer, String> {
    match word {
        "accept" => Ok(Answer::visited()),
        "decline" => Ok(Answer::Decline),
        "cancel" => Ok(Answer::Cancel),
        _ => Err(format!(
            "{word:?} is none of the words {}",
            WORDS.join(", ")
        )),
    }
}

fn to_sampling(value: Value) -> Result<Answer, String> {
    let answer = match value {
        Value::String(text) => sampler::from_text(&text),
        value => sampler::from_json(value)?,
    };
    Ok(Answer::Sampled(Box::new(answer)))
}

fn to_roots(value: Value) -> Result<Answer, String> {
    match value {
        Value::Array(roots) => {
            let root = |root: Value| match root {
                Value::String(uri) => Ok(Root { uri, name: None }),
                root => serde_json::from_value(root)
                    .map_err(|error| format!("a root is a URI, or an object with one: {error}")),
            };
            let roots: Result<_, String> = roots.into_iter().map(root).collect();
            Ok(Answer::Roots(roots?))
        }
        value => Answer::read(AskKind::Roots, &value).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_wire::Field;
    use serde_json::json;

    #[test]
    fn forms_are_filled_in_with_content_words_or_the_protocols_form() {
        let form = Form::new([Field::string("name")]);
        let content = json!({"name": "Ada"});
        let accepted = Answer::accept(content.clone()).expect("an object");
        assert_eq!(to_form(&form, content.clone()), Ok(accepted.clone()));
        let whole = json!({"action": "accept", "content": content});
        assert_eq!(to_form(&form, whole), Ok(accepted));
        assert_eq!(to_form(&form, json!("decline")), Ok(Answer::Decline));
        assert_eq!(
            to_form(&form, json!({"action": "cancel"})),
            Ok(Answer::Cancel)
        );
        assert!(to_form(&form, json!({"action": "run"})).is_err());
        assert!(to_form(&form, json!("no")).is_err_and(|why| why.contains("decline")));
        assert!(to_form(&form, json!(1)).is_err());

        // A form may have a field of that name.
        let form = Form::new([Field::string("action")]);
        let content = json!({"action": "run"});
        let accepted = Answer::accept(content.clone()).expect("an object");
        assert_eq!(to_form(&form, content), Ok(accepted));
    }

    #[test]
    fn models_and_roots_are_answered_for_in_short() {
        let Ok(Answer::Sampled(answer)) = to_sampling(json!("Paris")) else {
            panic!("an answer");
        };
        assert_eq!(answer.text(), "Paris");
        let roots = to_roots(json!(["file:///a", {"uri": "file:///b", "name": "b"}]));
        let Ok(Answer::Roots(roots)) = roots else {
            panic!("roots");
        };
        assert_eq!(roots[1].name.as_deref(), Some("b"));
        assert_eq!(roots.len(), 2);
        assert!(to_roots(json!({"roots": [{"uri": "file:///a"}]})).is_ok());
        assert!(to_roots(json!([1])).is_err());
    }

    #[test]
    fn what_is_no_answer_is_told() {
        for (bad, part) in [
            ("github_login", "`=`"),
            ("=1", "`=`"),
            ("key={name: Ada}", "neither JSON"),
            ("key=", "neither JSON"),
        ] {
            let stop = pair(bad).expect_err(bad);
            assert!(stop.message.contains(part), "{bad}: {}", stop.message);
        }
    }
}
