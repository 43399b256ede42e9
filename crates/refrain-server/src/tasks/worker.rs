//! Workers: claim due tasks, renew leases, delete expired records.

use super::Tasks;
use crate::metrics::TaskEvent;
use crate::server::Server;
use refrain_store::{Claim, Hint, Lease, TaskId};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::JoinSet;

const BATCH: usize = 16;
/// Time to commit that running tasks are handed on.
const GIVING_UP: Duration = Duration::from_secs(5);
const SWEPT: usize = 500;

impl Tasks {
    /// Runs due tasks until `shutdown` completes; then hands on those that run, at their next checkpoint or at the end of
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
        tokio::join!(shutdown, self.claim(stopped.clone()), sweep(self, stopped));
        server.start_draining();
        self.hand_on().await;
    }

    async fn hand_on(&self) {
        for hold in self.leases.all() {
            hold.look();
        }
        let drain_time = self.services.limits.drain_time;
        let drained = tokio::time::timeout(drain_time, self.leases.empty());
        if drained.await.is_err() {
            self.give_up().await;
        }
    }

    async fn give_up(&self) {
        let running = self.leases.len();
        tracing::warn!(running, "drain time over, handing on running tasks");
        for hold in self.leases.all() {
            hold.give_up();
        }
        // Tasks that are not written in time are claimed by others when their lease has expired.
        let _ = tokio::time::timeout(GIVING_UP, self.leases.empty()).await;
    }

    /// Claims due tasks while there is room. A claimed task is run, also when the worker stops.
    async fn claim(self: &Arc<Self>, mut stopped: watch::Receiver<bool>) {
        let leases = &self.leases;
        let mut hints = Some(self.store.hints());
        leases.claims.store(true, Ordering::Release);
        while !*stopped.borrow() {
            // This claim covers them.
            forget(&mut hints);
            let all = self.claim_some().await;
            let wait = if all {
                Duration::ZERO
            } else {
                let look = self.options.look;
                leases.until_wake().map_or(look, |wake| wake.min(look))
            };
            let look = tokio::time::sleep(wait);
            tokio::pin!(look);
            loop {
                tokio::select! {
                    () = &mut look => break,
                    _ = stopped.changed() => break,
                    () = leases.room.notified() => break,
                    due = next_hint(&mut hints) => {
                        let due = due.is_none_or(|hint| hint.due);
                        if due && leases.has_room() {
                            break;
                        }
                    }
                }
            }
        }
        leases.claims.store(false, Ordering::Release);
    }

    /// Claims some due tasks. `true`: there may be more.
    async fn claim_some(self: &Arc<Self>) -> bool {
        let room = self.options.concurrent.saturating_sub(self.leases.len());
        let most = room.min(BATCH);
        if most == 0 || self.services.limits.is_draining() {
            return false;
        }
        let tools: Vec<String> = {
            let entries = self.catalog.entries();
            let names = entries.tools.iter().map(|tool| &tool.tool.info.name);
            names.map(|name| self.namespace.stored_name(name)).collect()
        };
        let claim = Claim {
            worker: &self.leases.worker,
            tools: &tools,
            lease: self.options.lease,
            most,
        };
        let asked = Instant::now();
        match self.store.claim(claim).await {
            Ok(claimed) => {
                let all = claimed.len() == most;
                for claimed in claimed {
                    self.services.metrics.tasks.add(TaskEvent::TakenUp);
                    self.take_up(claimed, asked).await;
                }
                all
            }
            Err(error) => {
                tracing::warn!(%error, "failed to claim tasks");
                false
            }
        }
    }

    /// Starts the renewal of leases, which goes on while tasks run.
    pub(super) fn keep_leases(self: &Arc<Self>) {
        if !self.leases.kept.swap(true, Ordering::AcqRel) {
            tokio::spawn(keep(self.clone()));
        }
    }
}

