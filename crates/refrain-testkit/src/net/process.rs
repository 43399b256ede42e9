//! Programs under test as processes: start, log, signals, end.

use super::{PATIENCE, within};
use rustix::process::{Pid, Signal, kill_process};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Limit for the start of a program, which may have to load an interpreter and its libraries.
const START_TIME: Duration = Duration::from_secs(120);

/// A running program. Dropping it kills it.
pub struct Process {
    child: Child,
    pub log: Log,
    reader: JoinHandle<()>,
    /// Removed when the process is dropped.
    _dir: Option<TempDir>,
}

impl Process {
    /// Starts a program whose log is its standard error, and waits for the log line that contains `up`.
    pub async fn start(mut command: Command, up: &str, dir: Option<TempDir>) -> (Self, String) {
        command.stderr(Stdio::piped());
        Self::start_with(command, up, dir, |child| {
            let stderr = child.stderr.take().expect("stderr is a pipe");
            Log::of(stderr)
        })
        .await
    }

    /// Starts a program whose log is its standard output, and waits for the log line that contains `up`.
    pub async fn start_on_stdout(mut command: Command, up: &str) -> (Self, String) {
        command.stdout(Stdio::piped());
        Self::start_with(command, up, None, |child| {
            let stdout = child.stdout.take().expect("stdout is a pipe");
            Log::of(stdout)
        })
        .await
    }

    async fn start_with(
        mut command: Command,
        up: &str,
        dir: Option<TempDir>,
        log: impl FnOnce(&mut Child) -> (Log, JoinHandle<()>),
    ) -> (Self, String) {
        command.stdin(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().expect("the program can be started");
        let (log, reader) = log(&mut child);
        let line = tokio::select! {
            line = log.wait_for_within(START_TIME, up, 1) => line,
            status = child.wait() => panic!("the program ended before it was up: {status:?}\n{log:?}"),
        };
        let process = Self {
            child,
            log,
            reader,
            _dir: dir,
        };
        (process, line)
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id().expect("the process still runs")
    }

    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.id()).ok().and_then(Pid::from_raw);
        kill_process(id.expect("a process id"), signal).expect("the signal can be sent");
    }

    /// Waits for the process to end, and for the end of its log.
    pub async fn ended(&mut self) -> ExitStatus {
        let ended = async {
            let status = self.child.wait().await;
            (&mut self.reader).await.expect("the log can be read");
            status.expect("a child can be waited for")
        };
        tokio::time::timeout(PATIENCE, ended)
            .await
            .unwrap_or_else(|_| panic!("the program does not end\n{:?}", self.log))
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

/// The log of a program.
#[derive(Clone)]
pub struct Log(Arc<watch::Sender<()>>, Arc<Mutex<Vec<String>>>);

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
    /// The log that is read from a pipe, and the task that reads it.
    pub fn of(pipe: impl AsyncRead + Unpin + Send + 'static) -> (Self, JoinHandle<()>) {
        let log = Self::default();
        let own = log.clone();
        let reader = tokio::spawn(async move {
            let mut lines = BufReader::new(pipe).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                own.push(line);
            }
        });
        (log, reader)
    }

    fn push(&self, line: String) {
        self.1.lock().expect("no panic").push(line);
        self.0.send_replace(());
    }

    pub fn lines(&self) -> Vec<String> {
        self.1.lock().expect("no panic").clone()
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
        tokio::time::timeout(limit, found)
            .await
            .unwrap_or_else(|_| panic!("no {nth} lines with {text:?} in the log\n{self:?}"))
    }
}

/// The output of a program that has ended.
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
    /// Runs a program to its end.
    pub async fn of(mut command: Command) -> Self {
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = within("the program to end", command.output()).await;
        output.expect("the program can be started").into()
    }
}
