//! One task at work: its flow driven, what it comes to written, its lease watched.
//!
//! What always holds: the handler is polled only while the lease is sure to be held, and once it is lost nothing is
//! written any more.

use super::Tasks;
use super::create::Seed;
use super::failures::{too_large, too_often, too_old};
use super::leases::HeldLease;
use super::sealing::Part;
use crate::catalog::RegisteredTool;
use crate::limits::Permit;
use crate::metrics::{TaskEvent, TaskRuns};
use crate::rounds::outcome_of;
use crate::server::Server;
use refrain_core::{ErrorKind, Event, Flow, Principal, Then, Write};
use refrain_store::{Commit, Committed, Lease, Next, StoreError, TaskId};
use refrain_wire::{CallKind, Reply, RpcError, error_at_rest, result_at_rest};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};
use tokio::time::Sleep;
use tracing::Instrument;

/// A sleep shorter than this is not worth leaving memory for.
const SHORT_SLEEP: Duration = Duration::from_secs(1);
/// How long a task stays in memory where something may be at work that cannot be seen.
const LINGER: Duration = Duration::from_secs(30);
/// How often what a handler says of how it stands is written, if nothing else is.
const STATUS_EVERY: Duration = Duration::from_millis(200);

/// A task that runs here.
pub(crate) struct Running {
    pub(super) tool: Arc<RegisteredTool>,
    pub(super) owner: Principal,
    pub(super) flow: Flow,
    pub(super) attempt: u32,
    /// When its life is over.
    pub(super) ends: Option<Instant>,
    pub(super) ttl: Duration,
    /// The permit of the call that has become this task.
    pub(super) _permit: Option<Permit>,
}

impl Running {
    /// A task that a call has just become.
    pub(super) fn begun(seed: Seed, flow: Flow, ttl: Duration, permit: Permit) -> Self {
        Self {
            tool: seed.tool,
            owner: seed.owner,
            flow,
            attempt: 1,
            ends: Instant::now().checked_add(ttl),
            ttl,
            _permit: Some(permit),
        }
    }
}

/// The task is no longer ours: whatever is to be done is done elsewhere.
struct Gone;

/// What a task at work has come to.
enum Turn {
    Event(Box<Event>),
    /// Something changed about the hold of it.
    Hold,
    /// The lease may have run out.
    Doubt,
    /// Its life is over.
    Expired,
    /// It has waited long enough for what cannot be seen.
    Lingered,
    /// What the handler says of how it stands is to be written.
    Status,
}

impl Tasks {
    /// Runs a task on this instance, in a tokio task of its own.
    pub(super) fn run_here(
        self: &Arc<Self>,
        running: Running,
        lease: Lease,
        revision: u64,
        asked: Instant,
    ) {
        let hold = (self.leases).hold(lease, revision, asked, self.options.lease);
        self.keep_leases();
        let tasks = self.clone();
        let span = tracing::debug_span!("task", task = ?hold.lease.task, tool = running.tool.tool.info.name);
        let work = async move {
            let mut driver = Driver {
                _runs: tasks.services.metrics.task_runs(),
                _server: tasks.flows.server(),
                tasks,
                hold,
                owner: running.owner.clone(),
            };
            driver.run(running).await;
        };
        tokio::spawn(work.instrument(span));
    }

    /// Counts what became of a task.
    pub(super) fn count(&self, next: &Next) {
        let event = match next {
            Next::Keep => return,
            Next::SetDown(_) => TaskEvent::SetDown,
            Next::HandOn => TaskEvent::HandedOn,
            Next::Retry(..) => TaskEvent::Retried,
            Next::Complete(_) => TaskEvent::Completed,
            Next::Fail(_) => TaskEvent::Failed,
        };
        self.services.metrics.task(event);
    }

    /// The end of a task that failed. What is said of how it stands is why.
    pub(super) fn fail(&self, whose: (&TaskId, &Principal), error: &RpcError) -> Commit {
        tracing::warn!(task = ?whose.0, error = %error.message, "a task failed");
        let next = Next::Fail(self.seal(whose, Part::Outcome, error_at_rest(error).as_bytes()));
        Commit {
            status_message: Some(error.message.to_string()),
            next,
            ..Commit::default()
        }
    }

    /// The wait before another attempt: longer each time, and never the same for two tasks.
    fn wait_before(&self, attempt: u32) -> Duration {
        let options = &self.options;
        let doubled = 1_u32
            .checked_shl(attempt.saturating_sub(1))
            .unwrap_or(u32::MAX);
        let wait = options.retry_after.saturating_mul(doubled);
        let wait = wait.min(options.retry_at_most);
        let random = u16::from_be_bytes(self.services.random());
        let jitter = f64::from(random) / f64::from(u16::MAX);
        wait.mul_f64(0.5 + jitter / 2.0)
    }
}

