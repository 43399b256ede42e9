//! The lifecycle of the server process.
//!
//! | state | behaviour |
//! | --- | --- |
//! | running | output is read, and queued messages are written |
//! | shutting down (on request, or because the process closed its output) | input is closed; after a grace period the process is terminated, then killed |
//! | exited | the rest of the output is read, and all requests fail |

use super::lines::OutputLines;
use super::{ProcessState, QueuedLine};
use crate::retry::within;
use futures_util::FutureExt;
use futures_util::future::Fuse;
use std::io;
use std::pin::{Pin, pin};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

/// The time that the process gets for each step of a shutdown: to read queued messages, to exit, to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
/// How long to wait for the exit of a process that closed its input. Usually it is about to exit.
const EXIT_WAIT: Duration = Duration::from_secs(2);
/// How long to read the output of an exited process. Its children may keep the pipes open.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
const STDERR_MAX: usize = 4096;

pub(super) fn spawn(command: &mut Command) -> io::Result<Child> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
}

struct UnwrittenLines {
    first: QueuedLine,
    queue: mpsc::Receiver<QueuedLine>,
}

/// Reads and writes until the process has exited or was shut down.
pub(super) async fn run(
    mut child: Child,
    queue: mpsc::Receiver<QueuedLine>,
    mut shutdown: oneshot::Receiver<()>,
    shared: Arc<ProcessState>,
) {
    // Pending requests must fail even if a callback panics.
    let _guard = ExitGuard(&shared);
    let streams = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(stdin), Some(stdout), Some(stderr)) = streams else {
        return;
    };
    let errors = tokio::spawn(read_errors(stderr, Arc::clone(&shared)));
    let mut writing = tokio::spawn(write(stdin, queue));
    let mut reading = pin!(read(stdout, &shared).fuse());
    let mut can_write = true;
    let mut unwritten = None;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status.ok(),
            () = &mut reading => break None,
            _ = &mut shutdown => break None,
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
    if can_write && status.is_none() {
        // The server may have to write before it can read.
        let flush = async {
            tokio::select! {
                _ = &mut writing => {}
                () = read_forever(reading.as_mut()) => {}
            }
        };
        within(GRACE, flush).await;
    }
    writing.abort();
    let status = match status {
        Some(status) => Some(status),
        None => shut_down(&mut child, reading.as_mut()).await,
    };
    let drain = async {
        reading.await;
        let _ = errors.await;
    };
    within(DRAIN_TIMEOUT, drain).await;
    shared.set_exited(status.map_or_else(
        || "unknown exit status".to_owned(),
        |status| status.to_string(),
    ));
}

impl UnwrittenLines {
    fn lines(mut self) -> impl Iterator<Item = QueuedLine> {
        self.queue.close();
        let rest = std::iter::from_fn(move || self.queue.try_recv().ok());
        std::iter::once(self.first).chain(rest)
    }
}

/// Reads to the end, and never completes.
async fn read_forever(reading: Pin<&mut Fuse<impl Future<Output = ()>>>) {
    reading.await;
    std::future::pending::<()>().await;
}

/// Waits for the process to exit; if it does not, terminates it, and then kills it.
async fn shut_down(
    child: &mut Child,
    mut reading: Pin<&mut Fuse<impl Future<Output = ()>>>,
) -> Option<ExitStatus> {
    for force in [terminate, Child::start_kill] {
        // The server may have to write before it can exit.
        let exited = async {
            loop {
                tokio::select! {
                    status = child.wait() => break status.ok(),
                    () = &mut reading => {}
                }
            }
        };
        if let Some(status) = within(GRACE, exited).await {
            return status;
        }
        if let Err(error) = force(child) {
            tracing::warn!(%error, "failed to end server process");
        }
    }
    within(GRACE, child.wait()).await?.ok()
}

fn terminate(child: &mut Child) -> io::Result<()> {
    #[cfg(unix)]
    {
        use rustix::process::{Pid, Signal, kill_process};
        // The id is still valid, because the process was not waited for.
        let pid = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        pid.map_or(Ok(()), |pid| Ok(kill_process(pid, Signal::TERM)?))
    }
    #[cfg(not(unix))]
    child.start_kill()
}

/// Writes lines until the queue is closed. Returns the rest if the server closes its input earlier.
async fn write(
    mut stdin: ChildStdin,
    mut queue: mpsc::Receiver<QueuedLine>,
) -> Option<UnwrittenLines> {
    while let Some(first) = queue.recv().await {
        let text = first.text.as_bytes();
        if stdin.write_all(text).await.is_err() || stdin.flush().await.is_err() {
            return Some(UnwrittenLines { first, queue });
        }
    }
    None
}

async fn read(stdout: ChildStdout, shared: &ProcessState) {
    let mut lines = OutputLines::new(stdout, shared.setup.limits.message);
    while let Some((line, is_truncated)) = lines.next().await {
        if is_truncated {
            shared.fail_too_long();
        } else {
            shared.receive(line);
        }
    }
}

async fn read_errors(stderr: ChildStderr, shared: Arc<ProcessState>) {
    let mut lines = OutputLines::new(stderr, STDERR_MAX);
    while let Some((line, _)) = lines.next().await {
        tracing::debug!(program = shared.program, line, "server stderr");
        let mut kept = shared.stderr.lock();
        kept.extend_from_slice(line.as_bytes());
        kept.push(b'\n');
        let excess = kept.len().saturating_sub(STDERR_MAX);
        kept.drain(..excess);
    }
}

struct ExitGuard<'a>(&'a ProcessState);

impl Drop for ExitGuard<'_> {
    fn drop(&mut self) {
        self.0.set_exited("unknown exit status".to_owned());
    }
}
