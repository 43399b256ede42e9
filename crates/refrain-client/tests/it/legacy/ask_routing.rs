//! Asks are answered only on the stream of their call.

use super::support::{
    Events, FakeServer, Respond, called, form, legacy_greeting, spawn, until, within, without_asks,
};
use refrain_client::wire::LogLevel;
use refrain_client::{AskAnswer, Client, ClientBuilder, ClientLimits, ErrorKind, Root};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[tokio::test]
async fn pipe_requests_outside_calls_are_rejected_except_pings() {
    let client = spawn(without_asks(), &[]).await.unwrap();
    within("the list", client.tools()).await.unwrap();
    let notes = called(&client, "notes").await.unwrap();
    let [_ready, rejection, pong, roots] = &notes.as_array().unwrap()[..] else {
        panic!("{notes}");
    };
    assert_eq!(rejection["code"], -32602, "{rejection}");
    let why = rejection["message"].as_str().unwrap();
    assert!(why.contains("response stream of the call"), "{why}");
    assert_eq!(*pong, json!({}));
    assert_eq!(roots["code"], -32602, "{roots}");
}

/// A client with roots for the connection. Its handler for the roots of calls returns other roots.
fn with_roots() -> ClientBuilder {
    let of_call = || async { Ok(vec![Root::new("file:///call")]) };
    without_asks()
        .on_roots(move |_| of_call())
        .connection_roots(vec![Root::new("file:///connection")])
}

#[tokio::test]
async fn pipe_requests_for_roots_outside_calls_get_those_of_the_connection() {
    let client = spawn(with_roots(), &[]).await.unwrap();
    within("the list", client.tools()).await.unwrap();
    let notes = called(&client, "notes").await.unwrap();
    assert_eq!(notes[1]["code"], -32602, "other requests are rejected");
    assert_eq!(notes[3]["roots"], json!([{"uri": "file:///connection"}]));
    let during = called(&client, "roots").await.unwrap();
    assert_eq!(during["roots"], json!([{"uri": "file:///call"}]));
}

#[tokio::test]
async fn roots_of_the_connection_are_declared_and_serve_calls_without_a_handler() {
    let builder = Client::builder().connection_roots(vec![Root::new("file:///connection")]);
    let client = spawn(builder, &[]).await.unwrap();
    let greeting = called(&client, "greeting").await.unwrap();
    assert_eq!(greeting["capabilities"], json!({"roots": {}}));
    let during = called(&client, "roots").await.unwrap();
    assert_eq!(during["roots"], json!([{"uri": "file:///connection"}]));
    let builder = Client::builder().connection_roots(vec![Root::new("https://example.com/")]);
    let error = spawn(builder, &[]).await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::InvalidArgument(_));
}

#[tokio::test]
async fn session_stream_request_for_roots_gets_those_of_the_connection() {
    let server = FakeServer::start_with(|request, _| {
        if request.verb == "GET" {
            let (writer, response) = Events::new();
            writer.ask("roots", "roots/list", &json!({}));
            writer.ask("form", "elicitation/create", &form("Which?"));
            writer.stays_open();
            return response;
        }
        legacy_greeting(request, "2025-06-18", "s1").unwrap_or(Respond::Status(500))
    })
    .await;
    let _client = with_roots().connect(&server.url).await.unwrap();
    let rejection = server.receives("a rejection", is_answer("form")).await;
    assert_eq!(rejection.message["error"]["code"], -32602);
    let roots = server.receives("the roots", is_answer("roots")).await;
    assert_eq!(
        roots.message["result"]["roots"],
        json!([{"uri": "file:///connection"}])
    );
}

#[tokio::test]
async fn requests_of_a_modern_server_are_ignored() {
    let limits = ClientLimits {
        probe: Duration::from_millis(100),
        ..ClientLimits::default()
    };
    let args = ["2025-11-25", "late"];
    let client = spawn(without_asks().limits(limits), &args).await.unwrap();
    assert_eq!(called(&client, "withdrawn").await.unwrap(), "withdrawn");
    assert_eq!(called(&client, "notes").await.unwrap(), json!([]));
}

fn is_answer(id: &'static str) -> impl Fn(&super::support::Received) -> bool {
    move |request| request.message["id"] == id && request.method().is_empty()
}

