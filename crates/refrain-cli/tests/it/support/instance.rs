//! `refrain serve`, `refrain gateway` and `refrain worker` as processes, and the other commands.

use super::terminal::Terminal;
use super::within;
use refrain_testkit::net::process::{Log, Output, Process};
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use tempfile::TempDir;
use tokio::process::{Child, Command};

const LISTENING: &str = "listening";
const WORKING: &str = "running tasks";

/// The environment variables that affect the program; `CI` enables colours.
const VARIABLES: [&str; 11] = [
    "CI",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "NO_COLOR",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_TRACES_EXPORTER",
    "REFRAIN_KEYS",
    "REFRAIN_STORE",
    "REFRAIN_TOKEN",
    "RUST_LOG",
];

/// The program, without the environment variables that affect it.
pub(crate) fn program() -> Command {
    without_settings(Command::new(env!("CARGO_BIN_EXE_refrain")))
}

/// Removes the environment variables that affect a program.
pub(crate) fn without_settings(mut command: Command) -> Command {
    for name in VARIABLES {
        command.env_remove(name);
    }
    command
}

/// The command of an instance. Its default store is a temporary file.
pub(crate) struct Serve {
    command: Command,
    dir: TempDir,
}

impl Serve {
    /// An instance on a free port.
    pub(crate) fn new() -> Self {
        Self::without_address().args(["--listen", "127.0.0.1:0"])
    }

    /// An instance without `--listen`.
    pub(crate) fn without_address() -> Self {
        Self::command("serve")
    }

    pub(crate) fn worker() -> Self {
        Self::command("worker")
    }

    /// A gateway without `--listen`.
    pub(crate) fn gateway() -> Self {
        Self::command("gateway")
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

    /// Sets a SQLite store.
    pub(crate) fn store(self, file: &Path) -> Self {
        self.args(["--store", &sqlite(file)])
    }

    /// Starts the instance in this directory, without a configured store.
    pub(crate) fn in_directory(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir).env_remove("REFRAIN_STORE");
        self
    }

    /// Makes the instance report its name in every response.
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
            .split_once("://")
            .and_then(|(_, rest)| rest.split_once("/mcp"))
            .and_then(|(address, _)| address.parse().ok())
            .unwrap_or_else(|| panic!("no address in {line:?}"));
        Instance { process, address }
    }

    /// Starts a worker and waits until it runs.
    pub(crate) async fn start_worker(self) -> Process {
        self.start_until(WORKING).await.0
    }

    /// Starts the process, and waits for this log line.
    async fn start_until(self, up: &str) -> (Process, String) {
        Process::start(self.command, up, Some(self.dir)).await
    }

    /// Starts an instance on standard input and output.
    pub(crate) fn with_input(self) -> (Child, Log) {
        let child = self.without_files().stdin(Stdio::piped()).spawn();
        let mut child = child.expect("the binary starts");
        let log = Log::default();
        log.read(child.stderr.take().expect("stderr is a pipe"));
        (child, log)
    }

    /// Starts the instance with its standard error on a terminal.
    pub(crate) fn on(self, terminal: &mut Terminal) -> Child {
        let child = self.without_files().stderr(terminal.take_device()).spawn();
        child.expect("the binary starts")
    }

    /// Runs an instance that must fail at once, and returns its standard error.
    pub(crate) async fn fails(mut self) -> String {
        let output = within(
            "the end of an instance that cannot start",
            self.command.output(),
        )
        .await
        .expect("the binary starts");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        stderr
    }

    /// For a process that outlives this value: its store is in memory.
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

/// Waits for the end of a process.
pub(crate) async fn ended(child: &mut Child) -> ExitStatus {
    let status = within("the end of a process", child.wait()).await;
    status.expect("the process can be waited for")
}

/// Runs a command that ends by itself.
pub(crate) fn refrain<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    let output = program()
        .into_std()
        .env("REFRAIN_STORE", "memory:")
        .args(args)
        .stdin(Stdio::null())
        .output();
    output.expect("the binary starts").into()
}

/// Runs `refrain config check`.
pub(crate) fn config_check(file: &Path, flags: &[&str]) -> Output {
    let command = ["config", "check"].iter().chain(flags).map(OsStr::new);
    refrain(command.chain([file.as_os_str()]))
}

/// Runs a command, while servers of this process keep running.
pub(crate) async fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    let mut command = program();
    command.args(args);
    run_command(command).await
}

/// Runs a command that ends by itself. Its standard input is empty unless the command sets it.
pub(crate) async fn run_command(mut command: Command) -> Output {
    command.env("REFRAIN_STORE", "memory:");
    Output::of(command).await
}
