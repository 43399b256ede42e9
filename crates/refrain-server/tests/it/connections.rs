//! Connections that keep a server waiting, or send it too much.

use crate::support::{Instance, Request, Signals, echo, signals, start, text, within};
use refrain_core::{Cx, Result};
use refrain_server::{Server, ServerLimits, State, Tool};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

/// More than a busy machine needs to send a request on a connection it has just opened.
const IDLE: Duration = Duration::from_millis(500);

async fn held(_: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    signals.say("begun");
    signals.pass().await;
    Ok("let through".into())
}

async fn instance(
    limits: ServerLimits,
) -> (Instance, Arc<Signals>, UnboundedReceiver<&'static str>) {
    let (signals, heard) = signals();
    let builder = Server::builder("connections", "1")
        .tool(Tool::new("echo", echo))
        .tool(Tool::new("held", held))
        .state(signals.clone())
        .limits(limits);
    (start(builder).await, signals, heard)
}

fn word() -> Request {
    Request::tool("echo", json!({"text": "x"}))
}

#[tokio::test]
async fn one_that_sends_nothing_is_closed() {
    let limits = ServerLimits {
        idle_time: IDLE,
        ..ServerLimits::default()
    };
    let (instance, ..) = instance(limits).await;
    let mut done = instance.connect().await;
    assert_eq!(text(&done.exchange(&word()).await.reply()), "Echo: x");
    let mut slow = instance.connect().await;
    slow.write(b"POST /mcp HTTP/1.1\r\nHost: loc").await;
    let mut silent = instance.connect().await;
    for connection in [&mut done, &mut slow, &mut silent] {
        connection.closed().await;
    }
}

#[tokio::test]
async fn one_whose_call_is_at_work_is_not() {
    let limits = ServerLimits {
        idle_time: IDLE,
        ..ServerLimits::default()
    };
    let (instance, signals, mut heard) = instance(limits).await;
    let mut busy = instance.connect().await;
    busy.send(&Request::tool("held", json!({}))).await;
    assert_eq!(within("the handler", heard.recv()).await, Some("begun"));
    tokio::time::sleep(4 * IDLE).await;
    signals.open();
    assert_eq!(text(&busy.response().await.reply()), "let through");
}

/// Not even a limit that makes no sense is a panic.
#[tokio::test]
async fn no_time_at_all_is_a_little() {
    let limits = ServerLimits {
        idle_time: Duration::ZERO,
        ..ServerLimits::default()
    };
    let (instance, ..) = instance(limits).await;
    instance.connect().await.closed().await;
}

#[tokio::test]
async fn a_body_far_over_the_limit_is_not_read() {
    let limits = ServerLimits {
        body: 1000,
        discard: 4000,
        ..ServerLimits::default()
    };
    let (instance, ..) = instance(limits).await;
    // What can be thrown away is, and the connection goes on.
    let mut connection = instance.connect().await;
    let over = Request::tool("echo", json!({"text": "x".repeat(2000)}));
    connection.exchange(&over).await.error(413, -32600);
    assert_eq!(text(&connection.exchange(&word()).await.reply()), "Echo: x");
    // One that says it is larger is answered before any of it came, and there the connection ends.
    let head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 4001\r\n\r\n";
    connection.write(head.as_bytes()).await;
    connection.response().await.error(413, -32600);
    connection.closed().await;
}
