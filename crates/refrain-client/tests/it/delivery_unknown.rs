//! Calls that the server may or may not have executed.

use crate::support::{FakeServer, Respond, connect, form};
use refrain_client::{
    AskAnswer, AskKind, CallSpec, Client, ErrorKind, PendingCall, RetrySafety, RoundOutcome,
};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A server with these responses to the rounds of a call.
async fn start_server(
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

/// The response of a gateway that lost the server during a call.
fn lost() -> Respond {
    Respond::Raw(502, "text/plain", "gateway".to_owned())
}

fn store_and_load(pending: &PendingCall) -> PendingCall {
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
    let server = start_server(true, |round| match round {
        1 => lost(),
        2 | 3 => Respond::Error(-32603, "the store is down"),
        _ => Respond::text("once"),
    })
    .await;
    let client = connect(&server).await;
    let error = client.call_tool("t", json!({})).await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::Rpc(_));
    let pending = error.pending.expect("the call may have been executed");
    assert!(pending.is_delivery_unknown());
    let pending = store_and_load(&pending);
    assert!(pending.is_delivery_unknown());
    assert!(
        !client.can_execute_twice(&pending),
        "the server recognises the call id"
    );

    let error = client.finish(pending).await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::Rpc(_));
    let pending = error.pending.expect("the first attempt is still unknown");
    let result = client.finish(*pending).await.unwrap();
    assert_eq!(result["content"][0]["text"], "once");
    let ids = call_ids(&server);
    assert_eq!(ids.len(), 4);
    assert!(ids.iter().all(|id| id.is_string() && *id == ids[0]));
}

#[tokio::test]
async fn rejected_call_is_not_returned_as_pending() {
    let server = start_server(true, |round| match round {
        1 => Respond::RetryAfter(503, "0"),
        _ => Respond::Error(-32602, "no such tool"),
    })
    .await;
    let client = connect(&server).await;
    let error = client.call_tool("t", json!({})).await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::Rpc(_));
    assert!(error.pending.is_none(), "the call was not executed");
    assert_eq!(call_ids(&server).len(), 2);
}

#[tokio::test]
async fn can_execute_twice_is_known_before_resuming() {
    let server = start_server(false, |_| lost()).await;
    let client = connect(&server).await;
    let new = client.prepare(CallSpec::tool("t"));
    assert!(!new.is_delivery_unknown() && !client.can_execute_twice(&new));
    // The process that stored the call may have sent it.
    let restored = store_and_load(&new);
    assert!(restored.is_delivery_unknown() && client.can_execute_twice(&restored));
    let read = store_and_load(&client.prepare(CallSpec::resource("file:///x")));
    assert!(
        !client.can_execute_twice(&read),
        "reading has no side effects"
    );

    let error = client.finish(new).await.unwrap_err();
    let pending = error.pending.expect("the response was lost");
    assert!(pending.is_delivery_unknown() && client.can_execute_twice(&pending));
    assert_eq!(call_ids(&server).len(), 1);
    let supporting = connect(&start_server(true, |_| lost()).await).await;
    assert!(!supporting.can_execute_twice(&pending));
}

#[tokio::test]
async fn retries_are_observed_with_the_reason_why_they_are_safe() {
    let server = start_server(true, |round| match round {
        1 => lost(),
        2 => Respond::RetryAfter(503, "0"),
        _ => Respond::text("once"),
    })
    .await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let observed = Arc::clone(&seen);
    let builder = Client::builder().on_retry(move |retry| {
        let mut observed = observed.lock().expect("the lock is not poisoned");
        observed.push((retry.number, retry.safety, retry.to_string()));
    });
    let client = builder.connect(&server.url).await.unwrap();
    client.call_tool("t", json!({})).await.unwrap();
    let seen = seen.lock().expect("the lock is not poisoned");
    let safety: Vec<_> = seen
        .iter()
        .map(|(number, safety, _)| (*number, *safety))
        .collect();
    assert_eq!(
        safety,
        [(1, RetrySafety::CallId), (2, RetrySafety::NotExecuted)]
    );
    let text = "sending tools/call t again (1 of 4): the server responded with HTTP status 502: gateway; \
                the server recognises the call by its id";
    assert_eq!(seen[0].2, text);
}

#[tokio::test]
async fn error_of_a_lost_call_says_that_its_outcome_is_unknown() {
    let client = connect(&start_server(false, |_| lost()).await).await;
    let error = client.call_tool("t", json!({})).await.unwrap_err();
    assert!(error.is_outcome_unknown());
    assert!(
        error
            .to_string()
            .ends_with("the outcome is unknown: the tool may have run"),
        "{error}"
    );
    let read = client.read_resource("file:///x").await.unwrap_err();
    assert!(!read.is_outcome_unknown());
    let busy = start_server(false, |_| Respond::RetryAfter(503, "0")).await;
    let error = connect(&busy)
        .await
        .call_tool("t", json!({}))
        .await
        .unwrap_err();
    assert!(!error.is_outcome_unknown(), "{error}");
}

#[tokio::test]
async fn rejected_answer_of_a_restored_call_has_a_known_outcome() {
    let server = start_server(true, |round| match round {
        1 => Respond::asks(
            json!({"name": form("Who?", json!({"name": {"type": "string"}}))}),
            Some("state"),
        ),
        _ => Respond::Error(-32602, "requestState is not valid"),
    })
    .await;
    let client = Client::builder().answer_manually([AskKind::Form]);
    let client = client.connect(&server.url()).await.unwrap();
    let RoundOutcome::Pending(pending) = client.start(CallSpec::tool("t")).await.unwrap() else {
        panic!("the tool did not ask");
    };
    let mut pending = store_and_load(&pending);
    let answer = AskAnswer::accept(json!({"name": "Ada"})).unwrap();
    pending.answer("name", answer).unwrap();
    assert!(!pending.is_delivery_unknown());
    let error = client.finish(pending).await.unwrap_err();
    assert!(!error.is_outcome_unknown(), "{error}");
}
