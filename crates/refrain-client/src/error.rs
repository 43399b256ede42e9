//! [`Error`]: the error of a request or call.

use crate::auth::AuthError;
use crate::dialect::DialectError;
use crate::pending::PendingCall;
use refrain_wire::client::{ReadError, RpcFailure};
use refrain_wire::{CallKind, ParamHeaderError};
use serde_json::Value;
use std::error::Error as StdError;
use std::time::Duration;
use std::{fmt, io};

pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// The error of a request or call, with the pending call if it can be resumed.
#[derive(Debug)]
pub struct Error {
    /// The kind of failure.
    pub kind: ErrorKind,
    /// The call to resume, with its asks, answers and state.
    pub pending: Option<Box<PendingCall>>,
}

/// The kind of failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The address is invalid.
    #[error("invalid server address {address:?}: {why}")]
    InvalidAddress {
        /// The address.
        address: String,
        /// The reason.
        why: String,
    },
    /// The connection failed.
    #[error("could not connect to {address}: {}", cause(&**.source))]
    Unreachable {
        /// The address.
        address: String,
        /// The connection error.
        source: BoxError,
    },
    /// The server at an https address does not use TLS.
    #[error("could not connect to {address}: the server did not respond with TLS")]
    NotTls {
        /// The address.
        address: String,
    },
    /// The server at an http address does not respond with HTTP. It may use TLS.
    #[error("{address} does not respond with HTTP")]
    NotHttp {
        /// The address.
        address: String,
    },
    /// The server process could not be started.
    #[error("could not start {command}: {source}")]
    Spawn {
        /// The program.
        command: String,
        /// The system error.
        source: io::Error,
    },
    /// The server process exited.
    #[error("{program} exited before it responded ({status}){}", after_colon(.stderr))]
    Exited {
        /// The program.
        program: String,
        /// The exit status.
        status: String,
        /// The end of its standard error.
        stderr: String,
    },
    /// The server at the address is not an MCP server.
    #[error("{address} does not respond as an MCP server: {why}")]
    NotMcp {
        /// The URL, or the program of a server process.
        address: String,
        /// The reason.
        why: String,
    },
    /// The client and the server support no common protocol revision.
    #[error("no common protocol revision: the server answered with {}", .supported.join(", "))]
    NoCommonVersion {
        /// The revisions of the server.
        supported: Vec<String>,
    },
    /// The response is invalid.
    #[error("invalid response from the server: {0}")]
    InvalidResponse(#[source] ReadError),
    /// The call completed, but its result is invalid. [`Client::call`](crate::Client::call) returns results unchecked.
    #[error("the call completed, but its result is invalid: {why}")]
    InvalidResult {
        /// The reason.
        why: String,
        /// The result.
        result: Value,
    },
    /// The type of the result is unknown.
    #[error("unknown result type {0:?}; a newer client may support it")]
    UnknownResultType(String),
    /// A message, a request state, a response or a list is too large.
    #[error("the server sent a {what} with more than {limit} {unit}, the limit set by `{setting}`")]
    TooLarge {
        /// The kind of data, such as `message`, `response` or `list`.
        what: &'static str,
        /// The limit.
        limit: usize,
        /// The unit of the limit, such as `bytes` or `JSON values`.
        unit: &'static str,
        /// The setting of the limit, such as `ClientLimits::message`.
        setting: &'static str,
    },
    /// One round, or a task, has too many asks.
    #[error("the server sent {asks} asks; the limit is {limit}, set by `ClientLimits::asks`")]
    TooManyAsks {
        /// The number of asks.
        asks: usize,
        /// The limit.
        limit: usize,
    },
    /// The connection was lost before the response.
    #[error("connection closed before the response: {}", cause(&**.0))]
    ConnectionLost(#[source] BoxError),
    /// The server was silent for too long.
    #[error("no response within {}; the server may be busy", format_duration(*.0))]
    Timeout(Duration),
    /// The server responded with a JSON-RPC error.
    #[error("the server returned an error: {0}")]
    Rpc(RpcFailure),
    /// The server responded with an HTTP error without an MCP message.
    #[error("the server responded with HTTP status {status}{}", after_colon(.body))]
    HttpStatus {
        /// The status.
        status: u16,
        /// The start of the body.
        body: String,
    },
    /// Authorization failed.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The call took too many rounds.
    #[error("call not complete after {0} {rounds}", rounds = if *.0 == 1 { "round" } else { "rounds" })]
    TooManyRounds(u32),
    /// The deadline of the whole call has passed. The call can be resumed with a later deadline.
    #[error("call exceeded its deadline of {}", format_duration(*.0))]
    DeadlineExceeded(Duration),
    /// The caller stopped the call.
    #[error("call stopped before it completed")]
    Stopped,
    /// Some asks have no answer.
    #[error("unanswered asks: {}", join_asks(.0))]
    Unanswered(Vec<UnansweredAsk>),
    /// The task was cancelled.
    #[error("the task was cancelled{}", after_colon(.0))]
    TaskCancelled(String),
    /// The definition of a tool is invalid, so it must not be called.
    #[error("invalid definition of tool {name:?}: {source}")]
    InvalidTool {
        /// The tool.
        name: String,
        /// The reason.
        source: ParamHeaderError,
    },
    /// An argument is invalid.
    #[error("{0}")]
    InvalidArgument(String),
    /// The configured dialect has no such request, or the server does not support the dialect.
    #[error(transparent)]
    Dialect(#[from] DialectError),
    /// This client cannot resume the pending call.
    #[error("cannot resume this call: {0}")]
    CannotResume(String),
}

/// An ask without an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnansweredAsk {
    /// The key of the ask.
    pub key: String,
    /// Why there is no answer.
    pub why: String,
}

impl Error {
    /// Whether the tool may have run: the request was sent, and its response did not arrive. Resuming the call may run the
    /// tool once more if [`Client::can_execute_twice`](crate::Client::can_execute_twice).
    pub fn is_outcome_unknown(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| {
            pending.call().kind() == CallKind::Tool && pending.is_delivery_unknown()
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)?;
        match self.is_outcome_unknown() {
            true => f.write_str("; the outcome is unknown: the tool may have run"),
            false => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        StdError::source(&self.kind)
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self {
            kind,
            pending: None,
        }
    }
}

impl From<AuthError> for Error {
    fn from(error: AuthError) -> Self {
        ErrorKind::from(error).into()
    }
}

impl From<ReadError> for ErrorKind {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::ResultType(name) => Self::UnknownResultType(name),
            error => Self::InvalidResponse(error),
        }
    }
}

impl ErrorKind {
    pub(crate) fn too_large(
        what: &'static str,
        limit: usize,
        unit: &'static str,
        setting: &'static str,
    ) -> Self {
        Self::TooLarge {
            what,
            limit,
            unit,
            setting,
        }
    }

    pub(crate) fn with_pending(self, pending: PendingCall) -> Error {
        Error {
            kind: self,
            pending: Some(Box::new(pending)),
        }
    }
}

/// The innermost source of an error. The outer errors only repeat the URL.
pub(crate) fn cause<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause
}

/// The maximum number of characters of a response that an error quotes.
pub(crate) const QUOTE_MAX: usize = 80;

pub(crate) fn after_colon(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() {
        String::new()
    } else {
        format!(": {text}")
    }
}

pub(crate) fn format_duration(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds => format!("{seconds} s"),
    }
}

fn join_asks(unanswered: &[UnansweredAsk]) -> String {
    let each: Vec<_> = unanswered
        .iter()
        .map(|ask| format!("{}: {}", ask.key, ask.why))
        .collect();
    each.join("; ")
}