/// Runs one task.
struct Driver {
    tasks: Arc<Tasks>,
    hold: Arc<HeldLease>,
    owner: Principal,
    _runs: TaskRuns,
    /// Handlers may take the server as a state.
    _server: Option<Server>,
}

/// Whatever becomes of the task, this instance runs it no longer.
impl Drop for Driver {
    fn drop(&mut self) {
        self.tasks.leases.release(&self.hold);
    }
}

/// When a task is to be looked after, beside what its flow says.
#[derive(Default)]
struct Clocks {
    /// Until when it waits for what cannot be seen, and how many steps had begun by then.
    linger: Option<(Instant, u32)>,
    /// What the handler says of how it stands, and when it is to be written.
    status: Option<(String, Instant)>,
    status_written: Option<Instant>,
    /// It leaves memory, however soon it is to be taken up again.
    leave: bool,
}

impl Driver {
    async fn run(&mut self, mut running: Running) {
        if let Err(Gone) = self.drive(&mut running).await {
            tracing::info!(task = ?self.hold.lease.task, "a task is no longer run here");
            self.tasks.services.metrics.task(TaskEvent::Lost);
        }
        running.flow.cancel();
        self.tasks.services.metrics.work(running.flow.stats());
    }

    async fn drive(&mut self, running: &mut Running) -> Result<(), Gone> {
        let mut clocks = Clocks::default();
        loop {
            match self.turn(running, &mut clocks).await {
                Turn::Event(event) => match *event {
                    Event::Settle => tokio::task::yield_now().await,
                    Event::Notes(_) | Event::Detach => {}
                    Event::Crashed => return Ok(()),
                    Event::Write(write) => {
                        if self.write(running, &mut clocks, *write).await? {
                            return Ok(());
                        }
                    }
                    event => {
                        let said = clocks.status.take().map(|said| said.0);
                        let said = running.flow.take_status().or(said);
                        let mut commit = self.ended(running, event);
                        // A result has what was said with it, and nothing that was said on the way there.
                        let said = match commit.next {
                            Next::Complete(_) => running.flow.parting_status(),
                            _ => said,
                        };
                        commit.status_message = commit.status_message.or(said);
                        self.commit(&commit).await?;
                        return Ok(());
                    }
                },
                Turn::Hold => {
                    if !self.look(running).await? {
                        return Ok(());
                    }
                }
                Turn::Doubt => self.make_sure().await?,
                Turn::Expired => {
                    let write = running.flow.set_down();
                    let open: Vec<&str> = write.snapshot.asked().collect();
                    let error = too_old(running.ttl, &open, None);
                    self.end(&error).await?;
                    return Ok(());
                }
                Turn::Lingered => {
                    let write = running.flow.set_down();
                    clocks.leave = true;
                    self.write(running, &mut clocks, write).await?;
                    return Ok(());
                }
                Turn::Status => {
                    let Some((message, _)) = clocks.status.take() else {
                        continue;
                    };
                    clocks.status_written = Some(Instant::now());
                    let commit = Commit {
                        status_message: Some(message),
                        ..Commit::default()
                    };
                    if self.commit(&commit).await?.answers {
                        self.take_answers(running).await?;
                    }
                }
            }
        }
    }

    /// Goes on until there is something to do.
    async fn turn(&self, running: &mut Running, clocks: &mut Clocks) -> Turn {
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        let mut changed = pin!(self.hold.changed());
        poll_fn(|cx| {
            let hold = &self.hold;
            if changed.as_mut().poll(cx).is_ready() || hold.is_lost() || hold.is_given_up() {
                return Poll::Ready(Turn::Hold);
            }
            if !hold.is_sure() {
                return Poll::Ready(Turn::Doubt);
            }
            let polled = running.flow.poll(cx);
            if let Some(message) = running.flow.take_status() {
                let soonest = clocks.status_written.map(|at| at + STATUS_EVERY);
                let at = soonest.unwrap_or_else(Instant::now);
                clocks.status = Some((message, at));
            }
            match polled {
                Poll::Ready(event) => Poll::Ready(Turn::Event(Box::new(event))),
                Poll::Pending => self.poll_clocks(cx, running, clocks, timer.as_mut()),
            }
        })
        .await
    }

