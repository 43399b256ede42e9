//! `refrain serve --stdio`, started by refrain-client.

use crate::support::{Files, within};
use refrain_client::wire::Filter;
use refrain_client::{AskAnswer, Client, ClientBuilder, ErrorKind, Progress};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::Notify;

/// A server whose log and process id are in files.
struct Spawned {
    files: Files,
}

impl Spawned {
    fn new() -> Self {
        Self {
            files: Files::new(),
        }
    }

    async fn start(&self, builder: ClientBuilder) -> Client {
        let mut command = Command::new("sh");
        let line = r#"echo $$ >"$PID"; exec "$0" serve --stdio 2>"$LOG""#;
        command
            .args(["-c", line, env!("CARGO_BIN_EXE_refrain")])
            .env("PID", self.files.path("pid"))
            .env("LOG", self.files.path("log"))
            .env("RUST_LOG", "debug")
            .env("REFRAIN_STORE", "memory:");
        within("the start of the server", builder.spawn(command))
            .await
            .expect("the server can be started")
    }

    fn pid(&self) -> Pid {
        let text = std::fs::read_to_string(self.files.path("pid")).expect("the process id");
        let raw = text.trim().parse().expect("a number");
        Pid::from_raw(raw).expect("a process id")
    }

    async fn wait_for_end(&self) {
        let pid = self.pid();
        within("the end of the process", async {
            while test_kill_process(pid).is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
}

async fn wait_for_log(file: &Path, what: &str) {
    within("the log line", async {
        while !std::fs::read_to_string(file).is_ok_and(|text| text.contains(what)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// A client with a progress handler, and the notification of progress.
fn with_progress() -> (ClientBuilder, Arc<Notify>) {
    let progress = Arc::new(Notify::new());
    let notify = Arc::clone(&progress);
    let builder = Client::builder().on_progress(move |_: Progress| notify.notify_one());
    (builder, progress)
}

#[tokio::test]
async fn rounds_work_over_stdio_and_the_process_ends_with_the_client() {
    let spawned = Spawned::new();
    let builder = Client::builder().on_form(|ask| async move {
        assert_eq!(ask.key, "echo_input");
        Ok(AskAnswer::accept(json!({"input": "two\nlines"}))?)
    });
    let client = spawned.start(builder).await;
    assert_eq!(client.server().version, "2026-07-28");
    let tools = client.tools().await.expect("the tools");
    assert!(tools.iter().any(|tool| tool.name == "echo"));

    let calls = (0..20).map(|_| client.call_tool("echo", json!({})));
    for result in futures_util::future::join_all(calls).await {
        let result = json!(result.expect("the call succeeds"));
        assert_eq!(result["content"][0]["text"], "Echo: two\nlines");
    }

    within("the client closes", client.close()).await;
    assert!(test_kill_process(spawned.pid()).is_err(), "it has ended");
}

#[tokio::test]
async fn tasks_and_subscriptions_work_over_stdio() {
    let spawned = Spawned::new();
    let builder =
        Client::builder().on_form(|_| async { Ok(AskAnswer::accept(json!({"input": "later"}))?) });
    let client = spawned.start(builder).await;
    let filter = Filter {
        tools: true,
        ..Filter::default()
    };
    let listening = within("it listens", client.listen(&filter)).await;
    drop(listening.expect("the subscription is accepted"));
    wait_for_log(&spawned.files.path("log"), "cancelled").await;

    let result = within("the task", client.call_tool("echo_task", json!({}))).await;
    let result = json!(result.expect("the call succeeds"));
    assert_eq!(result["content"][0]["text"], "Echo: later");
}

#[tokio::test]
async fn dropped_call_is_cancelled_on_the_server() {
    let spawned = Spawned::new();
    let (builder, progress) = with_progress();
    let client = spawned.start(builder).await;
    let long = json!({"to": 100_000, "pause_ms": 5});
    tokio::select! {
        ended = client.call_tool("sum", long) => panic!("the call ended early: {ended:?}"),
        () = within("it has begun", progress.notified()) => {}
    }
    wait_for_log(&spawned.files.path("log"), "cancelled").await;
    let result = client.call_tool("echo", json!({"text": "still there"}));
    assert!(result.await.is_ok());
    drop(client);
    spawned.wait_for_end().await;
}

#[tokio::test]
async fn killed_server_fails_every_call() {
    let spawned = Spawned::new();
    let (builder, progress) = with_progress();
    let client = spawned.start(builder).await;
    let long = || client.call_tool("sum", json!({"to": 100_000, "pause_ms": 5}));
    let kill = async {
        within("it has begun", progress.notified()).await;
        kill_process(spawned.pid(), Signal::KILL).expect("the process runs");
    };
    let calls = futures_util::future::join(long(), long());
    let ((one, other), ()) = within("they end", futures_util::future::join(calls, kill)).await;
    for error in [one.expect_err("killed"), other.expect_err("killed")] {
        let ErrorKind::Exited { status, .. } = &error.kind else {
            panic!("{error}");
        };
        assert!(status.contains("signal: 9"), "{status}");
        assert!(error.pending.is_some(), "the call is not lost");
    }
    let tools = client.tools().await.expect("the server is restarted");
    assert!(!tools.is_empty());
}
