//! Checkpoints, and waiting for the end of a round.

use super::Cx;
use crate::flow::{Phase, SlotGuard, in_step};
use crate::journal::Checkpoint;
use crate::{Error, Result};
use serde::Serialize;
use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The future of a checkpoint, which also lets other Tokio tasks run.
#[must_use = "a checkpoint is saved when it is awaited"]
pub struct CheckpointFuture<'a> {
    cx: &'a Cx,
    slot: Option<SlotGuard<'a>>,
    name: Cow<'static, str>,
    json: Option<Result<Box<str>>>,
}

impl<'a> CheckpointFuture<'a> {
    #[track_caller]
    pub(super) fn new(cx: &'a Cx, name: Cow<'static, str>, state: &impl Serialize) -> Self {
        if in_step(&cx.shared) {
            cx.shared.fault(format!(
                "checkpoint {name:?} was called inside a step; move it out of the step"
            ));
        }
        let json = serde_json::to_string(state).map(String::into_boxed_str);
        let json = json.map_err(|error| {
            Error::internal(format!(
                "state of checkpoint {name:?} cannot be serialized: {error}"
            ))
        });
        Self {
            cx,
            slot: None,
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
        let poller = shared.poller(task);
        let Some(mut state) = shared.enter() else {
            return shared.stopped(Error::ended);
        };
        if let Some(guard) = &this.slot {
            // The slot is idle once the driver has written the checkpoint.
            return match state.slot(guard.id) {
                Some(slot) if matches!(slot.phase, Phase::Idle) => Poll::Ready(Ok(())),
                _ => Poll::Pending,
            };
        }
        // The first poll took the state, saved it and yielded.
        let Some(json) = this.json.take() else {
            return Poll::Ready(Ok(()));
        };
        let json = json?;
        let scope = &this.cx.scope;
        let mut saved = state.journal.checkpoints.iter_mut();
        let changed = match saved.find(|s| s.scope == *scope && s.name == this.name) {
            Some(saved) => std::mem::replace(&mut saved.json, json) != saved.json,
            None => {
                let (scope, name) = (scope.clone(), this.name.clone());
                state
                    .journal
                    .checkpoints
                    .push(Checkpoint { scope, name, json });
                true
            }
        };
        let write = changed && state.record_checkpoint(&*shared.env.source);
        let phase = if state.should_hand_on(&shared.env) {
            Phase::HandingOn
        } else if write {
            Phase::Saving
        } else {
            state.yielding = true;
            drop(state);
            task.waker().wake_by_ref();
            return Poll::Pending;
        };
        let slot = this.slot.insert(shared.open_unnamed_slot(&mut state));
        state.wait_in(slot.id, phase, poller);
        drop(state);
        shared.wake_driver();
        Poll::Pending
    }
}

/// The future of [`Cx::cancelled`], ready when the round ends.
#[must_use = "this waits only when it is awaited"]
pub struct CancelledFuture<'a>(pub(super) &'a Cx);

impl Future for CancelledFuture<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.shared.lock();
        if state.ended {
            return Poll::Ready(());
        }
        let wakers = &mut state.cancel_wakers;
        if !wakers.iter().any(|waker| waker.will_wake(task.waker())) {
            wakers.push(task.waker().clone());
        }
        Poll::Pending
    }
}
