//! The client's side of a call: what it answers, who it is and what it can do.

use refrain::auth::{Caller, Principal};
use refrain_wire::{
    CALL_ID_KEY, CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY, Capability, LOG_LEVEL_KEY, LogLevel,
    PROTOCOL_VERSION, PROTOCOL_VERSION_KEY, TASKS_EXTENSION,
};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::Arc;

/// An ask as the client received it, and what it answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    pub(crate) key: String,
    pub(crate) request: Value,
    pub(crate) answer: Option<Value>,
}

impl Asked {
    /// The key it was asked under.
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

    /// What the person reads; of a question to a model, the text of its last message. Empty for roots.
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

    /// The whole ask as it was sent.
    pub fn request(&self) -> &Value {
        &self.request
    }

    /// What the client answered, as it was sent. `None` if it left the answer out, or has not answered yet.
    pub fn answer(&self) -> Option<&Value> {
        self.answer.as_ref()
    }
}

/// One answer of a [`Script`].
#[derive(Clone, Debug, PartialEq)]
pub struct Given(Option<Value>);

impl Given {
    /// A form filled in with this.
    pub fn form(content: impl Into<Value>) -> Self {
        Self::raw(json!({"action": "accept", "content": content.into()}))
    }

    /// Consent to open a URL.
    pub fn consent() -> Self {
        Self::raw(json!({"action": "accept"}))
    }

    /// A no.
    pub fn decline() -> Self {
        Self::raw(json!({"action": "decline"}))
    }

    /// A form or URL closed without an answer.
    pub fn cancel() -> Self {
        Self::raw(json!({"action": "cancel"}))
    }

    /// What a model says.
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
        let roots: Vec<Value> = uris
            .into_iter()
            .map(|uri| json!({"uri": uri.into()}))
            .collect();
        Self::raw(json!({"roots": roots}))
    }

    /// This very JSON, sound or not.
    pub fn raw(answer: Value) -> Self {
        Self(Some(answer))
    }

    /// No answer: the next request leaves it out.
    pub fn nothing() -> Self {
        Self(None)
    }
}

type React = Arc<dyn Fn(&Asked) -> Given + Send + Sync>;

/// What the client of a call answers, who it is and what it can do.
///
/// Answers are given by the key of the ask. Several for one key are given one after the other, and the last of them
/// from then on. An ask without an answer in the script fails the test.
///
/// ```
/// use refrain_testkit::{Given, Script};
/// use serde_json::json;
///
/// let script = Script::new()
///     .answer("name", json!({"name": "octocat"}))
///     .decline("newsletter")
///     .sample("summary", "All is well.")
///     .roots(["file:///home/octocat"])
///     .react("age", |asked| match asked.message() {
///         "How old are you?" => Given::form(json!({"age": 30})),
///         _ => Given::cancel(),
///     })
///     .principal("octocat");
/// # let _ = script;
/// ```
#[derive(Clone)]
pub struct Script {
    rules: Vec<(String, React)>,
    otherwise: Option<React>,
    roots: Option<Given>,
    capabilities: Value,
    caller: Caller,
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
    /// An anonymous client that can do everything and has no answers yet.
    pub fn new() -> Self {
        Self {
            rules: Vec::new(),
            otherwise: None,
            roots: None,
            capabilities: json!({
                "elicitation": {"form": {}, "url": {}},
                "sampling": {"tools": {}},
                "roots": {},
            }),
            caller: Principal::anonymous().into(),
            progress: false,
            log_level: None,
            call_id: None,
        }
    }

    /// Fills in the form asked under this key.
    pub fn answer(self, key: impl Into<String>, content: impl Into<Value>) -> Self {
        self.give(key, Given::form(content))
    }

    /// Says no to what is asked under this key.
    pub fn decline(self, key: impl Into<String>) -> Self {
        self.give(key, Given::decline())
    }

    /// Closes what is asked under this key without an answer.
    pub fn cancel(self, key: impl Into<String>) -> Self {
        self.give(key, Given::cancel())
    }

    /// Consents to open the URL asked under this key.
    pub fn consent(self, key: impl Into<String>) -> Self {
        self.give(key, Given::consent())
    }

    /// Has the model say this to what is asked under this key.
    pub fn sample(self, key: impl Into<String>, text: impl Into<String>) -> Self {
        self.give(key, Given::sample(text))
    }

    /// Lists these URIs whenever roots are asked for, under whatever key.
    pub fn roots<U: Into<String>>(mut self, uris: impl IntoIterator<Item = U>) -> Self {
        self.roots = Some(Given::roots(uris));
        self
    }

