//! The cost of an instance while tasks wait: a process whose worker finds nothing to do.

use std::io::{BufRead as _, ErrorKind, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use refrain_server::TaskOptions;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::counted::Counted;
use super::instance::server;
use crate::error::Error;
use crate::server::{resident_kib, this_program};

/// How long the process may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The interval of sweeps: short enough for a few of them in a short measurement.
const SWEEP: Duration = Duration::from_secs(1);

/// The cost of an instance while so many tasks waited.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Idle {
    /// Tasks that wait for an answer.
    pub(crate) waiting: u64,
    pub(crate) seconds: f64,
    /// Milliseconds of processor time for each second.
    pub(crate) cpu_millis: f64,
    pub(crate) resident_kib: u64,
    /// Calls of the store per second.
    pub(crate) calls: f64,
    /// The time of one call in microseconds.
    pub(crate) call_micros: f64,
}

/// The process of the instance. The first line of its standard input is the URL of the store. For that and each later
/// line it prints the number of calls of the store and their time in microseconds. It ends with its standard input.
pub(crate) async fn instance() -> Result<(), Error> {
    let mut url = String::new();
    std::io::stdin()
        .read_line(&mut url)
        .map_err(Error::system("standard input"))?;
    let counted = Counted::new(refrain_store::open(url.trim_end()).await?);
    let options = TaskOptions {
        sweep: SWEEP,
        ..TaskOptions::default()
    };
    let server = server(counted.clone(), options)?;
    let replies = tokio::task::spawn_blocking(move || {
        print_counts(&counted)?;
        for line in std::io::stdin().lock().lines() {
            line?;
            print_counts(&counted)?;
        }
        Ok(())
    });
    let mut ended = Ok(());
    let stop = async { ended = replies.await.unwrap_or_else(|error| Err(error.into())) };
    server.work(stop).await;
    ended.map_err(Error::system("standard input"))
}

fn print_counts(counted: &Counted) -> std::io::Result<()> {
    let counts = counted.counts();
    let count: u64 = counts.values().map(|calls| calls.count).sum();
    let time: Duration = counts.values().map(|calls| calls.time).sum();
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{count} {}", time.as_micros())?;
    stdout.flush()
}

/// The process of an instance, killed when this value is dropped.
struct Process {
    child: Child,
    pid: u32,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

/// Waits for a reply or the end of the process.
async fn in_time<T>(work: impl Future<Output = std::io::Result<T>>) -> Result<T, Error> {
    let done = timeout(PATIENCE, work).await;
    let done = done.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
    done.map_err(Error::system("the idle instance"))
}

impl Process {
    async fn start(url: &str) -> Result<Self, Error> {
        let mut child = Command::new(this_program()?)
            .arg("instance")
            .env_remove("RUST_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(Error::system("could not start an instance"))?;
        let parts = (child.id(), child.stdin.take(), child.stdout.take());
        let (Some(pid), Some(stdin), Some(stdout)) = parts else {
            let gone = ErrorKind::BrokenPipe.into();
            return Err(Error::system("could not start an instance")(gone));
        };
        let mut process = Self {
            child,
            pid,
            stdin,
            lines: BufReader::new(stdout).lines(),
        };
        process.ask(url).await?;
        Ok(process)
    }

    /// Sends a line, and reads the calls of the store so far and their microseconds.
    async fn ask(&mut self, line: &str) -> Result<(u64, u64), Error> {
        in_time(async {
            self.stdin.write_all(format!("{line}\n").as_bytes()).await?;
            let reply = self.lines.next_line().await?.unwrap_or_default();
            let (count, micros) = reply.split_once(' ').unwrap_or_default();
            match (count.parse(), micros.parse()) {
                (Ok(count), Ok(micros)) => Ok((count, micros)),
                _ => Err(ErrorKind::InvalidData.into()),
            }
        })
        .await
    }

    /// Processor time of all threads so far.
    fn cpu(&self) -> Result<Duration, Error> {
        let path = format!("/proc/{}/task", self.pid);
        cpu_of(Path::new(&path)).map_err(Error::system(path.clone()))
    }

    async fn stop(mut self) -> Result<(), Error> {
        drop(self.stdin);
        let status = in_time(self.child.wait()).await?;
        match status.success() {
            true => Ok(()),
            false => Err(Error::IdleInstance(status)),
        }
    }
}

/// Starts an instance, leaves it alone for a while and measures its cost.
pub(crate) async fn watch(url: &str, waiting: u64, time: Duration) -> Result<Idle, Error> {
    let mut process = Process::start(url).await?;
    // Work at the start is done by then.
    tokio::time::sleep(time.min(Duration::from_secs(2))).await;
    let (calls, micros) = process.ask("").await?;
    let (begun, cpu) = (Instant::now(), process.cpu()?);
    tokio::time::sleep(time).await;
    let (cpu, seconds) = (process.cpu()? - cpu, begun.elapsed().as_secs_f64());
    let resident_kib = resident_kib(process.pid)?;
    let (calls_after, micros_after) = process.ask("").await?;
    process.stop().await?;
    let calls = (calls_after - calls) as f64;
    Ok(Idle {
        waiting,
        seconds,
        cpu_millis: cpu.as_secs_f64() * 1000.0 / seconds,
        resident_kib,
        calls: calls / seconds,
        call_micros: (micros_after - micros) as f64 / calls,
    })
}

/// Nanoseconds on a processor are the first number of each thread's `schedstat`.
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
    fn times_of_threads_are_added_up() {
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
