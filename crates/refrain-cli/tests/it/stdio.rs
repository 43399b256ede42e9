//! `refrain serve --stdio`: standard output, and the end of the process.

use crate::support::{ended, program, within};
use refrain::runtime::PROTOCOL_VERSION;
use serde_json::{Value, json};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::task::JoinHandle;

fn request(id: u32, method: &str, mut params: Value) -> String {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
        "io.modelcontextprotocol/logLevel": "debug",
        "progressToken": id,
    });
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

/// Starts the binary with a complete log.
fn start() -> Child {
    program()
        .args(["serve", "--stdio"])
        .env("RUST_LOG", "trace")
        .env("REFRAIN_STORE", "memory:")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the binary starts")
}

#[tokio::test]
async fn stdout_has_only_messages_and_the_process_ends_with_its_input() {
    let mut process = start();
    let lines = [
        request(1, "server/discover", json!({})),
        request(
            2,
            "tools/call",
            json!({"name": "echo", "arguments": {"text": "two\nlines"}}),
        ),
        // The result contains the asks.
        request(
            3,
            "tools/call",
            json!({"name": "get_weather", "arguments": {"location": "X"}}),
        ),
        request(
            4,
            "tools/call",
            json!({"name": "sum", "arguments": {"to": 3, "pause_ms": 0}}),
        ),
        request(5, "nope", json!({})),
        // An invalid token causes a warning in the log.
        request(
            6,
            "tools/call",
            json!({"name": "echo", "arguments": {"text": ""}, "requestState": "x"}),
        ),
        "not JSON".to_owned(),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}})
            .to_string(),
    ];
    let mut input = process.stdin.take().expect("the stream is piped");
    let lines = lines.join("\n") + "\n";
    within("the lines are taken", input.write_all(lines.as_bytes()))
        .await
        .expect("the lines are taken");
    drop(input);

    let (mut out, mut log) = (String::new(), String::new());
    let mut stdout = process.stdout.take().expect("the stream is piped");
    let mut stderr = process.stderr.take().expect("the stream is piped");
    let ended = within("the end", async {
        // Both must be UTF-8.
        tokio::try_join!(
            stdout.read_to_string(&mut out),
            stderr.read_to_string(&mut log)
        )
        .expect("text");
        process.wait().await.expect("the process can be waited for")
    });
    assert!(ended.await.success(), "{log}");
    assert!(log.contains("token rejected"), "{log}");

    let mut ids = Vec::new();
    let mut notes = 0;
    for line in out.lines() {
        let message: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert_eq!(message["jsonrpc"], "2.0", "{line}");
        // A response or a notification, never a request.
        let answers = message.get("result").is_some() != message.get("error").is_some();
        match message.get("method") {
            Some(method) => {
                assert!(
                    method
                        .as_str()
                        .is_some_and(|m| m.starts_with("notifications/"))
                );
                assert!(!answers && message.get("id").is_none(), "{line}");
                notes += 1;
            }
            None => {
                assert!(answers, "{line}");
                ids.extend(message.get("id").and_then(Value::as_u64));
            }
        }
    }
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3, 4, 5, 6]);
    assert!(notes > 0, "{out}");
    assert_eq!(out.lines().count(), ids.len() + notes + 1, "{out}");
}

type OutputLines = Lines<BufReader<ChildStdout>>;

/// Starts the binary with a long call in progress, whose id is 1. Returns its streams; the task reads the log.
async fn start_busy(pause_ms: u64) -> (Child, ChildStdin, OutputLines, JoinHandle<String>) {
    let mut process = start();
    let mut input = process.stdin.take().expect("the stream is piped");
    let mut lines = BufReader::new(process.stdout.take().expect("the stream is piped")).lines();
    let mut stderr = process.stderr.take().expect("the stream is piped");
    let log = tokio::spawn(async move {
        let mut log = String::new();
        stderr.read_to_string(&mut log).await.expect("text");
        log
    });
    let slow = json!({"name": "sum", "arguments": {"to": 1000, "pause_ms": pause_ms}});
    let call = request(1, "tools/call", slow) + "\n";
    input.write_all(call.as_bytes()).await.expect("taken");
    let begun = within("progress", lines.next_line()).await.expect("text");
    assert!(begun.expect("progress").contains("notifications/progress"));
    (process, input, lines, log)
}

#[tokio::test]
async fn cancelled_call_ends_and_its_reason_is_logged() {
    let (mut process, mut input, mut lines, log) = start_busy(50).await;
    let params = json!({"requestId": 1, "reason": "the user has had enough"});
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
    let after = request(
        2,
        "tools/call",
        json!({"name": "echo", "arguments": {"text": "x"}}),
    );
    input
        .write_all(format!("{cancel}\n{after}\n").as_bytes())
        .await
        .expect("taken");
    drop(input);
    let mut rest = Vec::new();
    while let Some(line) = within("the end", lines.next_line()).await.expect("text") {
        let message: Value = serde_json::from_str(&line).expect("valid JSON");
        rest.extend(message.get("id").cloned());
    }
    assert_eq!(rest, [2], "the cancelled call has no response");
    let log = within("the log", log).await.expect("no panic");
    assert!(log.contains("the user has had enough"), "{log}");
    assert!(ended(&mut process).await.success());
}

/// The input stays open; the closed output is enough.
#[tokio::test]
async fn closed_stdout_ends_the_process_successfully() {
    let (mut process, input, lines, log) = start_busy(5).await;
    drop(lines);
    let status = ended(&mut process).await;
    let log = within("the log", log).await.expect("no panic");
    assert!(status.success(), "{log}");
    assert!(log.contains("client closed the pipe"), "{log}");
    drop(input);
}
