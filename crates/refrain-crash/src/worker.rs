//! A worker process: an instance that serves HTTP and runs tasks.
//!
//! All handlers share one thread, so a signal interrupts at most one of them.

use crate::clock::{micros, retry};
use crate::error::CrashError;
use crate::ledger::{AttemptRow, EffectLedger};
use crate::plan::{Effect, PlanPart, TaskPlan};
use crate::random::{millis_below, random_stream};
use crate::record::{RecordEvent, RecordFile, RecordingStore};
use fastrand::Rng;
use parking_lot::Mutex;
use refrain::prelude::*;
use refrain::runtime::store::{OpenStoreError, StoreError};
use refrain::server::{AllowedHosts, KeyRing, ServerLimits, serve, serve_metrics};
use refrain::task::TaskOptions;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

/// The tool that the tasks call.
pub(crate) const TASK_TOOL: &str = "errand";
/// The tool of calls whose journal is kept by the client, or in a legacy session.
pub(crate) const CALL_TOOL: &str = "order";
/// The tool of calls that stay in memory.
pub(crate) const LIVE_TOOL: &str = "live_order";
/// A resource that is announced as updated twice a second. It contains the number of tokio tasks.
pub(crate) const RESOURCE: &str = "soak://runtime";
/// The time limit of a live call. Abandoned ones are held until then.
const LIVE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a token and a record of the replay log are valid.
const FLOW_TTL: Duration = Duration::from_secs(60);
/// The length of a lease.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// The longest pause before and after an effect, in milliseconds, in which a kill may hit.
const MAX_PAUSE: u64 = 120;
/// The random stream of a worker.
const RANDOM_STREAM: u64 = 0x64_65_73_6b;

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
    process: u32,
    /// The seed of the run.
    #[arg(long)]
    seed: u64,
    /// The address of the endpoint.
    #[arg(long)]
    listen: SocketAddr,
    /// The address of the metrics.
    #[arg(long)]
    metrics: SocketAddr,
    /// The keys of the fleet.
    #[arg(long, env = "REFRAIN_CRASH_KEYS", hide_env_values = true)]
    keys: String,
    /// The lifetime of a task in seconds.
    #[arg(long)]
    ttl: Option<u64>,
}

/// The state that the handlers of all tools share.
struct ToolState {
    ledger: EffectLedger,
    record: Arc<RecordFile>,
    process: u32,
    /// The number of times that `errand` was started in this process.
    starts: AtomicU64,
    /// The number of attempts at effects in this process.
    attempts: AtomicU32,
    random: Mutex<Rng>,
}

/// The task options of all processes of a run.
pub(crate) fn options(ttl: Option<u64>) -> TaskOptions {
    let default = TaskOptions::default();
    TaskOptions {
        ttl: ttl.map_or(default.ttl, Duration::from_secs),
        keep: Duration::from_secs(5),
        sweep: Duration::from_secs(2),
        concurrent: 48,
        lease: LEASE,
        store_poll: Duration::from_millis(100),
        // Each kill costs one attempt. Many more attempts than kills are a fault.
        attempts: 40,
        retry_after: Duration::from_millis(100),
        retry_at_most: Duration::from_secs(1),
        poll_interval: Duration::from_millis(200),
        ..default
    }
}

/// Short times, so that a run of a minute reaches them.
fn limits() -> ServerLimits {
    ServerLimits {
        idle_time: Duration::from_secs(10),
        body_time: Duration::from_secs(10),
        resume_time: Duration::from_secs(10),
        live_time: LIVE_TIMEOUT,
        ..ServerLimits::default()
    }
}

