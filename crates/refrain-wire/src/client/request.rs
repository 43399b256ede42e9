//! Messages to a server.

use serde_json::{Map, Value, json};

use crate::call::CallKind;
use crate::info::Implementation;
use crate::listen::Filter;
use crate::meta::{
    CALL_ID_KEY, CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY, Capabilities, LOG_LEVEL_KEY, LogLevel,
    PROTOCOL_VERSION, PROTOCOL_VERSION_KEY,
};
use crate::tasks::TaskMethod;

/// The method that asks a server which revisions it speaks.
pub const DISCOVER: &str = "server/discover";
/// The error code by which a server of 2025-11-25 wants a person sent to URLs before the call is repeated.
pub const URLS_REQUIRED: i64 = -32042;

/// A request without its id and `_meta`.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The method.
    pub method: &'static str,
    /// The params, without `_meta`.
    pub params: Map<String, Value>,
}

/// The `_meta` of a request of 2026-07-28.
#[derive(Debug, Clone, Copy)]
pub struct RequestMeta<'a> {
    /// The client's name and version.
    pub client: &'a Implementation,
    /// What the client can do.
    pub capabilities: Capabilities,
    /// The lowest level of log messages the client wants.
    pub log_level: Option<LogLevel>,
    /// The id that makes a repeated first request the same flow.
    pub call_id: Option<&'a str>,
    /// The token of progress notifications.
    pub progress_token: Option<u64>,
}

impl RequestMeta<'_> {
    /// The members of the `_meta`.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut meta = Map::new();
        let mut add = |key: &str, value: Value| meta.insert(key.to_owned(), value);
        add(PROTOCOL_VERSION_KEY, PROTOCOL_VERSION.into());
        add(CLIENT_INFO_KEY, json!(self.client));
        add(CLIENT_CAPABILITIES_KEY, json!(self.capabilities));
        if let Some(level) = self.log_level {
            add(LOG_LEVEL_KEY, level.as_str().into());
        }
        if let Some(call_id) = self.call_id {
            add(CALL_ID_KEY, call_id.into());
        }
        if let Some(token) = self.progress_token {
            add("progressToken", token.into());
        }
        meta
    }
}

impl Request {
    /// A request with these params.
    pub fn new(
        method: &'static str,
        params: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Self {
        let params = params.into_iter();
        Self {
            method,
            params: params
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        }
    }

    /// The question which revisions the server speaks.
    pub fn discover() -> Self {
        Self::new(DISCOVER, [])
    }

    /// The greeting of legacy revisions.
    pub fn initialize(version: &str, client: &Implementation, capabilities: Capabilities) -> Self {
        Self::new(
            "initialize",
            [
                ("protocolVersion", version.into()),
                ("capabilities", json!(capabilities)),
                ("clientInfo", json!(client)),
            ],
        )
    }

    /// The first round of a call. A resource takes no arguments.
    pub fn call(kind: CallKind, target: &str, arguments: &Map<String, Value>) -> Self {
        let target = (kind.target_member(), target.into());
        let arguments = (kind != CallKind::Resource).then(|| arguments.clone().into());
        let arguments = arguments.map(|arguments| ("arguments", arguments));
        Self::new(kind.method(), [target].into_iter().chain(arguments))
    }

    /// A request about a task.
    pub fn task(method: TaskMethod, id: &str) -> Self {
        Self::new(method.as_str(), [("taskId", id.into())])
    }

    /// A subscription to changes.
    pub fn listen(filter: &Filter) -> Self {
        Self::new("subscriptions/listen", [("notifications", json!(filter))])
    }

    /// The lowest level of log messages that a legacy server sends.
    pub fn set_level(level: LogLevel) -> Self {
        Self::new("logging/setLevel", [("level", level.as_str().into())])
    }

    /// The request with answers to what was asked, and the state to send back.
    #[must_use]
    pub fn answered(mut self, answers: Map<String, Value>, state: Option<&str>) -> Self {
        if !answers.is_empty() {
            self.params
                .insert("inputResponses".to_owned(), answers.into());
        }
        if let Some(state) = state {
            self.params.insert("requestState".to_owned(), state.into());
        }
        self
    }

    /// The kind of call, if it is one.
    pub fn call_kind(&self) -> Option<CallKind> {
        CallKind::from_method(self.method)
    }

    /// What the `Mcp-Name` header repeats: the tool, prompt, resource or task.
    pub fn subject(&self) -> Option<&str> {
        let member = match self.call_kind() {
            Some(kind) => kind.target_member(),
            None => TaskMethod::from_method(self.method).map(|_| "taskId")?,
        };
        self.params.get(member).and_then(Value::as_str)
    }

    /// The text of the message.
    pub fn write(&self, id: u64, meta: Option<Map<String, Value>>) -> String {
        let mut params = self.params.clone();
        if let Some(meta) = meta.filter(|meta| !meta.is_empty()) {
            params.insert("_meta".to_owned(), meta.into());
        }
        let method = self.method;
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
    }
}

/// Tells a server that nobody waits for the response to a request any longer.
pub fn write_cancelled(id: u64) -> String {
    let params = json!({"requestId": id, "reason": "the caller no longer waits"});
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).to_string()
}

/// Tells a legacy server that the greeting is done.
pub fn write_initialized() -> String {
    json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string()
}

/// The result of a request of the server's.
pub fn write_result(id: &Value, result: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()
}

/// The error that rejects a request of the server's.
pub fn write_refusal(id: &Value, code: i32, message: &str) -> String {
    let error = json!({"code": code, "message": message});
    json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string()
}
