//! The driver of a flow: polls the handler and reports events to the flow's owner.

use super::decide::{Decider, Decision, SettleCounter, end_event};
use super::state::{FlowState, Shared};
use super::task::Withdraw;
use super::thread_context::ThreadContext;
use super::waker::FlowWaker;
use super::{AfterWrite, Env, Fault, Note, Outcome, PendingWrite, Start, Stats, Suspension};
use crate::journal::{FlowId, OperationKind};
use crate::limited_event;
use crate::replay::LogKey;
use crate::{Cx, Error, ErrorKind, Trace};
use refrain_wire::ResultBody;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A running handler.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send>>;

/// An event for the owner of a flow.
#[derive(Debug)]
pub enum Event {
    /// Notes for the client. Send them and poll again.
    Notes(Vec<Note>),
    /// Futures that the handler has spawned hold a `Cx` of this flow and may ask too. Yield to the runtime and poll again.
    Settle,
    /// The round ends with open asks, and the [`Flow`] must not be polled again: seal the snapshot and send the asks.
    Suspended(Suspension),
    /// The handler called `detach`: store [`Flow::detachment`], call [`Flow::become_task`] or
    /// [`Flow::reject_detach`], and poll again.
    Detach,
    /// In a task: write this, then do what [`PendingWrite::then`] says. In memory: publish and withdraw asks, call
    /// [`Flow::confirm_write`], and poll again unless the flow [has ended](Flow::has_ended).
    Write(Box<PendingWrite>),
    /// The call has ended, and so has the flow.
    Ended(End),
    /// A test crashed the round. The flow has ended without a response.
    Crashed,
}

/// The end of a call.
#[derive(Debug)]
pub enum End {
    /// The handler returned a result.
    Complete(ResultBody),
    /// The handler returned an error.
    Failed(Error),
    /// A bug in the handler, or an exceeded limit.
    Fault(Fault),
    /// The handler panicked, with this message.
    Panicked(String),
}

/// Consecutive polls of the handler before other Tokio tasks may run.
const MAX_POLLS: u32 = 32;

/// One run of a handler, from the top. It lasts one round; in memory or as a task, it can last
/// several.
pub struct Flow {
    pub(super) shared: Arc<Shared>,
    /// Records and forwards the wakes of the handler.
    waker: Arc<FlowWaker>,
    /// The same waker as a [`Waker`], with which the handler is polled.
    handler_waker: Waker,
    handler: Option<HandlerFuture>,
    /// Whether the handler must be polled even if it was not woken.
    pub(super) must_poll: bool,
    /// Polls since the handler was last at rest.
    busy_polls: u32,
    settle: SettleCounter,
    /// The final event, reported after the last write.
    final_event: Option<Box<Event>>,
}

impl Flow {
    /// Starts a round. `handler` receives the flow's [`Cx`]; it is not polled yet.
    pub fn new(env: Env, start: Start, handler: impl FnOnce(Cx) -> HandlerFuture) -> Self {
        let waker = Arc::new(FlowWaker::default());
        let shared = Shared::new(env, start, waker.clone());
        let handler = handler(Cx::new(shared.clone()));
        Self {
            shared,
            handler_waker: waker.clone().into(),
            waker,
            handler: Some(handler),
            must_poll: true,
            busy_polls: 0,
            settle: SettleCounter::default(),
            final_event: None,
        }
    }

