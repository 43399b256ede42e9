//! One round of a call: token opened, flow driven, token sealed.

mod begin;
mod outcome;
mod parks;
mod resumed;
mod single_use;
mod span;
mod tally;
mod target;

pub(crate) use begin::{Home, Token, begin, run_handler};
pub(crate) use outcome::outcome_of;
pub(crate) use single_use::lacks_capability;
pub(crate) use span::RoundHook;
pub(crate) use target::Target;

use crate::alarm::{Alarm, instant_of};
use crate::live::{Attached, AttachedEvent, LiveAnswer, LiveEvent, LiveFlow};
use crate::load::Place;
use crate::metrics::LiveCount;
use crate::server::Server;
use crate::tasks::{Creating, Made, Seed, Spilling, cannot_create};
use jsonschema::Validator;
use parks::Parks;
use refrain_core::{Binding, Cut, Error, Event, Flow, LogKey, Note, Recorded, Stats};
use refrain_store::StoreError;
use refrain_wire::{Ask, CallKind, Id, Incomplete, Reply, RpcError};
use serde_json::value::RawValue;
use single_use::{Claim, Kept, used_up};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tally::Tally;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::Span;

/// One round of a call at work. Dropping it cancels the handler.
pub struct Round {
    server: Server,
    /// `None` once it has become a task, and where its home is memory.
    flow: Option<Flow>,
    /// The flow, where its home is memory.
    live: Option<Box<LiveFlow>>,
    /// The flow is to be parked between two rounds.
    parks: Option<Parks>,
    stage: Stage,
    binding: Binding,
    kind: CallKind,
    version: Arc<str>,
    /// What the structured content must fit.
    output: Option<Arc<Validator>>,
    number: u32,
    progress_token: Option<Box<RawValue>>,
    single_use: Option<LogKey>,
    timer: Option<Timer>,
    /// What a task is made of, where the call may become one.
    seed: Option<Seed>,
    /// What the round did, once it is over.
    stats: Stats,
    /// Was the flow handed on?
    handed_on: bool,
    /// `None` once the round was counted.
    tally: Option<Tally>,
    span: Span,
    place: Option<Place>,
}

enum Stage {
    /// Asks the replay log whether this token was used before.
    Claim(Claim),
    Run,
    /// The handler is parked here, and this round's reply is awaited.
    Attached(Box<Attached>),
    /// The flow is becoming a task.
    Create(Creating, Why),
    /// The handler is done, and what it said last goes out first.
    Last(Box<Event>),
    /// The token is too large to travel, and is put into the store; then these asks go out.
    Spill(Spilling, Vec<(String, Ask)>),
    /// Records the reply for when it is asked for again.
    Keep(Kept, Option<Reply>),
}

/// Why a flow becomes a task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Its tool says so.
    Tool,
    /// Its handler asked for it.
    Handler,
    /// It has run for long enough.
    Time,
}

/// The clock of a round, for handlers that wait.
struct Timer {
    alarm: Alarm,
    /// When the round must be over.
    limit: Option<Instant>,
    /// When the flow becomes a task.
    task: Option<Instant>,
}

/// What a round reports.
#[derive(Debug)]
pub enum RoundEvent {
    /// The handler has something to tell the client before the reply.
    Notes(Vec<Note>),
    /// In a call whose home is memory: the handler asks these under their keys, and needs no answer any more under those
    /// that are withdrawn. It goes on when an answer comes. Older clients have such calls; no round that can be had from
    /// outside is of one.
    #[doc(hidden)]
    Asks {
        /// What is new.
        asks: Vec<(String, Ask)>,
        /// What the handler has dropped.
        withdrawn: Vec<String>,
    },
    /// The round is over.
    Reply(Reply),
    /// The round was made to crash: there is no reply. Only tests do that.
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
    pub(crate) fn kind(&self) -> CallKind {
        self.kind
    }

    /// The number of this round, counted from 1.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What the round did so far.
    pub fn stats(&self) -> Stats {
        match (&self.flow, &self.live) {
            (Some(flow), _) => flow.stats(),
            (None, Some(live)) => live.stats(),
            (None, None) => self.stats,
        }
    }

