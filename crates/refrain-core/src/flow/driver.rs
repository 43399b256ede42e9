//! The driver: polls the handler, and decides what happens when it is at rest.

use super::mark::Mark;
use super::rest::{Decision, Rest, Settle, over};
use super::state::{Shared, State};
use super::task::Withdraw;
use super::waker::FlowWaker;
use super::{Cut, Env, Fault, Note, Outcome, Start, Stats, Then, Write};
use crate::{Cx, Error, ErrorKind};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A handler at work.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send>>;

/// What a flow reports to whoever drives it.
#[derive(Debug)]
pub enum Event {
    /// The handler has something to tell the client. Send it, and poll again.
    Notes(Vec<Note>),
    /// Other tasks hold parts of this flow and may ask too. Let them run, and poll again.
    Settle,
    /// The flow was set down: seal its snapshot and send its asks. The flow is over.
    Cut(Cut),
    /// The handler wants to become a task: store [`Flow::detachment`], then call [`Flow::become_task`] or
    /// [`Flow::stay`], and poll again.
    Detach,
    /// In a task: write this before anything else. What comes next is said in it. In a flow whose home is memory there is
    /// nothing to write, but asks to publish or to withdraw: call [`Flow::written`], and poll again unless the
    /// flow [is over](Flow::is_over).
    Write(Box<Write>),
    /// The handler returned. The flow is over.
    Done(Result<Outcome, Error>),
    /// A mistake of the author, or a limit passed. The flow is over.
    Fault(Fault),
    /// The handler panicked. The flow is over.
    Panicked(String),
    /// A test made the round crash. The flow is over, and nothing is to be answered.
    Crashed,
}

/// Polls in place before other work of the thread is let in.
const IN_PLACE: u32 = 32;
/// One run of a handler, from the top: one round of a call.
pub struct Flow {
    pub(super) shared: Arc<Shared>,
    waker: Arc<FlowWaker>,
    handler_waker: Waker,
    handler: Option<HandlerFuture>,
    /// The handler is to be polled, woken or not.
    pub(super) due: bool,
    /// Polls since the handler was last at rest.
    restless: u32,
    settle: Settle,
    /// How the flow ended, to be said once what it came to is written.
    last: Option<Box<Event>>,
}

impl Flow {
    /// Starts a round. `handler` is given the flow's [`Cx`]; it is not polled yet.
    pub fn new(env: Env, start: Start, handler: impl FnOnce(Cx) -> HandlerFuture) -> Self {
        let waker = Arc::new(FlowWaker::default());
        let shared = Shared::new(env, start, waker.clone());
        let handler = handler(Cx::new(shared.clone()));
        Self {
            shared,
            handler_waker: waker.clone().into(),
            waker,
            handler: Some(handler),
            due: true,
            restless: 0,
            settle: Settle::default(),
            last: None,
        }
    }

