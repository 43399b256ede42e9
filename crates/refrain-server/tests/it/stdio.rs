//! The server on a pair of streams: one message a line.

use crate::support::{
    CAPABILITIES, Guard, LOG_LEVEL, Request, Signals, StdioClient, asked, echo, greet, signals,
    text, token, within,
};
use refrain_core::{Cx, Result};
use refrain_server::{BearerTokens, Server, ServerLimits, State, Tool};
use refrain_wire::LogLevel;
use serde_json::{Value, json};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc::UnboundedReceiver;

/// The longest line.
const LINE: usize = 2000;

async fn held(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    let _guard = Guard(Arc::clone(&signals));
    cx.log(LogLevel::Info, "begun");
    signals.say("begun");
    signals.pass().await;
    Ok("let through".into())
}

/// Leaves a task behind that goes on reporting when the call is over.
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

/// Says more than the other side reads.
async fn talk(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    for n in 0..50 {
        cx.log(LogLevel::Info, format!("{n} {}", "x".repeat(200)));
    }
    signals.pass().await;
    Ok("never".into())
}

struct Client {
    pipe: StdioClient,
    signals: Arc<Signals>,
    heard: UnboundedReceiver<&'static str>,
}

fn client(grace: Duration) -> Client {
    client_with(ServerLimits {
        drain_grace: grace,
        ..ServerLimits::default()
    })
}

fn client_with(limits: ServerLimits) -> Client {
    let (signals, heard) = signals();
    let server = Server::builder("stdio", "1")
        .tool(Tool::new("echo", echo))
        .tool(Tool::new("greet", greet))
        .tool(Tool::new("held", held))
        .tool(Tool::new("leaving", leaving))
        .tool(Tool::new("talk", talk))
        // Over HTTP nobody may call; here nobody is asked.
        .authenticator(BearerTokens::new())
        .state(signals.clone())
        .limits(ServerLimits {
            body: LINE,
            ..limits
        });
    Client {
        pipe: StdioClient::start(server),
        signals,
        heard,
    }
}

const GRACE: Duration = Duration::from_secs(3600);

