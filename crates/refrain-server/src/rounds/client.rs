//! A flow whose home is the client: each round ends with a result, with a token, or with a task.

use super::running::Step;
use super::target::Target;
use super::{Rounds, reply_of};

use crate::limits::Permit;
use crate::tasks::{Creating, Made, Seed, cannot_create};
use crate::timer::{Timer, instant_of};
use refrain_core::{Binding, Event, Flow, Note, Suspension};
use refrain_store::StoreError;
use refrain_wire::{CallKind, Incomplete, Reply, RpcError};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::time::Instant;

pub(super) struct ClientFlow {
    pub(super) flow: Flow,
    target: Target,
    binding: Binding,
    /// There if the call may become a task.
    seed: Option<Box<Seed>>,
    /// Created for handlers that wait or report.
    deadlines: Option<Box<Deadlines>>,
    stage: Stage,
    permit: Permit,
}

enum Stage {
    Running,
    /// The flow has ended; the notes before its last event are on their way.
    Ended(Box<Event>),
    /// A task is created of the flow.
    Creating(Creating, Why),
    /// The token is too large to travel and is put into the store.
    Spilling(Pin<Box<dyn Future<Output = Reply> + Send>>, HandedOn),
}

/// Was the flow cut because this instance wants to hand it on?
type HandedOn = bool;

/// Why a flow becomes a task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Its tool says so.
    Tool,
    /// Its handler called `detach`.
    Handler,
    /// It has run for longer than `task_after`.
    Time,
}

/// The deadlines of a round.
struct Deadlines {
    timer: Timer,
    /// End of the round.
    limit: Option<Instant>,
    /// When the flow becomes a task.
    task: Option<Instant>,
}

/// What comes next for a flow that was polled.
#[expect(
    clippy::large_enum_variant,
    reason = "the large variant is the common one; boxing it costs an allocation per request"
)]
enum Turn {
    Notes(Vec<Note>),
    /// Other tasks of the runtime may have asks for this round: they run first.
    Settle,
    Detach(Why),
    Ended(Event),
}

impl ClientFlow {
    #[inline]
    pub(super) fn new(
        flow: Flow,
        target: Target,
        binding: Binding,
        seed: Option<Box<Seed>>,
        permit: Permit,
    ) -> Self {
        Self {
            flow,
            target,
            binding,
            seed,
            deadlines: None,
            stage: Stage::Running,
            permit,
        }
    }

    /// Called once before the first poll: some tools become tasks at once.
    pub(super) fn begin(&mut self) {
        let at_once = |seed: &Seed| seed.tool.tool.task.at_once;
        if self.seed.as_deref().is_some_and(at_once) {
            self.create_task(Why::Tool);
        }
    }

