//! The driver's decision when the handler is at rest.

use super::driver::{End, Event};
use super::slot::{Phase, Slot};
use super::state::{FlowState, Shared};
use super::task::PublishHome;
use super::waker::FlowWaker;
use super::{AfterWrite, Suspension};
use crate::limited_event;
use std::sync::Arc;
use std::task::Waker;

/// How often spawned Tokio tasks may run before a flow is suspended, if none of them makes
/// progress.
const MAX_IDLE_PASSES: u32 = 8;
/// How often spawned Tokio tasks may run before a flow is suspended, in total.
const MAX_PASSES: u32 = 256;

/// Counts the passes: how often spawned Tokio tasks were allowed to run.
#[derive(Default)]
pub(super) struct SettleCounter {
    /// Passes since the last progress.
    idle_passes: u32,
    passes: u32,
    /// The value of [`FlowState::progress_count`] at the last pass.
    progress_count: u64,
}

/// The next action of the driver.
pub(super) enum Decision {
    PollAgain,
    /// Wait until the handler is woken.
    Wait,
    /// Let spawned Tokio tasks run, so that their asks join the round.
    Settle,
    /// Move the flow into a task.
    Detach,
    /// Write the progress of a task, or publish the asks of a flow in memory.
    Write(AfterWrite),
    /// End the round with its open asks.
    Suspend(Suspension),
    End(Event),
}

/// Decides for a flow whose state is locked.
pub(super) struct Decider<'a> {
    pub(super) shared: &'a Arc<Shared>,
    /// Records and forwards the wakes of the handler.
    pub(super) waker: &'a Arc<FlowWaker>,
    /// The same waker as a [`Waker`], with which the handler is polled.
    pub(super) handler_waker: &'a Waker,
    pub(super) settle: &'a mut SettleCounter,
    /// Whether the handler must be polled even if it is not woken.
    pub(super) must_poll: bool,
    /// Spawned Tokio tasks to wake once the lock is released.
    pub(super) to_wake: Vec<Waker>,
}

