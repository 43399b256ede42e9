//! Flows whose home is the client. Each round ends with a result, a token or a task.

use super::round::HomeEvent;
use super::target::Target;
use super::{Rounds, delete_once_records, reply_of};
use crate::limits::Permit;
use crate::tasks::{Creating, DetachReason, TaskSeed, Tasks, creation_error, store_error};
use crate::timer::{Timer, instant_of};
use refrain_core::{Binding, Event, Flow, Note, SealError, Suspension, limited_event};
use refrain_store::StoreError;
use refrain_wire::{Ask, CallKind, Incomplete, Reply, RpcError};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::Instant;

/// Sealing a larger token, in characters, takes a turn of the caller.
const LARGE_TOKEN: usize = 64 << 10;

/// A flow whose home is the client, in one round.
pub(super) struct ClientFlow {
    pub(super) flow: Flow,
    target: Target,
    binding: Binding,
    /// `Some` if the call can become a task.
    seed: Option<Box<TaskSeed>>,
    /// Whether the store may have created a task for this flow although the creation failed.
    may_have_task: bool,
    /// Created when the handler first waits or sends notes.
    deadlines: Option<Box<Deadlines>>,
    stage: ClientStage,
    pub(super) permit: Permit,
}

/// The stage of a [`ClientFlow`].
enum ClientStage {
    Running,
    /// The round ended with this event; its last notes are sent first.
    RoundEnded(Box<Event>),
    /// The task is being created.
    Creating(Creating, DetachReason),
    /// The token is large. It is being sealed, and written to the store if it is too large to send.
    Sealing {
        reply: Pin<Box<dyn Future<Output = Reply> + Send>>,
        is_handed_on: bool,
    },
}

struct Deadlines {
    timer: Timer,
    /// When the round fails.
    round: Option<Instant>,
    /// When the flow becomes a task.
    task: Option<Instant>,
}

/// The result of polling the flow once.
#[expect(
    clippy::large_enum_variant,
    reason = "the large variant is the common one; boxing it costs an allocation per request"
)]
enum ClientTurn {
    Notes(Vec<Note>),
    /// The handler waits, but other Tokio tasks may still add asks to this round.
    Settle,
    /// The flow is to become a task.
    Detach(DetachReason),
    RoundEnded(Event),
}

impl ClientFlow {
    #[inline]
    pub(super) fn new(
        flow: Flow,
        target: Target,
        binding: Binding,
        seed: Option<Box<TaskSeed>>,
        permit: Permit,
    ) -> Self {
        Self {
            flow,
            target,
            binding,
            seed,
            may_have_task: false,
            deadlines: None,
            stage: ClientStage::Running,
            permit,
        }
    }

    /// Called once before the first poll. Creates the task if the tool always becomes one.
    pub(super) fn begin(&mut self) {
        let is_always_task = |seed: &TaskSeed| seed.tool.tool.task.always;
        if self.seed.as_deref().is_some_and(is_always_task) {
            self.create_task(DetachReason::Tool);
        }
    }

