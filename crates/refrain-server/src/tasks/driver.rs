//! Runs one task: drives its flow, commits its progress, watches its lease.
//!
//! Invariant: the handler is polled only while the lease is certainly held, and nothing is written once it is lost.

use super::Tasks;
use super::commit::{LeaseLost, only};
use super::failures::{too_large, too_old};
use super::leases::HeldLease;
use super::sealing::Part;
use crate::catalog::RegisteredTool;
use crate::limits::Permit;
use crate::metrics::{TaskEvent, TaskRuns};
use crate::server::Server;
use refrain_core::{AfterWrite, End, Event, Flow, PendingWrite, Principal};
use refrain_store::{Commit, Lease, Next};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};
use tokio::time::Sleep;
use tracing::Instrument;

/// A task with a shorter sleep stays in memory.
const SHORT_SLEEP: Duration = Duration::from_secs(1);
/// How long a task stays in memory whose handler may wait for something other than asks and sleeps.
const LINGER: Duration = Duration::from_secs(30);
/// The least time between two commits of only a status message.
const STATUS_EVERY: Duration = Duration::from_millis(200);

/// A task that runs on this instance.
pub(crate) struct Running {
    pub(super) tool: Arc<RegisteredTool>,
    pub(super) owner: Principal,
    pub(super) flow: Flow,
    pub(super) attempt: u32,
    pub(super) ends: Option<Instant>,
    pub(super) ttl: Duration,
    pub(super) clocks: Clocks,
    /// The permit of the call that has become this task.
    pub(super) _permit: Option<Permit>,
}

/// The next thing to do for a running task.
enum Turn {
    Event(Box<Event>),
    /// The lease changed, or there may be answers.
    Hold,
    /// The lease may have expired.
    Doubt,
    Expired,
    /// The task lingered long enough.
    Lingered,
    Status,
}

impl Tasks {
    /// Starts to run a task on this instance.
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
            let driver = Driver {
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
}

pub(super) struct Driver {
    pub(super) tasks: Arc<Tasks>,
    pub(super) hold: Arc<HeldLease>,
    pub(super) owner: Principal,
    _runs: TaskRuns,
    /// Handlers may take the server as a state.
    _server: Option<Server>,
}

/// Releases the lease however the driver ends.
impl Drop for Driver {
    fn drop(&mut self) {
        self.tasks.leases.release(&self.hold);
    }
}

/// Deadlines of a task beside those of its flow.
#[derive(Default)]
pub(super) struct Clocks {
    /// When lingering ends, and the number of steps at its start.
    linger: Option<(Instant, u32)>,
    /// The status message, and when it is due.
    status: Option<(String, Instant)>,
    status_written: Option<Instant>,
    /// The task leaves memory, however short its sleep.
    leave: bool,
}

impl Driver {
    async fn run(&self, mut running: Running) {
        if let Err(LeaseLost) = self.drive(&mut running).await {
            tracing::info!(task = ?self.hold.lease.task, "a task is no longer run here");
            self.tasks.services.metrics.tasks.add(TaskEvent::Lost);
        }
        running.flow.cancel();
        self.tasks.services.metrics.work(running.flow.stats());
    }

    async fn drive(&self, running: &mut Running) -> Result<(), LeaseLost> {
        loop {
            match self.turn(running).await {
                Turn::Event(event) => match *event {
                    Event::Settle => tokio::task::yield_now().await,
                    Event::Notes(_) | Event::Detach => {}
                    Event::Crashed => return Ok(()),
                    Event::Write(write) => {
                        if self.write(running, *write).await? {
                            return Ok(());
                        }
                    }
                    Event::Ended(end) => return self.finish(running, end).await,
                    Event::Suspended(_) => unreachable!("a task writes its asks, it is not cut"),
                },
                Turn::Hold => {
                    if !self.look(running).await? {
                        return Ok(());
                    }
                }
                Turn::Doubt => self.make_sure().await?,
                Turn::Expired => {
                    let write = running.flow.suspend();
                    let open: Vec<&str> = write.snapshot.open_keys().collect();
                    return self.end(&too_old(running.ttl, &open, None)).await;
                }
                Turn::Lingered => {
                    let write = running.flow.suspend();
                    running.clocks.leave = true;
                    return self.write(running, write).await.map(drop);
                }
                Turn::Status => {
                    running.clocks.status_written = Some(Instant::now());
                    let commit = Commit {
                        status_message: running.clocks.status.take().map(|said| said.0),
                        ..Commit::default()
                    };
                    if self.commit(&commit).await?.answers {
                        self.take_answers(running).await?;
                    }
                }
            }
        }
    }

