//! A handler that waits for its next round, and the requests that wait for it.
//!
//! Invariants: the answers of a round are taken once, from its first request; every request of one round gets the same
//! reply; the reply of the last round is kept for a client that lost it.
//!
//! | the request is of … | it gets |
//! | --- | --- |
//! | the awaited round | its reply, when the handler rests or ends |
//! | the same round, already at work | the same reply |
//! | the round before | the reply of that round |
//! | an earlier round | an error: the token was used |

mod attached;

pub(crate) use attached::{Attached, AttachedEvent, Subscribed};

use super::calls::LiveCalls;
use super::flow::{LiveAnswer, LiveEvent, LiveFlow};
use crate::metrics::LiveCount;
use crate::rounds::{Record, reply_of};
use parking_lot::Mutex;
use refrain_core::{FlowId, LiveBinding, LiveToken, Note, Stats};
use refrain_wire::{Answers, Ask, CallKind, Incomplete, Reply, RpcError, check_answer_shape};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

/// How long an undelivered reply, and the last reply, are kept.
pub(super) const KEPT: Duration = Duration::from_secs(60);
/// Notes buffered for a slow client; further ones are dropped.
const NOTES: usize = 64;

/// The state that a parked handler and the requests of its call share.
pub(super) struct Parked {
    state: Mutex<State>,
    /// Wakes the driver.
    look: Notify,
    answers: mpsc::Sender<LiveAnswer>,
}

#[derive(Default)]
struct State {
    /// The round that is awaited or at work.
    round: u32,
    /// Has a request of that round arrived?
    begun: bool,
    /// Asks without an answer.
    open: Vec<(String, Ask)>,
    /// The reply of the round before, or of the whole call.
    last: Option<Last>,
    /// Was that reply delivered?
    read: bool,
    /// Was it the reply of the whole call?
    over: bool,
    /// Why the handler must end at once.
    given_up: Option<RpcError>,
    /// The work of the handler up to the last reply.
    counted: Stats,
    /// Requests that wait for a reply, by number.
    waiting: Vec<(u64, Waker)>,
    requests: u64,
    notes: Option<mpsc::Sender<Vec<Note>>>,
    /// The record of the first reply, until it is written.
    record: Option<Record>,
}

#[derive(Clone)]
struct Last {
    round: u32,
    reply: Reply,
    stats: Stats,
}

/// The reply of a handler to the round at work.
enum Said {
    /// The handler asks and waits for another round.
    Asks(Reply),
    /// The handler has ended.
    Last(Reply),
}

/// The constant parts of the tokens and replies of a parked call.
pub(crate) struct Sealing {
    pub(crate) flow: FlowId,
    pub(crate) binding: LiveBinding,
    pub(crate) deadline: u64,
    pub(crate) kind: CallKind,
}

