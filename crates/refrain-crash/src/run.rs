//! A run: creates and answers tasks while workers are killed, then checks the results.

use crate::check::{Evidence, Findings, check};
use crate::client::{ClientCounts, TaskClient, TaskEnd};
use crate::clock::retry;
use crate::error::CrashError;
use crate::fleet::{Failover, FleetOptions, WORKERS, WorkerFleet};
use crate::ledger::{AttemptRow, EffectLedger};
use crate::plan::TaskPlan;
use crate::record::{self, RecordEvent};
use crate::rounds;
use crate::worker::{self, LEASE};
use crate::{CrashOptions, StoreKind};
use indicatif::{ProgressBar, ProgressFinish};
use parking_lot::Mutex;
use refrain::runtime::store::test_postgres::TestPostgres;
use refrain::runtime::store::{ListTasks, Store, StoreError, TaskId};
use refrain::server::Server;
use serde::Serialize;
use sqlx::postgres::PgConnectOptions;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The longest time without a finished task before a run counts as stuck.
const STUCK_TIMEOUT: Duration = Duration::from_secs(120);

/// The state of a run that its clients and disruptions share.
pub(crate) struct CrashRun {
    pub(crate) options: CrashOptions,
    pub(crate) seed: u64,
    pub(crate) fleet: WorkerFleet,
    /// An instance that runs no tasks, for requests about them.
    pub(crate) server: Option<Server>,
    store: Arc<dyn Store>,
    ledger: EffectLedger,
    /// The connection options, if the store is on Postgres.
    pub(crate) postgres: Mutex<Option<PgConnectOptions>>,
    /// The Postgres server, if it can be restarted.
    pub(crate) cluster: Option<Arc<TestPostgres>>,
    /// Dropping it removes the database.
    _database: Option<Arc<TestPostgres>>,
    pub(crate) counts: Mutex<ClientCounts>,
    pub(crate) tasks_ended: AtomicU32,
    /// The ids of the tasks in flight, by number.
    pub(crate) in_flight: Mutex<BTreeMap<u32, String>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct RunReport {
    store: StoreKind,
    seed: u64,
    workers: usize,
    tasks: usize,
    seconds: f64,
    #[serde(flatten)]
    counts: ClientCounts,
    /// Workers killed with SIGKILL.
    kills: usize,
    /// Workers stopped with SIGSTOP for longer than their lease.
    stops: usize,
    /// Connections cut. SQLite has none, and no server to restart.
    cuts: u64,
    restarts: usize,
    failovers: Vec<Failover>,
    #[serde(flatten)]
    pub(crate) findings: Findings,
}

/// Runs the test in this directory.
pub(crate) async fn run(
    options: CrashOptions,
    seed: u64,
    dir: &Path,
) -> Result<RunReport, CrashError> {
    let begun = Instant::now();
    let run = CrashRun::start(options, seed, dir, None).await?;
    let ended = tokio::select! {
        ended = run.all_tasks() => ended,
        failed = run.disrupt() => failed.map(|never| match never {}),
    };
    run.fleet.end(0).await;
    let evidence = run.evidence(ended?, dir).await?;
    let counts = run.counts.lock().clone();
    Ok(RunReport {
        store: run.options.store,
        seed,
        workers: WORKERS,
        tasks: evidence.ended.len(),
        seconds: begun.elapsed().as_secs_f64(),
        counts,
        kills: evidence.disruptions.kills.len(),
        stops: evidence.disruptions.stops.len(),
        cuts: evidence.disruptions.cuts,
        restarts: evidence.disruptions.restarts.len() - evidence.disruptions.failovers.len(),
        failovers: evidence.disruptions.failovers.clone(),
        findings: check(&evidence),
    })
}

/// The number of the store's tasks, up to `most`.
async fn count_tasks(store: &dyn Store, most: usize) -> Result<usize, CrashError> {
    let list = ListTasks {
        most,
        ..ListTasks::default()
    };
    let is_temporary = |error: &StoreError| matches!(error, StoreError::Unavailable(_));
    let rows = retry(is_temporary, || store.list(list.clone())).await?;
    Ok(rows.len())
}

impl CrashRun {
    /// Starts the database and the workers. With `ttl`, tasks expire, and the workers also serve the requests about them.
    pub(crate) async fn start(
        options: CrashOptions,
        seed: u64,
        dir: &Path,
        ttl: Option<u64>,
    ) -> Result<Arc<Self>, CrashError> {
        let (mut cluster, mut postgres) = (None, None);
        let url = match options.store {
            StoreKind::Sqlite => format!("sqlite:{}", dir.join("tasks.db").display()),
            StoreKind::Postgres => {
                let started = match options.failover {
                    true => TestPostgres::start_with_standby().await?,
                    false => tokio::task::spawn_blocking(TestPostgres::start).await??,
                };
                let url = started.database().await?;
                postgres = url.parse().ok();
                cluster.insert(Arc::new(started)).with_standby(&url)
            }
        };
        let ledger = EffectLedger::open(dir)?;
        let store = refrain::store::open(&url).await?;
        let server = match ttl {
            Some(_) => None,
            None => Some(
                Server::builder("refrain-crash", env!("CARGO_PKG_VERSION"))
                    .tasks(store.clone(), worker::options(None))
                    .tool(rounds::plain())
                    .build()?,
            ),
        };
        Ok(Arc::new(Self {
            fleet: WorkerFleet::start(FleetOptions {
                store: url.clone(),
                dir: dir.to_owned(),
                seed,
                ttl,
            })?,
            server,
            store,
            ledger,
            postgres: Mutex::new(postgres),
            cluster: cluster.clone().filter(|cluster| cluster.can_stop()),
            _database: cluster,
            counts: Mutex::default(),
            tasks_ended: AtomicU32::new(0),
            in_flight: Mutex::default(),
            options,
            seed,
        }))
    }

