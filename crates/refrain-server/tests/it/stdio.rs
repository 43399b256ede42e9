//! The stdio transport: one message per line.

use crate::support::{
    CAPABILITIES_KEY, LOG_LEVEL_KEY, Request, SignalReceiver, Signals, StdioClient, asked, cancel,
    echo, echo_call, expect_signal, greet, held, login, signals, text, token, within,
};
use refrain_core::{Cx, Result};
use refrain_server::{BearerTokens, Server, ServerLimits, State, Tool};
use refrain_wire::LogLevel;
use serde_json::{Value, json};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

/// The limit of a line in bytes.
const LINE: usize = 2000;

/// Spawns a task that reports after the end of the call.
async fn leaving(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    cx.progress(1.0, None, "");
    let (task, own) = (cx.clone(), Arc::clone(&signals));
    tokio::spawn(async move {
        task.cancelled().await;
        task.progress(2.0, None, "too late");
        task.log(LogLevel::Info, "too late");
        own.say("reported");
    });
    Ok("left".into())
}

/// Logs more than the client reads.
async fn talk(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    for n in 0..50 {
        cx.log(LogLevel::Info, format!("{n} {}", "x".repeat(200)));
    }
    signals.pass().await;
    Ok("never".into())
}

/// Returns more than the client may leave unread.
async fn large(_: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    signals.say("made");
    Ok("x".repeat(65 << 20))
}

struct Client {
    pipe: StdioClient,
    signals: Arc<Signals>,
    received: SignalReceiver,
}

fn client(grace: Duration) -> Client {
    client_with(ServerLimits {
        drain_grace: grace,
        ..ServerLimits::default()
    })
}

fn client_with(limits: ServerLimits) -> Client {
    let (signals, received) = signals();
    let server = Server::builder("stdio", "1")
        .tool(Tool::new("echo", echo))
        .tool(Tool::new("greet", greet))
        .tool(Tool::new("held", held))
        .tool(Tool::new("leaving", leaving))
        .tool(Tool::new("talk", talk))
        .tool(Tool::new("large", large))
        // Rejects all callers over HTTP. Not used for stdio.
        .authenticator(BearerTokens::new())
        .state(signals.clone())
        .limits(ServerLimits {
            body: LINE,
            ..limits
        });
    Client {
        pipe: StdioClient::start(server),
        signals,
        received,
    }
}

const GRACE: Duration = Duration::from_secs(3600);

impl Client {
    async fn expect_signal(&mut self, what: &'static str) {
        assert_eq!(within(what, self.received.recv()).await, Some(what));
    }
}

impl Deref for Client {
    type Target = StdioClient;

    fn deref(&self) -> &StdioClient {
        &self.pipe
    }
}

impl DerefMut for Client {
    fn deref_mut(&mut self) -> &mut StdioClient {
        &mut self.pipe
    }
}

fn echo_with_id(id: u32) -> Request {
    echo_call().id(json!(id))
}

#[tokio::test]
async fn requests_and_replies_are_lines() {
    let mut client = client(GRACE);
    client.send(&echo_with_id(1)).await;
    let reply = client.read().await;
    assert_eq!((&reply["id"], text(&reply)), (&json!(1), "Echo: x"));

    let plain = || Request::tool("greet", json!({}));
    client.send(&plain()).await;
    let first = client.read().await;
    assert_eq!(asked(&first), ["login"]);
    client
        .send(&plain().again(&token(&first), login("octocat")))
        .await;
    assert_eq!(text(&client.read().await), "Hello, octocat!");

    client.send(&Request::rpc("tools/list", json!({}))).await;
    assert_eq!(
        client.read().await["result"]["tools"]
            .as_array()
            .map(Vec::len),
        Some(6)
    );
    assert!(client.pipe.end().await.is_empty());
}

