//! The person and the model behind the client: follows the script of the current call, and records the asks.

use rmcp::ClientHandler;
use rmcp::model::{
    ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult,
    ElicitRequestParams, ElicitResult, ErrorData, Implementation, ListRootsResult,
    LoggingMessageNotificationParam, ProgressNotificationParam,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use tokio::sync::{Barrier, watch};

const CAPABILITIES: &str =
    r#"{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{}},"roots":{}}"#;

/// A shared handle to the person.
#[derive(Clone, Default)]
pub(crate) struct Person {
    script: Arc<Mutex<Script>>,
    notes: Arc<watch::Sender<Notes>>,
}

#[derive(Default)]
struct Script {
    person: Value,
    barrier: Option<Arc<Barrier>>,
    asked: Vec<String>,
}

/// The notifications of the current call.
#[derive(Default, Clone)]
pub(crate) struct Notes {
    pub(crate) progress: Vec<f64>,
    pub(crate) logs: Vec<String>,
}

impl Person {
    pub(crate) fn begin(&self, call: &Value, barrier: Option<Arc<Barrier>>) {
        *self.lock() = Script {
            person: call["person"].clone(),
            barrier,
            asked: Vec::new(),
        };
        self.notes.send_replace(Notes::default());
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.lock().asked.clone()
    }

    /// The notifications, once there are as many as the call expects.
    pub(crate) async fn notes(&self, call: &Value) -> Notes {
        let expected = |name: &str| call[name].as_u64().unwrap_or(0) as usize;
        let (progress, logs) = (expected("progress"), expected("logs"));
        let is_enough =
            |notes: &Notes| notes.progress.len() >= progress && notes.logs.len() >= logs;
        let mut notes = self.notes.subscribe();
        let waited = tokio::time::timeout(crate::NOTIFICATION_TIME, notes.wait_for(is_enough));
        // Too few notifications are in the outcome.
        drop(waited.await);
        self.notes.borrow().clone()
    }

    /// With a barrier, no ask is answered before every call has one.
    async fn record(&self, ask: String) -> Value {
        let (barrier, person) = {
            let mut script = self.lock();
            script.asked.push(ask);
            (script.barrier.clone(), script.person.clone())
        };
        if let Some(barrier) = barrier {
            barrier.wait().await;
        }
        person
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Script> {
        self.script.lock().expect("the lock is not poisoned")
    }
}

/// An answer as the SDK's type.
fn answer<T: DeserializeOwned>(answer: Value) -> Result<T, ErrorData> {
    serde_json::from_value(answer)
        .map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

impl ClientHandler for Person {
    fn get_info(&self) -> ClientConfig {
        let capabilities: ClientCapabilities =
            serde_json::from_str(CAPABILITIES).expect("valid capabilities");
        ClientConfig::new(capabilities, Implementation::new("refrain-tests", "0"))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let asked = json!(request);
        let message = asked["message"].as_str().unwrap_or_default();
        let is_url = asked["mode"] == "url";
        let person = if is_url {
            let url = asked["url"].as_str().unwrap_or_default();
            self.record(format!("url: {message} {url}")).await
        } else {
            self.record(format!("form: {message}")).await
        };
        let action = person["action"].as_str().unwrap_or("accept");
        if is_url || action != "accept" {
            return answer(json!({ "action": action }));
        }
        let mut content = person["fields"].clone();
        if let Some(fields) = content.as_object_mut() {
            fields.retain(|name, _| asked["requestedSchema"]["properties"].get(name).is_some());
        }
        answer(json!({ "action": action, "content": content }))
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let asked = json!(params);
        let question = asked["messages"][0]["content"]["text"]
            .as_str()
            .unwrap_or_default();
        let Some(tool) = asked["tools"][0]["name"].as_str() else {
            let person = self.record(format!("model: {question}")).await;
            let content = json!({ "type": "text", "text": person["said"] });
            return answer(json!({
                "role": "assistant", "model": "scripted", "content": content, "stopReason": "endTurn",
            }));
        };
        let person = self.record(format!("model with {tool}: {question}")).await;
        let content =
            json!([{ "type": "tool_use", "id": "use-1", "name": tool, "input": person["input"] }]);
        answer(json!({
            "role": "assistant", "model": "scripted", "content": content, "stopReason": "toolUse",
        }))
    }

    async fn list_roots(
        &self,
        _context: RequestContext<RoleClient>,
    ) -> Result<ListRootsResult, ErrorData> {
        // Without the barrier: some servers ask for the roots at any time.
        let mut script = self.lock();
        script.asked.push("roots".to_owned());
        let person = script.person.clone();
        drop(script);
        let names = person["roots"].as_array().cloned().unwrap_or_default();
        let roots = names.iter().filter_map(Value::as_str);
        let roots = roots.map(|name| json!({ "uri": format!("file:///{name}"), "name": name }));
        answer(json!({ "roots": roots.collect::<Vec<_>>() }))
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.notes
            .send_modify(|notes| notes.progress.push(params.progress));
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        let level = json!(params.level);
        let data = params
            .data
            .as_str()
            .map_or_else(|| params.data.to_string(), str::to_owned);
        let line = format!("{}: {data}", level.as_str().unwrap_or_default());
        self.notes.send_modify(|notes| notes.logs.push(line));
    }
}
