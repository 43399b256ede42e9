//! Runs a flow in memory.
//!
//! | the handler … | its time is limited by | it has the permit of a call in flight |
//! | --- | --- | --- |
//! | works | `round_time`, restarted by each answer | yes |
//! | rests: only asks and sleeps are left | `live_time`, since the call started | no |
//!
//! A handler that waits for an answer ends when the instance stops. One that only sleeps goes on.
//!
//! A handler in the explicit style, which replies that it is incomplete, runs again once all its asks are answered.

use super::calls::{Closed, LiveCalls, stopping};
use crate::limits::Permit;
use crate::rounds::FlowSpec;
use crate::timer::{Timer, instant_of};
use jsonschema::Validator;
use refrain_core::{
    AfterWrite, AskError, End, Event, Fault, Flow, Note, PendingWrite, Snapshot, Start, Stats,
};
use refrain_wire::{Ask, RpcError};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// An answer for a live call.
#[derive(Clone)]
pub(crate) struct LiveAnswer {
    /// The key of the ask.
    pub(crate) key: String,
    /// The JSON text of the client's result, or why the client cannot answer.
    pub(crate) answer: Result<String, String>,
}

/// An event of a live flow.
pub(crate) enum LiveEvent {
    /// Progress and log messages.
    Notes(Vec<Note>),
    /// The handler makes asks, or withdraws some.
    Asks {
        asks: Vec<(String, Ask)>,
        withdrawn: Vec<String>,
    },
    /// Only asks and sleeps are left. Reported once, until something changes.
    Rests,
    /// The handler has ended.
    Over(Box<End>),
    /// A test crashed the flow.
    Crashed,
    /// The call has ended without its handler.
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
    /// The last event, reported after the notes before it.
    last: Option<Event>,
    /// The work of earlier runs of a handler in the explicit style.
    before: Stats,
    timer: Timer,
    /// When the call ends if it rests.
    ends: Option<Instant>,
    /// Wakes a call that waits for an answer when the instance stops.
    closed: Option<Closed>,
    /// When a handler at work must be at rest.
    works_until: Option<Instant>,
    /// Was the rest reported?
    is_reported: bool,
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
            is_reported: false,
            takes_permit: permit.is_some(),
            permit,
            _live: live,
        }
    }

    /// Connects the answers. They are received when the flow is polled.
    pub(crate) fn answers_from(&mut self, answers: mpsc::Receiver<LiveAnswer>) {
        self.answers = Some(answers);
    }

    /// The schema of structured content.
    pub(crate) fn output(&self) -> Option<&Validator> {
        self.spec.target.output().map(|output| &**output)
    }

    /// The work of the handler so far.
    pub(crate) fn stats(&self) -> Stats {
        let now = self.flow.stats();
        Stats {
            replayed: self.before.replayed + now.replayed,
            steps: self.before.steps + now.steps,
        }
    }

    #[cfg(feature = "testing")]
    /// Makes the flow crash after this many polls of its operations. For tests.
    pub(crate) fn crash_after(&mut self, polls: u32) {
        self.flow.crash_after(polls);
    }

    /// Are only asks and sleeps left?
    pub(crate) fn rests(&self) -> bool {
        self.explicit.is_some() || self.flow.is_at_rest()
    }

    /// Runs until there is an event.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<LiveEvent> {
        loop {
            match self.last.take() {
                Some(Event::Write(write)) => match self.published(*write) {
                    Some(event) => return Poll::Ready(event),
                    None => continue,
                },
                Some(Event::Ended(end)) => return Poll::Ready(LiveEvent::Over(Box::new(end))),
                Some(Event::Crashed) => return Poll::Ready(LiveEvent::Crashed),
                Some(Event::Notes(_) | Event::Settle | Event::Suspended(_) | Event::Detach) => {
                    unreachable!("handled below, and a live flow is neither cut nor detached")
                }
                None => {}
            }
            if let Err(failed) = self.take_answers(cx) {
                return Poll::Ready(LiveEvent::Over(Box::new(End::Failed(failed.into()))));
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
                    // Other tasks of the runtime may have asks too.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(Event::Notes(notes)) => {
                    // A handler may send notes for ever, so its limit is checked here too.
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

    /// The asks of a flow that came to rest. `None`: the flow goes on.
    fn published(&mut self, write: PendingWrite) -> Option<LiveEvent> {
        self.flow.confirm_write();
        self.is_reported = false;
        if self.flow.has_ended() {
            self.explicit = Some(Explicit {
                open: match write.then {
                    AfterWrite::HandOn => Vec::new(),
                    _ => write.snapshot.open_keys().map(ToOwned::to_owned).collect(),
                },
                snapshot: write.snapshot,
                answers: Vec::new(),
            });
        }
        let (asks, withdrawn) = (write.asks, write.withdrawn);
        let any = !asks.is_empty() || !withdrawn.is_empty();
        any.then_some(LiveEvent::Asks { asks, withdrawn })
    }

    /// Receives answers. The error ends a handler in the explicit style, whose client cannot answer.
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
        self.is_reported = false;
        let Some(explicit) = &mut self.explicit else {
            match answer {
                Ok(json) => self.flow.answer(&key, &json),
                Err(reason) => self.flow.fail_ask(&key, &reason),
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

    /// Waits for an answer, the handler or a deadline.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<LiveEvent> {
        let now = Instant::now();
        let limit = if self.rests() {
            self.works_until = None;
            self.permit = None;
            if let Some(why) = self.is_given_up(cx, now) {
                self.flow.cancel();
                return Poll::Ready(LiveEvent::GivenUp(why));
            }
            if !std::mem::replace(&mut self.is_reported, true) {
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

    /// Why a call at rest ends, if it does.
    fn is_given_up(&mut self, cx: &mut Context<'_>, now: Instant) -> Option<RpcError> {
        let asks = self.explicit.is_some() || self.flow.has_open_asks();
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

    /// Ends a handler that works for longer than the time limit.
    fn works_too_long(&mut self, now: Instant) -> Option<LiveEvent> {
        if self.works_until.is_none() {
            self.works_until = now.checked_add(self.calls.services.limits.round_time);
        }
        self.works_until.filter(|until| *until <= now)?;
        self.flow.cancel();
        Some(LiveEvent::Over(Box::new(End::Fault(Fault {
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
