//! Replies of the ratified revision, translated to a draft and back.

use serde_json::{Value, json};

use super::object::{Object, into_object, move_member, object, read_object, set, to_message};
use super::request::related;
use super::{Draft, DraftExchange, HANDSHAKE, Kind, Names, RATIFIED, RELATED_TASK_KEY};
use crate::error::ErrorCode;
use crate::legacy::LATER;
use crate::meta::{PROTOCOL_VERSION, SERVER_INFO_KEY};

const RESULT_TYPE: &str = "resultType";

impl DraftExchange {
    /// Writes an outgoing ratified message, a notification or the reply, as the draft has it.
    /// `None`: the draft sends nothing.
    pub fn write_reply(&self, message: &[u8]) -> Option<Vec<u8>> {
        let text = std::str::from_utf8(message).ok()?;
        let Ok(mut message) = read_object(text) else {
            return Some(text.as_bytes().to_vec());
        };
        if let Some(error) = message.get_mut("error") {
            self.write_error(error);
        } else if let Some(result) = message.shift_remove("result") {
            if self.is_silent() {
                return None;
            }
            match result {
                Value::Object(result) => self.write_result(&mut message, result),
                other => set(&mut message, "result", other),
            }
        }
        Some(to_message(message, text).into_bytes())
    }

    /// Names the draft's own member in an error that is about one. Errors of handlers stay as they are.
    fn write_error(&self, error: &mut Value) {
        if let Some(Value::String(message)) = error.get_mut("message")
            && let Some(renamed) = rename_member(&self.draft.names(), message)
        {
            *message = renamed;
        }
    }

    fn write_result(&self, message: &mut Object, mut result: Object) {
        let kind = result.shift_remove(RESULT_TYPE);
        // The drafts do not repeat the server's name and version in every result.
        let server = take_meta(&mut result, SERVER_INFO_KEY);
        let result = match self.kind {
            Kind::Call => match kind.as_ref().and_then(Value::as_str) {
                Some("input_required") => return self.write_incomplete(message, result, false),
                Some("task") => object([("task", self.draft.write_task(result).into())]),
                _ => without_later(result),
            },
            Kind::Handshake => initialize_result(result, server),
            Kind::TaskGet | Kind::TaskCancel => self.draft.write_task(result),
            Kind::TaskResult => return self.write_payload(message, result),
            Kind::TaskAnswers => {
                let mut acknowledged = Object::new();
                self.relate(&mut acknowledged);
                acknowledged
            }
            Kind::Other => without_later(result),
        };
        set(message, "result", result);
    }

    /// The outcome of a task.
    fn write_payload(&self, message: &mut Object, mut task: Object) {
        let error = |why: &str| json!({"code": ErrorCode::InvalidParams.as_i32(), "message": why});
        let status = task.get("status").and_then(Value::as_str);
        match status.unwrap_or_default() {
            "input_required" => self.write_incomplete(message, task, true),
            "completed" => {
                let result = task.shift_remove("result").and_then(into_object);
                let mut result = result.unwrap_or_default();
                take_meta(&mut result, SERVER_INFO_KEY);
                self.relate(&mut result);
                set(message, "result", result);
            }
            "failed" => {
                let reported = task.shift_remove("error");
                let reported = reported.unwrap_or_else(|| error("the task failed"));
                set(message, "error", reported);
            }
            "cancelled" => set(
                message,
                "error",
                error("the task was cancelled; it has no result"),
            ),
            _ => set(message, "error", error("the task still works; ask again")),
        }
    }

    /// The asks, and the state to send back.
    fn write_incomplete(&self, message: &mut Object, mut from: Object, of_task: bool) {
        let names = self.draft.names();
        let mut rest = Object::new();
        move_member(&mut from, RATIFIED.asks, &mut rest, names.asks);
        if of_task {
            self.relate(&mut rest);
        } else {
            move_member(&mut from, RATIFIED.state, &mut rest, names.state);
            move_member(&mut from, "_meta", &mut rest, "_meta");
        }
        if self.draft == Draft::Second {
            set(message, "result", rest);
        } else {
            message.extend(rest);
        }
    }

    /// Names in a `_meta` the task that a result belongs to.
    fn relate(&self, result: &mut Object) {
        let meta = result.shift_remove("_meta").and_then(into_object);
        let mut meta = meta.unwrap_or_default();
        let task = related(self.task.as_deref().unwrap_or_default());
        set(&mut meta, RELATED_TASK_KEY, task);
        set(result, "_meta", meta);
    }

    /// Reads an incoming message, a notification, a request or the reply, as the ratified revision has it.
    ///
    /// The reply to [`TASK_RESULT`](super::TASK_RESULT) is read as a task with its status and outcome. Anything else
    /// stays as it is.
    pub fn read_reply(&self, message: &str) -> String {
        self.read_ratified(message)
            .unwrap_or_else(|| message.to_owned())
    }

