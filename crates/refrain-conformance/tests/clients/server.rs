//! The server under test, in a separate process.

use refrain_testkit::net::installed::listening;
use refrain_testkit::net::process::Process;
use tokio::process::Command;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_refrain-conformance");
/// The number of entries in a page, small enough that every list has several pages.
pub(crate) const PAGE_SIZE: usize = 2;
/// The arguments for serving over standard input and output.
pub(crate) const STDIO: [&str; 4] = ["server", "--stdio", "--page-size", "2"];
/// The arguments for serving over HTTP.
const HTTP: [&str; 5] = ["server", "--listen", "127.0.0.1:0", "--page-size", "2"];

/// A server on a free port. It is killed on drop.
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
