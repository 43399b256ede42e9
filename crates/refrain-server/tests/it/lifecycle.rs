//! Handlers that panic, hang or are cancelled, and overloaded instances.

use crate::support::{
    Instance, LOG_LEVEL_KEY, Login, Request, SignalReceiver, Signals, asked, echo, echo_call,
    expect_signal, held, login, poll_again, signals, start, text, token, within,
};
use futures_util::future::join;
use refrain_core::{Cx, Result};
use refrain_server::{Server, ServerLimits, State, Tool};
use refrain_wire::LogLevel;
use serde_json::json;
use std::future::{Future, pending, ready};
use std::sync::Arc;
use std::time::Duration;

async fn boom(cx: Cx) -> Result<String> {
    cx.log(LogLevel::Info, "soon");
    panic!("a secret of the handler");
}

/// Panics before it returns a future.
fn boom_at_once(cx: Cx) -> impl Future<Output = Result<String>> + Send {
    if cx.can_elicit() {
        panic!("a secret of the handler");
    }
    drop(cx);
    ready(Ok(String::new()))
}

/// Panics in its second round.
async fn boom_later(cx: Cx) -> Result<String> {
    let login: Login = cx.elicit("login", "Who?").await?;
    panic!("a secret about {}", login.name);
}

/// Spawns a task that waits for the cancellation of the call.
async fn spawning(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    let (task_signals, task_cx) = (Arc::clone(&signals), cx.clone());
    tokio::spawn(async move {
        task_cx.cancelled().await;
        task_signals.say("cancelled");
    });
    signals.say("started");
    pending().await
}

async fn hang(_: Cx) -> Result<String> {
    pending().await
}

/// Logs at every poll.
async fn chatter(cx: Cx) -> Result<String> {
    loop {
        cx.log(LogLevel::Info, "and on");
        poll_again().await;
    }
}

/// Asks concurrently with a step that hangs.
async fn hang_with_an_ask(cx: Cx) -> Result<String> {
    let step = cx.step("hang", pending::<Result<u32>>());
    let (login, _) = join(cx.elicit::<Login>("login", "Who?"), step).await;
    Ok(login?.name)
}

async fn instance(limits: ServerLimits) -> (Instance, Arc<Signals>, SignalReceiver) {
    let (signals, received) = signals();
    let builder = Server::builder("life", "1")
        .tool(Tool::new("echo", echo))
        .tool(Tool::new("boom", boom))
        .tool(Tool::new("boom_at_once", boom_at_once))
        .tool(Tool::new("boom_later", boom_later))
        .tool(Tool::new("held", held))
        .tool(Tool::new("spawning", spawning))
        .tool(Tool::new("hang", hang))
        .tool(Tool::new("chatter", chatter))
        .tool(Tool::new("hang_with_an_ask", hang_with_an_ask))
        .state(signals.clone())
        .limits(limits);
    (start(builder).await, signals, received)
}

fn call(tool: &str) -> Request {
    Request::tool(tool, json!({}))
}

#[tokio::test]
async fn panic_is_an_error_and_the_instance_continues() {
    let (instance, ..) = instance(ServerLimits::default()).await;
    let mut connection = instance.connect().await;
    for tool in ["boom", "boom_at_once", "boom"] {
        let response = connection.exchange(&call(tool).id(json!("p"))).await;
        let message = response.error(200, -32603);
        assert!(
            message.contains("panicked") && !message.contains("secret"),
            "{message}"
        );
        assert_eq!(response.json()["id"], "p");
        // The connection stays open.
        assert_eq!(
            text(&connection.exchange(&echo_call()).await.reply()),
            "Echo: x"
        );
    }
    assert_eq!(instance.server.running(), 0);
}

#[tokio::test]
async fn panic_in_a_later_round_or_stream_is_an_error() {
    let (instance, ..) = instance(ServerLimits::default()).await;
    let first = instance.send(&call("boom_later")).await.reply();
    let second = call("boom_later").again(&token(&first), login("x"));
    assert!(
        !instance
            .send(&second)
            .await
            .error(200, -32603)
            .contains("secret")
    );

    let events = instance
        .send(&call("boom").meta(LOG_LEVEL_KEY, json!("info")))
        .await
        .events();
    assert_eq!(events.len(), 2);
    assert_eq!(events[0]["params"]["data"], "soon");
    assert_eq!(events[1]["error"]["code"], -32603);
    assert_eq!(instance.server.running(), 0);
}

