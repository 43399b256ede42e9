//! The instances of the demo: processes of this binary, each with its own port.
//!
//! They share three files: the keys, the callers' bearer tokens, and the ledger to which tools append their effects.
//! Dropping an instance kills its process.

use crate::AppError;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval at which the log of an instance is read until it listens.
const LOG_POLL: Duration = Duration::from_millis(5);
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// How many log lines of each instance are printed after a failure.
const LOG_LINES: usize = 12;
const LISTENING: &str = "refrain: listening on http://";

#[derive(Clone, Debug)]
pub(super) struct InstanceSpec {
    pub(super) name: &'static str,
    /// The version of the `accounts` tool.
    pub(super) accounts: u8,
    pub(super) config: Option<PathBuf>,
    pub(super) store: String,
}

impl InstanceSpec {
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            name,
            accounts: 1,
            config: None,
            store: "memory:".into(),
        }
    }
}

pub(super) struct DemoInstance {
    pub(super) spec: InstanceSpec,
    pub(super) address: SocketAddr,
    pub(super) process: u32,
    child: Child,
    /// The file with its standard error.
    log: PathBuf,
}

/// The instances, and the files that they share.
pub(super) struct DemoFleet {
    pub(super) keys: PathBuf,
    pub(super) tokens: PathBuf,
    pub(super) ledger: PathBuf,
    /// A further flag of all instances.
    pub(super) extra: Option<&'static str>,
    pub(super) instances: Vec<DemoInstance>,
}

impl DemoFleet {
    /// Starts instances in parallel, and waits until all of them listen.
    pub(super) async fn start(
        &mut self,
        specs: impl IntoIterator<Item = InstanceSpec>,
    ) -> Result<(), AppError> {
        let mut spawned = Vec::new();
        for spec in specs {
            let log = self.keys.with_file_name(format!("{}.log", spec.name));
            spawned.push((self.spawn(&spec, &log)?, spec, log));
        }
        for (child, spec, log) in spawned {
            let instance = DemoInstance::wait_until_listening(spec, child, log);
            self.instances.push(instance.await?);
        }
        Ok(())
    }

    pub(super) fn get(&self, name: &str) -> Result<&DemoInstance, AppError> {
        Ok(&self.instances[self.position(name)?])
    }

    pub(super) fn members(
        &mut self,
        names: &[&'static str],
    ) -> Result<Vec<(&'static str, SocketAddr)>, AppError> {
        let member = |name: &&'static str| {
            let at = self.position(name)?;
            match self.instances[at].has_ended() {
                true => Err(format!("instance {name} has ended").into()),
                false => Ok((*name, self.instances[at].address)),
            }
        };
        names.iter().map(member).collect()
    }

    /// Kills an instance with SIGKILL, and waits until it has ended.
    pub(super) async fn kill(&mut self, name: &str) -> Result<InstanceSpec, AppError> {
        let at = self.position(name)?;
        self.instances.remove(at).end().await
    }

    pub(super) async fn end(&mut self) -> Result<(), AppError> {
        for instance in self.instances.drain(..) {
            instance.end().await?;
        }
        Ok(())
    }

    pub(super) fn remove_ended(&mut self) {
        self.instances.retain_mut(|instance| !instance.has_ended());
    }

    fn position(&self, name: &str) -> Result<usize, AppError> {
        let mut instances = self.instances.iter();
        let at = instances.position(|instance| instance.spec.name == name);
        at.ok_or_else(|| format!("instance {name} is not running").into())
    }

    fn spawn(&self, spec: &InstanceSpec, log: &Path) -> Result<Child, AppError> {
        let binary = std::env::current_exe()
            .map_err(|error| format!("cannot find the path of this program: {error}"))?;
        let log = File::create(log)
            .map_err(|error| format!("cannot create {}: {error}", log.display()))?;
        let mut command = Command::new(&binary);
        command
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(self.extra)
            .args(["--explain", spec.name])
            .args(["--accounts", &spec.accounts.to_string()])
            .args(["--store", &spec.store])
            .args(["--keys".as_ref(), self.keys.as_os_str()])
            .args(["--tokens".as_ref(), self.tokens.as_os_str()])
            .args(["--ledger".as_ref(), self.ledger.as_os_str()]);
        if let Some(file) = &spec.config {
            command.args(["--config".as_ref(), file.as_os_str()]);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", binary.display()).into())
    }
}

impl DemoInstance {
    async fn wait_until_listening(
        spec: InstanceSpec,
        mut child: Child,
        log: PathBuf,
    ) -> Result<Self, AppError> {
        let begun = Instant::now();
        let problem = loop {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let mut urls = text.lines().filter_map(|line| line.strip_prefix(LISTENING));
            let address = urls.find_map(|url| url.strip_suffix("/mcp")?.parse().ok());
            if let (Some(address), Some(process)) = (address, child.id()) {
                return Ok(Self {
                    spec,
                    address,
                    process,
                    child,
                    log,
                });
            }
            if child.try_wait()?.is_some() {
                break "ended before it listened".to_owned();
            }
            if begun.elapsed() > START_TIMEOUT {
                break format!("did not listen within {} seconds", START_TIMEOUT.as_secs());
            }
            tokio::time::sleep(LOG_POLL).await;
        };
        let log = tail(&log).join("\n  ");
        Err(format!("instance {} {problem}; its log:\n  {log}", spec.name).into())
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    pub(super) fn log(&self) -> Vec<String> {
        tail(&self.log)
    }

    async fn end(mut self) -> Result<InstanceSpec, AppError> {
        let (name, process) = (self.spec.name, self.process);
        tokio::time::timeout(KILL_TIMEOUT, self.child.kill())
            .await
            .map_err(|_| format!("instance {name} (process {process}) does not end"))?
            .map_err(|error| format!("cannot stop instance {name} (process {process}): {error}"))?;
        Ok(self.spec)
    }
}

/// The last lines of a log.
fn tail(log: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].to_vec()
}
