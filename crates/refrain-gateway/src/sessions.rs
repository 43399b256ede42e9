//! Backends with state for each handle: the tool `open_session`, and the argument `session` of the other tools.

use crate::backend::Backend;
use crate::call::acquire_error;
use crate::config::BackendSpec;
use crate::pool::Owner;
use crate::support::AskSupport;
use refrain::client::ReadError;
use refrain::client::wire::ToolInfo;
use refrain::client::wire::client::AsSent;
use refrain::prelude::*;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The argument that contains a handle.
pub(crate) const HANDLE_ARGUMENT: &str = "session";

/// The offered name of the tool that opens a session.
pub(crate) fn open_tool_name(spec: &BackendSpec) -> String {
    format!("{}open_session", spec.prefix)
}

/// The tool that starts a process and returns its handle.
pub(crate) fn open_tool(backend: &Arc<Backend>) -> Tool {
    let name = open_tool_name(&backend.spec);
    let description = format!(
        "Opens a session of {} and returns its handle. Pass the handle as the argument `{HANDLE_ARGUMENT}` to the other tools. A session \
         that is not used for {} seconds ends.",
        backend.spec.name,
        backend.spec.idle_timeout.as_secs()
    );
    let backend = backend.clone();
    let open = move |cx: Cx, server: State<Server>| {
        let backend = backend.clone();
        async move {
            let id = format!("{:016x}", cx.random());
            let owner = Owner {
                principal: cx.principal().clone(),
                handle: Some(id.as_str().into()),
            };
            let handle = server.seal_handle(cx.principal(), &id, backend.spec.handle_lifetime)?;
            let opened = backend
                .pool
                .open(owner, &cx.account(), AskSupport::ALL)
                .await;
            opened.map_err(|error| acquire_error(&backend, error))?;
            Ok(Json(json!({ HANDLE_ARGUMENT: handle })))
        }
    };
    // Live, because the process is in the memory of this instance.
    Tool::new(name, open).describe(description).live()
}

/// The entry of a tool with the argument for the handle.
pub(crate) fn with_handle_argument(
    spec: &BackendSpec,
    sent: &AsSent<ToolInfo>,
) -> Result<AsSent<ToolInfo>, EntryError> {
    let mut entry: Map<String, Value> = serde_json::from_str(sent.raw().get())?;
    let Some(Value::Object(schema)) = entry.get_mut("inputSchema") else {
        return Err(EntryError::Schema);
    };
    let properties = schema.entry("properties").or_insert_with(|| json!({}));
    let properties = properties.as_object_mut().ok_or(EntryError::Schema)?;
    let argument = json!({
        "type": "string",
        "description": format!("The handle of a session, which the tool {} returned.", open_tool_name(spec)),
    });
    let replaced = properties.insert(HANDLE_ARGUMENT.to_owned(), argument);
    if replaced.is_some() {
        return Err(EntryError::ArgumentTaken);
    }
    let required = schema.entry("required").or_insert_with(|| json!([]));
    let required = required.as_array_mut().ok_or(EntryError::Schema)?;
    required.push(HANDLE_ARGUMENT.into());
    let raw: Box<RawValue> = to_raw_value(&entry)?;
    Ok(AsSent::read(&raw)?)
}

/// Why the entry of a tool cannot get the argument.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EntryError {
    #[error("invalid entry: {0}")]
    Json(#[from] serde_json::Error),
    #[error("its input schema does not describe an object")]
    Schema,
    #[error("it has an argument `{HANDLE_ARGUMENT}` already, which sessions = \"handle\" needs")]
    ArgumentTaken,
    #[error(transparent)]
    Entry(#[from] ReadError),
}

/// Takes the handle out of the arguments of a call, and returns the id of its session.
pub(crate) fn take_handle(
    spec: &BackendSpec,
    server: &Server,
    cx: &Cx,
    arguments: &mut Map<String, Value>,
) -> Result<Arc<str>> {
    let handle = arguments.remove(HANDLE_ARGUMENT);
    let Some(Value::String(handle)) = handle else {
        return Err(Error::msg(format!(
            "the argument `{HANDLE_ARGUMENT}` is missing: call {} first, and pass the handle that it returns",
            open_tool_name(spec)
        )));
    };
    Ok(server.open_handle(cx.principal(), &handle)?.into())
}
