//! The official conformance suite, run against the program as it was built.
//!
//! The script that runs the suite installs it. A test fails if it cannot be installed.

use refrain_testkit::net::tools::{listening, root, run};
use tokio::process::Command;

/// Time for the suite, in seconds. The scenarios take half a minute; the rest is for the tools to be installed.
const SUITE_SECONDS: &str = "1200";

#[tokio::test]
async fn the_official_suite_passes() {
    run_suite("2026-07-28").await;
}

#[tokio::test]
async fn the_official_suite_of_older_clients_passes() {
    run_suite("2025-11-25").await;
}

async fn run_suite(revision: &str) {
    let mut server = Command::new(env!("CARGO_BIN_EXE_refrain-conformance"));
    server.args(["server", "--listen", "127.0.0.1:0"]);
    let (_server, url) = listening(server).await;
    let mut suite = Command::new(root().join("scripts/conformance"));
    suite.args(["--revision", revision, &url]);
    run(SUITE_SECONDS, &suite).await;
}
