//! A run: tasks are made and answered while workers are killed, and what came of it is checked.

use crate::check::{Evidence, check};
use crate::client::{Client, Deeds, Ended};
use crate::clock::length;
use crate::error::Error;
use crate::fleet::{Fleet, Setting};
use crate::ledger::Ledger;
use crate::plan::Plan;
use crate::random::Random;
use crate::record;
use crate::report::Report;
use crate::trouble::Trouble;
use crate::worker;
use indicatif::{ProgressBar, ProgressFinish};
use parking_lot::Mutex;
use refrain::runtime::store::cluster::Cluster;
use refrain::runtime::store::{ListTasks, Store, StoreError, TaskId, TaskRow};
use refrain::server::Server;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The purpose that clients draw their chance for.
const PURPOSE: u64 = 0x63_6c_69_65;
/// How long it may be that no task ends.
const STUCK: Duration = Duration::from_secs(120);

/// What a run is to be.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    pub(crate) store: Kind,
    pub(crate) tasks: u32,
    pub(crate) workers: usize,
    pub(crate) seed: u64,
    pub(crate) kill_every: Duration,
    pub(crate) lease: Duration,
    /// Tasks that are under way at the same time.
    pub(crate) at_once: usize,
}

/// Where tasks are kept.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file of SQLite that is made for the run.
    Sqlite,
    /// A Postgres that is started for the run.
    Postgres,
    /// A store that is there. It must be empty.
    Url(String),
}

impl Kind {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "Postgres",
            Self::Url(url) if url.starts_with("postgres") => "Postgres",
            Self::Url(_) => "SQLite",
        }
    }
}

/// There may be a password in a URL.
impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What is the same for all tasks of a run.
struct Stage {
    orders: Orders,
    fleet: Arc<Fleet>,
    server: Server,
    store: Arc<dyn Store>,
    deeds: Deeds,
    over: Arc<AtomicUsize>,
    /// The tasks that are under way, by their numbers.
    under_way: Mutex<BTreeMap<u32, String>>,
}

/// Runs it, in this directory.
pub(crate) async fn run(orders: Orders, dir: &Path) -> Result<Report, Error> {
    let begun = Instant::now();
    let cluster = match orders.store {
        Kind::Postgres => Some(start_cluster().await?),
        _ => None,
    };
    let url = match (&orders.store, &cluster) {
        (Kind::Url(url), _) => url.clone(),
        (_, Some(cluster)) => cluster.database().await?,
        _ => format!("sqlite:{}", dir.join("tasks.db").display()),
    };
    let ledger = Ledger::open(&url, &dir.join(worker::LEDGER)).await?;
    ledger.prepare().await?;
    let store = refrain::store::open(&url).await?;
    must_be_empty(&ledger, &*store).await?;
    let setting = Setting {
        store: url,
        dir: dir.to_owned(),
        seed: orders.seed,
        lease: orders.lease,
    };
    let stage = Arc::new(Stage {
        fleet: Arc::new(Fleet::start(setting, orders.workers)?),
        server: Server::builder("refrain-crash", env!("CARGO_PKG_VERSION"))
            .tasks(store.clone(), worker::options(orders.lease))
            .build()?,
        store,
        deeds: Deeds::default(),
        over: Arc::default(),
        under_way: Mutex::default(),
        orders,
    });
    let orders = &stage.orders;
    let trouble = Trouble {
        fleet: stage.fleet.clone(),
        ledger: ledger.clone(),
        cluster: cluster.filter(|cluster| cluster.can_stop()),
        seed: orders.seed,
        every: orders.kill_every,
        lease: orders.lease,
        tasks: orders.tasks as usize,
        over: stage.over.clone(),
        cuts: AtomicU64::new(0),
        restarts: Mutex::default(),
    };
    let ended = tokio::select! {
        ended = stage.all_tasks() => ended,
        trouble = trouble.make() => trouble.and(Err(Error::Interrupted)),
    };
    stage.fleet.end().await;
    let mut ended = ended?;
    stage.add_stuck(&mut ended).await;
    let restarts = trouble.restarts.into_inner();
    let evidence = stage.evidence(ended, restarts, &ledger, dir).await?;
    let findings = check(&evidence);
    let cuts = trouble.cuts.into_inner();
    Ok(Report::new(
        &stage.orders,
        &evidence,
        findings,
        &stage.deeds,
        cuts,
        begun.elapsed(),
    ))
}

