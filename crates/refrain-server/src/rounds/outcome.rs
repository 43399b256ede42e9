//! The result or error of a call whose flow ended.

use jsonschema::Validator;
use refrain_core::{AskError, End, Error, ErrorKind, limited_event};
use refrain_wire::{CallKind, ErrorCode, Reply, ResultBody, RpcError, ToolResult};
use serde_json::Value;

pub(crate) fn outcome_of(
    end: End,
    kind: CallKind,
    output: Option<&Validator>,
) -> Result<ResultBody, RpcError> {
    match end {
        End::Complete(body) => complete(body, output),
        End::Failed(error) => failed(&error, kind),
        End::Fault(fault) if fault.bad_answer => Err(RpcError::invalid_params(fault.message)),
        End::Fault(fault) => {
            // The location is only logged: a client must not learn the paths of the server's source.
            let at = fault.location.map(tracing::field::display);
            limited_event!(ERROR, fault = %fault.message, at, "handler violated a runtime rule");
            Err(RpcError::internal(fault.message))
        }
        End::Panicked(message) => {
            limited_event!(ERROR, panic = %message, "handler panicked");
            Err(RpcError::internal(
                "the handler panicked; see the server's log",
            ))
        }
    }
}

pub(crate) fn reply_of(end: End, kind: CallKind, output: Option<&Validator>) -> Reply {
    let retry_after = match &end {
        End::Failed(error) => match error.kind() {
            ErrorKind::Busy { retry_after } => Some(*retry_after),
            _ => None,
        },
        _ => None,
    };
    match (outcome_of(end, kind, output), retry_after) {
        (Ok(body), _) => Reply::Complete(body),
        (Err(error), Some(retry_after)) => Reply::Busy { error, retry_after },
        (Err(error), None) => Reply::Error(error),
    }
}

fn complete(body: ResultBody, output: Option<&Validator>) -> Result<ResultBody, RpcError> {
    let violation = output.and_then(|output| violation(output, &body));
    let Some(reason) = violation else {
        return Ok(body);
    };
    limited_event!(ERROR, %reason, "result does not match the output schema");
    Err(RpcError::internal(format!(
        "the tool's result does not match its output schema: {reason}"
    )))
}

/// The error of a failed handler. Most errors of a tool are results, so that the model can read them.
fn failed(error: &Error, kind: CallKind) -> Result<ResultBody, RpcError> {
    Err(match error.kind() {
        ErrorKind::Ask(AskError::Unsupported { capability, .. }) => {
            RpcError::missing_capability(&[*capability])
        }
        ErrorKind::InvalidParams => RpcError::invalid_params(error.to_string()),
        ErrorKind::Rpc { code, data } => backend_error(*code, data, error),
        ErrorKind::Busy { .. } => RpcError::internal(error.to_string()),
        ErrorKind::Internal => {
            limited_event!(ERROR, %error, "handler failed");
            RpcError::internal("Internal error")
        }
        _ if kind == CallKind::Tool => {
            let result = ToolResult::error(error.to_string());
            return ResultBody::from_tool(result)
                .map_err(|error| RpcError::internal(error.to_string()));
        }
        ErrorKind::Ask(_) => RpcError::invalid_params(error.to_string()),
        _ => RpcError::internal(error.to_string()),
    })
}

/// The error of another server, which the handler called. Codes that blame the request of this server become internal errors.
fn backend_error(code: i64, data: &Value, error: &Error) -> RpcError {
    let code = match i32::try_from(code).map(ErrorCode::from_i32) {
        Ok(
            ErrorCode::HeaderMismatch
            | ErrorCode::MissingCapability
            | ErrorCode::UnsupportedVersion,
        )
        | Err(_) => ErrorCode::Internal,
        Ok(code) => code,
    };
    let error = RpcError::new(code, error.to_string());
    match data {
        Value::Null => error,
        data => error.with_data(data),
    }
}

/// The first violation of the output schema. Tool errors are not checked.
fn violation(output: &Validator, body: &ResultBody) -> Option<String> {
    if body.is_error() {
        return None;
    }
    let Some(content) = body.structured_content() else {
        return Some("structuredContent is missing".into());
    };
    output.validate(&content).err().map(|error| {
        let path = error.instance_path().as_str().to_owned();
        // The value is masked: it may be long or confidential.
        format!("at {path:?}: {}", error.masked())
    })
}
