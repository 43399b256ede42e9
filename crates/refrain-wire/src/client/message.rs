//! Messages from a server.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;

/// The maximum number of characters that an error quotes from an invalid message.
const EXCERPT: usize = 200;

/// A message from a server.
#[derive(Debug)]
pub enum ServerMessage {
    /// The result or the error of a request.
    Response(Result<Box<RawValue>, RpcFailure>),
    /// A notification.
    Notification {
        /// The method.
        method: String,
        /// The params.
        params: Option<Box<RawValue>>,
    },
    /// A request from a legacy server.
    Request {
        /// The id that the response must echo.
        id: Value,
        /// The method.
        method: String,
        /// The params.
        params: Option<Box<RawValue>>,
    },
}

/// A JSON-RPC error from a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RpcFailure {
    /// The error code.
    pub code: i64,
    /// The error message.
    #[serde(default)]
    pub message: String,
    /// Machine-readable details.
    #[serde(default)]
    pub data: Value,
}

impl RpcFailure {
    /// Whether no request can continue the call. Only Refrain servers report this.
    pub fn is_call_over(&self) -> bool {
        self.data["callOver"] == true
    }

    /// Whether the error has this code.
    pub fn is(&self, code: crate::ErrorCode) -> bool {
        self.code == i64::from(code.as_i32())
    }
}

impl fmt::Display for RpcFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

/// An invalid message from a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The message is not JSON.
    #[error("malformed JSON: {error} in {start:?}")]
    Json {
        /// The syntax error.
        #[source]
        error: serde_json::Error,
        /// The start of the message.
        start: String,
    },
    /// The JSON is not a JSON-RPC message.
    #[error("not a JSON-RPC message: {0:?}")]
    NotRpc(String),
    /// The message asks for input in the format of a draft.
    #[error("the server asks for input in the format of a draft; select that draft as the dialect")]
    OtherDialect,
    /// A result lacks a required member, or a member has the wrong type.
    #[error("{what}: {error}")]
    Result {
        /// The part that is invalid.
        what: &'static str,
        /// The cause.
        #[source]
        error: serde_json::Error,
    },
    /// The `resultType` of a result is unknown.
    #[error("unknown resultType {0:?}")]
    ResultType(String),
    /// A result is not an object.
    #[error("the result is not an object")]
    NotAnObject,
    /// An incomplete result has neither asks nor a state.
    #[error("incomplete result without inputRequests and requestState")]
    NothingAsked,
    /// A response has the id of another request.
    #[error("the response has the id of another request")]
    OtherRequest,
    /// A message is not UTF-8.
    #[error("the message is not UTF-8")]
    NotUtf8(#[from] std::string::FromUtf8Error),
    /// A result has an invalid value.
    #[error("{0}")]
    Unexpected(String),
    /// A task lacks the members that its status requires.
    #[error("invalid task: {0}")]
    Task(String),
}

/// Reads a raw value. The error starts with `what`.
pub(super) fn read<'a, T: Deserialize<'a>>(
    raw: &'a RawValue,
    what: &'static str,
) -> Result<T, ReadError> {
    serde_json::from_str(raw.get()).map_err(|error| ReadError::Result { what, error })
}

/// Splits a text into messages. Servers of 2025-03-26 may send an array of them.
pub fn split_messages(text: String) -> Vec<String> {
    match crate::legacy::split_batch(text.as_bytes()) {
        Some(batch) => batch.iter().map(|raw| raw.get().to_owned()).collect(),
        None => vec![text],
    }
}

/// Reads a message, and the id if it is a response.
pub fn read_message(text: &str) -> Result<(Option<Value>, ServerMessage), ReadError> {
    /// Only drafts have the last three members.
    #[derive(Deserialize)]
    struct RawMessage {
        id: Option<Value>,
        method: Option<String>,
        params: Option<Box<RawValue>>,
        result: Option<Box<RawValue>>,
        error: Option<RpcFailure>,
        input_requests: Option<IgnoredAny>,
        dependent_requests: Option<IgnoredAny>,
        request_state: Option<IgnoredAny>,
    }
    let start = || text.chars().take(EXCERPT).collect();
    let message: RawMessage = serde_json::from_str(text).map_err(|error| ReadError::Json {
        error,
        start: start(),
    })?;
    let is_open = message.result.is_none() && message.request_state.is_some();
    let asks = message.input_requests.is_some() || message.dependent_requests.is_some();
    if (is_open || asks) && message.method.is_none() && message.error.is_none() {
        return Err(ReadError::OtherDialect);
    }
    let RawMessage {
        id, method, params, ..
    } = message;
    match (method, id, message.result, message.error) {
        (Some(method), None, ..) => Ok((None, ServerMessage::Notification { method, params })),
        (Some(method), Some(id), ..) => Ok((None, ServerMessage::Request { id, method, params })),
        (None, id, Some(result), None) => Ok((id, ServerMessage::Response(Ok(result)))),
        (None, id, None, Some(error)) => Ok((id, ServerMessage::Response(Err(error)))),
        _ => Err(ReadError::NotRpc(start())),
    }
}

/// The id of the request that a `notifications/cancelled` of a legacy server cancels.
pub fn cancelled_request(params: Option<&RawValue>) -> Option<Value> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct CancelledParams {
        request_id: Value,
    }
    let cancelled: CancelledParams = serde_json::from_str(params?.get()).ok()?;
    Some(cancelled.request_id)
}
