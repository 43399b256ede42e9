//! Results of requests.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::message::{ReadError, RpcFailure};
use super::request::URLS_REQUIRED;
use crate::ask::AskKind;
use crate::envelope::present;
use crate::strict::parse_value;

/// The result of a round.
#[derive(Debug)]
pub enum CallReply {
    /// The call is done; its result is an object.
    Complete(Value),
    /// The call asks something, or wants to be sent again.
    Incomplete {
        /// The asks by key.
        asks: Map<String, Value>,
        /// The state to send back.
        state: Option<String>,
    },
    /// The call has become the task of this id.
    Task(String),
}

impl CallReply {
    /// Reads the result of a call.
    pub fn read(raw: &RawValue) -> Result<Self, ReadError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Incomplete {
            input_requests: Option<Box<RawValue>>,
            request_state: Option<String>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Created {
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
                let read: Incomplete = read(raw)?;
                let (asks, state) = (read_asks(read.input_requests)?, read.request_state);
                if asks.is_empty() && state.is_none() {
                    return Err(ReadError::NothingAsked);
                }
                Ok(Self::Incomplete { asks, state })
            }
            Some("task") => read(raw).map(|created: Created| Self::Task(created.task_id)),
            Some(other) => Err(ReadError::ResultType(other.to_owned())),
        }
    }
}

/// The result of a request that asks nothing: an object.
pub fn read_complete(raw: &RawValue) -> Result<Value, ReadError> {
    check_complete(raw)?;
    object(raw)
}

/// Whether a result is a complete one.
pub fn check_complete(raw: &RawValue) -> Result<(), ReadError> {
    match result_type(raw)?.as_deref() {
        None | Some("complete") => Ok(()),
        Some(other) => Err(ReadError::ResultType(other.to_owned())),
    }
}

/// Whether a complete result has no asks in it. The second draft asks in results without a type.
pub fn check_no_asks(result: &Value) -> Result<(), ReadError> {
    if result.get("inputRequests").is_some() || result.get("requestState").is_some() {
        return Err(ReadError::OtherDialect);
    }
    Ok(())
}

/// The visits to URLs that a server of 2025-11-25 wants before the call is repeated.
pub fn requested_urls(refusal: &RpcFailure) -> Option<Map<String, Value>> {
    if refusal.code != URLS_REQUIRED {
        return None;
    }
    let wanted = refusal.data["elicitations"].as_array()?;
    let ask = |(at, params): (usize, &Value)| {
        let ask = json!({"method": AskKind::Url.method(), "params": params});
        (format!("ask-{}", at + 1), ask)
    };
    let asks: Map<_, _> = wanted.iter().enumerate().map(ask).collect();
    (!asks.is_empty()).then_some(asks)
}

/// What is asked, by key. A key given twice is an error at any depth.
pub(super) fn read_asks(raw: Option<Box<RawValue>>) -> Result<Map<String, Value>, ReadError> {
    let Some(raw) = raw else {
        return Ok(Map::new());
    };
    match parse_value(raw.get()) {
        Ok(Value::Object(asks)) => Ok(asks),
        Ok(_) => Err(ReadError::Unexpected(
            "inputRequests is no object".to_owned(),
        )),
        Err(error) => Err(ReadError::Unexpected(format!("inputRequests: {error}"))),
    }
}

/// The type of a result. Legacy servers send none, and mean a complete one.
fn result_type(raw: &RawValue) -> Result<Option<String>, ReadError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Head {
        #[serde(default, deserialize_with = "present")]
        result_type: Option<Value>,
    }
    match read::<Head>(raw)?.result_type {
        None => Ok(None),
        Some(Value::String(name)) => Ok(Some(name)),
        Some(other) => Err(ReadError::ResultType(other.to_string())),
    }
}

fn object(raw: &RawValue) -> Result<Value, ReadError> {
    let result: Value = read(raw)?;
    if result.is_object() {
        return Ok(result);
    }
    Err(ReadError::NotAnObject)
}

fn read<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Result<T, ReadError> {
    serde_json::from_str(raw.get()).map_err(ReadError::result("the result cannot be read"))
}
