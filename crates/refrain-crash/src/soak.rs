//! The soak test: mixed load on three instances, of which two are killed in turn.
//!
//! | module | contents |
//! | --- | --- |
//! | [`users`] | callers whose journals are with the client, live and legacy callers, subscribers, and the clients of tasks |
//! | [`hostile`] | clients that try to exhaust an instance |
//! | [`check`] | the results and effects of calls, against the guarantees |
//! | [`monitor`] | memory, open files and gauges of the instance that is never killed |
//! | [`report`] | the final table |
//!
//! The first instance is never killed. Its memory is compared between the end of the warm-up and the end of the load. After
//! the load all clients leave; then it must return to the state before the load, and the store must become empty. Tasks
//! are checked as in the crash test.

mod check;
mod hostile;
mod monitor;
mod report;
mod users;

use crate::check::check as check_tasks;
use crate::client::TaskEnd;
use crate::clock::retry;
use crate::error::CrashError;
use crate::fleet::WORKERS;
use crate::run::CrashRun;
use crate::{CrashOptions, StoreKind};
use check::{CallEnd, CallEvidence};
use hostile::HostileCounts;
use monitor::{Monitor, Sample};
use parking_lot::Mutex;
use refrain_testkit::net::{Balancer, http};
use report::SoakReport;
use serde::Serialize;
use std::convert::Infallible;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The random stream of the soak test.
const RANDOM_STREAM: u64 = 0x73_6f_61_6b;
/// The lifetime of a task, in seconds.
const TASK_TTL: u64 = 90;
/// The time between two kills.
const KILL_INTERVAL: Duration = Duration::from_secs(10);
/// The time between two samples of the first instance.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two lines of progress on a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// How long clients may take to finish after the end of the load.
const FINISH_TIMEOUT: Duration = Duration::from_secs(120);
/// How long leftovers may take to expire after the last client has left.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(TASK_TTL + 60);

#[derive(Clone, clap::Args)]
pub(crate) struct SoakOptions {
    /// The database of a new task store.
    #[arg(long, value_name = "STORE", default_value = "sqlite")]
    store: StoreKind,
    /// The duration of the load. The check afterwards takes up to three minutes.
    #[arg(long, value_name = "SECONDS", default_value = "1800", value_parser = clap::value_parser!(u32).range(30..=86_400))]
    seconds: u32,
    /// The seed of an earlier run [default: random].
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,
    /// Print the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct SoakCounts {
    /// Subscriptions opened, and the updates that they received.
    subscriptions: u64,
    updates: u64,
    /// Connections that failed because an instance was killed.
    reconnects: u64,
    hostile: HostileCounts,
}

pub(crate) struct Soak {
    run: Arc<CrashRun>,
    /// The URL of the balancer.
    url: String,
    /// The end of the load.
    end: Instant,
    next_task: AtomicU32,
    next_call: AtomicU32,
    calls: Mutex<Vec<CallEnd>>,
    counts: Mutex<SoakCounts>,
    faults: Mutex<Vec<String>>,
    samples: Mutex<Vec<Sample>>,
}