async fn start_cluster() -> Result<Arc<Cluster>, Error> {
    let start = tokio::task::spawn_blocking(Cluster::start).await;
    let started = start.map_err(|error| Error::system("Postgres")(error.into()))?;
    Ok(Arc::new(started?))
}

/// What is there already would be taken for what this run has done.
async fn must_be_empty(ledger: &Ledger, store: &dyn Store) -> Result<(), Error> {
    let tasks = rows(store, 1).await?;
    match tasks.is_empty() && ledger.attempts().await?.is_empty() {
        true => Ok(()),
        false => Err(Error::NotEmpty),
    }
}

/// So many of the store's tasks, at most. Connections may just have been cut.
async fn rows(store: &dyn Store, most: usize) -> Result<Vec<TaskRow>, Error> {
    let begun = Instant::now();
    loop {
        let list = ListTasks {
            most,
            ..ListTasks::default()
        };
        match store.list(list).await {
            Ok(rows) => return Ok(rows),
            Err(StoreError::Unavailable(_)) if begun.elapsed() < STUCK => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

impl Stage {
    /// Sees all tasks through, or as many as end before nothing does for too long.
    async fn all_tasks(self: &Arc<Self>) -> Result<Vec<Ended>, Error> {
        let progress = ProgressBar::new_spinner().with_finish(ProgressFinish::AndClear);
        let room = Arc::new(Semaphore::new(self.orders.at_once));
        let mut clients = JoinSet::new();
        for number in 0..self.orders.tasks {
            let (stage, room) = (self.clone(), room.clone());
            clients.spawn(async move {
                let _place = room.acquire_owned().await;
                stage.one_task(number).await
            });
        }
        let mut ended = Vec::new();
        let mut last = Instant::now();
        while ended.len() < self.orders.tasks as usize {
            let joined = tokio::time::timeout(Duration::from_millis(500), clients.join_next());
            match joined.await {
                Ok(Some(joined)) => {
                    let one = joined.map_err(|error| Error::system("a client")(error.into()))?;
                    ended.push(one?);
                    self.over.store(ended.len(), Ordering::Relaxed);
                    last = Instant::now();
                }
                Ok(None) => break,
                Err(_) if last.elapsed() > STUCK => break,
                Err(_) => {}
            }
            let (over, kills) = (ended.len(), self.fleet.harm().kills.len());
            progress.set_message(format!(
                "{over} of {} tasks are over, {kills} kills",
                self.orders.tasks
            ));
        }
        Ok(ended)
    }

    async fn one_task(&self, number: u32) -> Result<Ended, Error> {
        let seed = self.orders.seed;
        let client = Client {
            fleet: &self.fleet,
            server: &self.server,
            deeds: &self.deeds,
            plan: Plan::new(seed, number),
            random: Random::new(seed, PURPOSE ^ (u64::from(number) << 32)),
            complaints: Vec::new(),
        };
        let made = |id: &str| {
            self.under_way.lock().insert(number, id.to_owned());
        };
        let ended = client.run(made).await;
        self.under_way.lock().remove(&number);
        ended
    }

    /// Everything that the check needs.
    async fn evidence(
        &self,
        ended: Vec<Ended>,
        restarts: Vec<(u64, u64)>,
        ledger: &Ledger,
        dir: &Path,
    ) -> Result<Evidence, Error> {
        let runs = 0..self.fleet.runs();
        let records: Result<Vec<_>, Error> = runs.map(|run| record::read(dir, run)).collect();
        let stored = rows(&*self.store, ended.len() * 2 + 10).await?;
        Ok(Evidence {
            ended,
            attempts: ledger.attempts().await?,
            effects: ledger.effects().await?,
            records: records?,
            harm: self.fleet.harm(),
            restarts,
            lease: length(self.orders.lease),
            stored: stored.len(),
        })
    }

    /// Adds the tasks that were under way and did not end, with what the store says of them.
    async fn add_stuck(&self, ended: &mut Vec<Ended>) {
        let stuck = self.under_way.lock().clone();
        for (number, id) in stuck {
            let row = match TaskId::parse(&id) {
                Some(id) => self.store.find(&id).await,
                None => Ok(None),
            };
            let plan = Plan::new(self.orders.seed, number);
            let parts = &plan.parts;
            ended.push(Ended {
                outcome: format!("{row:?}, doing {parts:?}"),
                plan,
                id,
                status: "stuck".to_owned(),
                complaints: Vec::new(),
            });
        }
    }
}
