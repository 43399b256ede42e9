//! Signals that interrupt a command, and its deadline.

use super::exit::{Code, CommandError};
use std::future::pending;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

pub(super) struct Interrupt {
    interrupt: Signal,
    terminate: Signal,
    /// `None` if SIGHUP is ignored.
    hangup: Option<Signal>,
    limit: Duration,
    deadline: Instant,
}

/// Why a command stops before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Signal,
    /// The time limit of the command.
    Deadline(Duration),
}

impl Interrupt {
    /// `limit` is the time from now to the deadline of the command.
    pub(super) fn new(limit: Duration) -> Result<Self, CommandError> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                CommandError::usage(format!("cannot install signal handlers: {error}"))
            })
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: match ignores_hangup() {
                true => None,
                false => Some(listen(SignalKind::hangup())?),
            },
            limit,
            deadline: Instant::now() + limit,
        })
    }

    /// Resolves at the next signal.
    pub(super) async fn signal(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = hangup => {}
        }
    }

    /// Resolves at the next signal, or at the deadline.
    pub(super) async fn wait(&mut self) -> Stop {
        let (limit, deadline) = (self.limit, self.deadline);
        tokio::select! {
            () = self.signal() => Stop::Signal,
            () = sleep_until(deadline) => Stop::Deadline(limit),
        }
    }

    /// Runs a function that reads files on another thread: a pipe may block for ever. The thread that reads is not stopped.
    pub(super) async fn read<T: Send + 'static>(
        &mut self,
        read: impl FnOnce() -> Result<T, CommandError> + Send + 'static,
    ) -> Result<T, CommandError> {
        let reading = async {
            let done = spawn_blocking(read).await;
            done.unwrap_or_else(|error| Err(CommandError::usage(error.to_string())))
        };
        self.unless_stopped(reading).await
    }

    /// Completes the work, unless the command is interrupted or its deadline passes.
    pub(super) async fn unless_stopped<T, E: Into<CommandError>>(
        &mut self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, CommandError> {
        tokio::select! {
            done = work => done.map_err(Into::into),
            stop = self.wait() => Err(stop.into()),
        }
    }
}

/// Whether the parent process has set SIGHUP to be ignored, as `nohup` does. Known only on Linux.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 == 1)
}

impl From<Stop> for CommandError {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Signal => Self::interrupted(),
            Stop::Deadline(limit) => {
                let message = format!("the command exceeded its deadline of {} s", limit.as_secs());
                Self::new(Code::Unreachable, message).hint(DEADLINE_HINT)
            }
        }
    }
}

pub(super) const DEADLINE_HINT: &str = "set a later deadline with --deadline SECONDS";
