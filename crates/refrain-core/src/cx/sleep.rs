//! Journaled sleeps.

use super::Cx;
use crate::flow::{FlowState, Phase, Poller, SlotGuard, in_step, micros};
use crate::journal::{Entry, EntryKey, OperationKind, StoredOutcome};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// The future of a sleep, whose end was fixed when it was created.
///
/// The sleep belongs to its call: if a spawned Tokio task is asleep when the call ends, that Tokio
/// task is unwound without a panic message. If the handler of another call polls the sleep then,
/// it ends at once.
#[must_use = "a sleep does nothing until it is awaited"]
pub struct SleepFuture<'a> {
    slot: SlotGuard<'a>,
    key: EntryKey,
    until: u64,
    /// Whether other Tokio tasks were allowed to run after the call ended.
    yielded: bool,
}

impl<'a> SleepFuture<'a> {
    #[track_caller]
    pub(super) fn new(cx: &'a Cx, time: Duration) -> Self {
        let shared = &cx.shared;
        if in_step(shared) {
            shared.fault("cx.sleep(..) was called inside a step; move it out of the step");
        }
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let until = cx.journaled_value(OperationKind::Sleep, || {
            micros(shared.env.source.now()).saturating_add(time)
        });
        let mut state = shared.lock();
        let key = state.assign_ordinal(EntryKey::new(
            cx.scope.as_ref(),
            OperationKind::Woke,
            "".into(),
        ));
        Self {
            slot: shared.guard(state.push_slot(key.clone())),
            key,
            until,
            yielded: false,
        }
    }

    /// Returns whether the sleep has ended. Its end is a journal entry, which waits for its turn.
    fn has_ended(&self, state: &mut FlowState, poller: Poller<'_>) -> bool {
        let (id, env) = (self.slot.id, &self.slot.shared.env);
        let entry = state.find(&self.key).or_else(|| {
            if micros(env.source.now()) < self.until {
                return None;
            }
            let entry = Entry::new(self.key.clone(), 0, StoredOutcome::Value("null".into()));
            state.append(entry, env.limits.entries)
        });
        if let Some(index) = entry {
            let is_turn = state.take_turn(id, index, poller);
            if is_turn {
                state.deliver(index);
            }
            return is_turn;
        }
        match state.slot(id) {
            Some(slot) if matches!(slot.phase, Phase::Asleep(_)) => slot.set_poller(poller),
            _ => state.wait_in(id, Phase::Asleep(self.until), poller),
        }
        false
    }
}

impl Future for SleepFuture<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        let shared = self.slot.shared;
        let poller = shared.poller(task);
        let Some(mut state) = shared.enter() else {
            if !shared.stop_without_error() {
                return Poll::Pending;
            }
            // Yield once, so that a handler that only sleeps does not monopolise the thread.
            if std::mem::replace(&mut self.yielded, true) {
                return Poll::Ready(());
            }
            task.waker().wake_by_ref();
            return Poll::Pending;
        };
        let ended = self.has_ended(&mut state, poller);
        drop(state);
        if ended {
            self.slot.close();
        }
        shared.wake_driver();
        if ended {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}
