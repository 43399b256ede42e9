//! Calls of which nobody knows whether the server has taken them.

use crate::support::{FakeServer, Respond};
use refrain_client::{Call, Client, ErrorKind, PendingCall};
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
async fn a_call_whose_response_was_lost_is_not_lost_when_it_is_then_refused() {
    let server = answering(true, |round| match round {
        1 => lost(),
        2 | 3 => Respond::Error(-32603, "the store is down"),
        _ => Respond::text("once"),
    })
    .await;
    let client = connect(&server).await;
    let error = client.call_tool("t", json!({})).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Refused(_)), "{error}");
    let pending = error.pending.expect("it may have been taken");
    assert!(pending.is_unclear());
    let pending = stored(&pending);
    assert!(pending.is_unclear());
    assert!(!client.might_repeat(&pending), "it is the same call there");

    let error = client.finish(pending).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Refused(_)), "{error}");
    let pending = error.pending.expect("that says nothing of the first time");
    let result = client.finish(*pending).await.unwrap();
    assert_eq!(result["content"][0]["text"], "once");
    let ids = call_ids(&server);
    assert_eq!(ids.len(), 4);
    assert!(ids.iter().all(|id| id.is_string() && *id == ids[0]));
}

#[tokio::test]
async fn a_call_that_was_only_refused_is_over() {
    let server = answering(true, |round| match round {
        1 => Respond::RetryAfter(503, "0"),
        _ => Respond::Error(-32602, "no such tool"),
    })
    .await;
    let client = connect(&server).await;
    let error = client.call_tool("t", json!({})).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Refused(_)), "{error}");
    assert!(error.pending.is_none(), "nobody has taken it");
    assert_eq!(call_ids(&server).len(), 2);
}

#[tokio::test]
async fn what_might_be_done_twice_is_known_before() {
    let server = answering(false, |_| lost()).await;
    let client = connect(&server).await;
    let new = client.prepare(Call::tool("t"));
    assert!(!new.is_unclear() && !client.might_repeat(&new));
    // Whoever stored it may have sent it then.
    let found = stored(&new);
    assert!(found.is_unclear() && client.might_repeat(&found));
    let read = stored(&client.prepare(Call::resource("file:///x")));
    assert!(!client.might_repeat(&read), "that changes nothing");

    let error = client.finish(new).await.unwrap_err();
    let pending = error.pending.expect("its response was lost");
    assert!(pending.is_unclear() && client.might_repeat(&pending));
    assert_eq!(call_ids(&server).len(), 1);
    let knowing = connect(&answering(true, |_| lost()).await).await;
    assert!(!knowing.might_repeat(&pending));
}
