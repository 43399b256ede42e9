//! Retries with backoff.

use std::time::Duration;

/// The waits between retries: each twice as long as the one before, up to a maximum.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    most: Duration,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, most: Duration) -> Self {
        Self { next: first, most }
    }

    /// Waits before the next retry.
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(self.most);
    }
}
