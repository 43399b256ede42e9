//! The decision of the driver when the handler is at rest.

use super::driver::{End, Event};
use super::slot::{Phase, Slot};
use super::state::{Shared, State};
use super::waker::FlowWaker;
use super::{Cut, Then};
use std::sync::Arc;
use std::task::Waker;

/// Times other tasks are allowed to run before a cut, without progress.
const SETTLE: u32 = 8;
/// Times other tasks are allowed to run before a cut, in total.
const SETTLE_IN_ALL: u32 = 256;

/// Counts how often other tasks were allowed to run.
#[derive(Default)]
pub(super) struct Settle {
    passes: u32,
    in_all: u32,
    moves: u64,
}

/// The next action of the driver.
pub(super) enum Decision {
    Again,
    Wait,
    Settle,
    Detach,
    Write(Then),
    Cut(Cut),
    Over(Event),
}

/// A flow at rest, while its state is locked.
pub(super) struct Rest<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) waker: &'a Arc<FlowWaker>,
    pub(super) handler_waker: &'a Waker,
    pub(super) settle: &'a mut Settle,
    /// The handler must be polled again.
    pub(super) due: bool,
    /// Other tasks to wake once the lock is released.
    pub(super) wake: Vec<Waker>,
}

impl Rest<'_> {
    pub(super) fn decide(&mut self, state: &mut State) -> Decision {
        if let Some(event) = over(state) {
            return Decision::Over(event);
        }
        if state.any(|phase| matches!(phase, Phase::Detaching)) {
            return Decision::Detach;
        }
        if let Some(decision) = self.go_on(state) {
            return decision;
        }
        if self.forget_abandoned(state) || self.end_sleeps(state) {
            return Decision::Again;
        }
        if state.publishes() {
            return self.decide_task(state);
        }
        if state.running > 0 {
            return Decision::Wait;
        }
        let hand_on = can_hand_on(state);
        if !hand_on && state.open_asks() == 0 {
            return Decision::Wait;
        }
        if self.should_settle(state) {
            return Decision::Settle;
        }
        if state.passes_limit(state.open_asks(), &self.shared.env.limits, true) {
            return Decision::Again;
        }
        Decision::Cut(state.cut(self.shared.flow))
    }

    /// Decides for a task, which is written before it waits, and for a flow in memory.
    fn decide_task(&mut self, state: &mut State) -> Decision {
        if state.running == 0 && can_hand_on(state) {
            if self.should_settle(state) {
                return Decision::Settle;
            }
            return Decision::Write(Then::HandOn);
        }
        let waits = |phase: &Phase| matches!(phase, Phase::Open { .. } | Phase::Asleep(_));
        let works = |phase: &Phase| matches!(phase, Phase::Running(_) | Phase::Saving);
        let mut then = None;
        if !state.any(works) && state.any(waits) {
            if self.should_settle(state) {
                return Decision::Settle;
            }
            then = Some(Then::Rest {
                wake: state.wake_at(),
                perhaps_more: self.others_hold_waker(state),
            });
        }
        if self.task_passes_limit(state) {
            return Decision::Again;
        }
        let rests_anew = then.is_some_and(|then| state.rests_anew(then));
        if rests_anew || state.is_unwritten() || state.asks_changed() {
            return Decision::Write(then.unwrap_or(Then::GoOn));
        }
        Decision::Wait
    }

    /// Sets a fault if the open asks of a task or a flow in memory pass a limit.
    fn task_passes_limit(&self, state: &mut State) -> bool {
        let limits = &self.shared.env.limits;
        let (asks, entries) = (state.open_asks(), limits.entries);
        if state.passes_limit(asks, limits, false) {
            return true;
        }
        if state.journal.entries.len() + asks > entries {
            let message = format!(
                "the journal is full: {entries} entries; the answers to what is asked do not fit"
            );
            state.set_fault(message, false);
        }
        let new_round = state.is_in_memory() && state.has_new_asks();
        state.passes_limit(asks, limits, new_round)
    }

    /// Continues work that does not need a handler at rest, and returns whether a write is due.
    pub(super) fn in_passing(&mut self, state: &mut State) -> bool {
        match self.go_on(state) {
            Some(decision) => matches!(decision, Decision::Write(_)),
            None => {
                self.end_sleeps(state);
                state.asks_changed()
            }
        }
    }

    /// Polls the sleeps that are over, and returns whether there were any.
    fn end_sleeps(&mut self, state: &mut State) -> bool {
        if state.wake_at().is_none() {
            return false;
        }
        let ended = state.end_sleeps(self.shared.env.source.now());
        let any = !ended.is_empty();
        ended.into_iter().for_each(|waker| self.call(waker));
        any
    }

    /// Gives the earliest awaited entry to its operation. If no entry is awaited, new steps may start.
    fn go_on(&mut self, state: &mut State) -> Option<Decision> {
        let given = |slot: &Slot| slot.outside && matches!(slot.phase, Phase::Given);
        if state.slots.iter().any(given) {
            // Another task will poll this operation, which wakes the driver.
            return Some(Decision::Wait);
        }
        // Entries after a value that is handed on are delivered with it.
        let end = state.first_parked().unwrap_or(usize::MAX);
        let waiting = |(at, slot): (usize, &Slot)| match slot.phase {
            Phase::Waiting(entry) if entry < end => Some((entry, at)),
            _ => None,
        };
        let awaited = state.slots.iter().enumerate().filter_map(waiting).min();
        let reached = awaited.map_or(state.replayed, |(entry, _)| entry);
        if state.frontier < reached && self.should_settle(state) {
            // Another task may still come to await an earlier entry.
            return Some(Decision::Settle);
        }
        state.frontier = state.frontier.max(reached);
        if let Some((_, at)) = awaited {
            let slot = &mut state.slots[at];
            if let Some(waker) = slot.waker.take() {
                self.call(waker);
            }
            if slot.outside && !slot.ready {
                // Its task may be in the middle of a poll and await an earlier entry next.
                return Some(Decision::Wait);
            }
            slot.phase = Phase::Given;
            state.moves += 1;
            return Some(Decision::Again);
        }
        state.live = true;
        if state.shedding {
            return None;
        }
        let held = |phase: &Phase| matches!(phase, Phase::Held);
        if state.is_unwritten() && state.any(held) {
            return Some(Decision::Write(Then::GoOn));
        }
        let released = state.release(held);
        let any = !released.is_empty();
        released.into_iter().for_each(|waker| self.call(waker));
        state.moves += u64::from(any);
        any.then_some(Decision::Again)
    }

    /// Wakes an operation. The handler's own waker need not go through the outer one.
    fn call(&mut self, waker: Waker) {
        if waker.will_wake(self.handler_waker) {
            self.due = true;
        } else {
            self.wake.push(waker);
        }
    }

    /// Abandons steps that were woken and then left out of a whole poll: they are held in a collection and will not
    /// finish. Returns whether another poll is needed.
    fn forget_abandoned(&mut self, state: &mut State) -> bool {
        let Some(pass) = self.shared.passes.get().map(|passes| passes.get()) else {
            return false;
        };
        let mut again = false;
        let mut forgotten = 0;
        for slot in state.slots.iter_mut().filter(|slot| !slot.outside) {
            let Phase::Running(signal) = &slot.phase else {
                continue;
            };
            match signal.woken_in() {
                Some(woken_in) if woken_in < pass => {
                    tracing::warn!(
                        step = %slot.key.name,
                        "a step was started and then no longer polled: it is abandoned"
                    );
                    slot.phase = Phase::Idle;
                    forgotten += 1;
                }
                Some(_) => again = true,
                None => {}
            }
        }
        state.running -= forgotten;
        if again {
            self.due = true;
        }
        again || forgotten > 0
    }

    /// Returns whether other tasks should run first, so that their asks join this round.
    fn should_settle(&mut self, state: &State) -> bool {
        if state.moves != self.settle.moves {
            self.settle.moves = state.moves;
            self.settle.passes = 0;
        }
        if self.settle.passes >= SETTLE || self.settle.in_all >= SETTLE_IN_ALL {
            return false;
        }
        // This flow and the handler's own Cx.
        let others_hold_cx = Arc::strong_count(self.shared) > 2;
        let settle = others_hold_cx || self.others_hold_waker(state);
        self.settle.passes += u32::from(settle);
        self.settle.in_all += u32::from(settle);
        settle
    }

    /// Returns whether the handler awaits something outside of the flow.
    fn others_hold_waker(&self, state: &State) -> bool {
        let slots = state.slots.iter().filter_map(|slot| slot.waker.as_ref());
        let own = slots
            .chain(&state.cancelled)
            .filter(|waker| waker.will_wake(self.handler_waker))
            .count();
        // This flow, its waker and the shared state's copy.
        Arc::strong_count(self.waker) > 3 + own
    }
}

/// Returns whether the flow is to be handed on and has reached a point where it can be.
fn can_hand_on(state: &State) -> bool {
    state.shedding && state.any(|phase| matches!(phase, Phase::Parked | Phase::Held))
}

pub(super) fn over(state: &mut State) -> Option<Event> {
    if state.crashed {
        return Some(Event::Crashed);
    }
    if let Some(error) = state.retry.take() {
        return Some(Event::Ended(End::Failed(*error)));
    }
    state
        .fault
        .take()
        .map(|fault| Event::Ended(End::Fault(fault)))
}
