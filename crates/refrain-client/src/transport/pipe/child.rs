//! The life of the process.
//!
//! | it | then |
//! | --- | --- |
//! | runs | its output is read, and what is sent is written |
//! | is told to end: its input is closed | it is given a while, then told to terminate, then killed |
//! | has ended, or has closed its output | what it still wrote is read, and whoever waits hears how it ended |

use super::lines::Lines;
use super::{Line, Shared};
use crate::error::ErrorKind;
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
use tokio::time::{sleep, timeout};

/// How long a server may take to read what is left to write, to end by itself, and again when it was told to terminate.
const GRACE: Duration = Duration::from_secs(2);
/// How long to wait for the end of a process that has closed its input: most have just ended.
const DEAF: Duration = Duration::from_secs(2);
/// How long to go on reading what a process wrote that has ended. Its own children may hold the pipes open for ever.
const REST: Duration = Duration::from_millis(500);
/// How much of the standard error is kept.
const STDERR_KEPT: usize = 4096;

/// The three streams of the process.
pub(super) struct Pipes {
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: ChildStderr,
}

impl Pipes {
    /// Starts the process.
    pub(super) fn open(command: &mut Command) -> Result<(Child, Self), ErrorKind> {
        let program = command.as_std().get_program().to_owned();
        let failed = |source| ErrorKind::Spawn {
            command: program.to_string_lossy().into_owned(),
            source,
        };
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(failed)?;
        let streams = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = streams else {
            return Err(failed(io::Error::other("it has no standard streams")));
        };
        let pipes = Self {
            stdin,
            stdout,
            stderr,
        };
        Ok((child, pipes))
    }
}

/// What was left to write when the server closed its input.
struct Unwritten {
    first: Line,
    queue: mpsc::Receiver<Line>,
}

/// Reads and writes until the process has ended, or nobody wants it and it was made to end.
pub(super) async fn tend(
    mut child: Child,
    pipes: Pipes,
    queue: mpsc::Receiver<Line>,
    mut unwanted: oneshot::Receiver<()>,
    shared: Arc<Shared>,
) {
    // Somebody who hears of news may panic; those who wait must hear of the end all the same.
    let _lost = Lost(&shared);
    let errors = tokio::spawn(keep_errors(pipes.stderr, Arc::clone(&shared)));
    let mut writing = tokio::spawn(write(pipes.stdin, queue));
    let mut reading = pin!(read(pipes.stdout, &shared).fuse());
    let mut can_write = true;
    let mut unwritten = None;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status.ok(),
            () = &mut reading => break None,
            _ = &mut unwanted => break None,
            written = &mut writing, if can_write => {
                // The server has closed its input, or the queue is closed. It may still have something to say.
                can_write = false;
                unwritten = written.ok().flatten();
            }
            () = sleep(DEAF), if unwritten.is_some() => {
                shared.unwritten(unwritten.take().into_iter().flat_map(Unwritten::lines));
            }
        }
    };
    if can_write && status.is_none() {
        // It may be held up by what it still has to write.
        let written = async {
            tokio::select! {
                _ = &mut writing => {}
                () = read_on(reading.as_mut()) => {}
            }
        };
        let _ = timeout(GRACE, written).await;
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
    let _ = timeout(REST, rest).await;
    shared.end(status.map_or_else(|| "nobody saw how".to_owned(), |status| status.to_string()));
}

impl Unwritten {
    /// All of it. Nothing is added to it any more.
    fn lines(mut self) -> impl Iterator<Item = Line> {
        self.queue.close();
        let rest = std::iter::from_fn(move || self.queue.try_recv().ok());
        std::iter::once(self.first).chain(rest)
    }
}

/// Reads for as long as somebody waits for something else.
async fn read_on(reading: Pin<&mut Fuse<impl Future<Output = ()>>>) {
    reading.await;
    std::future::pending::<()>().await;
}

/// Gives the process time to end by itself, and then makes it.
async fn end(
    child: &mut Child,
    mut reading: Pin<&mut Fuse<impl Future<Output = ()>>>,
) -> Option<ExitStatus> {
    for force in [terminate, Child::start_kill] {
        // It may be held up by what it still has to write.
        let ended = async {
            loop {
                tokio::select! {
                    status = child.wait() => break status.ok(),
                    () = &mut reading => {}
                }
            }
        };
        if let Ok(status) = timeout(GRACE, ended).await {
            return status;
        }
        if let Err(error) = force(child) {
            tracing::warn!(%error, "the server cannot be made to end");
        }
    }
    timeout(GRACE, child.wait()).await.ok()?.ok()
}

/// Asks the process to end, where there is a way to ask.
fn terminate(child: &mut Child) -> io::Result<()> {
    #[cfg(unix)]
    {
        use rustix::process::{Pid, Signal, kill_process};
        // A process that was not waited for keeps its id, so that no other is meant.
        let pid = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        pid.map_or(Ok(()), |pid| Ok(kill_process(pid, Signal::TERM)?))
    }
    #[cfg(not(unix))]
    child.start_kill()
}

/// Writes what comes out of the queue until it is closed. If the server closes its input before, gives what is left.
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
    let mut lines = Lines::new(stdout, shared.message_max);
    while let Some(line) = lines.next().await {
        if line.is_cut {
            shared.too_long();
        } else {
            shared.take(line.text);
        }
    }
}

async fn keep_errors(stderr: ChildStderr, shared: Arc<Shared>) {
    let mut lines = Lines::new(stderr, STDERR_KEPT);
    while let Some(line) = lines.next().await {
        tracing::debug!(program = shared.program, "{}", line.text);
        let mut kept = shared.stderr.lock();
        kept.extend_from_slice(line.text.as_bytes());
        kept.push(b'\n');
        let excess = kept.len().saturating_sub(STDERR_KEPT);
        kept.drain(..excess);
    }
}

/// Tells those who wait, if nobody else did.
struct Lost<'a>(&'a Shared);

impl Drop for Lost<'_> {
    fn drop(&mut self) {
        self.0.end("it was lost sight of".to_owned());
    }
}
