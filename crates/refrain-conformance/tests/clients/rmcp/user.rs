//! A simulated user and model: answers asks by key and records them.

// This revision deprecates sampling, roots and logging but still has them.
#![allow(deprecated)]

use ::rmcp::ClientHandler;
use ::rmcp::model::{
    ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult,
    ElicitRequestParams, ElicitResult, ElicitationAction, ErrorData, Implementation,
    ListRootsResult, LoggingMessageNotificationParam, NumberOrString, ProgressNotificationParam,
    Root, SamplingMessage,
};
use ::rmcp::service::{NotificationContext, RequestContext, RoleClient};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;

pub(super) const MODEL_ANSWER: &str = "Paris, says the model.";
pub(super) const ROOTS: [&str; 2] = ["file:///srv/one", "file:///srv/two"];

/// The default capabilities of the client.
const ALL: &str = r#"{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}"#;

/// A shared handle to the user.
#[derive(Clone)]
pub(super) struct User {
    capabilities: ClientCapabilities,
    memory: Arc<Mutex<Memory>>,
    notes: Arc<watch::Sender<Notes>>,
}

/// The remaining answers and the recorded asks.
#[derive(Default)]
pub(super) struct Memory {
    answers: BTreeMap<String, VecDeque<Value>>,
    /// The keys of the asks.
    pub(super) asked: Vec<String>,
    pub(super) messages: Vec<String>,
    pub(super) forms: Vec<Value>,
    pub(super) sampled: Vec<Value>,
}

/// The notifications from the server.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Notes {
    /// Progress, total and message.
    pub(super) progress: Vec<(f64, Option<f64>, Option<String>)>,
    /// Level and data.
    pub(super) logs: Vec<(Value, Value)>,
}

impl User {
    /// A user with answers by key: the content of a form, "decline" or "cancel".
    pub(super) fn new<const N: usize>(answers: [(&str, Value); N]) -> Self {
        let mut memory = Memory::default();
        for (key, answer) in answers {
            let answers = memory.answers.entry(key.to_owned()).or_default();
            answers.push_back(answer);
        }
        Self {
            capabilities: serde_json::from_str(ALL).expect("valid capabilities"),
            memory: Arc::new(Mutex::new(memory)),
            notes: Arc::default(),
        }
    }

    /// A user without answers.
    pub(super) fn silent() -> Self {
        Self::new([])
    }

    /// Limits the capabilities of the client.
    pub(super) fn limited_to(mut self, capabilities: Value) -> Self {
        self.capabilities = serde_json::from_value(capabilities).expect("valid capabilities");
        self
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().expect("the lock is not poisoned")
    }

    /// The notifications so far.
    pub(super) fn notes(&self) -> Notes {
        self.notes.borrow().clone()
    }

    /// Waits until the notifications satisfy a condition.
    pub(super) async fn notes_until(&self, enough: impl FnMut(&Notes) -> bool) {
        let mut notes = self.notes.subscribe();
        notes
            .wait_for(enough)
            .await
            .expect("the sender is in `self`");
    }

    fn remember(&self, context: &RequestContext<RoleClient>) -> String {
        let NumberOrString::String(key) = &context.id else {
            panic!("the SDK uses the key of an ask as its id");
        };
        self.memory().asked.push(key.to_string());
        key.to_string()
    }
}

impl ClientHandler for User {
    fn get_info(&self) -> ClientConfig {
        let client = Implementation::new("refrain-tests", "0");
        ClientConfig::new(self.capabilities.clone(), client)
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let key = self.remember(&context);
        let mut memory = self.memory();
        let ElicitRequestParams::FormElicitationParams {
            message,
            requested_schema,
            ..
        } = request
        else {
            return Err(ErrorData::invalid_params("not a form", None));
        };
        let schema = serde_json::to_value(requested_schema).expect("a schema is JSON");
        memory.messages.push(message);
        memory.forms.push(schema);
        let answer = memory
            .answers
            .get_mut(&key)
            .and_then(VecDeque::pop_front)
            .ok_or_else(|| ErrorData::invalid_params(format!("no answer left to {key}"), None))?;
        Ok(match answer.as_str() {
            Some("decline") => ElicitResult::new(ElicitationAction::Decline),
            Some("cancel") => ElicitResult::new(ElicitationAction::Cancel),
            _ => ElicitResult::new(ElicitationAction::Accept).with_content(answer),
        })
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.remember(&context);
        self.memory().sampled.push(json!(params.messages));
        let message = SamplingMessage::assistant_text(MODEL_ANSWER);
        Ok(CreateMessageResult::new(message, "scripted".to_owned()).with_stop_reason("endTurn"))
    }

    async fn list_roots(
        &self,
        context: RequestContext<RoleClient>,
    ) -> Result<ListRootsResult, ErrorData> {
        self.remember(&context);
        Ok(ListRootsResult::new(ROOTS.map(Root::new).to_vec()))
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let progress = (params.progress, params.total, params.message);
        self.notes
            .send_modify(|notes| notes.progress.push(progress));
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let line = (json!(params.level), params.data);
        self.notes.send_modify(|notes| notes.logs.push(line));
    }
}
