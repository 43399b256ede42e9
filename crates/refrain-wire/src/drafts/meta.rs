//! What a request says of itself: the ratified revision demands it of each, the drafts know nothing of it.

use serde_json::value::RawValue;

use super::RELATED_TASK_KEY;
use super::object::Object;
use crate::error::RpcError;
use crate::meta::{
    CLIENT_CAPABILITIES_KEY, Capabilities, LOG_LEVEL_KEY, PROTOCOL_VERSION, PROTOCOL_VERSION_KEY,
    TASK_TTL_KEY, TASKS_EXTENSION,
};
use crate::older::Agreed;

/// What a client can do that does not say it.
const ASSUMED: &str = r#"{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}"#;

/// The wish to have a task.
pub(super) struct TaskWish {
    /// How long it may live, in milliseconds.
    ttl: Option<u64>,
}

impl TaskWish {
    /// Reads the `task` of a call.
    pub(super) fn read(task: &RawValue) -> Result<Self, RpcError> {
        let task = Object::read(task.get())
            .map_err(|why| RpcError::invalid_params(format!("task must be an object: {why}")))?;
        let ttl = match task.get("ttl").map(RawValue::get) {
            None | Some("null") => None,
            Some(text) => Some(millis(text).ok_or_else(|| {
                let message = "task.ttl must be a whole number of milliseconds, at least 1";
                RpcError::invalid_params(message)
            })?),
        };
        Ok(Self { ttl })
    }

    /// The `task` of a call.
    pub(super) fn write(&self) -> Object {
        let mut task = Object::default();
        if let Some(ttl) = self.ttl {
            task.set("ttl", ttl);
        }
        task
    }
}

fn millis(text: &str) -> Option<u64> {
    let millis = serde_json::from_str(text).ok()?;
    (millis > 0).then_some(millis)
}

/// Completes the `_meta` of a request. Whether the client can look after tasks is what the request says by its shape.
pub(super) fn complete(
    params: &mut Object,
    agreed: Option<Agreed>,
    tasks: bool,
    wish: Option<&TaskWish>,
) -> Result<(), RpcError> {
    let mut meta = Object::read_member(params.take("_meta"))
        .map_err(|why| RpcError::invalid_params(format!("_meta must be an object: {why}")))?;
    meta.set(PROTOCOL_VERSION_KEY, PROTOCOL_VERSION);
    let declared = meta.take(CLIENT_CAPABILITIES_KEY);
    let declared = match (&declared, agreed) {
        (Some(declared), _) => Object::read(declared.get()),
        (None, Some(agreed)) => Ok(written(agreed.capabilities)),
        (None, None) => Object::read(ASSUMED),
    };
    if let Some(level) = agreed.and_then(|agreed| agreed.log_level)
        && !meta.has(LOG_LEVEL_KEY)
    {
        meta.set(LOG_LEVEL_KEY, level.as_str());
    }
    let capabilities = declared.and_then(|declared| with_tasks(declared, tasks));
    let capabilities = capabilities.map_err(|why| {
        let message = format!("_meta.{CLIENT_CAPABILITIES_KEY} must be an object: {why}");
        RpcError::invalid_params(message)
    })?;
    meta.set(CLIENT_CAPABILITIES_KEY, capabilities);
    meta.take(RELATED_TASK_KEY);
    meta.take(TASK_TTL_KEY);
    if let Some(ttl) = wish.and_then(|wish| wish.ttl) {
        meta.set(TASK_TTL_KEY, ttl);
    }
    params.set("_meta", meta);
    Ok(())
}

/// Capabilities as a client declares them.
fn written(capabilities: Capabilities) -> Object {
    let some = |named: &[(bool, &str)]| {
        let mut object = Object::default();
        for (_, name) in named.iter().filter(|(has, _)| *has) {
            object.set(name, Object::default());
        }
        object
    };
    let mut all = Object::default();
    let can = capabilities;
    if can.form || can.url {
        let modes = [(can.form, "form"), (can.url, "url")];
        all.set("elicitation", some(&modes));
    }
    if can.sampling {
        let with = [
            (can.sampling_tools, "tools"),
            (can.sampling_context, "context"),
        ];
        all.set("sampling", some(&with));
    }
    if can.roots {
        all.set("roots", Object::default());
    }
    all
}

/// The capabilities with tasks among them, or not.
fn with_tasks(mut capabilities: Object, tasks: bool) -> Result<Object, String> {
    let given = capabilities.take("extensions");
    let there = given.is_some();
    let mut extensions = Object::read_member(given)?;
    extensions.take(TASKS_EXTENSION);
    if tasks {
        extensions.set(TASKS_EXTENSION, Object::default());
    }
    if there || tasks {
        capabilities.set("extensions", extensions);
    }
    Ok(capabilities)
}

/// Takes out of the `_meta` of a request what the drafts have no place for. Gives the wish for a task, if there is one.
pub(super) fn reduce(meta: &mut Object) -> Result<Option<TaskWish>, String> {
    meta.take(PROTOCOL_VERSION_KEY);
    let ttl = meta.take(TASK_TTL_KEY).and_then(|ttl| millis(ttl.get()));
    let Some(capabilities) = meta.take(CLIENT_CAPABILITIES_KEY) else {
        return Ok(None);
    };
    let mut capabilities = Object::read(capabilities.get())?;
    let mut wish = None;
    if let Some(extensions) = capabilities.take("extensions") {
        let mut extensions = Object::read(extensions.get())?;
        let tasks = extensions.take(TASKS_EXTENSION).is_some();
        if tasks {
            wish = Some(TaskWish { ttl });
        }
        if !(tasks && extensions.is_empty()) {
            capabilities.set("extensions", extensions);
        }
    }
    meta.set(CLIENT_CAPABILITIES_KEY, capabilities);
    Ok(wish)
}
