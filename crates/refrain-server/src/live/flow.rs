//! A flow in memory, driven.
//!
//! | the handler … | its time is limited by | it has the permit of a call in flight |
//! | --- | --- | --- |
//! | works | `round_time`, anew after each answer | yes |
//! | rests: nothing but asks and sleeps is left | `live_time`, since the call began | no |
//!
//! One that waits for an answer is given up when the instance is on its way out. One that only sleeps goes on by itself.
//!
//! A handler in the explicit style, which replies that it is incomplete, is run again once all that it asked is answered.

use super::calls::{Closed, LiveCalls, stopping};
use crate::limits::Permit;
use crate::rounds::FlowSpec;
use crate::timer::{Timer, instant_of};
use jsonschema::Validator;
use refrain_core::{AskError, Event, Fault, Flow, Note, Snapshot, Start, Stats, Then, Write};
use refrain_wire::{Ask, RpcError};
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// An answer for a live call: what the client says to what was asked under this key.
#[derive(Clone)]
pub(crate) struct LiveAnswer {
    /// The key that it was asked under.
    pub(crate) key: String,
    /// The JSON text of the client's result, or why the client cannot answer.
    pub(crate) answer: Result<String, String>,
}

/// What a person said is nobody's business.
impl fmt::Debug for LiveAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveAnswer")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// What a live flow reports.
pub(crate) enum LiveEvent {
    /// The handler has something to tell the client.
    Notes(Vec<Note>),
    /// The handler asks, or needs no answer any more to what it asked.
    Asks {
        asks: Vec<(String, Ask)>,
        withdrawn: Vec<String>,
    },
    /// Nothing but asks and sleeps is left, as far as can be seen. Said once, until something happens.
    Rests,
    /// The handler is done with.
    Over(Box<Event>),
    /// Its time is up.
    GivenUp(RpcError),
}

/// An incomplete reply in the explicit style that waits for its answers.
struct Explicit {
    snapshot: Snapshot,
    open: Vec<String>,
    answers: Vec<(String, String)>,
}

/// A flow whose home is memory. Dropping it ends the handler.
pub(crate) struct LiveFlow {
    calls: Arc<LiveCalls>,
    spec: FlowSpec<'static>,
    flow: Flow,
    answers: Option<mpsc::Receiver<LiveAnswer>>,
    explicit: Option<Explicit>,
    /// How the flow came to an end, to be said after what the handler said last.
    last: Option<Event>,
    /// What earlier runs of a handler in the explicit style did.
    before: Stats,
    timer: Timer,
    /// When the call is given up, if it rests.
    ends: Option<Instant>,
    /// Tells a call that waits for an answer when the instance is on its way out.
    closed: Option<Closed>,
    /// When the handler must be at rest again.
    works_until: Option<Instant>,
    /// Was it said that the handler rests?
    told: bool,
    /// Does the handler have the permit of a call in flight while it works?
    takes_permit: bool,
    permit: Option<Permit>,
    _live: Permit,
}

impl LiveFlow {
    /// Starts the handler; it is not polled yet. Without a permit of its own, its requests take one each.
    pub(crate) fn new(
        calls: &Arc<LiveCalls>,
        spec: FlowSpec<'static>,
        start: Start,
        permit: Option<Permit>,
        live: Permit,
    ) -> Self {
        Self {
            calls: calls.clone(),
            flow: calls.flows.start(spec.clone(), start.in_memory()),
            spec,
            answers: None,
            explicit: None,
            last: None,
            before: Stats::default(),
            timer: Timer::default(),
            ends: Instant::now().checked_add(calls.services.limits.live_time),
            closed: None,
            works_until: None,
            told: false,
            takes_permit: permit.is_some(),
            permit,
            _live: live,
        }
    }

    /// Has answers come from here. They are taken in when the flow is polled.
    pub(crate) fn answers_from(&mut self, answers: mpsc::Receiver<LiveAnswer>) {
        self.answers = Some(answers);
    }

    /// The schema of structured content.
    pub(crate) fn output(&self) -> Option<&Validator> {
        self.spec.target.output().map(|output| &**output)
    }

    /// What the handler did so far.
    pub(crate) fn stats(&self) -> Stats {
        let now = self.flow.stats();
        Stats {
            replayed: self.before.replayed + now.replayed,
            steps: self.before.steps + now.steps,
        }
    }

    /// Makes the flow crash after this many polls of its operations. For tests.
    pub(crate) fn crash_after(&mut self, polls: u32) {
        self.flow.crash_after(polls);
    }

    /// Is nothing left but asks and sleeps, as far as can be seen?
    pub(crate) fn rests(&self) -> bool {
        self.explicit.is_some() || self.flow.rests()
    }