    /// Runs all tasks to their ends. Returns early if the run is stuck.
    async fn all_tasks(self: &Arc<Self>) -> Result<Vec<TaskEnd>, CrashError> {
        let progress = ProgressBar::new_spinner().with_finish(ProgressFinish::AndClear);
        let tasks = self.options.tasks;
        let permits = Arc::new(Semaphore::new(self.options.at_once.into()));
        let mut clients = JoinSet::new();
        for number in 0..tasks {
            let (run, permits) = (self.clone(), permits.clone());
            clients.spawn(async move {
                let _permit = permits.acquire_owned().await;
                TaskClient::new(&run, number).run().await
            });
        }
        let mut ended = Vec::new();
        let mut last = Instant::now();
        loop {
            let joined = tokio::time::timeout(Duration::from_millis(500), clients.join_next());
            match joined.await {
                Ok(Some(joined)) => {
                    ended.push(joined??);
                    self.tasks_ended.fetch_add(1, Ordering::Relaxed);
                    last = Instant::now();
                }
                Err(_) if last.elapsed() <= STUCK_TIMEOUT => {}
                Ok(None) | Err(_) => return Ok(ended),
            }
            let (count, kills) = (ended.len(), self.fleet.disruptions.lock().kills.len());
            progress.set_message(format!("{count} of {tasks} tasks ended, {kills} kills"));
        }
    }

    /// Collects the records. `ended` are the tasks that ended.
    pub(crate) async fn evidence(
        &self,
        mut ended: Vec<TaskEnd>,
        dir: &Path,
    ) -> Result<Evidence, CrashError> {
        self.add_stuck(&mut ended).await;
        let processes = 0..self.fleet.started_processes();
        let records: Result<Vec<_>, CrashError> = processes
            .map(|process| record::read(dir, process))
            .collect();
        let records = records?;
        let attempts = records.iter().flatten().filter_map(|event| match event {
            RecordEvent::Attempt(attempt) => Some(attempt.clone()),
            _ => None,
        });
        let mut attempts: Vec<AttemptRow> = attempts.collect();
        attempts.sort_by_key(|attempt| (attempt.at, attempt.id));
        Ok(Evidence {
            stored: count_tasks(&*self.store, ended.len() * 2 + 10).await?,
            expected: match self.server {
                Some(_) => ended.len(),
                // The tasks have expired.
                None => 0,
            },
            ended,
            attempts,
            effects: self.ledger.effects()?,
            records,
            disruptions: self.fleet.disruptions.lock().clone(),
            lease: LEASE.as_micros() as u64,
        })
    }

    /// Adds the tasks that did not end, with their rows in the store.
    async fn add_stuck(&self, ended: &mut Vec<TaskEnd>) {
        let stuck = std::mem::take(&mut *self.in_flight.lock());
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
                faults: Vec::new(),
            });
        }
    }
}
