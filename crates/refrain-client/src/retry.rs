//! Retries with backoff, and timeouts.

use crate::error::ErrorKind;
use crate::random;
use crate::transport::{LinkError, LinkResult};
use std::pin::Pin;
use std::time::Duration;

/// The pause before the first retry. It doubles with each retry.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A longer `Retry-After` fails the request.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

pub(crate) struct RetryState {
    done: u32,
    max: u32,
}

impl RetryState {
    pub(crate) fn new(max: u32) -> Self {
        Self { done: 0, max }
    }

    /// Waits before the next attempt. Returns the error after too many retries or for too long a `Retry-After`.
    pub(crate) async fn wait(&mut self, error: LinkError) -> LinkResult<()> {
        let retry_after = match &error {
            LinkError::Busy { retry_after, .. } => *retry_after,
            _ => None,
        };
        if self.done == self.max || retry_after > Some(RETRY_AFTER_MAX) {
            return Err(error);
        }
        self.done += 1;
        tracing::debug!(retry = self.done, ?error, "retrying request");
        tokio::time::sleep(retry_after.unwrap_or_else(|| backoff(self.done))).await;
        Ok(())
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
    let late = LinkError::Final(ErrorKind::Timeout(silence));
    within(silence, operation).await.unwrap_or(Err(late))
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
            let late = Err(ErrorKind::DeadlineExceeded(limit));
            within(limit, operation).await.unwrap_or(late)
        }
    }
}