impl Decider<'_> {
    pub(super) fn decide(&mut self, state: &mut FlowState) -> Decision {
        if let Some(event) = end_event(state) {
            return Decision::End(event);
        }
        if state.any(|phase| matches!(phase, Phase::Detaching)) {
            return Decision::Detach;
        }
        if let Some(decision) = self.advance(state) {
            return decision;
        }
        if self.abandon_steps(state) || self.end_sleeps(state) {
            return Decision::PollAgain;
        }
        if state.publishes() {
            return self.decide_task(state);
        }
        if state.running > 0 {
            return Decision::Wait;
        }
        if !can_hand_on(state) && state.open_asks() == 0 {
            return Decision::Wait;
        }
        if self.should_settle(state) {
            return Decision::Settle;
        }
        if state.exceeds_limit(state.open_asks(), &self.shared.env.limits, true) {
            // The fault is set and ends the flow.
            return Decision::PollAgain;
        }
        Decision::Suspend(state.suspend(self.shared.flow))
    }

    /// Decides for a task or a flow in memory, whose asks are published while the handler continues.
    fn decide_task(&mut self, state: &mut FlowState) -> Decision {
        if state.running == 0 && can_hand_on(state) {
            if self.should_settle(state) {
                return Decision::Settle;
            }
            return Decision::Write(AfterWrite::HandOn);
        }
        let is_waiting = |phase: &Phase| matches!(phase, Phase::Open { .. } | Phase::Asleep(_));
        let is_working = |phase: &Phase| matches!(phase, Phase::Running(_) | Phase::Saving);
        let mut then = None;
        if !state.any(is_working) && state.any(is_waiting) {
            if self.should_settle(state) {
                return Decision::Settle;
            }
            then = Some(AfterWrite::Rest {
                wake: state.wake_at(),
                may_progress: self.others_hold_waker(state),
            });
        }
        if self.task_exceeds_limit(state) {
            return Decision::PollAgain;
        }
        let rest_is_new = then.is_some_and(|then| state.record_rest(then));
        if rest_is_new || state.has_unwritten_progress() || state.asks_changed() {
            return Decision::Write(then.unwrap_or(AfterWrite::Continue));
        }
        Decision::Wait
    }

    /// Sets a fault if the open asks of a task or a flow in memory exceed a limit. Returns whether a fault is set.
    fn task_exceeds_limit(&self, state: &mut FlowState) -> bool {
        let limits = &self.shared.env.limits;
        let (asks, entries) = (state.open_asks(), limits.entries);
        if state.exceeds_limit(asks, limits, false) {
            return true;
        }
        if state.journal.entries.len() + asks > entries {
            let message = format!(
                "journal full: the limit of {entries} entries leaves no room for the answers to {asks} open asks"
            );
            state.set_fault(message, false);
        }
        let counts_rounds = state.publish_home() == Some(PublishHome::Memory);
        let new_round = counts_rounds && state.has_new_asks();
        state.exceeds_limit(asks, limits, new_round)
    }

    /// Advances a handler that keeps waking itself, and returns whether a write is due.
    pub(super) fn advance_busy(&mut self, state: &mut FlowState) -> bool {
        match self.advance(state) {
            Some(decision) => matches!(decision, Decision::Write(_)),
            None => {
                self.end_sleeps(state);
                state.asks_changed()
            }
        }
    }

    /// Wakes the expired sleeps, and returns whether there were any.
    fn end_sleeps(&mut self, state: &mut FlowState) -> bool {
        if state.wake_at().is_none() {
            return false;
        }
        let ended = state.end_sleeps(self.shared.env.source.now());
        let any = !ended.is_empty();
        ended.into_iter().for_each(|waker| self.wake(waker));
        any
    }

    /// Delivers the earliest awaited entry. If no entry is awaited, new steps may start.
    fn advance(&mut self, state: &mut FlowState) -> Option<Decision> {
        let granted = |slot: &Slot| slot.in_spawned_task && matches!(slot.phase, Phase::Granted);
        if state.slots.iter().any(granted) {
            // A spawned Tokio task will poll this operation, which wakes the driver.
            return Some(Decision::Wait);
        }
        let end = state.first_handed_on().unwrap_or(usize::MAX);
        let waiting = |(index, slot): (usize, &Slot)| match slot.phase {
            Phase::Waiting(entry) if entry < end => Some((entry, index)),
            _ => None,
        };
        let awaited = state.slots.iter().enumerate().filter_map(waiting).min();
        let reached = awaited.map_or(state.replayed, |(entry, _)| entry);
        if state.frontier < reached && self.should_settle(state) {
            // A spawned Tokio task may still await an earlier entry.
            return Some(Decision::Settle);
        }
        state.frontier = state.frontier.max(reached);
        if let Some((_, index)) = awaited {
            let slot = &mut state.slots[index];
            if let Some(waker) = slot.waker.take() {
                self.wake(waker);
            }
            if slot.in_spawned_task && !slot.ready {
                // The spawned Tokio task may be in the middle of a poll that awaits an earlier
                // entry next.
                return Some(Decision::Wait);
            }
            slot.phase = Phase::Granted;
            state.progress_count += 1;
            return Some(Decision::PollAgain);
        }
        state.replay_complete = true;
        if state.handing_on {
            return None;
        }
        let blocked = |phase: &Phase| matches!(phase, Phase::Blocked);
        if state.has_unwritten_progress() && state.any(blocked) {
            return Some(Decision::Write(AfterWrite::Continue));
        }
        let released = state.release(blocked);
        let any = !released.is_empty();
        released.into_iter().for_each(|waker| self.wake(waker));
        state.progress_count += u64::from(any);
        any.then_some(Decision::PollAgain)
    }

    /// Wakes an operation. For the handler's own waker it is enough to poll again.
    fn wake(&mut self, waker: Waker) {
        if waker.will_wake(self.handler_waker) {
            self.must_poll = true;
        } else {
            self.to_wake.push(waker);
        }
    }

    /// Abandons steps that were woken and then not polled during a whole poll of the handler: the
    /// handler keeps their futures without polling them. Returns whether another poll is needed.
    fn abandon_steps(&mut self, state: &mut FlowState) -> bool {
        let Some(current_poll) = self.shared.handler_polls.get().map(|polls| polls.get()) else {
            return false;
        };
        let mut poll_again = false;
        let mut abandoned = 0;
        for slot in state.slots.iter_mut().filter(|slot| !slot.in_spawned_task) {
            let Phase::Running(signal) = &slot.phase else {
                continue;
            };
            match signal.woken_in() {
                Some(woken_in) if woken_in < current_poll => {
                    limited_event!(WARN, step = %slot.key.name,
                        "step abandoned: the handler started it and no longer polls it"
                    );
                    slot.phase = Phase::Idle;
                    abandoned += 1;
                }
                Some(_) => poll_again = true,
                None => {}
            }
        }
        state.running -= abandoned;
        self.must_poll |= poll_again;
        poll_again || abandoned > 0
    }

    /// Returns whether spawned Tokio tasks should run first, so that their asks are sent in the
    /// same round.
    fn should_settle(&mut self, state: &FlowState) -> bool {
        if state.progress_count != self.settle.progress_count {
            self.settle.progress_count = state.progress_count;
            self.settle.idle_passes = 0;
        }
        if self.settle.idle_passes >= MAX_IDLE_PASSES || self.settle.passes >= MAX_PASSES {
            return false;
        }
        // One reference is this flow's, one the handler's Cx.
        let others_hold_cx = Arc::strong_count(self.shared) > 2;
        let settle = others_hold_cx || self.others_hold_waker(state);
        self.settle.idle_passes += u32::from(settle);
        self.settle.passes += u32::from(settle);
        settle
    }

    /// Returns whether the handler awaits a foreign future, which is no operation of `cx`.
    fn others_hold_waker(&self, state: &FlowState) -> bool {
        let slots = state.slots.iter().filter_map(|slot| slot.waker.as_ref());
        let own = slots
            .chain(&state.cancel_wakers)
            .filter(|waker| waker.will_wake(self.handler_waker))
            .count();
        // Three references belong to the flow: `waker`, `handler_waker` and that of `Shared`.
        Arc::strong_count(self.waker) > 3 + own
    }
}

/// Returns whether the flow should be handed on and has reached a checkpoint or a step boundary.
fn can_hand_on(state: &FlowState) -> bool {
    state.handing_on && state.any(|phase| matches!(phase, Phase::HandingOn | Phase::Blocked))
}

/// The final event of a flow that must end.
pub(super) fn end_event(state: &mut FlowState) -> Option<Event> {
    if state.crashed {
        return Some(Event::Crashed);
    }
    if let Some(error) = state.retry.take() {
        return Some(Event::Ended(End::Failed(*error)));
    }
    state
        .fault
        .take()
        .map(|fault| Event::Ended(End::Fault(*fault)))
}
