//! The SDKs of Python and TypeScript, each driven by a script in its own language.

use crate::names::CHECKS;
use crate::server::{HttpServer, PROGRAM, STDIO};
use refrain_testkit::net::tools::run_tool;
use std::ffi::OsStr;

/// Time for the checks of a client, in seconds. They take a few; each of them gives up after 120.
const CLIENT_TIME: &str = "900";

const PYTHON: [&str; 2] = [".tools/bin/python", "tests/clients/python_features.py"];
const NPM: [&str; 2] = [".tools/bin/node", "tests/clients/npm_features.mjs"];

/// Has a client do its checks: all of them, and no other.
async fn check(client: [&str; 2], args: &[&str]) {
    let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
    let printed = run_tool(CLIENT_TIME, &client, &args).await;
    let mut wanted: Vec<String> = CHECKS.iter().map(|name| format!("ok {name}")).collect();
    wanted.push(format!("{} checks, 0 failed", CHECKS.len()));
    let printed: Vec<&str> = printed.lines().collect();
    assert_eq!(printed, wanted);
}

async fn over_http(client: [&str; 2]) {
    let server = HttpServer::start().await;
    check(client, &[&server.url]).await;
}

/// The client starts the server itself.
async fn over_stdio(client: [&str; 2]) {
    let command = ["--stdio", PROGRAM];
    check(client, &[&command[..], &STDIO].concat()).await;
}

#[tokio::test]
async fn python_over_http() {
    over_http(PYTHON).await;
}

#[tokio::test]
async fn python_over_stdio() {
    over_stdio(PYTHON).await;
}

#[tokio::test]
async fn npm_over_http() {
    over_http(NPM).await;
}

#[tokio::test]
async fn npm_over_stdio() {
    over_stdio(NPM).await;
}
