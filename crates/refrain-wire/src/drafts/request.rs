//! Translates requests between a draft and the ratified revision.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::meta::{self, TaskMember};
use super::object::{
    Object, into_object, move_member, object, raw_id, read_object, set, to_message, to_text,
};
use super::{
    BASE_REVISION, Draft, DraftError, DraftExchange, DraftRequest, DraftResult, RATIFIED,
    RELATED_TASK_KEY, RequestKind, TASK_RESULT,
};
use crate::call::CallKind;
use crate::envelope::{Id, Message, Rejection, parse};
use crate::error::RpcError;
use crate::excerpt::Excerpt;
use crate::legacy::SessionSettings;
use crate::meta::{CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY};

/// The methods of the drafts: kind, draft name, ratified name.
const METHODS: [(RequestKind, &str, &str); 13] = [
    (RequestKind::Call, "tools/call", "tools/call"),
    (RequestKind::Call, "prompts/get", "prompts/get"),
    (RequestKind::Call, "resources/read", "resources/read"),
    (RequestKind::Other, "tools/list", "tools/list"),
    (RequestKind::Other, "prompts/list", "prompts/list"),
    (RequestKind::Other, "resources/list", "resources/list"),
    (
        RequestKind::Other,
        "resources/templates/list",
        "resources/templates/list",
    ),
    (
        RequestKind::Other,
        "completion/complete",
        "completion/complete",
    ),
    (RequestKind::Handshake, "initialize", "server/discover"),
    (RequestKind::TaskGet, "tasks/get", "tasks/get"),
    (RequestKind::TaskResult, TASK_RESULT, "tasks/get"),
    (RequestKind::TaskCancel, "tasks/cancel", "tasks/cancel"),
    (
        RequestKind::TaskAnswers,
        "tasks/input_response",
        "tasks/update",
    ),
];

impl Draft {
    /// Whether a message exists only in the draft. All other messages are those of 2025-11-25.
    pub fn is_draft_specific(self, bytes: &[u8]) -> bool {
        match parse(bytes) {
            Ok(Message::Request { method, .. }) => {
                let kind = self.kind(&method).map(|(kind, _)| kind);
                !matches!(
                    kind,
                    None | Some(RequestKind::Other | RequestKind::Handshake)
                )
            }
            Ok(Message::Notification { .. } | Message::Response(_)) => false,
            Err(_) => self == Self::First && find_answers(bytes).is_some(),
        }
    }

    /// Reads a message from a client without a session.
    pub fn read_request(self, bytes: &[u8]) -> DraftResult<DraftRequest> {
        self.read_session_request(None, bytes)
    }

    /// Reads a message from a client, with the settings of its session if it has one.
    pub fn read_session_request(
        self,
        session: Option<SessionSettings>,
        bytes: &[u8],
    ) -> DraftResult<DraftRequest> {
        if self == Self::First
            && let Some((id, answers)) = find_answers(bytes)
        {
            return read_answers(id, answers).map_err(|error| reject(id, error));
        }
        let (id, method) = match parse(bytes)? {
            Message::Notification { .. } => return Ok(DraftRequest::Notification),
            Message::Request { id, method, .. } => (id, method),
            Message::Response(response) => {
                return Err(reject(response.id, RpcError::unexpected_response()));
            }
        };
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        read_object(text)
            .map_err(RpcError::from)
            .and_then(|request| self.read(id, &method, request, session))
            .map_err(|error| reject(id, error))
    }