    fn poll_clocks(
        &self,
        cx: &mut Context<'_>,
        running: &Running,
        clocks: &Clocks,
        mut timer: Pin<&mut Sleep>,
    ) -> Poll<Turn> {
        let now = Instant::now();
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let status = clocks.status.as_ref().map(|said| said.1);
        if due(running.ends) {
            return Poll::Ready(Turn::Expired);
        }
        if due(status) {
            return Poll::Ready(Turn::Status);
        }
        // If a step began since, it will be written, and rest be told anew.
        let steps = running.flow.stats().steps;
        let linger = clocks.linger.filter(|linger| linger.1 == steps);
        let linger = linger.map(|linger| linger.0);
        if due(linger) || (linger.is_some() && self.tasks.services.limits.is_draining()) {
            return Poll::Ready(Turn::Lingered);
        }
        let wake = running.flow.wake_at().map(|at| now + self.until(at));
        let first = [running.ends, status, linger, wake];
        let Some(first) = first.into_iter().flatten().min() else {
            return Poll::Pending;
        };
        timer.as_mut().reset(first.into());
        if timer.poll(cx).is_ready() {
            // It may have been due at once: look again.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// How long until this time.
    fn until(&self, at: SystemTime) -> Duration {
        let now = self.tasks.services.source.now();
        at.duration_since(now).unwrap_or_default()
    }

    /// Writes what the task has come to. `true`: it has left memory.
    async fn write(
        &self,
        running: &mut Running,
        clocks: &mut Clocks,
        write: Write,
    ) -> Result<bool, Gone> {
        let task = &self.hold.lease.task;
        let whose = (task, &self.owner);
        let tasks = &self.tasks;
        let journal = tasks.seal_journal(whose, &write.snapshot, &running.tool.tool.version);
        let limit = tasks.options.journal;
        if journal.len() > limit {
            let error = too_large(&write.snapshot, journal.len(), limit);
            self.end(&error).await?;
            return Ok(true);
        }
        clocks.linger = None;
        let next = match write.then {
            Then::GoOn => Next::Keep,
            Then::HandOn => Next::HandOn,
            Then::Rest { wake, perhaps_more } => {
                let wake = wake.map(|at| self.until(at));
                let short = wake.is_some_and(|wake| wake < SHORT_SLEEP);
                if short && !clocks.leave {
                    Next::Keep
                } else if perhaps_more {
                    let steps = running.flow.stats().steps;
                    clocks.linger = Some((Instant::now() + LINGER, steps));
                    Next::Keep
                } else {
                    Next::SetDown(wake)
                }
            }
        };
        let publish = write.asks.iter().map(|(key, ask)| {
            let json = serde_json::to_vec(ask).expect("an ask can be written");
            tasks.services.metrics.asks(ask.kind());
            (key.clone(), tasks.seal(whose, Part::Ask(key), &json))
        });
        let keep = next == Next::Keep;
        let commit = Commit {
            journal: Some(journal),
            progress: write.progress,
            publish: publish.collect(),
            taken: write.taken,
            withdrawn: write.withdrawn,
            status_message: clocks.status.take().map(|said| said.0),
            next,
        };
        let committed = self.commit(&commit).await?;
        if !keep {
            if let Next::SetDown(wake) = &commit.next {
                tasks.leases.set_down(*wake);
            }
            return Ok(true);
        }
        if write.progress {
            running.attempt = 1;
        }
        running.flow.written();
        if committed.answers {
            self.take_answers(running).await?;
        }
        Ok(false)
    }

    /// How the task ends, or is tried again.
    fn ended(&self, running: &Running, event: Event) -> Commit {
        let task = &self.hold.lease.task;
        let whose = (task, &self.owner);
        let again = match &event {
            Event::Done(Err(error)) if matches!(error.kind(), ErrorKind::Retry) => {
                Some(error.to_string())
            }
            Event::Panicked(message) => {
                tracing::error!(?task, panic = %message, "a handler panicked");
                Some("the handler panicked; the server's log says where".to_owned())
            }
            _ => None,
        };
        if let Some(reason) = again {
            let attempt = running.attempt;
            if attempt >= self.tasks.options.attempts {
                return self.tasks.fail(whose, &too_often(attempt, Some(&reason)));
            }
            let wait = self.tasks.wait_before(attempt);
            tracing::warn!(?task, attempt, %reason, "an attempt at a task failed");
            return Commit {
                next: Next::Retry(wait, reason),
                ..Commit::default()
            };
        }
        // What it said before would be about something that is not to be. What is sealed as its result is not told beside it.
        let is_sealed = self.tasks.options.seal;
        let error = match &event {
            Event::Done(Err(_)) if is_sealed => None,
            Event::Done(Err(error)) => Some(error.to_string()),
            _ => None,
        };
        match outcome_of(event, CallKind::Tool, running.tool.output.as_deref()) {
            Reply::Complete(body) => {
                let result = result_at_rest(&body);
                let outcome = self.tasks.seal(whose, Part::Outcome, result.as_bytes());
                Commit {
                    status_message: error,
                    next: Next::Complete(outcome),
                    ..Commit::default()
                }
            }
            Reply::Error(error) => self.tasks.fail(whose, &error),
            Reply::Incomplete(_) | Reply::Task(_) | Reply::Recorded(_) => {
                let error = RpcError::internal("Internal error");
                self.tasks.fail(whose, &error)
            }
        }
    }

    /// Something changed about the task: is it still ours, and are there answers?
    /// `false`: it was given up.
    async fn look(&self, running: &mut Running) -> Result<bool, Gone> {
        if self.hold.is_lost() {
            return Err(Gone);
        }
        if self.hold.is_given_up() {
            // Before anybody else may take it up.
            running.flow.cancel();
            let commit = Commit {
                next: Next::HandOn,
                ..Commit::default()
            };
            self.commit(&commit).await?;
            return Ok(false);
        }
        if self.hold.take_news() {
            self.take_answers(running).await?;
        }
        Ok(true)
    }

    async fn take_answers(&self, running: &mut Running) -> Result<(), Gone> {
        let tasks = &self.tasks;
        let lease = &self.hold.lease;
        let answers = self.until_done(|| tasks.store.answers(lease)).await?;
        for (key, stored) in answers {
            let whose = (&lease.task, &self.owner);
            let opened = self.tasks.open(whose, Part::Answer(&key), stored);
            if let Some(json) = opened.and_then(|opened| String::from_utf8(opened).ok()) {
                running.flow.answer(&key, &json);
            }
        }
        Ok(())
    }

    /// The lease may have run out while nobody looked: is the task still ours?
    async fn make_sure(&self) -> Result<(), Gone> {
        let tasks = &self.tasks;
        let leases = std::slice::from_ref(&self.hold.lease);
        let time = tasks.options.lease;
        let asked = Instant::now();
        let held = self.until_done(|| tasks.store.extend(leases, time)).await?;
        if held.is_empty() {
            return Err(Gone);
        }
        self.hold.extended(asked, time);
        Ok(())
    }

    /// Ends the task with this error.
    async fn end(&self, error: &RpcError) -> Result<(), Gone> {
        let whose = (&self.hold.lease.task, &self.owner);
        let commit = self.tasks.fail(whose, error);
        self.commit(&commit).await.map(|_| ())
    }

    async fn commit(&self, commit: &Commit) -> Result<Committed, Gone> {
        let tasks = &self.tasks;
        let lease = &self.hold.lease;
        let done = self.until_done(|| tasks.store.commit(lease, commit.clone()));
        let committed = match done.await {
            Ok(committed) => committed,
            Err(Undone::Gone) => return Err(Gone),
            // The store does not take what it was given. Somebody should hear of it.
            Err(Undone::Refused) => {
                let whose = (&lease.task, &self.owner);
                let error = RpcError::internal("what the task came to could not be stored");
                let commit = self.tasks.fail(whose, &error);
                let failed = self.until_done(|| tasks.store.commit(lease, commit.clone()));
                if failed.await.is_ok() {
                    self.tasks.count(&commit.next);
                }
                return Err(Gone);
            }
        };
        self.hold.wrote(committed.revision);
        self.tasks.count(&commit.next);
        Ok(committed)
    }

    /// Does something with the store, again and again while it cannot be reached, until the lease is lost.
    async fn until_done<T, F>(&self, mut work: impl FnMut() -> F) -> Result<T, Undone>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut wait = Duration::from_millis(50);
        let mut told = false;
        loop {
            let error = match work().await {
                Ok(done) => return Ok(done),
                Err(StoreError::Lost) => return Err(Undone::Gone),
                Err(error) => error,
            };
            let task = &self.hold.lease.task;
            if !told {
                tracing::warn!(?task, %error, "the task store failed");
                told = true;
            }
            if self.hold.is_lost() {
                return Err(Undone::Gone);
            }
            if !matches!(error, StoreError::Unavailable(_)) {
                return Err(Undone::Refused);
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(2));
        }
    }
}

/// Why something was not done with the store.
enum Undone {
    /// The task is no longer ours.
    Gone,
    /// The store does not take it.
    Refused,
}

impl From<Undone> for Gone {
    fn from(_: Undone) -> Self {
        Self
    }
}
