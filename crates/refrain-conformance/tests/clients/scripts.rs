//! The Python and TypeScript SDKs, driven by scripts.

use crate::names::CHECKS;
use crate::server::{HttpServer, PROGRAM, STDIO};
use refrain_testkit::net::installed::run_tool;
use std::ffi::OsStr;

/// The timeout for the checks of a client, in seconds.
const CLIENT_TIME: &str = "900";

const PYTHON: [&str; 2] = [".tools/bin/python", "tests/clients/python_features.py"];
const NPM: [&str; 2] = [".tools/bin/node", "tests/clients/npm_features.mjs"];

/// Runs a client and compares its output with [`CHECKS`].
async fn check(client: [&str; 2], args: &[&str]) {
    let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
    let printed = run_tool(CLIENT_TIME, &client, &args).await;
    let mut expected: Vec<String> = CHECKS.iter().map(|name| format!("ok {name}")).collect();
    expected.push(format!("{} checks, 0 failed", CHECKS.len()));
    let printed: Vec<&str> = printed.lines().collect();
    assert_eq!(printed, expected);
}

async fn over_http(client: [&str; 2]) {
    let server = HttpServer::start().await;
    check(client, &[&server.url]).await;
}

/// The client starts the server.
async fn over_stdio(client: [&str; 2]) {
    let command = ["--stdio", PROGRAM];
    check(client, &[&command[..], &STDIO].concat()).await;
}

#[tokio::test]
async fn python_client_passes_over_http() {
    over_http(PYTHON).await;
}

#[tokio::test]
async fn python_client_passes_over_stdio() {
    over_stdio(PYTHON).await;
}

#[tokio::test]
async fn npm_client_passes_over_http() {
    over_http(NPM).await;
}

#[tokio::test]
async fn npm_client_passes_over_stdio() {
    over_stdio(NPM).await;
}
