//! A handler that waits for its next round, and the requests that wait for it.
//!
//! Rounds are numbered. Always true: the answers of a round are taken in once, from the request that came first; every
//! request of one round is given the same reply; the reply of the last round is kept for a client that lost it.
//!
//! | the request is of … | it is given |
//! | --- | --- |
//! | the round that is awaited | its reply, when the handler rests or is done |
//! | the same, at work already | the same reply |
//! | the round before | the reply that it had |
//! | an earlier one | an error: that token was used |

use super::flow::{LiveAnswer, LiveEvent, LiveFlow};
use crate::metrics::LiveCount;
use crate::round::outcome_of;
use crate::server::Server;
use jsonschema::Validator;
use refrain_core::{Binding, FlowId, LiveToken, LogKey, Note, Stats};
use refrain_wire::{
    Answers, Ask, CallKind, Incomplete, LogLevel, Reply, RpcError, check_answer_shape,
};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::sync::{Notify, mpsc};

/// Notes that wait for a client who reads slowly; what does not fit is dropped.
const NOTES: usize = 64;

/// What a handler at rest and the requests of its call share.
pub(super) struct Parked {
    state: Mutex<State>,
    /// Told when the driver has something to look at.
    look: Notify,
    answers: mpsc::Sender<LiveAnswer>,
}

struct State {
    /// The round that is awaited, or at work.
    round: u32,
    /// A request of that round has come.
    begun: bool,
    /// What is asked and has no answer.
    open: Vec<(String, Ask)>,
    /// The reply of the round before, or the last of all.
    last: Option<Last>,
    /// Why the handler is to be ended at once.
    given_up: Option<RpcError>,
    /// What the handler had done by the last reply.
    counted: Stats,
    /// The requests that wait for a reply, by their numbers.
    waiting: Vec<(u64, Waker)>,
    requests: u64,
    notes: Option<mpsc::Sender<Vec<Note>>>,
}

#[derive(Clone)]
struct Last {
    round: u32,
    reply: Reply,
    stats: Stats,
}

/// What a handler has to say to the round at work.
enum Said {
    /// It asks, and waits for another round.
    Asks(Reply),
    /// It is done with.
    Last(Reply),
}

/// What the replies of a parked call are made with.
pub(crate) struct Sealing {
    pub(crate) flow: FlowId,
    pub(crate) binding: Binding,
    pub(crate) deadline: u64,
    pub(crate) kind: CallKind,
    pub(crate) output: Option<Arc<Validator>>,
}

