//! Signals that interrupt a command.

use super::exit::CommandError;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub(super) struct Interrupt {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupt {
    pub(super) fn new() -> Result<Self, CommandError> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                CommandError::usage(format!("cannot install signal handlers: {error}"))
            })
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Resolves at the next signal.
    pub(super) async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    pub(super) async fn unless<T, E: Into<CommandError>>(
        &mut self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, CommandError> {
        tokio::select! {
            done = work => done.map_err(Into::into),
            () = self.wait() => Err(CommandError::interrupted()),
        }
    }
}
