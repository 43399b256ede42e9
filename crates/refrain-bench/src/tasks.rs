//! Measures tasks: their life cycle, `tasks/get`, and the cost of an instance while many tasks wait.
//!
//! | module | contents |
//! | --- | --- |
//! | `bench_database` | the databases of the benchmark |
//! | `instance` | Refrain's side: an instance and its clients |
//! | `sql_floor` | the floor: the same life cycle in hand-written SQL |
//! | `database`, `wal` | statements on SQLite and Postgres, and the count of their commits |
//! | `counting_store` | a store that counts its calls |
//! | `idle` | an instance while tasks wait |
//! | `report` | the report |
//!
//! Both sides use the same database in turn, with the same number of concurrent clients. Both make the same commits for
//! a task; the database itself counts them.

mod bench_database;
mod counting_store;
mod database;
mod idle;
mod instance;
mod report;
mod sql_floor;
mod wal;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use refrain_store::TaskId;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::error::BenchError;
use crate::machine::Machine;
use crate::server::cpu_seconds;
use crate::stats::Sample;
use crate::{seconds, spinner};
use bench_database::StoreArgument;
use counting_store::CountingStore;
use database::{Database, Value};
pub(crate) use idle::{InstanceOptions, instance};
use instance::TaskInstance;
use report::{OnStore, PerTask, TaskReport};
use sql_floor::SqlFloor;

/// The time limit of a slice beyond its length.
const GRACE: Duration = Duration::from_secs(60);
/// Tasks that each client runs while commits are counted.
const COUNTED: u64 = 8;
/// The number of Refrain's tasks, and of those that are completed.
const TASKS: &str =
    "SELECT count(*), count(*) FILTER (WHERE status = 'completed') FROM refrain_tasks";
/// The floor of `tasks/get`: the same row by its id.
const SELECT: &str = "
SELECT id, tool, status, status_message, created, updated, expires, poll_interval, revision, outcome
FROM refrain_tasks WHERE id = $1";

/// The options of `tasks`. The serialized ones are part of the report.
#[derive(Debug, clap::Args, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TaskBenchOptions {
    /// The database: `sqlite` for a new file, `postgres` for a new server, or the URL of an empty database, which keeps
    /// the benchmark's rows [default: a new file and a new server].
    #[arg(long = "store", value_name = "STORE", value_parser = StoreArgument::parse)]
    #[serde(skip)]
    stores: Vec<StoreArgument>,
    /// Length of a slice. Below one second the clock of /proc is too coarse for CPU times.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds_per_slice: f64,
    /// Slices for each store and side; 0 leaves out throughput and CPU time.
    #[arg(long, value_name = "COUNT", default_value_t = 12)]
    slices: usize,
    /// Concurrent clients.
    #[arg(long, value_name = "COUNT", default_value = "32", value_parser = clap::value_parser!(u16).range(1..))]
    concurrent: u16,
    /// Measure the cost of an idle instance with up to this many waiting tasks; 0 skips this.
    #[arg(long, value_name = "TASKS", default_value_t = 100_000)]
    idle: u64,
    /// The length of each idle measurement.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    idle_seconds: f64,
    /// Write everything measured, every slice included, to this file as JSON.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub(crate) json: Option<PathBuf>,
}

/// Measures on the stores of the options.
pub(crate) async fn run(options: &TaskBenchOptions) -> Result<TaskReport<'_>, BenchError> {
    let progress = spinner();
    let arguments = match options.stores.as_slice() {
        [] => &[StoreArgument::Sqlite, StoreArgument::Postgres],
        stores => stores,
    };
    let mut stores = Vec::new();
    for argument in arguments {
        progress.set_message("opening the database");
        let place = argument.open().await?;
        stores.push(measure(&place.url, options, &progress).await?);
    }
    Ok(TaskReport {
        machine: Machine::read(),
        options,
        stores,
    })
}

/// Both sides, and one waiting task of Refrain.
struct Sides {
    database: Arc<Database>,
    floor: SqlFloor,
    refrain: TaskInstance,
    waiting: TaskId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Floor,
    Refrain,
}

#[derive(Clone, Copy, Debug)]
enum TaskWork {
    /// The whole life cycle of a task.
    Life,
    /// `tasks/get` of a waiting task.
    Get,
}

async fn measure(
    url: &str,
    options: &TaskBenchOptions,
    progress: &ProgressBar,
) -> Result<OnStore, BenchError> {
    let store = CountingStore::new(refrain_store::open(url).await?);
    let database = Arc::new(Database::open(url).await?);
    let (tasks, _): (i64, i64) = database.fetch_one(TASKS, &[]).await?;
    if tasks > 0 {
        return Err(BenchError::InUse(tasks));
    }
    let refrain = TaskInstance::start(store)?;
    refrain.life().await?;
    let sides = Arc::new(Sides {
        floor: SqlFloor::start(database.clone()).await?,
        waiting: refrain.open().await?,
        database: database.clone(),
        refrain,
    });
    let waiting = sides.waiting.clone();
    let mut found = OnStore {
        database: database.version().await?,
        ..OnStore::default()
    };
    progress.set_message(format!("{}: counting commits", found.database));
    found.per_task = sides.count(options.concurrent).await?;
    sides.time(options, &mut found, progress).await?;
    // The idle measurement must not include this process's instance.
    drop(sides);
    if options.idle > 0 {
        for tasks in [1, options.idle / 10, options.idle] {
            progress.set_message(format!("{}: {tasks} tasks wait", found.database));
            database.copy(waiting.as_str(), tasks).await?;
            let watched = idle::watch(url, tasks, options.idle_seconds);
            found.idle.push(watched.await?);
        }
    }
    Ok(found)
}

