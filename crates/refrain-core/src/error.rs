//! Errors of handlers.
//!
//! [`Error`] converts from every `std::error::Error` through `?`, as `anyhow` does; an [`AskError`] inside stays
//! recognisable.

use refrain_wire::Capability;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The result of a handler.
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

/// Why an ask has no usable answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum AskError {
    /// The user declined.
    #[error("the user declined {name:?}")]
    Declined {
        /// The name of the ask.
        name: String,
    },
    /// The user closed the question without an answer.
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
        /// The missing capability.
        capability: Capability,
    },
    /// The answers were rejected too many times.
    #[error("no usable answer to {name:?}: {reason}")]
    Invalid {
        /// The name of the ask.
        name: String,
        /// Why the last answer was rejected.
        reason: String,
    },
    /// The client could not answer. Only clients that are asked while the call runs can report this.
    #[error("the client could not answer {name:?}: {reason}")]
    Failed {
        /// The name of the ask.
        name: String,
        /// The client's reason.
        reason: String,
    },
    /// The call is over. A `Cx` is valid for its own call only.
    #[error("{name:?} cannot be asked: its call is over, and a question belongs to a call")]
    Over {
        /// The name of the ask.
        name: String,
    },
}

impl AskError {
    /// Returns the name of the ask.
    pub fn name(&self) -> &str {
        match self {
            Self::Declined { name }
            | Self::Cancelled { name }
            | Self::Unsupported { name, .. }
            | Self::Invalid { name, .. }
            | Self::Failed { name, .. }
            | Self::Over { name } => name,
        }
    }
}

/// How an [`Error`] is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The work failed: a tool returns a result marked `isError`, so that the model can read the message.
    Failed,
    /// The caller's parameters are wrong: JSON-RPC error -32602.
    InvalidParams,
    /// The server failed: JSON-RPC error -32603; the message goes to the log only.
    Internal,
    /// An ask has no usable answer.
    Ask(AskError),
    /// The work failed and may succeed later: a task retries, any other call fails as with `Failed`.
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
    stored: StoredError,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// The work failed.
    pub fn msg(message: impl fmt::Display) -> Self {
        Self::with_kind(ErrorKind::Failed, message)
    }

    /// The caller's parameters are wrong.
    pub fn invalid_params(message: impl fmt::Display) -> Self {
        Self::with_kind(ErrorKind::InvalidParams, message)
    }

    /// The server failed. The message goes to the log, not to the client.
    pub fn internal(message: impl fmt::Display) -> Self {
        Self::with_kind(ErrorKind::Internal, message)
    }

    /// The work failed for now. A task retries it later without repeating journaled work; a step that failed so is not
    /// journaled. Outside of tasks this is an ordinary error.
    pub fn retry(message: impl fmt::Display) -> Self {
        Self::with_kind(ErrorKind::Retry, message)
    }

    /// The error of a `Cx` whose call is over.
    pub(crate) fn over() -> Self {
        Self::msg("the call is over, and its Cx with it")
    }

    fn with_kind(kind: ErrorKind, message: impl fmt::Display) -> Self {
        let message = message.to_string();
        StoredError { kind, message }.into()
    }

    /// Returns the kind, which decides how this error is answered.
    pub fn kind(&self) -> &ErrorKind {
        &self.stored.kind
    }

    /// Returns the error of an ask, if this is one.
    pub fn as_ask(&self) -> Option<&AskError> {
        match &self.stored.kind {
            ErrorKind::Ask(error) => Some(error),
            _ => None,
        }
    }

    /// Returns the error this one was converted from.
    pub fn source(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        self.source.as_deref()
    }

    /// The same error, not to be retried.
    pub(crate) fn for_good(mut self) -> Self {
        if self.stored.kind == ErrorKind::Retry {
            self.stored.kind = ErrorKind::Failed;
        }
        self
    }

    /// The part of this error that the journal keeps.
    pub(crate) fn stored(&self) -> &StoredError {
        &self.stored
    }
}

/// An error in the journal.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredError {
    kind: ErrorKind,
    message: String,
}

impl From<StoredError> for Error {
    fn from(stored: StoredError) -> Self {
        let source = None;
        Self { stored, source }
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
            stored: StoredError { kind, message },
            source: Some(source),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.stored.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.stored.kind, self.stored.message)
    }
}
