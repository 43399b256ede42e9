//! A parked call and the requests attached to it.
//!
//! Invariants: the answers of a round are taken once, from its first request; all requests of one round get the same
//! reply; the reply of the previous round is kept for a client that lost it.
//!
//! | request of | gets |
//! | --- | --- |
//! | the next or current round | the reply, when the handler is idle or ends |
//! | the previous round | the kept reply |
//! | an earlier round | an error: the token was already used |

mod attached;
mod promotion;

pub(crate) use attached::{AttachedEvent, AttachedRequest, Subscribed};

use super::answers::{AnswerSender, LiveAnswer};
use super::calls::LiveCalls;
use super::flow::{LiveEvent, LiveFlow};
use crate::limits::{LimitKey, LimitReached};
use crate::metrics::LiveCallEvent;
use crate::rounds::{ReplayRecord, reply_of};
use crate::tasks::{DetachReason, TaskSeed};
use parking_lot::Mutex;
use promotion::TaskPromotion;
use refrain_core::{FlowId, LiveBinding, LiveToken, Note, Stats};
use refrain_wire::{Answers, Ask, CallKind, Incomplete, Reply, RpcError, check_answer_shape};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

/// How long an undelivered reply and the last reply are kept.
pub(super) const REPLY_RETENTION: Duration = Duration::from_secs(60);
/// Maximum number of batches of notes buffered for a slow client. Further batches are dropped.
const NOTE_BUFFER: usize = 64;

/// The state shared by a parked handler and the requests of its call.
pub(super) struct ParkedCall {
    state: Mutex<ParkedState>,
    wake_driver: Notify,
    answers: AnswerSender,
}

/// The reason why a request cannot be attached to its call.
#[derive(Clone, Debug)]
pub(crate) enum AttachError {
    Rejected(RpcError),
    /// The answers exceed a limit. The request had no effect.
    Busy(LimitReached),
}

impl From<RpcError> for AttachError {
    fn from(error: RpcError) -> Self {
        Self::Rejected(error)
    }
}

impl From<LimitReached> for AttachError {
    fn from(reached: LimitReached) -> Self {
        Self::Busy(reached)
    }
}

/// The mutable part of a parked call.
#[derive(Default)]
struct ParkedState {
    round: u32,
    /// Whether a request of the current round arrived.
    has_request: bool,
    /// The time at which that request arrived, if its client supports tasks.
    task_eligible_since: Option<Instant>,
    open_asks: Vec<(String, Ask)>,
    /// The reply of the previous round, or of the whole call.
    last_reply: Option<LastReply>,
    /// Whether the last reply was delivered.
    is_delivered: bool,
    is_ended: bool,
    /// Set to cancel the handler.
    cancel_reason: Option<RpcError>,
    /// The statistics of the handler up to the last reply.
    reported_stats: Stats,
    /// Requests that wait for a reply, by number.
    waiting: Vec<(u64, Waker)>,
    request_count: u64,
    /// Sends notes to the latest request of the current round.
    notes: Option<mpsc::Sender<Vec<Note>>>,
    /// `None` after the first reply was recorded.
    record: Option<ReplayRecord>,
}

/// The reply of a round that has ended.
#[derive(Clone)]
struct LastReply {
    round: u32,
    reply: Reply,
    stats: Stats,
}

/// The end of a round.
enum RoundEnd {
    /// The handler waits for answers in another round.
    Asks(Reply),
    /// The call ended.
    Last(Reply),
    /// The call becomes a task.
    Detach(DetachReason),
}

/// The constant parts of a parked call's tokens and replies.
pub(crate) struct SealContext {
    pub(crate) flow: FlowId,
    pub(crate) binding: LiveBinding,
    pub(crate) deadline: u64,
    pub(crate) kind: CallKind,
}

