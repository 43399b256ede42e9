//! A worker process: an instance that serves its standard input and output, and runs tasks.
//!
//! It has one thread for all handlers, so that a signal finds at most one of them in the middle of something.

use crate::clock::{micros, retry};
use crate::error::Error as RunError;
use crate::ledger::{AttemptRow, Ledger};
use crate::plan::{Effect, Part, Plan};
use crate::random::Random;
use crate::record::{Event, Record, RecordedStore};
use parking_lot::Mutex;
use refrain::prelude::*;
use refrain::runtime::store::{OpenStoreError, StoreError};
use refrain::server::serve_stdio;
use refrain::task::TaskOptions;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::BufReader;

/// The tool that the tasks call.
pub(crate) const TOOL: &str = "errand";
/// How long a worker has a task before another may take it.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// The longest pause of a step before and after its effect, in milliseconds, so that it may be killed there.
const PAUSE: u64 = 120;
/// Separates the random numbers of a worker from others of the same seed.
const PURPOSE: u64 = 0x64_65_73_6b;

/// The options of a worker.
#[derive(clap::Args)]
pub(crate) struct WorkerOptions {
    /// The URL of the task store.
    #[arg(long, env = "REFRAIN_CRASH_STORE", hide_env_values = true)]
    store: String,
    /// The directory of the run's files.
    #[arg(long)]
    dir: PathBuf,
    /// The number of this process among all workers.
    #[arg(long)]
    run: u32,
    /// The seed of the run.
    #[arg(long)]
    seed: u64,
}

/// The state that the tool's handlers share.
struct Desk {
    ledger: Ledger,
    record: Arc<Record>,
    run: u32,
    turns: AtomicU64,
    attempts: AtomicU32,
    random: Mutex<Random>,
}

/// The task options of all processes of a run.
pub(crate) fn options() -> TaskOptions {
    TaskOptions {
        concurrent: 48,
        lease: LEASE,
        look: Duration::from_millis(100),
        // A worker that is killed has used up one attempt. Many more than that are a fault.
        attempts: 40,
        retry_after: Duration::from_millis(100),
        retry_at_most: Duration::from_secs(1),
        poll_interval: Duration::from_millis(200),
        ..TaskOptions::default()
    }
}

/// Works until its standard input ends.
pub(crate) async fn work(worker: WorkerOptions) -> Result<(), RunError> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .init();
    let WorkerOptions { dir, run, seed, .. } = worker;
    let is_temporary =
        |error: &OpenStoreError| matches!(error, OpenStoreError::Store(StoreError::Unavailable(_)));
    let store = retry(is_temporary, || refrain::store::open(&worker.store)).await?;
    let record = Arc::new(Record::create(&dir, run)?);
    let desk = Desk {
        ledger: Ledger::open(&dir),
        record: record.clone(),
        run,
        turns: AtomicU64::new(0),
        attempts: AtomicU32::new(0),
        random: Mutex::new(Random::new(seed, PURPOSE ^ (u64::from(run) << 32))),
    };
    let server = Server::builder("refrain-crash", env!("CARGO_PKG_VERSION"))
        .tasks(Arc::new(RecordedStore { store, record }), options())
        .state(desk)
        .tool(errand())
        .build()?;
    let input = BufReader::new(tokio::io::stdin());
    serve_stdio(server, input, tokio::io::stdout(), std::future::pending())
        .await
        .map_err(RunError::system("standard input and output"))
}

#[derive(Deserialize, Elicit)]
struct Number {
    number: i64,
}

/// Does what its plan says.
#[tool(task)]
async fn errand(cx: Cx, desk: State<Desk>, plan: Plan) -> Result<String> {
    let turn = desk.begin_turn(plan.number);
    let mut words = Vec::new();
    for (at, part) in plan.numbered() {
        let cx = cx.scope(format!("part-{at}"));
        let work = Work {
            cx: &cx,
            desk: &desk,
            plan: &plan,
            turn,
            part: at,
        };
        words.extend(work.part(part).await?);
    }
    Ok(words.join(" "))
}

