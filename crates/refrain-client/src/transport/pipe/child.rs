//! The lifecycle of the server process.
//!
//! | state | behaviour |
//! | --- | --- |
//! | running | output is read, and queued messages are written |
//! | output closed | the process can no longer respond; unless it exits within a moment, all requests fail and it is terminated |
//! | shutting down | input is closed; after a grace period the process is terminated, then killed |
//! | exited | the rest of the output is read, and all requests fail; the rest of its process group is terminated, then killed |

use super::lines::{OutputLine, OutputLines};
use super::{PipeState, QueuedLine};
use crate::pace::Pace;
use crate::retry::within;
use futures_util::FutureExt;
use futures_util::future::{Fuse, FusedFuture};
use refrain_wire::limited_event;
#[cfg(unix)]
use rustix::io::Errno;
#[cfg(unix)]
use rustix::process::{
    Pid, Signal, getpgid, kill_process, kill_process_group, test_kill_process_group,
};
use std::io;
use std::pin::{Pin, pin};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

/// The time that the process gets for each step of a shutdown: to read queued messages, to exit, to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
/// How long to wait for the exit of a process that closed its input. Usually it is about to exit.
const EXIT_WAIT: Duration = Duration::from_secs(2);
/// How long to wait for the exit of a process that closed its output, so that it cannot respond.
const OUTPUT_EXIT_WAIT: Duration = Duration::from_millis(500);
/// How long to read the output of an exited process. Its children may keep the pipes open.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// How often to check whether a process group is empty.
const GROUP_CHECK_INTERVAL: Duration = Duration::from_millis(20);
const STDERR_MAX: usize = 4096;
const UNKNOWN_STATUS: &str = "unknown exit status";

/// The server process, and the process group if it leads one. Killed on drop.
pub(super) struct ServerProcess {
    child: Child,
    /// The id of the process and its group, until both have ended. The id of an empty group may be used again.
    #[cfg(unix)]
    id: Option<Pid>,
}

impl ServerProcess {
    pub(super) fn spawn(command: &mut Command) -> io::Result<Self> {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self {
            #[cfg(unix)]
            id: child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)),
            child,
        })
    }

    /// Waits until the process has exited. Its group may have other members.
    async fn exited(&mut self) -> Option<ExitStatus> {
        let status = self.child.wait().await.ok();
        self.has_group();
        status
    }

    fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok()?
    }

    /// Waits until no process is left in the group.
    async fn ended(&mut self) {
        self.exited().await;
        while self.has_group() {
            sleep(GROUP_CHECK_INTERVAL).await;
        }
    }

    /// Terminates the processes that are left, and then kills them.
    async fn force_end(&mut self) {
        for force in [Self::terminate, Self::kill] {
            if let Err(error) = force(self) {
                limited_event!(WARN, %error, "failed to end server process");
            }
            if within(GRACE, self.ended()).await.is_some() {
                return;
            }
        }
        #[cfg(unix)]
        {
            // Nothing can end these processes. They may have exited without a parent that waits for them.
            self.id = None;
        }
    }
}

#[cfg(unix)]
impl ServerProcess {
    /// Whether the exited process has left a group with members.
    fn has_group(&mut self) -> bool {
        let is_group = |id: &Pid| test_kill_process_group(*id).is_ok();
        if self.child.id().is_none() {
            self.id = self.id.filter(is_group);
        }
        self.id.is_some()
    }

    fn terminate(&mut self) -> io::Result<()> {
        self.signal(Signal::TERM)
    }

    fn kill(&mut self) -> io::Result<()> {
        self.signal(Signal::KILL)
    }

