//! A modern server behind a pipe, that sees whether its client keeps to the rules.

use crate::support::within;
use refrain_client::wire::Filter;
use refrain_client::{Change, Client, Limits};
use serde_json::json;
use std::process::Command;
use std::time::Duration;

async fn start() -> Client {
    let mut command = Command::new("python3");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/rules_pipe.py");
    command.arg(script);
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
