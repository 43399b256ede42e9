//! The servers under test: child processes that are pinned to a core and killed when their [`ServerProcess`] is dropped.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::error::BenchError;
use crate::machine::on_core;

/// Clock ticks per second in /proc: 100 on every current Linux.
const TICKS: f64 = 100.0;
/// The number of a server's last log lines that an error shows.
const TAIL: usize = 20;

/// A server that can be started.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    path: PathBuf,
    command: &'static str,
}

/// The last lines that a server wrote to stderr.
type Tail = Arc<Mutex<VecDeque<String>>>;

/// A running server.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) pid: u32,
    child: Child,
    tail: Tail,
    patience: Duration,
}

impl Program {
    /// The sealing floor: a command of this program.
    pub(crate) fn floor() -> Result<Self, BenchError> {
        Ok(Self {
            name: "floor",
            path: this_program()?,
            command: "floor",
        })
    }

    /// Refrain's server, by default the one beside this program.
    pub(crate) fn refrain(path: Option<PathBuf>) -> Result<Self, BenchError> {
        let path = match path {
            Some(path) => path,
            None => this_program()?.with_file_name("refrain"),
        };
        if !path.is_file() {
            return Err(BenchError::NoServer { path });
        }
        Ok(Self {
            name: "Refrain",
            path,
            command: "serve",
        })
    }

    /// Starts the server on a free port and waits until it prints its URL. `under` is a program with its arguments that
    /// runs the server, or empty; `patience` limits the start and the stop.
    pub(crate) async fn start(
        &self,
        core: usize,
        under: &[OsString],
        patience: Duration,
    ) -> Result<ServerProcess, BenchError> {
        let mut line = under.to_vec();
        line.extend([self.path.clone().into(), self.command.into()]);
        let mut command = Command::new(&line[0]);
        command
            .args(&line[1..])
            .args(["--listen", "127.0.0.1:0"])
            // The user's own log filter would be measured too.
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let spawned = on_core(core, || command.spawn())?;
        let what = format!("could not start {}", self.name);
        let mut child = spawned.map_err(BenchError::system(what))?;
        let tail = Tail::default();
        let (found, address) = oneshot::channel();
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(read_log(stderr, tail.clone(), found));
        }
        let what = match (timeout(patience, address).await, child.id()) {
            (Ok(Ok(address)), Some(pid)) => {
                return Ok(ServerProcess {
                    name: self.name,
                    address,
                    pid,
                    child,
                    tail,
                    patience,
                });
            }
            (Err(_), _) => format!("did not print its URL on stderr within {patience:?}"),
            _ => match timeout(patience, child.wait()).await {
                Ok(Ok(status)) => format!("ended early ({status})"),
                _ => "closed its stderr and did not end".to_owned(),
            },
        };
        Err(failed(self.name, what, &tail))
    }
}

impl ServerProcess {
    /// Ends the server with SIGTERM; an exit status other than 0 is an error.
    pub(crate) async fn stop(mut self) -> Result<(), BenchError> {
        // `id` exists only until the child has been waited for, so the id is not reused.
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        let ended = async {
            if let Some(pid) = id.and_then(Pid::from_raw) {
                kill_process(pid, Signal::TERM)?;
            }
            self.child.wait().await
        };
        let what = match timeout(self.patience, ended).await {
            Ok(Ok(status)) if status.success() => return Ok(()),
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("still running after {:?}", self.patience),
        };
        let what = format!("did not end cleanly on SIGTERM: {what}");
        Err(failed(self.name, what, &self.tail))
    }
}

pub(crate) fn this_program() -> Result<PathBuf, BenchError> {
    std::env::current_exe().map_err(BenchError::system("this program has no path"))
}

fn failed(server: &'static str, what: String, tail: &Tail) -> BenchError {
    let lines = Vec::from(tail.lock().clone());
    let tail = match lines.is_empty() {
        true => "(none)".to_owned(),
        false => lines.join("\n"),
    };
    BenchError::Server { server, what, tail }
}

/// Reads a log to its end, so that the server never waits for a full pipe, and reports the first address in it.
async fn read_log(stderr: ChildStderr, tail: Tail, found: oneshot::Sender<SocketAddr>) {
    let mut found = Some(found);
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(address) = address_in(&line)
            && let Some(found) = found.take()
        {
            let _ = found.send(address);
        }
        let mut tail = tail.lock();
        if tail.len() == TAIL {
            tail.pop_front();
        }
        tail.push_back(line);
    }
}

/// The address in a line that contains the URL of a server.
fn address_in(line: &str) -> Option<SocketAddr> {
    let (_, url) = line.split_once("http://")?;
    url.strip_suffix("/mcp")?.parse().ok()
}

/// Processor time that a process has used with all its threads, in user mode and in the kernel.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64, BenchError> {
    let ticks = read_field(format!("/proc/{pid}/stat"), "utime and stime", cpu_ticks)?;
    Ok(ticks as f64 / TICKS)
}

/// Resident memory of a process in KiB.
pub(crate) fn resident_kib(pid: u32) -> Result<u64, BenchError> {
    read_field(format!("/proc/{pid}/status"), "VmRSS", resident)
}

fn read_field(
    path: String,
    field: &'static str,
    parse: fn(&str) -> Option<u64>,
) -> Result<u64, BenchError> {
    let text = std::fs::read_to_string(&path).map_err(BenchError::system(path.clone()))?;
    parse(&text).ok_or(BenchError::Unreadable { path, field })
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
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix("VmRSS:"))?;
    value.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_follow_a_name_with_parentheses() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194304 100 0 0 0 17 5 0 0 20 0 1 0 9 1 1";
        assert_eq!(cpu_ticks(stat), Some(22));
        assert_eq!(cpu_ticks("42 (x) S 1"), None);
    }

    #[test]
    fn address_is_found_in_the_line_of_the_endpoint() {
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
    fn resident_memory_is_read() {
        let status = "VmSize:\t 9 kB\nVmRSS:\t    1234 kB\n";
        assert_eq!(resident(status), Some(1234));
        assert_eq!(resident("VmSize:\t 9 kB\n"), None);
    }

    #[test]
    fn missing_server_is_named() {
        let error = Program::refrain(Some("/nowhere/refrain".into())).unwrap_err();
        assert!(error.to_string().contains("/nowhere/refrain"));
    }
}
