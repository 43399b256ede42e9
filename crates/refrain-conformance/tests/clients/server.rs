//! The server under test, as a process of its own.

use refrain_testkit::net::process::Process;
use refrain_testkit::net::tools::listening;
use tokio::process::Command;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_refrain-conformance");
/// The entries of a page: so few that every list has more than one.
pub(crate) const PAGE_SIZE: usize = 2;
/// What it is told to serve over standard input and output.
pub(crate) const STDIO: [&str; 4] = ["server", "--stdio", "--page-size", "2"];
/// What it is told to serve over HTTP.
const HTTP: [&str; 5] = ["server", "--listen", "127.0.0.1:0", "--page-size", "2"];

/// A server on a port of its own. Dropping it kills it.
pub(crate) struct HttpServer {
    pub(crate) url: String,
    _process: Process,
}

impl HttpServer {
    pub(crate) async fn start() -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(HTTP);
        let (process, url) = listening(command).await;
        Self {
            url,
            _process: process,
        }
    }
}
