//! The instances of a demo: processes of this binary, each with its own port.
//!
//! They share three files: the keys, the callers' bearer tokens, and the ledger to which tools append their effects.
//! Dropping an instance kills its process.

use crate::Failure;
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
/// The log lines of an instance that are kept, to be shown when something goes wrong.
const LOG_LINES: usize = 12;
const LISTENING: &str = "refrain: listening on http://";

#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub(super) name: &'static str,
    /// The version of the `accounts` tool.
    pub(super) accounts: u8,
    pub(super) config: Option<PathBuf>,
    pub(super) store: String,
}

impl Recipe {
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            name,
            accounts: 1,
            config: None,
            store: "memory:".into(),
        }
    }
}

pub(super) struct Instance {
    pub(super) recipe: Recipe,
    pub(super) address: SocketAddr,
    pub(super) process: u32,
    child: Child,
    log: Log,
}

/// The last lines that an instance wrote to standard error.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<VecDeque<String>>>);

/// The instances, and the files that all of them are given.
pub(super) struct Fleet {
    pub(super) keys: PathBuf,
    pub(super) tokens: PathBuf,
    pub(super) ledger: PathBuf,
    pub(super) instances: Vec<Instance>,
}

impl Fleet {
    /// Starts instances, all at once, and waits until each of them listens.
    pub(super) async fn start(
        &mut self,
        recipes: impl IntoIterator<Item = Recipe>,
    ) -> Result<(), Failure> {
        let spawn = |recipe: Recipe| Ok((self.spawn(&recipe)?, recipe));
        let spawned: Vec<_> = recipes
            .into_iter()
            .map(spawn)
            .collect::<Result<_, Failure>>()?;
        for (child, recipe) in spawned {
            self.instances
                .push(Instance::listening(recipe, child).await?);
        }
        Ok(())
    }

    pub(super) fn get(&self, name: &str) -> Result<&Instance, Failure> {
        Ok(&self.instances[self.position(name)?])
    }

    /// The names and addresses of instances that must run.
    pub(super) fn members(
        &mut self,
        names: &[&'static str],
    ) -> Result<Vec<(&'static str, SocketAddr)>, Failure> {
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
    pub(super) async fn kill(&mut self, name: &str) -> Result<Recipe, Failure> {
        let at = self.position(name)?;
        self.instances.remove(at).end().await
    }

    pub(super) async fn end(&mut self) -> Result<(), Failure> {
        for instance in self.instances.drain(..) {
            instance.end().await?;
        }
        Ok(())
    }

    /// Removes the instances whose processes have ended.
    pub(super) fn forget_ended(&mut self) {
        self.instances.retain_mut(|instance| !instance.has_ended());
    }

    fn position(&self, name: &str) -> Result<usize, Failure> {
        let mut instances = self.instances.iter();
        let at = instances.position(|instance| instance.recipe.name == name);
        at.ok_or_else(|| format!("instance {name} does not run").into())
    }

    fn spawn(&self, recipe: &Recipe) -> Result<Child, Failure> {
        let binary = std::env::current_exe()
            .map_err(|error| format!("the path of this binary is not known: {error}"))?;
        let mut command = Command::new(&binary);
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--drafts"])
            .args(["--explain", recipe.name])
            .args(["--accounts", &recipe.accounts.to_string()])
            .args(["--store", &recipe.store])
            .args(["--keys".as_ref(), self.keys.as_os_str()])
            .args(["--tokens".as_ref(), self.tokens.as_os_str()])
            .args(["--ledger".as_ref(), self.ledger.as_os_str()]);
        if let Some(file) = &recipe.config {
            command.args(["--config".as_ref(), file.as_os_str()]);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("{} cannot be started: {error}", binary.display()).into())
    }
}

impl Instance {
    async fn listening(recipe: Recipe, mut child: Child) -> Result<Self, Failure> {
        let (Some(process), Some(stderr)) = (child.id(), child.stderr.take()) else {
            return Err("an instance ended as soon as it began".into());
        };
        let mut lines = BufReader::new(stderr).lines();
        let log = Log::default();
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
                // Ends with the process, which closes the pipe.
                tokio::spawn(async move {
                    while let Ok(Some(line)) = lines.next_line().await {
                        kept.push(line);
                    }
                });
                return Ok(Self {
                    recipe,
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
        Err(format!("instance {} {problem}; its log:\n  {log}", recipe.name).into())
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    pub(super) fn log(&self) -> Vec<String> {
        self.log.lines()
    }

    async fn end(mut self) -> Result<Recipe, Failure> {
        let (name, process) = (self.recipe.name, self.process);
        tokio::time::timeout(END_TIME, self.child.kill())
            .await
            .map_err(|_| format!("instance {name} (process {process}) does not end"))?
            .map_err(|error| {
                format!("instance {name} (process {process}) cannot be ended: {error}")
            })?;
        Ok(self.recipe)
    }
}

impl Log {
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