    /// Takes the unreported notes, to be sent before the reply.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.shared.lock().notes)
    }

    /// Returns the records of `once` that can be deleted when the call has ended, because no other request can run it.
    pub fn deletable_records(&self) -> Vec<LogKey> {
        if self.shared.is_repeatable {
            return Vec::new();
        }
        let state = self.shared.lock();
        let keys = state.journal.entries.iter().map(|entry| &entry.key);
        let keys = keys.filter(|key| key.kind == OperationKind::Once);
        keys.map(|key| LogKey::once(self.shared.flow, &key.unique_name()))
            .collect()
    }

    /// Returns the id of the flow.
    pub fn id(&self) -> FlowId {
        self.shared.flow
    }

    /// Returns the trace of this round.
    pub fn trace(&self) -> &Trace {
        &self.shared.trace
    }

    /// Returns the counters of this round.
    pub fn stats(&self) -> Stats {
        self.shared.lock().stats
    }

    #[cfg(feature = "testing")]
    /// Crashes the round after this many polls of its operations, as if the process had died. For tests.
    pub fn crash_after(&mut self, polls: u32) {
        self.shared.lock().polls_before_crash = Some(polls);
    }

    /// Runs the handler as far as possible.
    ///
    /// # Panics
    ///
    /// If polled after the flow has ended.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        if let Some(event) = self.final_event.take() {
            return Poll::Ready(*event);
        }
        self.waker.forward_to(cx.waker());
        for _ in 0..MAX_POLLS {
            if self.must_poll || self.waker.is_woken() {
                self.must_poll = false;
                self.busy_polls += 1;
                if let Poll::Ready(event) = self.poll_handler() {
                    return Poll::Ready(event);
                }
            }
            let (notes, yielding) = {
                let mut state = self.shared.lock();
                (
                    std::mem::take(&mut state.notes),
                    std::mem::take(&mut state.yielding),
                )
            };
            if !notes.is_empty() {
                return Poll::Ready(Event::Notes(notes));
            }
            if self.waker.is_woken() && !self.must_end() {
                if self.busy_polls >= MAX_POLLS {
                    self.busy_polls = 0;
                    if self.with_decider(|decider, state| decider.advance_busy(state)) {
                        return Poll::Ready(Event::Write(self.write(AfterWrite::Continue).into()));
                    }
                }
                // A checkpoint lets other Tokio tasks run.
                if yielding {
                    break;
                }
                continue;
            }
            self.busy_polls = 0;
            match self.with_decider(|decider, state| decider.decide(state)) {
                Decision::PollAgain => {}
                Decision::Wait => return Poll::Pending,
                Decision::Settle => return Poll::Ready(Event::Settle),
                Decision::Detach => return Poll::Ready(Event::Detach),
                Decision::Write(then) => return Poll::Ready(Event::Write(self.write(then).into())),
                Decision::Suspend(suspension) => {
                    self.end();
                    return Poll::Ready(Event::Suspended(suspension));
                }
                Decision::End(event) => return Poll::Ready(self.end_with(event)),
            }
        }
        // Lets other Tokio tasks run before the flow continues.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Ends the round at its time limit: suspends the flow if it has open asks, otherwise reports a fault.
    pub fn expire(&mut self) -> Event {
        let event = {
            let mut state = self.shared.lock();
            let asks = state.open_asks();
            if asks > 0 && !state.exceeds_limit(asks, &self.shared.env.limits, true) {
                Event::Suspended(state.suspend(self.shared.flow))
            } else {
                end_event(&mut state)
                    .unwrap_or_else(|| Event::Ended(End::Fault(Fault::round_time())))
            }
        };
        self.mark_call_ended(&event);
        self.end();
        event
    }

    /// Drops the handler and ends the flow.
    pub fn cancel(&mut self) {
        if self.handler.is_some() {
            self.end();
        }
    }

    fn write(&mut self, then: AfterWrite) -> PendingWrite {
        let withdraw = match then {
            AfterWrite::Rest {
                may_progress: false,
                ..
            } => Withdraw::All,
            _ => Withdraw::Dropped,
        };
        let write = self.shared.write(then, withdraw);
        if then == AfterWrite::HandOn {
            self.end();
        }
        write
    }

    /// Marks the call as ended after a fault or a panic, unless it is a task that may be retried.
    fn mark_call_ended(&self, event: &Event) {
        if matches!(event, Event::Ended(End::Fault(_) | End::Panicked(_))) {
            let mut state = self.shared.lock();
            state.call_ended |= !state.can_retry();
        }
    }

    /// Ends the flow. An attempt that will be retried is written first; its asks stay published.
    fn end_with(&mut self, mut event: Event) -> Event {
        self.mark_call_ended(&event);
        let is_retried = match &event {
            Event::Ended(End::Failed(error)) => matches!(error.kind(), ErrorKind::Retry),
            Event::Ended(End::Panicked(_)) => true,
            _ => false,
        };
        if is_retried && self.shared.lock().has_unwritten_progress() {
            self.final_event = Some(Box::new(event));
            event = Event::Write(
                self.shared
                    .write(AfterWrite::Continue, Withdraw::Nothing)
                    .into(),
            );
        }
        self.end();
        event
    }

    fn must_end(&self) -> bool {
        let state = self.shared.lock();
        state.fault.is_some() || state.crashed || state.retry.is_some()
    }

    fn poll_handler(&mut self) -> Poll<Event> {
        self.waker.begin_poll();
        if let Some(polls) = self.shared.handler_polls.get() {
            polls.next();
        }
        let handler = self
            .handler
            .as_mut()
            .expect("a flow is not polled after its end");
        let polled = {
            let _context = ThreadContext::driving(&self.shared);
            let mut cx = Context::from_waker(&self.handler_waker);
            catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(&mut cx)))
        };
        let done = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(done)) => done,
            Err(panic) => {
                let event = Event::Ended(End::Panicked(panic_message(&*panic)));
                return Poll::Ready(self.end_with(event));
            }
        };
        let event = {
            let mut state = self.shared.lock();
            match end_event(&mut state) {
                Some(event) => event,
                None => self.finish(&mut state, done),
            }
        };
        Poll::Ready(self.end_with(event))
    }

    fn finish(&self, state: &mut FlowState, done: Result<Outcome, Error>) -> Event {
        match done {
            Ok(Outcome::Incomplete(reply)) => {
                if state.exceeds_limit(reply.asks.len(), &self.shared.env.limits, true)
                    && let Some(event) = end_event(state)
                {
                    return event;
                }
                state
                    .suspend_explicit(&self.shared.env, self.shared.flow, reply)
                    .unwrap_or_else(|error| Event::Ended(End::Failed(error)))
            }
            Ok(Outcome::Complete(body)) => {
                state.call_ended = true;
                Event::Ended(End::Complete(body))
            }
            Err(error) => {
                let is_retried = state.can_retry() && matches!(error.kind(), ErrorKind::Retry);
                state.call_ended = !is_retried;
                Event::Ended(End::Failed(error))
            }
        }
    }

    fn with_decider<T>(&mut self, decide: impl FnOnce(&mut Decider<'_>, &mut FlowState) -> T) -> T {
        let mut decider = Decider {
            shared: &self.shared,
            waker: &self.waker,
            handler_waker: &self.handler_waker,
            settle: &mut self.settle,
            must_poll: false,
            to_wake: Vec::new(),
        };
        let decision = decide(&mut decider, &mut self.shared.lock());
        self.must_poll |= decider.must_poll;
        decider.to_wake.into_iter().for_each(Waker::wake);
        decision
    }

    /// Ends the flow: rejects further operations, drops the handler and wakes all Tokio tasks that
    /// wait for its operations.
    pub(super) fn end(&mut self) {
        {
            let mut state = self.shared.lock();
            // A flow that ended with an incomplete reply runs again, so its call continues.
            state.call_ended |= !state.ended && state.is_in_memory();
            state.ended = true;
        }
        if let Some(handler) = self.handler.take() {
            // The handler's destructors may panic.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(handler))) {
                limited_event!(ERROR, panic = %panic_message(&*panic), "handler destructor panicked");
            }
        }
        let wakers = {
            let mut state = self.shared.lock();
            let cancelled = std::mem::take(&mut state.cancel_wakers);
            let slots = state.slots.iter_mut();
            let slots = slots.filter_map(|slot| slot.waker.take());
            slots.chain(cancelled).collect::<Vec<_>>()
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.cancel();
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a message".to_owned())
}
