//! Sleeps that are journaled.

use super::Cx;
use crate::flow::{Phase, Poller, SlotGuard, State, in_step, micros};
use crate::journal::{Entry, Held, Key, Kind};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// A sleep whose end was fixed when it was created.
///
/// It belongs to its call: a spawned task that sleeps when the call is over is unwound, without a panic message.
/// In the handler of another call it ends at once.
#[must_use = "a sleep does nothing until it is awaited"]
pub struct SleepFuture<'a> {
    slot: SlotGuard<'a>,
    key: Key,
    until: u64,
    /// Other tasks were allowed to run after the call was over.
    yielded: bool,
}

impl<'a> SleepFuture<'a> {
    #[track_caller]
    pub(super) fn new(cx: &'a Cx, time: Duration) -> Self {
        let shared = &cx.shared;
        if in_step(shared) {
            shared.fault("cx.sleep(..) was called inside a step; a step is run as a whole");
        }
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let until = cx.value(Kind::Sleep, || {
            micros(shared.env.source.now()).saturating_add(time)
        });
        let mut state = shared.lock();
        let key = state.number(Key::new(cx.scope.as_ref(), Kind::Woke, "".into()));
        Self {
            slot: shared.guard(state.push_slot(key.clone())),
            key,
            until,
            yielded: false,
        }
    }

    /// Returns whether the sleep is over. Its end is a journal entry and waits for its turn.
    fn is_over(&self, state: &mut State, poller: Poller<'_>) -> bool {
        let (id, env) = (self.slot.id, &self.slot.shared.env);
        let woke = state.find(&self.key).or_else(|| {
            if micros(env.source.now()) < self.until {
                return None;
            }
            let entry = Entry::new(self.key.clone(), 0, Held::Value("null".into()));
            state.append(entry, env.limits.entries)
        });
        if let Some(index) = woke {
            let turn = state.take_turn(id, index, poller);
            if turn {
                state.deliver(index);
            }
            return turn;
        }
        match state.slot(id) {
            Some(slot) if matches!(slot.phase, Phase::Asleep(_)) => slot.wait_for(poller),
            _ => state.park(id, Phase::Asleep(self.until), poller),
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
            if !shared.is_over_in_another_call() {
                return Poll::Pending;
            }
            // Yield once, so that a handler that only sleeps does not monopolise the thread.
            if std::mem::replace(&mut self.yielded, true) {
                return Poll::Ready(());
            }
            task.waker().wake_by_ref();
            return Poll::Pending;
        };
        let over = self.is_over(&mut state, poller);
        drop(state);
        if over {
            self.slot.close();
        }
        shared.kick();
        if over { Poll::Ready(()) } else { Poll::Pending }
    }
}