    /// Gives this answer to what is asked under this key.
    pub fn give(self, key: impl Into<String>, given: Given) -> Self {
        self.react(key, move |_| given.clone())
    }

    /// Answers what is asked under this key by looking at it.
    pub fn react(
        mut self,
        key: impl Into<String>,
        react: impl Fn(&Asked) -> Given + Send + Sync + 'static,
    ) -> Self {
        self.rules.push((key.into(), Arc::new(react)));
        self
    }

    /// Answers whatever has no other answer.
    pub fn otherwise(mut self, react: impl Fn(&Asked) -> Given + Send + Sync + 'static) -> Self {
        self.otherwise = Some(Arc::new(react));
        self
    }

    /// Declares that the client can do these things and no others.
    pub fn can(mut self, capabilities: impl IntoIterator<Item = Capability>) -> Self {
        let mut declared = Map::new();
        let mut elicitation = Map::new();
        let mut sampling = None;
        for capability in capabilities {
            match capability {
                Capability::Form => drop(elicitation.insert("form".into(), json!({}))),
                Capability::Url => drop(elicitation.insert("url".into(), json!({}))),
                Capability::Sampling => drop(sampling.get_or_insert_with(Map::new)),
                Capability::SamplingTools => {
                    let sampling = sampling.get_or_insert_with(Map::new);
                    sampling.insert("tools".into(), json!({}));
                }
                Capability::Roots => drop(declared.insert("roots".into(), json!({}))),
                Capability::Tasks => {
                    let tasks = json!({TASKS_EXTENSION: {}});
                    declared.insert("extensions".into(), tasks);
                }
            }
        }
        if !elicitation.is_empty() {
            declared.insert("elicitation".into(), elicitation.into());
        }
        if let Some(sampling) = sampling {
            declared.insert("sampling".into(), sampling.into());
        }
        self.capabilities = declared.into();
        self
    }

    /// Calls as this principal, as an authenticator would have found.
    pub fn principal(mut self, id: impl Into<Arc<str>>) -> Self {
        self.caller.principal = Principal::new(id);
        self
    }

    /// Calls with these scopes, as an authenticator would have found. Without any, a tool that needs one is refused.
    pub fn scopes<S: Into<String>>(mut self, scopes: impl IntoIterator<Item = S>) -> Self {
        self.caller.scopes = scopes.into_iter().collect();
        self
    }

    /// Wants to hear how far the work is.
    pub fn wants_progress(mut self) -> Self {
        self.progress = true;
        self
    }

    /// Wants log messages of this level and above.
    pub fn wants_logs(mut self, level: LogLevel) -> Self {
        self.log_level = Some(level);
        self
    }

    /// Sends a call id, so that a repeated first request is the same flow. Where a call is run several times, each
    /// run has an id of its own that begins with this one.
    pub fn call_id(mut self, id: impl Into<String>) -> Self {
        self.call_id = Some(id.into());
        self
    }

    /// The `_meta` of a request; `run` tells the runs of one call apart.
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
        if let Some(id) = &self.call_id {
            let id = match run {
                0 => id.clone(),
                run => format!("{id} {run}"),
            };
            meta[CALL_ID_KEY] = json!(id);
        }
        meta
    }

    pub(crate) fn who(&self) -> Caller {
        self.caller.clone()
    }
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keys: Vec<&str> = self.rules.iter().map(|(key, _)| key.as_str()).collect();
        f.debug_struct("Script")
            .field("answers", &keys)
            .field("caller", &self.caller)
            .finish_non_exhaustive()
    }
}

/// A script in use: it knows what was answered so far.
#[derive(Debug)]
pub(crate) struct Player {
    pub(crate) script: Script,
    given: HashMap<String, usize>,
}

impl Player {
    pub(crate) fn new(script: Script) -> Self {
        let given = HashMap::new();
        Self { script, given }
    }

    /// The answer to an ask, if it is given one.
    pub(crate) fn answer(&mut self, asked: &Asked) -> Option<Value> {
        let mut rules = self
            .script
            .rules
            .iter()
            .filter(|(key, _)| *key == asked.key);
        let turn = self.given.entry(asked.key.clone()).or_default();
        let react = rules.clone().nth(*turn).or_else(|| rules.next_back());
        *turn += 1;
        if let Some((_, react)) = react {
            return react(asked).0;
        }
        match (&self.script.roots, &self.script.otherwise) {
            (Some(roots), _) if asked.kind() == "roots" => roots.0.clone(),
            (_, Some(react)) => react(asked).0,
            _ => panic!(
                "the script has no answer to the {} {:?}, which asks {:?}",
                asked.kind(),
                asked.key(),
                asked.message()
            ),
        }
    }
}