impl Parked {
    /// A call whose first round begins.
    pub(super) fn new(answers: mpsc::Sender<LiveAnswer>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                round: 1,
                begun: true,
                open: Vec::new(),
                last: None,
                given_up: None,
                counted: Stats::default(),
                waiting: Vec::new(),
                requests: 0,
                notes: None,
            }),
            look: Notify::new(),
            answers,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a request of this round wait for its reply, and hands its answers in if it is the first.
    pub(super) fn attach(
        self: &Arc<Self>,
        round: u32,
        answers: Option<&Answers<'_>>,
    ) -> Result<Attached, RpcError> {
        let (sender, notes) = mpsc::channel(NOTES);
        let mut state = self.lock();
        let known = state.last.as_ref().is_some_and(|last| last.round == round);
        if !known {
            if round != state.round {
                return Err(used_up());
            }
            if !state.begun {
                let given = fitting(&state.open, answers)?;
                state
                    .open
                    .retain(|(key, _)| given.iter().all(|g| g.key != *key));
                state.begun = true;
                for answer in given {
                    // There is room: no more is asked at once than the channel holds.
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
            wishes: Wishes::default(),
            ends_call: false,
        })
    }

    /// Ends the call at once: whoever waits is told why.
    fn give_up(&self, why: RpcError) {
        self.lock().given_up.get_or_insert(why);
        self.look.notify_one();
    }

    /// Drives the handler to its end. The first reply is recorded under this key, before anybody is given it.
    pub(super) async fn drive(
        &self,
        server: &Server,
        mut live: LiveFlow,
        sealing: &Sealing,
        mut record: Option<LogKey>,
    ) {
        loop {
            match self.next(server, &mut live, sealing).await {
                Said::Asks(reply) => {
                    server.record(record.take(), &reply).await;
                    self.reply(reply, live.stats());
                }
                Said::Last(reply) => {
                    let stats = live.stats();
                    // Its destructors are part of the call.
                    drop(live);
                    server.record(record.take(), &reply).await;
                    self.reply(reply, stats);
                    return;
                }
            }
        }
    }

    /// Drives the handler to its next reply.
    async fn next(&self, server: &Server, live: &mut LiveFlow, sealing: &Sealing) -> Said {
        loop {
            let event = tokio::select! {
                biased;
                event = poll_fn(|cx| live.poll(cx)) => event,
                () = self.look.notified() => LiveEvent::Rests,
            };
            let said = match event {
                LiveEvent::Notes(notes) => {
                    self.tell(notes);
                    None
                }
                LiveEvent::Asks { asks, withdrawn } => {
                    let mut state = self.lock();
                    state.open.retain(|(key, _)| !withdrawn.contains(key));
                    state.open.extend(asks);
                    None
                }
                LiveEvent::Rests => self.at_rest(server, live, sealing),
                LiveEvent::Over(event) => {
                    let output = sealing.output.as_deref();
                    Some(Said::Last(outcome_of(*event, sealing.kind, output)))
                }
                LiveEvent::GivenUp(error) => {
                    server.0.metrics.live(LiveCount::GivenUp);
                    Some(Said::Last(Reply::Error(error)))
                }
            };
            if let Some(said) = said {
                return said;
            }
        }
    }

    /// What is said when the handler rests, if anything: what it asks, where a round is at work.
    fn at_rest(&self, server: &Server, live: &LiveFlow, sealing: &Sealing) -> Option<Said> {
        let (round, asks) = {
            let state = self.lock();
            if let Some(why) = &state.given_up {
                server.0.metrics.live(LiveCount::GivenUp);
                return Some(Said::Last(Reply::Error(why.clone())));
            }
            if !state.begun || state.open.is_empty() || !live.rests() {
                return None;
            }
            (state.round, state.open.clone())
        };
        let limit = server.0.limits.flow.rounds;
        if round >= limit {
            return Some(Said::Last(Reply::Error(RpcError::internal(format!(
                "the call needs another round, and its limit is {limit} rounds"
            )))));
        }
        let token = LiveToken {
            flow: sealing.flow,
            round: round + 1,
            holder: server.0.live.name().to_owned(),
            deadline: sealing.deadline,
        };
        server.0.metrics.live(LiveCount::Parked);
        let token = server.0.sealer.seal_live(&sealing.binding, &token);
        Some(Said::Asks(Reply::Incomplete(Incomplete {
            asks,
            state: Some(token),
        })))
    }

    /// The round at work has its reply.
    fn reply(&self, reply: Reply, stats: Stats) {
        let waiting = {
            let mut state = self.lock();
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
            state.notes = None;
            std::mem::take(&mut state.waiting)
        };
        for (_, waker) in waiting {
            waker.wake();
        }
    }

    fn tell(&self, notes: Vec<Note>) {
        let state = self.lock();
        if let Some(client) = &state.notes {
            // A client that has gone, or does not keep up, misses them.
            let _ = client.try_send(notes);
        }
    }
}

/// A request that waits for the reply of its round.
pub(crate) struct Attached {
    parked: Arc<Parked>,
    number: u64,
    round: u32,
    notes: mpsc::Receiver<Vec<Note>>,
    wishes: Wishes,
    /// Nobody can come back for the reply: a client that goes away ends the call.
    pub(super) ends_call: bool,
}

/// What a client wants to hear before the reply. It may be another thing in each round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wishes {
    pub(crate) progress: bool,
    /// The least severe log message.
    pub(crate) log: Option<LogLevel>,
}

impl Wishes {
    fn include(self, note: &Note) -> bool {
        match note {
            Note::Progress { .. } => self.progress,
            Note::Log { level, .. } => self.log.is_some_and(|least| *level >= least),
        }
    }
}

/// What such a request is given.
pub(crate) enum AttachedEvent {
    Notes(Vec<Note>),
    Reply(Reply, Stats),
}

impl Attached {
    /// Has the client hear what it wants to hear.
    pub(crate) fn with(mut self, wishes: Wishes) -> Self {
        self.wishes = wishes;
        self
    }

    /// Waits for what the handler says, and for the reply.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<AttachedEvent> {
        while let Poll::Ready(Some(mut notes)) = self.notes.poll_recv(cx) {
            notes.retain(|note| self.wishes.include(note));
            if !notes.is_empty() {
                return Poll::Ready(AttachedEvent::Notes(notes));
            }
        }
        let mut state = self.parked.lock();
        if let Some(last) = state.last.clone().filter(|last| last.round == self.round) {
            self.ends_call = false;
            return Poll::Ready(AttachedEvent::Reply(last.reply, last.stats));
        }
        if state.round != self.round {
            return Poll::Ready(AttachedEvent::Reply(
                Reply::Error(used_up()),
                Stats::default(),
            ));
        }
        state.waiting.retain(|(number, _)| *number != self.number);
        state.waiting.push((self.number, cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut state = self.parked.lock();
        state.waiting.retain(|(number, _)| *number != self.number);
        drop(state);
        if self.ends_call {
            let gone = "the client went away before the first reply";
            self.parked.give_up(RpcError::internal(gone));
        }
    }
}

/// The answers to what is asked; others are ignored.
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

fn used_up() -> RpcError {
    RpcError::invalid_params(
        "this requestState was used before, and its call has gone on since; use the one of the last reply",
    )
}
