//! How a call becomes a task.

use super::Cx;
use crate::flow::{Phase, SlotId, is_driving};
use crate::{Error, Result};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A call that becomes a task when this is awaited.
#[must_use = "a call becomes a task when this is awaited"]
pub struct DetachFuture<'a> {
    cx: &'a Cx,
    id: Option<SlotId>,
}

impl<'a> DetachFuture<'a> {
    pub(super) fn new(cx: &'a Cx) -> Self {
        Self { cx, id: None }
    }
}

impl Future for DetachFuture<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = &self.cx.shared;
        let outside = !is_driving(shared);
        let mut state = shared.lock();
        if !state.may_go_on() {
            drop(state);
            return match shared.is_over() {
                true => Poll::Ready(Err(Error::over())),
                false => Poll::Pending,
            };
        }
        if state.is_task() || !shared.env.can_detach {
            return Poll::Ready(Ok(()));
        }
        if let Some(reason) = state.no_task.take() {
            return Poll::Ready(Err(Error::retry(reason)));
        }
        let id = self.id.unwrap_or_else(|| state.new_slot_for_wait());
        state.park(id, Phase::Detaching, task.waker(), outside);
        drop(state);
        shared.kick();
        self.id = Some(id);
        Poll::Pending
    }
}

impl Drop for DetachFuture<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.cx.shared.close_slot(id);
        }
    }
}
