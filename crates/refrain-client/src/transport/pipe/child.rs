//! The life of the process.
//!
//! | state | behaviour |
//! | --- | --- |
//! | running | its output is read, and queued messages are written |
//! | ending | its input is closed; after a grace period it is terminated, then killed |
//! | ended, or its output closed | the rest of its output is read, and all requests fail |

use super::lines::Lines;
use super::{Line, Shared};
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

/// The time to read the queued messages, to end by itself, and to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
/// How long to wait for the end of a process that has closed its input: most have just ended.
const DEAF: Duration = Duration::from_secs(2);
/// How long to read the output of an ended process. Its children may hold the pipes open.
const REST: Duration = Duration::from_millis(500);
const STDERR_MAX: usize = 4096;

pub(super) fn spawn(command: &mut Command) -> io::Result<Child> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
}

/// The lines that were left when the server closed its input.
struct Unwritten {
    first: Line,
    queue: mpsc::Receiver<Line>,
}

/// Reads and writes until the process has ended, or is unwanted and was made to end.
pub(super) async fn run(
    mut child: Child,
    queue: mpsc::Receiver<Line>,
    mut unwanted: oneshot::Receiver<()>,
    shared: Arc<Shared>,
) {
    // Requests must fail even if a callback panics.
    let _guard = EndGuard(&shared);
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
            _ = &mut unwanted => break None,
            written = &mut writing, if can_write => {
                // The server has closed its input, or the queue is closed. Its output is still read.
                can_write = false;
                unwritten = written.ok().flatten();
            }
            () = sleep(DEAF), if unwritten.is_some() => {
                shared.fail_unwritten(unwritten.take().into_iter().flat_map(Unwritten::lines));
            }
        }
    };
    if can_write && status.is_none() {
        // The server may have to write before it can read.
        let written = async {
            tokio::select! {
                _ = &mut writing => {}
                () = read_on(reading.as_mut()) => {}
            }
        };
        within(GRACE, written).await;
    }
    writing.abort();
    let status = match status {
        Some(status) => Some(status),
        None => end(&mut child, reading.as_mut()).await,
    };
    let rest = async {
        reading.await;
        let _ = errors.await;
    };
    within(REST, rest).await;
    shared.end(status.map_or_else(|| "nobody saw how".to_owned(), |status| status.to_string()));
}

impl Unwritten {
    fn lines(mut self) -> impl Iterator<Item = Line> {
        self.queue.close();
        let rest = std::iter::from_fn(move || self.queue.try_recv().ok());
        std::iter::once(self.first).chain(rest)
    }
}

/// Reads, and never completes.
async fn read_on(reading: Pin<&mut Fuse<impl Future<Output = ()>>>) {
    reading.await;
    std::future::pending::<()>().await;
}

/// Waits for the process to end by itself, then terminates it, then kills it.
async fn end(
    child: &mut Child,
    mut reading: Pin<&mut Fuse<impl Future<Output = ()>>>,
) -> Option<ExitStatus> {
    for force in [terminate, Child::start_kill] {
        // The server may have to write before it can end.
        let ended = async {
            loop {
                tokio::select! {
                    status = child.wait() => break status.ok(),
                    () = &mut reading => {}
                }
            }
        };
        if let Some(status) = within(GRACE, ended).await {
            return status;
        }
        if let Err(error) = force(child) {
            tracing::warn!(%error, "failed to end the server process");
        }
    }
    within(GRACE, child.wait()).await?.ok()
}

fn terminate(child: &mut Child) -> io::Result<()> {
    #[cfg(unix)]
    {
        use rustix::process::{Pid, Signal, kill_process};
        // A process that was not waited for keeps its id.
        let pid = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        pid.map_or(Ok(()), |pid| Ok(kill_process(pid, Signal::TERM)?))
    }
    #[cfg(not(unix))]
    child.start_kill()
}

/// Writes lines until the queue is closed. Returns the rest if the server closes its input before.
async fn write(mut stdin: ChildStdin, mut queue: mpsc::Receiver<Line>) -> Option<Unwritten> {
    while let Some(first) = queue.recv().await {
        let text = first.text.as_bytes();
        if stdin.write_all(text).await.is_err() || stdin.flush().await.is_err() {
            return Some(Unwritten { first, queue });
        }
    }
    None
}

async fn read(stdout: ChildStdout, shared: &Shared) {
    let mut lines = Lines::new(stdout, shared.setup.message_max);
    while let Some((line, is_cut)) = lines.next().await {
        if is_cut {
            shared.fail_too_long();
        } else {
            shared.receive(line);
        }
    }
}

async fn read_errors(stderr: ChildStderr, shared: Arc<Shared>) {
    let mut lines = Lines::new(stderr, STDERR_MAX);
    while let Some((line, _)) = lines.next().await {
        tracing::debug!(program = shared.program, "{line}");
        let mut kept = shared.stderr.lock();
        kept.extend_from_slice(line.as_bytes());
        kept.push(b'\n');
        let excess = kept.len().saturating_sub(STDERR_MAX);
        kept.drain(..excess);
    }
}

/// Fails all requests when it is dropped.
struct EndGuard<'a>(&'a Shared);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.end("it was lost sight of".to_owned());
    }
}
