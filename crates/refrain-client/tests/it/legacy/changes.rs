//! Subscriptions, completion and pings of legacy servers.

use super::support::{
    Events, FakeServer, Received, Respond, called, legacy_greeting, spawn, until, within,
};
use parking_lot::Mutex;
use refrain_client::wire::{Filter, Reference};
use refrain_client::{ChangeStream, Client, ServerChange};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

fn everything(uris: &[&str]) -> Filter {
    Filter {
        tools: true,
        prompts: true,
        resources: true,
        uris: uris.iter().map(|uri| (*uri).to_owned()).collect(),
        tasks: Vec::new(),
    }
}

fn resource(uri: &str) -> Option<ServerChange> {
    Some(ServerChange::Resource(uri.to_owned()))
}

async fn next(changes: &mut ChangeStream) -> Option<ServerChange> {
    within("a change", changes.next())
        .await
        .expect("a subscription")
}

#[tokio::test]
async fn changes_of_a_pipe_reach_their_subscriptions() {
    let client = spawn(Client::builder(), &[]).await.unwrap();
    let wanted = everything(&["file:///a", "file:///none"]);
    let mut all = client.listen(&wanted).await.unwrap();
    let granted = all.granted();
    assert!(granted.tools && granted.resources);
    assert!(
        !granted.prompts,
        "the server does not declare prompts.listChanged"
    );
    assert_eq!(granted.uris, ["file:///a"], "the other one is rejected");
    let scoped = client.scoped(|base| base);
    let only_b = Filter {
        uris: vec!["file:///b".to_owned()],
        ..Filter::default()
    };
    let mut only_b = scoped.listen(&only_b).await.unwrap();
    assert_eq!(
        called(&client, "change").await.unwrap(),
        json!(["file:///a", "file:///b"])
    );
    assert_eq!(next(&mut all).await, Some(ServerChange::Tools), "once");
    assert_eq!(next(&mut all).await, Some(ServerChange::Prompts));
    assert_eq!(next(&mut all).await, resource("file:///a"));
    assert_eq!(next(&mut only_b).await, resource("file:///b"));
    drop(only_b);
    until_subscribed(&client, &["file:///a"]).await;
}

/// Waits until the server has these subscriptions.
async fn until_subscribed(client: &Client, expected: &[&str]) {
    let poll = async {
        while called(client, "change").await.expect("a list") != json!(expected) {
            tokio::task::yield_now().await;
        }
    };
    within("the subscriptions", poll).await;
}

#[tokio::test]
async fn resource_is_unsubscribed_with_its_last_subscription() {
    let client = spawn(Client::builder(), &[]).await.unwrap();
    let shared = client.listen(&everything(&["file:///a"])).await.unwrap();
    let first = client
        .listen(&everything(&["file:///a", "file:///b"]))
        .await
        .unwrap();
    until_subscribed(&client, &["file:///a", "file:///a", "file:///b"]).await;
    drop(first);
    until_subscribed(&client, &["file:///a", "file:///a"]).await;
    drop(shared);
    until_subscribed(&client, &["file:///a"]).await;
}

#[tokio::test]
async fn subscription_ends_with_the_server_process() {
    let client = spawn(Client::builder(), &[]).await.unwrap();
    let wanted = everything(&["file:///a"]);
    let mut changes = client.listen(&wanted).await.unwrap();
    called(&client, "die").await.unwrap_err();
    assert_eq!(next(&mut changes).await, None);
    let mut changes = client.listen(&wanted).await.unwrap();
    called(&client, "change").await.unwrap();
    assert_eq!(next(&mut changes).await, Some(ServerChange::Tools));
}

#[tokio::test]
async fn completion_is_requested_from_a_legacy_server() {
    let client = spawn(Client::builder(), &[]).await.unwrap();
    let template = Reference::Resource("file:///{path}".into());
    let context = BTreeMap::from([("host".to_owned(), "a".to_owned())]);
    let completed = client.complete(&template, "path", "x", &context);
    let completed = within("the completion", completed).await.unwrap();
    let sent: Value = serde_json::from_str(&completed.values[0]).unwrap();
    assert_eq!(
        sent,
        json!({
            "ref": {"type": "ref/resource", "uri": "file:///{path}"},
            "argument": {"name": "path", "value": "x"},
            "context": {"arguments": {"host": "a"}},
        })
    );
    assert_eq!(completed.values.len(), 100);
    assert!(completed.has_more);
    within("the pong", client.ping()).await.unwrap();
}

