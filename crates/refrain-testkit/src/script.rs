//! The client of a call: its answers, identity and capabilities.

use crate::Closure;
use refrain::auth::{Caller, Principal};
use refrain_wire::{
    CALL_ID_KEY, CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY, Capabilities, Capability, LOG_LEVEL_KEY,
    LogLevel, PROTOCOL_VERSION, PROTOCOL_VERSION_KEY,
};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;

/// An ask, and the client's answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedAsk {
    pub(crate) key: String,
    pub(crate) request: Value,
    pub(crate) answer: Option<Value>,
}

impl ReceivedAsk {
    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// `form`, `url`, `sampling` or `roots`.
    pub fn kind(&self) -> &'static str {
        match self.request["method"].as_str() {
            Some("sampling/createMessage") => "sampling",
            Some("roots/list") => "roots",
            _ if self.request["params"]["mode"] == "url" => "url",
            _ => "form",
        }
    }

    /// The message to the user, or the text of the last message to a model. Empty for roots.
    pub fn message(&self) -> &str {
        let params = &self.request["params"];
        let last = || {
            let last = params["messages"].as_array()?.last()?;
            match &last["content"] {
                Value::Array(blocks) => blocks.iter().find_map(|block| block["text"].as_str()),
                block => block["text"].as_str(),
            }
        };
        params["message"].as_str().or_else(last).unwrap_or_default()
    }

    /// The schema of the form; null for other kinds.
    pub fn schema(&self) -> &Value {
        &self.request["params"]["requestedSchema"]
    }

    /// The URL to open; empty for other kinds.
    pub fn url(&self) -> &str {
        self.request["params"]["url"].as_str().unwrap_or_default()
    }

    /// The JSON of the ask.
    pub fn request(&self) -> &Value {
        &self.request
    }

    /// The JSON of the answer. `None` if the client left it out, or has not answered yet.
    pub fn answer(&self) -> Option<&Value> {
        self.answer.as_ref()
    }
}

/// One answer of a [`Script`].
#[derive(Clone, Debug, PartialEq)]
pub struct ScriptedAnswer(Option<Value>);

impl ScriptedAnswer {
    /// An accepted form with this content.
    pub fn form(content: impl Into<Value>) -> Self {
        Self::raw(json!({"action": "accept", "content": content.into()}))
    }

    /// Consent to open a URL.
    pub fn consent() -> Self {
        Self::raw(json!({"action": "accept"}))
    }

    /// A declined form or URL.
    pub fn decline() -> Self {
        Self::raw(json!({"action": "decline"}))
    }

    /// A form or URL closed without an answer.
    pub fn cancel() -> Self {
        Self::raw(json!({"action": "cancel"}))
    }

    /// The text of a model.
    pub fn sample(text: impl Into<String>) -> Self {
        Self::raw(json!({
            "role": "assistant",
            "content": {"type": "text", "text": text.into()},
            "model": "scripted",
            "stopReason": "endTurn",
        }))
    }

    /// The client's roots, by their URIs.
    pub fn roots<U: Into<String>>(uris: impl IntoIterator<Item = U>) -> Self {
        let roots = uris.into_iter().map(|uri| json!({"uri": uri.into()}));
        Self::raw(json!({"roots": roots.collect::<Value>()}))
    }

    /// Any JSON, valid or not.
    pub fn raw(answer: Value) -> Self {
        Self(Some(answer))
    }

    /// The next request leaves the answer out.
    pub fn nothing() -> Self {
        Self(None)
    }
}

type React = Closure<Arc<dyn Fn(&ReceivedAsk) -> ScriptedAnswer + Send + Sync>>;

/// The answers, identity and capabilities of a client.
///
/// Answers are chosen by the key of the ask. Several answers for one key are used one after the other; the last one is
/// repeated. An ask without an answer fails the test.
///
/// ```
/// use refrain_testkit::{ScriptedAnswer, Script};
/// use serde_json::json;
///
/// let script = Script::new()
///     .answer("name", json!({"name": "octocat"}))
///     .decline("newsletter")
///     .sample("summary", "All is well.")
///     .roots(["file:///home/octocat"])
///     .react("age", |asked| match asked.message() {
///         "How old are you?" => ScriptedAnswer::form(json!({"age": 30})),
///         _ => ScriptedAnswer::cancel(),
///     })
///     .principal("octocat");
/// # let _ = script;
/// ```
#[derive(Clone, Debug)]
pub struct Script {
    rules: Vec<(String, React)>,
    otherwise: Option<React>,
    roots: Option<ScriptedAnswer>,
    capabilities: Capabilities,
    pub(crate) caller: Caller,
    progress: bool,
    log_level: Option<LogLevel>,
    call_id: Option<String>,
}

impl Default for Script {
    fn default() -> Self {
        Self::new()
    }
}

impl Script {
    /// An anonymous client with all capabilities and without answers.
    pub fn new() -> Self {
        Self {
            rules: Vec::new(),
            otherwise: None,
            roots: None,
            capabilities: Capabilities::from_iter([
                Capability::Form,
                Capability::Url,
                Capability::SamplingTools,
                Capability::Roots,
                Capability::Tasks,
            ]),
            caller: Principal::anonymous().into(),
            progress: false,
            log_level: None,
            call_id: None,
        }
    }