    fn read_ratified(&self, text: &str) -> Option<String> {
        let mut message = read_object(text).ok()?;
        if message.contains_key("method") || message.contains_key("error") {
            return None;
        }
        let result = message.shift_remove("result");
        let present = result.is_some();
        let mut result = result.map_or_else(|| Some(Object::new()), into_object)?;
        let incomplete = self.take_incomplete(&mut message, &mut result);
        if !present && incomplete.is_none() {
            return None;
        }
        let result = self.read_result(result, incomplete);
        set(&mut message, "result", result);
        Some(to_message(message, text))
    }

    /// The asks and the state of a reply that is not complete.
    fn take_incomplete(&self, message: &mut Object, result: &mut Object) -> Option<Object> {
        let names = self.draft.names();
        let from = match self.draft {
            Draft::Second => result,
            Draft::First | Draft::Sketch => message,
        };
        if !matches!(self.kind, Kind::Call | Kind::TaskResult)
            || !(from.contains_key(names.asks) || from.contains_key(names.state))
        {
            return None;
        }
        let mut incomplete = Object::new();
        move_member(from, names.asks, &mut incomplete, RATIFIED.asks);
        move_member(from, names.state, &mut incomplete, RATIFIED.state);
        move_member(from, "_meta", &mut incomplete, "_meta");
        Some(incomplete)
    }

    fn read_result(&self, mut result: Object, incomplete: Option<Object>) -> Object {
        let kind = match (&self.kind, &incomplete) {
            (Kind::Call, Some(_)) => "input_required",
            (Kind::Call, None) if self.wants_task && has_task(&result) => "task",
            _ => "complete",
        };
        let mut read = object([(RESULT_TYPE, kind.into())]);
        let rest = match (self.kind, incomplete) {
            (Kind::TaskResult, Some(mut incomplete)) => {
                set(&mut read, "status", "input_required");
                incomplete.shift_remove("_meta");
                incomplete
            }
            (Kind::TaskResult, None) => {
                set(&mut read, "status", "completed");
                unrelate(&mut result);
                object([("result", result.into())])
            }
            (_, Some(incomplete)) => incomplete,
            (Kind::Call, None) if kind == "task" => {
                let task = result.shift_remove("task").and_then(into_object);
                self.draft.read_task(task.unwrap_or_default())
            }
            (Kind::TaskGet, None) => self.draft.read_task(result),
            (Kind::TaskCancel | Kind::TaskAnswers, None) => Object::new(),
            (Kind::Handshake, None) => discover_result(result),
            (Kind::Call | Kind::Other, None) => result,
        };
        for (name, value) in rest {
            read.entry(name).or_insert(value);
        }
        read
    }
}

fn has_task(result: &Object) -> bool {
    result
        .get("task")
        .is_some_and(|task| task.get("taskId").is_some())
}

/// Removes the members that the handshake's revision does not know in lists and reads.
fn without_later(mut result: Object) -> Object {
    for name in LATER {
        result.shift_remove(name);
    }
    result
}

/// An error message of ours that begins with the name of a member, with the draft's name for it.
fn rename_member(names: &Names, message: &str) -> Option<String> {
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

/// Removes a member of a result's `_meta`, and the `_meta` if nothing else is in it.
fn take_meta(result: &mut Object, key: &str) -> Option<Value> {
    let meta = result.get_mut("_meta")?.as_object_mut()?;
    let taken = meta.shift_remove(key);
    if meta.is_empty() {
        result.shift_remove("_meta");
    }
    taken
}

/// Removes the task that a result belongs to; the client knows it.
fn unrelate(result: &mut Object) {
    if result.get("_meta").is_some_and(Value::is_object) {
        take_meta(result, RELATED_TASK_KEY);
    } else {
        result.shift_remove("_meta");
    }
}

/// The result of `initialize`, from that of `server/discover`.
fn initialize_result(mut discovered: Object, server: Option<Value>) -> Object {
    let mut initialized = object([("protocolVersion", HANDSHAKE.as_str().into())]);
    initialized.extend(discovered.shift_remove_entry("capabilities"));
    initialized.extend(server.map(|server| ("serverInfo".to_owned(), server)));
    initialized.extend(discovered.shift_remove_entry("instructions"));
    initialized
}

/// The result of `server/discover`, from that of `initialize`.
fn discover_result(mut initialized: Object) -> Object {
    let mut discovered = object([("supportedVersions", json!([PROTOCOL_VERSION]))]);
    for name in ["capabilities", "instructions"] {
        move_member(&mut initialized, name, &mut discovered, name);
    }
    if let Some(server) = initialized.shift_remove("serverInfo") {
        set(&mut discovered, "_meta", json!({SERVER_INFO_KEY: server}));
    }
    discovered
}
