//! The official conformance suite, run against the program as it was built.
//!
//! The suite and what it needs are installed by the script that runs it. Where that is not possible the test fails:
//! a suite that did not run has shown nothing.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The line that tells where the server is, up to the URL.
const LISTENING: &str = "listening on ";
/// Time for the server to print that line.
const START_TIME: Duration = Duration::from_secs(120);
/// Time for the suite, in seconds. The scenarios take half a minute; the rest is for the tools to be installed.
const SUITE_SECONDS: &str = "1200";

/// The server, which is killed when the test is over, however it ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It fails only if the server has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the server on a free port and gives its URL.
fn start() -> (Running, String) {
    let mut server = Command::new(env!("CARGO_BIN_EXE_refrain-conformance"))
        .args(["server", "--listen", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map(Running)
        .expect("the server could not be started");
    let stderr = server.0.stderr.take().expect("stderr is a pipe");
    let (found, url) = mpsc::channel();
    // Reads on until the server has ended, so that it can always write.
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            eprintln!("server: {line}");
            if let Some(url) = line.strip_prefix(LISTENING) {
                // Nobody listens any more if the test is over.
                let _ = found.send(url.to_owned());
            }
        }
    });
    let url = url
        .recv_timeout(START_TIME)
        .expect("the server did not say where it listens");
    (server, url)
}

#[test]
fn the_official_suite_passes() {
    run_suite("2026-07-28");
}

#[test]
fn the_official_suite_of_older_clients_passes() {
    run_suite("2025-11-25");
}

fn run_suite(revision: &str) {
    let (_server, url) = start();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/conformance");
    let suite = Command::new("timeout")
        .args(["--kill-after=10", SUITE_SECONDS])
        .arg(&script)
        .args(["--revision", revision])
        .arg(&url)
        .stdin(Stdio::null())
        .output()
        .expect("timeout(1) could not be started");
    assert!(
        suite.status.success(),
        "{} {url}: {}\n{}{}",
        script.display(),
        suite.status,
        String::from_utf8_lossy(&suite.stdout),
        String::from_utf8_lossy(&suite.stderr),
    );
}