pub(crate) async fn run(
    options: SoakOptions,
    seed: u64,
    dir: &Path,
) -> Result<SoakReport, CrashError> {
    let crash = CrashOptions {
        failover: false,
        store: options.store,
        tasks: 0,
        seed: Some(seed),
        at_once: 0,
    };
    let run = CrashRun::start(crash, seed, dir, Some(TASK_TTL)).await?;
    let addresses = run.fleet.addresses().map(|worker| worker.endpoint);
    for address in addresses {
        retry(|_| true, || http::status_of(address, "/readyz")).await?;
    }
    let monitor = Monitor::new(&run, dir)?;
    let before = monitor.sample().await?;
    let balancer = Balancer::start(addresses).await;
    let begun = Instant::now();
    let soak = Arc::new(Soak {
        url: balancer.url(),
        end: begun + Duration::from_secs(options.seconds.into()),
        next_task: AtomicU32::new(0),
        next_call: AtomicU32::new(check::FIRST_CALL),
        calls: Mutex::default(),
        counts: Mutex::default(),
        faults: Mutex::default(),
        samples: Mutex::default(),
        run,
    });
    let ended = tokio::select! {
        ended = soak.load() => ended?,
        failed = soak.kill_in_turn() => match failed? {},
        failed = soak.monitor(&monitor, begun) => match failed? {},
    };
    drop(balancer);
    // Keeps the first instance.
    soak.run.fleet.end(1).await;
    let left = monitor.settle(&before, SETTLE_TIMEOUT).await?;
    soak.run.fleet.end(0).await;
    let mut evidence = soak.run.evidence(ended, dir).await?;
    let calls = CallEvidence::take(&mut evidence, std::mem::take(&mut *soak.calls.lock()));
    let tasks = check_tasks(&evidence);
    let mut report = SoakReport {
        seed,
        store: options.store,
        seconds: options.seconds,
        kills: evidence.disruptions.kills.len(),
        counts: soak.counts.lock().clone(),
        clients: soak.run.counts.lock().clone(),
        tasks_ended: evidence.ended.len(),
        memory: monitor::memory(&soak.samples.lock(), options.seconds),
        before,
        left,
        calls: check::check(&calls),
        tasks,
        faults: std::mem::take(&mut *soak.faults.lock()),
    };
    report.collect_faults();
    Ok(report)
}

impl Soak {
    fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    fn fault(&self, fault: String) {
        self.faults.lock().push(fault);
    }

    /// Runs all clients until the end of the load. Returns the tasks that ended.
    async fn load(self: &Arc<Self>) -> Result<Vec<TaskEnd>, CrashError> {
        let mut clients: JoinSet<Result<Vec<TaskEnd>, CrashError>> = JoinSet::new();
        users::start(self, &mut clients);
        hostile::start(self, &mut clients);
        let mut ended = Vec::new();
        let joined = async {
            while let Some(joined) = clients.join_next().await {
                ended.extend(joined??);
            }
            Ok::<(), CrashError>(())
        };
        let limit = self.end + FINISH_TIMEOUT;
        match tokio::time::timeout_at(limit.into(), joined).await {
            Ok(joined) => joined?,
            Err(_) => self.fault(format!("{} clients did not finish", clients.len())),
        }
        Ok(ended)
    }

    /// Kills and restarts the instances other than the first one in turn, until the end of the load.
    async fn kill_in_turn(&self) -> Result<Infallible, CrashError> {
        for turn in 0.. {
            tokio::time::sleep(KILL_INTERVAL).await;
            self.run.fleet.must_run()?;
            if !self.is_over() {
                self.run.fleet.kill(1 + turn % (WORKERS - 1))?;
            }
        }
        std::future::pending().await
    }

    /// Samples the first instance until this future is dropped. Prints progress if standard error is a terminal.
    async fn monitor(&self, monitor: &Monitor, begun: Instant) -> Result<Infallible, CrashError> {
        let mut printed = begun;
        loop {
            tokio::time::sleep(SAMPLE_INTERVAL).await;
            let sample = Sample {
                second: begun.elapsed().as_secs_f64(),
                ..monitor.sample().await?
            };
            if printed.elapsed() >= PROGRESS_INTERVAL {
                printed = Instant::now();
                self.print_progress(&sample)?;
            }
            self.samples.lock().push(sample);
        }
    }

    fn print_progress(&self, sample: &Sample) -> Result<(), CrashError> {
        if !std::io::stderr().is_terminal() {
            return Ok(());
        }
        let kills = self.run.fleet.disruptions.lock().kills.len();
        let (calls, faults) = (self.calls.lock().len(), self.faults.lock().len());
        let tasks = self.next_task.load(std::sync::atomic::Ordering::Relaxed);
        let line = format!(
            "{:>5.0} s: {calls} calls, {tasks} tasks, {kills} kills, {faults} faults; {sample}",
            sample.second
        );
        Ok(writeln!(anstream::stderr(), "{line}")?)
    }
}
