//! The SDKs of Python and TypeScript, each driven by a script in its own language.

use crate::names::CHECKS;
use crate::server::{HttpServer, PROGRAM, STDIO, root};
use std::process::Stdio;
use tokio::process::Command;
use tokio::sync::OnceCell;

/// Time for the checks of a client, in seconds. They take a few; each of them gives up after 120.
const CLIENT_TIME: &str = "900";
/// Time for the clients to be installed, in seconds, which is done once.
const TOOLS_TIME: &str = "1500";

const PYTHON: [&str; 2] = [".tools/bin/python", "tests/clients/python_features.py"];
const NPM: [&str; 2] = [".tools/bin/node", "tests/clients/npm_features.mjs"];

/// Runs a program of the workspace for so many seconds at most, and gives what it printed. It must end well.
pub(crate) async fn run(time: &str, program: &[&str], args: &[&str]) -> String {
    let root = root();
    let output = Command::new("timeout")
        .args(["--kill-after=5", time])
        .args(program.iter().map(|part| root.join(part)))
        .args(args)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("timeout(1) can be started");
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{} {args:?}: {}\n{out}{}",
        program.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    out
}

/// Sees to it that the clients are installed.
pub(crate) async fn install() {
    static TOOLS: OnceCell<()> = OnceCell::const_new();
    TOOLS
        .get_or_init(async || drop(run(TOOLS_TIME, &["scripts/tools"], &[]).await))
        .await;
}

/// Has a client do its checks: all of them, and no other.
async fn check(client: [&str; 2], args: &[&str]) {
    install().await;
    let printed = run(CLIENT_TIME, &client, args).await;
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
