//! The error of a call.

use crate::auth::AuthError;
use crate::dialect::DialectError;
use crate::pending::PendingCall;
use refrain_wire::ParamHeaderError;
use refrain_wire::client::{ReadError, RpcFailure};
use serde_json::Value;
use std::error::Error as StdError;
use std::time::Duration;
use std::{fmt, io};

type BoxError = Box<dyn StdError + Send + Sync>;

/// The error of a call, and the call itself where it can be taken up again.
#[derive(Debug)]
pub struct Error {
    /// The kind of the error.
    pub kind: ErrorKind,
    /// The call, with its asks, its answers and its state.
    pub pending: Option<Box<PendingCall>>,
}

/// The kind of an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The address is invalid.
    #[error("invalid server address {address:?}: {why}")]
    Address {
        /// The address.
        address: String,
        /// The reason.
        why: String,
    },
    /// The server cannot be reached.
    #[error("{address} cannot be reached: {}; is the server running?", cause(&**.source))]
    Unreachable {
        /// The address.
        address: String,
        /// The error of the connection.
        source: BoxError,
    },
    /// The command could not be started.
    #[error("{command} could not be started: {source}")]
    Spawn {
        /// The program.
        command: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The server's process ended.
    #[error("the server has ended ({status}){}", said(.stderr))]
    Exited {
        /// The exit status.
        status: String,
        /// The end of its standard error.
        stderr: String,
    },
    /// The address is not that of an MCP server.
    #[error("{address} does not answer as an MCP server: {why}; is the path right?")]
    NotMcp {
        /// The address.
        address: String,
        /// The reason.
        why: String,
    },
    /// There is no common revision.
    #[error("no common revision: the server speaks {}", .supported.join(", "))]
    NoCommonVersion {
        /// The revisions of the server.
        supported: Vec<String>,
    },
    /// The server speaks the HTTP+SSE transport of 2024-11-05.
    #[error(
        "the server speaks the HTTP+SSE transport of 2024-11-05, which this client does not; \
         many of them also speak Streamable HTTP at another path, such as /mcp"
    )]
    FirstTransport,
    /// The response is invalid.
    #[error("the server's answer cannot be read: {0}; its maker should know")]
    BadAnswer(#[source] ReadError),
    /// The call is done, but its result is invalid.
    #[error(
        "the call is done, but its result is not as it should be: {why}; it is in the error, and `Client::call` gives it as it is"
    )]
    BadResult {
        /// The reason.
        why: String,
        /// The result.
        result: Value,
    },
    /// The result type is unknown.
    #[error(
        "the server answered with a result of the unknown type {0:?}; a newer client may know it"
    )]
    UnknownResultType(String),
    /// The response is too large.
    #[error("the server's answer is larger than {limit} bytes, the limit for {what}; ask for less")]
    TooLarge {
        /// The limited part.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// One round has too many asks.
    #[error("the server asks {asks} things at once, and {limit} is the limit")]
    TooManyAsks {
        /// The number of asks.
        asks: usize,
        /// The limit.
        limit: usize,
    },
    /// The connection broke before the response.
    #[error(
        "the connection broke before the answer was there: {}; the call can be taken up again",
        cause(&**.0)
    )]
    Broken(#[source] BoxError),
    /// The server was silent for too long.
    #[error("no answer within {}; the server may be busy, and the call can be taken up again", shown(*.0))]
    Late(Duration),
    /// The server responded with an error.
    #[error("the server refused: {0}")]
    Refused(RpcFailure),
    /// An HTTP error without an MCP message.
    #[error("the server answered with HTTP status {status}{}", said(.body))]
    Status {
        /// The status.
        status: u16,
        /// The start of the body.
        body: String,
    },
    /// The authorization failed.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The call took too many rounds.
    #[error("not done after {0} rounds; the server may be asking without end")]
    Rounds(u32),
    /// The deadline of the whole call has passed.
    #[error("not done within {}, the time for the whole call; it can be taken up again, with more time", shown(*.0))]
    Deadline(Duration),
    /// The caller stopped the call.
    #[error("stopped before it was done")]
    Stopped,
    /// Asks have no answer.
    #[error("asks without an answer: {}", listed(.0))]
    Unanswered(Vec<Unanswered>),
    /// The task was cancelled.
    #[error("the task was cancelled{}", said(.0))]
    TaskCancelled(String),
    /// The definition of the tool violates the protocol, so it must not be used.
    #[error("the tool {name:?} must not be used: {why}")]
    BadTool {
        /// The tool.
        name: String,
        /// The violation.
        why: ParamHeaderError,
    },
    /// An argument is invalid.
    #[error("{0}")]
    BadArgument(String),
    /// The configured dialect cannot express a request, or the server does not speak it.
    #[error(transparent)]
    Dialect(#[from] DialectError),
    /// This client cannot take up the pending call.
    #[error("this pending call cannot be taken up here: {0}")]
    BadPending(String),
}

/// An ask without an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered {
    /// The key of the ask.
    pub key: String,
    /// Why there is no answer.
    pub why: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
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
            error => Self::BadAnswer(error),
        }
    }
}

impl ErrorKind {
    pub(crate) fn of(self, pending: &PendingCall) -> Error {
        Error {
            kind: self,
            pending: Some(Box::new(pending.clone())),
        }
    }
}

/// The innermost source of an error. The outer ones repeat the URL.
pub(crate) fn cause<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause
}

fn said(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() {
        String::new()
    } else {
        format!(": {text}")
    }
}

fn shown(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds => format!("{seconds} s"),
    }
}

fn listed(unanswered: &[Unanswered]) -> String {
    let each: Vec<_> = unanswered
        .iter()
        .map(|ask| format!("{}: {}", ask.key, ask.why))
        .collect();
    each.join("; ")
}
