//! Runs one task: drives its flow, commits its progress, checks its lease.
//!
//! Invariant: the handler is polled only while the lease is certainly held. After the lease is lost, nothing is written.

use super::commit::{LeaseLost, state_change};
use super::failures::{expired, incomplete_live, journal_too_large, outcome_unknown};
use super::leases::{HeldLease, TaskSlot};
use super::sealing::TaskPart;
use super::{CallPermit, Tasks};
use crate::catalog::RegisteredTool;
use crate::metrics::{RunningTaskGuard, TaskEvent};
use crate::server::Server;
use crate::timer::Timer;
use refrain_core::{
    AfterWrite, End, Event, Flow, PendingWrite, Principal, StatusMessage, limited_event,
};
use refrain_store::{Commit, Lease, Next};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};
use tracing::{Instrument, Span};

/// Tasks with shorter sleeps stay in memory.
const MIN_STORED_SLEEP: Duration = Duration::from_secs(1);
/// How long an idle task stays in memory if its handler may wait for something other than asks and sleeps.
const LINGER_TIME: Duration = Duration::from_secs(30);
/// The minimum time between two commits that change only the status message.
const STATUS_INTERVAL: Duration = Duration::from_millis(200);
/// The minimum time if the status message reports progress, which handlers do often.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// A task that runs on this instance.
pub(crate) struct RunningTask {
    pub(super) tool: Arc<RegisteredTool>,
    pub(super) owner: Principal,
    /// `None` if no slot was free for a handler that was already in memory.
    pub(super) slot: Option<TaskSlot>,
    pub(super) flow: Flow,
    pub(super) attempt: u32,
    pub(super) deadline: Option<Instant>,
    pub(super) ttl: Duration,
    pub(super) timers: TaskTimers,
    /// Whether the handler stays in memory until it ends, and never runs again.
    pub(super) is_live: bool,
    pub(super) span: Span,
    pub(super) _permit: Option<CallPermit>,
}

/// The next action of the driver.
enum DriverTurn {
    Event(Box<Event>),
    /// The lease changed, or answers may have arrived.
    CheckLease,
    /// The lease may have expired.
    RenewLease,
    Expired,
    /// `LINGER_TIME` has passed: the task must leave memory.
    Lingered,
    /// A status message is due.
    Status,
}

impl Tasks {
    pub(super) fn run_here(
        self: &Arc<Self>,
        mut running: RunningTask,
        lease: Lease,
        revision: u64,
        requested_at: Instant,
    ) {
        let time = self.options.lease;
        let held = self.leases.hold(lease, revision, requested_at, time);
        self.start_renewal();
        let tasks = self.clone();
        let span = std::mem::replace(&mut running.span, Span::none());
        let work = async move {
            let driver = Driver {
                _running: tasks.services.metrics.task_started(),
                _server: tasks.flows.server(),
                tasks,
                held,
                owner: running.owner.clone(),
            };
            driver.run(running).await;
        };
        tokio::spawn(work.instrument(span));
    }
}

/// Runs one task. Dropping it removes the lease from those that this instance renews.
pub(super) struct Driver {
    pub(super) tasks: Arc<Tasks>,
    pub(super) held: Arc<HeldLease>,
    pub(super) owner: Principal,
    _running: RunningTaskGuard,
    /// Kept alive for `State<Server>`.
    _server: Option<Server>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.tasks.leases.release(&self.held);
    }
}

/// Deadlines of a task, apart from those of its flow.
#[derive(Default)]
pub(super) struct TaskTimers {
    /// When the task has stayed in memory for [`LINGER_TIME`], and the number of its steps when
    /// that time began.
    linger: Option<(Instant, u32)>,
    /// The pending status message and when to commit it.
    status: Option<(String, Instant)>,
    status_written: Option<Instant>,
    /// Whether the task must leave memory even for a short sleep.
    must_leave: bool,
    timer: Timer,
}

impl TaskTimers {
    /// Replaces the pending status message. It is committed no later than the replaced one.
    fn set_status(&mut self, StatusMessage { text, is_progress }: StatusMessage) {
        let interval = match is_progress {
            true => PROGRESS_INTERVAL,
            false => STATUS_INTERVAL,
        };
        let soonest = self.status_written.map(|at| at + interval);
        let due = soonest.unwrap_or_else(Instant::now);
        let due = self.status.take().map_or(due, |(_, at)| at.min(due));
        self.status = Some((text, due));
    }
}

