//! Fourth stage of a round: runs the flow in its home until it replies.

use super::Rounds;
use super::client::ClientFlow;
use super::metrics::RoundMetrics;
use super::park::LiveStart;
use super::single_use::{ClaimResult, ReplayClaim, ReplayRecord, already_used};
use crate::limits::{Permit, QueuePermit};
use crate::live::{AnswerSender, AttachedEvent, AttachedRequest, LiveFlow};
use crate::tasks::{CallPermit, CreatedTask};
use refrain_core::{LogError, Note, RecordState, Stats, limited_event};
use refrain_wire::{Ask, Call, CallKind, Reply, RpcError};
use serde_json::value::RawValue;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tracing::Span;

/// A running round of a call. Dropping it cancels the handler, except that of a live call whose request can be repeated.
pub struct Round {
    pub(super) rounds: Arc<Rounds>,
    pub(super) state: RoundState,
    pub(super) kind: CallKind,
    number: u32,
    progress_token: Option<Box<RawValue>>,
    /// The entry in the replay log, if the round may run only once.
    pub(super) record: Option<ReplayRecord>,
    /// The statistics of a round that has ended, or of a parked call's round.
    stats: Stats,
    /// Whether the flow was handed on to another instance.
    pub(super) is_handed_on: bool,
    /// `None` after the round was counted.
    pub(super) metrics: Option<RoundMetrics>,
    /// The permit to replay a large journal, held until the first poll.
    pub(crate) replay_permit: Option<QueuePermit>,
    span: Span,
}

/// The state of a [`Round`].
pub(super) enum RoundState {
    /// Waits for the claim in the replay log.
    Claiming(ReplayClaim, Box<NewFlow>),
    Running(FlowHome),
    /// Waits for work that precedes the reply, such as its record in the replay log.
    Recording(Pin<Box<dyn Future<Output = Reply> + Send>>),
    Ended,
}

/// A flow that has not started.
pub(super) enum NewFlow {
    Client(ClientFlow),
    Session(Box<LiveFlow>),
    Live(Box<LiveStart>),
}

/// A running flow in its home.
pub(super) enum FlowHome {
    Client(ClientFlow),
    Session(Box<LiveFlow>),
    Parked {
        attached: Box<AttachedRequest>,
        _permit: Permit,
    },
}

/// An event of a flow for its round.
pub(super) enum HomeEvent {
    Notes(Vec<Note>),
    Asks {
        asks: Vec<(String, Ask)>,
        withdrawn: Vec<String>,
    },
    Reply(Reply),
    /// The reply of a parked call, and the statistics of this round.
    Parked(Reply, Stats),
    /// The reply that hands the flow on to another instance.
    HandedOn(Reply),
    Task(Box<CreatedTask>),
    Crashed,
}

