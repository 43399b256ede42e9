//! What an instance costs while tasks wait: a process of its own, with a worker that finds nothing to do.

use std::io::{BufRead as _, ErrorKind, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use refrain_server::TaskOptions;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::counted::Counted;
use super::instance::server;
use crate::child::resident_kib;
use crate::error::Error;

/// How long the process may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often what is over is thrown away: often enough to be seen in a short time.
const SWEEP: Duration = Duration::from_secs(1);

/// What an instance cost while so many tasks waited.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Idle {
    /// Tasks that wait for an answer.
    pub(crate) waiting: u64,
    pub(crate) seconds: f64,
    /// Milliseconds of processor time for each second.
    pub(crate) cpu_millis: f64,
    pub(crate) resident_kib: u64,
    /// What was asked of the store in a second.
    pub(crate) calls: f64,
    /// How long the store took for one of them, in microseconds.
    pub(crate) call_micros: f64,
}

/// An instance: its worker runs until standard input ends. The first line of that is the URL of the store; for each one
/// after it, it says how much was asked of the store and how many microseconds that took.
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
    let asked = tokio::task::spawn_blocking(move || {
        say(&counted)?;
        for line in std::io::stdin().lock().lines() {
            line?;
            say(&counted)?;
        }
        Ok(())
    });
    let mut ended = Ok(());
    server
        .work(async {
            ended = asked
                .await
                .unwrap_or_else(|error| Err(std::io::Error::other(error)));
        })
        .await;
    ended.map_err(Error::system("standard input"))
}

fn say(counted: &Arc<Counted>) -> std::io::Result<()> {
    let counts = counted.counts();
    let count: u64 = counts.values().map(|calls| calls.count).sum();
    let time: Duration = counts.values().map(|calls| calls.time).sum();
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{count} {}", time.as_micros())?;
    stdout.flush()
}

/// The process of an instance. It is ended with this value.
struct Process {
    child: Child,
    pid: u32,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    async fn start(url: &str) -> Result<Self, Error> {
        let program = std::env::current_exe().map_err(Error::system("this program has no path"))?;
        let mut child = Command::new(program)
            .arg("instance")
            .env_remove("RUST_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(Error::system("could not start an instance"))?;
        let gone = || Error::system("could not start an instance")(ErrorKind::BrokenPipe.into());
        let pid = child.id().ok_or_else(gone)?;
        let stdin = child.stdin.take().ok_or_else(gone)?;
        let stdout = child.stdout.take().ok_or_else(gone)?;
        let lines = BufReader::new(stdout).lines();
        let mut process = Self {
            child,
            pid,
            stdin,
            lines,
        };
        process.ask(url).await?;
        Ok(process)
    }

    /// Says something to the process, and reads what was asked of the store so far and for how many microseconds.
    async fn ask(&mut self, line: &str) -> Result<(u64, u64), Error> {
        let asked = async {
            self.stdin.write_all(format!("{line}\n").as_bytes()).await?;
            self.lines.next_line().await
        };
        let said = timeout(PATIENCE, asked).await;
        let said = said.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
        let said = said
            .map_err(Error::system("an instance"))?
            .unwrap_or_default();
        let (count, micros) = said.split_once(' ').unwrap_or_default();
        match (count.parse(), micros.parse()) {
            (Ok(count), Ok(micros)) => Ok((count, micros)),
            _ => Err(Error::system("could not start an instance")(
                ErrorKind::InvalidData.into(),
            )),
        }
    }

    /// Processor time of all threads so far.
    fn cpu(&self) -> Result<Duration, Error> {
        let path = format!("/proc/{}/task", self.pid);
        cpu_of(Path::new(&path)).map_err(Error::system(path.clone()))
    }

    async fn stop(mut self) -> Result<(), Error> {
        drop(self.stdin);
        let ended = timeout(PATIENCE, self.child.wait()).await;
        let ended = ended.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
        let status = ended.map_err(Error::system("an instance did not end"))?;
        match status.success() {
            true => Ok(()),
            false => Err(Error::IdleInstance(status)),
        }
    }
}

/// Starts an instance, leaves it alone for a while and says what it cost.
pub(crate) async fn watch(url: &str, waiting: u64, time: Duration) -> Result<Idle, Error> {
    let mut process = Process::start(url).await?;
    // What is done once is done by then.
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
    fn the_times_of_threads_are_added_up() {
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
