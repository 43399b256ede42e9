//! Benchmarks tasks: complete lives, `tasks/get`, and the cost of an idle instance with many waiting tasks.
//!
//! | module | contents |
//! | --- | --- |
//! | `instance` | Refrain: an instance and its clients |
//! | `sql_floor` | the floor: the same work in hand-written SQL |
//! | `database`, `wal` | statements on SQLite and Postgres, and counts of commits |
//! | `counting_store` | a store that counts its calls |
//! | `idle` | an idle instance with waiting tasks |
//! | `report` | the report |
//!
//! The two sides, Refrain and the floor, use the same database in turn, with the same number of concurrent clients, and make
//! the same writes for a task.
//! Refrain's concurrent writes share commits; the database counts them.

mod counting_store;
mod database;
mod idle;
mod instance;
mod report;
mod sql_floor;
mod wal;

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use refrain_store::TaskId;
use refrain_store::test_postgres::TestPostgres;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::error::Error;
use crate::stats::Sample;
use crate::{PROGRESS, parse_seconds};
use counting_store::CountingStore;
use database::{Database, Value};
use idle::cpu_seconds;
pub(crate) use idle::{InstanceOptions, instance};
use instance::TaskInstance;
use report::{PerTask, StoreResults, TaskReport};
use sql_floor::TaskFloor;

/// How much longer than its length a slice may take, and how long the counted tasks may take.
const GRACE: Duration = Duration::from_secs(60);
/// The number of tasks that each client runs while commits are counted.
const TASKS_PER_CLIENT: u64 = 8;
/// Counts Refrain's completed tasks.
const COMPLETED: &str = "SELECT count(*) FROM refrain_tasks WHERE status = 'completed'";
/// The floor of `tasks/get`: selects the same row by id.
const SELECT: &str = "
SELECT id, tool, status, status_message, created, updated, expires, poll_interval, revision, outcome
FROM refrain_tasks WHERE id = $1";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StoreKind {
    /// A new file.
    Sqlite,
    /// A new server.
    Postgres,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TaskBenchOptions {
    /// The databases to measure on.
    #[arg(long = "store", value_name = "STORE", default_values = ["sqlite", "postgres"])]
    stores: Vec<StoreKind>,
    /// The length of a slice. CPU times are inaccurate below one second.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    seconds_per_slice: f64,
    /// The number of slices for each store and side. 0 skips throughput and CPU time.
    #[arg(long, value_name = "COUNT", default_value_t = 12)]
    slices: usize,
    /// The number of concurrent clients.
    #[arg(long, value_name = "COUNT", default_value = "32", value_parser = clap::value_parser!(u16).range(1..))]
    concurrent: u16,
    /// Measure an idle instance with up to this number of waiting tasks. 0 skips it.
    #[arg(long, value_name = "TASKS", default_value_t = 100_000)]
    idle: u64,
    /// The length of each measurement of the idle instance.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    idle_seconds: f64,
}

/// Runs the measurements on all selected stores.
pub(crate) async fn run(options: &TaskBenchOptions) -> Result<TaskReport<'_>, Error> {
    let mut stores = Vec::new();
    for kind in &options.stores {
        PROGRESS.set_message("opening the database");
        let measured = match kind {
            StoreKind::Sqlite => {
                let dir = tempfile::Builder::new()
                    .prefix("refrain-bench-")
                    .tempdir()?;
                let url = format!("sqlite:{}", dir.path().join("refrain.db").display());
                measure(&url, options).await
            }
            StoreKind::Postgres => {
                let cluster = TestPostgres::start();
                let cluster = cluster
                    .map_err(|error| format!("{error}; use `--store sqlite` to skip Postgres"))?;
                measure(&cluster.database().await?, options).await
            }
        };
        stores.push(measured?);
    }
    Ok(TaskReport { options, stores })
}

/// The two sides on one database, and a waiting task for `tasks/get`.
struct Sides {
    database: Arc<Database>,
    floor: TaskFloor,
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
    /// A complete task: create, ask, answer, complete.
    Life,
    /// `tasks/get` of a waiting task.
    Get,
}

async fn measure(url: &str, options: &TaskBenchOptions) -> Result<StoreResults, Error> {
    let store = CountingStore::new(refrain_store::open(url).await?);
    let database = Arc::new(Database::open(url).await?);
    let refrain = TaskInstance::start(store)?;
    refrain.run_one_task().await?;
    let sides = Arc::new(Sides {
        floor: TaskFloor::start(database.clone()).await?,
        waiting: refrain.open().await?,
        database: database.clone(),
        refrain,
    });
    let waiting = sides.waiting.clone();
    let mut results = StoreResults {
        database: database.version().await?,
        ..StoreResults::default()
    };
    PROGRESS.set_message(format!("{}: counting commits", results.database));
    results.per_task = sides.count_per_task(options.concurrent).await?;
    sides.measure_slices(options, &mut results).await?;
    // Stop the instance of this process, so that it is not measured.
    drop(sides);
    if options.idle > 0 {
        for tasks in [1, options.idle / 10, options.idle] {
            PROGRESS.set_message(format!("{}: {tasks} tasks wait", results.database));
            database.copy(waiting.as_str(), tasks).await?;
            let measured = idle::measure_instance(url, tasks, options.idle_seconds);
            results.idle.push(measured.await?);
        }
    }
    Ok(results)
}

