//! Measures tasks: their life, looking at one, and what it costs that many of them wait.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `place` | the databases that are measured on |
//! | `instance` | Refrain's side: an instance and its clients |
//! | `plain` | the floor: the same, written by hand |
//! | `sqlite`, `postgres` | the statements of the floor |
//! | `counted` | a store that counts what is asked of it |
//! | `idle` | an instance while tasks wait |
//! | `report` | what was found |
//!
//! Both sides work on the same database in turn, with the same number of clients at a time. Both make the same commits
//! for a task; the database itself counts them.

mod counted;
mod idle;
mod instance;
mod place;
mod plain;
mod postgres;
mod report;
mod sqlite;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use refrain_store::TaskId;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::child::cpu_seconds;
use crate::error::Error;
use crate::load::Sample;
use crate::machine::Machine;
use crate::spinner;
use counted::Counted;
pub(crate) use idle::instance;
use instance::Instance;
pub(crate) use place::Choice;
use place::Kind;
use plain::{Floor, Plain};
use report::{OnStore, PerTask};
pub(crate) use report::{Report, Settings};

/// How long a slice may take beyond its own length.
const GRACE: Duration = Duration::from_secs(60);
/// Lives of a task that each client leads while commits are counted.
const COUNTED: u64 = 8;

/// Measures on these stores.
pub(crate) async fn run(choices: &[Choice], settings: Settings) -> Result<Report, Error> {
    let progress = spinner();
    let mut stores = Vec::new();
    for choice in choices {
        progress.set_message("opening the database");
        let place = choice.open()?;
        let url = place.url().await?;
        stores.push(match place.kind() {
            Kind::Sqlite => measure::<sqlite::Sqlite>(&url, &settings, &progress).await?,
            Kind::Postgres => measure::<postgres::Postgres>(&url, &settings, &progress).await?,
        });
    }
    Ok(Report {
        machine: Machine::look(),
        settings,
        stores,
    })
}

/// Both sides, and a task of Refrain's that waits.
struct Sides<P> {
    plain: Arc<P>,
    floor: Floor<P>,
    refrain: Instance,
    waiting: TaskId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Floor,
    Refrain,
}

/// What both sides are measured at.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// The whole life of a task.
    Life,
    /// Looking at a task that waits.
    Get,
}

async fn measure<P: Plain>(
    url: &str,
    settings: &Settings,
    progress: &ProgressBar,
) -> Result<OnStore, Error> {
    let store = Counted::new(refrain_store::open(url).await?);
    let plain = Arc::new(P::open(url).await?);
    let (tasks, _) = plain.tasks().await?;
    if tasks > 0 {
        return Err(Error::InUse(tasks));
    }
    let refrain = Instance::start(store)?;
    refrain.life().await?;
    let sides = Arc::new(Sides {
        floor: Floor::start(plain.clone(), plain.content().await?),
        waiting: refrain.open().await?,
        plain: plain.clone(),
        refrain,
    });
    let waiting = sides.waiting.clone();
    let mut found = OnStore {
        database: plain.version().await?,
        ..OnStore::default()
    };
    progress.set_message(format!("{}: counting commits", found.database));
    found.per_task = sides.count(settings.concurrent).await?;
    sides.time(settings, &mut found, progress).await?;
    // The instance of this process has no part in what follows.
    drop(sides);
    if settings.idle > 0 {
        for tasks in [1, settings.idle / 10, settings.idle] {
            progress.set_message(format!("{}: {tasks} tasks wait", found.database));
            plain.copy(waiting.as_str(), tasks).await?;
            let time = Duration::from_secs_f64(settings.idle_seconds);
            found.idle.push(idle::watch(url, tasks, time).await?);
        }
    }
    Ok(found)
}

