//! The servers under test: child processes that are pinned to a core and killed on drop.

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

use crate::error::Error;
use crate::machine::on_core;

/// Clock ticks per second in /proc.
const TICKS: f64 = 100.0;
/// The number of log lines in an error.
const TAIL: usize = 20;

/// A server program.
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
    timeout_limit: Duration,
}

impl Program {
    /// The sealing floor: a command of this program.
    pub(crate) fn floor() -> Result<Self, Error> {
        Ok(Self {
            name: "floor",
            path: this_program()?,
            command: "floor",
        })
    }

    /// Refrain's server, by default the one in the directory of this program.
    pub(crate) fn refrain(path: Option<PathBuf>) -> Result<Self, Error> {
        let path = match path {
            Some(path) => path,
            None => this_program()?.with_file_name("refrain"),
        };
        if !path.is_file() {
            return Err(Error::NoServer { path });
        }
        Ok(Self {
            name: "Refrain",
            path,
            command: "serve",
        })
    }

    /// Starts the server on a free port and waits until it prints its URL. `under` is a program with its arguments that
    /// runs the server, or empty; `timeout_limit` limits the start and the stop.
    pub(crate) async fn start(
        &self,
        core: usize,
        under: &[OsString],
        timeout_limit: Duration,
    ) -> Result<ServerProcess, Error> {
        let mut line = under.to_vec();
        line.extend([self.path.clone().into(), self.command.into()]);
        let mut command = Command::new(&line[0]);
        command
            .args(&line[1..])
            .args(["--listen", "127.0.0.1:0"])
            // The user's log filter would distort the measurement.
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let spawned = on_core(core, || command.spawn())?;
        let what = format!("could not start {}", self.name);
        let mut child = spawned.map_err(Error::system(what))?;
        let tail = Tail::default();
        let (found, address) = oneshot::channel();
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(read_log(stderr, tail.clone(), found));
        }
        let what = match (timeout(timeout_limit, address).await, child.id()) {
            (Ok(Ok(address)), Some(pid)) => {
                return Ok(ServerProcess {
                    name: self.name,
                    address,
                    pid,
                    child,
                    tail,
                    timeout_limit,
                });
            }
            (Err(_), _) => format!("did not print its URL to stderr within {timeout_limit:?}"),
            _ => match timeout(timeout_limit, child.wait()).await {
                Ok(Ok(status)) => format!("exited early ({status})"),
                _ => "closed its stderr but did not exit".to_owned(),
            },
        };
        Err(failure(self.name, what, &tail))
    }
}

impl ServerProcess {
    /// Stops the server with SIGTERM. An unclean exit is an error.
    pub(crate) async fn stop(mut self) -> Result<(), Error> {
        // `id` returns `None` after the child was reaped, so the id cannot belong to another process.
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        let ended = async {
            if let Some(pid) = id.and_then(Pid::from_raw) {
                kill_process(pid, Signal::TERM)?;
            }
            self.child.wait().await
        };
        let what = match timeout(self.timeout_limit, ended).await {
            Ok(Ok(status)) if status.success() => return Ok(()),
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("still running after {:?}", self.timeout_limit),
        };
        let what = format!("did not exit cleanly on SIGTERM: {what}");
        Err(failure(self.name, what, &self.tail))
    }
}

pub(crate) fn this_program() -> Result<PathBuf, Error> {
    std::env::current_exe().map_err(Error::system(
        "could not determine the path of this program",
    ))
}

fn failure(server: &'static str, what: String, tail: &Tail) -> Error {
    let lines = Vec::from(tail.lock().clone());
    let tail = match lines.is_empty() {
        true => "(none)".to_owned(),
        false => lines.join("\n"),
    };
    Error::Server { server, what, tail }
}

/// Drains a log, so that the pipe never fills up, and reports the first address in it.
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

/// The CPU time of a process with all its threads, in user and kernel mode.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64, Error> {
    let ticks = read_field(format!("/proc/{pid}/stat"), "utime and stime", cpu_ticks)?;
    Ok(ticks as f64 / TICKS)
}

/// Resident memory of a process in KiB.
pub(crate) fn resident_kib(pid: u32) -> Result<u64, Error> {
    read_field(format!("/proc/{pid}/status"), "VmRSS", resident)
}

fn read_field(
    path: String,
    field: &'static str,
    parse: fn(&str) -> Option<u64>,
) -> Result<u64, Error> {
    let text = std::fs::read_to_string(&path).map_err(Error::system(path.clone()))?;
    parse(&text).ok_or(Error::Unreadable { path, field })
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