impl Client {
    async fn hears(&mut self, what: &'static str) {
        assert_eq!(within(what, self.heard.recv()).await, Some(what));
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

fn word(id: u32) -> Request {
    Request::tool("echo", json!({"text": "x"})).id(json!(id))
}

#[tokio::test]
async fn requests_are_answered_line_by_line() {
    let mut client = client(GRACE);
    client.send(&word(1)).await;
    let reply = client.read().await;
    assert_eq!((&reply["id"], text(&reply)), (&json!(1), "Echo: x"));

    let plain = || Request::tool("greet", json!({}));
    client.send(&plain()).await;
    let first = client.read().await;
    assert_eq!(asked(&first), ["login"]);
    let answers = json!({"login": {"action": "accept", "content": {"name": "octocat"}}});
    client.send(&plain().again(&token(&first), answers)).await;
    assert_eq!(text(&client.read().await), "Hello, octocat!");

    client.send(&Request::rpc("tools/list", json!({}))).await;
    assert_eq!(
        client.read().await["result"]["tools"]
            .as_array()
            .map(Vec::len),
        Some(5)
    );
    assert!(client.pipe.end().await.is_empty());
}

#[tokio::test]
async fn lines_without_a_request_are_dealt_with() {
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
    // A line may end as on Windows.
    let mut message = word(2).message();
    message.push(b'\r');
    client.line(message).await;
    assert_eq!(text(&client.read().await), "Echo: x");
    assert!(client.pipe.end().await.is_empty());
}

#[tokio::test]
async fn calls_run_side_by_side_and_notes_come_before_the_reply() {
    let mut client = client(GRACE);
    let slow = Request::tool("held", json!({})).id(json!("slow"));
    client.send(&slow.meta(LOG_LEVEL, json!("info"))).await;
    client.hears("begun").await;
    assert_eq!(
        client.read().await["params"],
        json!({"level": "info", "data": "begun"})
    );
    client.send(&word(2)).await;
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
async fn a_call_can_be_cancelled() {
    let mut client = client(GRACE);
    for (id, other) in [(json!(7), json!("7")), (json!("7"), json!(7))] {
        let cancel = |id: &Value| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
        client
            .send(&Request::tool("held", json!({})).id(id.clone()))
            .await;
        client.hears("begun").await;
        client.line(cancel(&other).to_string()).await;
        client.send(&word(1)).await;
        client.read().await;
        assert!(
            client.heard.try_recv().is_err(),
            "another id is another call"
        );
        client.line(cancel(&id).to_string()).await;
        client.hears("dropped").await;
        // It is not answered any more.
        client.send(&word(2)).await;
        assert_eq!(client.read().await["id"], 2);
    }
    assert!(client.pipe.end().await.is_empty());
}

/// The id is the text or the number, not the way it is written.
#[tokio::test]
async fn a_call_is_cancelled_by_its_id_however_that_is_escaped() {
    let mut client = client(GRACE);
    let held = Request::tool("held", json!({})).id(json!("ID"));
    let held = String::from_utf8(held.message()).expect("text");
    let plain = "\"caf\u{e9}\"";
    for (id, named) in [(plain, r#""caf\u00e9""#), (r#""c\u0061f\u00E9""#, plain)] {
        client.line(held.replace(r#""ID""#, id)).await;
        client.hears("begun").await;
        let cancel =
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":ID}}"#;
        client.line(cancel.replace("ID", named)).await;
        client.hears("dropped").await;
    }
    assert!(client.pipe.end().await.is_empty());
}

#[tokio::test]
async fn a_cancellation_that_is_late_or_makes_no_sense_does_no_harm() {
    let mut client = client(GRACE);
    let cancel = |params: Value| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
    client.send(&word(1)).await;
    assert_eq!(text(&client.read().await), "Echo: x");
    client
        .send(&Request::tool("held", json!({})).id(json!("h")))
        .await;
    client.hears("begun").await;
    for params in [
        json!({"requestId": 1, "reason": "the reply is there already"}),
        json!({"requestId": 1}),
        json!({"requestId": "unheard-of"}),
        json!({"requestId": null}),
        json!({"requestId": ["h"]}),
        json!({"reason": "h"}),
        json!({}),
    ] {
        client.line(cancel(params).to_string()).await;
        client.send(&word(2)).await;
        assert_eq!(client.read().await["id"], 2);
    }
    assert!(client.heard.try_recv().is_err(), "nothing was cancelled");
    client.signals.open();
    assert_eq!(text(&client.read().await), "let through");
    assert!(client.pipe.end().await.is_empty());
}

#[tokio::test]
async fn a_call_that_is_over_reports_nothing_more() {
    let mut client = client(GRACE);
    let request = Request::tool("leaving", json!({})).meta("progressToken", json!("p"));
    client.send(&request.meta(LOG_LEVEL, json!("debug"))).await;
    let note = client.read().await;
    assert_eq!(note["params"], json!({"progressToken": "p", "progress": 1}));
    assert_eq!(text(&client.read().await), "left");
    client.hears("reported").await;
    client.send(&word(2)).await;
    assert_eq!(client.read().await["id"], 2);
    assert!(client.pipe.end().await.is_empty());
}

#[tokio::test]
async fn a_line_says_all_there_is_to_know() {
    let mut client = client(GRACE);
    for _ in 0..2 {
        client.send(&Request::tool("greet", json!({}))).await;
        assert_eq!(asked(&client.read().await), ["login"]);
        let cannot = Request::tool("greet", json!({})).meta(CAPABILITIES, json!({}));
        client.send(&cannot).await;
        assert_eq!(client.read().await["error"]["code"], -32021);
        let silent = Request::tool("greet", json!({})).without_param("_meta");
        client.send(&silent).await;
        assert_eq!(client.read().await["error"]["code"], -32602);
    }
    assert!(client.pipe.end().await.is_empty());
}

#[tokio::test]
async fn a_line_that_is_too_long_is_refused_and_passed_over() {
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
    client.send(&word(5)).await;
    assert_eq!(client.read().await["id"], 5);
    // The same at the end of the input, where no line ends.
    client.write(&of_length(3 * LINE).message()).await;
    let rest = client.pipe.end().await;
    assert_eq!(
        (rest.len(), &rest[0]["error"]["code"]),
        (1, &json!(-32600)),
        "{rest:?}"
    );
}

#[tokio::test]
async fn at_the_end_of_the_input_what_runs_is_given_time() {
    let mut client = client(GRACE);
    client
        .send(&Request::tool("held", json!({})).id(json!(1)))
        .await;
    client.hears("begun").await;
    // The last line need not end.
    client.write(&word(2).message()).await;
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
async fn at_the_end_of_the_input_what_does_not_end_is_cancelled() {
    let mut client = client(Duration::from_millis(50));
    client.send(&Request::tool("held", json!({}))).await;
    client.hears("begun").await;
    let mut heard = std::mem::replace(&mut client.heard, signals().1);
    assert!(client.pipe.end().await.is_empty());
    assert_eq!(
        within("the handler to be dropped", heard.recv()).await,
        Some("dropped")
    );
}

#[tokio::test]
async fn what_is_queued_for_a_cancelled_call_is_not_sent() {
    let mut client = client(GRACE);
    let talk = Request::tool("talk", json!({})).meta(LOG_LEVEL, json!("info"));
    client.send(&talk.id(json!("talk"))).await;
    // Half of what it says is more than the other side holds unread.
    let mut said = vec![client.read().await];
    client
        .line(
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"talk"}}"#,
        )
        .await;
    // Lines are taken in order: when this one is begun, the cancellation was read.
    client
        .send(&Request::tool("held", json!({})).id(json!("held")))
        .await;
    client.hears("begun").await;
    client.signals.open();
    loop {
        let message = client.read().await;
        if message["id"] == "held" {
            break;
        }
        assert_eq!(message.get("id"), None, "{message}");
        said.push(message);
    }
    assert!(said.len() < 50, "{} of 50 lines were sent", said.len());
    assert!(client.pipe.end().await.is_empty());
}

#[tokio::test]
async fn told_to_stop_it_ends_subscriptions_and_waits_for_what_runs() {
    // No grace at all: what runs is waited for because it was told to stop.
    let mut client = client(Duration::ZERO);
    let held = Request::tool("held", json!({}));
    client.send(&held.id(json!("held"))).await;
    client.hears("begun").await;
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

/// Lets all tasks of this thread go on until they wait for each other.
async fn settle() {
    for _ in 0..2000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn told_to_stop_it_ends_though_nobody_reads() {
    let long = "x".repeat(LINE + 1);
    for line in ["x", &long] {
        let mut client = client_with(ServerLimits {
            drain_time: Duration::from_millis(20),
            ..ServerLimits::default()
        });
        // More errors than are queued and the stream holds. What the server does not take is not waited for.
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
async fn a_client_that_leaves_while_it_is_written_to_is_no_error() {
    let mut client = client(Duration::from_millis(20));
    let talk = Request::tool("talk", json!({})).meta(LOG_LEVEL, json!("info"));
    client.send(&talk.id(json!("talk"))).await;
    client.read().await;
    settle().await;
    client.pipe.leave().await;
}
