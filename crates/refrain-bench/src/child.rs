//! The servers under test: child processes on a core of their own.
//!
//! A child is ended by its own handle whenever its [`Server`] goes away, on errors and on
//! interrupts too.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::Error;

/// Ticks per second of the times in /proc, the same on every Linux that is in use.
const TICKS: f64 = 100.0;
/// Where a server listens: on a port of this machine that nobody else has.
const ANY_PORT: &str = "127.0.0.1:0";
/// How many of a server's last lines an error shows.
const TAIL: usize = 20;

/// A server that can be started: its program and how it is told to serve.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    name: &'static str,
    path: PathBuf,
    verb: &'static str,
}

/// What a server runs under, and how much patience that needs.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// The core the server is pinned to.
    pub(crate) core: usize,
    /// A program and its arguments that run the server: valgrind, or nothing.
    pub(crate) under: Vec<OsString>,
    /// How long a start and a stop may take.
    pub(crate) patience: Duration,
}

type Tail = Arc<Mutex<VecDeque<String>>>;

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    name: &'static str,
    child: Child,
    pid: u32,
    address: SocketAddr,
    tail: Tail,
    patience: Duration,
}

impl Program {
    /// The sealing floor, which is a command of this very program.
    pub(crate) fn floor() -> Result<Self, Error> {
        let path = std::env::current_exe().map_err(Error::system("this program has no path"))?;
        Ok(Self {
            name: "floor",
            path,
            verb: "floor",
        })
    }

    /// Refrain's server.
    pub(crate) fn refrain(path: PathBuf) -> Result<Self, Error> {
        if !path.is_file() {
            return Err(Error::NoServer { path });
        }
        Ok(Self {
            name: "Refrain",
            path,
            verb: "serve",
        })
    }

    /// Starts the server on a free port and waits until it says that it is ready.
    pub(crate) async fn start(&self, setting: &Setting) -> Result<Server, Error> {
        let mut command = Command::new("taskset");
        command
            .arg("-c")
            .arg(setting.core.to_string())
            .args(&setting.under)
            .arg(&self.path)
            .arg(self.verb)
            .arg("--listen")
            .arg(ANY_PORT)
            // The user's own log filter would be measured too.
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(|source| Error::Start {
            program: format!("taskset for {}", self.name),
            source,
        })?;
        let tail = Tail::default();
        let gone = |status| Error::EndedEarly {
            server: self.name,
            status,
            tail: shown(&tail),
        };
        let (Some(pid), Some(stderr)) = (child.id(), child.stderr.take()) else {
            let status = child.wait().await;
            return Err(gone(status.map_err(Error::system("could not wait"))?));
        };

        let mut lines = BufReader::new(stderr).lines();
        let deadline = Instant::now() + setting.patience;
        let address = match timeout_at(deadline, wait_for(&mut lines, &tail)).await {
            Ok(Some(address)) => address,
            Ok(None) => {
                let status = timeout(setting.patience, child.wait()).await;
                let status = status.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
                return Err(gone(status.map_err(Error::system(format!(
                    "{} closed its stderr and did not end",
                    self.name
                )))?));
            }
            Err(_) => {
                return Err(Error::NotReady {
                    server: self.name,
                    limit: setting.patience,
                    tail: shown(&tail),
                });
            }
        };

        // Read on, so that the server never waits for a full pipe. Ends with the pipe.
        let kept = Arc::clone(&tail);
        tokio::spawn(async move { while next_line(&mut lines, &kept).await.is_some() {} });
        Ok(Server {
            name: self.name,
            child,
            pid,
            address,
            tail,
            patience: setting.patience,
        })
    }
}

impl Server {
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Processor time used so far by all its threads, in user mode and in the kernel.
    pub(crate) fn cpu_seconds(&self) -> Result<f64, Error> {
        cpu_seconds(self.pid)
    }

    /// Resident memory in KiB.
    pub(crate) fn resident_kib(&self) -> Result<u64, Error> {
        resident_kib(self.pid)
    }

