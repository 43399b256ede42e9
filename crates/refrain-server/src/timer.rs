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
    /// Wakes the task at the first of these times.
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
            // Already due: the task checks its deadlines again.
            cx.waker().wake_by_ref();
        }
    }
}

/// The time at which a flow wants to be woken, by the clock of the runtime.
pub(crate) fn instant_of(
    at: Option<SystemTime>,
    source: &dyn Source,
    now: Instant,
) -> Option<Instant> {
    let wait = at?.duration_since(source.now()).unwrap_or_default();
    now.checked_add(wait)
}

/// The output of a future, if it is ready within this time.
pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}
