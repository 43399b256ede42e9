//! Server processes that exit, close their output, or never respond.

use super::{assert_prints, assert_says, json};
use crate::support::{Files, Output, run, until};
use std::path::{Path, PathBuf};

const SCRIPT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/it/calling/dying_server.py"
);

/// Runs a command with a server that fails as `mode` says. Returns the output, and the ids of the
/// started processes.
async fn with_server(mode: &str, words: &[&str]) -> (Output, Vec<String>) {
    let files = Files::new();
    let starts: PathBuf = files.path("starts");
    let name = starts.display().to_string();
    let server = ["--stdio", "--", "python3", SCRIPT, &name, mode];
    let output = run([words, &server].concat()).await;
    let starts = std::fs::read_to_string(starts).expect("the server was started");
    (output, starts.lines().map(str::to_owned).collect())
}

/// Whether a process has ended. Its parent may not have waited for it.
fn has_ended(id: &str) -> bool {
    let status = std::fs::read_to_string(Path::new("/proc").join(id).join("stat"));
    status.is_err() || status.is_ok_and(|status| status.contains(") Z "))
}

#[tokio::test]
async fn failing_server_is_started_once_and_its_stderr_shown() {
    for (mode, status) in [
        ("exit", "exit status: 3"),
        ("exit-later", "exit status: 3"),
        ("close-output", "it closed its standard output"),
    ] {
        let (output, started) = with_server(mode, &["call", "greet", "--json"]).await;
        let error = format!("error: python3 exited before it responded ({status})\n");
        let lines =
            "note: last lines of the server's standard error:\n  the licence ␛[2J has expired\n";
        assert_says(&output, 4, &[&error, lines]);
        assert_eq!(
            json(&output)["stderr"][0],
            "the licence \u{1b}[2J has expired"
        );
        assert_eq!(started.len(), 1, "{mode}: {output:?}");
        until("the end of the server", || has_ended(&started[0])).await;
    }
}

#[tokio::test]
async fn server_that_exits_at_discover_is_started_again() {
    let (output, started) = with_server("at-discover", &["call", "greet"]).await;
    assert_prints(&output, "as today\n");
    assert_eq!(started.len(), 2, "{output:?}");
    let (output, started) = with_server("at-discover", &["discover"]).await;
    assert!(output.out.contains("2024-11-05"), "{output:?}");
    assert_eq!(started.len(), 2, "{output:?}");
    // Without the fallback to older revisions, the server is not started again.
    let (output, started) =
        with_server("at-discover", &["discover", "--dialect", "2026-07-28"]).await;
    assert_says(&output, 4, &["python3 exited", "expected initialize"]);
    assert_eq!(started.len(), 1, "{output:?}");
}

#[tokio::test]
async fn every_command_ends_at_its_deadline_and_ends_the_server() {
    for words in [
        &["tools"][..],
        &["prompts"],
        &["resources"],
        &["discover"],
        &["call", "greet"],
        &["prompt", "greet"],
        &["read", "file:///a"],
        &["task", "get", "1"],
        &["task", "watch", "1"],
        &["task", "cancel", "1"],
    ] {
        let words = [words, &["--deadline", "1", "--json"]].concat();
        let (output, started) = with_server("silent", &words).await;
        let parts = [
            "the command exceeded its deadline of 1 s",
            "--deadline SECONDS",
            "the licence",
        ];
        assert_says(&output, 4, &parts);
        assert!(json(&output)["error"]["message"].is_string(), "{output:?}");
        for process in started {
            until("the end of the server", || has_ended(&process)).await;
        }
    }
}
