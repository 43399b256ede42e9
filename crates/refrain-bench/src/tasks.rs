//! Measures tasks: their life, `tasks/get`, and the cost of an instance while many of them wait.
//!
//! | module | contents |
//! | --- | --- |
//! | `place` | the databases that are measured on |
//! | `instance` | Refrain's side: an instance and its clients |
//! | `plain` | the floor: the same, written by hand |
//! | `database`, `wal` | statements on SQLite and Postgres, and the count of their commits |
//! | `counted` | a store that counts its calls |
//! | `idle` | an instance while tasks wait |
//! | `report` | the report |
//!
//! Both sides work on the same database in turn, with the same number of clients at a time. Both make the same commits
//! for a task; the database itself counts them.

mod counted;
mod database;
mod idle;
mod instance;
mod place;
mod plain;
mod report;
mod wal;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use refrain_store::TaskId;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::error::Error;
use crate::machine::Machine;
use crate::server::cpu_seconds;
use crate::stats::Sample;
use crate::{seconds, spinner};
use counted::Counted;
use database::{Database, Value};
pub(crate) use idle::{InstanceOptions, instance};
use instance::Instance;
use place::StoreArgument;
use plain::Floor;
use report::{OnStore, PerTask, Report};

/// How long a slice may take beyond its own length.
const GRACE: Duration = Duration::from_secs(60);
/// Lives of a task that each client leads while commits are counted.
const COUNTED: u64 = 8;
/// The number of Refrain's tasks, and of those that are completed.
const TASKS: &str =
    "SELECT count(*), count(*) FILTER (WHERE status = 'completed') FROM refrain_tasks";
/// The floor of `tasks/get`: the same row by its id.
const SELECT: &str = "
SELECT id, tool, status, status_message, created, updated, expires, poll_interval, revision, outcome
FROM refrain_tasks WHERE id = $1";

/// The options of `tasks`. The report has those that shape its numbers.
#[derive(Debug, clap::Args, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Options {
    /// Where: `sqlite` for a new file, `postgres` for a new server, or the URL of an empty database, which is left full
    /// [default: a new file and a new server].
    #[arg(long = "store", value_name = "STORE", value_parser = StoreArgument::parse)]
    #[serde(skip)]
    stores: Vec<StoreArgument>,
    /// Length of a slice. Below one second the clock of /proc is too coarse for CPU times.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds_per_slice: f64,
    /// Slices for each store and side; 0 leaves out throughput and CPU time.
    #[arg(long, value_name = "COUNT", default_value_t = 12)]
    slices: usize,
    /// Clients at a time.
    #[arg(long, value_name = "COUNT", default_value = "32", value_parser = clap::value_parser!(u16).range(1..))]
    concurrent: u16,
    /// Leave up to so many tasks waiting and watch what that costs an instance; 0 leaves it out.
    #[arg(long, value_name = "TASKS", default_value_t = 100_000)]
    idle: u64,
    /// How long to watch it each time.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    idle_seconds: f64,
    /// Write everything measured, every slice included, to this file as JSON.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub(crate) json: Option<PathBuf>,
}

/// Measures on the stores of the options.
pub(crate) async fn run(options: &Options) -> Result<Report<'_>, Error> {
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
    Ok(Report {
        machine: Machine::read(),
        options,
        stores,
    })
}

/// Both sides, and a waiting task of Refrain's.
struct Sides {
    database: Arc<Database>,
    floor: Floor,
    refrain: Instance,
    waiting: TaskId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Floor,
    Refrain,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    /// The whole life of a task.
    Life,
    /// `tasks/get` of a waiting task.
    Get,
}

async fn measure(url: &str, options: &Options, progress: &ProgressBar) -> Result<OnStore, Error> {
    let store = Counted::new(refrain_store::open(url).await?);
    let database = Arc::new(Database::open(url).await?);
    let (tasks, _): (i64, i64) = database.fetch_one(TASKS, &[]).await?;
    if tasks > 0 {
        return Err(Error::InUse(tasks));
    }
    let refrain = Instance::start(store)?;
    refrain.life().await?;
    let sides = Arc::new(Sides {
        floor: Floor::start(database.clone()).await?,
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
    // The instance of this process would be measured too.
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
    async fn once(&self, side: Side, work: Work) -> Result<(), Error> {
        match (side, work) {
            (Side::Floor, Work::Life) => self.floor.life().await,
            (Side::Refrain, Work::Life) => self.refrain.life().await,
            (Side::Floor, Work::Get) => {
                let id = [Value::Text(self.waiting.as_str())];
                let _: (String,) = self.database.fetch_one(SELECT, &id).await?;
                Ok(())
            }
            (Side::Refrain, Work::Get) => self.refrain.get(&self.waiting).await,
        }
    }

    /// Has clients work until each has done it `most` times or the time is over, at least once each: on a busy machine
    /// they may begin late. Returns how often it was done.
    async fn clients(
        self: &Arc<Self>,
        (side, work): (Side, Work),
        concurrent: u16,
        most: u64,
        length: Duration,
    ) -> Result<u64, Error> {
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
        let (limit, what) = (length + GRACE, format!("{work:?} of {side:?}"));
        let joined = timeout(limit, joined).await;
        joined.map_err(|_| Error::TimedOut { what, limit })?
    }

    /// Counts the commits of a life on each side, and Refrain's calls of its store.
    async fn count(self: &Arc<Self>, concurrent: u16) -> Result<PerTask, Error> {
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

    /// Commits of one life of a task. All lives must have been completed.
    async fn commits(self: &Arc<Self>, side: Side, concurrent: u16) -> Result<f64, Error> {
        let (_, before): (i64, i64) = self.database.fetch_one(TASKS, &[]).await?;
        let mark = self.database.mark().await?;
        let led = self.clients((side, Work::Life), concurrent, COUNTED, GRACE);
        let lives = led.await?;
        let commits = self.database.commits(mark).await?;
        let (_, after): (i64, i64) = self.database.fetch_one(TASKS, &[]).await?;
        let completed = after.abs_diff(before);
        if side == Side::Refrain && completed != lives {
            return Err(Error::Incomplete { completed, lives });
        }
        Ok(commits as f64 / lives as f64)
    }

    /// Has both sides work in turn, slice by slice.
    async fn time(
        self: &Arc<Self>,
        options: &Options,
        found: &mut OnStore,
        progress: &ProgressBar,
    ) -> Result<(), Error> {
        let slices = options.slices;
        for number in 1..=slices {
            progress.set_message(format!("{}: slice {number} of {slices}", found.database));
            // The second side may find the machine warmer: take turns.
            let order = match number % 2 {
                0 => [Side::Refrain, Side::Floor],
                _ => [Side::Floor, Side::Refrain],
            };
            for (work, pairs) in [(Work::Life, &mut found.life), (Work::Get, &mut found.get)] {
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
        work: Work,
        options: &Options,
    ) -> Result<Sample, Error> {
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
