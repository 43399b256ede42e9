//! Workers: claim due tasks, renew leases, delete expired records.

use super::Tasks;
use super::outage::OutageLog;
use crate::metrics::{TaskEvent, WebhookEvent};
use crate::server::Server;
use crate::timer::within;
use refrain_store::{Claim, Hint, Lease, TaskId};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::JoinSet;

/// Maximum number of tasks claimed at once.
const CLAIM_BATCH: usize = 16;
/// Time limit for handing on running tasks after the drain time.
const HAND_ON_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of rows of each kind deleted at once.
const SWEEP_BATCH: usize = 500;

impl Tasks {
    /// Runs due tasks until `shutdown` completes. Then hands running tasks on, at their next checkpoint or at the end of
    /// the drain time.
    pub(crate) async fn work(
        self: &Arc<Self>,
        server: &Server,
        shutdown: impl Future<Output = ()>,
    ) {
        let (stop, stopped) = watch::channel(false);
        let shutdown = async {
            shutdown.await;
            stop.send_replace(true);
        };
        tokio::join!(
            shutdown,
            self.claim(stopped.clone()),
            self.deliver(&stopped),
            sweep(self, stopped.clone())
        );
        server.start_draining();
        self.hand_on().await;
    }

    async fn hand_on(&self) {
        // Wakes the drivers, so that they notice the draining.
        for lease in self.leases.all() {
            lease.request_check();
        }
        let drain_time = self.services.limits.drain_time;
        let drained = within(drain_time, self.leases.wait_until_empty());
        if drained.await.is_none() {
            self.hand_on_now().await;
        }
    }

    async fn hand_on_now(&self) {
        let running = self.leases.len();
        tracing::warn!(running, "drain time expired, handing on running tasks");
        for lease in self.leases.all() {
            lease.request_hand_on();
        }
        // After this time, other workers claim the remaining tasks when their leases expire.
        within(HAND_ON_TIMEOUT, self.leases.wait_until_empty()).await;
    }

    /// Claims and starts due tasks while there is capacity.
    async fn claim(self: &Arc<Self>, mut stopped: watch::Receiver<bool>) {
        let leases = &self.leases;
        let mut hints = Some(self.store.hints());
        let mut failures = OutageLog::default();
        leases.is_claiming.store(true, Ordering::Release);
        while !*stopped.borrow() {
            // The next claim covers pending hints.
            discard_hints(&mut hints);
            let has_more = self.claim_batch(&mut failures).await;
            let wait = if has_more {
                Duration::ZERO
            } else {
                let poll = self.options.store_poll;
                leases
                    .time_until_wakeup()
                    .map_or(poll, |wait| wait.min(poll))
            };
            let sleep = tokio::time::sleep(wait);
            tokio::pin!(sleep);
            loop {
                tokio::select! {
                    () = &mut sleep => break,
                    _ = stopped.changed() => break,
                    () = leases.changed.notified() => break,
                    hint = next_hint(&mut hints) => {
                        let may_be_due = hint.is_none_or(|hint| hint.due);
                        if may_be_due && leases.capacity().most > 0 {
                            break;
                        }
                    }
                }
            }
        }
        leases.is_claiming.store(false, Ordering::Release);
    }

    /// Claims a batch of due tasks. `true`: there may be more.
    async fn claim_batch(self: &Arc<Self>, failures: &mut OutageLog) -> bool {
        if self.services.limits.is_draining() {
            return false;
        }
        let Some(slots) = self.leases.claim_slots(CLAIM_BATCH) else {
            return false;
        };
        let capacity = &slots.capacity;
        let tools: Vec<String> = {
            let entries = self.catalog.entries();
            let names = entries.tools.iter().map(|tool| &tool.tool.info.name);
            names.map(|name| self.namespace.stored_name(name)).collect()
        };
        let claim = Claim {
            worker: &self.leases.worker,
            tools: &tools,
            lease: self.options.lease,
            most: capacity.most,
            except: &capacity.except,
            anonymous: capacity.anonymous,
        };
        let requested_at = Instant::now();
        match self.store.claim(claim).await {
            Ok(claimed) => {
                if let Some((outage, failures)) = failures.end(Instant::now()) {
                    let seconds = outage.as_secs();
                    tracing::info!(seconds, failures, "store available again");
                }
                let has_more = claimed.len() == capacity.most;
                for claimed in claimed {
                    self.services.metrics.tasks.add(TaskEvent::TakenUp);
                    self.start_claimed(claimed, requested_at).await;
                }
                has_more
            }
            Err(error) => {
                if let Some(failures) = failures.add(Instant::now()) {
                    tracing::warn!(%error, failures, "failed to claim tasks");
                }
                false
            }
        }
    }

    /// Starts to renew leases, until no task runs here.
    pub(super) fn start_renewal(self: &Arc<Self>) {
        if !self.leases.is_renewing.swap(true, Ordering::AcqRel) {
            tokio::spawn(renew_leases(self.clone()));
        }
    }
}

/// A worker in the process of a transport. Dropping it stops the worker.
pub(crate) struct Worker {
    tasks: Option<Arc<Tasks>>,
    stop: Arc<Notify>,
    work: JoinSet<()>,
}

impl Worker {
    pub(crate) fn start(server: &Server) -> Self {
        let stop = Arc::new(Notify::new());
        let mut work = JoinSet::new();
        let tasks = server.0.tasks.clone();
        if tasks.is_some() {
            let (server, stop) = (server.clone(), stop.clone());
            work.spawn(async move { server.work(stop.notified()).await });
        }
        Self { tasks, stop, work }
    }

