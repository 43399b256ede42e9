//! Retries with backoff, and timeouts.

use crate::error::ErrorKind;
use crate::random;
use crate::transport::LinkError;
use std::pin::Pin;
use std::time::Duration;

/// The pause before the first retry; each further one takes twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause before a retry.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The longest `Retry-After` that is waited for.
pub(crate) const LONGEST_WISH: Duration = Duration::from_secs(60);

/// The retries of one message.
#[derive(Debug)]
pub(crate) struct Retry {
    done: u32,
    most: u32,
}

impl Retry {
    pub(crate) fn new(most: u32) -> Self {
        Self { done: 0, most }
    }

    /// Waits before the next attempt. Returns the error if there were too many, or the server wants to be left alone for
    /// too long.
    pub(crate) async fn wait(&mut self, error: LinkError) -> Result<(), LinkError> {
        let wish = match &error {
            LinkError::Busy { retry_after, .. } => *retry_after,
            _ => None,
        };
        if self.done == self.most || wish > Some(LONGEST_WISH) {
            return Err(error);
        }
        self.done += 1;
        tracing::debug!(retry = self.done, ?error, "retrying");
        tokio::time::sleep(wish.unwrap_or_else(|| backoff(self.done))).await;
        Ok(())
    }
}

/// The pause before a retry: longer each time, and random, so that clients do not retry together.
pub(crate) fn backoff(retry: u32) -> Duration {
    let whole = FIRST_PAUSE
        .saturating_mul(1 << retry.saturating_sub(1).min(10))
        .min(LONGEST_PAUSE);
    whole.mul_f64(random::between(0.5, 1.0))
}

/// Waits for an operation for as long as the server may be silent.
pub(crate) async fn in_time<T>(
    silence: Duration,
    operation: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    let late = LinkError::Final(ErrorKind::Late(silence));
    tokio::time::timeout(silence, operation)
        .await
        .unwrap_or(Err(late))
}

/// Waits for an operation until the deadline of the whole call, if there is one.
pub(crate) async fn by_deadline<T>(
    limit: Option<Duration>,
    // The futures of calls are large, and this one would hold it several times.
    operation: Pin<Box<impl Future<Output = Result<T, ErrorKind>>>>,
) -> Result<T, ErrorKind> {
    match limit {
        None => operation.await,
        Some(limit) => tokio::time::timeout(limit, operation)
            .await
            .unwrap_or(Err(ErrorKind::Deadline(limit))),
    }
}
