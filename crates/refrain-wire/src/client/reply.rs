//! Results of calls, as the client reads them.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::message::{ReadError, RpcFailure, read};
use super::request::URLS_REQUIRED;
use crate::ask::AskKind;
use crate::canonical::parse_value;
use crate::envelope::present;

const INVALID: &str = "invalid result";

/// The result of a round.
#[derive(Debug)]
pub enum CallReply {
    /// The call has finished with this result object.
    Complete(Value),
    /// The call needs answers, or must be continued by another request.
    Incomplete {
        /// The asks by key.
        asks: Map<String, Value>,
        /// The state to send back.
        state: Option<String>,
    },
    /// The call continues as the task with this id.
    Task(String),
}

impl CallReply {
    /// Reads the result of a call.
    pub fn read(raw: &RawValue) -> Result<Self, ReadError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct IncompleteMembers<'a> {
            #[serde(borrow)]
            input_requests: Option<&'a RawValue>,
            request_state: Option<String>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct CreatedTask {
            task_id: String,
        }

        let kind = result_type(raw)?;
        match kind.as_deref() {
            None | Some("complete") => {
                let result = object(raw)?;
                if kind.is_none() {
                    check_no_asks(&result)?;
                }
                Ok(Self::Complete(result))
            }
            Some("input_required") => {
                let read: IncompleteMembers<'_> = read(raw, INVALID)?;
                let (asks, state) = (read_asks(read.input_requests)?, read.request_state);
                if asks.is_empty() && state.is_none() {
                    return Err(ReadError::NothingAsked);
                }
                Ok(Self::Incomplete { asks, state })
            }
            Some("task") => {
                read(raw, INVALID).map(|created: CreatedTask| Self::Task(created.task_id))
            }
            Some(other) => Err(ReadError::ResultType(other.to_owned())),
        }
    }
}

/// Reads the result of a request that cannot ask for input.
pub fn read_complete(raw: &RawValue) -> Result<Value, ReadError> {
    check_complete(raw)?;
    object(raw)
}

/// Checks that a result is complete.
pub fn check_complete(raw: &RawValue) -> Result<(), ReadError> {
    match result_type(raw)?.as_deref() {
        None | Some("complete") => Ok(()),
        Some(other) => Err(ReadError::ResultType(other.to_owned())),
    }
}

/// Checks that a complete result has no asks. The second draft asks in results without a `resultType`.
pub fn check_no_asks(result: &Value) -> Result<(), ReadError> {
    if result.get("inputRequests").is_some() || result.get("requestState").is_some() {
        return Err(ReadError::OtherDialect);
    }
    Ok(())
}

/// The URLs that the user must open before the call is repeated, as asks by key. Only in 2025-11-25.
pub fn requested_urls(failure: &RpcFailure) -> Option<Map<String, Value>> {
    if failure.code != URLS_REQUIRED {
        return None;
    }
    let elicitations = failure.data["elicitations"].as_array()?;
    let ask = |(index, params): (usize, &Value)| {
        let ask = json!({"method": AskKind::Url.method(), "params": params});
        (format!("ask-{}", index + 1), ask)
    };
    let asks: Map<_, _> = elicitations.iter().enumerate().map(ask).collect();
    (!asks.is_empty()).then_some(asks)
}

/// Reads asks by key. A duplicate key at any depth is an error.
pub(super) fn read_asks(raw: Option<&RawValue>) -> Result<Map<String, Value>, ReadError> {
    let Some(raw) = raw else {
        return Ok(Map::new());
    };
    match parse_value(raw.get()) {
        Ok(Value::Object(asks)) => Ok(asks),
        Ok(_) => Err(ReadError::Unexpected(
            "inputRequests is not an object".to_owned(),
        )),
        Err(error) => Err(ReadError::Unexpected(format!("inputRequests: {error}"))),
    }
}

/// The `resultType`. Legacy servers omit it and send only complete results.
fn result_type(raw: &RawValue) -> Result<Option<String>, ReadError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Head {
        #[serde(default, deserialize_with = "present")]
        result_type: Option<Value>,
    }
    match read::<Head>(raw, INVALID)?.result_type {
        None => Ok(None),
        Some(Value::String(name)) => Ok(Some(name)),
        Some(other) => Err(ReadError::ResultType(other.to_string())),
    }
}

fn object(raw: &RawValue) -> Result<Value, ReadError> {
    let result: Value = read(raw, INVALID)?;
    if result.is_object() {
        return Ok(result);
    }
    Err(ReadError::NotAnObject)
}