impl Driver {
    async fn run(&self, mut running: RunningTask) {
        if let Err(LeaseLost) = self.drive(&mut running).await {
            limited_event!(INFO, task = ?self.held.lease.task, "task lease lost");
            self.tasks.services.metrics.tasks.add(TaskEvent::Lost);
        }
        running.flow.cancel();
        self.tasks.services.metrics.work(running.flow.stats());
    }

    async fn drive(&self, running: &mut RunningTask) -> Result<(), LeaseLost> {
        loop {
            match self.turn(running).await {
                DriverTurn::Event(event) => match *event {
                    Event::Settle => tokio::task::yield_now().await,
                    // A task reports through its status message, and is already detached.
                    Event::Notes(_) | Event::Detach => {}
                    Event::Crashed => return Ok(()),
                    Event::Write(write) => {
                        if self.write(running, *write).await? {
                            return Ok(());
                        }
                    }
                    Event::Ended(end) => return self.finish(running, end).await,
                    Event::Suspended(_) => unreachable!("a task writes its asks instead"),
                },
                DriverTurn::CheckLease => {
                    if !self.check_lease(running).await? {
                        return Ok(());
                    }
                }
                DriverTurn::RenewLease => self.renew_lease().await?,
                DriverTurn::Expired => {
                    let write = running.flow.suspend();
                    let open: Vec<&str> = write.snapshot.open_keys().collect();
                    return self.fail_task(&expired(running.ttl, &open, None)).await;
                }
                DriverTurn::Lingered => {
                    let write = running.flow.suspend();
                    running.timers.must_leave = true;
                    return self.write(running, write).await.map(drop);
                }
                DriverTurn::Status => {
                    running.timers.status_written = Some(Instant::now());
                    let commit = Commit {
                        status_message: running.timers.status.take().map(|status| status.0),
                        ..Commit::default()
                    };
                    if self.commit(&commit).await?.answers {
                        self.take_answers(running).await?;
                    }
                }
            }
        }
    }

    async fn finish(&self, running: &mut RunningTask, end: End) -> Result<(), LeaseLost> {
        let pending = running.timers.status.take().map(|status| status.0);
        let latest = running.flow.take_status().map(|status| status.text);
        let mut commit = self.final_commit(running, end);
        // A result has its own status message, not that of an earlier step.
        let status = match commit.next {
            Next::Complete(_) => running.flow.final_status(),
            _ => latest.or(pending),
        };
        commit.status_message = commit.status_message.or(status);
        self.commit(&commit).await.map(drop)
    }

    /// Runs the flow until the driver must act.
    async fn turn(&self, running: &mut RunningTask) -> DriverTurn {
        let mut changed = pin!(self.held.changed());
        poll_fn(|cx| {
            let held = &self.held;
            if changed.as_mut().poll(cx).is_ready() || held.is_lost() || held.must_hand_on() {
                return Poll::Ready(DriverTurn::CheckLease);
            }
            if !held.is_certain() {
                return Poll::Ready(DriverTurn::RenewLease);
            }
            let polled = running.flow.poll(cx);
            if let Some(status) = running.flow.take_status() {
                running.timers.set_status(status);
            }
            match polled {
                Poll::Ready(event) => {
                    running.slot.as_mut().map(TaskSlot::take_again);
                    Poll::Ready(DriverTurn::Event(Box::new(event)))
                }
                Poll::Pending => self.poll_timers(cx, running),
            }
        })
        .await
    }

    fn poll_timers(&self, cx: &mut Context<'_>, running: &mut RunningTask) -> Poll<DriverTurn> {
        let now = Instant::now();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let status = running.timers.status.as_ref().map(|status| status.1);
        if is_due(running.deadline) {
            return Poll::Ready(DriverTurn::Expired);
        }
        if is_due(status) {
            return Poll::Ready(DriverTurn::Status);
        }
        // A new step ends lingering. Its commit starts lingering again.
        let steps = running.flow.stats().steps;
        let linger = running.timers.linger.filter(|linger| linger.1 == steps);
        let linger = linger.map(|linger| linger.0);
        if is_due(linger) || (linger.is_some() && self.tasks.services.limits.is_draining()) {
            return Poll::Ready(DriverTurn::Lingered);
        }
        let wake = running.flow.wake_at().map(|at| now + self.time_until(at));
        let deadlines = [running.deadline, status, linger, wake];
        let timer = &mut running.timers.timer;
        timer.set(deadlines.map(|at| at.map(Into::into)), cx);
        Poll::Pending
    }

