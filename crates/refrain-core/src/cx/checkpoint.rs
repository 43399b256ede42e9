//! Checkpoints, and the end of a call.

use super::Cx;
use crate::flow::{Phase, SlotId, in_step, is_driving};
use crate::journal::Saved;
use crate::{Error, Result};
use std::borrow::Cow;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A checkpoint being kept. It lets other work of the thread run once.
#[must_use = "a checkpoint is kept when it is awaited"]
pub struct CheckpointFuture<'a> {
    cx: &'a Cx,
    id: Option<SlotId>,
    name: Cow<'static, str>,
    json: Option<serde_json::Result<String>>,
}

impl<'a> CheckpointFuture<'a> {
    #[track_caller]
    pub(super) fn new(
        cx: &'a Cx,
        name: Cow<'static, str>,
        json: serde_json::Result<String>,
    ) -> Self {
        if in_step(&cx.shared) {
            cx.shared.fault(
                format!("checkpoint {name:?} was made inside a step; a step is run as a whole"),
                Some(Location::caller()),
            );
        }
        Self {
            cx,
            id: None,
            name,
            json: Some(json),
        }
    }
}

impl Future for CheckpointFuture<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let shared = &this.cx.shared;
        let outside = !is_driving(shared);
        let mut state = shared.lock();
        if !state.may_go_on() {
            drop(state);
            return match shared.is_over() {
                true => Poll::Ready(Err(Error::over())),
                false => Poll::Pending,
            };
        }
        if let Some(id) = this.id {
            if state
                .slot(id)
                .is_some_and(|slot| matches!(slot.phase, Phase::Idle))
            {
                // It is written.
                return Poll::Ready(Ok(()));
            }
            // Parked to be handed on or to be written: the driver is about to do it.
            return Poll::Pending;
        }
        let Some(json) = this.json.take() else {
            return Poll::Ready(Ok(()));
        };
        let json = match json {
            Ok(json) => json.into_boxed_str(),
            Err(error) => {
                return Poll::Ready(Err(Error::internal(format!(
                    "the state of checkpoint {:?} cannot be journaled: {error}",
                    this.name
                ))));
            }
        };
        let scope = &this.cx.scope;
        let known = state
            .saved
            .iter_mut()
            .find(|saved| saved.scope == *scope && saved.name == this.name);
        let changed = match known {
            Some(saved) => std::mem::replace(&mut saved.json, json) != saved.json,
            None => {
                let (scope, name) = (scope.clone(), this.name.clone());
                state.saved.push(Saved { scope, name, json });
                true
            }
        };
        let write = changed && state.keep_checkpoint(&shared.env);
        if state.should_shed(&shared.env) {
            let id = state.new_slot_for_wait();
            this.id = Some(id);
            state.park(id, Phase::Parked, task.waker(), outside);
            drop(state);
            shared.kick();
            return Poll::Pending;
        }
        if write {
            let id = state.new_slot_for_wait();
            this.id = Some(id);
            state.park(id, Phase::Saving, task.waker(), outside);
            drop(state);
            shared.kick();
            return Poll::Pending;
        }
        state.yielding = true;
        drop(state);
        task.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for CheckpointFuture<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.cx.shared.close_slot(id);
        }
    }
}

/// Waits until the call is over.
#[must_use = "this waits only when it is awaited"]
pub struct Cancelled<'a> {
    cx: &'a Cx,
}

impl<'a> Cancelled<'a> {
    pub(super) fn new(cx: &'a Cx) -> Self {
        Self { cx }
    }
}

impl Future for Cancelled<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        let mut state = self.cx.shared.lock();
        if state.ended {
            return Poll::Ready(());
        }
        if !state.cancelled.iter().any(|w| w.will_wake(task.waker())) {
            state.cancelled.push(task.waker().clone());
        }
        Poll::Pending
    }
}
