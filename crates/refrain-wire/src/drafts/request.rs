//! Requests: a draft's read as the ratified revision has them, and written from that.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::meta::{self, TaskWish};
use super::object::{Object, into_object, move_member, read_object, set, to_text};
use super::{
    Draft, DraftError, DraftExchange, DraftRequest, HANDSHAKE, Kind, RATIFIED, RELATED_TASK_KEY,
    Refused, TASK_RESULT,
};
use crate::call::CallKind;
use crate::envelope::{Id, Message, Rejection, parse};
use crate::error::RpcError;
use crate::legacy::Agreed;
use crate::meta::{CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY};
use crate::write;

const DISCOVER: &str = "server/discover";
const HELLO: &str = "initialize";
const ANSWERS: &str = "tasks/input_response";

/// The methods that are the same in all dialects.
const SAME: [&str; 5] = [
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "completion/complete",
];

impl Draft {
    /// Whether a message has a shape of the draft's own. All others are those of the revision whose handshake it has.
    pub fn has_own_shape(self, bytes: &[u8]) -> bool {
        match parse(bytes) {
            Ok(Message::Request { method, .. }) => {
                let kind = self.kind(&method).map(|(kind, _)| kind);
                !matches!(kind, Err(_) | Ok(Kind::Other | Kind::Handshake))
            }
            Ok(Message::Notification { .. } | Message::Response(_)) => false,
            Err(_) => self == Self::First && Answers::find(bytes).is_some(),
        }
    }

    /// Reads one message of a client.
    pub fn read_request(self, bytes: &[u8]) -> Refused<DraftRequest> {
        self.read_request_of(None, bytes)
    }

    /// The same, of a client with which something was agreed before.
    pub fn read_request_of(self, agreed: Option<Agreed>, bytes: &[u8]) -> Refused<DraftRequest> {
        if self == Self::First
            && let Some(answers) = Answers::find(bytes)
        {
            let id = answers.id;
            return answers.read().map_err(|error| reject(Some(id), error));
        }
        let (id, method) = match parse(bytes)? {
            Message::Notification { .. } => return Ok(DraftRequest::Notification),
            Message::Request { id, method, .. } => (id, method),
            Message::Response(response) => {
                return Err(reject(Some(response.id), RpcError::unexpected_response()));
            }
        };
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        read_object(text)
            .map_err(|error| RpcError::invalid_params(error.to_string()))
            .and_then(|request| self.read(id, &method, request, agreed))
            .map_err(|error| reject(Some(id), error))
    }