impl Sides {
    async fn once(&self, side: Side, work: TaskWork) -> Result<(), BenchError> {
        match (side, work) {
            (Side::Floor, TaskWork::Life) => self.floor.life().await,
            (Side::Refrain, TaskWork::Life) => self.refrain.life().await,
            (Side::Floor, TaskWork::Get) => {
                let id = [Value::Text(self.waiting.as_str())];
                let _: (String,) = self.database.fetch_one(SELECT, &id).await?;
                Ok(())
            }
            (Side::Refrain, TaskWork::Get) => self.refrain.get(&self.waiting).await,
        }
    }

    /// Repeats `work` in concurrent clients until each has done it `most` times or the time is up, at least once each.
    /// Returns the number done.
    async fn clients(
        self: &Arc<Self>,
        (side, work): (Side, TaskWork),
        concurrent: u16,
        most: u64,
        length: Duration,
    ) -> Result<u64, BenchError> {
        let begun = Instant::now();
        let mut clients = JoinSet::new();
        for _ in 0..concurrent {
            let sides = self.clone();
            clients.spawn(async move {
                let mut done = 0;
                loop {
                    sides.once(side, work).await?;
                    done += 1;
                    if done >= most || begun.elapsed() >= length {
                        return Ok::<u64, BenchError>(done);
                    }
                }
            });
        }
        let joined = async {
            let mut done = 0;
            while let Some(client) = clients.join_next().await {
                done += client??;
            }
            Ok(done)
        };
        let (limit, what) = (length + GRACE, format!("{work:?} of {side:?}"));
        let joined = timeout(limit, joined).await;
        joined.map_err(|_| BenchError::TimedOut { what, limit })?
    }

    /// Counts each side's commits per task, and Refrain's calls to its store.
    async fn count(self: &Arc<Self>, concurrent: u16) -> Result<PerTask, BenchError> {
        let before = self.refrain.store.counts();
        let refrain_commits = self.commits(Side::Refrain, concurrent).await?;
        let lives = (u64::from(concurrent) * COUNTED) as f64;
        let mut calls = self.refrain.store.counts();
        calls.retain(|name, calls| {
            calls.count -= before.get(name).map_or(0, |before| before.count);
            calls.count > 0
        });
        let per_life = calls.into_iter();
        let per_life = per_life.map(|(name, calls)| (name, calls.count as f64 / lives));
        Ok(PerTask {
            floor_commits: self.commits(Side::Floor, concurrent).await?,
            refrain_commits,
            calls: per_life.collect(),
        })
    }

    /// Commits per task. All tasks must be completed.
    async fn commits(self: &Arc<Self>, side: Side, concurrent: u16) -> Result<f64, BenchError> {
        let (_, before): (i64, i64) = self.database.fetch_one(TASKS, &[]).await?;
        let mark = self.database.mark().await?;
        let led = self.clients((side, TaskWork::Life), concurrent, COUNTED, GRACE);
        let lives = led.await?;
        let commits = self.database.commits(mark).await?;
        let (_, after): (i64, i64) = self.database.fetch_one(TASKS, &[]).await?;
        let completed = after.abs_diff(before);
        if side == Side::Refrain && completed != lives {
            return Err(BenchError::Incomplete { completed, lives });
        }
        Ok(commits as f64 / lives as f64)
    }

    /// Measures both sides in turn, slice by slice.
    async fn time(
        self: &Arc<Self>,
        options: &TaskBenchOptions,
        found: &mut OnStore,
        progress: &ProgressBar,
    ) -> Result<(), BenchError> {
        let slices = options.slices;
        for number in 1..=slices {
            progress.set_message(format!("{}: slice {number} of {slices}", found.database));
            // Alternate the order: the second side runs on a warmer machine.
            let order = match number % 2 {
                0 => [Side::Refrain, Side::Floor],
                _ => [Side::Floor, Side::Refrain],
            };
            for (work, pairs) in [
                (TaskWork::Life, &mut found.life),
                (TaskWork::Get, &mut found.get),
            ] {
                for side in order {
                    let sample = self.slice(side, work, options).await?;
                    match side {
                        Side::Floor => pairs.floor.push(sample),
                        Side::Refrain => pairs.refrain.push(sample),
                    }
                }
            }
        }
        Ok(())
    }

    async fn slice(
        self: &Arc<Self>,
        side: Side,
        work: TaskWork,
        options: &TaskBenchOptions,
    ) -> Result<Sample, BenchError> {
        let length = Duration::from_secs_f64(options.seconds_per_slice);
        let this = std::process::id();
        let (cpu, begun) = (cpu_seconds(this)?, Instant::now());
        let done = self.clients((side, work), options.concurrent, u64::MAX, length);
        Ok(Sample {
            done: done.await?,
            seconds: begun.elapsed().as_secs_f64(),
            cpu_seconds: cpu_seconds(this)? - cpu,
        })
    }
}