    /// Signals the group, or the process if it leads none.
    fn signal(&self, signal: Signal) -> io::Result<()> {
        let Some(id) = self.id else {
            return Ok(());
        };
        let has_exited = self.child.id().is_none();
        let sent = match has_exited || getpgid(Some(id)) == Ok(id) {
            true => kill_process_group(id, signal),
            false => kill_process(id, signal),
        };
        match sent {
            // The group has ended since it was checked.
            Err(Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }
}

#[cfg(not(unix))]
impl ServerProcess {
    fn has_group(&mut self) -> bool {
        false
    }

    fn terminate(&mut self) -> io::Result<()> {
        self.kill()
    }

    fn kill(&mut self) -> io::Result<()> {
        self.child.start_kill()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Err(error) = self.kill() {
            tracing::debug!(%error, "failed to end server process");
        }
    }
}

struct UnwrittenLines {
    first: QueuedLine,
    queue: mpsc::Receiver<QueuedLine>,
}

enum RunEnd {
    Exited(Option<ExitStatus>),
    OutputClosed,
    Shutdown,
}

/// Reads and writes until the process has exited or was shut down.
pub(super) async fn run(
    mut process: ServerProcess,
    queue: mpsc::Receiver<QueuedLine>,
    mut shutdown: oneshot::Receiver<()>,
    shared: Arc<PipeState>,
) {
    // Requests in flight must fail even if a callback panics or the runtime ends.
    let _guard = ExitGuard(&shared);
    let child = &mut process.child;
    let streams = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(stdin), Some(stdout), Some(stderr)) = streams else {
        return;
    };
    shared.input.open(&stdin);
    let errors = tokio::spawn(read_errors(stderr, Arc::clone(&shared)));
    let mut writing = tokio::spawn(write(stdin, queue, Arc::clone(&shared)));
    let (draining, drain) = oneshot::channel();
    let mut reading = pin!(read(stdout, &shared, drain).fuse());
    let mut can_write = true;
    let mut unwritten = None;
    let end = loop {
        tokio::select! {
            status = process.exited() => break RunEnd::Exited(status),
            () = &mut reading => break RunEnd::OutputClosed,
            _ = &mut shutdown => break RunEnd::Shutdown,
            written = &mut writing, if can_write => {
                // The server closed its input, or the queue is closed. Keep reading the output.
                can_write = false;
                unwritten = written.ok().flatten();
            }
            () = sleep(EXIT_WAIT), if unwritten.is_some() => {
                shared.fail_unwritten(unwritten.take().into_iter().flat_map(UnwrittenLines::lines));
            }
        }
    };
    shared.input.close();
    if can_write && matches!(end, RunEnd::Shutdown) {
        // The server may have to write before it can read.
        let flush = async {
            tokio::select! {
                _ = &mut writing => {}
                () = forever(reading.as_mut()) => {}
            }
        };
        within(GRACE, flush).await;
    }
    writing.abort();
    let status = match end {
        RunEnd::Exited(status) => status,
        RunEnd::OutputClosed => end_without_output(&mut process, &shared).await,
        RunEnd::Shutdown => shut_down(&mut process, reading.as_mut()).await,
    };
    // Limits the time to read the rest of the output, but not to parse it.
    drop(draining);
    let read_rest = async {
        if !reading.is_terminated() {
            reading.await;
        }
    };
    let rest = async { tokio::join!(read_rest, within(DRAIN_TIMEOUT, errors)) };
    tokio::select! {
        _ = rest => {}
        // Notices that the group has become empty.
        () = forever(process.ended()) => {}
    }
    let status = status.map(|status| status.to_string());
    shared.set_exited(status.unwrap_or_else(|| UNKNOWN_STATUS.to_owned()));
    if process.has_group() {
        process.force_end().await;
    }
}

impl UnwrittenLines {
    fn lines(mut self) -> impl Iterator<Item = QueuedLine> {
        self.queue.close();
        let rest = std::iter::from_fn(move || self.queue.try_recv().ok());
        std::iter::once(self.first).chain(rest)
    }
}

/// Runs a future, and never completes.
async fn forever(future: impl Future<Output = ()>) {
    future.await;
    std::future::pending::<()>().await;
}

/// Ends a process that can no longer respond. Its requests fail before it has ended.
async fn end_without_output(process: &mut ServerProcess, shared: &PipeState) -> Option<ExitStatus> {
    if let Some(status) = within(OUTPUT_EXIT_WAIT, process.exited()).await {
        return status;
    }
    shared.set_exited("it closed its standard output".to_owned());
    process.force_end().await;
    process.exit_status()
}

/// Waits for the process and its group to end; if they do not, terminates them, and then kills them.
async fn shut_down(
    process: &mut ServerProcess,
    reading: Pin<&mut Fuse<impl Future<Output = ()>>>,
) -> Option<ExitStatus> {
    let ended = async {
        if within(GRACE, process.ended()).await.is_none() {
            process.force_end().await;
        }
    };
    tokio::select! {
        () = ended => {}
        // The server may have to write before it can exit.
        () = forever(reading) => {}
    }
    process.exit_status()
}

/// Writes lines until the queue is closed. Returns the rest if the server closes its input earlier.
async fn write(
    mut stdin: ChildStdin,
    mut queue: mpsc::Receiver<QueuedLine>,
    shared: Arc<PipeState>,
) -> Option<UnwrittenLines> {
    while let Some(first) = queue.recv().await {
        let text = first.text.as_bytes();
        if stdin.write_all(text).await.is_err() || stdin.flush().await.is_err() {
            return Some(UnwrittenLines { first, queue });
        }
        shared.input.add_written(text.len());
    }
    None
}

/// The time that remains to read the output of an exited process.
struct DrainTimeout {
    /// Closed when the process has exited.
    exit: oneshot::Receiver<()>,
    deadline: Option<Instant>,
}

impl DrainTimeout {
    /// Waits until [`DRAIN_TIMEOUT`] after the exit.
    async fn wait(&mut self) {
        let deadline = match self.deadline {
            Some(deadline) => deadline,
            None => {
                let _ = (&mut self.exit).await;
                *self.deadline.insert(Instant::now() + DRAIN_TIMEOUT)
            }
        };
        sleep_until(deadline).await;
    }

