//! Runs a flow in memory.
//!
//! | handler | time limit | holds a permit for calls in flight |
//! | --- | --- | --- |
//! | busy | `round_time`, restarted by each answer | yes |
//! | idle: waits only for answers and sleeps | `live_time`, from the start of the call | no |
//!
//! An idle call of an anonymous caller ends earlier if another caller needs its permit.
//!
//! When the instance no longer accepts connections, handlers that wait for an answer are cancelled. Handlers that only sleep
//! continue.
//!
//! A handler in the explicit style, which returns `Incomplete`, runs again when all its asks are answered.

use super::answers::{AnswerSender, LiveAnswer};
use super::calls::{Closed, LiveCalls, UnansweredCall, evicted, shutting_down};
use crate::limits::{LivePermit, Permit};
use crate::request_span::open_live;
use crate::rounds::{LiveSpec, delete_once_records};
use crate::tasks::{CallPermit, CreatedTask, Creating, TaskSeed};
use crate::timer::{Timer, instant_of};
use jsonschema::Validator;
use refrain_core::{
    AfterWrite, AskError, End, Event, Fault, Flow, Note, PendingWrite, Snapshot, Start, Stats,
};
use refrain_wire::{Ask, Reply, RpcError};
use serde_json::Value;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::Span;

/// An event of a flow in memory.
pub(crate) enum LiveEvent {
    Notes(Vec<Note>),
    Asks {
        asks: Vec<(String, Ask)>,
        withdrawn: Vec<String>,
    },
    /// The handler waits only for answers and sleeps. Reported once per idle period.
    Idle,
    /// The handler called `detach`.
    Detach,
    /// The handler ended.
    Ended(Box<End>),
    /// A test crashed the flow.
    Crashed,
    /// The call was cancelled before its handler ended.
    Cancelled(RpcError),
}

/// An `Incomplete` of a handler in the explicit style, until its asks are answered.
struct ExplicitWait {
    snapshot: Snapshot,
    /// The keys of the open asks.
    open: Vec<String>,
    /// The keys and JSON texts of the answers.
    answers: Vec<(String, String)>,
}

/// A flow whose home is memory. Dropping it cancels the handler.
pub(crate) struct LiveFlow {
    calls: Arc<LiveCalls>,
    spec: LiveSpec,
    flow: Flow,
    answers: Option<mpsc::Receiver<LiveAnswer>>,
    explicit: Option<ExplicitWait>,
    /// An event that is reported after the notes that precede it.
    deferred: Option<Event>,
    /// The statistics of earlier runs of a handler in the explicit style.
    earlier_stats: Stats,
    timer: Timer,
    /// When an idle call is cancelled.
    call_deadline: Option<Instant>,
    /// Completes when the instance stops accepting connections. Created when the handler first waits for an answer.
    closed: Option<Closed>,
    /// While this exists, a draining instance accepts connections. A call of a legacy session creates it with its first ask.
    unanswered: Option<UnansweredCall>,
    /// When a busy handler must be idle or done.
    round_deadline: Option<Instant>,
    is_idle_reported: bool,
    /// The permit for calls in flight, if this call needs one and its handler is busy.
    permit: Option<Permit>,
    live_permit: LivePermit,
    /// The span of a parked call while its handler is busy.
    run_span: Span,
    /// Whether the call is parked. Then each of its requests has a permit and a span. Otherwise
    /// the call has only one request, and runs in the span of that request.
    is_parked: bool,
}

impl LiveFlow {
    /// Creates the flow without polling it. `permit` is `None` if each request of the call holds its own permit.
    pub(crate) fn new(
        calls: &Arc<LiveCalls>,
        spec: LiveSpec,
        arguments: Value,
        start: Start,
        permit: Option<Permit>,
        live_permit: LivePermit,
    ) -> Self {
        Self {
            calls: calls.clone(),
            flow: calls.flows.start(&spec.flow, arguments, start.in_memory()),
            spec,
            answers: None,
            explicit: None,
            deferred: None,
            earlier_stats: Stats::default(),
            timer: Timer::default(),
            call_deadline: Instant::now().checked_add(calls.services.limits.live_time),
            closed: None,
            unanswered: permit.is_none().then(|| calls.count_unanswered()),
            round_deadline: None,
            is_idle_reported: false,
            is_parked: permit.is_none(),
            permit,
            live_permit,
            run_span: Span::none(),
        }
    }

    /// Polls the handler. A parked call has a separate span for each busy period.
    fn poll_flow(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        if self.is_parked && self.run_span.is_none() && !self.is_idle_reported {
            let first = self.flow.trace().exported();
            self.run_span = open_live(self.flow.id(), &self.spec.flow.name, first);
        }
        self.run_span.in_scope(|| self.flow.poll(cx))
    }

