//! Memory, open files and gauges of the instance that is never killed, and the rows of the store.

use crate::error::{CrashError, failed};
use crate::fleet::WorkerAddresses;
use crate::run::CrashRun;
use crate::worker::RESOURCE;
use refrain_testkit::net::{Request, Scrape, http};
use serde::Serialize;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The end of the warm-up in long runs, in seconds.
const WARM_UP: f64 = 300.0;
/// The maximum length, in seconds, of the windows over which the median of the memory is taken.
const WINDOW: f64 = 120.0;
/// The permitted growth of the memory in long runs.
const MAX_GROWTH: f64 = 0.10;
/// The same in shorter runs, in which the allocator still warms up.
const SHORT_MAX_GROWTH: f64 = 0.15;
/// How many more files and sockets are allowed after the load than before, since the store opens
/// connections when needed: up to 12 sockets in Postgres, and three files for each connection in
/// SQLite.
const STORE_FILES: u64 = 36;
const STORE_SOCKETS: u64 = 12;
/// How many more tokio tasks are allowed: background tasks of the store's connections and of the relay's client.
const POOL_TASKS: u64 = 4;

/// The rows of tasks, asks, replay log and tokens, and the unfinished tasks and bytes counted for quotas.
const ROWS: &str = "
    SELECT (SELECT count(*) FROM refrain_tasks) || ' tasks, ' || (SELECT count(*) FROM refrain_asks) || ' asks, '
        || (SELECT count(*) FROM refrain_log) || ' records of the replay log, '
        || (SELECT count(*) FROM refrain_tokens) || ' tokens, '
        || (SELECT coalesce(sum(tasks), 0) FROM refrain_usage) || ' counted tasks, '
        || (SELECT coalesce(sum(bytes), 0) FROM refrain_usage) || ' counted bytes'";
const NO_ROWS: &str =
    "0 tasks, 0 asks, 0 records of the replay log, 0 tokens, 0 counted tasks, 0 counted bytes";

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Sample {
    /// Seconds since the start of the load.
    pub(super) second: f64,
    pub(super) resident_kib: u64,
    /// Open file descriptors, sockets included.
    pub(super) files: u64,
    pub(super) sockets: u64,
    pub(super) tokio_tasks: u64,
    pub(super) calls_running: u64,
    pub(super) live_calls: u64,
    pub(super) subscriptions: u64,
    pub(super) tasks_running: u64,
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} MiB, {} files, {} sockets, {} tokio tasks, {} live calls, {} subscriptions",
            self.resident_kib as f64 / 1024.0,
            self.files,
            self.sockets,
            self.tokio_tasks,
            self.live_calls,
            self.subscriptions
        )
    }
}

/// The median of the memory after the warm-up and at the end of the load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Memory {
    pub(super) warm_kib: u64,
    pub(super) end_kib: u64,
    pub(super) allowed_growth: f64,
}

impl Memory {
    /// The growth as a fraction.
    pub(super) fn growth(&self) -> f64 {
        self.end_kib as f64 / self.warm_kib.max(1) as f64 - 1.0
    }

    pub(super) fn fault(&self) -> Option<String> {
        let (growth, allowed) = (self.growth() * 100.0, self.allowed_growth * 100.0);
        (growth > allowed).then(|| format!("memory grew by {growth:.1} %, more than {allowed} %"))
    }
}

/// The median memory after the warm-up and at the end. The warm-up lasts five minutes, or a third of a shorter run.
pub(super) fn memory(samples: &[Sample], seconds: u32) -> Option<Memory> {
    let seconds = f64::from(seconds);
    let (warm_up, window) = (WARM_UP.min(seconds / 3.0), WINDOW.min(seconds / 3.0));
    let median = |from: f64| {
        let range = from..from + window;
        let samples = samples.iter();
        let samples = samples.filter(|sample| range.contains(&sample.second));
        let mut values: Vec<u64> = samples.map(|sample| sample.resident_kib).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied()
    };
    Some(Memory {
        warm_kib: median(warm_up)?,
        end_kib: median(seconds - window)?,
        allowed_growth: match warm_up < WARM_UP {
            true => SHORT_MAX_GROWTH,
            false => MAX_GROWTH,
        },
    })
}

/// The state of the instance and the store after all clients have left.
#[derive(Debug, Serialize)]
pub(super) struct Leftovers {
    pub(super) sample: Sample,
    pub(super) rows: String,
    /// Seconds until nothing was left, or the limit.
    pub(super) seconds: f64,
    #[serde(skip)]
    pub(super) faults: Vec<String>,
}

pub(super) struct Monitor {
    pid: u32,
    addresses: WorkerAddresses,
    postgres: Option<PgConnectOptions>,
    sqlite: SqliteConnectOptions,
}

impl Monitor {
    /// Monitors the first instance.
    pub(super) fn new(run: &CrashRun, dir: &Path) -> Result<Self, CrashError> {
        let pid = run.fleet.pid(0)?.ok_or("the first instance has ended")?.1;
        Ok(Self {
            pid: pid.as_raw_nonzero().get().unsigned_abs(),
            addresses: run.fleet.addresses()[0],
            postgres: run.postgres.lock().clone(),
            sqlite: SqliteConnectOptions::new().filename(dir.join("tasks.db")),
        })
    }