    fn extend(&mut self, time: Duration) {
        self.deadline = self.deadline.map(|deadline| deadline + time);
    }
}

/// Reads lines to the end, or until [`DRAIN_TIMEOUT`] after `exit` was closed. Waiting to parse a line does not count.
async fn read(stdout: ChildStdout, shared: &Arc<PipeState>, exit: oneshot::Receiver<()>) {
    let mut lines = OutputLines::new(stdout, shared.setup.limits.message);
    let mut pace = Pace::of_messages();
    let mut timeout = DrainTimeout {
        exit,
        deadline: None,
    };
    loop {
        let line = tokio::select! {
            line = lines.next() => match line {
                Some(line) => line,
                None => break,
            },
            () = timeout.wait() => break,
        };
        let bytes = lines.take_bytes();
        match line {
            OutputLine::Complete(line) => {
                let begun = Instant::now();
                let has_response = shared.receive(line).await;
                timeout.extend(begun.elapsed());
                if has_response {
                    continue;
                }
            }
            OutputLine::Truncated(_) => shared.fail_too_long(),
            OutputLine::Skipped => {}
        }
        pace.count_messages(bytes, 1);
        tokio::select! {
            () = pace.wait() => {}
            () = timeout.wait() => break,
        }
    }
}

async fn read_errors(stderr: ChildStderr, shared: Arc<PipeState>) {
    let mut lines = OutputLines::new(stderr, STDERR_MAX);
    let mut pace = Pace::of_log_lines();
    while let Some(line) = lines.next().await {
        pace.count_messages(lines.take_bytes(), 1);
        pace.wait().await;
        let (OutputLine::Complete(line) | OutputLine::Truncated(line)) = line else {
            continue;
        };
        tracing::debug!(program = shared.program, line, "server stderr");
        (shared.setup.on_stderr)(&line);
        let mut tail = shared.stderr.lock();
        tail.extend_from_slice(line.as_bytes());
        tail.push(b'\n');
        let excess = tail.len().saturating_sub(STDERR_MAX);
        tail.drain(..excess);
    }
}

/// On drop, fails the requests in flight.
pub(super) struct ExitGuard<'a>(pub(super) &'a PipeState);

impl Drop for ExitGuard<'_> {
    fn drop(&mut self) {
        self.0.input.close();
        self.0.set_exited(UNKNOWN_STATUS.to_owned());
    }
}
