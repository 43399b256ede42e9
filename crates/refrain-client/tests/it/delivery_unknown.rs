//! Calls of which nobody knows whether the server has taken them.

use crate::support::{FakeServer, Respond};
use refrain_client::{CallRequest, Client, ErrorKind, PendingCall};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Answers one round after the other like this, and says whether it knows call ids.
async fn answering(
    supports_call_ids: bool,
    round: impl Fn(usize) -> Respond + Send + Sync + 'static,
) -> FakeServer {
    let rounds = AtomicUsize::new(0);
    FakeServer::start_raw(move |request| match request["method"].as_str() {
        Some("server/discover") => {
            let extensions = if supports_call_ids {
                json!({"refrain/callId": {}})
            } else {
                json!({})
            };
            let capabilities = json!({"tools": {}, "extensions": extensions});
            Respond::Result(json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities,
                "ttlMs": 0, "cacheScope": "private",
            }))
        }
        _ => round(rounds.fetch_add(1, Ordering::SeqCst) + 1),
    })
    .await
}

async fn connect(server: &FakeServer) -> Client {
    let client = Client::builder().connect(&server.url);
    client.await.expect("a server")
}

/// The gateway has lost the server that was at work.
fn lost() -> Respond {
    Respond::Raw(502, "text/plain", "gateway".to_owned())
}

fn stored(pending: &PendingCall) -> PendingCall {
    let text = serde_json::to_string(pending).expect("a text");
    serde_json::from_str(&text).expect("a pending call")
}

fn call_ids(server: &FakeServer) -> Vec<Value> {
    let requests = server.requests("tools/call").into_iter();
    let id = |request: Value| request["params"]["_meta"]["refrain/callId"].clone();
    requests.map(id).collect()
}

#[tokio::test]
async fn lost_response_keeps_the_call_after_a_later_error() {
    let server = answering(true, |round| match round {
        1 => lost(),
        2 | 3 => Respond::Error(-32603, "the store is down"),
        _ => Respond::text("once"),
    })
    .await;
    let client = connect(&server).await;
    let error = client.call_tool("t", json!({})).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Rpc(_)), "{error}");
    let pending = error.pending.expect("it may have been taken");
    assert!(pending.is_delivery_unknown());
    let pending = stored(&pending);
    assert!(pending.is_delivery_unknown());
    assert!(
        !client.can_execute_twice(&pending),
        "it is the same call there"
    );

    let error = client.finish(pending).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Rpc(_)), "{error}");
    let pending = error.pending.expect("that says nothing of the first time");
    let result = client.finish(*pending).await.unwrap();
    assert_eq!(result["content"][0]["text"], "once");
    let ids = call_ids(&server);
    assert_eq!(ids.len(), 4);
    assert!(ids.iter().all(|id| id.is_string() && *id == ids[0]));
}

#[tokio::test]
async fn rejected_call_is_not_returned_as_pending() {
    let server = answering(true, |round| match round {
        1 => Respond::RetryAfter(503, "0"),
        _ => Respond::Error(-32602, "no such tool"),
    })
    .await;
    let client = connect(&server).await;
    let error = client.call_tool("t", json!({})).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Rpc(_)), "{error}");
    assert!(error.pending.is_none(), "nobody has taken it");
    assert_eq!(call_ids(&server).len(), 2);
}

#[tokio::test]
async fn can_execute_twice_is_known_before_resuming() {
    let server = answering(false, |_| lost()).await;
    let client = connect(&server).await;
    let new = client.prepare(CallRequest::tool("t"));
    assert!(!new.is_delivery_unknown() && !client.can_execute_twice(&new));
    // Whoever stored it may have sent it then.
    let found = stored(&new);
    assert!(found.is_delivery_unknown() && client.can_execute_twice(&found));
    let read = stored(&client.prepare(CallRequest::resource("file:///x")));
    assert!(!client.can_execute_twice(&read), "that changes nothing");

    let error = client.finish(new).await.unwrap_err();
    let pending = error.pending.expect("its response was lost");
    assert!(pending.is_delivery_unknown() && client.can_execute_twice(&pending));
    assert_eq!(call_ids(&server).len(), 1);
    let knowing = connect(&answering(true, |_| lost()).await).await;
    assert!(!knowing.can_execute_twice(&pending));
}