#[tokio::test]
async fn empty_lines_notifications_and_malformed_lines_are_handled() {
    let mut client = client(GRACE);
    client.line("").await;
    client.line("  \r").await;
    client
        .line(r#"{"jsonrpc":"2.0","method":"notifications/unheard-of"}"#)
        .await;
    client
        .line(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}"#)
        .await;
    client
        .line(r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#)
        .await;
    for (line, code) in [
        (&b"nope"[..], -32700),
        (b"\xff\xfe", -32700),
        (b"[]", -32600),
        (b"{}", -32600),
        (br#"{"jsonrpc":"2.0","id":4,"result":{}}"#, -32600),
        (br#"{"jsonrpc":"2.0","id":4,"method":"nope"}"#, -32601),
        (br#"{"jsonrpc":"2.0","id":4,"method":"tools/list"}"#, -32602),
    ] {
        client.line(line).await;
        let reply = client.read().await;
        assert_eq!(reply["error"]["code"], code, "{reply}");
    }
    // CRLF line ending.
    let mut message = echo_with_id(2).message();
    message.push(b'\r');
    client.line(message).await;
    assert_eq!(text(&client.read().await), "Echo: x");
    assert!(client.pipe.end().await.is_empty());
}

#[tokio::test]
async fn calls_run_concurrently_and_logs_precede_the_reply() {
    let mut client = client(GRACE);
    let slow = Request::tool("held", json!({})).id(json!("slow"));
    client.send(&slow.meta(LOG_LEVEL_KEY, json!("info"))).await;
    client.expect_signal("started").await;
    assert_eq!(
        client.read().await["params"],
        json!({"level": "info", "data": "started"})
    );
    client.send(&echo_with_id(2)).await;
    assert_eq!(client.read().await["id"], 2);
    client.signals.open();
    let reply = client.read().await;
    assert_eq!(
        (&reply["id"], text(&reply)),
        (&json!("slow"), "let through")
    );
    assert!(client.pipe.end().await.is_empty());
}

#[tokio::test]
async fn cancelled_call_is_dropped_without_a_reply() {
    let mut client = client(GRACE);
    for (id, other) in [(json!(7), json!("7")), (json!("7"), json!(7))] {
        client
            .send(&Request::tool("held", json!({})).id(id.clone()))
            .await;
        client.expect_signal("started").await;
        client.line(cancel(&other).to_string()).await;
        client.send(&echo_with_id(1)).await;
        client.read().await;
        assert!(
            client.received.try_recv().is_err(),
            "an id of another type cancelled the call"
        );
        client.line(cancel(&id).to_string()).await;
        client.expect_signal("dropped").await;
        // The cancelled call has no reply.
        client.send(&echo_with_id(2)).await;
        assert_eq!(client.read().await["id"], 2);
    }
    assert!(client.pipe.end().await.is_empty());
}

#[tokio::test]
async fn cancellation_ignores_how_the_id_is_escaped() {
    let mut client = client(GRACE);
    let held = Request::tool("held", json!({})).id(json!("ID"));
    let held = String::from_utf8(held.message()).expect("text");
    let plain = "\"caf\u{e9}\"";
    for (id, cancelled_id) in [(plain, r#""caf\u00e9""#), (r#""c\u0061f\u00E9""#, plain)] {
        client.line(held.replace(r#""ID""#, id)).await;
        client.expect_signal("started").await;
        let cancel =
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":ID}}"#;
        client.line(cancel.replace("ID", cancelled_id)).await;
        client.expect_signal("dropped").await;
    }
    assert!(client.pipe.end().await.is_empty());
}

#[tokio::test]
async fn late_or_malformed_cancellation_is_ignored() {
    let mut client = client(GRACE);
    let cancel = |params: Value| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
    client.send(&echo_with_id(1)).await;
    assert_eq!(text(&client.read().await), "Echo: x");
    client
        .send(&Request::tool("held", json!({})).id(json!("h")))
        .await;
    client.expect_signal("started").await;
    for params in [
        json!({"requestId": 1, "reason": "already replied"}),
        json!({"requestId": 1}),
        json!({"requestId": "unheard-of"}),
        json!({"requestId": null}),
        json!({"requestId": ["h"]}),
        json!({"reason": "h"}),
        json!({}),
    ] {
        client.line(cancel(params).to_string()).await;
        client.send(&echo_with_id(2)).await;
        assert_eq!(client.read().await["id"], 2);
    }
    assert!(client.received.try_recv().is_err(), "a call was cancelled");
    client.signals.open();
    assert_eq!(text(&client.read().await), "let through");
    assert!(client.pipe.end().await.is_empty());
}

#[tokio::test]
async fn ended_call_sends_no_further_messages() {
    let mut client = client(GRACE);
    let request = Request::tool("leaving", json!({})).meta("progressToken", json!("p"));
    client
        .send(&request.meta(LOG_LEVEL_KEY, json!("debug")))
        .await;
    let note = client.read().await;
    assert_eq!(note["params"], json!({"progressToken": "p", "progress": 1}));
    assert_eq!(text(&client.read().await), "left");
    client.expect_signal("reported").await;
    client.send(&echo_with_id(2)).await;
    assert_eq!(client.read().await["id"], 2);
    assert!(client.pipe.end().await.is_empty());
}

#[tokio::test]
async fn requests_share_no_state() {
    let mut client = client(GRACE);
    for _ in 0..2 {
        client.send(&Request::tool("greet", json!({}))).await;
        assert_eq!(asked(&client.read().await), ["login"]);
        let cannot = Request::tool("greet", json!({})).meta(CAPABILITIES_KEY, json!({}));
        client.send(&cannot).await;
        assert_eq!(client.read().await["error"]["code"], -32021);
        let silent = Request::tool("greet", json!({})).without_param("_meta");
        client.send(&silent).await;
        assert_eq!(client.read().await["error"]["code"], -32602);
    }
    assert!(client.pipe.end().await.is_empty());
}

#[tokio::test]
async fn overlong_line_is_rejected_and_skipped() {
    let mut client = client(GRACE);
    let of_length = |length: usize| {
        let empty = Request::tool("echo", json!({"text": ""})).message().len();
        Request::tool("echo", json!({"text": "x".repeat(length - empty)}))
    };
    client.send(&of_length(LINE)).await;
    assert!(text(&client.read().await).starts_with("Echo: xxx"));
    for length in [LINE + 1, 20 * LINE] {
        client.send(&of_length(length)).await;
        let reply = client.read().await;
        assert_eq!(reply["error"]["code"], -32600);
        let message = reply["error"]["message"].as_str().unwrap();
        assert!(message.contains(&LINE.to_string()), "{message}");
    }
    client.send(&echo_with_id(5)).await;
    assert_eq!(client.read().await["id"], 5);
    // The same without a line ending at the end of the input.
    client.write(&of_length(3 * LINE).message()).await;
    let rest = client.pipe.end().await;
    assert_eq!(
        (rest.len(), &rest[0]["error"]["code"]),
        (1, &json!(-32600)),
        "{rest:?}"
    );
}

#[tokio::test]
async fn running_calls_may_finish_after_the_end_of_input() {
    let mut client = client(GRACE);
    client
        .send(&Request::tool("held", json!({})).id(json!(1)))
        .await;
    client.expect_signal("started").await;
    // The last line has no line ending.
    client.write(&echo_with_id(2).message()).await;
    let signals = client.signals.clone();
    let opened = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        signals.open();
    });
    let rest = client.pipe.end().await;
    opened.await.expect("no panic");
    assert_eq!(
        (rest.len(), text(&rest[0]), text(&rest[1])),
        (2, "Echo: x", "let through")
    );
}

#[tokio::test]
async fn running_calls_are_cancelled_after_the_drain_grace() {
    let mut client = client(Duration::from_millis(50));
    client.send(&Request::tool("held", json!({}))).await;
    client.expect_signal("started").await;
    let mut received = std::mem::replace(&mut client.received, signals().1);
    assert!(client.pipe.end().await.is_empty());
    expect_signal(&mut received, "dropped").await;
}

#[tokio::test]
async fn queued_messages_of_a_cancelled_call_are_dropped() {
    let mut client = client(GRACE);
    let talk = Request::tool("talk", json!({})).meta(LOG_LEVEL_KEY, json!("info"));
    client.send(&talk.id(json!("talk"))).await;
    // Half of the messages exceed the buffer of the stream.
    let mut lines = vec![client.read().await];
    client
        .line(
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"talk"}}"#,
        )
        .await;
    // Lines are handled in order: once this call starts, the cancellation was read.
    client
        .send(&Request::tool("held", json!({})).id(json!("held")))
        .await;
    client.expect_signal("started").await;
    client.signals.open();
    loop {
        let message = client.read().await;
        if message["id"] == "held" {
            break;
        }
        assert_eq!(message.get("id"), None, "{message}");
        lines.push(message);
    }
    assert!(lines.len() < 50, "{} of 50 lines were sent", lines.len());
    assert!(client.pipe.end().await.is_empty());
}

#[tokio::test]
async fn shutdown_ends_subscriptions_and_waits_for_calls() {
    // Without a drain grace, only the drain time of a shutdown lets the call finish.
    let mut client = client(Duration::ZERO);
    let held = Request::tool("held", json!({}));
    client.send(&held.id(json!("held"))).await;
    client.expect_signal("started").await;
    let filter = json!({"notifications": {"toolsListChanged": true}});
    let listen = Request::rpc("subscriptions/listen", filter);
    client.send(&listen.id(json!("listen"))).await;
    let first = client.read().await;
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    client.stop();
    let mut ended = false;
    while !ended {
        ended = client.read().await["id"] == "listen";
    }
    client.signals.open();
    loop {
        let message = client.read().await;
        if message["id"] == "held" {
            assert_eq!(text(&message), "let through");
            break;
        }
    }
    client.stopped().await;
}

/// Runs all tasks of this thread until they are blocked.
async fn settle() {
    for _ in 0..2000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn shutdown_completes_although_the_client_does_not_read() {
    let long = "x".repeat(LINE + 1);
    for line in ["x", &long] {
        let mut client = client_with(ServerLimits {
            drain_time: Duration::from_millis(20),
            ..ServerLimits::default()
        });
        // More errors than fit in the queue and the stream.
        let mut input = client.take_input();
        let lines = format!("{line}\n").repeat(200);
        let writing = tokio::spawn(async move { input.write_all(lines.as_bytes()).await });
        settle().await;
        client.stop();
        client.stopped().await;
        writing.abort();
    }
}

#[tokio::test]
async fn cancellations_and_the_end_of_input_are_noticed_although_the_client_does_not_read() {
    let mut client = client_with(ServerLimits {
        drain_grace: Duration::from_millis(20),
        drain_time: Duration::from_millis(20),
        ..ServerLimits::default()
    });
    let call = |tool| Request::tool(tool, json!({})).id(json!(tool));
    client.send(&call("held")).await;
    client.expect_signal("started").await;
    client.send(&call("large")).await;
    client.expect_signal("made").await;
    settle().await;
    // This request waits until the client has read the reply.
    client.send(&echo_with_id(1)).await;
    client.message(&cancel("held")).await;
    client.expect_signal("dropped").await;
    client.send(&echo_with_id(2)).await;
    client.close().await;
    client.stopped().await;
}

#[tokio::test]
async fn closed_output_is_not_an_error() {
    let mut client = client(Duration::from_millis(20));
    let talk = Request::tool("talk", json!({})).meta(LOG_LEVEL_KEY, json!("info"));
    client.send(&talk.id(json!("talk"))).await;
    client.read().await;
    settle().await;
    client.pipe.leave().await;
}