    /// Ends the server with SIGTERM and waits for it; anything but a clean end is an error.
    pub(crate) async fn stop(mut self) -> Result<(), Error> {
        let refused = |what: String, tail: &Tail| Error::NotStopped {
            server: self.name,
            what,
            tail: shown(tail),
        };
        // `id` is there only as long as the child has not been waited for, so the id is its own.
        let pid = self
            .child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        if let Some(pid) = pid {
            kill_process(pid, Signal::TERM)
                .map_err(|error| refused(error.to_string(), &self.tail))?;
        }
        match timeout(self.patience, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(refused(status.to_string(), &self.tail)),
            Ok(Err(error)) => Err(refused(error.to_string(), &self.tail)),
            Err(_) => Err(refused(
                format!("still running after {:?}", self.patience),
                &self.tail,
            )),
        }
    }
}

/// Processor time that a process has used so far with all its threads, in user mode and in the kernel.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64, Error> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).map_err(Error::system(path.clone()))?;
    let ticks = cpu_ticks(&stat).ok_or(Error::Unreadable {
        path,
        field: "utime and stime",
    })?;
    Ok(ticks as f64 / TICKS)
}

/// Resident memory of a process in KiB.
pub(crate) fn resident_kib(pid: u32) -> Result<u64, Error> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).map_err(Error::system(path.clone()))?;
    resident(&status).ok_or(Error::Unreadable {
        path,
        field: "VmRSS",
    })
}

/// Waits until a server says where it serves. `None`: it says nothing more.
async fn wait_for(lines: &mut Lines<BufReader<ChildStderr>>, tail: &Tail) -> Option<SocketAddr> {
    loop {
        let address = next_line_with(lines, tail, address_in).await?;
        if address.is_some() {
            return address;
        }
    }
}

/// The address in a line that says where a server serves.
fn address_in(line: &str) -> Option<SocketAddr> {
    let (_, url) = line.split_once("http://")?;
    url.strip_suffix("/mcp")?.parse().ok()
}

async fn next_line(lines: &mut Lines<BufReader<ChildStderr>>, tail: &Tail) -> Option<()> {
    next_line_with(lines, tail, |_| ()).await
}

/// Reads a line, looks at it and keeps it in the tail.
async fn next_line_with<T>(
    lines: &mut Lines<BufReader<ChildStderr>>,
    tail: &Tail,
    look: impl FnOnce(&str) -> T,
) -> Option<T> {
    let line = lines.next_line().await.ok().flatten()?;
    let seen = look(&line);
    let mut kept = tail.lock();
    if kept.len() == TAIL {
        kept.pop_front();
    }
    kept.push_back(line);
    Some(seen)
}

fn shown(tail: &Tail) -> String {
    let lines = Vec::from(tail.lock().clone());
    match lines.is_empty() {
        true => "(none)".to_owned(),
        false => lines.join("\n"),
    }
}

/// utime + stime of a /proc/PID/stat line. The name in it may hold spaces and parentheses.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let kernel: u64 = fields.next()?.parse().ok()?;
    Some(user + kernel)
}

fn resident(status: &str) -> Option<u64> {
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?
        .trim()
        .strip_suffix(" kB")?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_a_difficult_name() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194304 100 0 0 0 17 5 0 0 20 0 1 0 9 1 1";
        assert_eq!(cpu_ticks(stat), Some(22));
        assert_eq!(cpu_ticks("42 (x) S 1"), None);
    }

    #[test]
    fn an_address_is_found_where_one_is_said() {
        let address = "127.0.0.1:8080".parse().ok();
        for line in [
            "floor: http://127.0.0.1:8080/mcp",
            "refrain: listening on http://127.0.0.1:8080/mcp",
        ] {
            assert_eq!(address_in(line), address);
        }
        assert_eq!(address_in("metrics at http://127.0.0.1:9464/metrics"), None);
        assert_eq!(address_in("no keys are configured"), None);
    }

    #[test]
    fn resident_memory_is_found() {
        assert_eq!(
            resident("VmSize:\t 9 kB\nVmRSS:\t    1234 kB\n"),
            Some(1234)
        );
        assert_eq!(resident("VmSize:\t 9 kB\n"), None);
    }

    #[test]
    fn a_missing_server_is_named() {
        let error = Program::refrain("/nowhere/refrain".into()).unwrap_err();
        assert!(error.to_string().contains("/nowhere/refrain"));
    }
}
