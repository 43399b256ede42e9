//! `refrain serve` and `refrain worker` as processes, and the other commands.

use super::terminal::Terminal;
use super::{PATIENCE, in_time};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

const LISTENING: &str = "listening on http://";
const WORKING: &str = "working on tasks";

/// What the program and its terminal output listen to; `CI` too makes for colours.
const LISTENED_TO: [&str; 8] = [
    "CI",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "NO_COLOR",
    "REFRAIN_KEYS",
    "REFRAIN_STORE",
    "REFRAIN_TOKEN",
    "RUST_LOG",
];

/// The program, with nothing of the tests' own environment that it listens to.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    for name in LISTENED_TO {
        command.env_remove(name);
    }
    command
}

/// How an instance is started. Unless it is told which, it has a store of its own.
pub(crate) struct Serve {
    command: Command,
    dir: TempDir,
}

impl Serve {
    /// An instance on a free port, with nothing of the tests' own environment.
    pub(crate) fn new() -> Self {
        Self::without_address().args(["--listen", "127.0.0.1:0"])
    }

    /// The same, without an address.
    pub(crate) fn without_address() -> Self {
        Self::command("serve")
    }

    /// A worker.
    pub(crate) fn worker() -> Self {
        Self::command("worker")
    }

    fn command(name: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut command = program();
        command
            .arg(name)
            .env("REFRAIN_STORE", sqlite(&dir.path().join("refrain.db")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        Self { command, dir }
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    fn file(self, flag: &str, file: &Path) -> Self {
        self.args([flag.as_ref(), file.as_os_str()])
    }

    pub(crate) fn keys(self, file: &Path) -> Self {
        self.file("--keys", file)
    }

    pub(crate) fn ledger(self, file: &Path) -> Self {
        self.file("--ledger", file)
    }

    pub(crate) fn config(self, file: &Path) -> Self {
        self.file("--config", file)
    }

    pub(crate) fn tokens(self, file: &Path) -> Self {
        self.file("--tokens", file)
    }

    /// Has the instance share a store.
    pub(crate) fn store(self, file: &Path) -> Self {
        self.args(["--store", &sqlite(file)])
    }

    /// Starts the instance in this directory, with no word of its store.
    pub(crate) fn in_directory(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir).env_remove("REFRAIN_STORE");
        self
    }

    /// Has the instance say its name in every reply.
    pub(crate) fn named(self, name: &str) -> Self {
        self.args(["--explain", name])
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Starts the instance and waits until it listens.
    pub(crate) async fn start(self) -> Instance {
        let (process, line) = self.start_until(LISTENING).await;
        let address = line
            .split_once(LISTENING)
            .and_then(|(_, rest)| rest.split_once("/mcp"))
            .and_then(|(address, _)| address.parse().ok())
            .unwrap_or_else(|| panic!("no address in {line:?}"));
        Instance { process, address }
    }

    /// Starts a worker and waits until it works.
    pub(crate) async fn start_worker(self) -> Process {
        self.start_until(WORKING).await.0
    }

    /// Starts the process, and waits for the line that says that it is up.
    async fn start_until(mut self, up: &str) -> (Process, String) {
        let mut child = self.command.spawn().expect("the binary can be started");
        let (log, reader) = Log::of(&mut child);
        let ended = async {
            let status = child.wait().await;
            panic!("the instance ended before it was up: {status:?}\n{log:?}");
        };
        let line = tokio::select! {
            line = log.wait_for(up, 1) => line,
            () = ended => unreachable!(),
        };
        let process = Process {
            child,
            log,
            reader,
            _dir: self.dir,
        };
        (process, line)
    }

    /// Starts an instance on standard input and output.
    pub(crate) fn with_input(self) -> (Child, Log) {
        let child = self.without_files().stdin(Stdio::piped()).spawn();
        let mut child = child.expect("the binary can be started");
        let (log, _) = Log::of(&mut child);
        (child, log)
    }

    /// Starts the instance with its standard error on a terminal.
    pub(crate) fn on(self, terminal: &mut Terminal) -> Child {
        let child = self.without_files().stderr(terminal.theirs()).spawn();
        child.expect("the binary can be started")
    }

    /// Runs an instance that is expected to fail at once, and gives what it said.
    pub(crate) async fn fails(mut self) -> String {
        let output = in_time("an instance that cannot start ends", self.command.output())
            .await
            .expect("the binary can be started");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        said
    }

    /// For a process that outlives this value: its store is in memory, and nobody has to remove it.
    fn without_files(mut self) -> Command {
        self.command.env("REFRAIN_STORE", "memory:");
        self.command
    }
}

/// The URL of a store in a file.
pub(crate) fn sqlite(file: &Path) -> String {
    format!("sqlite:{}", file.display())
}

/// A running instance. Dropping it kills it.
pub(crate) struct Instance {
    process: Process,
    pub(crate) address: SocketAddr,
}

impl Instance {
    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }
}

impl std::ops::Deref for Instance {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl std::ops::DerefMut for Instance {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// The process of an instance, or of a worker. Dropping it kills it.
pub(crate) struct Process {
    child: Child,
    pub(crate) log: Log,
    reader: JoinHandle<()>,
    // Removed with it.
    _dir: TempDir,
}

impl Process {
    /// Its process id, as the ledger and the store have it.
    pub(crate) fn id(&self) -> u32 {
        self.child.id().expect("the process still runs")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.id()).ok().and_then(Pid::from_raw);
        kill_process(id.expect("a process id"), signal).expect("the signal can be sent");
    }

    /// Waits for the process to end, and for the end of its log.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let ended = async {
            let status = self.child.wait().await;
            (&mut self.reader).await.expect("the log can be read");
            status.expect("a child can be waited for")
        };
        tokio::time::timeout(PATIENCE, ended)
            .await
            .unwrap_or_else(|_| panic!("the instance does not end\n{:?}", self.log))
    }

    /// Asks the instance to end, and waits until it has.
    pub(crate) async fn stop(&mut self) {
        self.signal(Signal::TERM);
        let status = self.ended().await;
        assert!(status.success(), "{status}\n{:?}", self.log);
    }

    /// Kills the instance, which it cannot see coming, and waits until it is gone.
    pub(crate) async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.ended().await;
    }

