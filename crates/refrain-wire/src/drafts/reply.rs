//! Replies: the ratified revision's written as a draft has them, and read back into that.

use serde_json::value::RawValue;

use super::object::{Object, Value, json, string};
use super::request::related;
use super::{Draft, DraftExchange, HANDSHAKE, Kind, Names, RATIFIED, RELATED_TASK_KEY};
use crate::error::RpcError;
use crate::meta::{PROTOCOL_VERSION, SERVER_INFO_KEY};
use crate::older::LATER;
use crate::tasks::error_at_rest;

const RESULT_TYPE: &str = "resultType";

impl DraftExchange {
    /// Writes a message that goes out in response, given as the ratified revision has it: a notification or the reply.
    /// `None`: nothing is said.
    pub fn write_reply(&self, message: &[u8]) -> Option<Vec<u8>> {
        let text = std::str::from_utf8(message).ok()?;
        let Ok(mut message) = Object::read(text) else {
            return Some(text.as_bytes().to_vec());
        };
        if let Some(error) = message.take("error") {
            message.set("error", self.write_error(error));
        } else if let Some(result) = message.take("result") {
            if self.is_silent() {
                return None;
            }
            match Object::read(result.get()) {
                Ok(result) => self.write_result(&mut message, result),
                Err(_) => message.set("result", result),
            }
        }
        Some(message.to_text().into_bytes())
    }

    /// An error that is about a member of the draft's own calls it by its name. What a handler says is its own affair.
    fn write_error(&self, error: Box<RawValue>) -> Value {
        let names = self.draft.names();
        let Ok(mut read) = Object::read(error.get()) else {
            return error.into();
        };
        let message = read.get("message").and_then(string);
        if let Some(message) = message.and_then(|message| in_words_of(&names, &message)) {
            read.set("message", message.as_str());
        }
        read.into()
    }

    fn write_result(&self, message: &mut Object, mut result: Object) {
        let kind = result.take(RESULT_TYPE).as_deref().and_then(string);
        let server = take_server_info(&mut result);
        match self.kind {
            Kind::Call => match kind.as_deref() {
                Some("input_required") => self.write_incomplete(message, result, false),
                Some("task") => {
                    let mut created = Object::default();
                    created.set("task", self.draft.write_task(result));
                    message.set("result", created);
                }
                _ => message.set("result", without_later(result)),
            },
            Kind::Handshake => message.set("result", greeting(result, server)),
            Kind::TaskGet | Kind::TaskCancel => {
                message.set("result", self.draft.write_task(result));
            }
            Kind::TaskResult => self.write_payload(message, result),
            Kind::TaskAnswers => {
                let mut acknowledged = Object::default();
                self.relate(&mut acknowledged);
                message.set("result", acknowledged);
            }
            Kind::Other => message.set("result", without_later(result)),
        }
    }

    /// What became of a task.
    fn write_payload(&self, message: &mut Object, mut task: Object) {
        let status = task.get("status").and_then(string).unwrap_or_default();
        let error = |why: &'static str| json(error_at_rest(&RpcError::invalid_params(why)));
        match status.as_str() {
            "input_required" => self.write_incomplete(message, task, true),
            "completed" => {
                let result = Object::read_member(task.take("result"));
                let mut result = result.unwrap_or_default();
                take_server_info(&mut result);
                self.relate(&mut result);
                message.set("result", result);
            }
            "failed" => match task.take("error") {
                Some(told) => message.set("error", told),
                None => message.set("error", error("the task failed")),
            },
            "cancelled" => message.set("error", error("the task was cancelled; it has no result")),
            _ => message.set("error", error("the task still works; ask again")),
        }
    }

    /// What is asked, and the state to send back.
    fn write_incomplete(&self, message: &mut Object, mut from: Object, of_task: bool) {
        let names = self.draft.names();
        let mut rest = Object::default();
        from.hand_over(RATIFIED.asks, &mut rest, names.asks);
        if !of_task {
            from.hand_over(RATIFIED.state, &mut rest, names.state);
            from.hand_over("_meta", &mut rest, "_meta");
        } else {
            self.relate(&mut rest);
        }
        if self.draft == Draft::Second {
            return message.set("result", rest);
        }
        for (name, value) in rest.members() {
            message.set(&name, value);
        }
    }

    /// Notes in a `_meta` which task something belongs to.
    fn relate(&self, result: &mut Object) {
        let meta = Object::read_member(result.take("_meta"));
        let mut meta = meta.unwrap_or_default();
        meta.set(
            RELATED_TASK_KEY,
            related(self.task.as_deref().unwrap_or_default()),
        );
        result.set("_meta", meta);
    }

    /// Reads a message that came in response, as the ratified revision has it: a notification, a request or the reply.
    ///
    /// The reply to [`TASK_RESULT`](super::TASK_RESULT) is read as a task, with its status and what became of it. What is
    /// no message stays as it is.
    pub fn read_reply(&self, message: &str) -> String {
        self.read_ratified(message)
            .unwrap_or_else(|| message.to_owned())
    }

    fn read_ratified(&self, message: &str) -> Option<String> {
        let mut message = Object::read(message).ok()?;
        if message.has("method") || message.has("error") {
            return None;
        }
        let result = message.take("result");
        let there = result.is_some();
        let mut result = Object::read_member(result).ok()?;
        let incomplete = self.take_incomplete(&mut message, &mut result);
        if !there && incomplete.is_none() {
            return None;
        }
        message.set("result", self.read_result(result, incomplete));
        Some(message.to_text())
    }

