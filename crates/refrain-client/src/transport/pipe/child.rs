//! The life of the process.
//!
//! | it | then |
//! | --- | --- |
//! | runs | its output is read, and what is sent is written |
//! | is told to end: its input is closed | it is given a while, then told to terminate, then killed |
//! | has ended, or has closed its output | what it still wrote is read, and whoever waits hears how it ended |

use super::Shared;
use super::lines::Lines;
use crate::client::lock;
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
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long a server may take to end by itself, and again when it was told to terminate.
const GRACE: Duration = Duration::from_secs(2);
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
        let failed = |why: String| ErrorKind::Spawn {
            command: program.to_string_lossy().into_owned(),
            why,
        };
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let streams = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = streams else {
            return Err(failed("it has no standard streams".to_owned()));
        };
        let pipes = Self {
            stdin,
            stdout,
            stderr,
        };
        Ok((child, pipes))
    }
}

/// Reads and writes until the process has ended, or the queue is closed and the process was made to end.
pub(super) async fn tend(
    mut child: Child,
    pipes: Pipes,
    queue: mpsc::UnboundedReceiver<String>,
    shared: Arc<Shared>,
) {
    // Somebody who hears of news may panic; those who wait must hear of the end all the same.
    let _lost = Lost(&shared);
    let errors = tokio::spawn(keep_errors(pipes.stderr, Arc::clone(&shared)));
    let mut writing = tokio::spawn(write(pipes.stdin, queue));
    let mut reading = pin!(read(pipes.stdout, &shared).fuse());
    let mut can_write = true;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status.ok(),
            () = &mut reading => break None,
            written = &mut writing, if can_write => match written {
                Ok(Ok(())) => break None,
                // The server has closed its input. It may still have something to say.
                _ => can_write = false,
            },
        }
    };
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

async fn write(
    mut stdin: ChildStdin,
    mut queue: mpsc::UnboundedReceiver<String>,
) -> io::Result<()> {
    while let Some(line) = queue.recv().await {
        stdin.write_all(line.as_bytes()).await?;
        stdin.flush().await?;
    }
    Ok(())
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
        let mut kept = lock(&shared.stderr);
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
