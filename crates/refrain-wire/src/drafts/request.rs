//! Requests of a draft, translated to the ratified revision and back.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::meta::{self, TaskWish};
use super::object::{
    Object, into_object, move_member, object, raw_id, read_object, set, to_message, to_text,
};
use super::{
    Draft, DraftError, DraftExchange, DraftRequest, HANDSHAKE, Kind, RATIFIED, RELATED_TASK_KEY,
    Refused, TASK_RESULT,
};
use crate::call::CallKind;
use crate::envelope::{Id, Message, Rejection, parse};
use crate::error::RpcError;
use crate::legacy::Agreed;
use crate::meta::{CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY};

/// The requests of the drafts, with their names there and in the ratified revision.
const METHODS: [(Kind, &str, &str); 13] = [
    (Kind::Call, "tools/call", "tools/call"),
    (Kind::Call, "prompts/get", "prompts/get"),
    (Kind::Call, "resources/read", "resources/read"),
    (Kind::Other, "tools/list", "tools/list"),
    (Kind::Other, "prompts/list", "prompts/list"),
    (Kind::Other, "resources/list", "resources/list"),
    (
        Kind::Other,
        "resources/templates/list",
        "resources/templates/list",
    ),
    (Kind::Other, "completion/complete", "completion/complete"),
    (Kind::Handshake, "initialize", "server/discover"),
    (Kind::TaskGet, "tasks/get", "tasks/get"),
    (Kind::TaskResult, TASK_RESULT, "tasks/get"),
    (Kind::TaskCancel, "tasks/cancel", "tasks/cancel"),
    (Kind::TaskAnswers, "tasks/input_response", "tasks/update"),
];

impl Draft {
    /// Whether a message has a shape that only the draft has. All others are those of the revision of its handshake.
    pub fn has_own_shape(self, bytes: &[u8]) -> bool {
        match parse(bytes) {
            Ok(Message::Request { method, .. }) => {
                let kind = self.kind(&method).map(|(kind, _)| kind);
                !matches!(kind, None | Some(Kind::Other | Kind::Handshake))
            }
            Ok(Message::Notification { .. } | Message::Response(_)) => false,
            Err(_) => self == Self::First && find_answers(bytes).is_some(),
        }
    }

    /// Reads one message of a client.
    pub fn read_request(self, bytes: &[u8]) -> Refused<DraftRequest> {
        self.read_request_of(None, bytes)
    }

    /// Reads one message of a client with which something was agreed before.
    pub fn read_request_of(self, agreed: Option<Agreed>, bytes: &[u8]) -> Refused<DraftRequest> {
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
            .and_then(|request| self.read(id, &method, request, agreed))
            .map_err(|error| reject(id, error))
    }