    /// Opens the channel for answers. It has capacity for all asks of a round.
    pub(crate) fn open_answers(&mut self) -> AnswerSender {
        let limits = &self.calls.services.limits;
        let (sender, answers) = AnswerSender::new(limits, self.live_permit.key());
        self.answers = Some(answers);
        sender
    }

    pub(crate) fn output(&self) -> Option<&Validator> {
        self.spec.flow.target.output().map(|output| &**output)
    }

    pub(crate) fn stats(&self) -> Stats {
        let current = self.flow.stats();
        Stats {
            replayed: self.earlier_stats.replayed + current.replayed,
            steps: self.earlier_stats.steps + current.steps,
        }
    }

    /// Makes the flow crash after this many polls of its asks and steps. For tests.
    #[cfg(feature = "testing")]
    pub(crate) fn crash_after(&mut self, polls: u32) {
        self.flow.crash_after(polls);
    }

    /// Starts to create a task for the call. Do not poll the flow until the task is created or rejected.
    pub(super) fn create_task(&mut self, seed: TaskSeed) -> Creating {
        seed.create(&mut self.flow, true)
    }

    /// Fails the handler's `detach` with this reason.
    pub(super) fn reject_detach(&mut self, reason: String) {
        self.flow.reject_detach(reason);
    }

    /// Moves the running handler into its task. Returns the reply to the call.
    pub(super) fn run_as_task(mut self, task: CreatedTask) -> Reply {
        self.live_permit.stop_waiting();
        task.run(self.flow, CallPermit::Live(self.live_permit))
    }

    /// Whether the handler waits only for answers and sleeps.
    pub(crate) fn is_idle(&self) -> bool {
        self.explicit.is_some() || self.flow.is_at_rest()
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<LiveEvent> {
        loop {
            match self.deferred.take() {
                Some(Event::Write(write)) => match self.handle_write(*write) {
                    Some(event) => return Poll::Ready(event),
                    None => continue,
                },
                Some(Event::Ended(end)) => {
                    delete_once_records(&self.calls.services, &self.flow);
                    return Poll::Ready(LiveEvent::Ended(Box::new(end)));
                }
                Some(Event::Crashed) => return Poll::Ready(LiveEvent::Crashed),
                Some(Event::Detach) => return Poll::Ready(LiveEvent::Detach),
                Some(Event::Notes(_) | Event::Settle | Event::Suspended(_)) => {
                    unreachable!("never deferred, and a live flow is not suspended")
                }
                None => {}
            }
            if let Err(error) = self.receive_answers(cx) {
                return Poll::Ready(LiveEvent::Ended(Box::new(End::Failed(error.into()))));
            }
            if let Some(explicit) = self.explicit.take_if(|explicit| explicit.open.is_empty()) {
                self.earlier_stats = self.stats();
                let start = Start::task(explicit.snapshot, &explicit.answers).in_memory();
                let (flows, spec) = (&self.calls.flows, &self.spec);
                self.flow = flows.start(&spec.flow, spec.parse_arguments(), start);
            }
            if self.explicit.is_some() {
                return self.wait(cx);
            }
            let event = match self.poll_flow(cx) {
                Poll::Pending => return self.wait(cx),
                Poll::Ready(Event::Settle) => {
                    // Other Tokio tasks may add asks, so they run first.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(Event::Notes(notes)) => {
                    // A handler that never stops sending notes must still meet its deadline.
                    let expired = self.check_round_time(Instant::now());
                    return Poll::Ready(expired.unwrap_or(LiveEvent::Notes(notes)));
                }
                Poll::Ready(event) => event,
            };
            let notes = self.flow.take_notes();
            self.deferred = Some(event);
            if !notes.is_empty() {
                return Poll::Ready(LiveEvent::Notes(notes));
            }
        }
    }

    /// Reports the asks of an idle flow. `None` if there is nothing to report.
    fn handle_write(&mut self, write: PendingWrite) -> Option<LiveEvent> {
        self.flow.confirm_write();
        self.is_idle_reported = false;
        if self.flow.has_ended() {
            self.explicit = Some(ExplicitWait {
                open: match write.then {
                    AfterWrite::HandOn => Vec::new(),
                    _ => write.snapshot.open_keys().map(ToOwned::to_owned).collect(),
                },
                snapshot: write.snapshot,
                answers: Vec::new(),
            });
        }
        let (asks, withdrawn) = (write.asks, write.withdrawn);
        if let Err(reached) = self.live_permit.grow(size_of_asks(&asks)) {
            self.flow.cancel();
            return Some(LiveEvent::Cancelled(RpcError::call_over(format!(
                "the call was cancelled: {reached}; its effects so far remain"
            ))));
        }
        let has_changes = !asks.is_empty() || !withdrawn.is_empty();
        has_changes.then_some(LiveEvent::Asks { asks, withdrawn })
    }

    /// Receives answers. An error ends a handler in the explicit style.
    fn receive_answers(&mut self, cx: &mut Context<'_>) -> Result<(), AskError> {
        while let Some(answers) = &mut self.answers {
            match answers.poll_recv(cx) {
                Poll::Pending => break,
                Poll::Ready(None) => self.answers = None,
                Poll::Ready(Some(answer)) => self.handle_answer(answer)?,
            }
        }
        Ok(())
    }

    fn handle_answer(&mut self, answer: LiveAnswer) -> Result<(), AskError> {
        let LiveAnswer {
            key,
            answer,
            permit,
        } = answer;
        self.live_permit.stop_waiting();
        self.live_permit.merge(permit);
        self.is_idle_reported = false;
        let Some(explicit) = &mut self.explicit else {
            match answer {
                Ok(json) => self.flow.answer(&key, &json),
                Err(reason) => self.flow.fail_ask(&key, &reason.to_string()),
            }
            return Ok(());
        };
        let Some(index) = explicit.open.iter().position(|open| *open == key) else {
            return Ok(());
        };
        explicit.open.remove(index);
        match answer {
            Ok(json) => explicit.answers.push((key, json)),
            Err(reason) => {
                let reason = reason.to_string();
                return Err(AskError::Failed { name: key, reason });
            }
        }
        Ok(())
    }

    /// Reports that the flow is idle, cancelled or timed out. Otherwise sets the timer to the next deadline.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<LiveEvent> {
        let now = Instant::now();
        let deadline = if self.is_idle() {
            self.round_deadline = None;
            self.permit = None;
            if let Some(reason) = self.cancel_reason(cx, now) {
                self.flow.cancel();
                return Poll::Ready(LiveEvent::Cancelled(reason));
            }
            if !std::mem::replace(&mut self.is_idle_reported, true) {
                self.run_span = Span::none();
                return Poll::Ready(LiveEvent::Idle);
            }
            self.call_deadline
        } else {
            if !self.is_parked && self.permit.is_none() {
                let calls = &self.calls.services.limits.calls;
                self.permit = Some(calls.acquire_unlimited(self.live_permit.key().clone()));
            }
            if let Some(event) = self.check_round_time(now) {
                return Poll::Ready(event);
            }
            self.round_deadline
        };
        let wake = instant_of(self.flow.wake_at(), &*self.calls.services.source, now);
        self.timer.set([deadline, wake], cx);
        Poll::Pending
    }

