//! Requests: a draft's read as the ratified revision has them, and written from that.

use serde_json::value::RawValue;

use super::meta::{self, TaskWish};
use super::object::{Object, json, string};
use super::{
    Draft, DraftExchange, DraftRequest, HANDSHAKE, Kind, RATIFIED, RELATED_TASK_KEY, Refused,
    TASK_RESULT,
};
use crate::call::CallKind;
use crate::envelope::{Id, Message, Rejection, parse};
use crate::error::RpcError;
use crate::meta::{CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY};
use crate::older::Agreed;
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
            Ok(Message::Notification { .. }) => false,
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
        let (id, method, params) = match parse(bytes)? {
            Message::Notification { .. } => return Ok(DraftRequest::Notification),
            Message::Request { id, method, params } => (id, method, params),
        };
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let beside =
            Object::read(text).map_err(|why| reject(Some(id), RpcError::invalid_request(why)))?;
        self.read((id, &method, params), beside, agreed)
            .map_err(|error| reject(Some(id), error))
    }

    fn read(
        self,
        (id, method, params): (Id<'_>, &str, Option<&RawValue>),
        mut beside: Object,
        agreed: Option<Agreed>,
    ) -> Result<DraftRequest, RpcError> {
        let text = params.map_or("{}", RawValue::get);
        let mut params =
            Object::read(text).map_err(|why| RpcError::invalid_params(format!("params: {why}")))?;
        let (kind, ratified) = self.kind(method)?;
        let mut wish = None;
        match kind {
            Kind::Call => {
                self.read_round(&mut params, &mut beside)?;
                let task = params.take("task");
                if self.has_tasks() && method == CallKind::Tool.method() {
                    wish = task.as_deref().map(TaskWish::read).transpose()?;
                }
            }
            Kind::TaskAnswers => {
                if !params.has("taskId") {
                    let task = params.get("_meta").and_then(related_task);
                    let task = task.ok_or_else(|| no_task(method))?;
                    params.set("taskId", task.as_str());
                }
                needs(&params, RATIFIED.answers, method)?;
            }
            Kind::Handshake => params = Object::default(),
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
            task: params.get("taskId").and_then(string),
            wants_task: wish.is_some(),
        };
        let message = request(id.as_json(), ratified, &params);
        Ok(DraftRequest::Request {
            message: message.into_bytes(),
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

    /// Moves what makes a round into the params.
    fn read_round(self, params: &mut Object, beside: &mut Object) -> Result<(), RpcError> {
        let names = self.names();
        if self == Self::Second {
            // The document shows them beside the method once, and in the params everywhere else.
            for name in [names.answers, names.state] {
                if !params.has(name) {
                    beside.hand_over(name, params, name);
                }
            }
            return Ok(());
        }
        params.take(RATIFIED.answers);
        params.take(RATIFIED.state);
        if let Some(answers) = beside.take(names.answers) {
            params.set(RATIFIED.answers, unwrapped(names.answers, &answers)?);
        }
        beside.hand_over(names.state, params, RATIFIED.state);
        Ok(())
    }

    /// Writes a request that is written as the ratified revision has it, or says why it cannot be.
    ///
    /// A call by a client that can look after tasks says so by its `task`. [`TASK_RESULT`] may be given as a method.
    pub fn write_request(self, message: &str) -> Result<(String, DraftExchange), String> {
        let mut message = Object::read(message)?;
        let method = message.get("method").and_then(string);
        let method = method.ok_or("it is no request")?;
        let id = message.take("id").ok_or("a request must have an id")?;
        let mut params = Object::read_member(message.take("params"))?;
        let mut meta = Object::read_member(params.take("_meta"))?;
        let wish = meta::reduce(&mut meta)?;
        let (kind, drafted) = self.kind_of_ratified(&method)?;
        let mut exchange = DraftExchange {
            draft: self,
            kind,
            task: None,
            wants_task: false,
        };
        let mut beside = Object::default();
        match kind {
            Kind::Call => {
                if let Some(wish) = wish
                    && self.has_tasks()
                    && method == CallKind::Tool.method()
                {
                    params.set("task", wish.write());
                    exchange.wants_task = true;
                }
                self.write_round(&mut params, &mut beside)?;
            }
            Kind::Handshake => {
                params = Object::default();
                params.set("protocolVersion", HANDSHAKE.as_str());
                let can = meta.take(CLIENT_CAPABILITIES_KEY);
                params.set("capabilities", can.unwrap_or_else(empty));
                let info = meta.take(CLIENT_INFO_KEY);
                params.set("clientInfo", info.unwrap_or_else(empty));
                meta = Object::default();
            }
            Kind::TaskAnswers => {
                let task = params.take("taskId");
                let task = task.ok_or("taskId is missing; tasks/update needs it")?;
                let task = string(&task).ok_or("taskId must be a string")?;
                let related = related(&task);
                exchange.task = Some(task);
                if self == Self::First {
                    let answers = params.take(RATIFIED.answers).unwrap_or_else(empty);
                    let text = answering(id, wrapped(&answers)?, related);
                    return Ok((text, exchange));
                }
                meta.set(RELATED_TASK_KEY, related);
            }
            Kind::TaskGet | Kind::TaskResult | Kind::TaskCancel => {
                exchange.task = params.get("taskId").and_then(string);
            }
            Kind::Other => {}
        }
        if !meta.is_empty() {
            params.set("_meta", meta);
        }
        let mut written = Object::default();
        written.set("jsonrpc", "2.0");
        written.set("id", id);
        written.set("method", drafted);
        written.set("params", params);
        for (name, value) in beside.members() {
            written.set(&name, value);
        }
        Ok((written.to_text(), exchange))
    }

    /// What a method of the ratified revision is, and what the draft calls it.
    fn kind_of_ratified(self, method: &str) -> Result<(Kind, &str), String> {
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
            _ => Err(format!("{self} has no {method}")),
        }
    }

    /// Moves what makes a round out of the params.
    fn write_round(self, params: &mut Object, beside: &mut Object) -> Result<(), String> {
        if self == Self::Second {
            return Ok(());
        }
        let names = self.names();
        if let Some(answers) = params.take(RATIFIED.answers) {
            beside.set(names.answers, wrapped(&answers)?);
        }
        params.hand_over(RATIFIED.state, beside, names.state);
        Ok(())
    }
}

/// The first draft's message with answers for a task, which has no method.
struct Answers<'a> {
    id: Id<'a>,
    message: Object,
}

impl<'a> Answers<'a> {
    /// The message, if it is one.
    fn find(bytes: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let id: Sent<'a> = serde_json::from_str(text).ok()?;
        let message = Object::read(text).ok()?;
        let version = message.get("jsonrpc").and_then(string)?;
        let is_one = version == "2.0"
            && message.has(Draft::First.names().answers)
            && !["method", "result", "error"]
                .iter()
                .any(|name| message.has(name));
        let id = Id::from_raw(id.id)?;
        is_one.then_some(Self { id, message })
    }

    fn read(mut self) -> Result<DraftRequest, RpcError> {
        let name = Draft::First.names().answers;
        let Some(task) = self.message.get("_meta").and_then(related_task) else {
            return Err(RpcError::invalid_request(format!(
                "an answer without a method needs _meta[{RELATED_TASK_KEY:?}] with a taskId in it"
            )));
        };
        let answers = self.message.take(name).unwrap_or_else(empty);
        let mut params = Object::default();
        params.set("taskId", task.as_str());
        params.set(RATIFIED.answers, unwrapped(name, &answers)?);
        meta::complete(&mut params, None, true, None)?;
        let message = request(self.id.as_json(), "tasks/update", &params);
        Ok(DraftRequest::Request {
            message: message.into_bytes(),
            exchange: DraftExchange {
                draft: Draft::First,
                kind: Kind::TaskAnswers,
                task: Some(task),
                wants_task: false,
            },
        })
    }
}

/// A request of the draft's own that lacks something says so in the draft's own words.
fn needs(params: &Object, name: &str, method: &str) -> Result<(), RpcError> {
    if params.has(name) {
        return Ok(());
    }
    let message = format!("{name} is missing; {method} needs it");
    Err(RpcError::invalid_params(message))
}

/// Answers that are for no task.
fn no_task(method: &str) -> RpcError {
    RpcError::invalid_params(format!(
        "_meta[{RELATED_TASK_KEY:?}] with a taskId in it is missing; {method} needs it"
    ))
}

/// The id of a message, whatever else it is.
#[derive(serde::Deserialize)]
struct Sent<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
}

