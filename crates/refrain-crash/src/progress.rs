//! One line on stderr that says what is going on, if somebody is looking.

use std::io::{IsTerminal as _, Write as _, stderr};

/// Writes over its own line; silent when stderr is not a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    seen: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self {
            seen: stderr().is_terminal(),
        }
    }

    /// Replaces the line.
    pub(crate) fn say(&self, line: &str) {
        if self.seen {
            let mut stderr = stderr().lock();
            // A terminal that has gone away is no reason to stop.
            let _ = write!(stderr, "\r\x1b[K{line}");
            let _ = stderr.flush();
        }
    }

    /// Takes the line away.
    pub(crate) fn clear(&self) {
        self.say("");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