#[tokio::test]
async fn disconnected_client_cancels_the_handler() {
    let (instance, _signals, mut received) = instance(ServerLimits::default()).await;
    for request in [
        call("held"),
        call("held").meta(LOG_LEVEL_KEY, json!("info")),
    ] {
        let mut connection = instance.connect().await;
        connection.send(&request).await;
        expect_signal(&mut received, "started").await;
        assert_eq!(instance.server.running(), 1);
        assert!(received.try_recv().is_err(), "not cancelled yet");
        drop(connection);
        expect_signal(&mut received, "dropped").await;
        instance.at_rest().await;
    }
}

#[tokio::test]
async fn client_that_disconnects_mid_stream_cancels_the_handler() {
    let (instance, _signals, mut received) = instance(ServerLimits::default()).await;
    let mut connection = instance.connect().await;
    connection
        .send(&call("held").meta(LOG_LEVEL_KEY, json!("info")))
        .await;
    connection.head().await;
    assert_eq!(
        connection.event().await.unwrap()["params"]["data"],
        "started"
    );
    expect_signal(&mut received, "started").await;
    drop(connection);
    expect_signal(&mut received, "dropped").await;
    instance.at_rest().await;
}

#[tokio::test]
async fn spawned_tasks_of_a_handler_are_notified_of_cancellation() {
    let (instance, _signals, mut received) = instance(ServerLimits::default()).await;
    let mut connection = instance.connect().await;
    connection.send(&call("spawning")).await;
    expect_signal(&mut received, "started").await;
    assert!(received.try_recv().is_err());
    drop(connection);
    expect_signal(&mut received, "cancelled").await;
}

#[tokio::test]
async fn round_timeout_is_an_error_or_sends_the_open_asks() {
    let limits = ServerLimits {
        round_time: Duration::from_millis(100),
        ..ServerLimits::default()
    };
    let (instance, ..) = instance(limits).await;
    let message = instance.send(&call("hang")).await.error(200, -32603);
    assert!(message.contains("time limit"), "{message}");
    let reply = instance.send(&call("hang_with_an_ask")).await.reply();
    assert_eq!(asked(&reply), ["login"]);
    assert!(!token(&reply).is_empty());
    instance.at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handler_with_constant_logging_is_timed_out() {
    let limits = ServerLimits {
        round_time: Duration::from_millis(100),
        ..ServerLimits::default()
    };
    let (instance, ..) = instance(limits).await;
    let mut connection = instance.connect().await;
    connection
        .send(&call("chatter").meta(LOG_LEVEL_KEY, json!("info")))
        .await;
    connection.head().await;
    let last = within("the reply", async {
        loop {
            let event = connection.event().await.expect("a reply at the end");
            if event.get("id").is_some() {
                return event;
            }
            assert_eq!(event["params"]["data"], "and on");
        }
    });
    let last = last.await;
    let message = last["error"]["message"].as_str();
    assert!(
        message.is_some_and(|it| it.contains("time limit")),
        "{last}"
    );
    instance.at_rest().await;
}

#[tokio::test]
async fn call_over_the_limit_is_rejected() {
    let limits = ServerLimits {
        concurrent_calls: 2,
        ..ServerLimits::default()
    };
    let (instance, signals, mut received) = instance(limits).await;
    let mut busy = Vec::new();
    for _ in 0..2 {
        let mut connection = instance.connect().await;
        connection.send(&call("held")).await;
        expect_signal(&mut received, "started").await;
        busy.push(connection);
    }
    for _ in 0..3 {
        let response = instance.send(&echo_call().id(json!("late"))).await;
        let message = response.error(503, -32603);
        assert!(message.contains("limit of 2"), "{message}");
        assert_eq!(response.header("retry-after"), Some("1"));
        assert_eq!(response.json()["id"], "late");
    }
    // Requests without a handler are still answered.
    let listed = instance
        .send(&Request::rpc("tools/list", json!({})))
        .await
        .reply();
    assert!(listed["result"]["tools"].is_array());

    signals.open();
    signals.open();
    for connection in &mut busy {
        assert_eq!(text(&connection.response().await.reply()), "let through");
    }
    instance.at_rest().await;
    assert_eq!(text(&instance.send(&echo_call()).await.reply()), "Echo: x");
}

#[tokio::test]
async fn calls_on_many_connections_run_concurrently() {
    let (instance, signals, mut received) = instance(ServerLimits::default()).await;
    let mut connections = Vec::new();
    for _ in 0..20 {
        let mut connection = instance.connect().await;
        connection.send(&call("held")).await;
        connections.push(connection);
    }
    for _ in 0..20 {
        expect_signal(&mut received, "started").await;
    }
    assert_eq!(instance.server.running(), 20);
    for _ in 0..20 {
        signals.open();
    }
    for connection in &mut connections {
        assert_eq!(text(&connection.response().await.reply()), "let through");
    }
}