    fn read(
        self,
        id: Id<'_>,
        method: &str,
        mut request: Object,
        session: Option<SessionSettings>,
    ) -> Result<DraftRequest, RpcError> {
        if method == "ping" {
            let reply = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, id.as_json());
            return Ok(DraftRequest::Replied(reply.into_bytes()));
        }
        let params = request.shift_remove("params").unwrap_or_else(|| json!({}));
        let mut params = into_object(params)
            .ok_or_else(|| RpcError::invalid_params("params must be an object"))?;
        let (kind, ratified) = self
            .kind(method)
            .ok_or_else(|| RpcError::method_not_found(method))?;
        let mut task_member = None;
        match kind {
            RequestKind::Call => {
                self.read_round(&mut params, &mut request)?;
                let task = params.shift_remove("task");
                if self.has_tasks() && method == CallKind::Tool.method() {
                    task_member = task.as_ref().map(TaskMember::read).transpose()?;
                }
            }
            RequestKind::TaskAnswers => {
                if !params.contains_key("taskId") {
                    let task = params.get("_meta").and_then(related_task);
                    let name = format!("_meta[{RELATED_TASK_KEY:?}] with a taskId");
                    let task = task.ok_or_else(|| missing(&name, method))?.to_owned();
                    set(&mut params, "taskId", task);
                }
                require_member(&params, RATIFIED.answers, method)?;
            }
            RequestKind::Handshake => params = Object::new(),
            RequestKind::TaskGet | RequestKind::TaskResult | RequestKind::TaskCancel => {
                require_member(&params, "taskId", method)?;
            }
            RequestKind::Other => {}
        }
        self.ratified(id, kind, ratified, params, session, task_member.as_ref())
    }

    /// Builds the ratified request with the raw id.
    fn ratified(
        self,
        id: Id<'_>,
        kind: RequestKind,
        method: &str,
        mut params: Object,
        session: Option<SessionSettings>,
        task_member: Option<&TaskMember>,
    ) -> Result<DraftRequest, RpcError> {
        let tasks = kind.is_about_task() || task_member.is_some();
        meta::complete(&mut params, session, tasks, task_member)?;
        let exchange = DraftExchange {
            draft: self,
            kind,
            task: task_id(&params),
            wants_task: task_member.is_some(),
        };
        let (id, params) = (id.as_json(), to_text(params));
        let message =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        Ok(DraftRequest::Request {
            message: message.into_bytes(),
            exchange,
        })
    }

    /// The kind and the ratified name of a draft's method.
    fn kind(self, method: &str) -> Option<(RequestKind, &'static str)> {
        let (kind, _, ratified) = *METHODS
            .iter()
            .find(|(_, draft_name, _)| *draft_name == method)?;
        let is_supported = match kind {
            RequestKind::TaskAnswers => self == Self::Second,
            kind => self.has_tasks() || !kind.is_about_task(),
        };
        is_supported.then_some((kind, ratified))
    }

    /// Moves answers and state into the params.
    fn read_round(self, params: &mut Object, request: &mut Object) -> Result<(), RpcError> {
        let names = self.names();
        if self == Self::Second {
            // One example of the draft has them next to the method, all others in the params.
            for name in [names.answers, names.state] {
                if !params.contains_key(name) {
                    move_member(request, name, params, name);
                }
            }
            return Ok(());
        }
        params.shift_remove(RATIFIED.answers);
        params.shift_remove(RATIFIED.state);
        if let Some(answers) = request.shift_remove(names.answers) {
            set(
                params,
                RATIFIED.answers,
                unwrap_answers(names.answers, answers)?,
            );
        }
        move_member(request, names.state, params, RATIFIED.state);
        Ok(())
    }

    /// Translates a ratified request to the draft.
    ///
    /// If the client declares the tasks extension, a call gets a `task` member. [`TASK_RESULT`] is accepted as a method.
    pub fn write_request(self, message: &str) -> Result<(String, DraftExchange), DraftError> {
        let text = message;
        let mut message = read_object(text)?;
        let Some(Value::String(method)) = message.shift_remove("method") else {
            return Err(DraftError::Missing("method"));
        };
        let id = message.shift_remove("id");
        let id = id.ok_or(DraftError::Missing("id"))?;
        let mut params = take_object(&mut message, "params")?;
        let mut meta = take_object(&mut params, "_meta")?;
        let task_member = meta::reduce(&mut meta)?;
        let (kind, draft_name) = self.kind_of_ratified(&method)?;
        let task_member =
            task_member.filter(|_| self.has_tasks() && method == CallKind::Tool.method());
        let exchange = DraftExchange {
            draft: self,
            kind,
            task: task_id(&params),
            wants_task: task_member.is_some(),
        };
        let mut written = object([("jsonrpc", "2.0".into()), ("id", id)]);
        let mut round = Object::new();
        match kind {
            RequestKind::Call => {
                if let Some(task_member) = task_member {
                    set(&mut params, "task", json!(task_member));
                }
                self.write_round(&mut params, &mut round)?;
            }
            RequestKind::Handshake => params = handshake_params(std::mem::take(&mut meta)),
            RequestKind::TaskAnswers => {
                let task = exchange.task.as_deref();
                let related = related_task_value(task.ok_or(DraftError::Missing("taskId"))?);
                if self == Self::First {
                    let answers = take_object(&mut params, RATIFIED.answers)?;
                    set(&mut written, self.names().answers, wrap_answers(answers));
                    set(&mut written, "_meta", json!({RELATED_TASK_KEY: related}));
                    return Ok((to_message(written, text), exchange));
                }
                params.shift_remove("taskId");
                set(&mut meta, RELATED_TASK_KEY, related);
            }
            _ => {}
        }
        if !meta.is_empty() {
            set(&mut params, "_meta", meta);
        }
        set(&mut written, "method", draft_name);
        set(&mut written, "params", params);
        written.extend(round);
        Ok((to_message(written, text), exchange))
    }

    /// The kind and the draft name of a ratified method.
    fn kind_of_ratified(self, method: &str) -> Result<(RequestKind, &'static str), DraftError> {
        let found = METHODS
            .iter()
            .find(|(kind, draft_name, ratified)| match kind {
                RequestKind::TaskResult => *draft_name == method,
                _ => *ratified == method,
            });
        match found {
            Some((kind, draft_name, _)) if self.has_tasks() || !kind.is_about_task() => {
                Ok((*kind, *draft_name))
            }
            _ => Err(DraftError::Unsupported {
                draft: self,
                method: method.to_owned(),
            }),
        }
    }

    /// Moves answers and state out of the params.
    fn write_round(self, params: &mut Object, round: &mut Object) -> Result<(), DraftError> {
        if self == Self::Second {
            return Ok(());
        }
        let names = self.names();
        if params.contains_key(RATIFIED.answers) {
            let answers = take_object(params, RATIFIED.answers)?;
            set(round, names.answers, wrap_answers(answers));
        }
        move_member(params, RATIFIED.state, round, names.state);
        Ok(())
    }
}

