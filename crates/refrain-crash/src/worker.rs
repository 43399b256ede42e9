//! A worker process: an instance that serves its standard input and output, and runs tasks.
//!
//! All handlers share one thread, so a signal interrupts at most one of them.

use crate::clock::{micros, retry};
use crate::error::CrashError;
use crate::ledger::{AttemptRow, EffectLedger};
use crate::plan::{Effect, PlanPart, TaskPlan};
use crate::random::{millis_below, stream};
use crate::record::{RecordEvent, RecordFile, RecordingStore};
use fastrand::Rng;
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
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// The longest pause before and after an effect, in milliseconds, in which a kill may hit.
const PAUSE: u64 = 120;
/// The random stream of a worker.
const PURPOSE: u64 = 0x64_65_73_6b;

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
struct ToolState {
    ledger: EffectLedger,
    record: Arc<RecordFile>,
    run: u32,
    turns: AtomicU64,
    attempts: AtomicU32,
    random: Mutex<Rng>,
}

/// The task options of all processes of a run.
pub(crate) fn options() -> TaskOptions {
    TaskOptions {
        concurrent: 48,
        lease: LEASE,
        store_poll: Duration::from_millis(100),
        // Each kill costs one attempt. Many more attempts than kills are a fault.
        attempts: 40,
        retry_after: Duration::from_millis(100),
        retry_at_most: Duration::from_secs(1),
        poll_interval: Duration::from_millis(200),
        ..TaskOptions::default()
    }
}

/// Serves until standard input closes.
pub(crate) async fn work(worker: WorkerOptions) -> Result<(), CrashError> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .init();
    let WorkerOptions { dir, run, seed, .. } = worker;
    let is_temporary =
        |error: &OpenStoreError| matches!(error, OpenStoreError::Store(StoreError::Unavailable(_)));
    let store = retry(is_temporary, || refrain::store::open(&worker.store)).await?;
    let record = Arc::new(RecordFile::create(&dir, run)?);
    let state = ToolState {
        ledger: EffectLedger::open(&dir)?,
        record: record.clone(),
        run,
        turns: AtomicU64::new(0),
        attempts: AtomicU32::new(0),
        random: Mutex::new(stream(seed, PURPOSE ^ (u64::from(run) << 32))),
    };
    let server = Server::builder("refrain-crash", env!("CARGO_PKG_VERSION"))
        .tasks(Arc::new(RecordingStore { store, record }), options())
        .state(state)
        .tool(errand())
        .build()?;
    let input = BufReader::new(tokio::io::stdin());
    serve_stdio(server, input, tokio::io::stdout(), std::future::pending()).await?;
    Ok(())
}

#[derive(Deserialize, Elicit)]
struct NumberAnswer {
    number: i64,
}

/// Runs its plan.
#[tool(task)]
async fn errand(cx: Cx, state: State<ToolState>, plan: TaskPlan) -> Result<String> {
    let turn = state.begin_turn(plan.number);
    let mut words = Vec::new();
    for (at, part) in plan.numbered() {
        let cx = cx.scope(format!("part-{at}"));
        let work = PartRun {
            cx: &cx,
            state: &state,
            plan: &plan,
            turn,
            part: at,
        };
        words.extend(work.part(part).await?);
    }
    Ok(words.join(" "))
}

struct PartRun<'a> {
    cx: &'a Cx,
    state: &'a ToolState,
    plan: &'a TaskPlan,
    turn: u64,
    part: u8,
}

impl PartRun<'_> {
    async fn part(&self, part: PlanPart) -> Result<Vec<String>> {
        Ok(match part {
            PlanPart::Steps(count) => self.steps(count).await?,
            PlanPart::Together(count) => self.together(count).await?,
            PlanPart::Flaky(times) => vec![self.step("flaky", 0, times).await?],
            PlanPart::Ask => vec![self.ask("number", 0).await?],
            PlanPart::Asks => {
                let (one, other) = tokio::try_join!(self.ask("one", 0), self.ask("other", 1))?;
                vec![one, other]
            }
            PlanPart::AskBeside(count) => {
                let (answer, steps) = tokio::try_join!(self.ask("number", 0), self.steps(count))?;
                std::iter::once(answer).chain(steps).collect()
            }
            PlanPart::Sleep(millis) => {
                self.sleep(millis).await?;
                Vec::new()
            }
            PlanPart::SleepBeside(millis, count) => {
                let (_, steps) = tokio::try_join!(self.sleep(millis), self.steps(count))?;
                steps
            }
        })
    }

    /// Sequential steps with the same name.
    async fn steps(&self, count: u8) -> Result<Vec<String>> {
        let mut values = Vec::new();
        for step in 0..count {
            values.push(self.step("step", step, 0).await?);
        }
        Ok(values)
    }

    /// Up to four concurrent steps.
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
        let work = |key| self.state.attempt(effect, key, self.turn, flaky);
        self.cx.step_with_key(name, work).await
    }

    /// The message identifies the ask to the client.
    async fn ask(&self, name: &'static str, ask: u8) -> Result<String> {
        let message = self.plan.effect(self.part, ask).to_string();
        let number: NumberAnswer = self.cx.elicit(name, message).await?;
        Ok(number.number.to_string())
    }

    async fn sleep(&self, millis: u32) -> Result<()> {
        self.cx.sleep(Duration::from_millis(millis.into())).await;
        Ok(())
    }
}

impl ToolState {
    fn begin_turn(&self, number: u32) -> u64 {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        self.record.write(&RecordEvent::Turn { number, turn });
        turn
    }

    async fn pause(&self) {
        let time = millis_below(&mut self.random.lock(), PAUSE);
        tokio::time::sleep(time).await;
    }

    /// Causes an effect, at most once per key, after asking for `flaky` retries.
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
        self.record.write(&RecordEvent::Attempt(attempt.clone()));
        self.pause().await;
        let ledger = &self.ledger;
        if ledger.retry(&attempt, flaky).map_err(Error::internal)? {
            return Err(Error::retry("not yet"));
        }
        ledger.effect(&attempt).map_err(Error::internal)?;
        self.pause().await;
        Ok(effect.to_string())
    }
}
