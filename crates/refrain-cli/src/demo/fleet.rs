//! The instances: processes of this same binary, each on a port of its own.
//!
//! What they are given in common are three files: the key, the callers' bearer tokens, and the ledger to which the
//! tools append their effects and which none of them reads. Only those of one story share a store as well. Every process
//! is ended by its handle, on every path.

use crate::Failure;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::oneshot;

const START_TIME: Duration = Duration::from_secs(60);
const END_TIME: Duration = Duration::from_secs(5);
/// Lines of an instance's log that are kept, to be shown when something goes wrong.
const LOG_LINES: usize = 12;
const LISTENING: &str = "refrain: listening on http://";

/// What is particular about one instance.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub(super) name: &'static str,
    /// The version of the `accounts` tool.
    pub(super) accounts: u8,
    /// A configuration file.
    pub(super) config: Option<PathBuf>,
    /// The URL of its store.
    store: String,
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

    pub(super) fn with_config(mut self, file: PathBuf) -> Self {
        self.config = Some(file);
        self
    }

    pub(super) fn with_store(mut self, file: &Path) -> Self {
        self.store = format!("sqlite:{}", file.display());
        self
    }

    pub(super) fn with_accounts(mut self, version: u8) -> Self {
        self.accounts = version;
        self
    }
}

/// One running instance.
pub(super) struct Instance {
    pub(super) recipe: Recipe,
    pub(super) address: SocketAddr,
    /// The process id it was started with.
    pub(super) process: u32,
    child: Child,
    log: Log,
}

/// The last lines that an instance wrote to standard error.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<VecDeque<String>>>);

/// The instances of a demo, and the files that all of them are given.
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
        let begun: Vec<Begun> = recipes
            .into_iter()
            .map(|recipe| self.spawn(recipe))
            .collect::<Result<_, _>>()?;
        for begun in begun {
            self.instances.push(begun.listening().await?);
        }
        Ok(())
    }

    pub(super) fn get(&self, name: &str) -> Result<&Instance, Failure> {
        self.instances
            .iter()
            .find(|instance| instance.recipe.name == name)
            .ok_or_else(|| format!("there is no instance {name}").into())
    }

    /// Where an instance listens, if it still runs.
    pub(super) fn address(&mut self, name: &str) -> Result<SocketAddr, Failure> {
        self.instances
            .iter_mut()
            .find(|instance| instance.recipe.name == name)
            .and_then(|instance| (!instance.is_gone()).then_some(instance.address))
            .ok_or_else(|| format!("instance {name} does not run any more").into())
    }

    /// Kills an instance with SIGKILL, which it cannot see coming, and waits until it is gone.
    pub(super) async fn kill(&mut self, name: &str) -> Result<Recipe, Failure> {
        let at = self
            .instances
            .iter()
            .position(|instance| instance.recipe.name == name)
            .ok_or_else(|| format!("there is no instance {name}"))?;
        let mut instance = self.instances.remove(at);
        instance.end().await?;
        Ok(instance.recipe)
    }

    /// Ends all instances.
    pub(super) async fn end(&mut self) -> Result<(), Failure> {
        for mut instance in self.instances.drain(..) {
            instance.end().await?;
        }
        Ok(())
    }

    /// Starts `refrain serve`. What is dropped from here on takes its process with it.
    fn spawn(&self, recipe: Recipe) -> Result<Begun, Failure> {
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
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("{} cannot be started: {error}", binary.display()))?;
        let process = child.id().ok_or("an instance ended as soon as it began")?;
        let stderr = child
            .stderr
            .take()
            .ok_or("the log of an instance cannot be read")?;
        let log = Log::default();
        let (tell, told) = oneshot::channel();
        // Ends with the process, which closes the pipe.
        tokio::spawn(drain(stderr, log.clone(), tell));
        Ok(Begun {
            recipe,
            process,
            child,
            log,
            told,
        })
    }
}

/// A process that was started and may not listen yet.
struct Begun {
    recipe: Recipe,
    process: u32,
    child: Child,
    log: Log,
    told: oneshot::Receiver<SocketAddr>,
}

impl Begun {
    async fn listening(self) -> Result<Instance, Failure> {
        let name = self.recipe.name;
        let problem = match tokio::time::timeout(START_TIME, self.told).await {
            Ok(Ok(address)) => {
                return Ok(Instance {
                    recipe: self.recipe,
                    address,
                    process: self.process,
                    child: self.child,
                    log: self.log,
                });
            }
            Ok(Err(_)) => "ended before it listened".to_owned(),
            Err(_) => format!("did not listen within {} seconds", START_TIME.as_secs()),
        };
        let said = self.log.lines().join("\n  ");
        Err(format!("instance {name} {problem}; it said:\n  {said}").into())
    }
}

impl Instance {
    /// Has the process ended by itself?
    pub(super) fn is_gone(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    pub(super) fn log(&self) -> Vec<String> {
        self.log.lines()
    }

    async fn end(&mut self) -> Result<(), Failure> {
        let (name, process) = (self.recipe.name, self.process);
        tokio::time::timeout(END_TIME, self.child.kill())
            .await
            .map_err(|_| format!("instance {name} (process {process}) does not end"))?
            .map_err(|error| {
                format!("instance {name} (process {process}) cannot be ended: {error}").into()
            })
    }
}

impl Log {
    fn lines(&self) -> Vec<String> {
        let lines = self.0.lock();
        lines.iter().cloned().collect()
    }

    fn push(&self, line: String) {
        let mut lines = self.0.lock();
        if lines.len() == LOG_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

/// Keeps the last lines of a log, and tells the address once the instance says that it listens.
async fn drain(stderr: ChildStderr, log: Log, tell: oneshot::Sender<SocketAddr>) {
    let mut tell = Some(tell);
    let mut reader = BufReader::new(stderr);
    let mut bytes = Vec::new();
    while let Ok(1..) = reader.read_until(b'\n', &mut bytes).await {
        let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        bytes.clear();
        let address = line
            .strip_prefix(LISTENING)
            .and_then(|rest| rest.strip_suffix("/mcp"))
            .and_then(|address| address.parse().ok());
        log.push(line);
        if let Some(address) = address
            && let Some(tell) = tell.take()
        {
            // Nobody waits any more where the start took too long.
            let _ = tell.send(address);
        }
    }
}
