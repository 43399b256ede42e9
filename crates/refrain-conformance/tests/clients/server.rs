//! The server under test, as a process of its own.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_refrain-conformance");
/// The entries of a page: so few that every list has more than one.
pub(crate) const PAGE_SIZE: usize = 2;
/// What it is told to serve over standard input and output.
pub(crate) const STDIO: [&str; 4] = ["server", "--stdio", "--page-size", "2"];
/// What it is told to serve over HTTP.
const HTTP: [&str; 5] = ["server", "--listen", "127.0.0.1:0", "--page-size", "2"];

/// The line that tells where the server is, up to the URL.
const LISTENING: &str = "listening on ";
/// Time for the server to print that line.
const START_TIME: Duration = Duration::from_secs(60);

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A server on a port of its own, which is killed when the test is over, however it ends.
pub(crate) struct HttpServer {
    pub(crate) url: String,
    _process: Child,
}

impl HttpServer {
    pub(crate) async fn start() -> Self {
        let mut process = Command::new(PROGRAM)
            .args(HTTP)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the server could not be started");
        let stderr = process.stderr.take().expect("stderr is a pipe");
        let mut lines = BufReader::new(stderr).lines();
        let url = async {
            while let Some(line) = lines.next_line().await.expect("stderr can be read") {
                if let Some(url) = line.strip_prefix(LISTENING) {
                    return url.to_owned();
                }
            }
            panic!("the server ended without saying where it listens");
        };
        let url = timeout(START_TIME, url)
            .await
            .expect("the server did not say where it listens");
        // Reads on until the server has ended, so that it can always write.
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                eprintln!("server: {line}");
            }
        });
        Self {
            url,
            _process: process,
        }
    }
}
