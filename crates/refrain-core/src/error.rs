//! Errors of handlers.
//!
//! [`Error`] converts from every `std::error::Error` through `?`, as `anyhow` does, and keeps an [`AskError`] recognisable.
//! Since `Error` has this blanket conversion, it cannot convert from types such as `anyhow::Error`; use `Error::boxed`.

use refrain_wire::Capability;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::time::Duration;

/// The result of a handler.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// `Ok(value)` with Refrain's error type, for async blocks whose error type cannot be inferred.
///
/// ```
/// use refrain::prelude::*;
///
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
    /// The user closed the form or the URL request without an answer.
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
    /// Too many answers were rejected.
    #[error("no usable answer to {name:?}: {reason}")]
    Invalid {
        /// The name of the ask.
        name: String,
        /// Why the last answer was rejected.
        reason: String,
    },
    /// The client could not answer. Only clients that answer while the call runs can report this.
    #[error("the client could not answer {name:?}: {reason}")]
    Failed {
        /// The name of the ask.
        name: String,
        /// The client's reason.
        reason: String,
    },
    /// The call has ended. A `Cx` can be used only during its call.
    #[error("cannot ask {name:?}: its call has ended")]
    #[serde(rename = "Over")]
    Ended {
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
            | Self::Ended { name } => name,
        }
    }
}

/// The kind of an [`Error`], which decides the response to the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The work failed: the result of a tool has `isError` and the message, which the model reads.
    Failed,
    /// The caller's parameters are invalid: JSON-RPC error -32602.
    InvalidParams,
    /// The server failed: JSON-RPC error -32603. The message is only logged.
    Internal,
    /// An ask has no usable answer.
    Ask(AskError),
    /// The work failed and may succeed later: a task retries; any other call fails as with `Failed`.
    Retry,
    /// Another server failed: the call fails with this JSON-RPC error.
    Rpc {
        /// The error code.
        code: i64,
        /// Machine-readable details, or null.
        data: Value,
    },
    /// A resource that the work needs is in use: HTTP 503 if possible, else JSON-RPC error -32603.
    Busy {
        /// When the caller should repeat the request.
        retry_after: Duration,
    },
}

/// The error of a handler. Any `std::error::Error` converts into it through `?`.
///
/// ```
/// use refrain::prelude::*;
///
/// fn parse(text: &str) -> Result<u32> {
///     if text.is_empty() {
///         return Err(Error::msg("the text is empty"));
///     }
///     Ok(text.parse()?)
/// }
/// assert_eq!(parse("").unwrap_err().to_string(), "the text is empty");
/// assert!(parse("x").is_err());
/// ```
pub struct Error {
    stored: StoredError,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// Makes an error of work that failed. The client, and in a tool the model, reads the message.
    pub fn msg(message: impl fmt::Display) -> Self {
        Self::with_kind(ErrorKind::Failed, message)
    }

