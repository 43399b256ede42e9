//! The result or error of a call whose handler has ended.

use jsonschema::Validator;
use refrain_core::{AskError, Error, ErrorKind, Event, Outcome};
use refrain_wire::{CallKind, Reply, ResultBody, RpcError, ToolResult};

/// The result or error for the last event of a flow.
pub(crate) fn outcome_of(
    event: Event,
    kind: CallKind,
    output: Option<&Validator>,
) -> Result<ResultBody, RpcError> {
    match event {
        Event::Done(Ok(Outcome::Complete(body))) => complete(body, output),
        Event::Done(Err(error)) => failed(&error, kind),
        Event::Fault(fault) if fault.bad_answer => Err(RpcError::invalid_params(fault.message)),
        Event::Fault(fault) => {
            tracing::error!(fault = %fault.message, "a handler made a mistake");
            Err(RpcError::internal(fault.message))
        }
        Event::Panicked(message) => {
            tracing::error!(panic = %message, "a handler panicked");
            Err(RpcError::internal(
                "the handler panicked; the server's log says where",
            ))
        }
        Event::Done(Ok(Outcome::Incomplete(_)))
        | Event::Cut(_)
        | Event::Detach
        | Event::Write(_)
        | Event::Notes(_)
        | Event::Settle
        // Handled before; a crash is only made by tests.
        | Event::Crashed => Err(RpcError::internal("Internal error")),
    }
}

/// The reply for the last event of a flow.
pub(crate) fn reply_of(event: Event, kind: CallKind, output: Option<&Validator>) -> Reply {
    match outcome_of(event, kind, output) {
        Ok(body) => Reply::Complete(body),
        Err(error) => Reply::Error(error),
    }
}

/// Checks a result against the output schema of its tool.
fn complete(body: ResultBody, output: Option<&Validator>) -> Result<ResultBody, RpcError> {
    let misfit = output.and_then(|output| misfit(output, &body));
    let Some(reason) = misfit else {
        return Ok(body);
    };
    tracing::error!(%reason, "a result does not fit the tool's output schema");
    Err(RpcError::internal(format!(
        "the tool's result does not fit its output schema: {reason}"
    )))
}

fn failed(failed: &Error, kind: CallKind) -> Result<ResultBody, RpcError> {
    Err(match failed.kind() {
        ErrorKind::Ask(AskError::Unsupported { capability, .. }) => {
            RpcError::missing_capability(&[*capability])
        }
        ErrorKind::InvalidParams => RpcError::invalid_params(failed.to_string()),
        ErrorKind::Internal => {
            tracing::error!(error = %failed, "a handler failed");
            RpcError::internal("Internal error")
        }
        _ if kind == CallKind::Tool => {
            let result = ToolResult::error(failed.to_string());
            return ResultBody::from_tool(result)
                .map_err(|error| RpcError::internal(error.to_string()));
        }
        ErrorKind::Ask(_) => RpcError::invalid_params(failed.to_string()),
        _ => RpcError::internal(failed.to_string()),
    })
}

/// Why the structured content does not match the schema. A failure needs none.
fn misfit(output: &Validator, body: &ResultBody) -> Option<String> {
    if body.is_error() {
        return None;
    }
    let Some(content) = body.structured_content() else {
        return Some("it has no structuredContent".into());
    };
    output.validate(content).err().map(|error| {
        let at = error.instance_path().as_str().to_owned();
        // Not the value itself: it may be long, or private.
        format!("at {:?}: {}", at, error.masked())
    })
}
