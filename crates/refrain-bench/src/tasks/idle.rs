//! The cost of an idle instance while tasks wait for answers, measured in a separate process.

use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use refrain_server::TaskOptions;
use serde::{Deserialize, Serialize};
use tokio::process::Command;
use tokio::time::timeout;

use super::GRACE;
use super::counting_store::CountingStore;
use super::instance::server;
use crate::error::Error;
use crate::server::{resident_kib, this_program};

/// The threads of this process.
const THREADS: &str = "/proc/self/task";
/// The interval of sweeps, short enough for several in a measurement.
const SWEEP: Duration = Duration::from_secs(1);

/// The cost of an instance with waiting tasks.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Idle {
    /// Tasks that wait for an answer.
    pub(crate) waiting: u64,
    pub(crate) seconds: f64,
    /// Milliseconds of CPU time per second.
    pub(crate) cpu_millis: f64,
    pub(crate) resident_kib: u64,
    /// Store calls per second.
    pub(crate) calls: f64,
    /// The mean time of a call in microseconds.
    pub(crate) call_micros: f64,
}

/// The options of `instance`.
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
        sweep: SWEEP,
        ..TaskOptions::default()
    };
    let server = server(store.clone(), options)?;
    let mut idle = Err(Error::Interrupted);
    let time = Duration::from_secs_f64(seconds);
    let measure = async { idle = measure(&store, waiting, time).await };
    server.work(measure).await;
    let line = serde_json::to_string(&idle?)?;
    let printed = writeln!(std::io::stdout(), "{line}");
    printed.map_err(Error::system("could not print the cost"))
}

async fn measure(store: &CountingStore, waiting: u64, time: Duration) -> Result<Idle, Error> {
    // Let the work at the start finish.
    tokio::time::sleep(time.min(Duration::from_secs(2))).await;
    let cpu = || cpu_of(Path::new(THREADS)).map_err(Error::system(THREADS));
    let (begun, cpu_before, before) = (Instant::now(), cpu()?, store.total());
    tokio::time::sleep(time).await;
    let (seconds, after) = (begun.elapsed().as_secs_f64(), store.total());
    let calls = (after.count - before.count) as f64;
    Ok(Idle {
        waiting,
        seconds,
        cpu_millis: (cpu()? - cpu_before).as_secs_f64() * 1000.0 / seconds,
        resident_kib: resident_kib(std::process::id())?,
        calls: calls / seconds,
        call_micros: (after.time - before.time).as_micros() as f64 / calls,
    })
}

/// Measures an idle instance in another process.
pub(crate) async fn watch(url: &str, waiting: u64, seconds: f64) -> Result<Idle, Error> {
    let output = Command::new(this_program()?)
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
    let what = "the idle instance".to_owned();
    let output = output.map_err(|_| Error::TimedOut { what, limit })?;
    let output = output.map_err(Error::system("could not start an instance"))?;
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout)?),
        false => Err(Error::IdleInstance(output.status)),
    }
}

/// Sums the CPU times of all threads: the first number of each `schedstat`, in nanoseconds.
fn cpu_of(threads: &Path) -> std::io::Result<Duration> {
    let mut nanos = 0;
    for thread in std::fs::read_dir(threads)? {
        let stat = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let first = stat.split_ascii_whitespace().next();
        let first: Option<u64> = first.and_then(|first| first.parse().ok());
        nanos += first.ok_or(ErrorKind::InvalidData)?;
    }
    Ok(Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_of_threads_are_summed() {
        let dir = tempfile::tempdir().unwrap();
        for (thread, stat) in [("7", "1500 20 3\n"), ("8", "500 0 1\n")] {
            let thread = dir.path().join(thread);
            std::fs::create_dir(&thread).unwrap();
            std::fs::write(thread.join("schedstat"), stat).unwrap();
        }
        assert_eq!(cpu_of(dir.path()).unwrap(), Duration::from_micros(2));
        std::fs::write(dir.path().join("7/schedstat"), "").unwrap();
        assert!(cpu_of(dir.path()).is_err());
    }
}
