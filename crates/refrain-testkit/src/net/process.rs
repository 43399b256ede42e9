//! Programs under test as processes: start, log, signals, end.

use super::wait::{PATIENCE, success};
use rustix::process::{Pid, Signal, kill_process};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Limit for the start of a program, which may have to load an interpreter and its libraries.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// A running program. Dropping it kills it.
pub struct Process {
    child: Child,
    /// Its standard output and standard error.
    pub log: Log,
    readers: [JoinHandle<()>; 2],
    /// Removed when the process is dropped.
    _dir: Option<TempDir>,
}

impl Process {
    /// Starts a program, and waits for the log line that contains `ready`.
    pub async fn start(mut command: Command, ready: &str, dir: Option<TempDir>) -> (Self, String) {
        command.stdin(Stdio::null()).kill_on_drop(true);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program can be started");
        let log = Log::default();
        let readers = [
            log.read(child.stdout.take().expect("a pipe")),
            log.read(child.stderr.take().expect("a pipe")),
        ];
        let line = tokio::select! {
            line = log.wait_for_within(START_TIMEOUT, ready, 1) => line,
            status = child.wait() => panic!("the program ended before it was up: {status:?}\n{log:?}"),
        };
        let process = Self {
            child,
            log,
            readers,
            _dir: dir,
        };
        (process, line)
    }

    pub fn id(&self) -> u32 {
        self.child.id().expect("the process still runs")
    }

    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.id()).ok().and_then(Pid::from_raw);
        kill_process(id.expect("a process id"), signal).expect("the signal can be sent");
    }

    /// Waits for the process to end, and for the end of its log.
    pub async fn ended(&mut self) -> ExitStatus {
        let Ok(status) = timeout(PATIENCE, self.child.wait()).await else {
            panic!("the program does not end\n{:?}", self.log)
        };
        for reader in &mut self.readers {
            success("the end of the log", reader).await;
        }
        status.expect("a child can be waited for")
    }

    /// Sends SIGTERM and waits for a successful end.
    pub async fn stop(&mut self) {
        self.signal(Signal::TERM);
        let status = self.ended().await;
        assert!(status.success(), "{status}\n{:?}", self.log);
    }

    /// Sends SIGKILL and waits for the end.
    pub async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.ended().await;
    }

    /// Sends SIGHUP and waits for a log line that contains `expected`.
    pub async fn reload(&self, expected: &str) {
        let before = self.log.count(expected);
        self.signal(Signal::HUP);
        self.log.wait_for(expected, before + 1).await;
    }
}

/// The log of a program. Clones are the same log.
#[derive(Clone, Default)]
pub struct Log(Arc<watch::Sender<Vec<String>>>);

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "--- log\n{}\n---", self.text())
    }
}

impl Log {
    /// Reads lines from a pipe until it ends.
    pub fn read(&self, pipe: impl AsyncRead + Unpin + Send + 'static) -> JoinHandle<()> {
        let log = self.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(pipe).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                log.0.send_modify(|lines| lines.push(line));
            }
        })
    }

    pub fn lines(&self) -> Vec<String> {
        self.0.borrow().clone()
    }

    pub fn text(&self) -> String {
        self.lines().join("\n")
    }

    /// The number of lines that contain a text.
    pub fn count(&self, text: &str) -> usize {
        self.lines().iter().filter(|l| l.contains(text)).count()
    }

    /// Waits for the `nth` line that contains a text, counted from 1.
    pub async fn wait_for(&self, text: &str, nth: usize) -> String {
        self.wait_for_within(PATIENCE, text, nth).await
    }

    async fn wait_for_within(&self, limit: Duration, text: &str, nth: usize) -> String {
        let matching = |lines: &Vec<String>| lines.iter().filter(|l| l.contains(text)).count();
        let mut lines = self.0.subscribe();
        let found = timeout(limit, lines.wait_for(|lines| matching(lines) >= nth)).await;
        let Ok(Ok(lines)) = found else {
            panic!("no {nth} lines with {text:?} in the log\n{self:?}")
        };
        let last = lines.iter().rfind(|line| line.contains(text));
        last.expect("a line").clone()
    }
}

#[derive(Debug)]
pub struct Output {
    pub ok: bool,
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl From<std::process::Output> for Output {
    fn from(output: std::process::Output) -> Self {
        Self {
            ok: output.status.success(),
            code: output.status.code().expect("no signal ended it"),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Output {
    pub async fn of(mut command: Command) -> Self {
        command.stdin(Stdio::null()).kill_on_drop(true);
        success("the program to end", command.output()).await.into()
    }
}
