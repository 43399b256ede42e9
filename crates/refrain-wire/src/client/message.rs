//! Messages from a server.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;

/// The number of characters of a message that an error shows.
const SHOWN: usize = 200;

/// One message of a server.
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
    /// A request of a legacy server.
    Request {
        /// The id that the response must echo.
        id: Value,
        /// The method.
        method: String,
        /// The params.
        params: Option<Box<RawValue>>,
    },
}

/// An error as the server sent it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RpcFailure {
    /// The error code.
    pub code: i64,
    /// The message.
    #[serde(default)]
    pub message: String,
    /// Further facts.
    #[serde(default)]
    pub data: Value,
}

impl RpcFailure {
    /// Whether the server says that the call is over, so that no request can continue it. Refrain's servers do.
    pub fn is_call_over(&self) -> bool {
        self.data["callOver"] == true
    }

    /// Whether it has this error code.
    pub fn is(&self, code: crate::ErrorCode) -> bool {
        self.code == i64::from(code.as_i32())
    }
}

impl fmt::Display for RpcFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

/// Why a message of a server cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The message is not JSON.
    #[error("{error} in {start:?}")]
    Json {
        /// What is wrong with it.
        #[source]
        error: serde_json::Error,
        /// The start of the message.
        start: String,
    },
    /// The JSON is not a JSON-RPC message.
    #[error("no JSON-RPC message: {0:?}")]
    NotRpc(String),
    /// The message asks for input as a draft of the protocol does.
    #[error(
        "it asks for input in the shape of a draft; if the server speaks one, choose that dialect"
    )]
    OtherDialect,
    /// A result is not of the expected form.
    #[error("{what}: {error}")]
    Result {
        /// The problem.
        what: &'static str,
        /// What is wrong with it.
        #[source]
        error: serde_json::Error,
    },
    /// A result has a type that is not known.
    #[error("its result has the unknown type {0:?}")]
    ResultType(String),
    /// A result that must be an object is not.
    #[error("the result is no object")]
    NotAnObject,
    /// A call is incomplete, but neither asks nor has a state.
    #[error("it is incomplete, but asks nothing and has no state")]
    NothingAsked,
    /// A response has the id of another request.
    #[error("it has the id of another request")]
    OtherRequest,
    /// A message is not text.
    #[error("it is not UTF-8")]
    NotUtf8(#[from] std::string::FromUtf8Error),
    /// A result says something that is not allowed.
    #[error("{0}")]
    Unexpected(String),
    /// A task without the members that its status requires.
    #[error("the task cannot be read: {0}")]
    Task(String),
}

impl ReadError {
    pub(super) fn result(what: &'static str) -> impl FnOnce(serde_json::Error) -> Self {
        move |error| Self::Result { what, error }
    }
}

/// The messages of a text. Servers of 2025-03-26 may put several into an array.
pub fn split_messages(text: String) -> Vec<String> {
    match crate::legacy::split_batch(text.as_bytes()) {
        Some(batch) => batch.iter().map(|raw| raw.get().to_owned()).collect(),
        None => vec![text],
    }
}

/// A message, and the id that a response has.
pub fn read_message(text: &str) -> Result<(Option<Value>, ServerMessage), ReadError> {
    /// The last three are how drafts ask.
    #[derive(Deserialize)]
    struct Message {
        id: Option<Value>,
        method: Option<String>,
        params: Option<Box<RawValue>>,
        result: Option<Box<RawValue>>,
        error: Option<RpcFailure>,
        input_requests: Option<IgnoredAny>,
        dependent_requests: Option<IgnoredAny>,
        request_state: Option<IgnoredAny>,
    }
    let start = || text.chars().take(SHOWN).collect();
    let message: Message = serde_json::from_str(text).map_err(|error| ReadError::Json {
        error,
        start: start(),
    })?;
    let is_open = message.result.is_none() && message.request_state.is_some();
    let asks = message.input_requests.is_some() || message.dependent_requests.is_some();
    if (is_open || asks) && message.method.is_none() && message.error.is_none() {
        return Err(ReadError::OtherDialect);
    }
    let Message {
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

/// The request that a legacy server cancels with `notifications/cancelled`.
pub fn cancelled_request(params: Option<&RawValue>) -> Option<Value> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Cancelled {
        request_id: Value,
    }
    let cancelled: Cancelled = serde_json::from_str(params?.get()).ok()?;
    Some(cancelled.request_id)
}
