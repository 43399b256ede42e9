//! The server scenarios of the official conformance suite.
//!
//! `scripts/conformance` installs the suite. The tests fail if the installation fails.

use refrain_testkit::net::installed::{listening, root, run};
use tokio::process::Command;

/// The timeout of the suite in seconds, including the installation.
const SUITE_SECONDS: &str = "1200";

#[tokio::test]
async fn official_suite_passes() {
    run_suite("2026-07-28").await;
}

#[tokio::test]
async fn official_suite_passes_for_legacy_clients() {
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