    /// Has the instance read its keys again, and waits until it has tried.
    pub(crate) async fn reload(&self, expected: &str) {
        let before = self.log.count(expected);
        self.signal(Signal::HUP);
        self.log.wait_for(expected, before + 1).await;
    }
}

/// What an instance wrote to standard error.
#[derive(Clone)]
pub(crate) struct Log(Arc<watch::Sender<()>>, Arc<Mutex<Vec<String>>>);

impl Default for Log {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(())), Arc::default())
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "--- log\n{}\n---", self.text())
    }
}

impl Log {
    /// The log of a process, and the task that reads it.
    fn of(child: &mut Child) -> (Self, JoinHandle<()>) {
        let stderr = child.stderr.take().expect("stderr is a pipe");
        let log = Self::default();
        let own = log.clone();
        let reader = tokio::spawn(async move {
            let mut lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                own.push(line);
            }
        });
        (log, reader)
    }

    fn push(&self, line: String) {
        self.1
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(line);
        self.0.send_replace(());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.1
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn text(&self) -> String {
        self.lines().join("\n")
    }

    /// How many lines have this text in them.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.lines().iter().filter(|l| l.contains(text)).count()
    }

    /// Waits for the line that is the `nth` with this text in it, counted from 1.
    pub(crate) async fn wait_for(&self, text: &str, nth: usize) -> String {
        let mut more = self.0.subscribe();
        let found = async {
            loop {
                more.borrow_and_update();
                let line = self.lines().into_iter().filter(|l| l.contains(text));
                if let Some(line) = line.skip(nth - 1).last() {
                    return line;
                }
                more.changed().await.expect("the log is alive");
            }
        };
        tokio::time::timeout(PATIENCE, found)
            .await
            .unwrap_or_else(|_| panic!("no {nth} lines with {text:?} in the log\n{self:?}"))
    }
}

/// What a command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) ok: bool,
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<std::process::Output> for Said {
    fn from(output: std::process::Output) -> Self {
        Self {
            ok: output.status.success(),
            code: output.status.code().expect("no signal ended it"),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs one of the commands that end by themselves.
pub(crate) fn refrain<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Said {
    let output = program()
        .into_std()
        .env("REFRAIN_STORE", "memory:")
        .args(args)
        .stdin(Stdio::null())
        .output();
    output.expect("the binary can be started").into()
}

/// The same, while servers of this process go on.
pub(crate) async fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Said {
    let mut command = program();
    command.args(args);
    said(command).await
}

/// Runs a command that ends by itself, without anything on its standard input unless it was given some.
pub(crate) async fn said(mut command: Command) -> Said {
    command
        .env("REFRAIN_STORE", "memory:")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = in_time("the command ends", command.output()).await;
    output.expect("the binary can be started").into()
}