/// One part of a plan at work.
struct Work<'a> {
    cx: &'a Cx,
    desk: &'a Desk,
    plan: &'a Plan,
    turn: u64,
    part: u8,
}

impl Work<'_> {
    async fn part(&self, part: Part) -> Result<Vec<String>> {
        Ok(match part {
            Part::Steps(count) => self.steps(count).await?,
            Part::Together(count) => self.together(count).await?,
            Part::Flaky(times) => vec![self.step("flaky", 0, times).await?],
            Part::Ask => vec![self.ask("number", 0).await?],
            Part::Asks => {
                let (one, other) = tokio::try_join!(self.ask("one", 0), self.ask("other", 1))?;
                vec![one, other]
            }
            Part::AskBeside(count) => {
                let (answer, steps) = tokio::try_join!(self.ask("number", 0), self.steps(count))?;
                std::iter::once(answer).chain(steps).collect()
            }
            Part::Sleep(millis) => {
                self.sleep(millis).await?;
                Vec::new()
            }
            Part::SleepBeside(millis, count) => {
                let (_, steps) = tokio::try_join!(self.sleep(millis), self.steps(count))?;
                steps
            }
        })
    }

    /// Steps one after another, all of one name.
    async fn steps(&self, count: u8) -> Result<Vec<String>> {
        let mut values = Vec::new();
        for step in 0..count {
            values.push(self.step("step", step, 0).await?);
        }
        Ok(values)
    }

    /// Up to four steps side by side.
    async fn together(&self, count: u8) -> Result<Vec<String>> {
        let side = |name, step| async move {
            match step < count {
                true => self.step(name, step, 0).await.map(Some),
                false => Ok(None),
            }
        };
        let (a, b, c, d) =
            tokio::try_join!(side("a", 0), side("b", 1), side("c", 2), side("d", 3))?;
        Ok([a, b, c, d].into_iter().flatten().collect())
    }

    async fn step(&self, name: &'static str, step: u8, flaky: u8) -> Result<String> {
        let effect = self.plan.effect(self.part, step);
        let work = |key| self.desk.attempt(effect, key, self.turn, flaky);
        self.cx.step_with_key(name, work).await
    }

    /// The message tells the client which ask it is.
    async fn ask(&self, name: &'static str, ask: u8) -> Result<String> {
        let message = self.plan.effect(self.part, ask).to_string();
        let number: Number = self.cx.elicit(name, message).await?;
        Ok(number.number.to_string())
    }

    async fn sleep(&self, millis: u32) -> Result<()> {
        self.cx.sleep(Duration::from_millis(millis.into())).await;
        Ok(())
    }
}

impl Desk {
    fn begin_turn(&self, number: u32) -> u64 {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        self.record.write(&Event::Turn { number, turn });
        turn
    }

    async fn pause(&self) {
        let time = self.random.lock().millis_below(PAUSE);
        tokio::time::sleep(time).await;
    }

    /// Does an effect, once for each key. `flaky`: how many times it asks to be tried again first.
    async fn attempt(
        &self,
        effect: Effect,
        idempotency_key: String,
        turn: u64,
        flaky: u8,
    ) -> Result<String> {
        let at = micros();
        let serial = self.attempts.fetch_add(1, Ordering::Relaxed);
        let attempt = AttemptRow {
            id: (i64::from(self.run) << 32) | i64::from(serial),
            effect,
            idempotency_key,
            run: self.run,
            turn,
            at,
        };
        let ledger = &self.ledger;
        ledger.attempt(&attempt).await.map_err(Error::internal)?;
        self.pause().await;
        if flaky > 0 {
            let retries = ledger.retries(&attempt.idempotency_key).await;
            if retries.map_err(Error::internal)? < flaky.into() {
                ledger.retried(attempt.id).await.map_err(Error::internal)?;
                return Err(Error::retry("not yet"));
            }
        }
        ledger.effect(&attempt).await.map_err(Error::internal)?;
        self.pause().await;
        Ok(effect.to_string())
    }
}
