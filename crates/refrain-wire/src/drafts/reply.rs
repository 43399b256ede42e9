//! Translates replies between the ratified revision and a draft.

use serde_json::{Value, json};

use super::object::{Object, into_object, move_member, object, read_object, set, to_message};
use super::request::related_task_value;
use super::{
    BASE_REVISION, Draft, DraftExchange, MemberNames, RATIFIED, RELATED_TASK_KEY, RequestKind,
};
use crate::error::ErrorCode;
use crate::legacy::NEW_MEMBERS;
use crate::meta::{PROTOCOL_VERSION, SERVER_INFO_KEY};

const RESULT_TYPE: &str = "resultType";

impl DraftExchange {
    /// Translates an outgoing message (notification or reply) to the draft. `None` if the draft sends no reply.
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

    /// Renames members in error messages of Refrain. Handlers' errors are not changed.
    fn write_error(&self, error: &mut Value) {
        if let Some(Value::String(message)) = error.get_mut("message")
            && let Some(renamed) = rename_member(&self.draft.names(), message)
        {
            *message = renamed;
        }
    }

    fn write_result(&self, message: &mut Object, mut result: Object) {
        let kind = result.shift_remove(RESULT_TYPE);
        // Only the ratified revision repeats the server's name and version in every result.
        let server = take_meta(&mut result, SERVER_INFO_KEY);
        let result = match self.kind {
            RequestKind::Call => match kind.as_ref().and_then(Value::as_str) {
                Some("input_required") => return self.write_incomplete(message, result, false),
                Some("task") => object([("task", self.draft.write_task(result).into())]),
                _ => without_new_members(result),
            },
            RequestKind::Handshake => initialize_result(result, server),
            RequestKind::TaskGet | RequestKind::TaskCancel => self.draft.write_task(result),
            RequestKind::TaskResult => return self.write_task_outcome(message, result),
            RequestKind::TaskAnswers => {
                let mut acknowledged = Object::new();
                self.set_related_task(&mut acknowledged);
                acknowledged
            }
            RequestKind::Other => without_new_members(result),
        };
        set(message, "result", result);
    }

    /// Writes the outcome of a task.
    fn write_task_outcome(&self, message: &mut Object, mut task: Object) {
        let error = |why: &str| json!({"code": ErrorCode::InvalidParams.as_i32(), "message": why});
        let status = task.get("status").and_then(Value::as_str);
        match status.unwrap_or_default() {
            "input_required" => self.write_incomplete(message, task, true),
            "completed" => {
                let result = task.shift_remove("result").and_then(into_object);
                let mut result = result.unwrap_or_default();
                take_meta(&mut result, SERVER_INFO_KEY);
                self.set_related_task(&mut result);
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
            _ => set(
                message,
                "error",
                error("the task is still working; try again later"),
            ),
        }
    }

    /// Writes the asks and the state.
    fn write_incomplete(&self, message: &mut Object, mut from: Object, of_task: bool) {
        let names = self.draft.names();
        let mut rest = Object::new();
        move_member(&mut from, RATIFIED.asks, &mut rest, names.asks);
        if of_task {
            self.set_related_task(&mut rest);
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

    /// Adds the id of the related task to the `_meta` of a result.
    fn set_related_task(&self, result: &mut Object) {
        let meta = result.shift_remove("_meta").and_then(into_object);
        let mut meta = meta.unwrap_or_default();
        let task = related_task_value(self.task.as_deref().unwrap_or_default());
        set(&mut meta, RELATED_TASK_KEY, task);
        set(result, "_meta", meta);
    }

    /// Translates an incoming message (notification, request or reply) to the ratified revision.
    ///
    /// The reply to [`TASK_RESULT`](super::TASK_RESULT) becomes a task with its status and outcome.
    /// Notifications, requests and errors are not changed.
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

    /// Removes the asks and the state from an incomplete reply and returns them.
    fn take_incomplete(&self, message: &mut Object, result: &mut Object) -> Option<Object> {
        let names = self.draft.names();
        let from = match self.draft {
            Draft::Second => result,
            Draft::First | Draft::Sketch => message,
        };
        if !matches!(self.kind, RequestKind::Call | RequestKind::TaskResult)
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
            (RequestKind::Call, Some(_)) => "input_required",
            (RequestKind::Call, None) if self.wants_task && has_task(&result) => "task",
            _ => "complete",
        };
        let mut translated = object([(RESULT_TYPE, kind.into())]);
        let rest = match (self.kind, incomplete) {
            (RequestKind::TaskResult, Some(mut incomplete)) => {
                set(&mut translated, "status", "input_required");
                incomplete.shift_remove("_meta");
                incomplete
            }
            (RequestKind::TaskResult, None) => {
                set(&mut translated, "status", "completed");
                remove_related_task(&mut result);
                object([("result", result.into())])
            }
            (_, Some(incomplete)) => incomplete,
            (RequestKind::Call, None) if kind == "task" => {
                let task = result.shift_remove("task").and_then(into_object);
                self.draft.read_task(task.unwrap_or_default())
            }
            (RequestKind::TaskGet, None) => self.draft.read_task(result),
            (RequestKind::TaskCancel | RequestKind::TaskAnswers, None) => Object::new(),
            (RequestKind::Handshake, None) => discover_result(result),
            (RequestKind::Call | RequestKind::Other, None) => result,
        };
        for (name, value) in rest {
            translated.entry(name).or_insert(value);
        }
        translated
    }
}

fn has_task(result: &Object) -> bool {
    result
        .get("task")
        .is_some_and(|task| task.get("taskId").is_some())
}

/// Removes the members that 2025-11-25 does not have in lists and reads.
fn without_new_members(mut result: Object) -> Object {
    for name in NEW_MEMBERS {
        result.shift_remove(name);
    }
    result
}

/// Replaces a member's name at the start of an error message with the draft's name. `None` if the message
/// does not start with a member's name.
fn rename_member(names: &MemberNames, message: &str) -> Option<String> {
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

/// Removes a member of `_meta`, and `_meta` itself if it is empty then.
fn take_meta(result: &mut Object, key: &str) -> Option<Value> {
    let meta = result.get_mut("_meta")?.as_object_mut()?;
    let taken = meta.shift_remove(key);
    if meta.is_empty() {
        result.shift_remove("_meta");
    }
    taken
}

/// Removes the related task from `_meta`, because the client knows it.
fn remove_related_task(result: &mut Object) {
    if result.get("_meta").is_some_and(Value::is_object) {
        take_meta(result, RELATED_TASK_KEY);
    } else {
        result.shift_remove("_meta");
    }
}

/// Converts the result of `server/discover` to that of `initialize`.
fn initialize_result(mut discovered: Object, server: Option<Value>) -> Object {
    let mut initialized = object([("protocolVersion", BASE_REVISION.as_str().into())]);
    initialized.extend(discovered.shift_remove_entry("capabilities"));
    initialized.extend(server.map(|server| ("serverInfo".to_owned(), server)));
    initialized.extend(discovered.shift_remove_entry("instructions"));
    initialized
}

/// Converts the result of `initialize` to that of `server/discover`.
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
