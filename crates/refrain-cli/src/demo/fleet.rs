//! The instances of the demo: processes of this binary, each with its own port.
//!
//! They share three files: the keys, the callers' bearer tokens, and the ledger to which tools append their effects.
//! Dropping an instance kills its process.

use crate::AppError;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

const START_TIME: Duration = Duration::from_secs(60);
const END_TIME: Duration = Duration::from_secs(5);
/// The number of log lines that are kept of an instance, for failures.
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
    log: LogTail,
}

/// The last lines that an instance wrote to standard error.
#[derive(Clone, Default)]
struct LogTail(Arc<Mutex<VecDeque<String>>>);

/// The instances, and the files that they share.
pub(super) struct DemoFleet {
    pub(super) keys: PathBuf,
    pub(super) tokens: PathBuf,
    pub(super) ledger: PathBuf,
    /// A further flag of the instances.
    pub(super) extra: Option<&'static str>,
    pub(super) instances: Vec<DemoInstance>,
}

impl DemoFleet {
    /// Starts instances in parallel, and waits until all of them listen.
    pub(super) async fn start(
        &mut self,
        specs: impl IntoIterator<Item = InstanceSpec>,
    ) -> Result<(), AppError> {
        let spawn = |spec: InstanceSpec| Ok((self.spawn(&spec)?, spec));
        let spawned: Vec<_> = specs
            .into_iter()
            .map(spawn)
            .collect::<Result<_, AppError>>()?;
        for (child, spec) in spawned {
            self.instances
                .push(DemoInstance::wait_until_listening(spec, child).await?);
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

    fn spawn(&self, spec: &InstanceSpec) -> Result<Child, AppError> {
        let binary = std::env::current_exe()
            .map_err(|error| format!("cannot find the path of this program: {error}"))?;
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
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", binary.display()).into())
    }
}

impl DemoInstance {
    async fn wait_until_listening(spec: InstanceSpec, mut child: Child) -> Result<Self, AppError> {
        let (Some(process), Some(stderr)) = (child.id(), child.stderr.take()) else {
            return Err("an instance ended at once".into());
        };
        let mut lines = BufReader::new(stderr).lines();
        let log = LogTail::default();
        let listening = async {
            while let Ok(Some(line)) = lines.next_line().await {
                let address = line
                    .strip_prefix(LISTENING)
                    .and_then(|rest| rest.strip_suffix("/mcp")?.parse().ok());
                log.push(line);
                if address.is_some() {
                    return address;
                }
            }
            None
        };
        let problem = match tokio::time::timeout(START_TIME, listening).await {
            Ok(Some(address)) => {
                let kept = log.clone();
                // Ends when the process closes the pipe.
                tokio::spawn(async move {
                    while let Ok(Some(line)) = lines.next_line().await {
                        kept.push(line);
                    }
                });
                return Ok(Self {
                    spec,
                    address,
                    process,
                    child,
                    log,
                });
            }
            Ok(None) => "ended before it listened".to_owned(),
            Err(_) => format!("did not listen within {} seconds", START_TIME.as_secs()),
        };
        let log = log.lines().join("\n  ");
        Err(format!("instance {} {problem}; its log:\n  {log}", spec.name).into())
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    pub(super) fn log(&self) -> Vec<String> {
        self.log.lines()
    }

    async fn end(mut self) -> Result<InstanceSpec, AppError> {
        let (name, process) = (self.spec.name, self.process);
        tokio::time::timeout(END_TIME, self.child.kill())
            .await
            .map_err(|_| format!("instance {name} (process {process}) does not end"))?
            .map_err(|error| format!("cannot stop instance {name} (process {process}): {error}"))?;
        Ok(self.spec)
    }
}

impl LogTail {
    fn lines(&self) -> Vec<String> {
        self.0.lock().iter().cloned().collect()
    }

    fn push(&self, line: String) {
        let mut lines = self.0.lock();
        lines.push_back(line);
        if lines.len() > LOG_LINES {
            lines.pop_front();
        }
    }
}
