//! The outcomes of calls, and the expected ones.

use serde::Deserialize;
use serde_json::Value;

/// The outcome of a call, as the drivers in `tests/clients` print it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Outcome {
    pub(crate) result: Value,
    pub(crate) error: Option<String>,
    /// The questions, each with its kind.
    pub(crate) asked: Vec<String>,
    pub(crate) progress: Vec<f64>,
    /// The log messages, each with its level.
    pub(crate) logs: Vec<String>,
}

/// The expected outcome of a call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Expected {
    /// Parts of the text of the result. A single part that does not start with `…` is the whole text.
    pub(crate) text: Vec<String>,
    pub(crate) is_error: bool,
    /// The questions in any order. One that ends with `…` is the start of a question.
    pub(crate) asked: Vec<&'static str>,
    pub(crate) structured: Option<Value>,
    /// A member of the result's `_meta`.
    pub(crate) meta: Option<(&'static str, Value)>,
    pub(crate) progress: Vec<f64>,
    pub(crate) logs: Vec<&'static str>,
}

/// The parts of outcomes that are not compared.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Leeway {
    /// Whether the roots were asked for.
    pub(crate) roots: bool,
    /// The order of log messages and progress.
    pub(crate) notification_order: bool,
}

impl Outcome {
    /// The texts of a result, or the names in a list.
    fn text(&self) -> String {
        let array = |name: &str| self.result[name].as_array().cloned().unwrap_or_default();
        let messages = array("messages");
        let blocks = array("content");
        let blocks = blocks
            .iter()
            .chain(messages.iter().map(|message| &message["content"]));
        let contents = array("contents");
        let texts = blocks
            .chain(&contents)
            .filter_map(|block| block["text"].as_str());
        let values = &self.result["completion"]["values"];
        let values = values.as_array().map(Vec::as_slice).unwrap_or_default();
        let lists = ["tools", "prompts", "resources", "resourceTemplates"]
            .map(array)
            .concat();
        let names = lists.iter().filter_map(|entry| entry["name"].as_str());
        let words = values.iter().filter_map(Value::as_str).chain(names);
        texts.chain(words).collect::<Vec<_>>().join("\n")
    }
}

impl Expected {
    /// Compares an outcome, and says what is wrong with it.
    pub(crate) fn compare(&self, found: &Outcome, leeway: Leeway) -> Result<(), String> {
        if let Some(error) = &found.error {
            return Err(error.clone());
        }
        let text = found.text();
        let is_text = match self.text.as_slice() {
            [whole] if !whole.starts_with('…') => text == *whole,
            parts => parts
                .iter()
                .all(|part| text.contains(part.trim_start_matches('…'))),
        };
        if !is_text {
            return Err(format!("text: {text:?}"));
        }
        if found.result["isError"].as_bool().unwrap_or_default() != self.is_error {
            return Err(format!("isError: {}", found.result["isError"]));
        }
        self.compare_asked(found, leeway)?;
        if let Some(structured) = &self.structured
            && found.result["structuredContent"] != *structured
        {
            return Err(format!("structured: {}", found.result["structuredContent"]));
        }
        if let Some((key, value)) = &self.meta
            && found.result["_meta"][key] != *value
        {
            return Err(format!("_meta: {}", found.result["_meta"]));
        }
        let mut progress = found.progress.clone();
        if leeway.notification_order {
            progress.sort_unstable_by(f64::total_cmp);
        }
        if !self.progress.is_empty() && progress != self.progress {
            return Err(format!("progress: {progress:?}"));
        }
        self.compare_logs(found, leeway)
    }

    fn compare_logs(&self, found: &Outcome, leeway: Leeway) -> Result<(), String> {
        let mut found = found.logs.clone();
        if leeway.notification_order {
            found.sort_unstable();
        }
        let is_logged = |(found, expected): (&String, &&str)| {
            let (level, message) = expected.split_once(": ").unwrap_or_default();
            found.starts_with(level) && found.contains(message)
        };
        let is_same = found.len() == self.logs.len() && found.iter().zip(&self.logs).all(is_logged);
        if self.logs.is_empty() || is_same {
            Ok(())
        } else {
            Err(format!("logs: {found:?}"))
        }
    }

    fn compare_asked(&self, found: &Outcome, leeway: Leeway) -> Result<(), String> {
        let mut found = found.asked.clone();
        let mut expected = self.asked.clone();
        if leeway.roots {
            found.retain(|asked| asked != "roots");
            expected.retain(|asked| *asked != "roots");
        }
        found.sort_unstable();
        expected.sort_unstable();
        let is_asked = |(found, expected): (&String, &&str)| match expected.strip_suffix('…') {
            Some(start) => found.starts_with(start),
            None => found == expected,
        };
        if found.len() == expected.len() && found.iter().zip(&expected).all(is_asked) {
            Ok(())
        } else {
            Err(format!("asked: {found:?}"))
        }
    }
}
