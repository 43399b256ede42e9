//! Fourth stage of a round: the flow runs in its home until there is a reply.

use super::client::ClientFlow;
use super::metrics::RoundMetrics;
use super::park::LiveStart;
use super::session::SessionFlow;
use super::single_use::{Claim, Claimed, Record, already_used};
use super::{Rounds, span};
use crate::limits::Permit;
use crate::live::{Attached, AttachedEvent, LiveAnswer};
use crate::tasks::Made;
use refrain_core::{LogError, Note, RecordState, Stats};
use refrain_wire::{Ask, Call, CallKind, Id, Reply, RpcError};
use serde_json::value::RawValue;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;
use tracing::Span;

/// A round of a call that runs. Dropping it cancels the handler.
pub struct Round {
    pub(super) rounds: Arc<Rounds>,
    pub(super) state: State,
    pub(super) kind: CallKind,
    number: u32,
    progress_token: Option<Box<RawValue>>,
    /// The entry in the replay log, if the round runs at most once.
    pub(super) record: Option<Record>,
    /// The work of the round, once its flow is gone.
    stats: Stats,
    /// Was the flow handed on to another instance?
    pub(super) handed_on: bool,
    /// `None` once the round is counted.
    pub(super) metrics: Option<RoundMetrics>,
    span: Span,
}

pub(super) enum State {
    /// Waits for the replay log.
    Claiming(Claim, Box<NewFlow>),
    Running(FlowHome),
    /// The reply is recorded in the replay log before it is sent.
    Recording(Pin<Box<dyn Future<Output = Reply> + Send>>),
    Over,
}

/// A flow that did not run yet, for its home.
pub(super) enum NewFlow {
    Client(ClientFlow),
    Session(Box<SessionFlow>),
    Live(Box<LiveStart>),
}

/// The home of a running flow.
pub(super) enum FlowHome {
    /// The journal goes to the client, in a token.
    Client(ClientFlow),
    /// A legacy session: asks go out while the round goes on.
    Session(Box<SessionFlow>),
    /// A live call that is parked on this instance; its reply is awaited.
    Parked {
        attached: Box<Attached>,
        _permit: Permit,
    },
}

/// One step of a running flow.
pub(super) enum Step {
    Notes(Vec<Note>),
    Asks {
        asks: Vec<(String, Ask)>,
        withdrawn: Vec<String>,
    },
    Reply(Reply),
    /// The reply of a parked call, and what the handler did for it.
    Parked(Reply, Stats),
    /// The reply of a flow that is handed on to another instance.
    HandedOn(Reply),
    /// The flow has become a task.
    Task(Box<Made>),
    Crashed,
}

/// What a round reports.
#[derive(Debug)]
pub enum RoundEvent {
    /// Progress and log messages for the client, before the reply.
    Notes(Vec<Note>),
    /// In a legacy session: the handler asks these under their keys, and no longer needs an answer under those that are
    /// withdrawn. It goes on when an answer arrives. No round that is available outside this crate reports this.
    #[doc(hidden)]
    Asks {
        /// New asks.
        asks: Vec<(String, Ask)>,
        /// Keys of asks that the handler has dropped.
        withdrawn: Vec<String>,
    },
    /// The round is over.
    Reply(Reply),
    /// The round was made to crash by a test: there is no reply.
    Crashed,
}