    /// Fills in the form with this key.
    pub fn answer(self, key: impl Into<String>, content: impl Into<Value>) -> Self {
        self.give(key, ScriptedAnswer::form(content))
    }

    /// Declines the ask with this key.
    pub fn decline(self, key: impl Into<String>) -> Self {
        self.give(key, ScriptedAnswer::decline())
    }

    /// Cancels the ask with this key.
    pub fn cancel(self, key: impl Into<String>) -> Self {
        self.give(key, ScriptedAnswer::cancel())
    }

    /// Consents to open the URL with this key.
    pub fn consent(self, key: impl Into<String>) -> Self {
        self.give(key, ScriptedAnswer::consent())
    }

    /// Answers the sampling request with this key.
    pub fn sample(self, key: impl Into<String>, text: impl Into<String>) -> Self {
        self.give(key, ScriptedAnswer::sample(text))
    }

    /// Answers every ask for roots with these URIs.
    pub fn roots<U: Into<String>>(mut self, uris: impl IntoIterator<Item = U>) -> Self {
        self.roots = Some(ScriptedAnswer::roots(uris));
        self
    }

    /// Gives this answer to the ask with this key.
    pub fn give(self, key: impl Into<String>, answer: ScriptedAnswer) -> Self {
        self.react(key, move |_| answer.clone())
    }

    /// Computes the answer to the ask with this key.
    pub fn react(
        mut self,
        key: impl Into<String>,
        react: impl Fn(&ReceivedAsk) -> ScriptedAnswer + Send + Sync + 'static,
    ) -> Self {
        self.rules.push((key.into(), Closure(Arc::new(react))));
        self
    }

    /// Computes the answer to every other ask.
    pub fn otherwise(
        mut self,
        react: impl Fn(&ReceivedAsk) -> ScriptedAnswer + Send + Sync + 'static,
    ) -> Self {
        self.otherwise = Some(Closure(Arc::new(react)));
        self
    }

    /// Declares these capabilities and no others.
    pub fn can(mut self, capabilities: impl IntoIterator<Item = Capability>) -> Self {
        self.capabilities = capabilities.into_iter().collect();
        self
    }

    /// Sets the authenticated principal.
    pub fn principal(mut self, id: impl Into<Arc<str>>) -> Self {
        self.caller.principal = Principal::new(id);
        self
    }

    /// Sets the granted scopes. A call of a tool that needs another scope is rejected.
    pub fn scopes<S: Into<String>>(mut self, scopes: impl IntoIterator<Item = S>) -> Self {
        self.caller.scopes = scopes.into_iter().collect();
        self
    }

    /// Requests progress notifications.
    pub fn wants_progress(mut self) -> Self {
        self.progress = true;
        self
    }

    /// Requests log messages of this level and above.
    pub fn wants_logs(mut self, level: LogLevel) -> Self {
        self.log_level = Some(level);
        self
    }

    /// Sends a call id, which makes repeated first requests one flow. If a call is run several times, each run has
    /// another id with this prefix.
    pub fn call_id(mut self, id: impl Into<String>) -> Self {
        self.call_id = Some(id.into());
        self
    }

    /// The `_meta` of a request. `run` is the number of the run, for the call id.
    pub(crate) fn meta(&self, run: usize) -> Value {
        let mut meta = json!({
            PROTOCOL_VERSION_KEY: PROTOCOL_VERSION,
            CLIENT_INFO_KEY: {"name": "refrain-testkit", "version": env!("CARGO_PKG_VERSION")},
            CLIENT_CAPABILITIES_KEY: self.capabilities,
        });
        if self.progress {
            meta["progressToken"] = json!("progress");
        }
        if let Some(level) = self.log_level {
            meta[LOG_LEVEL_KEY] = json!(level.as_str());
        }
        match (&self.call_id, run) {
            (None, _) => {}
            (Some(id), 0) => meta[CALL_ID_KEY] = json!(id),
            (Some(id), run) => meta[CALL_ID_KEY] = json!(format!("{id} {run}")),
        }
        meta
    }
}

/// A script, and the number of answers so far for each key.
#[derive(Debug)]
pub(crate) struct Player {
    pub(crate) script: Script,
    counts: HashMap<String, usize>,
}

impl Player {
    pub(crate) fn new(script: Script) -> Self {
        let counts = HashMap::new();
        Self { script, counts }
    }

    /// The answer to an ask, unless it is left out.
    pub(crate) fn answer(&mut self, asked: &ReceivedAsk) -> Option<Value> {
        let rules = self.script.rules.iter();
        let mut rules = rules.filter(|(key, _)| *key == asked.key);
        let count = self.counts.entry(asked.key.clone()).or_default();
        let react = rules.clone().nth(*count).or_else(|| rules.next_back());
        *count += 1;
        match (react, &self.script.roots, &self.script.otherwise) {
            (Some((_, Closure(react))), _, _) => react(asked).0,
            (_, Some(roots), _) if asked.kind() == "roots" => roots.0.clone(),
            (_, _, Some(Closure(react))) => react(asked).0,
            _ => panic!(
                "the script has no answer to the {} {:?}, which asks {:?}",
                asked.kind(),
                asked.key(),
                asked.message()
            ),
        }
    }
}