/// A worker that runs beside a transport. It ends with this value.
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

    /// Stops claiming and hands running tasks on.
    pub(crate) fn stop(&self) {
        self.stop.notify_one();
    }

    /// Waits until running tasks are handed on; after this time they are handed on at once.
    pub(crate) async fn stopped(mut self, patience: Duration) {
        let stopped = async {
            while self.work.join_next().await.is_some() {}
            // The last calls may have become tasks.
            if let Some(tasks) = &self.tasks {
                tasks.hand_on().await;
            }
        };
        if tokio::time::timeout(patience, stopped).await.is_err()
            && let Some(tasks) = &self.tasks
        {
            tasks.give_up().await;
        }
    }
}

/// The next hint; `None` if some were lost. Waits for ever if the store gives no more.
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

/// Drops the hints received so far.
fn forget(hints: &mut Option<broadcast::Receiver<Hint>>) {
    let Some(hints) = hints else { return };
    while let Ok(_) | Err(TryRecvError::Lagged(_)) = hints.try_recv() {}
}

async fn sweep(tasks: &Tasks, mut stopped: watch::Receiver<bool>) {
    while !*stopped.borrow() {
        match tasks.store.sweep(tasks.options.keep, SWEPT).await {
            Ok(swept) => {
                tracing::debug!(?swept, "expired records deleted");
                let most = swept.tasks.max(swept.records).max(swept.tokens);
                if most >= SWEPT as u64 {
                    // There is more, but other work needs the store too.
                    tokio::task::yield_now().await;
                    continue;
                }
            }
            Err(error) => tracing::warn!(%error, "failed to delete expired records"),
        }
        let _ = tokio::time::timeout(tasks.options.sweep, stopped.changed()).await;
    }
}

/// Renews the leases of running tasks, and looks for changes by other instances.
async fn keep(tasks: Arc<Tasks>) {
    let tasks = &*tasks;
    let mut hints = Some(tasks.store.hints());
    let beat = tasks.options.lease / 3;
    let mut beats = tokio::time::interval_at(tokio::time::Instant::now() + beat, beat);
    let mut looks = tokio::time::interval(tasks.options.look);
    loop {
        tokio::select! {
            _ = beats.tick() => extend(tasks).await,
            _ = looks.tick() => {
                if tasks.leases.len() == 0 {
                    tasks.leases.kept.store(false, Ordering::Release);
                    // A task may have started since the check.
                    if tasks.leases.len() == 0 || tasks.leases.kept.swap(true, Ordering::AcqRel) {
                        return;
                    }
                }
                look(tasks).await;
            }
            hint = next_hint(&mut hints) => match hint {
                Some(hint) if hint.own => {}
                Some(hint) => {
                    if let Some(hold) = tasks.leases.get(&hint.task) {
                        look_at(tasks, std::slice::from_ref(&hold.lease.task)).await;
                    }
                }
                None => look(tasks).await,
            },
        }
    }
}

async fn extend(tasks: &Tasks) {
    let holds = tasks.leases.all();
    let leases: Vec<Lease> = holds.iter().map(|hold| hold.lease.clone()).collect();
    if leases.is_empty() {
        return;
    }
    let time = tasks.options.lease;
    let asked = Instant::now();
    match tasks.store.extend(&leases, time).await {
        Ok(held) => {
            for hold in holds {
                if held.contains(&hold.lease) {
                    hold.extended(asked, time);
                } else {
                    hold.lose();
                }
            }
        }
        Err(error) => tracing::warn!(%error, "failed to renew leases"),
    }
}

async fn look(tasks: &Tasks) {
    let held = tasks.leases.all();
    let ids: Vec<TaskId> = held.iter().map(|hold| hold.lease.task.clone()).collect();
    if !ids.is_empty() {
        look_at(tasks, &ids).await;
    }
}

async fn look_at(tasks: &Tasks, ids: &[TaskId]) {
    match tasks.store.revisions(ids).await {
        Ok(revisions) => {
            for (id, revision) in revisions {
                if let Some(hold) = tasks.leases.get(&id) {
                    hold.seen(revision);
                }
            }
        }
        Err(error) => tracing::warn!(%error, "failed to read the revisions of running tasks"),
    }
}