    fn time_until(&self, at: SystemTime) -> Duration {
        let now = self.tasks.services.source.now();
        at.duration_since(now).unwrap_or_default()
    }

    fn next_after(&self, then: AfterWrite, running: &mut RunningTask) -> Next {
        running.timers.linger = None;
        if running.is_live {
            return Next::Keep;
        }
        match then {
            AfterWrite::Continue => Next::Keep,
            AfterWrite::HandOn => Next::HandOn,
            AfterWrite::Rest { wake, may_progress } => {
                let wake = wake.map(|at| self.time_until(at));
                let is_short = wake.is_some_and(|wake| wake < MIN_STORED_SLEEP);
                if is_short && !running.timers.must_leave {
                    Next::Keep
                } else if may_progress {
                    let steps = running.flow.stats().steps;
                    running.timers.linger = Some((Instant::now() + LINGER_TIME, steps));
                    Next::Keep
                } else {
                    Next::Suspend(wake)
                }
            }
        }
    }

    /// Commits the progress of the task. `true`: it left memory.
    async fn write(
        &self,
        running: &mut RunningTask,
        write: PendingWrite,
    ) -> Result<bool, LeaseLost> {
        let task = &self.held.lease.task;
        let owned = (task, &self.owner);
        let tasks = &self.tasks;
        if running.is_live && running.flow.has_ended() {
            return self.fail_task(&incomplete_live()).await.map(|()| true);
        }
        // The journal of a live task is not written, because no handler is resumed from it.
        let journal = (!running.is_live)
            .then(|| tasks.seal_journal(owned, &write.snapshot, &running.tool.tool.version));
        let (size, limit) = (journal.as_ref().map_or(0, Vec::len), tasks.options.journal);
        if size > limit {
            let error = journal_too_large(&write.snapshot, size, limit);
            return self.fail_task(&error).await.map(|()| true);
        }
        let next = self.next_after(write.then, running);
        let publish = write.asks.iter().map(|(key, ask)| {
            let json = serde_json::to_vec(ask).expect("asks serialize");
            tasks.services.metrics.asks.add(ask.kind());
            (key.clone(), tasks.seal(owned, TaskPart::Ask(key), &json))
        });
        let stays = next == Next::Keep;
        let rests = matches!(write.then, AfterWrite::Rest { may_progress, .. } if !may_progress);
        let commit = Commit {
            journal,
            progress: write.progress,
            publish: publish.collect(),
            taken: write.taken,
            withdrawn: write.withdrawn,
            status_message: running.timers.status.take().map(|status| status.0),
            next,
        };
        let committed = self.commit(&commit).await?;
        if !stays {
            if let Next::Suspend(wake) = &commit.next {
                tasks.leases.add_wakeup(*wake);
            }
            return Ok(true);
        }
        if write.progress {
            running.attempt = 1;
        }
        running.flow.confirm_write();
        if rests {
            // Only a live task stays in memory while it waits.
            running.slot.as_mut().map(TaskSlot::give_back);
        }
        if committed.answers {
            self.take_answers(running).await?;
        }
        Ok(false)
    }

    /// Handles a changed lease and receives answers. `false`: the task was handed on, or failed if it is live.
    async fn check_lease(&self, running: &mut RunningTask) -> Result<bool, LeaseLost> {
        if self.held.is_lost() {
            return Err(LeaseLost);
        }
        if self.held.must_hand_on() {
            // Stops the handler before another instance can claim the task.
            running.flow.cancel();
            if running.is_live {
                self.fail_task(&outcome_unknown()).await?;
            } else {
                self.commit(&state_change(Next::HandOn)).await?;
            }
            return Ok(false);
        }
        if self.held.take_check_request() {
            self.take_answers(running).await?;
        }
        Ok(true)
    }
}
