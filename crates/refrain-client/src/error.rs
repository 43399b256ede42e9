//! Why a call has no result.

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

/// Why a call has no result, and the call itself where it can be taken up again.
#[derive(Debug)]
pub struct Error {
    /// What happened.
    pub kind: ErrorKind,
    /// The call as it stands: what was asked, what was answered, and the state to send back.
    pub pending: Option<Box<PendingCall>>,
}

/// What happened to a call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The address names no server that can be reached.
    #[error("{address:?} is no address of a server: {why}")]
    Address {
        /// The address as it was given.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// Nobody answers there.
    #[error("{address} cannot be reached: {}; is the server running?", cause(&**.source))]
    Unreachable {
        /// Where.
        address: String,
        /// What the system says.
        source: BoxError,
    },
    /// The command could not be started.
    #[error("{command} could not be started: {source}")]
    Spawn {
        /// The program.
        command: String,
        /// What the system says.
        source: io::Error,
    },
    /// The server's process ended.
    #[error("the server has ended ({status}){}", said(.stderr))]
    Exited {
        /// How it ended.
        status: String,
        /// The end of what it wrote to its standard error.
        stderr: String,
    },
    /// Something answers there, but not as an MCP server does.
    #[error("{address} does not answer as an MCP server: {why}; is the path right?")]
    NotMcp {
        /// Where.
        address: String,
        /// What it did.
        why: String,
    },
    /// The server speaks none of the revisions that this client speaks.
    #[error("the server speaks {}, and this client none of them", .supported.join(", "))]
    NoCommonVersion {
        /// What the server speaks.
        supported: Vec<String>,
    },
    /// The server speaks a transport that was given up long ago.
    #[error(
        "the server speaks the HTTP+SSE transport of 2024-11-05, which this client does not; \
         many of them also speak Streamable HTTP at another path, such as /mcp"
    )]
    FirstTransport,
    /// What the server sent cannot be read.
    #[error("the server's answer cannot be read: {0}; its maker should know")]
    BadAnswer(#[source] ReadError),
    /// The call is done, but its result is not of the form that was expected.
    #[error(
        "the call is done, but its result is not as it should be: {why}; it is in the error, and `Client::call` gives it as it is"
    )]
    BadResult {
        /// What is wrong with it.
        why: String,
        /// The result as it came.
        result: Value,
    },
    /// The result is of a type this client does not know.
    #[error(
        "the server answered with a result of the unknown type {0:?}; a newer client may know it"
    )]
    UnknownResultType(String),
    /// The answer is larger than it may be.
    #[error("the server's answer is larger than {limit} bytes, the limit for {what}; ask for less")]
    TooLarge {
        /// What is limited.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// One round asks more than it may.
    #[error("the server asks {asks} things at once, and {limit} is the limit")]
    TooManyAsks {
        /// How many it asks.
        asks: usize,
        /// The limit.
        limit: usize,
    },
    /// The connection broke before the answer was there.
    #[error(
        "the connection broke before the answer was there: {}; the call can be taken up again",
        cause(&**.0)
    )]
    Broken(#[source] BoxError),
    /// There was no answer in time.
    #[error("no answer within {}; the server may be busy, and the call can be taken up again", shown(*.0))]
    Late(Duration),
    /// The server answered with an error.
    #[error("the server refused: {0}")]
    Refused(RpcFailure),
    /// An HTTP status that says nothing about MCP.
    #[error("the server answered with HTTP status {status}{}", said(.body))]
    Status {
        /// The status.
        status: u16,
        /// The start of the body.
        body: String,
    },
    /// The server wants to know who is calling, and did not find out.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The call was not done after so many rounds.
    #[error("not done after {0} rounds; the server may be asking without end")]
    Rounds(u32),
    /// The time for the whole call is over.
    #[error("not done within {}, the time for the whole call; it can be taken up again, with more time", shown(*.0))]
    Deadline(Duration),
    /// Whoever waited for the call wanted to wait no longer.
    #[error("stopped before it was done")]
    Stopped,
    /// Something that was asked could not be answered.
    #[error("not everything that was asked could be answered: {}", listed(.0))]
    Unanswered(Vec<Unanswered>),
    /// The task was called off.
    #[error("the task was cancelled{}", said(.0))]
    TaskCancelled(String),
    /// The server lists this tool with annotations that the protocol forbids, so it must not be used.
    #[error("the tool {name:?} must not be used: {why}")]
    BadTool {
        /// The tool.
        name: String,
        /// What is wrong with it.
        why: ParamHeaderError,
    },
    /// An argument that has to go into a header cannot.
    #[error("{0}")]
    BadArgument(String),
    /// The chosen dialect cannot express a request, or the server does not speak it.
    #[error(transparent)]
    Dialect(#[from] DialectError),
    /// A pending call that this client cannot take up.
    #[error("this pending call cannot be taken up here: {0}")]
    BadPending(String),
}

/// Something that was asked and has no answer.
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
    /// The error of a call that can be taken up again.
    pub(crate) fn of(self, pending: &PendingCall) -> Error {
        Error {
            kind: self,
            pending: Some(Box::new(pending.clone())),
        }
    }
}

/// The innermost source of an error. What is around it repeats the URL.
pub(crate) fn cause<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause
}

/// What somebody said, to be put behind what happened.
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
