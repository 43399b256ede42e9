//! Idle connections and oversized bodies.

use crate::support::{Instance, Request, Signals, echo, signals, start, text, within};
use refrain_core::{Cx, Result};
use refrain_server::{Server, ServerLimits, State, Tool};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

/// Longer than a loaded machine needs to send a request on a new connection.
const IDLE: Duration = Duration::from_millis(500);

async fn held(_: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    signals.say("started");
    signals.pass().await;
    Ok("let through".into())
}

async fn instance(
    limits: ServerLimits,
) -> (Instance, Arc<Signals>, UnboundedReceiver<&'static str>) {
    let (signals, received) = signals();
    let builder = Server::builder("connections", "1")
        .tool(Tool::new("echo", echo))
        .tool(Tool::new("held", held))
        .state(signals.clone())
        .limits(limits);
    (start(builder).await, signals, received)
}

fn word() -> Request {
    Request::tool("echo", json!({"text": "x"}))
}

#[tokio::test]
async fn idle_connection_is_closed() {
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
async fn connection_with_a_running_call_is_not_idle() {
    let limits = ServerLimits {
        idle_time: IDLE,
        ..ServerLimits::default()
    };
    let (instance, signals, mut received) = instance(limits).await;
    let mut busy = instance.connect().await;
    busy.send(&Request::tool("held", json!({}))).await;
    assert_eq!(
        within("the handler", received.recv()).await,
        Some("started")
    );
    tokio::time::sleep(4 * IDLE).await;
    signals.open();
    assert_eq!(text(&busy.response().await.reply()), "let through");
}

#[tokio::test]
async fn idle_time_of_zero_does_not_panic() {
    let limits = ServerLimits {
        idle_time: Duration::ZERO,
        ..ServerLimits::default()
    };
    let (instance, ..) = instance(limits).await;
    instance.connect().await.closed().await;
}

#[tokio::test]
async fn body_far_over_the_limit_closes_the_connection() {
    let limits = ServerLimits {
        body: 1000,
        discard: 4000,
        ..ServerLimits::default()
    };
    let (instance, ..) = instance(limits).await;
    // A body up to the discard limit is discarded, and the connection stays open.
    let mut connection = instance.connect().await;
    let over = Request::tool("echo", json!({"text": "x".repeat(2000)}));
    connection.exchange(&over).await.error(413, -32600);
    assert_eq!(text(&connection.exchange(&word()).await.reply()), "Echo: x");
    // A larger Content-Length is rejected before the body is read, and the connection is closed.
    let head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 4001\r\n\r\n";
    connection.write(head.as_bytes()).await;
    connection.response().await.error(413, -32600);
    connection.closed().await;
}