/// Serves until standard input closes or gets a byte, or serving fails.
pub(crate) async fn work(worker: WorkerOptions) -> Result<(), CrashError> {
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .init();
    let WorkerOptions {
        dir, process, seed, ..
    } = worker;
    let is_temporary =
        |error: &OpenStoreError| matches!(error, OpenStoreError::Store(StoreError::Unavailable(_)));
    let store = retry(is_temporary, || refrain::store::open(&worker.store)).await?;
    let record = Arc::new(RecordFile::create(&dir, process)?);
    let state = ToolState {
        ledger: EffectLedger::open(&dir)?,
        record: record.clone(),
        process,
        starts: AtomicU64::new(0),
        attempts: AtomicU32::new(0),
        random: Mutex::new(random_stream(
            seed,
            RANDOM_STREAM ^ (u64::from(process) << 32),
        )),
    };
    let server = Server::builder("refrain-crash", env!("CARGO_PKG_VERSION"))
        .keys(worker.keys.parse::<KeyRing>()?)
        .advertise(format!("http://{}/mcp", worker.listen))
        .limits(limits())
        .token_ttl(FLOW_TTL)
        .flow_ttl(FLOW_TTL)
        .replay_log(store.clone())
        .tasks(
            Arc::new(RecordingStore { store, record }),
            options(worker.ttl),
        )
        .state(state)
        .tool(errand())
        .tool(order())
        .tool(live_order())
        .resource(runtime())
        .build()?;
    let endpoint = bind(worker.listen).await?;
    let metrics = bind(worker.metrics).await?;
    let metrics = serve_metrics(metrics, server.clone(), std::future::pending());
    let hosts = AllowedHosts::local();
    tokio::select! {
        served = serve(endpoint, server.clone(), hosts, std::future::pending()) => served?,
        served = metrics => served?,
        () = announce(&server) => {}
        ended = async { tokio::io::stdin().read_u8().await } => drop(ended),
    }
    Ok(())
}

/// Binds an address that a killed worker may still have.
async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let is_temporary = |error: &io::Error| error.kind() == ErrorKind::AddrInUse;
    retry(is_temporary, || TcpListener::bind(address)).await
}

/// Announces the resource as updated, without an end.
async fn announce(server: &Server) {
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        server.resource_updated(RESOURCE);
    }
}

#[derive(Deserialize, Elicit)]
pub(crate) struct NumberAnswer {
    pub(crate) number: i64,
}

/// Runs its plan as a task.
#[tool(task)]
async fn errand(cx: Cx, state: State<ToolState>, plan: TaskPlan) -> Result<String> {
    let start = state.begin(plan.number);
    run_plan(&cx, &state, &plan, start).await
}

/// Runs its plan.
#[tool]
async fn order(cx: Cx, state: State<ToolState>, plan: TaskPlan) -> Result<String> {
    run_plan(&cx, &state, &plan, 0).await
}

/// Runs its plan in memory.
#[tool(live)]
async fn live_order(cx: Cx, state: State<ToolState>, plan: TaskPlan) -> Result<String> {
    run_plan(&cx, &state, &plan, 0).await
}

/// The number of tokio tasks.
#[resource(uri = "soak://runtime")]
async fn runtime(_cx: Cx) -> Result<String> {
    let runtime = tokio::runtime::Handle::current();
    Ok(runtime.metrics().num_alive_tasks().to_string())
}

async fn run_plan(cx: &Cx, state: &ToolState, plan: &TaskPlan, start: u64) -> Result<String> {
    let mut words = Vec::new();
    for (index, part) in plan.numbered() {
        let cx = cx.scope(format!("part-{index}"));
        let run = PartRun {
            cx: &cx,
            state,
            plan,
            start,
            part: index,
        };
        words.extend(run.part(part).await?);
    }
    Ok(words.join(" "))
}

struct PartRun<'a> {
    cx: &'a Cx,
    state: &'a ToolState,
    plan: &'a TaskPlan,
    start: u64,
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
        let work = |key| self.state.attempt(effect, key, self.start, flaky);
        self.cx.step_with_key(name, work).await
    }

    /// Asks for a number. The message identifies the ask to the client.
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
    /// Records the start of the handler of this task, and returns its number in this process.
    fn begin(&self, number: u32) -> u64 {
        let start = self.starts.fetch_add(1, Ordering::Relaxed);
        self.record.write(&RecordEvent::Started { number, start });
        start
    }

    async fn pause(&self) {
        let time = millis_below(&mut self.random.lock(), MAX_PAUSE);
        tokio::time::sleep(time).await;
    }

    /// Causes an effect, at most once per key, after asking for `flaky` retries.
    async fn attempt(
        &self,
        effect: Effect,
        idempotency_key: String,
        start: u64,
        flaky: u8,
    ) -> Result<String> {
        let at = micros();
        let serial = self.attempts.fetch_add(1, Ordering::Relaxed);
        let attempt = AttemptRow {
            id: (i64::from(self.process) << 32) | i64::from(serial),
            effect,
            idempotency_key,
            process: self.process,
            start,
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