impl Parked {
    /// A call in its first round. Its reply is written to the record before it is delivered.
    pub(super) fn new(answers: mpsc::Sender<LiveAnswer>, record: Option<Record>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                round: 1,
                begun: true,
                record,
                ..State::default()
            }),
            look: Notify::new(),
            answers,
        })
    }

    /// Attaches a request of this round, and passes its answers on if it is the first.
    pub(super) fn attach(
        self: &Arc<Self>,
        round: u32,
        answers: Option<&Answers<'_>>,
    ) -> Result<Attached, RpcError> {
        let (sender, notes) = mpsc::channel(NOTES);
        let mut state = self.state.lock();
        let known = state.last.as_ref().is_some_and(|last| last.round == round);
        if !known {
            if round != state.round {
                return Err(used_up());
            }
            if !state.begun {
                let given = fitting(&state.open, answers)?;
                let is_open = |key: &String| given.iter().all(|answer| answer.key != *key);
                state.open.retain(|(key, _)| is_open(key));
                state.begun = true;
                for answer in given {
                    // The channel holds as many answers as there are asks at once.
                    if self.answers.try_send(answer).is_err() {
                        return Err(RpcError::internal("the handler takes no answers any more"));
                    }
                }
            }
            state.notes = Some(sender);
        }
        state.requests += 1;
        let number = state.requests;
        drop(state);
        self.look.notify_one();
        Ok(Attached {
            parked: self.clone(),
            number,
            round,
            notes,
            subscribed: Subscribed::default(),
            ends_call: false,
        })
    }

    /// Ends the call at once with this error.
    fn give_up(&self, why: RpcError) {
        self.state.lock().given_up.get_or_insert(why);
        self.look.notify_one();
    }

    /// Takes the record if no reply was written to it.
    pub(super) fn unrecorded(&self) -> Option<Record> {
        self.state.lock().record.take()
    }

    async fn record(&self, calls: &LiveCalls, reply: &Reply) {
        let record = self.state.lock().record.clone();
        if let Some(record) = record {
            record.write(reply, &calls.services.info).await;
            self.state.lock().record = None;
        }
    }

    /// Drives the handler to its end and returns the last reply.
    pub(super) async fn drive(
        &self,
        calls: &LiveCalls,
        mut live: LiveFlow,
        sealing: &Sealing,
    ) -> (Reply, Stats) {
        // When the last reply must have been delivered.
        let mut read_by = None;
        loop {
            let said = tokio::select! {
                biased;
                said = self.next(calls, &mut live, sealing) => said,
                () = sleep_until(read_by.unwrap_or_else(Instant::now)), if read_by.is_some() => {
                    read_by = None;
                    if !self.is_forgotten() {
                        continue;
                    }
                    give_up(calls, RpcError::call_over(FORGOTTEN))
                }
            };
            match said {
                Said::Asks(reply) => {
                    self.record(calls, &reply).await;
                    self.reply(reply, live.stats());
                    read_by = Instant::now().checked_add(KEPT);
                }
                Said::Last(reply) => {
                    let stats = live.stats();
                    // The handler's destructors are part of the call.
                    drop(live);
                    self.record(calls, &reply).await;
                    return (reply, stats);
                }
            }
        }
    }

    /// Is the last reply undelivered?
    fn is_forgotten(&self) -> bool {
        let state = self.state.lock();
        !state.begun && !state.read
    }

    /// Can a client ask for the last reply again, with a token or a call id?
    pub(super) fn can_be_asked_again(&self, has_call_id: bool) -> bool {
        has_call_id || self.state.lock().round > 1
    }

    /// The driver was dropped: waiting requests get an error, unless the call has ended.
    pub(super) fn let_go(&self) {
        let state = self.state.lock();
        let (over, stats) = (state.over, state.counted);
        drop(state);
        if !over {
            self.end(broken(), stats);
        }
    }

    /// Ends the call with its last reply.
    pub(super) fn end(&self, reply: Reply, stats: Stats) {
        self.state.lock().over = true;
        self.reply(reply, stats);
    }

    /// Drives the handler to its next reply.
    async fn next(&self, calls: &LiveCalls, live: &mut LiveFlow, sealing: &Sealing) -> Said {
        loop {
            let mut look = pin!(self.look.notified());
            let mut begun = false;
            let event = poll_fn(|cx| {
                let event = self.poll(live, &mut begun, cx);
                if event.is_pending() && look.as_mut().poll(cx).is_ready() {
                    // The handler sees the answers of a request before its rest is reported.
                    let event = self.poll(live, &mut begun, cx);
                    return Poll::Ready(match event {
                        Poll::Ready(event) => event,
                        Poll::Pending => LiveEvent::Rests,
                    });
                }
                event
            });
            let said = match event.await {
                LiveEvent::Notes(notes) => {
                    self.tell(notes);
                    // A handler that always has notes must not keep the thread.
                    tokio::task::coop::consume_budget().await;
                    self.given_up(calls)
                }
                LiveEvent::Asks { asks, withdrawn } => {
                    let mut state = self.state.lock();
                    state.open.retain(|(key, _)| !withdrawn.contains(key));
                    state.open.extend(asks);
                    None
                }
                LiveEvent::Rests => {
                    let given_up = self.given_up(calls);
                    given_up.or_else(|| self.at_rest(calls, live, sealing, begun))
                }
                LiveEvent::Over(end) => {
                    let reply = reply_of(*end, sealing.kind, live.output());
                    Some(Said::Last(reply))
                }
                LiveEvent::Crashed => {
                    let error = RpcError::internal("a test crashed the flow");
                    Some(Said::Last(Reply::Error(error)))
                }
                LiveEvent::GivenUp(error) => Some(give_up(calls, error)),
            };
            if let Some(said) = said {
                return said;
            }
        }
    }

    /// Polls the handler. `begun` tells whether the answers of the round were received before.
    fn poll(&self, live: &mut LiveFlow, begun: &mut bool, cx: &mut Context<'_>) -> Poll<LiveEvent> {
        *begun = self.state.lock().begun;
        live.poll(cx)
    }

    /// The last reply of a call that was cancelled.
    fn given_up(&self, calls: &LiveCalls) -> Option<Said> {
        let why = self.state.lock().given_up.clone()?;
        Some(give_up(calls, why))
    }

    /// The reply for a handler that comes to rest while a round is at work: its asks.
    fn at_rest(
        &self,
        calls: &LiveCalls,
        live: &LiveFlow,
        sealing: &Sealing,
        begun: bool,
    ) -> Option<Said> {
        let state = self.state.lock();
        if !begun || state.open.is_empty() || !live.rests() {
            return None;
        }
        let (round, asks) = (state.round, state.open.clone());
        drop(state);
        let limit = calls.services.limits.flow.rounds;
        if round >= limit {
            return Some(Said::Last(Reply::Error(RpcError::internal(format!(
                "the call needs another round, but its limit is {limit} rounds"
            )))));
        }
        let token = LiveToken {
            flow: sealing.flow,
            round: round + 1,
            holder: calls.holder.clone(),
            deadline: sealing.deadline,
        };
        calls.services.metrics.live(LiveCount::Parked);
        let token = calls.services.sealer.seal_live(&sealing.binding, &token);
        Some(Said::Asks(Reply::Incomplete(Incomplete {
            asks,
            state: Some(token),
        })))
    }

    /// Delivers the reply of the round at work.
    fn reply(&self, reply: Reply, stats: Stats) {
        let mut state = self.state.lock();
        let counted = std::mem::replace(&mut state.counted, stats);
        state.last = Some(Last {
            round: state.round,
            reply,
            stats: Stats {
                replayed: stats.replayed - counted.replayed,
                steps: stats.steps - counted.steps,
            },
        });
        state.round += 1;
        state.begun = false;
        state.read = false;
        state.notes = None;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }

    fn tell(&self, notes: Vec<Note>) {
        if let Some(client) = &self.state.lock().notes {
            // A client that is gone or slow misses them.
            let _ = client.try_send(notes);
        }
    }
}

