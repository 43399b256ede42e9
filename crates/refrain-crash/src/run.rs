//! A run: tasks are created and answered while workers are killed, and the result is checked.

use crate::check::{Evidence, check};
use crate::client::{ClientCounts, TaskClient, TaskEnd};
use crate::clock::retry;
use crate::error::Error;
use crate::fleet::{WORKERS, WorkerFleet};
use crate::ledger::Ledger;
use crate::plan::TaskPlan;
use crate::report::CrashTestReport;
use crate::worker::{self, LEASE};
use crate::{CrashOptions, StoreSelection, record};
use indicatif::{ProgressBar, ProgressFinish};
use parking_lot::Mutex;
use refrain::runtime::store::cluster::Cluster;
use refrain::runtime::store::{ListTasks, Store, StoreError, TaskId};
use refrain::server::Server;
use sqlx::postgres::PgConnectOptions;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The maximum time without the end of a task.
const STUCK: Duration = Duration::from_secs(120);

/// A run, as its clients and its trouble see it.
pub(crate) struct CrashRun {
    pub(crate) options: CrashOptions,
    pub(crate) seed: u64,
    pub(crate) fleet: WorkerFleet,
    /// An instance that runs no tasks, for requests about them.
    pub(crate) server: Server,
    store: Arc<dyn Store>,
    ledger: Ledger,
    /// How to connect to the database, if that is a Postgres.
    pub(crate) postgres: Option<PgConnectOptions>,
    /// The Postgres that can be restarted, if there is one.
    pub(crate) cluster: Option<Arc<Cluster>>,
    pub(crate) client_counts: Mutex<ClientCounts>,
    /// The number of ended tasks.
    pub(crate) over: AtomicU32,
    /// The ids of the tasks that are under way, by their numbers.
    pub(crate) under_way: Mutex<BTreeMap<u32, String>>,
}

/// Does a run, in this directory.
pub(crate) async fn run(
    options: CrashOptions,
    seed: u64,
    dir: &Path,
) -> Result<CrashTestReport, Error> {
    let begun = Instant::now();
    let mut cluster = None;
    let url = match &options.store {
        StoreSelection::Url(url) => url.clone(),
        StoreSelection::Sqlite => format!("sqlite:{}", dir.join("tasks.db").display()),
        StoreSelection::Postgres => {
            let start = tokio::task::spawn_blocking(Cluster::start).await;
            let started = start.map_err(|error| Error::system("Postgres")(error.into()))??;
            cluster.insert(Arc::new(started)).database().await?
        }
    };
    let ledger = Ledger::open(dir);
    ledger.prepare().await?;
    let store = refrain::store::open(&url).await?;
    // Existing tasks would be mistaken for those of this run.
    if count(&*store, 1).await? > 0 {
        return Err(Error::NotEmpty);
    }
    let run = Arc::new(CrashRun {
        fleet: WorkerFleet::start(url.clone(), dir, seed)?,
        server: Server::builder("refrain-crash", env!("CARGO_PKG_VERSION"))
            .tasks(store.clone(), worker::options())
            .build()?,
        store,
        ledger,
        postgres: match options.store.name() {
            "Postgres" => url.parse().ok(),
            _ => None,
        },
        cluster: cluster.clone().filter(|cluster| cluster.can_stop()),
        client_counts: Mutex::default(),
        over: AtomicU32::new(0),
        under_way: Mutex::default(),
        options,
        seed,
    });
    let ended = tokio::select! {
        ended = run.all_tasks() => ended,
        trouble = run.make_trouble() => trouble.map(|never| match never {}),
    };
    run.fleet.end().await;
    let mut ended = ended?;
    run.add_stuck(&mut ended).await;
    let evidence = run.evidence(ended, dir).await?;
    let client_counts = run.client_counts.lock().clone();
    Ok(CrashTestReport {
        store: run.options.store.name(),
        seed,
        workers: WORKERS,
        tasks: evidence.ended.len(),
        seconds: begun.elapsed().as_secs_f64(),
        client_counts,
        kills: evidence.disruptions.kills.len(),
        stops: evidence.disruptions.stops.len(),
        cuts: evidence.disruptions.cuts,
        restarts: evidence.disruptions.restarts.len(),
        findings: check(&evidence),
    })
}

/// The number of the store's tasks, up to `most`.
async fn count(store: &dyn Store, most: usize) -> Result<usize, Error> {
    let list = ListTasks {
        most,
        ..ListTasks::default()
    };
    let is_temporary = |error: &StoreError| matches!(error, StoreError::Unavailable(_));
    let rows = retry(is_temporary, || store.list(list.clone())).await?;
    Ok(rows.len())
}

impl CrashRun {
    /// Follows all tasks to their ends, or as many as end before none does for too long.
    async fn all_tasks(self: &Arc<Self>) -> Result<Vec<TaskEnd>, Error> {
        let progress = ProgressBar::new_spinner().with_finish(ProgressFinish::AndClear);
        let tasks = self.options.tasks;
        let room = Arc::new(Semaphore::new(self.options.at_once.into()));
        let mut clients = JoinSet::new();
        for number in 0..tasks {
            let (run, room) = (self.clone(), room.clone());
            clients.spawn(async move {
                let _permit = room.acquire_owned().await;
                TaskClient::new(&run, number).run().await
            });
        }
        let mut ended = Vec::new();
        let mut last = Instant::now();
        loop {
            let joined = tokio::time::timeout(Duration::from_millis(500), clients.join_next());
            match joined.await {
                Ok(Some(joined)) => {
                    let one = joined.map_err(|error| Error::system("a client")(error.into()))?;
                    ended.push(one?);
                    self.over.fetch_add(1, Ordering::Relaxed);
                    last = Instant::now();
                }
                Err(_) if last.elapsed() <= STUCK => {}
                Ok(None) | Err(_) => return Ok(ended),
            }
            let (over, kills) = (ended.len(), self.fleet.disruptions.lock().kills.len());
            progress.set_message(format!("{over} of {tasks} tasks are over, {kills} kills"));
        }
    }

    /// Everything that the check needs.
    async fn evidence(&self, ended: Vec<TaskEnd>, dir: &Path) -> Result<Evidence, Error> {
        let runs = 0..self.fleet.runs();
        let records: Result<Vec<_>, Error> = runs.map(|run| record::read(dir, run)).collect();
        Ok(Evidence {
            stored: count(&*self.store, ended.len() * 2 + 10).await?,
            ended,
            attempts: self.ledger.attempts().await?,
            effects: self.ledger.effects().await?,
            records: records?,
            disruptions: self.fleet.disruptions.lock().clone(),
            lease: LEASE.as_micros() as u64,
        })
    }

    /// Adds the tasks that were under way and did not end, with their rows in the store.
    async fn add_stuck(&self, ended: &mut Vec<TaskEnd>) {
        let stuck = std::mem::take(&mut *self.under_way.lock());
        for (number, id) in stuck {
            let row = match TaskId::parse(&id) {
                Some(id) => self.store.find(&id).await,
                None => Ok(None),
            };
            let plan = TaskPlan::new(self.seed, number);
            ended.push(TaskEnd {
                outcome: format!("{row:?}, doing {:?}", plan.parts),
                plan,
                id,
                status: "stuck".to_owned(),
                complaints: Vec::new(),
            });
        }
    }
}