    /// Goes on until there is something to report.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<LiveEvent> {
        loop {
            if let Some(event) = self.last.take() {
                if let Some(event) = self.reported(event) {
                    return Poll::Ready(event);
                }
                continue;
            }
            if let Err(failed) = self.take_answers(cx) {
                return Poll::Ready(LiveEvent::Over(Box::new(Event::Done(Err(failed.into())))));
            }
            if let Some(explicit) = self.explicit.take_if(|explicit| explicit.open.is_empty()) {
                self.before = self.stats();
                let start = Start::task(explicit.snapshot, &explicit.answers);
                let flows = &self.calls.flows;
                self.flow = flows.start(self.spec.clone(), start.in_memory());
            }
            if self.explicit.is_some() {
                return self.wait(cx);
            }
            let event = match self.flow.poll(cx) {
                Poll::Pending => return self.wait(cx),
                Poll::Ready(Event::Settle) => {
                    // Let other tasks run: they may have asks too.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(Event::Notes(notes)) => {
                    // One that says something at every turn has no other time.
                    let over = self.works_too_long(Instant::now());
                    return Poll::Ready(over.unwrap_or(LiveEvent::Notes(notes)));
                }
                Poll::Ready(event) => event,
            };
            let notes = self.flow.take_notes();
            self.last = Some(event);
            if !notes.is_empty() {
                return Poll::Ready(LiveEvent::Notes(notes));
            }
        }
    }

    /// What an event comes to. `None`: the flow goes on.
    fn reported(&mut self, event: Event) -> Option<LiveEvent> {
        match event {
            Event::Write(write) => self.published(*write),
            event => Some(LiveEvent::Over(Box::new(event))),
        }
    }

    fn published(&mut self, write: Write) -> Option<LiveEvent> {
        self.flow.written();
        self.told = false;
        if self.flow.is_over() {
            self.explicit = Some(Explicit {
                open: match write.then {
                    Then::HandOn => Vec::new(),
                    _ => write.snapshot.asked().map(ToOwned::to_owned).collect(),
                },
                snapshot: write.snapshot,
                answers: Vec::new(),
            });
        }
        let (asks, withdrawn) = (write.asks, write.withdrawn);
        let any = !asks.is_empty() || !withdrawn.is_empty();
        any.then_some(LiveEvent::Asks { asks, withdrawn })
    }

    /// Takes in the answers that have come. The error is that of a handler in the explicit style, which has no other way
    /// to learn that the client cannot answer.
    fn take_answers(&mut self, cx: &mut Context<'_>) -> Result<(), AskError> {
        while let Some(answers) = &mut self.answers {
            match answers.poll_recv(cx) {
                Poll::Pending => break,
                Poll::Ready(None) => self.answers = None,
                Poll::Ready(Some(answer)) => self.take(answer)?,
            }
        }
        Ok(())
    }

    fn take(&mut self, LiveAnswer { key, answer }: LiveAnswer) -> Result<(), AskError> {
        self.told = false;
        let Some(explicit) = &mut self.explicit else {
            match answer {
                Ok(json) => self.flow.answer(&key, &json),
                Err(reason) => self.flow.fail(&key, &reason),
            }
            return Ok(());
        };
        let Some(at) = explicit.open.iter().position(|open| *open == key) else {
            return Ok(());
        };
        explicit.open.remove(at);
        match answer {
            Ok(json) => explicit.answers.push((key, json)),
            Err(reason) => return Err(AskError::Failed { name: key, reason }),
        }
        Ok(())
    }

    /// There is nothing to do but wait: for an answer, for the handler, for the time.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<LiveEvent> {
        let now = Instant::now();
        let limit = if self.rests() {
            self.works_until = None;
            self.permit = None;
            if let Some(why) = self.is_given_up(cx, now) {
                self.flow.cancel();
                return Poll::Ready(LiveEvent::GivenUp(why));
            }
            if !std::mem::replace(&mut self.told, true) {
                return Poll::Ready(LiveEvent::Rests);
            }
            self.ends
        } else {
            if self.takes_permit && self.permit.is_none() {
                self.permit = Some(self.calls.services.limits.calls.acquire_anyway());
            }
            if let Some(event) = self.works_too_long(now) {
                return Poll::Ready(event);
            }
            self.works_until
        };
        let wake = instant_of(self.flow.wake_at(), &*self.calls.services.source, now);
        self.timer.set([limit, wake], cx);
        Poll::Pending
    }

    /// Why a call that rests is not waited for any longer.
    fn is_given_up(&mut self, cx: &mut Context<'_>, now: Instant) -> Option<RpcError> {
        let asks = self.explicit.is_some() || self.flow.asks();
        if self.ends.is_some_and(|at| at <= now) {
            return Some(took_too_long(self.calls.services.limits.live_time, asks));
        }
        if !asks {
            return None;
        }
        let calls = &self.calls;
        let closed = self.closed.get_or_insert_with(|| calls.closed());
        closed.as_mut().poll(cx).is_ready().then(stopping)
    }

    /// Ends a handler that has been at work for too long.
    fn works_too_long(&mut self, now: Instant) -> Option<LiveEvent> {
        if self.works_until.is_none() {
            self.works_until = now.checked_add(self.calls.services.limits.round_time);
        }
        self.works_until.filter(|until| *until <= now)?;
        self.flow.cancel();
        Some(LiveEvent::Over(Box::new(Event::Fault(Fault {
            message: "the handler took longer than the time limit of a round".into(),
            bad_answer: false,
        }))))
    }
}

fn took_too_long(limit: Duration, asks: bool) -> RpcError {
    let why = if asks {
        "had no answer"
    } else {
        "was not done"
    };
    RpcError::call_over(format!(
        "the call was given up: it {why} within the limit of {} seconds for live calls; what it did so far is done; call again",
        limit.as_secs()
    ))
}
