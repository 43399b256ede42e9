//! The request `_meta` that the ratified revision requires and the drafts do not have.

use serde::Serialize;
use serde_json::{Value, json};

use super::object::{Object, into_object, set};
use super::{DraftError, RELATED_TASK_KEY};
use crate::capabilities::TASKS_EXTENSION;
use crate::error::RpcError;
use crate::legacy::SessionSettings;
use crate::meta::{
    CLIENT_CAPABILITIES_KEY, LOG_LEVEL_KEY, PROTOCOL_VERSION, PROTOCOL_VERSION_KEY, TASK_TTL_KEY,
};

/// The `task` member of a call: the client accepts a task as the reply.
#[derive(Serialize)]
pub(super) struct TaskMember {
    /// The lifetime of the task in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<u64>,
}

impl TaskMember {
    pub(super) fn read(task: &Value) -> Result<Self, RpcError> {
        let Value::Object(task) = task else {
            return Err(RpcError::invalid_params("task must be an object"));
        };
        let ttl = task.get("ttl").filter(|ttl| !ttl.is_null());
        let valid = ttl.and_then(millis);
        if ttl.is_some() && valid.is_none() {
            let message = "task.ttl must be a whole number of milliseconds, at least 1";
            return Err(RpcError::invalid_params(message));
        }
        Ok(Self { ttl: valid })
    }
}

fn millis(value: &Value) -> Option<u64> {
    value.as_u64().filter(|millis| *millis > 0)
}

/// Completes the `_meta` of a request. `tasks` says whether to declare the tasks extension.
pub(super) fn complete(
    params: &mut Object,
    session: Option<SessionSettings>,
    tasks: bool,
    task_member: Option<&TaskMember>,
) -> Result<(), RpcError> {
    let must_be_object = |name: &str| RpcError::invalid_params(format!("{name} must be an object"));
    let meta = params.entry("_meta").or_insert_with(|| json!({}));
    let meta = meta
        .as_object_mut()
        .ok_or_else(|| must_be_object("_meta"))?;
    set(meta, PROTOCOL_VERSION_KEY, PROTOCOL_VERSION);
    let declared = meta.shift_remove(CLIENT_CAPABILITIES_KEY);
    let declared = declared.unwrap_or_else(|| match session {
        Some(session) => json!(session.capabilities),
        // Without a declaration, assume that the client supports all asks.
        None => json!({"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}),
    });
    if let Some(level) = session.and_then(|session| session.log_level) {
        meta.entry(LOG_LEVEL_KEY)
            .or_insert_with(|| level.as_str().into());
    }
    let capabilities = into_object(declared).and_then(|declared| with_tasks(declared, tasks));
    let capabilities =
        capabilities.ok_or_else(|| must_be_object(&format!("_meta.{CLIENT_CAPABILITIES_KEY}")))?;
    set(meta, CLIENT_CAPABILITIES_KEY, capabilities);
    meta.shift_remove(RELATED_TASK_KEY);
    meta.shift_remove(TASK_TTL_KEY);
    if let Some(ttl) = task_member.and_then(|task_member| task_member.ttl) {
        set(meta, TASK_TTL_KEY, ttl);
    }
    Ok(())
}

/// Adds or removes the tasks extension. `None` if `extensions` is not an object.
fn with_tasks(mut capabilities: Object, tasks: bool) -> Option<Object> {
    if !tasks && !capabilities.contains_key("extensions") {
        return Some(capabilities);
    }
    let extensions = capabilities.shift_remove("extensions");
    let mut extensions = extensions.map_or_else(|| Some(Object::new()), into_object)?;
    extensions.shift_remove(TASKS_EXTENSION);
    if tasks {
        set(&mut extensions, TASKS_EXTENSION, json!({}));
    }
    set(&mut capabilities, "extensions", extensions);
    Some(capabilities)
}

/// Removes the `_meta` members that the drafts do not have. Returns the `task` member of the request.
pub(super) fn reduce(meta: &mut Object) -> Result<Option<TaskMember>, DraftError> {
    meta.shift_remove(PROTOCOL_VERSION_KEY);
    let ttl = meta.shift_remove(TASK_TTL_KEY).as_ref().and_then(millis);
    let Some(capabilities) = member(meta, CLIENT_CAPABILITIES_KEY)? else {
        return Ok(None);
    };
    let Some(extensions) = member(capabilities, "extensions")? else {
        return Ok(None);
    };
    if extensions.shift_remove(TASKS_EXTENSION).is_none() {
        return Ok(None);
    }
    if extensions.is_empty() {
        capabilities.shift_remove("extensions");
    }
    Ok(Some(TaskMember { ttl }))
}

/// Returns a member that must be an object, if present.
fn member<'a>(
    object: &'a mut Object,
    name: &'static str,
) -> Result<Option<&'a mut Object>, DraftError> {
    let member = object.get_mut(name).map(Value::as_object_mut);
    member
        .map(|member| member.ok_or(DraftError::NotAnObject(name)))
        .transpose()
}
