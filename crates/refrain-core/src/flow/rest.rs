//! What is decided when the handler is at rest.

use super::driver::Event;
use super::state::{Phase, Shared, Slot, State};
use super::waker::FlowWaker;
use super::{Cut, Then};
use std::sync::Arc;
use std::task::Waker;

/// Times others are let run before a cut, as long as nothing moves.
const SETTLE: u32 = 8;
/// Times others are let run before a cut, in all.
const SETTLE_IN_ALL: u32 = 256;

/// How often others were let run.
#[derive(Default)]
pub(super) struct Settle {
    passes: u32,
    in_all: u32,
    moves: u64,
}

/// What is to be done next.
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
    /// The handler is to be polled again.
    pub(super) due: bool,
    /// Who else is to be woken, without the lock.
    pub(super) wake: Vec<Waker>,
}

impl Rest<'_> {
    pub(super) fn decide(&mut self, state: &mut State) -> Decision {
        if let Some(event) = over(state) {
            return Decision::Over(event);
        }
        let detaching = |slot: &Slot| matches!(slot.phase, Phase::Detaching);
        if state.slots.iter().any(detaching) {
            return Decision::Detach;
        }
        if let Some(decision) = self.go_on(state) {
            return decision;
        }
        if self.forget_abandoned(state) || self.rise(state) {
            return Decision::Again;
        }
        if state.publishes() {
            return self.decide_task(state);
        }
        if state.running > 0 {
            return Decision::Wait;
        }
        let hand_on = state.shedding
            && state
                .slots
                .iter()
                .any(|slot| matches!(slot.phase, Phase::Parked | Phase::Held));
        if !hand_on && state.open_asks() == 0 {
            return Decision::Wait;
        }
        if self.should_settle(state) {
            return Decision::Settle;
        }
        if state.passes_limit(state.open_asks(), &self.shared.env.limits) {
            return Decision::Again;
        }
        Decision::Cut(state.cut(self.shared.flow))
    }

    /// The same for a task, which is written before it waits, and goes on while it asks; and for a flow in memory, which
    /// only goes on.
    fn decide_task(&mut self, state: &mut State) -> Decision {
        let parked = |slot: &Slot| matches!(slot.phase, Phase::Parked | Phase::Held);
        if state.running == 0 && state.shedding && state.slots.iter().any(parked) {
            if self.should_settle(state) {
                return Decision::Settle;
            }
            return Decision::Write(Then::HandOn);
        }
        let waits = |slot: &Slot| matches!(slot.phase, Phase::Open { .. } | Phase::Asleep(_));
        let works = |slot: &Slot| matches!(slot.phase, Phase::Running(_) | Phase::Saving);
        let then = if !state.slots.iter().any(works) && state.slots.iter().any(waits) {
            if self.should_settle(state) {
                return Decision::Settle;
            }
            Some(Then::Rest {
                wake: state.wake_at(),
                perhaps_more: self.others_hold_waker(state),
            })
        } else {
            None
        };
        let limits = &self.shared.env.limits;
        if state.passes_limit_of_asks(state.open_asks(), limits)
            || state.passes_limit_of_entries(limits)
            || state.passes_limit_in_memory(limits)
        {
            return Decision::Again;
        }
        let rests_anew = then.is_some_and(|then| state.rests_anew(then));
        if rests_anew || state.is_unwritten() || state.asks_changed() {
            return Decision::Write(then.unwrap_or(Then::GoOn));
        }
        Decision::Wait
    }

    /// The handler does not come to rest: what need not wait for that goes on. Is something to be written?
    pub(super) fn in_passing(&mut self, state: &mut State) -> bool {
        match self.go_on(state) {
            Some(decision) => matches!(decision, Decision::Write(_)),
            None => {
                self.rise(state);
                state.asks_changed()
            }
        }
    }

    /// Has those who have slept long enough polled.
    fn rise(&mut self, state: &mut State) -> bool {
        if state.wake_at().is_none() {
            return false;
        }
        let risen = state.take_risen(self.shared.env.source.now());
        let any = !risen.is_empty();
        for waker in risen {
            self.call(waker);
        }
        any
    }

    /// Lets whoever awaits the earliest entry have it. If none is awaited, new steps may start.
    fn go_on(&mut self, state: &mut State) -> Option<Decision> {
        let given = |slot: &Slot| slot.outside && matches!(slot.phase, Phase::Given);
        if state.slots.iter().any(given) {
            // Another task's operation: its task will poll it, and that has the driver look again.
            return Some(Decision::Wait);
        }
        // What comes after a value that is handed on is seen where that is seen.
        let end = state.first_parked().unwrap_or(usize::MAX);
        let waiting = |(at, slot): (usize, &Slot)| match slot.phase {
            Phase::Waiting(entry) if entry < end => Some((entry, at)),
            _ => None,
        };
        let awaited = state.slots.iter().enumerate().filter_map(waiting).min();
        let reached = awaited.map_or(state.replayed, |(entry, _)| entry);
        if state.frontier < reached && self.should_settle(state) {
            // An earlier entry may be another task's, who has not come to await it yet.
            return Some(Decision::Settle);
        }
        state.frontier = state.frontier.max(reached);
        if let Some((_, at)) = awaited {
            let slot = &mut state.slots[at];
            let waker = slot.waker.take();
            if slot.outside && !slot.ready {
                // Its task may be in the middle of a poll, with an earlier entry to await next: let it come round.
                self.call(waker);
                return Some(Decision::Wait);
            }
            slot.phase = Phase::Given;
            state.moves += 1;
            self.call(waker);
            return Some(Decision::Again);
        }
        state.live = true;
        if state.shedding {
            return None;
        }
        let held = |slot: &Slot| matches!(slot.phase, Phase::Held);
        if state.is_unwritten() && state.slots.iter().any(held) {
            return Some(Decision::Write(Then::GoOn));
        }
        let mut any = false;
        for slot in &mut state.slots {
            if matches!(slot.phase, Phase::Held) {
                any = true;
                slot.phase = Phase::Idle;
                self.call(slot.waker.take());
            }
        }
        state.moves += u64::from(any);
        any.then_some(Decision::Again)
    }

    /// Has an operation polled. The handler's own waker need not go through the outer one.
    fn call(&mut self, waker: Option<Waker>) {
        match waker {
            Some(waker) if waker.will_wake(self.handler_waker) => self.due = true,
            waker => self.wake.extend(waker),
        }
    }

    /// A step that was woken and then left out of a whole poll is held somewhere and will not finish.
    /// Returns whether another poll is needed to tell.
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
            // Polls the handler once more, to see whether the step is polled with it.
            self.due = true;
        }
        again || forgotten > 0
    }

    /// Should others be let run first, so that their asks join this round?
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

    /// Does the handler await something of its own?
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

pub(super) fn over(state: &mut State) -> Option<Event> {
    if state.crashed {
        return Some(Event::Crashed);
    }
    if let Some(error) = state.retry.take() {
        return Some(Event::Done(Err(*error)));
    }
    state.fault.take().map(Event::Fault)
}
