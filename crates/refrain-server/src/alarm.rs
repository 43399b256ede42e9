//! A clock for what waits for several times at once.

use refrain_core::Source;
use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::SystemTime;
use tokio::time::{Instant, Sleep};

/// Wakes whoever waits. There is nothing of it until it is set.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Has the task be woken at the first of these times.
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
            // It was due at once: look again.
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