/// The last reply of a call that ends before its handler.
fn give_up(calls: &LiveCalls, why: RpcError) -> Said {
    calls.services.metrics.live(LiveCount::GivenUp);
    Said::Last(Reply::Error(why))
}

/// The answers to open asks; others are ignored.
fn fitting(
    open: &[(String, Ask)],
    answers: Option<&Answers<'_>>,
) -> Result<Vec<LiveAnswer>, RpcError> {
    let mut given = Vec::new();
    for (key, ask) in open {
        let Some(raw) = answers.and_then(|answers| answers.get(key)) else {
            continue;
        };
        check_answer_shape(ask.kind(), raw).map_err(|reason| {
            RpcError::invalid_params(format!("inputResponses[{key:?}]: {reason}"))
        })?;
        given.push(LiveAnswer {
            key: key.clone(),
            answer: Ok(raw.get().to_owned()),
        });
    }
    Ok(given)
}

/// The reply for a call whose driver panicked or was dropped.
pub(super) fn broken() -> Reply {
    Reply::Error(RpcError::internal("Internal error"))
}

const FORGOTTEN: &str = "the call was given up, because nobody came for its reply; what it did so far is done; call again";

fn used_up() -> RpcError {
    RpcError::invalid_params(
        "this requestState was used before, and its call has gone on since; use the one of the last reply",
    )
}