/// An event of a running round.
#[derive(Debug)]
pub enum RoundEvent {
    /// Progress and log messages for the client, before the reply.
    Notes(Vec<Note>),
    /// Asks of a legacy session, by key. Only this crate starts rounds that report it.
    #[doc(hidden)]
    Asks {
        /// New asks.
        asks: Vec<(String, Ask)>,
        /// Keys of asks that the handler dropped.
        withdrawn: Vec<String>,
    },
    /// The reply, which ends the round.
    Reply(Reply),
    /// A test made the round crash. There is no reply.
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
        record: Option<ReplayRecord>,
    ) -> Box<Self> {
        Box::new(Self {
            rounds: rounds.clone(),
            state: RoundState::Ended,
            kind: call.kind,
            number,
            progress_token: call.meta.progress_token.map(ToOwned::to_owned),
            record,
            stats: Stats::default(),
            is_handed_on: false,
            metrics: None,
            replay_permit: None,
            span,
        })
    }

    /// The number of this round, counted from 1.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The statistics of the round so far.
    pub fn stats(&self) -> Stats {
        match &self.state {
            RoundState::Running(FlowHome::Client(client)) => client.flow.stats(),
            RoundState::Running(FlowHome::Session(session)) => session.stats(),
            RoundState::Claiming(..)
            | RoundState::Running(FlowHome::Parked { .. })
            | RoundState::Recording(_)
            | RoundState::Ended => self.stats,
        }
    }

    /// The token for progress notifications, if the client requested them.
    pub fn progress_token(&self) -> Option<&RawValue> {
        self.progress_token.as_deref()
    }

    /// Makes the round crash after this many polls of its asks and steps. For tests.
    #[cfg(feature = "testing")]
    pub fn crash_after(&mut self, polls: u32) {
        match &mut self.state {
            RoundState::Claiming(_, flow) => match &mut **flow {
                NewFlow::Client(client) => client.flow.crash_after(polls),
                NewFlow::Session(session) => session.crash_after(polls),
                NewFlow::Live(start) => start.live.crash_after(polls),
            },
            RoundState::Running(FlowHome::Client(client)) => client.flow.crash_after(polls),
            RoundState::Running(FlowHome::Session(session)) => session.crash_after(polls),
            RoundState::Running(FlowHome::Parked { .. })
            | RoundState::Recording(_)
            | RoundState::Ended => {}
        }
    }

    /// Opens the channel for answers to a flow of a legacy session.
    pub(crate) fn open_answers(&mut self) -> Option<AnswerSender> {
        match &mut self.state {
            RoundState::Running(FlowHome::Session(session)) => Some(session.open_answers()),
            RoundState::Claiming(_, flow) => match &mut **flow {
                NewFlow::Session(session) => Some(session.open_answers()),
                NewFlow::Client(_) | NewFlow::Live(_) => None,
            },
            _ => None,
        }
    }

    /// Whether a call of a legacy session waits only for answers and sleeps.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(&self.state, RoundState::Running(FlowHome::Session(session)) if session.is_idle())
    }

    /// Runs until the next event.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RoundEvent> {
        let span = self.span.clone();
        let _inside = span.enter();
        let advanced = self.advance(cx);
        self.replay_permit = None;
        let event = ready!(advanced);
        if let RoundEvent::Reply(reply) = &event {
            self.count(reply);
            // The span ends with the reply, even if the round is dropped later.
            self.span = Span::none();
        }
        Poll::Ready(event)
    }

    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<RoundEvent> {
        loop {
            let event = match &mut self.state {
                RoundState::Claiming(claim, _) => {
                    let claimed = ready!(claim.poll(cx));
                    self.handle_claim(claimed)
                }
                RoundState::Running(home) => {
                    let event = ready!(home.poll(&self.rounds, self.kind, cx));
                    self.handle_event(event)
                }
                RoundState::Recording(reply) => {
                    let reply = ready!(reply.as_mut().poll(cx));
                    self.state = RoundState::Ended;
                    Some(RoundEvent::Reply(reply))
                }
                RoundState::Ended => return Poll::Pending,
            };
            if let Some(event) = event {
                return Poll::Ready(event);
            }
        }
    }

    /// Handles the result of the claim. `None`: the round continues.
    fn handle_claim(&mut self, claimed: Result<ClaimResult, LogError>) -> Option<RoundEvent> {
        let RoundState::Claiming(_, flow) = std::mem::replace(&mut self.state, RoundState::Ended)
        else {
            return None;
        };
        let error = match claimed {
            Ok((RecordState::Fresh, first_request)) => {
                self.start(*flow);
                // Repeated requests of a live call waited until it is parked.
                drop(first_request);
                return None;
            }
            Ok((RecordState::Done(reply), _)) => {
                return Some(RoundEvent::Reply(Reply::Recorded(reply)));
            }
            Ok((RecordState::Begun, _)) => match *flow {
                NewFlow::Live(start) => {
                    self.attach_repeated(*start);
                    return None;
                }
                _ => already_used(),
            },
            // Nothing ran, so the request can be repeated.
            Err(LogError::Quota(reached)) => RpcError::internal(reached.to_string()),
            Err(error) => {
                limited_event!(ERROR, %error, "replay log failed");
                RpcError::internal(match error {
                    LogError::Unreadable { .. } => {
                        "the recorded reply to this request cannot be opened; the call is not repeated"
                    }
                    _ => "Internal error",
                })
            }
        };
        Some(RoundEvent::Reply(Reply::Error(error)))
    }

    #[inline]
    pub(super) fn start(&mut self, flow: NewFlow) {
        self.state = RoundState::Running(match flow {
            NewFlow::Live(start) => return self.park(*start),
            NewFlow::Session(session) => FlowHome::Session(session),
            NewFlow::Client(mut client) => {
                client.begin();
                FlowHome::Client(client)
            }
        });
    }

    /// Handles an event of the flow. `None`: the round continues.
    fn handle_event(&mut self, event: HomeEvent) -> Option<RoundEvent> {
        match event {
            HomeEvent::Notes(notes) => Some(RoundEvent::Notes(notes)),
            HomeEvent::Asks { asks, withdrawn } => Some(RoundEvent::Asks { asks, withdrawn }),
            HomeEvent::Crashed => Some(RoundEvent::Crashed),
            HomeEvent::Reply(reply) => {
                // Releases the permit for live calls before the reply is sent.
                if let RoundState::Running(FlowHome::Session(_)) = &self.state {
                    self.stats = self.stats();
                    self.state = RoundState::Ended;
                }
                self.finish(reply)
            }
            HomeEvent::HandedOn(reply) => {
                self.is_handed_on = true;
                self.finish(reply)
            }
            HomeEvent::Parked(reply, stats) => {
                self.stats = stats;
                self.finish(reply)
            }
            HomeEvent::Task(task) => {
                self.stats = self.stats();
                let state = std::mem::replace(&mut self.state, RoundState::Ended);
                let RoundState::Running(FlowHome::Client(client)) = state else {
                    return None;
                };
                let reply = task.run(client.flow, CallPermit::Call(client.permit));
                self.finish(reply)
            }
        }
    }

    /// Ends the round with its reply. `None`: the reply is recorded first.
    fn finish(&mut self, reply: Reply) -> Option<RoundEvent> {
        let Some(record) = self.record.take() else {
            return Some(RoundEvent::Reply(reply));
        };
        self.stats = self.stats();
        let written = record.write(&reply, &self.rounds.services.info);
        self.state = RoundState::Recording(Box::pin(async move {
            written.await;
            reply
        }));
        None
    }
}

impl FlowHome {
    fn poll(&mut self, rounds: &Rounds, kind: CallKind, cx: &mut Context<'_>) -> Poll<HomeEvent> {
        match self {
            Self::Client(client) => client.poll(rounds, kind, cx),
            Self::Session(session) => session.poll_session(rounds, kind, cx),
            Self::Parked { attached, .. } => attached.poll(cx).map(|event| match event {
                AttachedEvent::Notes(notes) => HomeEvent::Notes(notes),
                AttachedEvent::Reply(reply, stats) => HomeEvent::Parked(reply, stats),
            }),
        }
    }
}

/// Cancels a round without a reply. The handler's destructors run in the round's span.
impl Drop for Round {
    fn drop(&mut self) {
        let span = self.span.clone();
        let _inside = span.enter();
        if let RoundState::Running(FlowHome::Client(client)) = &mut self.state {
            client.flow.cancel();
        }
        if self.metrics.is_some() {
            span.record("error.type", "cancelled");
            span.record("otel.status_code", "ERROR");
        }
        self.count_cancelled();
        self.state = RoundState::Ended;
    }
}