fn answering(id: Box<RawValue>, answers: Object, related: Object) -> String {
    let mut meta = Object::default();
    meta.set(RELATED_TASK_KEY, related);
    let mut message = Object::default();
    message.set("jsonrpc", "2.0");
    message.set("id", id);
    message.set(Draft::First.names().answers, answers);
    message.set("_meta", meta);
    message.to_text()
}

/// The id of the task that a `_meta` speaks of.
fn related_task(meta: &RawValue) -> Option<String> {
    let meta = Object::read(meta.get()).ok()?;
    let related = Object::read(meta.get(RELATED_TASK_KEY)?.get()).ok()?;
    related.get("taskId").and_then(string)
}

/// What a `_meta` says of a task.
pub(super) fn related(task: &str) -> Object {
    let mut related = Object::default();
    related.set("taskId", task);
    related
}

/// Answers without the `result` that each of them is in.
fn unwrapped(name: &str, answers: &RawValue) -> Result<Object, RpcError> {
    let read = Object::read(answers.get())
        .map_err(|why| RpcError::invalid_params(format!("{name} must be an object: {why}")))?;
    let mut plain = Object::default();
    for (key, answer) in read.members() {
        let result = Object::read(answer.get()).ok();
        let result = result.and_then(|mut answer| answer.take("result"));
        let result = result.ok_or_else(|| {
            let message = format!("{name}[{key:?}] must be an object with a result in it");
            RpcError::invalid_params(message)
        })?;
        plain.push(key, result);
    }
    Ok(plain)
}

/// Answers, each in a `result`.
fn wrapped(answers: &RawValue) -> Result<Object, String> {
    let mut all = Object::default();
    for (key, answer) in Object::read(answers.get())?.members() {
        let mut one = Object::default();
        one.set("result", answer);
        all.push(key, one);
    }
    Ok(all)
}

fn empty() -> Box<RawValue> {
    json("{}".to_owned())
}

/// A request of the ratified revision.
fn request(id: &str, method: &str, params: &Object) -> String {
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b",\"method\":");
    write::text(&mut out, method);
    out.extend_from_slice(b",\"params\":");
    out.extend_from_slice(params.to_text().as_bytes());
    out.push(b'}');
    String::from_utf8(out).expect("only whole strings were written")
}

fn reject(id: Option<Id<'_>>, error: RpcError) -> Box<Rejection> {
    let id = id.map(|id| json(id.as_json().to_owned()));
    Box::new(Rejection { id, error })
}
