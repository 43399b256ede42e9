//! `refrain serve` as a process.

use refrain_testkit::net::installed::listening;
use refrain_testkit::net::process::Process;
use tokio::process::Command;
use tokio::runtime::Runtime;

/// A server process.
pub(crate) struct Serve {
    // Dropped before the runtime, which it needs.
    _process: Process,
    _runtime: Runtime,
}

impl Serve {
    /// Starts a server, and returns the port that the system chose.
    pub(crate) fn start() -> (Self, String) {
        let runtime = Runtime::new().expect("a runtime");
        let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:"]);
        let (process, url) = runtime.block_on(listening(command));
        let port = url.strip_prefix("http://127.0.0.1:");
        let port = port.and_then(|rest| rest.strip_suffix("/mcp"));
        let port = port.expect("a free port").to_owned();
        let serve = Self {
            _process: process,
            _runtime: runtime,
        };
        (serve, port)
    }
}
