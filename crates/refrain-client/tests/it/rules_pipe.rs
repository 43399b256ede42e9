//! A modern server behind a pipe, that sees whether its client keeps to the rules.

use crate::support::{until, within};
use refrain_client::wire::Filter;
use refrain_client::{Change, Client, ErrorKind, Limits};
use serde_json::json;
use std::process::Command;
use std::time::Duration;

async fn start() -> Client {
    start_with(&[]).await
}

async fn start_with(words: &[&str]) -> Client {
    let mut command = Command::new("python3");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/rules_pipe.py");
    command.arg(script).args(words);
    // However long it takes to start, it is not greeted as an older one.
    let limits = Limits {
        probe: Duration::from_secs(600),
        ..Limits::default()
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

/// The server has seen nothing but messages, and in them nothing that may not be.
async fn nothing_is_broken(client: Client) {
    assert_eq!(call(&client, "broken", "").await, "");
    within("its end", client.close()).await;
}

#[tokio::test]
async fn a_message_is_one_line_whatever_is_in_it() {
    let client = start().await;
    let text = "one\ntwo\r\n\u{2028}three\u{0}";
    assert_eq!(call(&client, "echo", text).await, text);
    nothing_is_broken(client).await;
}

#[tokio::test]
async fn an_answer_to_what_was_cancelled_is_passed_over() {
    let client = start().await;
    for _ in 0..3 {
        tokio::select! {
            biased;
            ended = client.call_tool("wait", json!({})) => panic!("it waits: {ended:?}"),
            text = call(&client, "echo", "meanwhile") => assert_eq!(text, "meanwhile"),
        }
        assert_eq!(call(&client, "echo", "afterwards").await, "afterwards");
    }
    nothing_is_broken(client).await;
}

#[tokio::test]
async fn each_subscription_hears_its_own_until_it_is_cancelled() {
    let client = start().await;
    let wanted = |uri: &str| Filter {
        uris: vec![uri.to_owned()],
        ..Filter::default()
    };
    let mut first = client.listen(&wanted("file:///0")).await.unwrap();
    let mut second = client.listen(&wanted("file:///1")).await.unwrap();
    assert_eq!(call(&client, "change", "").await, "changed");
    for (listening, uri) in [(&mut first, "file:///0"), (&mut second, "file:///1")] {
        let change = within("a change", listening.next()).await.unwrap();
        assert_eq!(change, Some(Change::Resource(uri.to_owned())));
    }
    assert_eq!(call(&client, "end", "").await, "ended");
    assert_eq!(within("the end", first.next()).await.unwrap(), None);
    assert_eq!(call(&client, "change", "").await, "changed");
    let change = within("a change", second.next()).await.unwrap();
    assert_eq!(change, Some(Change::Resource("file:///1".to_owned())));
}

#[tokio::test]
async fn a_task_is_looked_after_while_the_server_does_not_say_whether_it_tells() {
    let client = start_with(&["mute"]).await;
    assert_eq!(call(&client, "task", "").await, "built");
}

#[tokio::test]
async fn a_response_to_nothing_ends_the_only_request() {
    let client = start().await;
    // The number that was sent, as a string: another id.
    for id in ["", "2"] {
        let called = client.call_tool("unasked", json!({"text": id}));
        let error = within("the error", called).await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::BadAnswer(_)), "{error}");
        assert!(error.to_string().contains("another request"), "{error}");
        assert!(error.pending.is_some(), "the call is not lost");
    }
    assert_eq!(call(&client, "echo", "afterwards").await, "afterwards");
}

/// Between the end of a server and the last of what it wrote there is a while in which nothing can be sent.
#[tokio::test]
async fn a_call_that_finds_the_server_ending_is_made_to_the_next_one() {
    let client = start().await;
    let first = call(&client, "leave", "").await;
    let process = std::path::Path::new("/proc").join(&first);
    until("its end", || !process.exists()).await;
    assert_ne!(call(&client, "leave", "").await, first);
}