impl RequestKind {
    const fn is_about_task(self) -> bool {
        matches!(
            self,
            Self::TaskGet | Self::TaskResult | Self::TaskAnswers | Self::TaskCancel
        )
    }
}

/// Recognizes the first draft's message with answers for a task, which has no method.
fn find_answers(bytes: &[u8]) -> Option<(Id<'_>, Object)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let message = read_object(text).ok()?;
    let has = |name: &str| message.contains_key(name);
    let has_shape = message.get("jsonrpc")? == "2.0"
        && has(Draft::First.names().answers)
        && !(has("method") || has("result") || has("error"));
    let id = Id::from_raw(raw_id(text)?)?;
    has_shape.then_some((id, message))
}

fn read_answers(id: Id<'_>, mut message: Object) -> Result<DraftRequest, RpcError> {
    let name = Draft::First.names().answers;
    let Some(task) = message.get("_meta").and_then(related_task) else {
        return Err(RpcError::invalid_request(format!(
            "a message without a method needs _meta[{RELATED_TASK_KEY:?}] with a taskId"
        )));
    };
    let mut params = object([("taskId", task.into())]);
    let answers = message.shift_remove(name).unwrap_or_else(|| json!({}));
    set(
        &mut params,
        RATIFIED.answers,
        unwrap_answers(name, answers)?,
    );
    Draft::First.ratified(
        id,
        RequestKind::TaskAnswers,
        "tasks/update",
        params,
        None,
        None,
    )
}

fn require_member(params: &Object, name: &str, method: &str) -> Result<(), RpcError> {
    match params.contains_key(name) {
        true => Ok(()),
        false => Err(missing(name, method)),
    }
}

fn missing(name: &str, method: &str) -> RpcError {
    RpcError::invalid_params(format!("{name} is missing; {method} needs it"))
}

/// Removes a member that must be an object. A missing member counts as empty.
fn take_object(from: &mut Object, name: &'static str) -> Result<Object, DraftError> {
    let member = from.shift_remove(name).unwrap_or_else(|| json!({}));
    into_object(member).ok_or(DraftError::NotAnObject(name))
}

fn task_id(params: &Object) -> Option<String> {
    params.get("taskId")?.as_str().map(ToOwned::to_owned)
}

/// Converts the `_meta` of `server/discover` to the params of `initialize`.
fn handshake_params(mut meta: Object) -> Object {
    let mut take = |key| meta.shift_remove(key).unwrap_or_else(|| json!({}));
    object([
        ("protocolVersion", BASE_REVISION.as_str().into()),
        ("capabilities", take(CLIENT_CAPABILITIES_KEY)),
        ("clientInfo", take(CLIENT_INFO_KEY)),
    ])
}

/// The id of the related task in a `_meta`.
fn related_task(meta: &Value) -> Option<&str> {
    meta.get(RELATED_TASK_KEY)?.get("taskId")?.as_str()
}

/// The value of [`RELATED_TASK_KEY`] for a task.
pub(super) fn related_task_value(task: &str) -> Value {
    json!({ "taskId": task })
}

/// Replaces each answer object by its `result` member.
fn unwrap_answers(name: &str, answers: Value) -> Result<Object, RpcError> {
    let answers = into_object(answers)
        .ok_or_else(|| RpcError::invalid_params(format!("{name} must be an object")))?;
    let unwrap = |(key, mut answer): (String, Value)| {
        let result = answer.as_object_mut();
        match result.and_then(|answer| answer.shift_remove("result")) {
            Some(result) => Ok((key, result)),
            None => Err(RpcError::invalid_params(format!(
                "{name}[{:?}] must be an object with a result",
                Excerpt(key)
            ))),
        }
    };
    answers.into_iter().map(unwrap).collect()
}

/// Wraps each answer in an object with a `result` member.
fn wrap_answers(answers: Object) -> Object {
    let answers = answers.into_iter();
    let wrap = |(key, answer)| (key, json!({ "result": answer }));
    answers.map(wrap).collect()
}

fn reject(id: Id<'_>, error: RpcError) -> Box<Rejection> {
    let id = RawValue::from_string(id.as_json().to_owned()).ok();
    Box::new(Rejection { id, error })
}