    async fn finish(&self, running: &mut Running, end: End) -> Result<(), LeaseLost> {
        let said = running.clocks.status.take().map(|said| said.0);
        let said = running.flow.take_status().or(said);
        let mut commit = self.ended(running, end);
        // A result comes with its own message, not with one from the way there.
        let said = match commit.next {
            Next::Complete(_) => running.flow.final_status(),
            _ => said,
        };
        commit.status_message = commit.status_message.or(said);
        self.commit(&commit).await.map(drop)
    }

    /// Runs until there is something to do.
    async fn turn(&self, running: &mut Running) -> Turn {
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
                let soonest = running.clocks.status_written.map(|at| at + STATUS_EVERY);
                let at = soonest.unwrap_or_else(Instant::now);
                running.clocks.status = Some((message, at));
            }
            match polled {
                Poll::Ready(event) => Poll::Ready(Turn::Event(Box::new(event))),
                Poll::Pending => self.poll_clocks(cx, running, timer.as_mut()),
            }
        })
        .await
    }

    fn poll_clocks(
        &self,
        cx: &mut Context<'_>,
        running: &Running,
        mut timer: Pin<&mut Sleep>,
    ) -> Poll<Turn> {
        let now = Instant::now();
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let status = running.clocks.status.as_ref().map(|said| said.1);
        if due(running.ends) {
            return Poll::Ready(Turn::Expired);
        }
        if due(status) {
            return Poll::Ready(Turn::Status);
        }
        // A step that started since will be committed, and rest reported again.
        let steps = running.flow.stats().steps;
        let linger = running.clocks.linger.filter(|linger| linger.1 == steps);
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
            // Already due: the deadlines are checked again.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn until(&self, at: SystemTime) -> Duration {
        let now = self.tasks.services.source.now();
        at.duration_since(now).unwrap_or_default()
    }

    /// The state of the task after a write.
    fn next_after(&self, then: AfterWrite, running: &mut Running) -> Next {
        running.clocks.linger = None;
        match then {
            AfterWrite::Continue => Next::Keep,
            AfterWrite::HandOn => Next::HandOn,
            AfterWrite::Rest { wake, may_progress } => {
                let wake = wake.map(|at| self.until(at));
                let short = wake.is_some_and(|wake| wake < SHORT_SLEEP);
                if short && !running.clocks.leave {
                    Next::Keep
                } else if may_progress {
                    let steps = running.flow.stats().steps;
                    running.clocks.linger = Some((Instant::now() + LINGER, steps));
                    Next::Keep
                } else {
                    Next::Suspend(wake)
                }
            }
        }
    }

    /// Commits the progress of the task. `true`: it has left memory.
    async fn write(&self, running: &mut Running, write: PendingWrite) -> Result<bool, LeaseLost> {
        let task = &self.hold.lease.task;
        let whose = (task, &self.owner);
        let tasks = &self.tasks;
        let journal = tasks.seal_journal(whose, &write.snapshot, &running.tool.tool.version);
        let limit = tasks.options.journal;
        if journal.len() > limit {
            let error = too_large(&write.snapshot, journal.len(), limit);
            return self.end(&error).await.map(|()| true);
        }
        let next = self.next_after(write.then, running);
        let publish = write.asks.iter().map(|(key, ask)| {
            let json = serde_json::to_vec(ask).expect("an ask can be written");
            tasks.services.metrics.asks.add(ask.kind());
            (key.clone(), tasks.seal(whose, Part::Ask(key), &json))
        });
        let keep = next == Next::Keep;
        let commit = Commit {
            journal: Some(journal),
            progress: write.progress,
            publish: publish.collect(),
            taken: write.taken,
            withdrawn: write.withdrawn,
            status_message: running.clocks.status.take().map(|said| said.0),
            next,
        };
        let committed = self.commit(&commit).await?;
        if !keep {
            if let Next::Suspend(wake) = &commit.next {
                tasks.leases.set_down(*wake);
            }
            return Ok(true);
        }
        if write.progress {
            running.attempt = 1;
        }
        running.flow.confirm_write();
        if committed.answers {
            self.take_answers(running).await?;
        }
        Ok(false)
    }

    /// Checks the lease and receives answers. `false`: the task was handed on.
    async fn look(&self, running: &mut Running) -> Result<bool, LeaseLost> {
        if self.hold.is_lost() {
            return Err(LeaseLost);
        }
        if self.hold.is_given_up() {
            // Before another instance may claim it.
            running.flow.cancel();
            return self.commit(&only(Next::HandOn)).await.map(|_| false);
        }
        if self.hold.take_news() {
            self.take_answers(running).await?;
        }
        Ok(true)
    }
}