    /// Makes the worker stop claiming and hand running tasks on.
    pub(crate) fn stop(&self) {
        self.stop.notify_one();
    }

    /// Waits until running tasks are handed on at checkpoints. After `timeout`, hands them on immediately.
    pub(crate) async fn stopped(mut self, timeout: Duration) {
        let stopped = async {
            while self.work.join_next().await.is_some() {}
            // The last calls may have become tasks in the meantime.
            if let Some(tasks) = &self.tasks {
                tasks.hand_on().await;
            }
        };
        if within(timeout, stopped).await.is_none()
            && let Some(tasks) = &self.tasks
        {
            tasks.hand_on_now().await;
        }
    }
}

/// The next hint. `None` if hints were lost. Never completes if the store closed the channel.
pub(super) async fn next_hint(hints: &mut Option<broadcast::Receiver<Hint>>) -> Option<Hint> {
    loop {
        let Some(open) = hints else {
            return std::future::pending().await;
        };
        match open.recv().await {
            Ok(hint) => return Some(hint),
            Err(RecvError::Lagged(_)) => return None,
            Err(RecvError::Closed) => *hints = None,
        }
    }
}

fn discard_hints(hints: &mut Option<broadcast::Receiver<Hint>>) {
    let Some(hints) = hints else { return };
    while let Ok(_) | Err(TryRecvError::Lagged(_)) = hints.try_recv() {}
}

async fn sweep(tasks: &Tasks, mut stopped: watch::Receiver<bool>) {
    while !*stopped.borrow() {
        trim_outbox(tasks).await;
        match tasks.store.sweep(tasks.options.keep, SWEEP_BATCH).await {
            Ok(swept) => {
                tracing::debug!(?swept, "expired records deleted");
                let deleted = swept.tasks.max(swept.records).max(swept.tokens);
                if deleted >= SWEEP_BATCH as u64 {
                    // There may be more, but other work needs the store too.
                    tokio::task::yield_now().await;
                    continue;
                }
            }
            Err(error) => tracing::warn!(%error, "failed to delete expired records"),
        }
        // Completes early when the worker stops.
        let _ = within(tasks.options.sweep, stopped.changed()).await;
    }
}

/// Deletes deliveries that are too old or too many, including those of endpoints that were removed.
async fn trim_outbox(tasks: &Tasks) {
    let options = &tasks.options;
    let (age, rows) = (options.webhook_age, options.webhook_rows);
    loop {
        let dropped = match tasks.store.trim_outbox(age, rows, SWEEP_BATCH).await {
            Ok(dropped) => dropped,
            Err(error) => {
                return tracing::warn!(%error, "failed to delete old webhook deliveries");
            }
        };
        if dropped > 0 {
            tracing::warn!(dropped, "webhook deliveries dropped: too old, or too many");
            let webhooks = &tasks.services.metrics.webhooks;
            webhooks.add_many(WebhookEvent::Dropped, dropped);
        }
        if dropped < SWEEP_BATCH as u64 {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// Renews the leases of running tasks and detects changes by other instances.
async fn renew_leases(tasks: Arc<Tasks>) {
    let tasks = &*tasks;
    let mut hints = Some(tasks.store.hints());
    let period = tasks.options.lease / 3;
    let mut renewals = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
    let mut polls = tokio::time::interval(tasks.options.store_poll);
    let mut failures = OutageLog::default();
    loop {
        tokio::select! {
            _ = renewals.tick() => renew_all(tasks).await,
            _ = polls.tick() => {
                if tasks.leases.len() == 0 {
                    tasks.leases.is_renewing.store(false, Ordering::Release);
                    // A task may have started after the check.
                    if tasks.leases.len() == 0 || tasks.leases.is_renewing.swap(true, Ordering::AcqRel) {
                        return;
                    }
                }
                check_all(tasks, &mut failures).await;
            }
            hint = next_hint(&mut hints) => match hint {
                Some(hint) if hint.own => {}
                Some(hint) => {
                    if tasks.leases.get(&hint.task).is_some() {
                        check_revisions(tasks, &[hint.task], &mut failures).await;
                    }
                }
                None => check_all(tasks, &mut failures).await,
            },
        }
    }
}

async fn renew_all(tasks: &Tasks) {
    let held = tasks.leases.all();
    let leases: Vec<Lease> = held.iter().map(|held| held.lease.clone()).collect();
    if leases.is_empty() {
        return;
    }
    let time = tasks.options.lease;
    let requested_at = Instant::now();
    match tasks.store.extend(&leases, time).await {
        Ok(renewed) => {
            for held in held {
                if renewed.contains(&held.lease) {
                    held.renewed(requested_at, time);
                } else {
                    held.lose();
                }
            }
        }
        Err(error) => tracing::warn!(%error, "failed to renew leases"),
    }
}

async fn check_all(tasks: &Tasks, failures: &mut OutageLog) {
    let held = tasks.leases.all();
    let ids: Vec<TaskId> = held.iter().map(|held| held.lease.task.clone()).collect();
    if !ids.is_empty() {
        check_revisions(tasks, &ids, failures).await;
    }
}

/// Makes the drivers of changed tasks check for answers.
async fn check_revisions(tasks: &Tasks, ids: &[TaskId], failures: &mut OutageLog) {
    match tasks.store.revisions(ids).await {
        Ok(revisions) => {
            failures.end(Instant::now());
            for (id, revision) in revisions {
                if let Some(held) = tasks.leases.get(&id) {
                    held.observe_revision(revision);
                }
            }
        }
        Err(error) => {
            if let Some(failures) = failures.add(Instant::now()) {
                tracing::warn!(%error, failures, "failed to poll running tasks");
            }
        }
    }
}
