//! What a handler can fail with.
//!
//! [`Error`] takes every `std::error::Error` through `?`, as `anyhow` does, and keeps what Refrain needs to know
//! to answer: an [`AskError`] inside stays recognisable.

use refrain_wire::Capability;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a handler returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// `Ok(value)` with Refrain's error type, for async blocks whose error type cannot be inferred.
///
/// ```
/// # use refrain_core::ok;
/// let work = async { ok(5) };
/// # drop(work);
/// ```
pub fn ok<T>(value: T) -> Result<T> {
    Ok(value)
}

/// Why an ask has no answer a handler can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum AskError {
    /// The user said no.
    #[error("the user declined {name:?}")]
    Declined {
        /// The name of the ask.
        name: String,
    },
    /// The user closed the question without answering it.
    #[error("the user cancelled {name:?}")]
    Cancelled {
        /// The name of the ask.
        name: String,
    },
    /// The client did not declare that it can answer this kind of ask.
    #[error("{name:?} needs a client that supports {capability}")]
    Unsupported {
        /// The name of the ask.
        name: String,
        /// What the client would have to support: `elicitation`, `elicitation.url`, `sampling`, `sampling.tools` or
        /// `roots`.
        capability: Capability,
    },
    /// The answers given did not fit, several times over.
    #[error("no usable answer to {name:?}: {reason}")]
    Invalid {
        /// The name of the ask.
        name: String,
        /// What was wrong with the last answer.
        reason: String,
    },
    /// The client said that it cannot answer, and why. Only clients that are asked while the call runs can say so.
    #[error("the client could not answer {name:?}: {reason}")]
    Failed {
        /// The name of the ask.
        name: String,
        /// What the client said.
        reason: String,
    },
    /// The call that asks is over: nobody is there to answer. A `Cx` is good for its own call only.
    #[error("{name:?} cannot be asked: its call is over, and a question belongs to a call")]
    Over {
        /// The name of the ask.
        name: String,
    },
}

/// How an [`Error`] is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The work failed: a tool answers with a result marked `isError`, so that the model can read why.
    Failed,
    /// The caller's parameters are wrong: JSON-RPC error -32602.
    InvalidParams,
    /// The fault is the server's own: JSON-RPC error -32603, and the message stays in the log.
    Internal,
    /// An ask has no usable answer.
    Ask(AskError),
    /// The work failed, and may well succeed later: a task tries again, everyone else is answered as by `Failed`.
    Retry,
}

/// An error a handler returns. Any `std::error::Error` becomes one through `?`.
///
/// ```
/// # use refrain_core::{Error, ErrorKind, Result};
/// fn parse(text: &str) -> Result<u32> {
///     if text.is_empty() {
///         return Err(Error::msg("the text is empty"));
///     }
///     Ok(text.parse()?)
/// }
/// assert_eq!(parse("").unwrap_err().to_string(), "the text is empty");
/// assert!(matches!(parse("x").unwrap_err().kind(), ErrorKind::Failed));
/// ```
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// The work failed, for the reason given.
    pub fn msg(message: impl fmt::Display) -> Self {
        Self::with_kind(ErrorKind::Failed, message)
    }

    /// The caller's parameters are wrong, for the reason given.
    pub fn invalid_params(message: impl fmt::Display) -> Self {
        Self::with_kind(ErrorKind::InvalidParams, message)
    }

    /// The fault is the server's own. The client is told only that; the message goes to the log.
    pub fn internal(message: impl fmt::Display) -> Self {
        Self::with_kind(ErrorKind::Internal, message)
    }

    /// The work failed for now. In a task it is tried again after a while: what is in the journal is not repeated, and a
    /// step that failed so is not journaled. Elsewhere this is an error like any other.
    pub fn retry(message: impl fmt::Display) -> Self {
        Self::with_kind(ErrorKind::Retry, message)
    }

    /// What a `Cx` says whose call is over.
    pub(crate) fn over() -> Self {
        Self::msg("the call is over, and its Cx with it")
    }

    pub(crate) fn with_kind(kind: ErrorKind, message: impl fmt::Display) -> Self {
        Self {
            kind,
            message: message.to_string(),
            source: None,
        }
    }

    /// How this error is answered.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Why an ask had no usable answer, if that is what went wrong.
    pub fn as_ask(&self) -> Option<&AskError> {
        match &self.kind {
            ErrorKind::Ask(error) => Some(error),
            _ => None,
        }
    }

    /// The error this one was made from.
    pub fn source(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        self.source.as_deref()
    }

    /// The same error, where there is no second attempt.
    pub(crate) fn for_good(mut self) -> Self {
        if self.kind == ErrorKind::Retry {
            self.kind = ErrorKind::Failed;
        }
        self
    }

    /// What of this error is kept in a journal.
    pub(crate) fn to_stored(&self) -> StoredError {
        StoredError {
            kind: self.kind.clone(),
            message: self.message.clone(),
        }
    }
}

/// An error as a journal keeps it.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredError {
    kind: ErrorKind,
    message: String,
}

impl From<StoredError> for Error {
    fn from(stored: StoredError) -> Self {
        Self {
            kind: stored.kind,
            message: stored.message,
            source: None,
        }
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Error {
    fn from(error: E) -> Self {
        let message = error.to_string();
        let source: Box<dyn std::error::Error + Send + Sync> = Box::new(error);
        let kind = source
            .downcast_ref::<AskError>()
            .map_or(ErrorKind::Failed, |ask| ErrorKind::Ask(ask.clone()));
        Self {
            kind,
            message,
            source: Some(source),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}