impl Sides {
    async fn run_once(&self, side: Side, work: TaskWork) -> Result<(), Error> {
        match (side, work) {
            (Side::Floor, TaskWork::Life) => self.floor.run_one_task().await,
            (Side::Refrain, TaskWork::Life) => self.refrain.run_one_task().await,
            (Side::Floor, TaskWork::Get) => {
                let id = [Value::Text(self.waiting.as_str())];
                let _: (String,) = self.database.fetch_one(SELECT, &id).await?;
                Ok(())
            }
            (Side::Refrain, TaskWork::Get) => self.refrain.get(&self.waiting).await,
        }
    }

    /// Runs concurrent clients until each has done the work `max` times or the time has elapsed, but at least once.
    /// Returns the total count.
    async fn run_clients(
        self: &Arc<Self>,
        (side, work): (Side, TaskWork),
        concurrent: u16,
        max: u64,
        length: Duration,
    ) -> Result<u64, Error> {
        let begun = Instant::now();
        let mut clients = JoinSet::new();
        for _ in 0..concurrent {
            let sides = self.clone();
            clients.spawn(async move {
                let mut done = 0;
                loop {
                    sides.run_once(side, work).await?;
                    done += 1;
                    if done >= max || begun.elapsed() >= length {
                        return Ok::<u64, Error>(done);
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
        let limit = length + GRACE;
        let joined = timeout(limit, joined).await;
        joined.map_err(|_| format!("{work:?} of {side:?} took longer than {limit:?}"))?
    }

    /// Counts the commits per task on each side, and Refrain's store calls.
    async fn count_per_task(self: &Arc<Self>, concurrent: u16) -> Result<PerTask, Error> {
        let before = self.refrain.store.counts();
        let refrain_commits = self.commits(Side::Refrain, concurrent).await?;
        let lives = (u64::from(concurrent) * TASKS_PER_CLIENT) as f64;
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

    /// The commits per task. Fails unless Refrain completed all its tasks.
    async fn commits(self: &Arc<Self>, side: Side, concurrent: u16) -> Result<f64, Error> {
        let (before,): (i64,) = self.database.fetch_one(COMPLETED, &[]).await?;
        let mark = self.database.mark().await?;
        let run = self.run_clients((side, TaskWork::Life), concurrent, TASKS_PER_CLIENT, GRACE);
        let lives = run.await?;
        let commits = self.database.commits(mark).await?;
        let (after,): (i64,) = self.database.fetch_one(COMPLETED, &[]).await?;
        let completed = after.abs_diff(before);
        if side == Side::Refrain && completed != lives {
            return Err(format!("{completed} of {lives} tasks were completed").into());
        }
        Ok(commits as f64 / lives as f64)
    }

    /// Measures both sides in turn, slice by slice.
    async fn measure_slices(
        self: &Arc<Self>,
        options: &TaskBenchOptions,
        results: &mut StoreResults,
    ) -> Result<(), Error> {
        let slices = options.slices;
        for number in 1..=slices {
            PROGRESS.set_message(format!("{}: slice {number} of {slices}", results.database));
            // Alternate the order, because the second side may find warm caches.
            let order = match number % 2 {
                0 => [Side::Refrain, Side::Floor],
                _ => [Side::Floor, Side::Refrain],
            };
            for (work, pairs) in [
                (TaskWork::Life, &mut results.life),
                (TaskWork::Get, &mut results.get),
            ] {
                for side in order {
                    let sample = self.run_slice(side, work, options).await?;
                    match side {
                        Side::Floor => pairs.floor.push(sample),
                        Side::Refrain => pairs.refrain.push(sample),
                    }
                }
            }
        }
        Ok(())
    }

    async fn run_slice(
        self: &Arc<Self>,
        side: Side,
        work: TaskWork,
        options: &TaskBenchOptions,
    ) -> Result<Sample, Error> {
        let length = Duration::from_secs_f64(options.seconds_per_slice);
        let (cpu, begun) = (cpu_seconds(), Instant::now());
        let done = self.run_clients((side, work), options.concurrent, u64::MAX, length);
        Ok(Sample {
            done: done.await?,
            seconds: begun.elapsed().as_secs_f64(),
            cpu_seconds: cpu_seconds() - cpu,
        })
    }
}
