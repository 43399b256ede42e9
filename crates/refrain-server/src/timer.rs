//! Timers and timeouts.

use refrain_core::Source;
use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, Sleep};

/// A lazily created timer.
#[derive(Debug, Default)]
pub(crate) struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Wakes the current Tokio task at the earliest of these times.
    pub(crate) fn set<const N: usize>(
        &mut self,
        times: [Option<Instant>; N],
        cx: &mut Context<'_>,
    ) {
        let Some(first) = times.into_iter().flatten().min() else {
            return;
        };
        let sleep = self
            .0
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(first)));
        if sleep.deadline() != first {
            sleep.as_mut().reset(first);
        }
        if sleep.as_mut().poll(cx).is_ready() {
            // Already due: poll again to check the deadlines.
            cx.waker().wake_by_ref();
        }
    }
}

/// Converts a wake-up time of a flow to the runtime's clock.
pub(crate) fn instant_of(
    at: Option<SystemTime>,
    source: &dyn Source,
    now: Instant,
) -> Option<Instant> {
    let wait = at?.duration_since(source.now()).unwrap_or_default();
    now.checked_add(wait)
}

/// The output of a future, or `None` if it takes longer than `limit`.
pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}
