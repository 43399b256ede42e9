//! Sleeps that are journaled.

use super::Cx;
use crate::flow::{Phase, SlotId, State, in_step, is_driving, micros};
use crate::journal::{Entry, Held, Key, Kind};
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// A sleep. When it ends was settled when it was made, once and for all. It is part of its call: a spawned task that sleeps
/// when the call is over is ended, as by a panic without a message. In the handler of another call it ends at once.
#[must_use = "a sleep does nothing until it is awaited"]
pub struct SleepFuture<'a> {
    cx: &'a Cx,
    id: SlotId,
    key: Key,
    until: u64,
    /// Others were let run, once the call was over.
    yielded: bool,
}

impl<'a> SleepFuture<'a> {
    #[track_caller]
    pub(super) fn new(cx: &'a Cx, time: Duration) -> Self {
        let shared = &cx.shared;
        if in_step(shared) {
            shared.fault(
                "cx.sleep(..) was called inside a step; a step is run as a whole".into(),
                Some(Location::caller()),
            );
        }
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let until = cx.value(Kind::Sleep, || {
            micros(shared.env.source.now()).saturating_add(time)
        });
        let mut state = shared.lock();
        let key = state.take_key(cx.scope.as_ref(), Kind::Woke);
        let id = state.push_slot(key.clone());
        Self {
            cx,
            id,
            key,
            until,
            yielded: false,
        }
    }

    /// Is it over? The end is an entry like any other, and has its turn.
    fn is_over(&self, state: &mut State, task: &mut Context<'_>, outside: bool) -> bool {
        let env = &self.cx.shared.env;
        let woke = state.find(&self.key).or_else(|| {
            if micros(env.source.now()) < self.until {
                return None;
            }
            let entry = Entry::new(self.key.clone(), 0, Held::Value("null".into()));
            state.append(entry, env.limits.entries)
        });
        match woke {
            Some(index) => {
                let turn = state.take_turn(self.id, index, task.waker(), outside);
                if turn {
                    state.deliver(index);
                }
                turn
            }
            None => {
                match state.slot(self.id) {
                    Some(slot) if matches!(slot.phase, Phase::Asleep(_)) => {
                        slot.outside = outside;
                        slot.waker = Some(task.waker().clone());
                    }
                    _ => {
                        let asleep = Phase::Asleep(self.until);
                        state.park(self.id, asleep, task.waker(), outside);
                    }
                }
                false
            }
        }
    }
}

impl Future for SleepFuture<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        let shared = &self.cx.shared;
        let outside = !is_driving(shared);
        let mut state = shared.lock();
        if !state.may_go_on() {
            drop(state);
            if !shared.is_over_in_another_call() {
                return Poll::Pending;
            }
            // It ends at once, but a handler that does nothing but sleep does not have the thread for itself.
            if std::mem::replace(&mut self.yielded, true) {
                return Poll::Ready(());
            }
            task.waker().wake_by_ref();
            return Poll::Pending;
        }
        let over = self.is_over(&mut state, task, outside);
        drop(state);
        if over {
            shared.close_slot(self.id);
        }
        shared.kick();
        if over { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for SleepFuture<'_> {
    fn drop(&mut self) {
        self.cx.shared.close_slot(self.id);
    }
}
