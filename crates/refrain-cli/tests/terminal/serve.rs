//! `refrain serve`, with the documents' tools.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A server as a process of its own.
pub(crate) struct Serve(Child);

impl Serve {
    /// Starts it, and gives the port that the system chose.
    pub(crate) fn start() -> (Self, String) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_refrain"))
            .args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:"])
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary can be started");
        let said = child.stderr.take().expect("its standard error");
        let serve = Self(child);
        let mut lines = BufReader::new(said).lines();
        let port = lines.find_map(|line| {
            let line = line.expect("a line");
            let (_, address) = line.split_once("listening on http://127.0.0.1:")?;
            Some(address.strip_suffix("/mcp")?.to_owned())
        });
        (serve, port.expect("it says where it listens"))
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        self.0.kill().expect("the process can be ended");
        self.0.wait().expect("the process has ended");
    }
}