    /// The asks and the state of a reply that is not complete.
    fn take_incomplete(&self, message: &mut Object, result: &mut Object) -> Option<Object> {
        let names = self.draft.names();
        let place = match self.draft {
            Draft::Second => result,
            Draft::First | Draft::Sketch => message,
        };
        if !matches!(self.kind, Kind::Call | Kind::TaskResult)
            || !(place.has(names.asks) || place.has(names.state))
        {
            return None;
        }
        let mut incomplete = Object::default();
        for (name, ratified) in [
            (names.asks, RATIFIED.asks),
            (names.state, RATIFIED.state),
            ("_meta", "_meta"),
        ] {
            place.hand_over(name, &mut incomplete, ratified);
        }
        Some(incomplete)
    }

    fn read_result(&self, mut result: Object, incomplete: Option<Object>) -> Object {
        let mut read = Object::default();
        let kind = match (&self.kind, &incomplete) {
            (Kind::Call, Some(_)) => "input_required",
            (Kind::Call, None) if self.wants_task && has_task(&result) => "task",
            _ => "complete",
        };
        read.set(RESULT_TYPE, kind);
        let mut rest = match (self.kind, incomplete) {
            (Kind::TaskResult, Some(mut incomplete)) => {
                read.set("status", "input_required");
                incomplete.take("_meta");
                incomplete
            }
            (Kind::TaskResult, None) => {
                read.set("status", "completed");
                unrelate(&mut result);
                let mut rest = Object::default();
                rest.set("result", result);
                rest
            }
            (_, Some(incomplete)) => incomplete,
            (Kind::Call, None) if kind == "task" => {
                let task = result.take("task");
                let task = task.as_deref().map_or("{}", RawValue::get);
                self.draft.read_task(Object::read(task).unwrap_or_default())
            }
            (Kind::TaskGet, None) => self.draft.read_task(result),
            (Kind::TaskCancel | Kind::TaskAnswers, None) => Object::default(),
            (Kind::Handshake, None) => discovered(result),
            (Kind::Call | Kind::Other, None) => result,
        };
        for name in [RESULT_TYPE, "status"] {
            if read.has(name) {
                rest.take(name);
            }
        }
        for (name, value) in rest.members() {
            read.push(name, value);
        }
        read
    }
}

/// Is there a task in a result?
fn has_task(result: &Object) -> bool {
    let task = result.get("task").map(|task| Object::read(task.get()));
    task.is_some_and(|task| task.is_ok_and(|task| task.has("taskId")))
}

/// A result without what the revision did not know whose lists and reads the drafts have.
fn without_later(mut result: Object) -> Object {
    for name in LATER {
        result.take(name);
    }
    result
}

/// A message of ours that begins with the name of a member, with the draft's own name for it.
fn in_words_of(names: &Names, message: &str) -> Option<String> {
    let answers = message.strip_prefix(RATIFIED.answers);
    if let Some(rest) = answers.filter(|rest| rest.starts_with(['[', ' '])) {
        return Some(format!("{}{rest}", names.answers));
    }
    let (this, rest) = match message.strip_prefix("this ") {
        Some(rest) => ("this ", rest),
        None => ("", message),
    };
    let rest = rest.strip_prefix(RATIFIED.state)?;
    let rest = rest.strip_prefix(' ')?;
    let state = names.state;
    Some(match rest.strip_suffix(RATIFIED.state) {
        Some(rest) => format!("{this}{state} {rest}{state}"),
        None => format!("{this}{state} {rest}"),
    })
}

/// Takes the server's name and version out of a result's `_meta`; the drafts do not repeat them.
fn take_server_info(result: &mut Object) -> Option<Box<RawValue>> {
    let meta = result.take("_meta")?;
    let Ok(mut meta) = Object::read(meta.get()) else {
        result.set("_meta", meta);
        return None;
    };
    let server = meta.take(SERVER_INFO_KEY);
    if !meta.is_empty() {
        result.set("_meta", meta);
    }
    server
}

/// Takes out of a result's `_meta` which task it belongs to: whoever asked knows.
fn unrelate(result: &mut Object) {
    let Some(meta) = result.take("_meta") else {
        return;
    };
    let mut meta = Object::read(meta.get()).unwrap_or_default();
    meta.take(RELATED_TASK_KEY);
    if !meta.is_empty() {
        result.set("_meta", meta);
    }
}

/// What a server says of itself, as the reply to `initialize`.
fn greeting(mut found: Object, server: Option<Box<RawValue>>) -> Object {
    let mut greeting = Object::default();
    greeting.set("protocolVersion", HANDSHAKE.as_str());
    found.hand_over("capabilities", &mut greeting, "capabilities");
    if let Some(server) = server {
        greeting.set("serverInfo", server);
    }
    found.hand_over("instructions", &mut greeting, "instructions");
    greeting
}

/// The reply to `initialize`, as what a server says of itself.
fn discovered(mut greeting: Object) -> Object {
    let mut found = Object::default();
    let versions = json(format!("[{PROTOCOL_VERSION:?}]"));
    found.set("supportedVersions", versions);
    greeting.hand_over("capabilities", &mut found, "capabilities");
    greeting.hand_over("instructions", &mut found, "instructions");
    if let Some(server) = greeting.take("serverInfo") {
        let mut meta = Object::default();
        meta.set(SERVER_INFO_KEY, server);
        found.set("_meta", meta);
    }
    found
}