    pub(super) fn poll(
        &mut self,
        rounds: &Rounds,
        kind: CallKind,
        cx: &mut Context<'_>,
    ) -> Poll<HomeEvent> {
        loop {
            match std::mem::replace(&mut self.stage, ClientStage::Running) {
                ClientStage::Running => match self.poll_flow(rounds, cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(ClientTurn::Settle) => {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    Poll::Ready(ClientTurn::Notes(notes)) => {
                        return Poll::Ready(HomeEvent::Notes(notes));
                    }
                    Poll::Ready(ClientTurn::Detach(reason)) => self.create_task(reason),
                    Poll::Ready(ClientTurn::RoundEnded(event)) => {
                        let notes = self.flow.take_notes();
                        if notes.is_empty() {
                            if let Some(event) = self.end(rounds, kind, event) {
                                return Poll::Ready(event);
                            }
                        } else {
                            self.stage = ClientStage::RoundEnded(Box::new(event));
                            return Poll::Ready(HomeEvent::Notes(notes));
                        }
                    }
                },
                ClientStage::RoundEnded(event) => {
                    if let Some(event) = self.end(rounds, kind, *event) {
                        return Poll::Ready(event);
                    }
                }
                ClientStage::Creating(mut creation, reason) => match creation.as_mut().poll(cx) {
                    Poll::Pending => {
                        self.stage = ClientStage::Creating(creation, reason);
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(task)) => return Poll::Ready(HomeEvent::Task(Box::new(task))),
                    Poll::Ready(Err((error, seed))) => {
                        self.seed = Some(Box::new(seed));
                        if let Some(event) = self.creation_failed(&error, reason) {
                            return Poll::Ready(event);
                        }
                    }
                },
                ClientStage::Sealing {
                    mut reply,
                    is_handed_on,
                } => {
                    let Poll::Ready(reply) = reply.as_mut().poll(cx) else {
                        self.stage = ClientStage::Sealing {
                            reply,
                            is_handed_on,
                        };
                        return Poll::Pending;
                    };
                    return Poll::Ready(reply_event(reply, is_handed_on));
                }
            }
        }
    }

    fn poll_flow(&mut self, rounds: &Rounds, cx: &mut Context<'_>) -> Poll<ClientTurn> {
        let notes = match self.flow.poll(cx) {
            Poll::Pending => None,
            Poll::Ready(Event::Notes(notes)) => Some(notes),
            Poll::Ready(Event::Settle) => return Poll::Ready(ClientTurn::Settle),
            Poll::Ready(Event::Detach) => {
                return Poll::Ready(ClientTurn::Detach(DetachReason::Handler));
            }
            Poll::Ready(event) => return Poll::Ready(ClientTurn::RoundEnded(event)),
        };
        // A handler that never stops sending notes must still meet its deadlines.
        let now = Instant::now();
        let seed = self.seed.as_ref();
        let round_time = self.target.round_time();
        let round_time = round_time.unwrap_or(rounds.services.limits.round_time);
        let deadlines = self.deadlines.get_or_insert_with(|| {
            let after = seed.and_then(|seed| seed.tool.tool.task.after);
            Box::new(Deadlines {
                timer: Timer::default(),
                round: now.checked_add(round_time),
                task: after.and_then(|after| now.checked_add(after)),
            })
        });
        if deadlines.task.is_some_and(|at| at <= now) {
            return Poll::Ready(ClientTurn::Detach(DetachReason::Time));
        }
        if deadlines.round.is_some_and(|at| at <= now) {
            return Poll::Ready(ClientTurn::RoundEnded(self.flow.expire()));
        }
        if let Some(notes) = notes {
            return Poll::Ready(ClientTurn::Notes(notes));
        }
        let wake = instant_of(self.flow.wake_at(), &*rounds.services.source, now);
        let times = [deadlines.round, deadlines.task, wake];
        deadlines.timer.set(times, cx);
        Poll::Pending
    }

    /// The outcome of the ended round. `None`: the token is large, and is sealed first.
    fn end(&mut self, rounds: &Rounds, kind: CallKind, event: Event) -> Option<HomeEvent> {
        match event {
            Event::Crashed => Some(HomeEvent::Crashed),
            Event::Suspended(suspension) => self.seal(rounds, suspension),
            Event::Ended(end) => {
                if !self.may_have_task {
                    delete_once_records(&rounds.services, &self.flow);
                }
                let output = self.target.output().map(|output| &**output);
                Some(HomeEvent::Reply(reply_of(end, kind, output)))
            }
            Event::Notes(_) | Event::Settle | Event::Detach | Event::Write(_) => {
                unreachable!("poll_flow handles these, and only a task or a live flow writes")
            }
        }
    }

    fn seal(&mut self, rounds: &Rounds, suspension: Suspension) -> Option<HomeEvent> {
        if suspension.handed_on {
            limited_event!(INFO, flow = %suspension.snapshot.flow(), "flow handed on");
        }
        let (sealer, version) = (&rounds.services.sealer, self.target.version());
        let longest = sealer.options().max_token;
        let small = longest.min(LARGE_TOKEN);
        let sealed = sealer.seal_up_to(&self.binding, &suspension.snapshot, version, small);
        let SealError::TooLarge { size, largest, .. } = match sealed {
            Ok(token) => {
                let reply = incomplete(suspension.asks, token);
                return Some(reply_event(reply, suspension.handed_on));
            }
            Err(too_large) => too_large,
        };
        let tasks = rounds.tasks.as_ref().filter(|_| size > longest);
        let limit = tasks.map_or(longest, |tasks| tasks.options.journal);
        if size > limit {
            let error = SealError::TooLarge {
                size,
                limit,
                largest,
            };
            return Some(HomeEvent::Reply(seal_failed(&error)));
        }
        self.stage = ClientStage::Sealing {
            is_handed_on: suspension.handed_on,
            reply: Box::pin(self.seal_large(rounds, suspension, (size, limit), tasks.cloned())),
        };
        None
    }

    /// Seals a large token when it is the caller's turn, and writes it to the store if it is too large to send.
    fn seal_large(
        &self,
        rounds: &Rounds,
        suspension: Suspension,
        (size, limit): (usize, usize),
        tasks: Option<Arc<Tasks>>,
    ) -> impl Future<Output = Reply> + Send + use<> {
        let Suspension { snapshot, asks, .. } = suspension;
        let (sealer, binding) = (rounds.services.sealer.clone(), self.binding.clone());
        let version = self.target.version().to_owned();
        let seal = move || sealer.seal_up_to(&binding, &snapshot, &version, limit);
        let (queue, key) = (
            rounds.services.limits.large_work.clone(),
            self.permit.key().clone(),
        );
        async move {
            if let Some(tasks) = &tasks
                && let Err(error) = tasks.check_spill(size, key.clone()).await
            {
                return store_failed(&error);
            }
            let token = match queue.run(key.clone(), seal).await {
                Ok(token) => token,
                Err(error) => return seal_failed(&error),
            };
            let Some(tasks) = tasks else {
                return incomplete(asks, token);
            };
            let stored = tasks.spill(token, key).await;
            stored.map_or_else(
                |error| store_failed(&error),
                |token| incomplete(asks, token),
            )
        }
    }

    /// Starts to create a task for the flow, if the call can become one. If the handler has
    /// started, the task runs on this instance, even above the task limit.
    fn create_task(&mut self, reason: DetachReason) {
        if let Some(seed) = self.seed.take() {
            let creation = seed.create(&mut self.flow, reason != DetachReason::Tool);
            self.stage = ClientStage::Creating(creation, reason);
        }
    }

    /// Handles a failed task creation. `None`: the flow continues without a task.
    fn creation_failed(&mut self, error: &StoreError, reason: DetachReason) -> Option<HomeEvent> {
        self.may_have_task |= matches!(error, StoreError::Unavailable(_));
        let error = creation_error(error);
        match reason {
            DetachReason::Tool => return Some(HomeEvent::Reply(Reply::Error(error))),
            DetachReason::Handler => self.flow.reject_detach(error.message.into_owned()),
            DetachReason::Time => {
                if let Some(deadlines) = &mut self.deadlines {
                    deadlines.task = None;
                }
            }
        }
        None
    }
}

fn incomplete(asks: Vec<(String, Ask)>, token: String) -> Reply {
    let state = Some(token);
    Reply::Incomplete(Incomplete { asks, state })
}

fn store_failed(error: &StoreError) -> Reply {
    limited_event!(ERROR, %error, "failed to store token");
    Reply::Error(store_error(error))
}

fn seal_failed(error: &SealError) -> Reply {
    limited_event!(ERROR, %error, "failed to seal token");
    Reply::Error(RpcError::internal(error.to_string()))
}

fn reply_event(reply: Reply, is_handed_on: bool) -> HomeEvent {
    match is_handed_on {
        true => HomeEvent::HandedOn(reply),
        false => HomeEvent::Reply(reply),
    }
}