impl<P: Plain> Sides<P> {
    async fn once(&self, side: Side, work: Work) -> Result<(), Error> {
        match (side, work) {
            (Side::Floor, Work::Life) => self.floor.life().await,
            (Side::Refrain, Work::Life) => self.refrain.life().await,
            (Side::Floor, Work::Get) => Ok(self.plain.select(self.waiting.as_str()).await?),
            (Side::Refrain, Work::Get) => self.refrain.get(&self.waiting).await,
        }
    }

    /// Has clients do something until each has done it so often, or the time is over; once each at least, as on a busy
    /// machine they may begin late. How often was it done?
    async fn clients(
        self: &Arc<Self>,
        (side, work): (Side, Work),
        concurrent: usize,
        most: u64,
        length: Duration,
    ) -> Result<u64, Error> {
        let deadline = Instant::now() + length;
        let mut clients = JoinSet::new();
        for _ in 0..concurrent {
            let sides = self.clone();
            clients.spawn(async move {
                let mut done = 0;
                loop {
                    sides.once(side, work).await?;
                    done += 1;
                    if done >= most || Instant::now() >= deadline {
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
        let what = format!("{work:?} of {side:?}");
        let joined = timeout(limit, joined).await;
        joined.map_err(|_| Error::TimedOut { what, limit })?
    }

    /// Has each side lead a number of lives, and counts what they take.
    async fn count(self: &Arc<Self>, concurrent: usize) -> Result<PerTask, Error> {
        let before = self.refrain.store.counts();
        let refrain_commits = self.commits(Side::Refrain, concurrent).await?;
        let lives = (concurrent as u64 * COUNTED) as f64;
        let mut calls = BTreeMap::new();
        for (name, asked) in self.refrain.store.counts() {
            let before = before.get(name).map_or(0, |before| before.count);
            if asked.count > before {
                calls.insert(name, (asked.count - before) as f64 / lives);
            }
        }
        Ok(PerTask {
            floor_commits: self.commits(Side::Floor, concurrent).await?,
            refrain_commits,
            calls,
        })
    }

    /// Commits of one life of a task. What is completed is counted too: a life that is not whole would be no measure.
    async fn commits(self: &Arc<Self>, side: Side, concurrent: usize) -> Result<f64, Error> {
        let (_, before) = self.plain.tasks().await?;
        let mark = self.plain.mark().await?;
        let led = self.clients((side, Work::Life), concurrent, COUNTED, GRACE);
        let lives = led.await?;
        let commits = self.plain.commits(mark).await?;
        let (_, after) = self.plain.tasks().await?;
        let completed = after.abs_diff(before);
        if side == Side::Refrain && completed != lives {
            return Err(Error::Incomplete { completed, lives });
        }
        Ok(commits as f64 / lives as f64)
    }

    /// Has both sides work in turn, slice by slice.
    async fn time(
        self: &Arc<Self>,
        settings: &Settings,
        found: &mut OnStore,
        progress: &ProgressBar,
    ) -> Result<(), Error> {
        let slices = settings.slices;
        for number in 1..=slices {
            progress.set_message(format!("{}: slice {number} of {slices}", found.database));
            // Whoever goes second may find the machine warmer: take turns.
            let order = match number % 2 {
                0 => [Side::Refrain, Side::Floor],
                _ => [Side::Floor, Side::Refrain],
            };
            for (work, pairs) in [(Work::Life, &mut found.life), (Work::Get, &mut found.get)] {
                for side in order {
                    let sample = self.slice(side, work, settings).await?;
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
        settings: &Settings,
    ) -> Result<Sample, Error> {
        let length = Duration::from_secs_f64(settings.seconds_per_slice);
        let this = std::process::id();
        let (cpu, begun) = (cpu_seconds(this)?, Instant::now());
        let concurrent = settings.concurrent;
        let done = self.clients((side, work), concurrent, u64::MAX, length);
        Ok(Sample {
            done: done.await?,
            seconds: begun.elapsed().as_secs_f64(),
            cpu_seconds: cpu_seconds(this)? - cpu,
        })
    }
}
