//! Legacy clients over stdio: one session per process.

use crate::support::legacy::{call, filled_in, initialize, request};
use crate::support::{
    Clock, Guard, Login, SignalReceiver, Signals, StdioClient, assert_contains, cancel, echo,
    echo_call, expect_signal, greet, logs, note, signals, text, until, within,
};
use refrain_core::{Cx, Result};
use refrain_server::{Changes, Resource, Server, ServerBuilder, State, Tool};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

async fn guarded(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    let _guard = Guard(Arc::clone(&signals));
    let login: Login = cx.elicit("login", "Who are you?").await?;
    Ok(login.name)
}

struct Client {
    pipe: StdioClient,
    received: SignalReceiver,
}

fn client() -> Client {
    client_at(Clock::new())
}

fn client_at(clock: Arc<Clock>) -> Client {
    client_of(Server::builder("legacy", "1").source(clock))
}

fn client_of(builder: ServerBuilder) -> Client {
    let (signals, received) = signals();
    let server = builder
        .state(signals)
        .tool(Tool::new("echo", echo))
        .tool(Tool::new("logs", logs))
        .tool(Tool::new("greet", greet))
        .tool(Tool::new("guarded", guarded))
        .resource(Resource::new("notes://today", "today", note));
    let pipe = StdioClient::start(server);
    Client { pipe, received }
}

impl Client {
    async fn send(&mut self, message: &Value) {
        self.pipe.message(message).await;
    }

    async fn read(&mut self) -> Value {
        self.pipe.read().await
    }

    async fn ask(&mut self, message: &Value) -> Value {
        self.send(message).await;
        self.read().await
    }

    /// Updates a resource until the client is notified.
    async fn updated(&mut self, uri: &str) -> Value {
        let notified = async {
            loop {
                self.pipe.server.resource_updated(uri);
                tokio::select! {
                    message = self.pipe.next() => return message,
                    () = tokio::time::sleep(Duration::from_millis(20)) => {}
                }
            }
        };
        within("a notification", notified)
            .await
            .expect("a notification")
    }

    async fn open(&mut self, revision: &str) {
        let reply = self
            .ask(&initialize(revision, &json!({"elicitation": {}})))
            .await;
        assert_eq!(reply["result"]["protocolVersion"], revision);
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        self.send(&ready).await;
    }
}

#[tokio::test]
async fn initialize_opens_a_session() {
    let mut client = client();
    assert_eq!(
        client.ask(&request(1, "ping", json!({}))).await["result"],
        json!({})
    );
    // Other requests need a session.
    let early = client.ask(&request(2, "tools/list", json!({}))).await;
    assert_eq!(early["error"]["code"], -32602, "{early}");
    client.open("2025-11-25").await;
    let listed = client.ask(&request(3, "tools/list", json!({}))).await;
    assert_eq!(listed["result"]["tools"].as_array().map(Vec::len), Some(4));
    assert!(listed["result"].get("resultType").is_none(), "{listed}");
    let twice = client.ask(&initialize("2025-11-25", &json!({}))).await;
    assert_eq!(twice["error"]["code"], -32600);
    let message = twice["error"]["message"].as_str().expect("a message");
    assert!(
        message.contains("process") && !message.contains("header"),
        "{message}"
    );
    // A 2026-07-28 request is handled as such.
    let modern = echo_call();
    let modern: Value = serde_json::from_slice(&modern.message()).expect("JSON");
    assert_eq!(text(&client.ask(&modern).await), "Echo: x");
}

#[tokio::test]
async fn asks_and_answers_are_exchanged_as_lines() {
    let mut client = client();
    client.open("2025-06-18").await;
    let asked = client.ask(&call(1, "greet", json!({}))).await;
    assert_eq!(asked["method"], "elicitation/create");
    // Other requests are answered meanwhile.
    assert_eq!(client.ask(&request(2, "ping", json!({}))).await["id"], 2);
    let reply = client.ask(&filled_in(&asked, "Ann")).await;
    assert_eq!(reply["id"], 1);
    assert_eq!(reply["result"]["content"][0]["text"], "Hello, Ann!");
    let stray = json!({"jsonrpc": "2.0", "id": "never", "result": {}});
    let rejected = client.ask(&stray).await;
    assert_contains(
        rejected["error"]["message"].as_str().expect("text"),
        &["does not match a request"],
    );
}

#[tokio::test]
async fn cancelled_call_is_dropped() {
    let mut client = client();
    client.open("2025-11-25").await;
    client.ask(&call(1, "guarded", json!({}))).await;
    client.send(&cancel(1)).await;
    expect_signal(&mut client.received, "dropped").await;
    assert_eq!(client.ask(&request(2, "ping", json!({}))).await["id"], 2);
}

