//! The servers under test: child processes that are killed on drop.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::NamedTempFile;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::error::{Error, failed};
use crate::machine::on_core;

/// Clock ticks per second in /proc.
const TICKS_PER_SECOND: f64 = 100.0;
/// The number of log lines in an error.
const LOG_TAIL: usize = 20;

#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    path: PathBuf,
    arguments: Vec<OsString>,
}

#[derive(Debug)]
pub(crate) struct ServerProcess {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) pid: u32,
    child: Child,
    log: NamedTempFile,
    time_limit: Duration,
}

impl Program {
    /// The floor: a command of this program.
    pub(crate) fn floor() -> Result<Self, Error> {
        Ok(Self {
            name: "floor",
            path: std::env::current_exe()?,
            arguments: vec!["floor".into()],
        })
    }

    /// Refrain's server, by default the one in the directory of this program.
    pub(crate) fn refrain(path: Option<PathBuf>) -> Result<Self, Error> {
        let path = match path {
            Some(path) => path,
            None => std::env::current_exe()?.with_file_name("refrain"),
        };
        if !path.is_file() {
            let path = path.display();
            return Err(format!(
                "no server at {path}: build it with `cargo build --profile dist`, or name another with --refrain"
            )
            .into());
        }
        Ok(Self {
            name: "Refrain",
            path,
            arguments: vec!["serve".into()],
        })
    }

    /// Refrain's gateway with this configuration.
    pub(crate) fn gateway(path: Option<PathBuf>, config: &Path) -> Result<Self, Error> {
        Ok(Self {
            name: "the gateway",
            arguments: vec!["gateway".into(), "--config".into(), config.into()],
            ..Self::refrain(path)?
        })
    }

    /// Starts the server on a free port and waits until it prints its URL. It is pinned to `core`, if there is one. `wrapper` is
    /// a program with its arguments that runs the server, such as valgrind, or empty; `time_limit` limits the start and the
    /// stop.
    pub(crate) async fn start(
        &self,
        core: Option<usize>,
        wrapper: &[OsString],
        time_limit: Duration,
    ) -> Result<ServerProcess, Error> {
        let mut line = wrapper.to_vec();
        line.push(self.path.clone().into());
        line.extend_from_slice(&self.arguments);
        let log = NamedTempFile::new().map_err(failed("create a log"))?;
        let mut command = Command::new(&line[0]);
        command
            .args(&line[1..])
            .args(["--listen", "127.0.0.1:0"])
            // The user's log filter would distort the measurement.
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.reopen()?)
            .kill_on_drop(true);
        let spawned = match core {
            Some(core) => on_core(core, || command.spawn())?,
            None => command.spawn(),
        };
        let mut child = spawned.map_err(failed(format!("start {}", self.name)))?;
        let begun = Instant::now();
        let problem = loop {
            if let (Some(address), Some(pid)) =
                (read_log(&log).lines().find_map(address_in), child.id())
            {
                return Ok(ServerProcess {
                    name: self.name,
                    address,
                    pid,
                    child,
                    log,
                    time_limit,
                });
            }
            if let Some(status) = child.try_wait()? {
                break format!("exited early ({status})");
            }
            if begun.elapsed() > time_limit {
                break format!("did not print its URL to stderr within {time_limit:?}");
            }
            sleep(Duration::from_millis(10)).await;
        };
        Err(failure(self.name, &problem, &log))
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
        let problem = match timeout(self.time_limit, ended).await {
            Ok(Ok(status)) if status.success() => return Ok(()),
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("still running after {:?}", self.time_limit),
        };
        let problem = format!("did not exit cleanly on SIGTERM: {problem}");
        Err(failure(self.name, &problem, &self.log))
    }
}

fn read_log(log: &NamedTempFile) -> String {
    std::fs::read_to_string(log.path()).unwrap_or_default()
}

fn failure(server: &'static str, problem: &str, log: &NamedTempFile) -> Error {
    let log = read_log(log);
    let lines: Vec<&str> = log.lines().collect();
    let tail = lines[lines.len().saturating_sub(LOG_TAIL)..].join("\n");
    format!("{server} {problem}; last lines of its log:\n{tail}").into()
}

/// The address in a line that contains the URL of a server.
fn address_in(line: &str) -> Option<SocketAddr> {
    let (_, url) = line.split_once("listening on http://")?;
    url.strip_suffix("/mcp")?.parse().ok()
}

/// The CPU time of a process with all its threads, in user and kernel mode.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64, Error> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let ticks = cpu_ticks(&stat).ok_or("no CPU time in /proc/PID/stat")?;
    Ok(ticks as f64 / TICKS_PER_SECOND)
}

/// Resident memory of a process in KiB.
pub(crate) fn resident_kib(pid: u32) -> Result<u64, Error> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    parse_resident_kib(&status).ok_or_else(|| "no VmRSS in /proc/PID/status".into())
}

/// utime + stime of a /proc/PID/stat line. The name in it may hold spaces and parentheses.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let kernel: u64 = fields.next()?.parse().ok()?;
    Some(user + kernel)
}

fn parse_resident_kib(status: &str) -> Option<u64> {
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
            "floor: listening on http://127.0.0.1:8080/mcp",
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
        assert_eq!(parse_resident_kib(status), Some(1234));
        assert_eq!(parse_resident_kib("VmSize:\t 9 kB\n"), None);
    }

    #[test]
    fn missing_server_is_named() {
        let error = Program::refrain(Some("/nowhere/refrain".into())).unwrap_err();
        assert!(error.to_string().contains("/nowhere/refrain"));
    }
}