    fn read(
        self,
        id: Id<'_>,
        method: &str,
        mut request: Object,
        agreed: Option<Agreed>,
    ) -> Result<DraftRequest, RpcError> {
        if method == "ping" {
            let reply = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, id.as_json());
            return Ok(DraftRequest::Known(reply.into_bytes()));
        }
        let params = request.shift_remove("params").unwrap_or_else(|| json!({}));
        let mut params = into_object(params)
            .ok_or_else(|| RpcError::invalid_params("params must be an object"))?;
        let (kind, ratified) = self
            .kind(method)
            .ok_or_else(|| RpcError::method_not_found(method))?;
        let mut wish = None;
        match kind {
            Kind::Call => {
                self.read_round(&mut params, &mut request)?;
                let task = params.shift_remove("task");
                if self.has_tasks() && method == CallKind::Tool.method() {
                    wish = task.as_ref().map(TaskWish::read).transpose()?;
                }
            }
            Kind::TaskAnswers => {
                if !params.contains_key("taskId") {
                    let task = params.get("_meta").and_then(related_task);
                    let name = format!("_meta[{RELATED_TASK_KEY:?}] with a taskId in it");
                    let task = task.ok_or_else(|| missing(&name, method))?.to_owned();
                    set(&mut params, "taskId", task);
                }
                needs(&params, RATIFIED.answers, method)?;
            }
            Kind::Handshake => params = Object::new(),
            Kind::TaskGet | Kind::TaskResult | Kind::TaskCancel => {
                needs(&params, "taskId", method)?;
            }
            Kind::Other => {}
        }
        self.ratified(id, kind, ratified, params, agreed, wish.as_ref())
    }

    /// A request of the ratified revision. The id is copied as the client wrote it.
    fn ratified(
        self,
        id: Id<'_>,
        kind: Kind,
        method: &str,
        mut params: Object,
        agreed: Option<Agreed>,
        wish: Option<&TaskWish>,
    ) -> Result<DraftRequest, RpcError> {
        let tasks = kind.is_about_task() || wish.is_some();
        meta::complete(&mut params, agreed, tasks, wish)?;
        let exchange = DraftExchange {
            draft: self,
            kind,
            task: task_id(&params),
            wants_task: wish.is_some(),
        };
        let (id, params) = (id.as_json(), to_text(params));
        let message =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        Ok(DraftRequest::Request {
            message: message.into_bytes(),
            exchange,
        })
    }

    /// The kind of a draft's method, and its name in the ratified revision.
    fn kind(self, method: &str) -> Option<(Kind, &'static str)> {
        let (kind, _, ratified) = *METHODS.iter().find(|(_, drafted, _)| *drafted == method)?;
        let has = match kind {
            Kind::TaskAnswers => self == Self::Second,
            kind => self.has_tasks() || !kind.is_about_task(),
        };
        has.then_some((kind, ratified))
    }

    /// Moves the members of a round into the params.
    fn read_round(self, params: &mut Object, request: &mut Object) -> Result<(), RpcError> {
        let names = self.names();
        if self == Self::Second {
            // The document shows them beside the method once, and in the params everywhere else.
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
            set(params, RATIFIED.answers, unwrapped(names.answers, answers)?);
        }
        move_member(request, names.state, params, RATIFIED.state);
        Ok(())
    }

    /// Writes a ratified request in the draft.
    ///
    /// A call whose client declares the tasks extension gets a `task` member. [`TASK_RESULT`] is accepted as a method.
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
        let wish = meta::reduce(&mut meta)?;
        let (kind, drafted) = self.kind_of_ratified(&method)?;
        let wish = wish.filter(|_| self.has_tasks() && method == CallKind::Tool.method());
        let exchange = DraftExchange {
            draft: self,
            kind,
            task: task_id(&params),
            wants_task: wish.is_some(),
        };
        let mut written = object([("jsonrpc", "2.0".into()), ("id", id)]);
        let mut round = Object::new();
        match kind {
            Kind::Call => {
                if let Some(wish) = wish {
                    set(&mut params, "task", json!(wish));
                }
                self.write_round(&mut params, &mut round)?;
            }
            Kind::Handshake => params = handshake_params(std::mem::take(&mut meta)),
            Kind::TaskAnswers => {
                let task = exchange.task.as_deref();
                let related = related(task.ok_or(DraftError::Missing("taskId"))?);
                if self == Self::First {
                    let answers = take_object(&mut params, RATIFIED.answers)?;
                    set(&mut written, self.names().answers, wrapped(answers));
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
        set(&mut written, "method", drafted);
        set(&mut written, "params", params);
        written.extend(round);
        Ok((to_message(written, text), exchange))
    }

    /// The kind of a method of the ratified revision, and its name in the draft.
    fn kind_of_ratified(self, method: &str) -> Result<(Kind, &'static str), DraftError> {
        let found = METHODS.iter().find(|(kind, drafted, ratified)| match kind {
            Kind::TaskResult => *drafted == method,
            _ => *ratified == method,
        });
        match found {
            Some((kind, drafted, _)) if self.has_tasks() || !kind.is_about_task() => {
                Ok((*kind, *drafted))
            }
            _ => Err(DraftError::Unsupported {
                draft: self,
                method: method.to_owned(),
            }),
        }
    }

    /// Moves the members of a round out of the params.
    fn write_round(self, params: &mut Object, round: &mut Object) -> Result<(), DraftError> {
        if self == Self::Second {
            return Ok(());
        }
        let names = self.names();
        if params.contains_key(RATIFIED.answers) {
            let answers = take_object(params, RATIFIED.answers)?;
            set(round, names.answers, wrapped(answers));
        }
        move_member(params, RATIFIED.state, round, names.state);
        Ok(())
    }
}

impl Kind {
    const fn is_about_task(self) -> bool {
        matches!(
            self,
            Self::TaskGet | Self::TaskResult | Self::TaskAnswers | Self::TaskCancel
        )
    }
}

/// The first draft's message with answers for a task, which has no method.
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
            "an answer without a method needs _meta[{RELATED_TASK_KEY:?}] with a taskId in it"
        )));
    };
    let mut params = object([("taskId", task.into())]);
    let answers = message.shift_remove(name).unwrap_or_else(|| json!({}));
    set(&mut params, RATIFIED.answers, unwrapped(name, answers)?);
    Draft::First.ratified(id, Kind::TaskAnswers, "tasks/update", params, None, None)
}