#[tokio::test]
async fn batches_are_split_into_messages() {
    let mut client = client();
    client.open("2025-03-26").await;
    let batch = json!([
        request(1, "ping", json!({})),
        call(2, "echo", json!({"text": "x"}))
    ]);
    client.send(&batch).await;
    let mut ids = [
        client.read().await["id"].as_u64(),
        client.read().await["id"].as_u64(),
    ];
    ids.sort_unstable();
    assert_eq!(ids, [Some(1), Some(2)]);
    let empty = client.ask(&json!([])).await;
    assert_contains(
        empty["error"]["message"].as_str().expect("text"),
        &["empty"],
    );
    let nested = json!([[request(3, "ping", json!({}))]]);
    let nested = client.ask(&nested).await;
    assert_eq!(nested["error"]["code"], -32600);
    let ping = |id| request(id, "ping", json!({}));
    client
        .send(&json!([
            ping(4),
            [ping(5)],
            call(6, "echo", json!({"text": "x"}))
        ]))
        .await;
    let mut replies = Vec::new();
    for _ in 0..3 {
        replies.push(client.read().await);
    }
    let answered = |id: u64| replies.iter().any(|reply| reply["id"] == id);
    assert_eq!([4, 5, 6].map(answered), [true, false, true]);
    let nested = |reply: &Value| reply["error"]["message"].as_str().map(str::to_owned);
    let nested = replies.iter().find_map(nested).expect("an error");
    assert_contains(&nested, &["nested batch"]);
    let many = Value::from(vec![ping(7); 101]);
    let many = client.ask(&many).await;
    assert_contains(many["error"]["message"].as_str().expect("text"), &["100"]);
    // An invalid message does not affect the others.
    client
        .send(&json!([7, request(3, "ping", json!({}))]))
        .await;
    let replies = [client.read().await, client.read().await];
    assert!(replies.iter().any(|reply| reply["error"]["code"] == -32600));
    assert!(replies.iter().any(|reply| reply["id"] == 3));
}

#[tokio::test]
async fn stdio_session_does_not_expire() {
    let clock = Clock::new();
    let mut client = client_at(clock.clone());
    client.open("2025-11-25").await;
    clock.forward(10 * 24 * 3600);
    let set = request(1, "logging/setLevel", json!({"level": "error"}));
    assert_eq!(client.ask(&set).await["result"], json!({}));
    // The log message of the call is below that level.
    let reply = client.ask(&call(2, "logs", json!({}))).await;
    assert_eq!(reply["id"], 2, "{reply}");
}

#[tokio::test]
async fn stdio_session_keeps_log_level_and_subscriptions() {
    let mut client = client();
    client.open("2025-11-25").await;
    let set = request(1, "logging/setLevel", json!({"level": "error"}));
    assert_eq!(client.ask(&set).await["result"], json!({}));
    let subscribe = request(2, "resources/subscribe", json!({"uri": "notes://today"}));
    assert_eq!(client.ask(&subscribe).await["result"], json!({}));
    let reply = client.ask(&call(3, "logs", json!({}))).await;
    assert_eq!(reply["id"], 3, "{reply}");
    let message = client.updated("notes://today").await;
    assert_eq!(message["params"], json!({"uri": "notes://today"}));
}

#[tokio::test]
async fn repeated_initialized_notification_is_ignored() {
    let mut client = client();
    client.open("2025-11-25").await;
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    client.send(&ready).await;
    assert_eq!(client.ask(&request(1, "ping", json!({}))).await["id"], 1);
    until("a subscription", || client.pipe.server.subscriptions() != 0).await;
    let gone = Changes::new().remove_tool("greet");
    client.pipe.server.change(gone).expect("a change");
    let message = client.read().await;
    assert_eq!(message["method"], "notifications/tools/list_changed");
    // No second notification follows.
    assert_eq!(client.ask(&request(2, "ping", json!({}))).await["id"], 2);
    assert_eq!(client.pipe.server.subscriptions(), 1);
}

#[tokio::test]
async fn session_is_notified_of_changes() {
    let mut client = client();
    client.open("2025-11-25").await;
    let subscribe = request(1, "resources/subscribe", json!({"uri": "notes://today"}));
    assert_eq!(client.ask(&subscribe).await["result"], json!({}));
    let message = client.updated("notes://today").await;
    assert_eq!(message["params"], json!({"uri": "notes://today"}));
    let gone = Changes::new().remove_tool("greet");
    client.pipe.server.change(gone).expect("a change");
    let message = async {
        loop {
            let message = client.read().await;
            if message["method"] == "notifications/tools/list_changed" {
                return;
            }
        }
    };
    within("a notification", message).await;
}