    fn read(
        self,
        id: Id<'_>,
        method: &str,
        mut request: Object,
        agreed: Option<Agreed>,
    ) -> Result<DraftRequest, RpcError> {
        let params = request.shift_remove("params");
        let params = params.map_or_else(|| Some(Object::new()), into_object);
        let mut params =
            params.ok_or_else(|| RpcError::invalid_params("params must be an object"))?;
        let (kind, ratified) = self.kind(method)?;
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
                    let task = task.ok_or_else(|| no_task(method))?.to_owned();
                    set(&mut params, "taskId", task);
                }
                needs(&params, RATIFIED.answers, method)?;
            }
            Kind::Handshake => params = Object::new(),
            Kind::TaskGet | Kind::TaskResult | Kind::TaskCancel => {
                needs(&params, "taskId", method)?;
            }
            Kind::Other if ratified == "ping" => {
                let id = id.as_json();
                let known = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
                return Ok(DraftRequest::Known(known.into_bytes()));
            }
            Kind::Other => {}
        }
        let of_task = matches!(
            kind,
            Kind::TaskGet | Kind::TaskResult | Kind::TaskAnswers | Kind::TaskCancel
        );
        let tasks = of_task || wish.is_some();
        meta::complete(&mut params, agreed, tasks, wish.as_ref())?;
        let exchange = DraftExchange {
            draft: self,
            kind,
            task: task_id(&params),
            wants_task: wish.is_some(),
        };
        Ok(DraftRequest::Request {
            message: ratified_request(id, ratified, &params),
            exchange,
        })
    }

    /// What a method is, and what the ratified revision calls it.
    fn kind(self, method: &str) -> Result<(Kind, &str), RpcError> {
        if CallKind::from_method(method).is_some() {
            return Ok((Kind::Call, method));
        }
        if SAME.contains(&method) || method == "ping" {
            return Ok((Kind::Other, method));
        }
        Ok(match method {
            HELLO => (Kind::Handshake, DISCOVER),
            "tasks/get" if self.has_tasks() => (Kind::TaskGet, method),
            TASK_RESULT if self.has_tasks() => (Kind::TaskResult, "tasks/get"),
            "tasks/cancel" if self.has_tasks() => (Kind::TaskCancel, method),
            ANSWERS if self == Self::Second => (Kind::TaskAnswers, "tasks/update"),
            _ => return Err(RpcError::method_not_found(method)),
        })
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
        let mut message = read_object(message)?;
        let method = message.shift_remove("method");
        let Some(Value::String(method)) = method else {
            return Err(DraftError::Missing("method"));
        };
        let id = message
            .shift_remove("id")
            .ok_or(DraftError::Missing("id"))?;
        let mut params = take_object(&mut message, "params")?;
        let mut meta = take_object(&mut params, "_meta")?;
        let wish = meta::reduce(&mut meta)?;
        let (kind, drafted) = self.kind_of_ratified(&method)?;
        let mut exchange = DraftExchange {
            draft: self,
            kind,
            task: None,
            wants_task: false,
        };
        // The members of a round that the draft has beside the params.
        let mut round = Object::new();
        match kind {
            Kind::Call => {
                if let Some(wish) = wish
                    && self.has_tasks()
                    && method == CallKind::Tool.method()
                {
                    set(&mut params, "task", wish.write());
                    exchange.wants_task = true;
                }
                self.write_round(&mut params, &mut round)?;
            }
            Kind::Handshake => {
                params = handshake_params(&mut meta);
                meta = Object::new();
            }
            Kind::TaskAnswers => {
                let task = task_id(&params).ok_or(DraftError::Missing("taskId"))?;
                params.shift_remove("taskId");
                set(&mut meta, RELATED_TASK_KEY, related(&task));
                exchange.task = Some(task);
                if self == Self::First {
                    let meta = json!({RELATED_TASK_KEY: meta.shift_remove(RELATED_TASK_KEY)});
                    let answers = take_object(&mut params, RATIFIED.answers)?;
                    let message = json!({
                        "jsonrpc": "2.0",
                        "id": id,
                        self.names().answers: wrapped(answers),
                        "_meta": meta,
                    });
                    return Ok((message.to_string(), exchange));
                }
            }
            Kind::TaskGet | Kind::TaskResult | Kind::TaskCancel => {
                exchange.task = task_id(&params);
            }
            Kind::Other => {}
        }
        if !meta.is_empty() {
            set(&mut params, "_meta", meta);
        }
        let mut written = Object::new();
        set(&mut written, "jsonrpc", "2.0");
        set(&mut written, "id", id);
        set(&mut written, "method", drafted);
        set(&mut written, "params", params);
        written.extend(round);
        Ok((to_text(written), exchange))
    }

    /// What a method of the ratified revision is, and what the draft calls it.
    fn kind_of_ratified(self, method: &str) -> Result<(Kind, &str), DraftError> {
        let (drafted, ratified) = match method {
            DISCOVER => (HELLO, true),
            "tasks/update" => (ANSWERS, self.has_tasks()),
            HELLO | "ping" | ANSWERS => (method, false),
            method => (method, true),
        };
        let kind = match (drafted, self) {
            // It has no method there at all.
            (ANSWERS, Self::First) => Ok((Kind::TaskAnswers, drafted)),
            _ => self.kind(drafted),
        };
        match kind {
            Ok((kind, _)) if ratified => Ok((kind, drafted)),
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

/// The first draft's message with answers for a task, which has no method.
struct Answers<'a> {
    id: Id<'a>,
    message: Object,
}

impl<'a> Answers<'a> {
    /// The message, if it has this shape.
    fn find(bytes: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let id: MessageId<'a> = serde_json::from_str(text).ok()?;
        let message = read_object(text).ok()?;
        let has_shape = message.get("jsonrpc")? == "2.0"
            && message.contains_key(Draft::First.names().answers)
            && !["method", "result", "error"]
                .iter()
                .any(|name| message.contains_key(*name));
        let id = Id::from_raw(id.id)?;
        has_shape.then_some(Self { id, message })
    }

    fn read(mut self) -> Result<DraftRequest, RpcError> {
        let name = Draft::First.names().answers;
        let Some(task) = self.message.get("_meta").and_then(related_task) else {
            return Err(RpcError::invalid_request(format!(
                "an answer without a method needs _meta[{RELATED_TASK_KEY:?}] with a taskId in it"
            )));
        };
        let task = task.to_owned();
        let answers = self.message.shift_remove(name);
        let answers = unwrapped(name, answers.unwrap_or_else(|| json!({})))?;
        let mut params = Object::new();
        set(&mut params, "taskId", task.as_str());
        set(&mut params, RATIFIED.answers, answers);
        meta::complete(&mut params, None, true, None)?;
        Ok(DraftRequest::Request {
            message: ratified_request(self.id, "tasks/update", &params),
            exchange: DraftExchange {
                draft: Draft::First,
                kind: Kind::TaskAnswers,
                task: Some(task),
                wants_task: false,
            },
        })
    }
}

/// A missing member of a request is reported under the draft's own name for it.
fn needs(params: &Object, name: &str, method: &str) -> Result<(), RpcError> {
    if params.contains_key(name) {
        return Ok(());
    }
    let message = format!("{name} is missing; {method} needs it");
    Err(RpcError::invalid_params(message))
}

/// The error for answers that name no task.
fn no_task(method: &str) -> RpcError {
    RpcError::invalid_params(format!(
        "_meta[{RELATED_TASK_KEY:?}] with a taskId in it is missing; {method} needs it"
    ))
}

/// The id of any message.
#[derive(serde::Deserialize)]
struct MessageId<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
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
fn handshake_params(meta: &mut Object) -> Object {
    let mut params = Object::new();
    set(&mut params, "protocolVersion", HANDSHAKE.as_str());
    for (key, name) in [
        (CLIENT_CAPABILITIES_KEY, "capabilities"),
        (CLIENT_INFO_KEY, "clientInfo"),
    ] {
        let member = meta.shift_remove(key);
        set(&mut params, name, member.unwrap_or_else(|| json!({})));
    }
    params
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
    answers
        .map(|(key, answer)| (key, json!({ "result": answer })))
        .collect()
}

/// A request of the ratified revision. The id is copied as the client wrote it.
fn ratified_request(id: Id<'_>, method: &str, params: &Object) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id.as_json().as_bytes());
    out.extend_from_slice(b",\"method\":");
    write::text(&mut out, method);
    out.extend_from_slice(b",\"params\":");
    write::json(&mut out, &params);
    out.push(b'}');
    out
}

fn reject(id: Option<Id<'_>>, error: RpcError) -> Box<Rejection> {
    let id = id.and_then(|id| RawValue::from_string(id.as_json().to_owned()).ok());
    Box::new(Rejection { id, error })
}