/// A missing member of a request is reported under the draft's own name for it.
fn needs(params: &Object, name: &str, method: &str) -> Result<(), RpcError> {
    match params.contains_key(name) {
        true => Ok(()),
        false => Err(missing(name, method)),
    }
}

fn missing(name: &str, method: &str) -> RpcError {
    RpcError::invalid_params(format!("{name} is missing; {method} needs it"))
}

/// Takes a member that is an object; a missing one is empty.
fn take_object(from: &mut Object, name: &'static str) -> Result<Object, DraftError> {
    let member = from.shift_remove(name).unwrap_or_else(|| json!({}));
    into_object(member).ok_or(DraftError::NotAnObject(name))
}

fn task_id(params: &Object) -> Option<String> {
    params.get("taskId")?.as_str().map(ToOwned::to_owned)
}

/// The params of `initialize`, from the `_meta` of `server/discover`.
fn handshake_params(mut meta: Object) -> Object {
    let mut take = |key| meta.shift_remove(key).unwrap_or_else(|| json!({}));
    object([
        ("protocolVersion", HANDSHAKE.as_str().into()),
        ("capabilities", take(CLIENT_CAPABILITIES_KEY)),
        ("clientInfo", take(CLIENT_INFO_KEY)),
    ])
}

/// The id of the task that a `_meta` names.
fn related_task(meta: &Value) -> Option<&str> {
    meta.get(RELATED_TASK_KEY)?.get("taskId")?.as_str()
}

/// The member of a `_meta` that names a task.
pub(super) fn related(task: &str) -> Value {
    json!({ "taskId": task })
}

/// Answers without the `result` around each of them.
fn unwrapped(name: &str, answers: Value) -> Result<Object, RpcError> {
    let answers = into_object(answers)
        .ok_or_else(|| RpcError::invalid_params(format!("{name} must be an object")))?;
    let unwrap = |(key, mut answer): (String, Value)| {
        let result = answer.as_object_mut();
        match result.and_then(|answer| answer.shift_remove("result")) {
            Some(result) => Ok((key, result)),
            None => Err(RpcError::invalid_params(format!(
                "{name}[{key:?}] must be an object with a result in it"
            ))),
        }
    };
    answers.into_iter().map(unwrap).collect()
}

/// Answers with a `result` around each of them.
fn wrapped(answers: Object) -> Object {
    let answers = answers.into_iter();
    let wrap = |(key, answer)| (key, json!({ "result": answer }));
    answers.map(wrap).collect()
}

fn reject(id: Id<'_>, error: RpcError) -> Box<Rejection> {
    let id = RawValue::from_string(id.as_json().to_owned()).ok();
    Box::new(Rejection { id, error })
}
