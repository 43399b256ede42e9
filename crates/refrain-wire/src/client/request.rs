//! Messages that a client sends.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

use crate::call::CallKind;
use crate::capabilities::Capabilities;
use crate::complete::Reference;
use crate::info::Implementation;
use crate::listen::Filter;
use crate::meta::{
    CALL_ID_KEY, CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY, LOG_LEVEL_KEY, LogLevel,
    PROGRESS_TOKEN_KEY, PROTOCOL_VERSION, PROTOCOL_VERSION_KEY,
};
use crate::tasks::TaskMethod;

/// The method that lists the revisions a server supports.
pub const DISCOVER: &str = "server/discover";
/// The error code of 2025-11-25 for a call that requires the user to open URLs first.
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
    /// The client's capabilities.
    pub capabilities: Capabilities,
    /// The minimum level of log messages to send.
    pub log_level: Option<LogLevel>,
    /// The call id, for the call's first request.
    pub call_id: Option<&'a str>,
    /// The token of progress notifications.
    pub progress_token: Option<u64>,
}

impl RequestMeta<'_> {
    /// The keys of all members that a client sets itself.
    pub const KEYS: [&'static str; 6] = [
        PROTOCOL_VERSION_KEY,
        CLIENT_INFO_KEY,
        CLIENT_CAPABILITIES_KEY,
        LOG_LEVEL_KEY,
        CALL_ID_KEY,
        PROGRESS_TOKEN_KEY,
    ];

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
            add(PROGRESS_TOKEN_KEY, token.into());
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

    /// `server/discover`: lists the revisions that the server supports.
    pub fn discover() -> Self {
        Self::new(DISCOVER, [])
    }

    /// `initialize`: the handshake of legacy revisions.
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

    /// The first round of a call. Ignores the arguments for a resource.
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

    /// Subscribes to changes of a resource of a legacy server.
    pub fn subscribe(uri: &str) -> Self {
        Self::new("resources/subscribe", [("uri", uri.into())])
    }

    /// Ends the subscription to a resource of a legacy server.
    pub fn unsubscribe(uri: &str) -> Self {
        Self::new("resources/unsubscribe", [("uri", uri.into())])
    }

    /// Asks for suggestions for the value of an argument. `context` has the other arguments.
    pub fn complete(
        reference: &Reference<'_>,
        argument: &str,
        value: &str,
        context: &BTreeMap<String, String>,
    ) -> Self {
        let reference = match reference {
            Reference::Prompt(name) => json!({"type": "ref/prompt", "name": name}),
            Reference::Resource(uri) => json!({"type": "ref/resource", "uri": uri}),
        };
        let argument = json!({"name": argument, "value": value});
        let context = (!context.is_empty()).then(|| ("context", json!({"arguments": context})));
        let params = [("ref", reference), ("argument", argument)];
        Self::new("completion/complete", params.into_iter().chain(context))
    }

    /// Sets the minimum level of log messages of a legacy server.
    pub fn set_level(level: LogLevel) -> Self {
        Self::new("logging/setLevel", [("level", level.as_str().into())])
    }

    /// Adds answers, and the state of the previous round.
    #[must_use]
    pub fn with_answers(mut self, answers: Map<String, Value>, state: Option<&str>) -> Self {
        if !answers.is_empty() {
            self.params
                .insert("inputResponses".to_owned(), answers.into());
        }
        if let Some(state) = state {
            self.params.insert("requestState".to_owned(), state.into());
        }
        self
    }

    /// The kind of call, or `None` for another method.
    pub fn call_kind(&self) -> Option<CallKind> {
        CallKind::from_method(self.method)
    }

    /// The value of the `Mcp-Name` header: the tool, prompt, resource or task.
    pub fn subject(&self) -> Option<&str> {
        let member = match self.call_kind() {
            Some(kind) => kind.target_member(),
            None => TaskMethod::from_method(self.method).map(|_| "taskId")?,
        };
        self.params.get(member).and_then(Value::as_str)
    }

    /// Serializes the message.
    pub fn write(&self, id: u64, meta: Option<Map<String, Value>>) -> String {
        let mut params = self.params.clone();
        if let Some(meta) = meta.filter(|meta| !meta.is_empty()) {
            params.insert("_meta".to_owned(), meta.into());
        }
        let method = self.method;
        let mut message = json!({"jsonrpc": "2.0", "id": id, "method": method});
        // `json!` would copy the params.
        message["params"] = params.into();
        message.to_string()
    }
}

/// Writes the notification that cancels a request.
pub fn write_cancelled(id: u64) -> String {
    let params = json!({"requestId": id, "reason": "cancelled by the caller"});
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).to_string()
}

/// Writes the notification that ends the legacy handshake.
pub fn write_initialized() -> String {
    json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string()
}

/// Writes the result of a server's request.
pub fn write_result(id: &Value, result: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()
}

/// Writes the error response to a server's request.
pub fn write_error(id: &Value, code: i32, message: &str) -> String {
    let error = json!({"code": code, "message": message});
    json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string()
}
