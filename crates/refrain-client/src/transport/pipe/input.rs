//! Detects whether a server process has read its input.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::process::ChildStdin;

/// Compares the number of bytes written to the pipe with the number still in it. Where the system does not report the
/// latter, the input counts as read.
#[derive(Default)]
pub(super) struct InputProbe {
    written: AtomicU64,
    /// A second handle of the pipe. The server sees the end of its input only after [`close`](Self::close).
    #[cfg(unix)]
    pipe: Mutex<Option<std::os::fd::OwnedFd>>,
    is_unread: AtomicBool,
}

impl InputProbe {
    pub(super) fn open(&self, stdin: &ChildStdin) {
        #[cfg(unix)]
        {
            use std::os::fd::AsFd;
            *self.pipe.lock() = stdin.as_fd().try_clone_to_owned().ok();
        }
    }

    pub(super) fn add_written(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Whether the process has read nothing. Valid after its exit too.
    pub(super) fn is_unread(&self) -> bool {
        match self.unread_bytes() {
            Some(unread) => unread >= self.written.load(Ordering::Relaxed),
            None => self.is_unread.load(Ordering::Relaxed),
        }
    }

    /// Whether the process has read everything.
    pub(super) fn is_read(&self) -> bool {
        self.unread_bytes().is_none_or(|unread| unread == 0)
    }

    /// The number of unread bytes, if the pipe is open.
    fn unread_bytes(&self) -> Option<u64> {
        #[cfg(unix)]
        return rustix::io::ioctl_fionread(self.pipe.lock().as_ref()?).ok();
        #[cfg(not(unix))]
        None
    }

    pub(super) fn close(&self) {
        self.is_unread.store(self.is_unread(), Ordering::Relaxed);
        #[cfg(unix)]
        self.pipe.lock().take();
    }
}
