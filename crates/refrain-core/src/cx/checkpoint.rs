//! Checkpoints, and the end of a call.

use super::Cx;
use crate::flow::{Phase, SlotGuard, in_step};
use crate::journal::Saved;
use crate::{Error, Result};
use serde::Serialize;
use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Stores a checkpoint, and lets other tasks of the thread run once.
#[must_use = "a checkpoint is kept when it is awaited"]
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
            cx.shared.fault(&format!(
                "checkpoint {name:?} was made inside a step; a step is run as a whole"
            ));
        }
        let json = serde_json::to_string(state).map(String::into_boxed_str);
        let json = json.map_err(|error| {
            Error::internal(format!(
                "the state of checkpoint {name:?} cannot be journaled: {error}"
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
            return shared.stopped(Error::over);
        };
        if let Some(guard) = &this.slot {
            // Until the slot is idle, the driver is about to write the checkpoint or to hand the flow on.
            return match state.slot(guard.id) {
                Some(slot) if matches!(slot.phase, Phase::Idle) => Poll::Ready(Ok(())),
                _ => Poll::Pending,
            };
        }
        let Some(json) = this.json.take() else {
            return Poll::Ready(Ok(()));
        };
        let json = json?;
        let scope = &this.cx.scope;
        let mut saved = state.journal.saved.iter_mut();
        let changed = match saved.find(|s| s.scope == *scope && s.name == this.name) {
            Some(saved) => std::mem::replace(&mut saved.json, json) != saved.json,
            None => {
                let (scope, name) = (scope.clone(), this.name.clone());
                state.journal.saved.push(Saved { scope, name, json });
                true
            }
        };
        let write = changed && state.keep_checkpoint(&*shared.env.source);
        let phase = if state.should_shed(&shared.env) {
            Phase::Parked
        } else if write {
            Phase::Saving
        } else {
            state.yielding = true;
            drop(state);
            task.waker().wake_by_ref();
            return Poll::Pending;
        };
        let slot = this.slot.insert(shared.open_unnamed_slot(&mut state));
        state.park(slot.id, phase, poller);
        drop(state);
        shared.kick();
        Poll::Pending
    }
}

/// Waits until the call is over.
#[must_use = "this waits only when it is awaited"]
pub struct Cancelled<'a>(pub(super) &'a Cx);

impl Future for Cancelled<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.shared.lock();
        if state.ended {
            return Poll::Ready(());
        }
        if !state.cancelled.iter().any(|w| w.will_wake(task.waker())) {
            state.cancelled.push(task.waker().clone());
        }
        Poll::Pending
    }
}