type SessionStreams = Arc<Mutex<Vec<(String, Events)>>>;

/// A server with a session stream. It forgets the session `s1` when asked to `forget`.
async fn server_with_sessions(streams: &SessionStreams) -> FakeServer {
    let streams = Arc::clone(streams);
    FakeServer::start_with(move |request, server| {
        let session = request.header("mcp-session-id").unwrap_or_default();
        let is_forgotten = server.count("forget") > 0 && session == "s1";
        if is_forgotten {
            return Respond::Status(404);
        }
        if request.verb == "GET" {
            let (writer, response) = Events::new();
            streams.lock().push((session.to_owned(), writer));
            return response;
        }
        let capability = json!({"listChanged": true, "subscribe": true});
        let opened = ["s1", "s2"][server.count("initialize").saturating_sub(1).min(1)];
        match (
            request.method(),
            legacy_greeting(request, "2025-06-18", opened),
        ) {
            ("initialize", _) => {
                let greeting = json!({
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": capability, "resources": capability},
                    "serverInfo": {"name": "old", "version": "1"},
                });
                Respond::Session(request.result(&greeting), opened)
            }
            (_, Some(response)) => response,
            ("tools/call", None) => {
                let changed = json!({"method": "notifications/resources/list_changed"});
                let result = json!({"result": {"content": [{"type": "text", "text": "done"}]}});
                Respond::stream(request, &[changed, result])
            }
            _ => Respond::Json(200, request.result(&json!({}))),
        }
    })
    .await
}

fn announce(streams: &SessionStreams, session: &str, method: &str, params: &Value) {
    let streams = streams.lock();
    let (_, stream) = streams
        .iter()
        .find(|(of, _)| of == session)
        .expect("a stream");
    stream.message(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
}

#[tokio::test]
async fn changes_on_any_stream_of_a_session_reach_the_subscription() {
    let streams = SessionStreams::default();
    let server = server_with_sessions(&streams).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let mut changes = client.listen(&everything(&["file:///a"])).await.unwrap();
    announce(
        &streams,
        "s1",
        "notifications/tools/list_changed",
        &json!({}),
    );
    assert_eq!(next(&mut changes).await, Some(ServerChange::Tools));
    let part = json!({"uri": "file:///a/part"});
    announce(&streams, "s1", "notifications/resources/updated", &part);
    assert_eq!(next(&mut changes).await, resource("file:///a/part"));
    called(&client, "t").await.unwrap();
    assert_eq!(next(&mut changes).await, Some(ServerChange::Resources));
    drop(changes);
    let is_unsubscribe = |request: &Received| request.method() == "resources/unsubscribe";
    let unsubscribed = server.receives("the unsubscription", is_unsubscribe).await;
    assert_eq!(unsubscribed["params"]["uri"], "file:///a");
}

#[tokio::test]
async fn subscription_of_a_lost_session_ends_and_is_opened_again() {
    let streams = SessionStreams::default();
    let server = server_with_sessions(&streams).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let wanted = everything(&["file:///a"]);
    let mut changes = client.listen(&wanted).await.unwrap();
    let http = reqwest::Client::new();
    let forget = http
        .post(&server.url)
        .body(json!({"method": "forget"}).to_string());
    forget.send().await.unwrap();
    // The stream breaks, and the server does not know the session any more.
    streams.lock().clear();
    assert_eq!(next(&mut changes).await, None);
    let mut changes = client.listen(&wanted).await.unwrap();
    until("the new stream", || {
        streams.lock().iter().any(|(of, _)| of == "s2")
    })
    .await;
    announce(
        &streams,
        "s2",
        "notifications/tools/list_changed",
        &json!({}),
    );
    assert_eq!(next(&mut changes).await, Some(ServerChange::Tools));
    let subscribed = server.received(|request| request.method() == "resources/subscribe");
    assert_eq!(subscribed[1].header("mcp-session-id"), Some("s2"));
}
