//! A process in its own process group, so that Ctrl-C at the terminal reaches only `refrain dev`. Dropping it kills the group.

use super::print_line;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io;
use std::process::{ExitStatus, Stdio};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

pub(super) struct ProcessGroup {
    pub(super) child: Child,
    id: Option<Pid>,
    stderr: Option<JoinHandle<()>>,
}

impl ProcessGroup {
    /// Starts a command without input. The lines of its standard error are printed.
    pub(super) fn start(command: &mut Command) -> io::Result<Self> {
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let id = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let stderr = child.stderr.take().map(print_lines);
        Ok(Self { child, id, stderr })
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Some(id) = self.id {
            // The group may have ended.
            let _ = kill_process_group(id, signal);
        }
    }

    /// Waits for the end of the process and of its standard error.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
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
pub(super) fn print_lines(pipe: impl AsyncRead + Unpin + Send + 'static) -> JoinHandle<()> {
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
