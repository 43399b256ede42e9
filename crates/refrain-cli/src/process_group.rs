//! A process in its own process group, so that Ctrl-C at the terminal reaches only `refrain`. Dropping it kills the group.

use crate::client::print_line;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io;
use std::process::{ExitStatus, Stdio};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

pub(crate) struct ProcessGroup {
    pub(crate) child: Child,
    id: Option<Pid>,
    stderr: Option<JoinHandle<()>>,
}

impl ProcessGroup {
    pub(crate) fn spawn(command: &mut Command) -> io::Result<Self> {
        let child = command.process_group(0).spawn()?;
        let id = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok(Self {
            child,
            id,
            stderr: None,
        })
    }

    /// Starts a command without input. The lines of its standard error are printed.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut group = Self::spawn(command)?;
        group.stderr = group.child.stderr.take().map(print_lines);
        Ok(group)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(id) = self.id {
            // The group may have ended.
            let _ = kill_process_group(id, signal);
        }
    }

    /// Waits for the end of the process and of its standard error.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        // The children of the process, if any.
        self.signal(Signal::KILL);
        self.id = None;
        if let Some(stderr) = self.stderr.take() {
            // A panic of the reader is printed by its hook.
            let _ = stderr.await;
        }
        Ok(status)
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Prints the lines of a pipe until it ends.
pub(crate) fn print_lines(pipe: impl AsyncRead + Unpin + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while pipe
            .read_until(b'\n', &mut line)
            .await
            .is_ok_and(|read| read > 0)
        {
            print_line(String::from_utf8_lossy(&line).trim_end());
            line.clear();
        }
    })
}