impl std::fmt::Debug for Round {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Round")
            .field("kind", &self.kind)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Round {
    pub(super) fn new(
        rounds: &Arc<Rounds>,
        call: &Call<'_>,
        number: u32,
        span: Span,
        record: Option<Record>,
    ) -> Box<Self> {
        Box::new(Self {
            rounds: rounds.clone(),
            state: State::Over,
            kind: call.kind,
            number,
            progress_token: call.meta.progress_token.map(ToOwned::to_owned),
            record,
            stats: Stats::default(),
            handed_on: false,
            metrics: None,
            span,
        })
    }

    /// Counts and logs the round when it ends.
    pub(super) fn measure(&mut self, metrics: RoundMetrics) {
        self.metrics = Some(metrics);
    }

    /// The number of this round, counted from 1.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The work that the round did so far.
    pub fn stats(&self) -> Stats {
        match &self.state {
            State::Running(FlowHome::Client(client)) => client.flow.stats(),
            State::Running(FlowHome::Session(session)) => session.live.stats(),
            State::Claiming(..)
            | State::Running(FlowHome::Parked { .. })
            | State::Recording(_)
            | State::Over => self.stats,
        }
    }

    /// The token that progress reports carry, if the client wants any.
    pub fn progress_token(&self) -> Option<&RawValue> {
        self.progress_token.as_deref()
    }

    #[cfg(feature = "testing")]
    /// Makes the round crash after this many polls of its operations. For tests.
    pub fn crash_after(&mut self, polls: u32) {
        match &mut self.state {
            State::Claiming(_, flow) => match &mut **flow {
                NewFlow::Client(client) => client.flow.crash_after(polls),
                NewFlow::Session(session) => session.live.crash_after(polls),
                NewFlow::Live(start) => start.live.crash_after(polls),
            },
            State::Running(FlowHome::Client(client)) => client.flow.crash_after(polls),
            State::Running(FlowHome::Session(session)) => session.live.crash_after(polls),
            State::Running(FlowHome::Parked { .. }) | State::Recording(_) | State::Over => {}
        }
    }

    /// Connects the answers to what a flow of a legacy session asks.
    pub(crate) fn answers_from(&mut self, answers: mpsc::Receiver<LiveAnswer>) {
        match &mut self.state {
            State::Running(FlowHome::Session(session)) => session.live.answers_from(answers),
            State::Claiming(_, flow) => {
                if let NewFlow::Session(session) = &mut **flow {
                    session.live.answers_from(answers);
                }
            }
            _ => {}
        }
    }

    /// Is it a call of a legacy session that only waits for answers and sleeps?
    pub(crate) fn rests(&self) -> bool {
        matches!(&self.state, State::Running(FlowHome::Session(session)) if session.live.rests())
    }

    /// Runs until there is something to send.
    pub async fn next(&mut self) -> RoundEvent {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// Adds the id of the request to the round's span.
    pub(crate) fn answers(&self, id: &Id<'_>) {
        span::record_id(&self.span, id);
    }

    /// Runs until there is something to send.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RoundEvent> {
        let span = self.span.clone();
        let _inside = span.enter();
        let event = ready!(self.advance(cx));
        if let RoundEvent::Reply(reply) = &event {
            self.count(reply);
            span::record_reply(&span, reply);
            // The span ends with the round, however long this value is kept.
            self.span = Span::none();
        }
        Poll::Ready(event)
    }

    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<RoundEvent> {
        loop {
            let event = match &mut self.state {
                State::Claiming(claim, _) => {
                    let claimed = ready!(claim.poll(cx));
                    self.claimed(claimed)
                }
                State::Running(home) => {
                    let step = ready!(home.poll(&self.rounds, self.kind, cx));
                    self.step(step)
                }
                State::Recording(reply) => {
                    let reply = ready!(reply.as_mut().poll(cx));
                    self.state = State::Over;
                    Some(RoundEvent::Reply(reply))
                }
                State::Over => return Poll::Pending,
            };
            if let Some(event) = event {
                return Poll::Ready(event);
            }
        }
    }

    /// The replay log has answered. `None`: the round goes on.
    fn claimed(&mut self, claimed: Result<Claimed, LogError>) -> Option<RoundEvent> {
        let State::Claiming(_, flow) = std::mem::replace(&mut self.state, State::Over) else {
            return None;
        };
        let error = match claimed {
            Ok((RecordState::Fresh, first)) => {
                self.start(*flow);
                drop(first);
                return None;
            }
            Ok((RecordState::Done(reply), _)) => {
                return Some(RoundEvent::Reply(Reply::Recorded(reply)));
            }
            Ok((RecordState::Begun, _)) => match *flow {
                NewFlow::Live(start) => {
                    self.park_again(*start);
                    return None;
                }
                _ => already_used(),
            },
            Err(failed) => {
                tracing::error!(error = %failed, "the replay log failed");
                RpcError::internal("Internal error")
            }
        };
        Some(RoundEvent::Reply(Reply::Error(error)))
    }

    /// Starts to run the flow.
    #[inline]
    pub(super) fn start(&mut self, flow: NewFlow) {
        self.state = State::Running(match flow {
            NewFlow::Live(start) => return self.park(*start),
            NewFlow::Session(session) => FlowHome::Session(session),
            NewFlow::Client(mut client) => {
                client.begin();
                FlowHome::Client(client)
            }
        });
    }

    /// Handles a step of the flow. `None`: the round goes on.
    fn step(&mut self, step: Step) -> Option<RoundEvent> {
        match step {
            Step::Notes(notes) => Some(RoundEvent::Notes(notes)),
            Step::Asks { asks, withdrawn } => Some(RoundEvent::Asks { asks, withdrawn }),
            Step::Crashed => Some(RoundEvent::Crashed),
            Step::Reply(reply) => {
                // A session's flow holds a permit for live calls: it ends before the reply is sent.
                if let State::Running(FlowHome::Session(_)) = &self.state {
                    self.stats = self.stats();
                    self.state = State::Over;
                }
                self.finish(reply)
            }
            Step::HandedOn(reply) => {
                self.handed_on = true;
                self.finish(reply)
            }
            Step::Parked(reply, stats) => {
                self.stats = stats;
                self.finish(reply)
            }
            Step::Task(made) => {
                self.stats = self.stats();
                let state = std::mem::replace(&mut self.state, State::Over);
                let State::Running(FlowHome::Client(client)) = state else {
                    return None;
                };
                let reply = client.into_task(*made);
                self.finish(reply)
            }
        }
    }

    /// The round has its reply. `None`: it is recorded first.
    fn finish(&mut self, reply: Reply) -> Option<RoundEvent> {
        let Some(record) = self.record.take() else {
            return Some(RoundEvent::Reply(reply));
        };
        self.stats = self.stats();
        let written = record.write(&reply, &self.rounds.services.info);
        self.state = State::Recording(Box::pin(async move {
            written.await;
            reply
        }));
        None
    }
}

impl FlowHome {
    fn poll(&mut self, rounds: &Rounds, kind: CallKind, cx: &mut Context<'_>) -> Poll<Step> {
        match self {
            Self::Client(client) => client.poll(rounds, kind, cx),
            Self::Session(session) => session.poll(rounds, kind, cx),
            Self::Parked { attached, .. } => attached.poll(cx).map(|event| match event {
                AttachedEvent::Notes(notes) => Step::Notes(notes),
                AttachedEvent::Reply(reply, stats) => Step::Parked(reply, stats),
            }),
        }
    }
}

/// A round that is dropped before its reply is cancelled. The handler's destructors run in its span.
impl Drop for Round {
    fn drop(&mut self) {
        let span = self.span.clone();
        let _inside = span.enter();
        if let State::Running(FlowHome::Client(client)) = &mut self.state {
            client.flow.cancel();
        }
        self.count_cancelled();
        self.state = State::Over;
    }
}