impl ParkedCall {
    /// A call in its first round. The first reply is written to `record` before it is delivered.
    pub(super) fn new(answers: AnswerSender, record: Option<ReplayRecord>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(ParkedState {
                round: 1,
                has_request: true,
                // Has no effect if the client does not support tasks, because then there is no task seed.
                task_eligible_since: Some(Instant::now()),
                record,
                ..ParkedState::default()
            }),
            wake_driver: Notify::new(),
            answers,
        })
    }

    /// Attaches a request. The first request of a round delivers its answers.
    pub(super) fn attach(
        self: &Arc<Self>,
        round: u32,
        answers: Option<&Answers<'_>>,
        can_be_task: bool,
    ) -> Result<AttachedRequest, AttachError> {
        let (sender, notes) = mpsc::channel(NOTE_BUFFER);
        let mut state = self.state.lock();
        let is_previous = state
            .last_reply
            .as_ref()
            .is_some_and(|last| last.round == round);
        if !is_previous {
            if round != state.round {
                return Err(token_already_used().into());
            }
            if !state.has_request {
                let answers = self.answers_to_open_asks(&state.open_asks, answers)?;
                let is_unanswered = |key: &String| answers.iter().all(|answer| answer.key != *key);
                state.open_asks.retain(|(key, _)| is_unanswered(key));
                state.has_request = true;
                state.task_eligible_since = can_be_task.then(Instant::now);
                if !answers.into_iter().all(|answer| self.answers.send(answer)) {
                    return Err(RpcError::internal("the handler no longer accepts answers").into());
                }
            }
            state.notes = Some(sender);
        }
        state.request_count += 1;
        let number = state.request_count;
        drop(state);
        self.wake_driver.notify_one();
        Ok(AttachedRequest {
            parked: self.clone(),
            number,
            round,
            notes,
            subscribed: Subscribed::default(),
            cancels_call_on_drop: false,
        })
    }

    /// The answers to open asks. Other answers are ignored.
    fn answers_to_open_asks(
        &self,
        open_asks: &[(String, Ask)],
        answers: Option<&Answers<'_>>,
    ) -> Result<Vec<LiveAnswer>, AttachError> {
        let mut valid = Vec::new();
        for (key, ask) in open_asks {
            let Some(raw) = answers.and_then(|answers| answers.get(key)) else {
                continue;
            };
            check_answer_shape(ask.kind(), raw).map_err(|reason| {
                RpcError::invalid_params(format!("inputResponses[{key:?}]: {reason}"))
            })?;
            valid.push(LiveAnswer {
                key: key.clone(),
                permit: self.answers.acquire(raw.get().len())?,
                answer: Ok(raw.get().to_owned()),
            });
        }
        Ok(valid)
    }

    /// The caller that started the call.
    pub(super) fn caller(&self) -> &LimitKey {
        self.answers.caller()
    }

    fn cancel(&self, reason: RpcError) {
        self.state.lock().cancel_reason.get_or_insert(reason);
        self.wake_driver.notify_one();
    }

    /// The record, if no reply was written to it.
    pub(super) fn take_record(&self) -> Option<ReplayRecord> {
        self.state.lock().record.take()
    }

    /// Writes the first reply to the replay log. Later replies are not recorded.
    async fn record(&self, calls: &LiveCalls, reply: &Reply) {
        let record = self.state.lock().record.clone();
        if let Some(record) = record {
            record.write(reply, &calls.services.info).await;
            self.state.lock().record = None;
        }
    }

    /// Drives the handler to its end, or until it moves into a task, and returns the last reply.
    pub(super) async fn drive(
        &self,
        calls: &LiveCalls,
        mut live: LiveFlow,
        seed: Option<Box<TaskSeed>>,
        context: &SealContext,
    ) -> (Reply, Stats) {
        // The time at which the call ends if its last reply is not delivered by then.
        let mut deliver_by = None;
        let mut promotion = TaskPromotion::new(seed);
        let mut detach = promotion.is_immediate().then_some(DetachReason::Tool);
        loop {
            if let Some(reason) = detach.take() {
                let task = self.create_task(&mut live, &mut promotion, reason).await;
                let stats = live.stats();
                let reply = match task {
                    Ok(None) => continue,
                    Ok(Some(task)) => match self.cancelled_reply(calls) {
                        None => live.run_as_task(task),
                        Some(cancelled) => {
                            task.abandon();
                            cancelled
                        }
                    },
                    Err(error) => Reply::Error(error),
                };
                self.record(calls, &reply).await;
                return (reply, stats);
            }
            let end = tokio::select! {
                biased;
                end = self.run_round(calls, &mut live, context, &mut promotion) => end,
                () = sleep_until(deliver_by.unwrap_or_else(Instant::now)), if deliver_by.is_some() => {
                    deliver_by = None;
                    if !self.is_undelivered() {
                        continue;
                    }
                    let given_up = given_up_reply(calls, RpcError::call_over(UNDELIVERED));
                    RoundEnd::Last(given_up)
                }
            };
            match end {
                RoundEnd::Detach(reason) => detach = Some(reason),
                RoundEnd::Asks(reply) => {
                    self.record(calls, &reply).await;
                    self.deliver(reply, live.stats());
                    deliver_by = Instant::now().checked_add(REPLY_RETENTION);
                }
                RoundEnd::Last(reply) => {
                    let stats = live.stats();
                    // The handler's destructors run before the reply is delivered.
                    drop(live);
                    self.record(calls, &reply).await;
                    return (reply, stats);
                }
            }
        }
    }

    fn is_undelivered(&self) -> bool {
        let state = self.state.lock();
        !state.has_request && !state.is_delivered
    }

    /// Whether a client can repeat its request, by token or call id.
    pub(super) fn can_be_repeated(&self, has_call_id: bool) -> bool {
        has_call_id || self.state.lock().round > 1
    }

    /// Ends a call whose driver was dropped. Waiting requests get an error.
    pub(super) fn abandon(&self) {
        let state = self.state.lock();
        let (is_ended, stats) = (state.is_ended, state.reported_stats);
        drop(state);
        if !is_ended {
            self.end(internal_error(), stats);
        }
    }

    pub(super) fn end(&self, reply: Reply, stats: Stats) {
        self.state.lock().is_ended = true;
        self.deliver(reply, stats);
    }

    /// Runs the handler until the round ends.
    async fn run_round(
        &self,
        calls: &LiveCalls,
        live: &mut LiveFlow,
        context: &SealContext,
        promotion: &mut TaskPromotion,
    ) -> RoundEnd {
        loop {
            let mut wake_driver = pin!(self.wake_driver.notified());
            let mut has_request = false;
            let event = poll_fn(|cx| {
                let started = self.state.lock().task_eligible_since;
                if promotion.is_due(started, cx) {
                    return Poll::Ready(None);
                }
                let event = self.poll(live, &mut has_request, cx);
                if event.is_pending() && wake_driver.as_mut().poll(cx).is_ready() {
                    // The handler is reported idle only after it has seen the answers of a
                    // request.
                    let event = self.poll(live, &mut has_request, cx);
                    return Poll::Ready(Some(match event {
                        Poll::Ready(event) => event,
                        Poll::Pending => LiveEvent::Idle,
                    }));
                }
                event.map(Some)
            });
            let Some(event) = event.await else {
                return RoundEnd::Detach(DetachReason::Time);
            };
            let reply = match event {
                LiveEvent::Notes(notes) => {
                    self.send_notes(notes);
                    // A handler that never stops sending notes must not block the thread.
                    tokio::task::coop::consume_budget().await;
                    self.cancelled_reply(calls).map(RoundEnd::Last)
                }
                LiveEvent::Asks { asks, withdrawn } => {
                    let mut state = self.state.lock();
                    state.open_asks.retain(|(key, _)| !withdrawn.contains(key));
                    state.open_asks.extend(asks);
                    None
                }
                LiveEvent::Detach => Some(RoundEnd::Detach(DetachReason::Handler)),
                LiveEvent::Idle => {
                    let cancelled = self.cancelled_reply(calls).map(RoundEnd::Last);
                    cancelled.or_else(|| self.asks_reply(calls, live, context, has_request))
                }
                LiveEvent::Ended(end) => {
                    let reply = reply_of(*end, context.kind, live.output());
                    Some(RoundEnd::Last(self.final_reply(reply)))
                }
                LiveEvent::Crashed => {
                    let error = RpcError::internal("a test crashed the flow");
                    Some(RoundEnd::Last(Reply::Error(error)))
                }
                LiveEvent::Cancelled(error) => Some(RoundEnd::Last(given_up_reply(calls, error))),
            };
            if let Some(reply) = reply {
                return reply;
            }
        }
    }

    /// Polls the handler. Sets `has_request` to whether the round's answers arrived before the poll.
    fn poll(
        &self,
        live: &mut LiveFlow,
        has_request: &mut bool,
        cx: &mut Context<'_>,
    ) -> Poll<LiveEvent> {
        *has_request = self.state.lock().has_request;
        live.poll(cx)
    }

    /// The last reply of a cancelled call.
    fn cancelled_reply(&self, calls: &LiveCalls) -> Option<Reply> {
        let reason = self.state.lock().cancel_reason.clone()?;
        Some(given_up_reply(calls, reason))
    }

    /// The reply of a handler that ended. After the first round it cannot be `Busy`, because the call cannot be repeated.
    fn final_reply(&self, reply: Reply) -> Reply {
        match reply {
            Reply::Busy { error, .. } if self.state.lock().round > 1 => Reply::Error(error),
            reply => reply,
        }
    }

    /// The reply with the open asks, if the handler is idle and a request waits for it.
    fn asks_reply(
        &self,
        calls: &LiveCalls,
        live: &LiveFlow,
        context: &SealContext,
        has_request: bool,
    ) -> Option<RoundEnd> {
        let state = self.state.lock();
        if !has_request || state.open_asks.is_empty() || !live.is_idle() {
            return None;
        }
        let (round, asks) = (state.round, state.open_asks.clone());
        drop(state);
        let limit = calls.services.limits.flow.rounds;
        if round >= limit {
            return Some(RoundEnd::Last(Reply::Error(RpcError::internal(format!(
                "the call needs another round, but its limit is {limit} rounds"
            )))));
        }
        let token = LiveToken {
            flow: context.flow,
            round: round + 1,
            holder: calls.holder.clone(),
            deadline: context.deadline,
        };
        calls.services.metrics.live(LiveCallEvent::Parked);
        let token = calls.services.sealer.seal_live(&context.binding, &token);
        Some(RoundEnd::Asks(Reply::Incomplete(Incomplete {
            asks,
            state: Some(token),
        })))
    }

    /// Delivers the reply of the current round.
    fn deliver(&self, reply: Reply, stats: Stats) {
        let mut state = self.state.lock();
        let reported_stats = std::mem::replace(&mut state.reported_stats, stats);
        state.last_reply = Some(LastReply {
            round: state.round,
            reply,
            stats: Stats {
                replayed: stats.replayed - reported_stats.replayed,
                steps: stats.steps - reported_stats.steps,
            },
        });
        state.round += 1;
        state.has_request = false;
        state.task_eligible_since = None;
        state.is_delivered = false;
        state.notes = None;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }

    fn send_notes(&self, notes: Vec<Note>) {
        if let Some(client) = &self.state.lock().notes {
            // The notes are dropped if the client is slow or gone.
            let _ = client.try_send(notes);
        }
    }
}

/// The last reply of a call that is cancelled before its handler ended.
fn given_up_reply(calls: &LiveCalls, reason: RpcError) -> Reply {
    calls.services.metrics.live(LiveCallEvent::GivenUp);
    Reply::Error(reason)
}

/// The reply for a call whose driver panicked or was dropped.
pub(super) fn internal_error() -> Reply {
    Reply::Error(RpcError::internal("Internal error"))
}

const UNDELIVERED: &str = "the call was cancelled because its last reply was never fetched; its effects so far remain; call the tool again";

fn token_already_used() -> RpcError {
    RpcError::invalid_params(
        "this requestState was already used; continue with the requestState of the call's last reply",
    )
}