#[tokio::test]
async fn session_stream_asks_are_rejected_but_notifications_handled() {
    let server = FakeServer::start_with(|request, _| {
        if request.verb == "GET" {
            let (writer, response) = Events::new();
            writer.ask("stray", "elicitation/create", &form("Which?"));
            writer.ask("ping", "ping", &json!({}));
            let log = json!({"level": "info", "data": "heard"});
            writer.message(
                &json!({"jsonrpc": "2.0", "method": "notifications/message", "params": log}),
            );
            writer.stays_open();
            return response;
        }
        legacy_greeting(request, "2025-06-18", "s1")
            .unwrap_or_else(|| Respond::Json(200, request.text("done")))
    })
    .await;
    let received: Arc<Mutex<Vec<Value>>> = Arc::default();
    let sender = Arc::clone(&received);
    let builder = without_asks().on_log(LogLevel::Info, move |log| {
        sender.lock().unwrap().push(log.data);
    });
    let client = builder.connect(&server.url).await.unwrap();
    let rejection = server.receives("a rejection", is_answer("stray")).await;
    assert_eq!(rejection.message["error"]["code"], -32602);
    assert_eq!(rejection.header("mcp-session-id"), Some("s1"));
    let pong = server.receives("a pong", is_answer("ping")).await;
    assert_eq!(pong.message["result"], json!({}));
    until("the log message", || *received.lock().unwrap() == ["heard"]).await;
    let get = &server.received(|request| request.verb == "GET")[0];
    assert_eq!(get.header("accept"), Some("text/event-stream"));
    assert_eq!(get.header("mcp-protocol-version"), Some("2025-06-18"));
    assert_eq!(called(&client, "t").await.unwrap(), "done");
}

#[tokio::test]
async fn session_stream_ask_during_a_call_is_rejected() {
    let server = FakeServer::start_with(|request, server| {
        if request.verb == "GET" {
            let (writer, response) = Events::new();
            let ask = json!({
                "jsonrpc": "2.0", "id": "stray", "method": "elicitation/create", "params": form("?"),
            });
            writer.after(server, |request| request.method() == "tools/call", ask);
            return response;
        }
        if request.method() != "tools/call" {
            return legacy_greeting(request, "2025-06-18", "s1").unwrap_or(Respond::Status(500));
        }
        let (writer, response) = Events::new();
        writer.after(server, is_answer("stray"), request.text("done"));
        response
    })
    .await;
    let client = without_asks().connect(&server.url).await.unwrap();
    assert_eq!(called(&client, "t").await.unwrap(), "done");
    let rejection = &server.received(is_answer("stray"))[0];
    assert_eq!(rejection.message["error"]["code"], -32602);
}

#[tokio::test]
async fn ask_during_a_list_request_is_rejected() {
    let server = FakeServer::legacy(|request, server| {
        let (writer, response) = Events::new();
        writer.ask("q", "elicitation/create", &form("Which?"));
        let tools = json!({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]});
        writer.after(server, is_answer("q"), request.result(&tools));
        response
    })
    .await;
    let client = without_asks().connect(&server.url).await.unwrap();
    assert_eq!(client.tools().await.unwrap()[0].name, "t");
    let rejection = &server.received(is_answer("q"))[0];
    assert_eq!(rejection.message["error"]["code"], -32602);
}

#[tokio::test]
async fn concurrent_calls_answer_asks_of_their_own_stream() {
    let server = FakeServer::legacy(|request, server| {
        let (writer, response) = Events::new();
        let tool = request.tool().to_owned();
        writer.ask(&tool, "elicitation/create", &form(&tool));
        let result = request.text(&tool);
        writer.after(
            server,
            move |request| request.message["id"] == tool.as_str(),
            result,
        );
        response
    })
    .await;
    let builder = Client::builder().on_form(|ask| async move {
        assert_eq!(ask.message, ask.asker.target, "the ask belongs to its call");
        Ok(AskAnswer::accept(json!({"b": ask.asker.target}))?)
    });
    let client = builder.connect(&server.url).await.unwrap();
    let calls = ["one", "two", "three"].map(|tool| called(&client, tool));
    for result in futures_util::future::join_all(calls).await {
        let tool = result.unwrap();
        let tool = tool.as_str().unwrap();
        let answers = server.received(|request| request.message["id"] == tool);
        assert_eq!(answers[0].message["result"]["content"]["b"], tool);
    }
}
