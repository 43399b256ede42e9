//! Calls that a legacy server rejects until a URL was visited.

use super::support::{FakeServer, Respond, called, is_call, within};
use refrain_client::wire::AskKind;
use refrain_client::{
    AskAnswer, CallSpec, Client, ErrorKind, IncomingAsk, PendingCall, RoundOutcome,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const URLS_REQUIRED: i64 = -32042;

fn required_visits() -> Value {
    let elicitation = json!({
        "mode": "url",
        "elicitationId": "e1",
        "url": "https://example.com/login?for=e1",
        "message": "Log in first",
    });
    json!({"elicitations": [elicitation]})
}

/// A server that requires a visit for this many calls.
async fn server_requiring(visits: usize) -> FakeServer {
    let calls = AtomicUsize::new(0);
    FakeServer::legacy(move |request, _| {
        if calls.fetch_add(1, Ordering::SeqCst) < visits {
            Respond::Json(
                200,
                request.error(URLS_REQUIRED, "Log in first", &required_visits()),
            )
        } else {
            Respond::Json(200, request.text("done"))
        }
    })
    .await
}

#[tokio::test]
async fn visit_is_asked_once_and_the_call_repeated_unchanged() {
    let server = server_requiring(3).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let builder = Client::builder().on_url(move |ask| {
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            assert_eq!(ask.url.as_str(), "https://example.com/login?for=e1");
            assert_eq!(ask.message, "Log in first");
            Ok(AskAnswer::visited())
        }
    });
    let client = builder.connect(&server.url).await.unwrap();
    assert_eq!(called(&client, "t").await.unwrap(), "done");
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let calls = server.received(is_call);
    assert_eq!(calls.len(), 4);
    for call in &calls {
        assert_eq!(call.message["params"], calls[0].message["params"]);
    }
}

#[tokio::test]
async fn declined_visit_fails_with_the_server_error() {
    for answer in [AskAnswer::Decline, AskAnswer::Cancel] {
        let server = server_requiring(1).await;
        let builder = Client::builder().on_url(move |_| {
            let answer = answer.clone();
            async { Ok(answer) }
        });
        let client = builder.connect(&server.url).await.unwrap();
        let error = called(&client, "t").await.unwrap_err();
        let ErrorKind::Rpc(failure) = &error.kind else {
            panic!("{error}");
        };
        assert_eq!(failure.code, URLS_REQUIRED);
        assert_eq!(failure.message, "Log in first");
        assert!(error.pending.is_none(), "nothing can be resumed");
        assert_eq!(server.received(is_call).len(), 1);
    }
}

#[tokio::test]
async fn visit_can_be_answered_manually_later() {
    let server = server_requiring(1).await;
    let client = Client::builder().answer_manually([AskKind::Url]);
    let client = client.connect(&server.url).await.unwrap();
    let outcome = within("a round", client.start(CallSpec::tool("t")))
        .await
        .unwrap();
    let RoundOutcome::Pending(pending) = outcome else {
        panic!("{outcome:?}");
    };
    let text = serde_json::to_string(&pending).unwrap();
    let mut pending: PendingCall = serde_json::from_str(&text).unwrap();
    let asks = pending.asks();
    assert!(matches!(&asks[..], [IncomingAsk::Url(_)]), "{asks:?}");
    pending.answer("ask-1", AskAnswer::visited()).unwrap();
    let result = within("the rest", client.finish(pending)).await.unwrap();
    assert_eq!(result["content"][0]["text"], "done");
}

#[tokio::test]
async fn url_error_without_urls_is_a_plain_error() {
    let server = FakeServer::legacy(|request, _| {
        Respond::Json(
            200,
            request.error(URLS_REQUIRED, "no", &json!({"elicitations": []})),
        )
    })
    .await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let error = called(&client, "t").await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::Rpc(_));
}

#[tokio::test]
async fn call_with_state_cannot_resume_at_a_legacy_server() {
    let server = server_requiring(1).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let pending = json!({
        "format": 1,
        "address": "http://127.0.0.1:1/mcp",
        "call": {"method": "tools/call", "target": "t"},
        "callId": "c",
        "round": 1,
        "state": "sealed",
    });
    let pending: PendingCall = serde_json::from_value(pending).unwrap();
    let error = within("an error", client.finish(pending))
        .await
        .unwrap_err();
    assert_matches!(error.kind, ErrorKind::CannotResume(_));
    assert!(error.to_string().contains("2025-11-25"), "{error}");
    assert!(error.pending.is_some(), "the error contains the call");
    assert!(server.received(is_call).is_empty());
}