    pub(super) async fn sample(&self) -> Result<Sample, CrashError> {
        let WorkerAddresses { endpoint, metrics } = self.addresses;
        let reply = http::try_send(endpoint, &Request::read(RESOURCE)).await?;
        let reply = reply.reply();
        let tasks = reply["result"]["contents"][0]["text"].as_str();
        let scrape = Scrape::parse(&http::page_of(metrics, "/metrics").await?);
        let gauge = |name| scrape.get(name) as u64;
        let (files, sockets) = open_files(self.pid)?;
        Ok(Sample {
            second: 0.0,
            resident_kib: resident_kib(self.pid)?,
            files,
            sockets,
            tokio_tasks: tasks
                .ok_or("the instance did not report its number of tokio tasks")?
                .parse()?,
            calls_running: gauge("refrain_calls_running"),
            live_calls: gauge("refrain_live_calls"),
            subscriptions: gauge("refrain_subscriptions"),
            tasks_running: gauge("refrain_tasks_running"),
        })
    }

    /// Waits until the instance is as before the load and the store is empty, up to a limit.
    pub(super) async fn settle(
        &self,
        before: &Sample,
        limit: Duration,
    ) -> Result<Leftovers, CrashError> {
        let begun = Instant::now();
        self.age_records().await?;
        loop {
            let (sample, rows) = (self.sample().await?, self.rows().await?);
            let mut faults = self.leaks(before, &sample);
            if rows != NO_ROWS {
                faults.push(format!("the store still has {rows}"));
            }
            if faults.is_empty() || begun.elapsed() > limit {
                let seconds = begun.elapsed().as_secs_f64();
                return Ok(Leftovers {
                    sample,
                    rows,
                    seconds,
                    faults,
                });
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// The resources that the instance has not released.
    fn leaks(&self, before: &Sample, after: &Sample) -> Vec<String> {
        let store_sockets = match self.postgres {
            Some(_) => STORE_SOCKETS,
            None => 0,
        };
        let kinds = [
            ("open files", before.files + STORE_FILES, after.files),
            ("sockets", before.sockets + store_sockets, after.sockets),
            (
                "tokio tasks",
                before.tokio_tasks + POOL_TASKS,
                after.tokio_tasks,
            ),
            // Includes the request of the sample itself.
            ("running calls", before.calls_running, after.calls_running),
            ("live calls", 0, after.live_calls),
            ("subscriptions", 0, after.subscriptions),
            ("running tasks", 0, after.tasks_running),
        ];
        let leaked = kinds.iter().filter(|(_, allowed, count)| count > allowed);
        let fault = |(kind, allowed, count): &(&str, u64, u64)| {
            format!("{count} {kind} are left, at most {allowed} expected")
        };
        leaked.map(fault).collect()
    }

    /// Makes the records of the replay log an hour older: they are kept for an hour after the deadline of
    /// their flow.
    async fn age_records(&self) -> Result<(), CrashError> {
        const AGE: &str = "UPDATE refrain_log SET until = until - 3600";
        match &self.postgres {
            Some(options) => {
                let mut connection = PgConnection::connect_with(options).await?;
                sqlx::raw_sql(AGE).execute(&mut connection).await?;
            }
            None => {
                let mut connection = self.sqlite.connect().await?;
                sqlx::raw_sql(AGE).execute(&mut connection).await?;
                connection.close().await?;
            }
        }
        Ok(())
    }

    async fn rows(&self) -> Result<String, CrashError> {
        Ok(match &self.postgres {
            Some(options) => {
                let mut connection = PgConnection::connect_with(options).await?;
                sqlx::query_scalar(ROWS).fetch_one(&mut connection).await?
            }
            None => {
                let mut connection = self.sqlite.connect().await?;
                let rows = sqlx::query_scalar(ROWS).fetch_one(&mut connection).await?;
                connection.close().await?;
                rows
            }
        })
    }
}

/// The number of open files of a process, and of the sockets among them.
fn open_files(pid: u32) -> Result<(u64, u64), CrashError> {
    let (mut files, mut sockets) = (0, 0);
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        // A file may be closed meanwhile.
        if let Ok(target) = std::fs::read_link(entry?.path()) {
            files += 1;
            sockets += u64::from(target.to_string_lossy().starts_with("socket:"));
        }
    }
    Ok((files, sockets))
}

fn resident_kib(pid: u32) -> Result<u64, CrashError> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).map_err(failed(format!("read {path}")))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_ascii_whitespace().next());
    Ok(number.ok_or("no VmRSS in /proc/PID/status")?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One sample per second.
    fn samples(resident_kib: impl Fn(u64) -> u64, seconds: u32) -> Vec<Sample> {
        let sample = |second: u32| Sample {
            second: f64::from(second),
            resident_kib: resident_kib(second.into()),
            ..Sample::default()
        };
        (0..seconds).map(sample).collect()
    }

    fn fault(resident_kib: impl Fn(u64) -> u64, seconds: u32) -> Option<String> {
        let memory = memory(&samples(resident_kib, seconds), seconds);
        memory.expect("there are samples").fault()
    }

    #[test]
    fn steady_memory_is_accepted_after_the_warm_up() {
        assert_eq!(fault(|second| 20_000 + second.min(20) * 1000, 60), None);
        assert_eq!(fault(|second| 20_000 + second.min(300) * 100, 1800), None);
    }

    #[test]
    fn growing_memory_is_a_fault() {
        // 4 KiB per second: 13 % from the end of the warm-up to the end.
        let leak = |second| 40_000 + second * 4;
        assert!(fault(leak, 1800).is_some());
        // In a minute only a larger leak shows: 500 KiB per second.
        let leak = |second| 30_000 + second * 500;
        assert!(fault(leak, 60).is_some());
    }

    #[test]
    fn run_without_samples_has_no_memory() {
        assert_eq!(memory(&[], 60), None);
    }

    #[test]
    fn own_process_has_files_and_memory() {
        let _socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (files, sockets) = open_files(std::process::id()).unwrap();
        assert!(files > sockets && sockets >= 1);
        assert!(resident_kib(std::process::id()).unwrap() > 100);
    }
}
