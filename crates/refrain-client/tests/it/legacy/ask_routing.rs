//! What a server asks is answered only where it belongs.

use super::support::{
    Events, FakeServer, Respond, called, form, legacy_greeting, spawn, until, within,
};
use refrain_client::wire::LogLevel;
use refrain_client::{AskAnswer, Client, ClientBuilder, ClientLimits};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A client that must not be asked.
fn unasked() -> ClientBuilder {
    Client::builder().on_form(|ask| async move { panic!("asked {:?}", ask.message) })
}

#[tokio::test]
async fn pipe_requests_outside_calls_are_rejected_except_pings() {
    let client = spawn(unasked(), &[]).await.unwrap();
    within("the list", client.tools()).await.unwrap();
    let notes = called(&client, "notes").await.unwrap();
    let [_ready, refusal, pong] = &notes.as_array().unwrap()[..] else {
        panic!("{notes}");
    };
    assert_eq!(refusal["code"], -32602, "{refusal}");
    let why = refusal["message"].as_str().unwrap();
    assert!(why.contains("within the call"), "{why}");
    assert_eq!(*pong, json!({}));
}

#[tokio::test]
async fn requests_of_a_modern_server_are_ignored() {
    let limits = ClientLimits {
        probe: Duration::from_millis(100),
        ..ClientLimits::default()
    };
    let told = ["2025-11-25", "late"];
    let client = spawn(unasked().limits(limits), &told).await.unwrap();
    assert_eq!(called(&client, "withdrawn").await.unwrap(), "withdrawn");
    assert_eq!(called(&client, "notes").await.unwrap(), json!([]));
}

fn is_answer(id: &'static str) -> impl Fn(&super::support::Received) -> bool {
    move |seen| seen.message["id"] == id && seen.method().is_empty()
}

#[tokio::test]
async fn session_stream_asks_are_rejected_but_notifications_handled() {
    let server = FakeServer::start_with(|seen, _| {
        if seen.verb == "GET" {
            let (writer, say) = Events::new();
            writer.ask("stray", "elicitation/create", &form("Which?"));
            writer.ask("ping", "ping", &json!({}));
            let news = json!({"level": "info", "data": "heard"});
            writer.message(
                &json!({"jsonrpc": "2.0", "method": "notifications/message", "params": news}),
            );
            writer.stays_open();
            return say;
        }
        legacy_greeting(seen, "2025-06-18", "s1")
            .unwrap_or_else(|| Respond::Json(200, seen.text("done")))
    })
    .await;
    let heard: Arc<Mutex<Vec<Value>>> = Arc::default();
    let hear = Arc::clone(&heard);
    let builder = unasked().on_log(LogLevel::Info, move |news| {
        hear.lock().unwrap().push(news.data);
    });
    let client = builder.connect(&server.url).await.unwrap();
    let refusal = server.receives("a refusal", is_answer("stray")).await;
    assert_eq!(refusal.message["error"]["code"], -32602);
    assert_eq!(refusal.header("mcp-session-id"), Some("s1"));
    let pong = server.receives("an answer", is_answer("ping")).await;
    assert_eq!(pong.message["result"], json!({}));
    until("the news", || *heard.lock().unwrap() == ["heard"]).await;
    let get = &server.received(|seen| seen.verb == "GET")[0];
    assert_eq!(get.header("accept"), Some("text/event-stream"));
    assert_eq!(get.header("mcp-protocol-version"), Some("2025-06-18"));
    assert_eq!(called(&client, "t").await.unwrap(), "done");
}

#[tokio::test]
async fn session_stream_ask_during_a_call_is_rejected() {
    let server = FakeServer::start_with(|seen, told| {
        if seen.verb == "GET" {
            let (writer, say) = Events::new();
            let ask = json!({
                "jsonrpc": "2.0", "id": "stray", "method": "elicitation/create", "params": form("?"),
            });
            writer.after(told, |seen| seen.method() == "tools/call", ask);
            return say;
        }
        if seen.method() != "tools/call" {
            return legacy_greeting(seen, "2025-06-18", "s1").unwrap_or(Respond::Status(500));
        }
        let (writer, say) = Events::new();
        writer.after(told, is_answer("stray"), seen.text("done"));
        say
    })
    .await;
    let client = unasked().connect(&server.url).await.unwrap();
    assert_eq!(called(&client, "t").await.unwrap(), "done");
    let refusal = &server.received(is_answer("stray"))[0];
    assert_eq!(refusal.message["error"]["code"], -32602);
}

#[tokio::test]
async fn ask_during_a_list_request_is_rejected() {
    let server = FakeServer::legacy(|seen, told| {
        let (writer, say) = Events::new();
        writer.ask("q", "elicitation/create", &form("Which?"));
        let tools = json!({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]});
        writer.after(told, is_answer("q"), seen.result(&tools));
        say
    })
    .await;
    let client = unasked().connect(&server.url).await.unwrap();
    assert_eq!(client.tools().await.unwrap()[0].name, "t");
    let refusal = &server.received(is_answer("q"))[0];
    assert_eq!(refusal.message["error"]["code"], -32602);
}

#[tokio::test]
async fn concurrent_calls_answer_asks_of_their_own_stream() {
    let server = FakeServer::legacy(|seen, told| {
        let (writer, say) = Events::new();
        let tool = seen.tool().to_owned();
        writer.ask(&tool, "elicitation/create", &form(&tool));
        let result = seen.text(&tool);
        writer.after(
            told,
            move |seen| seen.message["id"] == tool.as_str(),
            result,
        );
        say
    })
    .await;
    let builder = Client::builder().on_form(|ask| async move {
        assert_eq!(ask.message, ask.asker.target, "asked for its own call");
        Ok(AskAnswer::accept(json!({"b": ask.asker.target}))?)
    });
    let client = builder.connect(&server.url).await.unwrap();
    let calls = ["one", "two", "three"].map(|tool| called(&client, tool));
    for result in futures_util::future::join_all(calls).await {
        let tool = result.unwrap();
        let tool = tool.as_str().unwrap();
        let answers = server.received(|seen| seen.message["id"] == tool);
        assert_eq!(answers[0].message["result"]["content"]["b"], tool);
    }
}
