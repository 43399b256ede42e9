//! Turning a call into a task.

use super::Cx;
use crate::flow::{Phase, SlotGuard};
use crate::{Error, Result};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The future that turns a call into a task.
#[must_use = "a call becomes a task when this is awaited"]
pub struct DetachFuture<'a> {
    cx: &'a Cx,
    slot: Option<SlotGuard<'a>>,
}

impl<'a> DetachFuture<'a> {
    pub(super) fn new(cx: &'a Cx) -> Self {
        Self { cx, slot: None }
    }
}

impl Future for DetachFuture<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = &self.cx.shared;
        let poller = shared.poller(task);
        let Some(mut state) = shared.enter() else {
            return shared.stopped(Error::ended);
        };
        if state.is_task() || !shared.env.can_detach {
            return Poll::Ready(Ok(()));
        }
        if let Some(reason) = state.detach_error.take() {
            return Poll::Ready(Err(Error::retry(reason)));
        }
        let open = || shared.open_unnamed_slot(&mut state);
        let id = self.slot.get_or_insert_with(open).id;
        state.wait_in(id, Phase::Detaching, poller);
        drop(state);
        shared.wake_driver();
        Poll::Pending
    }
}
