//! Sessions of legacy HTTP servers.

use super::support::{
    Events, FakeServer, Received, Respond, called, is_call, legacy_greeting, within,
};
use refrain_client::{Client, ErrorKind};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[tokio::test]
async fn every_message_after_initialize_has_the_session_id() {
    let server = FakeServer::legacy(|request, _| Respond::Json(200, request.text("done"))).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    called(&client, "t").await.unwrap();
    server
        .receives("the stream", |request| request.verb == "GET")
        .await;
    within("closing", client.close()).await;
    let initialize = &server.received(|request| request.method() == "initialize")[0];
    assert_eq!(initialize.header("mcp-session-id"), None);
    let later =
        server.received(|request| !matches!(request.method(), "initialize" | "server/discover"));
    let verbs: Vec<_> = later.iter().map(|request| request.verb.as_str()).collect();
    assert!(
        verbs.contains(&"GET") && verbs.contains(&"POST"),
        "{verbs:?}"
    );
    assert_eq!(verbs.last(), Some(&"DELETE"), "the session is closed");
    for request in later {
        assert_eq!(request.header("mcp-session-id"), Some("s1"), "{request:?}");
        assert_eq!(request.header("mcp-protocol-version"), Some("2025-11-25"));
    }
}

#[tokio::test]
async fn debug_output_hides_the_session_id() {
    let server = FakeServer::start_with(|request, _| {
        legacy_greeting(request, "2025-11-25", "hunter2").unwrap_or(Respond::Status(500))
    })
    .await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let debug = format!("{client:?}");
    assert!(debug.contains("2025-11-25"), "{debug}");
    assert!(!debug.contains("hunter2"), "{debug}");
}

#[tokio::test]
async fn server_without_session_gets_no_delete() {
    let server =
        FakeServer::start_with(
            |request, _| match legacy_greeting(request, "2025-06-18", "s1") {
                Some(Respond::Session(greeting, _)) => Respond::Json(200, greeting),
                Some(response) => response,
                None => Respond::Json(404, request.error(-32602, "no such tool", &Value::Null)),
            },
        )
        .await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    // Without a session, a 404 is an ordinary error.
    let error = called(&client, "t").await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::Rpc(_));
    within("closing", client.close()).await;
    assert!(
        server
            .received(|request| request.verb == "DELETE")
            .is_empty()
    );
    assert_eq!(
        server
            .received(|request| request.method() == "initialize")
            .len(),
        1
    );
}

/// A server that opens sessions `s1` and `s2`, and responds to `s1` with this error.
async fn server_losing_s1(lost: fn(&Received) -> Respond) -> FakeServer {
    let initializations = Arc::new(AtomicUsize::new(0));
    FakeServer::start_with(move |request, _| {
        if request.method() == "initialize" {
            let session = ["s1", "s2"][initializations.fetch_add(1, Ordering::SeqCst).min(1)];
            return legacy_greeting(request, "2025-11-25", session)
                .expect("an initialize response");
        }
        match (
            legacy_greeting(request, "2025-11-25", "s1"),
            request.header("mcp-session-id"),
        ) {
            (Some(response), _) => response,
            (None, Some("s2")) => Respond::Json(200, request.text("done")),
            (None, _) => lost(request),
        }
    })
    .await
}

#[tokio::test]
async fn lost_session_is_renewed_once_for_all_calls() {
    let lost: [fn(&Received) -> Respond; 3] = [
        |_| Respond::Status(404),
        |_| {
            let error = json!({"code": -32001, "message": "Session not found"});
            Respond::Json(404, json!({"jsonrpc": "2.0", "id": null, "error": error}))
        },
        |_| {
            let error = json!({"code": -32600, "message": "Session not found"});
            Respond::Json(
                404,
                json!({"jsonrpc": "2.0", "id": "server-error", "error": error}),
            )
        },
    ];
    for lost in lost {
        let server = server_losing_s1(lost).await;
        let client = Client::builder().connect(&server.url).await.unwrap();
        let calls = (0..5).map(|_| called(&client, "t"));
        for result in futures_util::future::join_all(calls).await {
            assert_eq!(result.unwrap(), "done");
        }
        assert_eq!(
            server
                .received(|request| request.method() == "initialize")
                .len(),
            2
        );
        let ready = server.received(|request| request.method() == "notifications/initialized");
        assert_eq!(ready[1].header("mcp-session-id"), Some("s2"));
        let streams = |request: &Received| {
            request.verb == "GET" && request.header("mcp-session-id") == Some("s2")
        };
        server
            .receives("the stream of the new session", streams)
            .await;
        within("closing", client.close()).await;
        let ended = server.received(|request| request.verb == "DELETE");
        assert_eq!(ended[0].header("mcp-session-id"), Some("s2"));
        let is_cancelled = |request: &Received| request.method() == "notifications/cancelled";
        assert!(
            server.received(is_cancelled).is_empty(),
            "no call was in flight"
        );
    }
}

#[tokio::test]
async fn tool_error_with_404_is_not_a_lost_session() {
    let server = FakeServer::legacy(|request, _| {
        Respond::Json(404, request.error(-32002, "no such order", &Value::Null))
    })
    .await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let error = called(&client, "t").await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::Rpc(_));
    assert_eq!(server.received(is_call).len(), 1, "the call is sent once");
    assert_eq!(
        server
            .received(|request| request.method() == "initialize")
            .len(),
        1
    );
}

#[tokio::test]
async fn repeatedly_lost_session_is_an_error() {
    let server = FakeServer::legacy(|_, _| Respond::Status(404)).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let error = called(&client, "t").await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::HttpStatus { status: 404, .. });
    assert_eq!(server.received(is_call).len(), 2);
}

#[tokio::test]
async fn dropped_call_is_cancelled_by_a_notification() {
    let server = FakeServer::legacy(|_, _| {
        let (writer, response) = Events::new();
        writer.event(": hello");
        writer.stays_open();
        response
    })
    .await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let call = tokio::select! {
        ended = client.call_tool("t", json!({})) => panic!("the tool never returns: {ended:?}"),
        call = server.receives("the call", is_call) => call,
    };
    let is_cancelled = |request: &Received| request.method() == "notifications/cancelled";
    let cancelled = server.receives("the cancellation", is_cancelled).await;
    assert_eq!(cancelled.message["params"]["requestId"], call.message["id"]);
    assert_eq!(cancelled.header("mcp-session-id"), Some("s1"));
}

#[tokio::test]
async fn completed_call_is_not_cancelled() {
    let server = FakeServer::legacy(|request, _| Respond::Json(200, request.text("done"))).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    called(&client, "t").await.unwrap();
    within("closing", client.close()).await;
    let is_cancelled = |request: &Received| request.method() == "notifications/cancelled";
    assert!(server.received(is_cancelled).is_empty());
}

#[tokio::test]
async fn batched_messages_are_read() {
    let server = FakeServer::legacy(|request, _| {
        let note = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}});
        Respond::Json(200, json!([note, request.text("done")]))
    })
    .await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    assert_eq!(called(&client, "t").await.unwrap(), "done");
}
