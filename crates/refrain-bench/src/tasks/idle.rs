//! The cost of an idle instance while tasks wait for answers, measured in a separate process.

use std::process::Stdio;
use std::time::{Duration, Instant};

use refrain_server::TaskOptions;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::process::Command;
use tokio::time::timeout;

use super::GRACE;
use super::counting_store::CountingStore;
use super::instance::server;
use crate::error::{Error, failed};
use crate::server::resident_kib;

/// The interval of sweeps, short enough for several in a measurement.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Idle {
    /// Tasks that wait for an answer.
    pub(crate) waiting: u64,
    /// Milliseconds of CPU time per second.
    pub(crate) cpu_millis: f64,
    pub(crate) resident_kib: u64,
    /// Store calls per second.
    pub(crate) calls: f64,
    /// The mean time of a call in microseconds.
    pub(crate) call_micros: f64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct InstanceOptions {
    /// The URL of the task store.
    #[arg(long, env = "REFRAIN_BENCH_STORE", hide_env_values = true)]
    store: String,
    /// The number of waiting tasks in it.
    #[arg(long)]
    waiting: u64,
    /// The length of the measurement.
    #[arg(long)]
    seconds: f64,
}

/// Runs a worker, measures this process, and prints the cost.
pub(crate) async fn instance(options: InstanceOptions) -> Result<(), Error> {
    let InstanceOptions {
        store,
        waiting,
        seconds,
    } = options;
    let store = CountingStore::new(refrain_store::open(&store).await?);
    let options = TaskOptions {
        sweep: SWEEP_INTERVAL,
        ..TaskOptions::default()
    };
    let server = server(store.clone(), options)?;
    let mut idle = Err("interrupted".into());
    let time = Duration::from_secs_f64(seconds);
    let measure = async { idle = measure(&store, waiting, time).await };
    server.work(measure).await;
    Ok(serde_json::to_writer(std::io::stdout(), &idle?)?)
}

async fn measure(store: &CountingStore, waiting: u64, time: Duration) -> Result<Idle, Error> {
    // Let the work at the start finish.
    tokio::time::sleep(time.min(Duration::from_secs(2))).await;
    let (begun, cpu, before) = (Instant::now(), cpu_seconds(), store.total());
    tokio::time::sleep(time).await;
    let (seconds, after) = (begun.elapsed().as_secs_f64(), store.total());
    let calls = (after.count - before.count) as f64;
    Ok(Idle {
        waiting,
        cpu_millis: (cpu_seconds() - cpu) * 1000.0 / seconds,
        resident_kib: resident_kib(std::process::id())?,
        calls: calls / seconds,
        call_micros: (after.time - before.time).as_micros() as f64 / calls,
    })
}

/// Measures an idle instance in another process.
pub(crate) async fn measure_instance(url: &str, waiting: u64, seconds: f64) -> Result<Idle, Error> {
    let output = Command::new(std::env::current_exe()?)
        .args(["instance", "--waiting", &waiting.to_string()])
        .args(["--seconds", &seconds.to_string()])
        // Not an argument, because it may contain a password and arguments are visible to all users.
        .env("REFRAIN_BENCH_STORE", url)
        .env_remove("RUST_LOG")
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output();
    let limit = Duration::from_secs_f64(seconds) + GRACE;
    let output = timeout(limit, output).await;
    let output = output.map_err(|_| format!("the idle instance took longer than {limit:?}"))?;
    let output = output.map_err(failed("start an instance"))?;
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout)?),
        false => Err(format!("the idle instance exited with {}", output.status).into()),
    }
}

/// The CPU time of this process with all its threads.
pub(super) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
