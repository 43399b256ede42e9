//! refrain-client with 2025-11-25 against `refrain serve`: progress, and cancellation of dropped calls. The table of
//! dialects covers asks.

use crate::support::{Files, Instance, Serve, until, within};
use refrain_client::wire::legacy::Revision;
use refrain_client::{AskAnswer, Client, ClientBuilder, Progress};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::process::Command;

/// A server and its log.
struct TestServer {
    /// `None` over stdio, where each client starts a server.
    instance: Option<Instance>,
    files: Files,
}

impl TestServer {
    async fn all() -> [Self; 2] {
        let instance = Serve::new().env("RUST_LOG", "debug").start().await;
        let over = |instance| Self {
            instance,
            files: Files::new(),
        };
        [over(Some(instance)), over(None)]
    }

    async fn connect(&self, builder: ClientBuilder) -> Client {
        let builder = builder.dialect(Revision::V2025_11_25);
        let connected = match &self.instance {
            Some(instance) => within("a connection", builder.connect(&instance.url())).await,
            None => {
                let mut command = Command::new("sh");
                let line = r#"exec "$0" serve --stdio 2>"$LOG""#;
                command
                    .args(["-c", line, env!("CARGO_BIN_EXE_refrain")])
                    .env("LOG", self.files.path("log"))
                    .env("RUST_LOG", "debug")
                    .env("REFRAIN_STORE", "memory:");
                within("a connection", builder.spawn(command)).await
            }
        };
        let client = connected.expect("a connection");
        assert_eq!(client.server().version, "2025-11-25");
        client
    }

    /// The number of occurrences in the log.
    fn log_count(&self, what: &str) -> usize {
        match &self.instance {
            Some(instance) => instance.log.count(what),
            None => {
                let log = std::fs::read_to_string(self.files.path("log"));
                log.expect("a log").matches(what).count()
            }
        }
    }
}

#[tokio::test]
async fn progress_arrives_during_a_call() {
    for server in TestServer::all().await {
        let heard: Arc<Mutex<Vec<f64>>> = Arc::default();
        let recorder = Arc::clone(&heard);
        let builder = Client::builder().on_progress(move |progress: Progress| {
            recorder.lock().expect("no panic").push(progress.progress);
        });
        let client = server.connect(builder).await;
        let sum = client.call_tool("sum", json!({"to": 100, "pause_ms": 1}));
        let result = json!(within("the sum", sum).await.expect("the call succeeds"));
        assert!(result["content"][0]["text"].is_string(), "{result}");
        let heard = heard.lock().expect("no panic").clone();
        assert!(!heard.is_empty());
        assert!(heard.is_sorted(), "{heard:?}");
        client.close().await;
    }
}

#[tokio::test]
async fn dropped_call_is_cancelled_on_the_server() {
    for server in TestServer::all().await {
        let heard = Arc::new(AtomicUsize::new(0));
        let recorder = Arc::clone(&heard);
        let builder = Client::builder()
            .on_progress(move |_| {
                recorder.fetch_add(1, Ordering::SeqCst);
            })
            .on_form(|_| async { Ok(AskAnswer::accept(json!({"input": "still there"}))?) });
        let client = server.connect(builder).await;
        tokio::select! {
            ended = client.call_tool("sum", json!({"to": 100_000, "pause_ms": 5})) => {
                panic!("the call ended early: {ended:?}")
            }
            () = until("the start of the call", || heard.load(Ordering::SeqCst) > 0) => {}
        }
        until("the cancellation", || server.log_count("cancelled") > 0).await;
        let echo = within("the echo", client.call_tool("echo", json!({}))).await;
        let echo: Value = json!(echo.expect("the call succeeds"));
        assert_eq!(echo["content"][0]["text"], "Echo: still there");
        client.close().await;
    }
}