    /// The error that ends an idle call, if it must end.
    fn cancel_reason(&mut self, cx: &mut Context<'_>, now: Instant) -> Option<RpcError> {
        let has_asks = self.explicit.is_some() || self.flow.has_open_asks();
        if self.call_deadline.is_some_and(|at| at <= now) {
            return Some(timed_out(self.calls.services.limits.live_time, has_asks));
        }
        if !has_asks {
            return None;
        }
        if self.live_permit.wait(cx) {
            return Some(evicted());
        }
        let calls = &self.calls;
        self.unanswered
            .get_or_insert_with(|| calls.count_unanswered());
        let closed = self.closed.get_or_insert_with(|| calls.closed());
        closed.as_mut().poll(cx).is_ready().then(shutting_down)
    }

    /// Ends a busy handler whose time limit has passed.
    fn check_round_time(&mut self, now: Instant) -> Option<LiveEvent> {
        if self.round_deadline.is_none() {
            let round_time = self.spec.flow.target.round_time();
            let limit = round_time.unwrap_or(self.calls.services.limits.round_time);
            self.round_deadline = now.checked_add(limit);
        }
        self.round_deadline.filter(|deadline| *deadline <= now)?;
        self.flow.cancel();
        let fault = End::Fault(Fault::round_time());
        Some(LiveEvent::Ended(Box::new(fault)))
    }
}

/// The size of asks in memory: one copy in the flow, one in the reply or stream, and one for a repeated request.
fn size_of_asks(asks: &[(String, Ask)]) -> usize {
    let text = |(key, ask): &(String, Ask)| {
        key.len()
            + match ask {
                Ask::Form { message, schema } => message.len() + schema.get().len(),
                Ask::Url { message, url } => message.len() + url.len(),
                Ask::Sampling(params) => serde_json::to_vec(params).map_or(0, |json| json.len()),
                Ask::Roots => 0,
            }
    };
    3 * asks.iter().map(text).sum::<usize>()
}

fn timed_out(limit: Duration, has_asks: bool) -> RpcError {
    let reason = match has_asks {
        true => "no answer arrived",
        false => "it did not finish",
    };
    RpcError::call_over(format!(
        "the call was cancelled: {reason} within the limit of {} seconds for live calls; its effects so far remain; call the tool again",
        limit.as_secs()
    ))
}