    /// The token that progress reports carry, if the client wants any.
    pub fn progress_token(&self) -> Option<&RawValue> {
        self.progress_token.as_deref()
    }

    /// Makes the round crash after this many polls of its operations. For tests of what survives.
    pub fn crash_after(&mut self, polls: u32) {
        if let Some(flow) = &mut self.flow {
            flow.crash_after(polls);
        }
        if let Some(live) = &mut self.live {
            live.crash_after(polls);
        }
    }

    /// Has the answers to what a call in memory asks come from here.
    pub(crate) fn answers_from(&mut self, answers: mpsc::Receiver<LiveAnswer>) {
        if let Some(live) = &mut self.live {
            live.answers_from(answers);
        }
    }

    /// Is it a call in memory of which nothing is left but asks and sleeps?
    pub(crate) fn rests(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.rests())
    }

    /// Goes on until there is something to send.
    pub async fn next(&mut self) -> RoundEvent {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// Notes in the round's span which request it answers.
    pub(crate) fn answers(&self, id: &Id<'_>) {
        span::record_id(&self.span, id);
    }

    /// Goes on until there is something to send.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RoundEvent> {
        let span = self.span.clone();
        let _inside = span.enter();
        let event = ready!(self.go_on(cx));
        if let RoundEvent::Reply(reply) = &event {
            self.count(reply);
            span::record_reply(&span, reply);
            // The span ends with the round, however long this value is kept.
            self.span = Span::none();
        }
        Poll::Ready(event)
    }

    fn go_on(&mut self, cx: &mut Context<'_>) -> Poll<RoundEvent> {
        loop {
            match &mut self.stage {
                Stage::Claim(claim) => {
                    let claimed = ready!(claim.poll(cx));
                    match claimed {
                        Ok((Recorded::Fresh, beginning)) => {
                            self.start();
                            drop(beginning);
                        }
                        Ok((Recorded::Done(reply), _)) => {
                            return Poll::Ready(RoundEvent::Reply(Reply::Recorded(reply)));
                        }
                        Ok((Recorded::Begun, _)) => match self.parks {
                            None => return Poll::Ready(error(used_up())),
                            Some(parks) => self.attach_again(parks),
                        },
                        Err(failed) => {
                            tracing::error!(error = %failed, "the replay log failed");
                            return Poll::Ready(error(RpcError::internal("Internal error")));
                        }
                    }
                }
                Stage::Run if self.live.is_some() => {
                    let event = ready!(self.poll_live(cx));
                    if let Some(event) = event {
                        return Poll::Ready(event);
                    }
                }
                Stage::Run => {
                    let event = match ready!(self.poll_flow(cx)) {
                        Ok(event) => event,
                        Err(Instead::Settle) => {
                            // Let other tasks run: they may have asks for this round.
                            cx.waker().wake_by_ref();
                            return Poll::Pending;
                        }
                        Err(Instead::Detach(why)) => {
                            self.create(why);
                            continue;
                        }
                    };
                    if let Event::Notes(notes) = event {
                        return Poll::Ready(RoundEvent::Notes(notes));
                    }
                    let notes = self.flow.as_mut().map_or_else(Vec::new, Flow::take_notes);
                    if !notes.is_empty() {
                        self.stage = Stage::Last(Box::new(event));
                        return Poll::Ready(RoundEvent::Notes(notes));
                    }
                    if let Some(done) = self.finish(event) {
                        return Poll::Ready(done);
                    }
                }
                Stage::Attached(attached) => match ready!(attached.poll(cx)) {
                    AttachedEvent::Notes(notes) => {
                        return Poll::Ready(RoundEvent::Notes(notes));
                    }
                    AttachedEvent::Reply(reply, stats) => {
                        self.stats = stats;
                        if let Some(done) = self.finish_with(reply) {
                            return Poll::Ready(done);
                        }
                    }
                },
                Stage::Create(creating, why) => {
                    let (made, why) = (ready!(creating.as_mut().poll(cx)), *why);
                    if let Some(done) = self.created(made, why) {
                        return Poll::Ready(done);
                    }
                }
                Stage::Spill(spilling, asks) => {
                    let spilled = ready!(spilling.as_mut().poll(cx));
                    let asks = std::mem::take(asks);
                    let reply = spilled.map_or_else(
                        |error| {
                            tracing::error!(%error, "a token could not be put into the store");
                            Reply::Error(RpcError::internal("Internal error"))
                        },
                        |token| {
                            Reply::Incomplete(Incomplete {
                                asks,
                                state: Some(token),
                            })
                        },
                    );
                    if let Some(done) = self.finish_with(reply) {
                        return Poll::Ready(done);
                    }
                }
                Stage::Last(event) => {
                    let event = std::mem::replace(&mut **event, Event::Settle);
                    if let Some(done) = self.finish(event) {
                        return Poll::Ready(done);
                    }
                }
                Stage::Keep(kept, reply) => {
                    ready!(kept.as_mut().poll(cx));
                    let reply = reply.take();
                    return Poll::Ready(match reply {
                        Some(reply) => RoundEvent::Reply(reply),
                        None => error(RpcError::internal("Internal error")),
                    });
                }
            }
        }
    }

    /// Goes on with a call whose home is memory. `None`: its reply has to be recorded first.
    fn poll_live(&mut self, cx: &mut Context<'_>) -> Poll<Option<RoundEvent>> {
        let Some(live) = &mut self.live else {
            return Poll::Ready(None);
        };
        let reply = match ready!(live.poll(cx)) {
            LiveEvent::Notes(notes) => return Poll::Ready(Some(RoundEvent::Notes(notes))),
            LiveEvent::Asks { asks, withdrawn } => {
                for (_, ask) in &asks {
                    self.server.0.metrics.asks(ask.kind());
                }
                return Poll::Ready(Some(RoundEvent::Asks { asks, withdrawn }));
            }
            // Asked anew at once.
            LiveEvent::Rests => return self.poll_live(cx),
            LiveEvent::Over(event) => match *event {
                Event::Crashed => return Poll::Ready(Some(RoundEvent::Crashed)),
                event => outcome_of(event, self.kind, self.output.as_deref()),
            },
            LiveEvent::GivenUp(error) => {
                self.server.0.metrics.live(LiveCount::GivenUp);
                Reply::Error(error)
            }
        };
        self.stats = live.stats();
        self.live = None;
        Poll::Ready(self.finish_with(reply))
    }

    /// Turns the flow's last event into the reply. `None`: it has to be recorded first.
    fn finish(&mut self, event: Event) -> Option<RoundEvent> {
        if let Event::Crashed = event {
            return Some(RoundEvent::Crashed);
        }
        let reply = match event {
            Event::Cut(cut) => self.incomplete(cut)?,
            event => outcome_of(event, self.kind, self.output.as_deref()),
        };
        self.finish_with(reply)
    }

    fn finish_with(&mut self, reply: Reply) -> Option<RoundEvent> {
        match self.keep(&reply) {
            Some(kept) => {
                self.stage = Stage::Keep(kept, Some(reply));
                None
            }
            None => Some(RoundEvent::Reply(reply)),
        }
    }

    /// Begins to run the handler, or to make a task of it if its tool says so.
    fn start(&mut self) {
        self.stage = Stage::Run;
        if let Some(parks) = self.parks.take() {
            self.park(parks);
            return;
        }
        let at_once = |seed: &Seed| seed.tool.tool.task.at_once;
        if self.seed.as_ref().is_some_and(at_once) {
            self.create(Why::Tool);
        }
    }

    /// Begins to make the flow a task. One that has begun goes on here, whether there is room or not.
    fn create(&mut self, why: Why) {
        let here = why != Why::Tool || self.server.has_room_for_task();
        if let (Some(seed), Some(flow)) = (&self.seed, &mut self.flow)
            && let Some(creating) = self.server.create_task(seed, flow, here)
        {
            self.stage = Stage::Create(creating, why);
        }
    }

    /// The flow has become a task, or could not. `None`: it goes on.
    fn created(&mut self, made: Result<Made, StoreError>, why: Why) -> Option<RoundEvent> {
        self.stage = Stage::Run;
        match made {
            Ok(made) => {
                let (seed, flow) = (self.seed.take()?, self.flow.take()?);
                self.stats = flow.stats();
                let place = self.place.take();
                let reply = self.server.begin_task(made, seed, flow, place);
                self.finish_with(reply)
            }
            Err(failed) => {
                let error = cannot_create(&failed);
                match why {
                    Why::Tool => self.finish_with(Reply::Error(error)),
                    Why::Handler => {
                        self.flow.as_mut()?.stay(error.message.into_owned());
                        None
                    }
                    // It goes on as it is.
                    Why::Time => {
                        self.timer.as_mut()?.task = None;
                        None
                    }
                }
            }
        }
    }

    fn poll_flow(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event, Instead>> {
        let Some(flow) = &mut self.flow else {
            let error = Error::internal("a flow that became a task was polled");
            return Poll::Ready(Ok(Event::Done(Err(error))));
        };
        let notes = match flow.poll(cx) {
            Poll::Ready(Event::Settle) => return Poll::Ready(Err(Instead::Settle)),
            Poll::Ready(Event::Detach) => return Poll::Ready(Err(Instead::Detach(Why::Handler))),
            // It may go on like that for ever.
            Poll::Ready(Event::Notes(notes)) => Some(notes),
            Poll::Ready(event) => return Poll::Ready(Ok(event)),
            Poll::Pending => None,
        };
        // The clock of the round is only set up for handlers that wait, or have something to tell.
        let seed = self.seed.as_ref();
        let timer = self.timer.get_or_insert_with(|| {
            let now = Instant::now();
            let after = seed.and_then(|seed| seed.tool.tool.task.after);
            Timer {
                limit: now.checked_add(self.server.0.limits.round_time),
                task: after.and_then(|after| now.checked_add(after)),
                alarm: Alarm::default(),
            }
        });
        let now = Instant::now();
        if timer.task.is_some_and(|at| at <= now) {
            return Poll::Ready(Err(Instead::Detach(Why::Time)));
        }
        if timer.limit.is_some_and(|at| at <= now) {
            return Poll::Ready(Ok(flow.expire()));
        }
        if let Some(notes) = notes {
            return Poll::Ready(Ok(Event::Notes(notes)));
        }
        let wake = instant_of(flow.wake_at(), &*self.server.0.source, now);
        timer.alarm.set([timer.limit, timer.task, wake], cx);
        Poll::Pending
    }

    /// `None`: the token has to be put into the store first.
    fn incomplete(&mut self, cut: Cut) -> Option<Reply> {
        self.handed_on = cut.shed;
        if cut.shed {
            tracing::info!(flow = %cut.snapshot.flow(), "a flow is handed on");
        }
        let sealer = &self.server.0.sealer;
        let sealed = sealer.seal(&self.binding, &cut.snapshot, &self.version);
        let spilled = match sealed {
            Ok(token) => {
                return Some(Reply::Incomplete(Incomplete {
                    asks: cut.asks,
                    state: Some(token),
                }));
            }
            Err(too_large) => {
                let server = &self.server;
                server.spill(&self.binding, &cut.snapshot, &self.version, too_large)
            }
        };
        match spilled {
            Ok(spilling) => {
                self.stage = Stage::Spill(spilling, cut.asks);
                None
            }
            Err(error) => {
                tracing::error!(%error, "a flow could not be sealed");
                Some(Reply::Error(RpcError::internal(error.to_string())))
            }
        }
    }
}

/// A round that is dropped before its reply was cancelled: the client went away or said so. The handler's destructors
/// belong to the round too.
impl Drop for Round {
    fn drop(&mut self) {
        let span = self.span.clone();
        let _inside = span.enter();
        if let Some(flow) = &mut self.flow {
            flow.cancel();
        }
        self.count_cancelled();
        // Within the span too.
        self.live = None;
    }
}

/// What is to be done instead of dealing with an event.
enum Instead {
    /// Others should be let run first.
    Settle,
    /// The flow is to become a task.
    Detach(Why),
}

fn error(error: RpcError) -> RoundEvent {
    RoundEvent::Reply(Reply::Error(error))
}