    /// Converts an error that `?` does not convert, because it does not implement `std::error::Error`: an `anyhow::Error`, or a
    /// `Box<dyn Error + Send + Sync>`. The message is its text, and the error is the [source](Self::source). An [`AskError`] in
    /// it stays recognisable.
    ///
    /// ```
    /// use refrain::prelude::*;
    ///
    /// type Boxed = Box<dyn std::error::Error + Send + Sync>;
    ///
    /// fn read_stock() -> Result<u32, Boxed> {
    ///     Err("the warehouse is closed".into())
    /// }
    ///
    /// async fn stock(cx: Cx) -> Result<String> {
    ///     let count = cx.step("stock", async { read_stock().map_err(Error::boxed) }).await?;
    ///     Ok(format!("{count} left"))
    /// }
    /// assert_eq!(Error::boxed(read_stock().unwrap_err()).to_string(), "the warehouse is closed");
    /// ```
    pub fn boxed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let source = error.into();
        let message = source.to_string();
        let kind = source
            .downcast_ref::<AskError>()
            .map_or(ErrorKind::Failed, |ask| ErrorKind::Ask(ask.clone()));
        Self {
            stored: StoredError { kind, message },
            source: Some(source),
        }
    }

    /// Makes an error for invalid parameters of the caller.
    pub fn invalid_params(message: impl fmt::Display) -> Self {
        Self::with_kind(ErrorKind::InvalidParams, message)
    }

    /// Makes an error of the server. The message is logged and not sent to the client.
    pub fn internal(message: impl fmt::Display) -> Self {
        Self::with_kind(ErrorKind::Internal, message)
    }

    /// Makes an error of work that may succeed later. A task retries it and does not repeat journaled work; a step that
    /// fails with it is not journaled. In other calls it is an ordinary error.
    pub fn retry(message: impl fmt::Display) -> Self {
        Self::with_kind(ErrorKind::Retry, message)
    }

    /// Makes a JSON-RPC error, usually one that another server sent. The client gets this code, message and data, also from a
    /// tool; in a task they are the task's `error`. Null data is left out.
    ///
    /// The codes -32020, -32021 and -32022 describe a problem between a client and its own server, and are sent as -32603 with
    /// the same message and data. So are codes that do not fit in 32 bits.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// use refrain::runtime::core::ErrorKind;
    /// use serde_json::json;
    ///
    /// let error = Error::rpc(-32042, "open a URL first", json!({"url": "https://example.com"}));
    /// assert!(matches!(error.kind(), ErrorKind::Rpc { code: -32042, .. }));
    /// ```
    pub fn rpc(code: i64, message: impl fmt::Display, data: Value) -> Self {
        Self::with_kind(ErrorKind::Rpc { code, data }, message)
    }

    /// Makes an error of work that could not start because a resource is in use, such as a connection of a full pool. Return it
    /// before the call has effects: the response asks the caller to repeat its request, which then runs again.
    ///
    /// The response is HTTP 503 with `Retry-After`, and JSON-RPC error -32603 with the message, as if a limit of the server was
    /// reached. It is not recorded as the call's reply. On stdio, in a stream that has begun, and
    /// in a later round of a live call (which then has ended), the JSON-RPC error alone is the
    /// response. A task fails with it.
    ///
    /// In [`Cx::once`](crate::Cx::once) it is an ordinary error, since such work does not run again.
    ///
    /// ```
    /// use refrain::prelude::*;
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use tokio::sync::Semaphore;
    ///
    /// async fn render(_: Cx, printers: State<Arc<Semaphore>>) -> Result<String> {
    ///     let _printer = printers
    ///         .try_acquire()
    ///         .map_err(|_| Error::busy("all printers are in use", Duration::from_secs(5)))?;
    ///     Ok("printed".into())
    /// }
    /// let tool = Tool::new("render", render);
    /// ```
    pub fn busy(message: impl fmt::Display, retry_after: Duration) -> Self {
        Self::with_kind(ErrorKind::Busy { retry_after }, message)
    }

    /// The error of a `Cx` whose call has ended.
    pub(crate) fn ended() -> Self {
        Self::msg("the call has ended, and its Cx can no longer be used")
    }

    fn with_kind(kind: ErrorKind, message: impl fmt::Display) -> Self {
        let message = message.to_string();
        StoredError { kind, message }.into()
    }

    /// Returns the kind, which decides the response to the client.
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

    /// The same error, which neither a task nor the client retries.
    pub(crate) fn without_retry(mut self) -> Self {
        if let ErrorKind::Retry | ErrorKind::Busy { .. } = self.stored.kind {
            self.stored.kind = ErrorKind::Failed;
        }
        self
    }

    /// The part of this error that is journaled.
    pub(crate) fn stored(&self) -> &StoredError {
        &self.stored
    }
}

/// A journaled error.
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
        Self::boxed(error)
    }
}

/// The error of a step's work: [`Error`], or any type that converts into it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not convert into `refrain::Error`",
    label = "the work of a step returns this error",
    note = "a step's error is `refrain::Error`, or a `std::error::Error + Send + Sync + 'static`",
    note = "convert an `anyhow::Error` or a `Box<dyn Error + Send + Sync>` in the work: `.map_err(Error::boxed)`",
    note = "convert another type that has a text: `.map_err(Error::msg)`"
)]
pub trait IntoError {
    /// Converts the error.
    fn into_error(self) -> Error;
}

#[diagnostic::do_not_recommend]
impl<E: Into<Error>> IntoError for E {
    fn into_error(self) -> Error {
        self.into()
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