    /// What the handler said and was not reported yet: to be sent before the reply.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.shared.lock().notes)
    }

    /// What this round did so far.
    pub fn stats(&self) -> Stats {
        self.shared.lock().stats
    }

    #[cfg(feature = "testing")]
    /// Makes the round crash after this many polls of its operations: nothing is answered, as if the process had
    /// died there. For tests of what survives.
    pub fn crash_after(&mut self, polls: u32) {
        self.shared.lock().fuse = Some(polls);
    }

    /// Runs the handler as far as it goes.
    ///
    /// # Panics
    ///
    /// If polled again after an event that said the flow is over.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        if let Some(event) = self.last.take() {
            return Poll::Ready(*event);
        }
        self.waker.forward_to(cx.waker());
        for _ in 0..IN_PLACE {
            if self.due || self.waker.is_woken() {
                self.due = false;
                self.restless += 1;
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
            if self.waker.is_woken() && !self.must_stop() {
                if self.restless >= IN_PLACE {
                    self.restless = 0;
                    if self.at_rest(|rest, state| rest.in_passing(state)) {
                        return Poll::Ready(Event::Write(self.write(Then::GoOn).into()));
                    }
                }
                if yielding {
                    break;
                }
                continue;
            }
            match self.decide() {
                Decision::Again => {}
                Decision::Wait => return Poll::Pending,
                Decision::Settle => return Poll::Ready(Event::Settle),
                Decision::Detach => return Poll::Ready(Event::Detach),
                Decision::Write(then) => return Poll::Ready(Event::Write(self.write(then).into())),
                Decision::Cut(cut) => {
                    self.end();
                    return Poll::Ready(Event::Cut(cut));
                }
                Decision::Over(event) => return Poll::Ready(self.end_with(event)),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The time of the round is up: cuts with the asks that are open, or reports that the handler took too long.
    pub fn expire(&mut self) -> Event {
        let event = {
            let mut state = self.shared.lock();
            let asks = state.open_asks();
            if asks > 0 && !state.passes_limit(asks, &self.shared.env.limits) {
                Event::Cut(state.cut(self.shared.flow))
            } else {
                over(&mut state).unwrap_or_else(|| {
                    Event::Fault(Fault {
                        message: "the handler took longer than the time limit of a round".into(),
                        bad_answer: false,
                    })
                })
            }
        };
        self.note_failure(&event);
        self.end();
        event
    }

    /// Drops the handler, if it is still there. The flow is over.
    pub fn cancel(&mut self) {
        if self.handler.is_some() {
            self.end();
        }
    }

    fn write(&mut self, then: Then) -> Write {
        let withdraw = match then {
            Then::Rest {
                perhaps_more: false,
                ..
            } => Withdraw::All,
            _ => Withdraw::Dropped,
        };
        let write = self.shared.write(then, withdraw);
        if then == Then::HandOn {
            self.end();
        }
        write
    }

    /// A call that has failed is over, unless it is a task, which may be tried again.
    fn note_failure(&self, event: &Event) {
        if matches!(event, Event::Fault(_) | Event::Panicked(_)) {
            let mut state = self.shared.lock();
            state.over |= !state.is_task();
        }
    }

    /// Ends the flow. What an attempt that will be repeated has come to is written first, and its asks stay.
    fn end_with(&mut self, event: Event) -> Event {
        self.note_failure(&event);
        let repeated = match &event {
            Event::Done(Err(error)) => matches!(error.kind(), ErrorKind::Retry),
            Event::Panicked(_) => true,
            _ => false,
        };
        let write = repeated && self.shared.lock().is_unwritten();
        let event = if write {
            self.last = Some(Box::new(event));
            Event::Write(self.shared.write(Then::GoOn, Withdraw::Nothing).into())
        } else {
            event
        };
        self.end();
        event
    }

    fn must_stop(&self) -> bool {
        let state = self.shared.lock();
        state.fault.is_some() || state.crashed || state.retry.is_some()
    }

    fn poll_handler(&mut self) -> Poll<Event> {
        self.waker.begin();
        if let Some(passes) = self.shared.passes.get() {
            passes.next();
        }
        let handler = self
            .handler
            .as_mut()
            .expect("a flow that is over is not polled again");
        let polled = {
            let _mark = Mark::driving(&self.shared);
            let mut cx = Context::from_waker(&self.handler_waker);
            catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(&mut cx)))
        };
        let done = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(done)) => done,
            Err(panic) => {
                let event = Event::Panicked(panic_message(&*panic));
                return Poll::Ready(self.end_with(event));
            }
        };
        let event = {
            let mut state = self.shared.lock();
            match over(&mut state) {
                Some(event) => event,
                None => self.finish(&mut state, done),
            }
        };
        Poll::Ready(self.end_with(event))
    }

    fn finish(&self, state: &mut State, done: Result<Outcome, Error>) -> Event {
        match done {
            Ok(Outcome::Incomplete(reply)) => {
                if state.passes_limit(reply.asks.len(), &self.shared.env.limits)
                    && let Some(event) = over(state)
                {
                    return event;
                }
                state
                    .cut_explicit(&self.shared.env, self.shared.flow, reply)
                    .unwrap_or_else(|error| Event::Done(Err(error)))
            }
            done => {
                let repeated = |error: &Error| matches!(error.kind(), ErrorKind::Retry);
                state.over = !(state.is_task() && done.as_ref().is_err_and(repeated));
                Event::Done(done)
            }
        }
    }

    /// What to do now that the handler is at rest.
    fn decide(&mut self) -> Decision {
        self.restless = 0;
        self.at_rest(|rest, state| rest.decide(state))
    }

    fn at_rest<T>(&mut self, decide: impl FnOnce(&mut Rest<'_>, &mut State) -> T) -> T {
        let mut rest = Rest {
            shared: &self.shared,
            waker: &self.waker,
            handler_waker: &self.handler_waker,
            settle: &mut self.settle,
            due: false,
            wake: Vec::new(),
        };
        let decision = decide(&mut rest, &mut self.shared.lock());
        self.due |= rest.due;
        for waker in rest.wake {
            waker.wake();
        }
        decision
    }

    /// Ends the flow: nothing can ask any more, the handler is dropped, and whoever waits is told.
    pub(super) fn end(&mut self) {
        let mut wake = Vec::new();
        {
            let mut state = self.shared.lock();
            // One that has ended by an incomplete reply is run again.
            state.over |= !state.ended && state.is_in_memory();
            state.ended = true;
        }
        if let Some(handler) = self.handler.take() {
            // Destructors are the author's code, and may panic.
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(handler)));
            if let Err(panic) = dropped {
                tracing::error!(panic = %panic_message(&*panic), "a destructor of the handler panicked");
            }
        }
        {
            let mut state = self.shared.lock();
            wake.extend(state.slots.iter_mut().filter_map(|slot| slot.waker.take()));
            wake.append(&mut state.cancelled);
        }
        for waker in wake {
            waker.wake();
        }
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
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