    pub(super) fn poll(
        &mut self,
        rounds: &Rounds,
        kind: CallKind,
        cx: &mut Context<'_>,
    ) -> Poll<Step> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Running) {
                Stage::Running => match self.poll_flow(rounds, cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Turn::Settle) => {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    Poll::Ready(Turn::Notes(notes)) => return Poll::Ready(Step::Notes(notes)),
                    Poll::Ready(Turn::Detach(why)) => self.create_task(why),
                    Poll::Ready(Turn::Ended(event)) => {
                        let notes = self.flow.take_notes();
                        if notes.is_empty() {
                            if let Some(step) = self.end(rounds, kind, event) {
                                return Poll::Ready(step);
                            }
                        } else {
                            self.stage = Stage::Ended(Box::new(event));
                            return Poll::Ready(Step::Notes(notes));
                        }
                    }
                },
                Stage::Ended(event) => {
                    if let Some(step) = self.end(rounds, kind, *event) {
                        return Poll::Ready(step);
                    }
                }
                Stage::Creating(mut creating, why) => match creating.as_mut().poll(cx) {
                    Poll::Pending => {
                        self.stage = Stage::Creating(creating, why);
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(made)) => return Poll::Ready(Step::Task(Box::new(made))),
                    Poll::Ready(Err((error, seed))) => {
                        self.seed = Some(Box::new(seed));
                        if let Some(step) = self.stay(&error, why) {
                            return Poll::Ready(step);
                        }
                    }
                },
                Stage::Spilling(mut spilling, handed_on) => {
                    let Poll::Ready(reply) = spilling.as_mut().poll(cx) else {
                        self.stage = Stage::Spilling(spilling, handed_on);
                        return Poll::Pending;
                    };
                    return Poll::Ready(incomplete(reply, handed_on));
                }
            }
        }
    }

    fn poll_flow(&mut self, rounds: &Rounds, cx: &mut Context<'_>) -> Poll<Turn> {
        let notes = match self.flow.poll(cx) {
            Poll::Pending => None,
            Poll::Ready(Event::Notes(notes)) => Some(notes),
            Poll::Ready(Event::Settle) => return Poll::Ready(Turn::Settle),
            Poll::Ready(Event::Detach) => return Poll::Ready(Turn::Detach(Why::Handler)),
            Poll::Ready(event) => return Poll::Ready(Turn::Ended(event)),
        };
        // A handler may send notes for ever, so its deadlines are checked here too.
        let now = Instant::now();
        let seed = self.seed.as_ref();
        let deadlines = self.deadlines.get_or_insert_with(|| {
            let after = seed.and_then(|seed| seed.tool.tool.task.after);
            Box::new(Deadlines {
                timer: Timer::default(),
                limit: now.checked_add(rounds.services.limits.round_time),
                task: after.and_then(|after| now.checked_add(after)),
            })
        });
        if deadlines.task.is_some_and(|at| at <= now) {
            return Poll::Ready(Turn::Detach(Why::Time));
        }
        if deadlines.limit.is_some_and(|at| at <= now) {
            return Poll::Ready(Turn::Ended(self.flow.expire()));
        }
        if let Some(notes) = notes {
            return Poll::Ready(Turn::Notes(notes));
        }
        let wake = instant_of(self.flow.wake_at(), &*rounds.services.source, now);
        let first = [deadlines.limit, deadlines.task, wake];
        deadlines.timer.set(first, cx);
        Poll::Pending
    }

    /// The step for the last event of the flow. `None`: the token is put into the store first.
    fn end(&mut self, rounds: &Rounds, kind: CallKind, event: Event) -> Option<Step> {
        match event {
            Event::Crashed => Some(Step::Crashed),
            Event::Suspended(cut) => self.seal(rounds, cut),
            Event::Ended(end) => {
                let output = self.target.output().map(|output| &**output);
                Some(Step::Reply(reply_of(end, kind, output)))
            }
            Event::Notes(_) | Event::Settle | Event::Detach | Event::Write(_) => {
                unreachable!("poll_flow handles these, and only a task or a live flow writes")
            }
        }
    }

    fn seal(&mut self, rounds: &Rounds, cut: Suspension) -> Option<Step> {
        if cut.handed_on {
            tracing::info!(flow = %cut.snapshot.flow(), "a flow is handed on");
        }
        let version = self.target.version();
        let sealed = rounds
            .services
            .sealer
            .seal(&self.binding, &cut.snapshot, version);
        let spilled = match (sealed, &rounds.tasks) {
            (Ok(token), _) => {
                let reply = Reply::Incomplete(Incomplete {
                    asks: cut.asks,
                    state: Some(token),
                });
                return Some(incomplete(reply, cut.handed_on));
            }
            (Err(too_large), None) => Err(too_large),
            (Err(_), Some(tasks)) => tasks.spill(&self.binding, &cut.snapshot, version),
        };
        match spilled {
            Ok(spilling) => {
                let reply = async move {
                    match spilling.await {
                        Ok(token) => Reply::Incomplete(Incomplete {
                            asks: cut.asks,
                            state: Some(token),
                        }),
                        Err(error) => {
                            tracing::error!(%error, "a token could not be put into the store");
                            Reply::Error(RpcError::internal("Internal error"))
                        }
                    }
                };
                self.stage = Stage::Spilling(Box::pin(reply), cut.handed_on);
                None
            }
            Err(error) => {
                tracing::error!(%error, "a flow could not be sealed");
                let error = RpcError::internal(error.to_string());
                Some(Step::Reply(Reply::Error(error)))
            }
        }
    }

    /// Starts to create a task of the flow. One that already runs goes on here, whether there is room or not.
    fn create_task(&mut self, why: Why) {
        if let Some(seed) = self.seed.take() {
            let here = why != Why::Tool || seed.tasks.has_room();
            let creating = seed.create(&mut self.flow, here);
            self.stage = Stage::Creating(creating, why);
        }
    }

    /// No task could be created. `None`: the flow goes on without one.
    fn stay(&mut self, error: &StoreError, why: Why) -> Option<Step> {
        let error = cannot_create(error);
        match why {
            Why::Tool => return Some(Step::Reply(Reply::Error(error))),
            Why::Handler => self.flow.reject_detach(error.message.into_owned()),
            Why::Time => {
                if let Some(deadlines) = &mut self.deadlines {
                    deadlines.task = None;
                }
            }
        }
        None
    }

    /// The reply for a flow of which a task was created.
    pub(super) fn into_task(self, made: Made) -> Reply {
        made.run(self.flow, self.permit)
    }
}

fn incomplete(reply: Reply, handed_on: HandedOn) -> Step {
    if handed_on {
        Step::HandedOn(reply)
    } else {
        Step::Reply(reply)
    }
}
