//! Protocol rules over a pipe. The server records violations by the client.

use crate::support::{until, within};
use refrain_client::wire::Filter;
use refrain_client::{Client, ClientLimits, ErrorKind, ServerChange};
use serde_json::json;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/rules_pipe.py");

async fn start() -> Client {
    start_with(&[]).await
}

async fn start_with(args: &[&str]) -> Client {
    let mut command = Command::new("python3");
    command.arg(SCRIPT).args(args);
    start_command(command).await
}

async fn start_command(command: Command) -> Client {
    // The server must not be taken for a legacy server, however slowly it starts.
    let limits = ClientLimits {
        probe: Duration::from_secs(600),
        ..ClientLimits::default()
    };
    let builder = Client::builder().limits(limits);
    let client = within("the server", builder.spawn(command)).await;
    client.expect("a server")
}

async fn call(client: &Client, tool: &str, text: &str) -> String {
    let called = client.call_tool(tool, json!({"text": text}));
    let result = within(tool, called).await.expect("a result");
    result.content[0].as_text().expect("a text").to_owned()
}

/// Asserts that the server recorded no violations, and closes the client.
async fn assert_no_violations(client: Client) {
    assert_eq!(call(&client, "violations", "").await, "");
    within("the exit", client.close()).await;
}

#[tokio::test]
async fn message_is_one_line_whatever_it_contains() {
    let client = start().await;
    let text = "one\ntwo\r\n\u{2028}three\u{0}";
    assert_eq!(call(&client, "echo", text).await, text);
    assert_no_violations(client).await;
}

#[tokio::test]
async fn late_response_to_a_cancelled_call_is_ignored() {
    let client = start().await;
    for _ in 0..3 {
        tokio::select! {
            biased;
            ended = client.call_tool("wait", json!({})) => panic!("the tool never returns: {ended:?}"),
            text = call(&client, "echo", "meanwhile") => assert_eq!(text, "meanwhile"),
        }
        assert_eq!(call(&client, "echo", "afterwards").await, "afterwards");
    }
    assert_no_violations(client).await;
}

#[tokio::test]
async fn subscriptions_receive_only_their_own_changes() {
    let client = start().await;
    let wanted = |uri: &str| Filter {
        uris: vec![uri.to_owned()],
        ..Filter::default()
    };
    let mut first = client.listen(&wanted("file:///0")).await.unwrap();
    let mut second = client.listen(&wanted("file:///1")).await.unwrap();
    assert_eq!(call(&client, "change", "").await, "changed");
    for (changes, uri) in [(&mut first, "file:///0"), (&mut second, "file:///1")] {
        let change = within("a change", changes.next()).await.unwrap();
        assert_eq!(change, Some(ServerChange::Resource(uri.to_owned())));
    }
    assert_eq!(call(&client, "end", "").await, "ended");
    assert_eq!(within("the end", first.next()).await.unwrap(), None);
    assert_eq!(call(&client, "change", "").await, "changed");
    let change = within("a change", second.next()).await.unwrap();
    assert_eq!(change, Some(ServerChange::Resource("file:///1".to_owned())));
}

#[tokio::test]
async fn task_is_polled_while_the_subscription_is_unacknowledged() {
    let client = start_with(&["no-listen"]).await;
    assert_eq!(call(&client, "task", "").await, "built");
}

#[tokio::test]
async fn response_with_unknown_id_fails_the_only_request() {
    let client = start().await;
    // The id that was sent, but as a string, is another id.
    for id in ["", "2"] {
        let called = client.call_tool("unknown_id", json!({"text": id}));
        let error = within("the error", called).await.unwrap_err();
        assert_matches!(error.kind, ErrorKind::InvalidResponse(_));
        assert!(error.to_string().contains("another request"), "{error}");
        assert!(error.pending.is_some(), "the error contains the call");
    }
    assert_eq!(call(&client, "echo", "afterwards").await, "afterwards");
}

fn is_running(pid: &str) -> bool {
    Path::new("/proc").join(pid).exists()
}

#[tokio::test]
async fn stubborn_server_behind_a_wrapper_is_killed() {
    let mut command = Command::new("sh");
    let script = format!("python3 {SCRIPT} stubborn; true");
    command.args(["-c", &script]).process_group(0);
    let client = start_command(command).await;
    let server = call(&client, "pid", "").await;
    within("the exit", client.close()).await;
    assert!(!is_running(&server), "{server}");
}

#[tokio::test]
async fn stubborn_child_of_an_exited_server_is_killed() {
    let mut command = Command::new("python3");
    command.arg(SCRIPT).process_group(0);
    let client = start_command(command).await;
    let child = call(&client, "leave", "").await;
    until("the exit", || !is_running(&child)).await;
    // The next call waited for that.
    assert_no_violations(client).await;
}

/// After a server exits, its output may stay open for a while. Nothing can be sent in that time.
#[tokio::test]
async fn call_during_a_server_exit_goes_to_the_restarted_server() {
    let client = start().await;
    let first = call(&client, "exit", "").await;
    until("the exit", || !is_running(&first)).await;
    assert_ne!(call(&client, "exit", "").await, first);
}

#[tokio::test]
async fn message_with_too_many_values_fails_only_its_request() {
    let client = start().await;
    let waiting = client.call_tool("wait", json!({}));
    let others = async {
        let values = client.call_tool("values", json!({"text": ""}));
        let error = within("the error", values).await.unwrap_err();
        assert_matches!(error.kind, ErrorKind::TooLarge { .. });
        assert!(error.to_string().contains("JSON values"), "{error}");
        assert_eq!(call(&client, "echo", "afterwards").await, "afterwards");
    };
    tokio::select! {
        ended = waiting => panic!("the tool never returns: {ended:?}"),
        () = others => {}
    }
    assert_no_violations(client).await;
}
