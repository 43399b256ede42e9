//! Retries with backoff, and timeouts.

use crate::error::{ErrorKind, format_duration};
use crate::random;
use crate::transport::{LinkError, LinkResult};
use std::fmt;
use std::pin::Pin;
use std::time::Duration;

/// The pause before the first retry. It doubles with each retry.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A longer `Retry-After` fails the request.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// A request that is about to be sent again, for [`ClientBuilder::on_retry`](crate::ClientBuilder::on_retry). Displayed
/// as a sentence with the reasons.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Retry<'a> {
    /// The method of the request.
    pub method: &'a str,
    /// The tool, prompt, resource or task of the request.
    pub target: Option<&'a str>,
    /// The number of this retry, from 1.
    pub number: u32,
    /// The maximum number of retries.
    pub limit: u32,
    /// How the last attempt failed.
    pub error: &'a ErrorKind,
    /// How long the last attempt took. A constant time may be the timeout of a proxy.
    pub elapsed: Duration,
    /// Why the retry cannot repeat an effect.
    pub safety: RetrySafety,
    /// The time until the request is sent.
    pub pause: Duration,
}

/// Why sending a request again cannot repeat an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetrySafety {
    /// The request did not reach the server.
    NotSent,
    /// The server was too busy to execute the request.
    NotExecuted,
    /// The request only reads, or repeating it has no further effect.
    Idempotent,
    /// The server recognises a repeated call by its id.
    CallId,
}

impl fmt::Display for Retry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sending {}", self.method)?;
        if let Some(target) = self.target {
            write!(f, " {target}")?;
        }
        write!(
            f,
            " again ({} of {}): {}",
            self.number, self.limit, self.error
        )?;
        if self.elapsed.as_secs() > 0 {
            write!(f, " (after {})", format_duration(self.elapsed))?;
        }
        write!(f, "; {}", self.safety)
    }
}

impl fmt::Display for RetrySafety {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotSent => "the request did not reach the server",
            Self::NotExecuted => "the server did not execute the request",
            Self::Idempotent => "the request can be repeated safely",
            Self::CallId => "the server recognises the call by its id",
        })
    }
}

pub(crate) struct RetryState {
    pub(crate) done: u32,
    pub(crate) max: u32,
}

impl RetryState {
    pub(crate) fn new(max: u32) -> Self {
        Self { done: 0, max }
    }

    /// Counts a retry and returns the pause before it, or the error after too many retries or for too long a
    /// `Retry-After`.
    pub(crate) fn next(&mut self, error: LinkError) -> LinkResult<(Duration, ErrorKind)> {
        let retry_after = match &error {
            LinkError::Busy { retry_after, .. } => *retry_after,
            _ => None,
        };
        if self.done == self.max || retry_after > Some(RETRY_AFTER_MAX) {
            return Err(error);
        }
        self.done += 1;
        tracing::debug!(retry = self.done, ?error, "retrying request");
        let pause = retry_after.unwrap_or_else(|| backoff(self.done));
        Ok((pause, error.into()))
    }
}

pub(crate) fn backoff(retry: u32) -> Duration {
    let factor = 1 << retry.saturating_sub(1).min(10);
    let pause = PAUSE_MIN.saturating_mul(factor).min(PAUSE_MAX);
    pause.mul_f64(random::in_range(0.5, 1.0))
}

/// The output of a future, or `None` after the limit.
pub(crate) async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    tokio::time::timeout(limit, future).await.ok()
}

/// Runs an operation that fails if the server is silent for too long.
pub(crate) async fn before_timeout<T>(
    silence: Duration,
    operation: impl Future<Output = LinkResult<T>>,
) -> LinkResult<T> {
    let timed_out = LinkError::Final(ErrorKind::Timeout(silence));
    within(silence, operation).await.unwrap_or(Err(timed_out))
}

/// Runs an operation that fails at the deadline of the whole call.
pub(crate) async fn before_deadline<T>(
    limit: Option<Duration>,
    // Boxed because the futures of calls are large.
    operation: Pin<Box<impl Future<Output = Result<T, ErrorKind>>>>,
) -> Result<T, ErrorKind> {
    match limit {
        None => operation.await,
        Some(limit) => {
            let exceeded = Err(ErrorKind::DeadlineExceeded(limit));
            within(limit, operation).await.unwrap_or(exceeded)
        }
    }
}
