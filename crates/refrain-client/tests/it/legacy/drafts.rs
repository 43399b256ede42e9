//! Servers that use a draft of the protocol.

use super::support::{
    FakeServer, Received, Respond, called, is_call, legacy_greeting, python_of, until, within,
};
use refrain_client::wire::drafts::Draft;
use refrain_client::wire::legacy::Revision;
use refrain_client::{AskAnswer, Client, ClientBuilder, ErrorKind, PendingCall, ReadError};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn with_draft(draft: Draft) -> ClientBuilder {
    Client::builder()
        .dialect(draft)
        .on_form(|_| async { Ok(AskAnswer::accept(json!({"b": "y"}))?) })
}

async fn connect(draft: Draft, server: &FakeServer) -> Client {
    let client = with_draft(draft).connect(&server.url).await;
    client.expect("a connection")
}

/// Calls a tool that fails with this error of the server. Returns the pending call.
async fn failed_call(client: &Client, message: &str) -> Option<Box<PendingCall>> {
    let error = called(client, "t").await.expect_err("the call fails");
    let ErrorKind::Rpc(failure) = &error.kind else {
        panic!("{error}");
    };
    assert_eq!(failure.message, message);
    error.pending
}

fn task(status: &str) -> Value {
    json!({"taskId": "t1", "status": status, "createdAt": "2026-01-27T03:32:48Z",
        "ttl": 60000, "pollInterval": 20})
}

fn asks() -> Value {
    let schema = json!({"type": "object", "properties": {"b": {"type": "string"}}});
    json!({"which": {"method": "elicitation/create",
        "params": {"mode": "form", "message": "Which?", "requestedSchema": schema}}})
}

/// Whether this is an answer to a task in the first draft, which has no method.
fn is_answer(request: &Received) -> bool {
    request.message.get("input_responses").is_some()
}

/// A draft server whose calls become tasks. `respond` handles all other messages.
async fn task_server(
    respond: impl Fn(&Received, &FakeServer) -> Respond + Send + Sync + 'static,
) -> FakeServer {
    FakeServer::start_with(move |request, server| match request.method() {
        "initialize" => {
            let greeting = json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "draft", "version": "1"}});
            Respond::Session(request.result(&greeting), "s1")
        }
        "notifications/initialized" => Respond::Status(202),
        "tools/call" => Respond::Json(200, request.result(&json!({"task": task("Working")}))),
        _ => respond(request, server),
    })
    .await
}

/// A task of the first draft that asks until it is answered. `respond` handles the answer.
async fn asking_server(
    respond: impl Fn(&Received) -> Respond + Send + Sync + 'static,
) -> FakeServer {
    task_server(move |request, server| {
        let is_answered = !server.received(is_answer).is_empty();
        match request.method() {
            "" => respond(request),
            "tasks/get" if is_answered => Respond::Json(200, request.result(&task("Completed"))),
            "tasks/get" => Respond::Json(200, request.result(&task("input_required"))),
            "tasks/result" if is_answered => Respond::Json(200, request.text("done")),
            _ => Respond::Json(
                200,
                json!({"jsonrpc": "2.0", "id": request.message["id"], "input_requests": asks()}),
            ),
        }
    })
    .await
}

#[tokio::test]
async fn first_draft_answer_needs_no_response() {
    let server = asking_server(|_| Respond::Status(202)).await;
    let client = connect(Draft::First, &server).await;
    assert_eq!(called(&client, "t").await.unwrap(), "done");
    assert_eq!(server.received(is_answer).len(), 1);
}

#[tokio::test]
async fn rejected_answer_fails_the_call_and_keeps_the_task() {
    for status in [200, 400] {
        let server = asking_server(move |request| {
            Respond::Json(
                status,
                request.error(-32602, "the answer is rejected", &Value::Null),
            )
        })
        .await;
        let client = connect(Draft::First, &server).await;
        let pending = failed_call(&client, "the answer is rejected").await;
        let pending = pending.expect("the task can be resumed");
        assert_eq!(pending.task_id(), Some("t1"));
        assert_eq!(server.received(is_answer).len(), 1);
    }
}

#[tokio::test]
async fn pipe_answer_can_be_rejected_later() {
    let client = with_draft(Draft::First).spawn(python_of("draft.py", &["no"]));
    let client = within("the server", client).await.unwrap();
    assert_eq!(called(&client, "t").await.unwrap(), json!({"b": "y"}));

    let client = with_draft(Draft::First).spawn(python_of("draft.py", &["yes"]));
    let client = within("the server", client).await.unwrap();
    let pending = failed_call(&client, "the answer is rejected").await;
    let pending = pending.expect("the task can be resumed");
    assert_eq!(pending.task_id(), Some("t1"));
}

#[tokio::test]
async fn every_message_after_initialize_has_the_session_id() {
    let server = asking_server(|_| Respond::Status(202)).await;
    let client = connect(Draft::First, &server).await;
    called(&client, "t").await.unwrap();
    let greeting = &server.received(|request| request.method() == "initialize")[0];
    assert_eq!(greeting.header("mcp-session-id"), None);
    let later = server.received(|request| request.method() != "initialize");
    assert!(later.len() > 4, "{later:?}");
    for request in later {
        assert_eq!(request.header("mcp-session-id"), Some("s1"), "{request:?}");
    }
    assert!(!format!("{client:?}").contains("s1"));
}

#[tokio::test]
async fn lost_session_is_renewed() {
    let initializations = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&initializations);
    let server = FakeServer::start_with(move |request, _| match request.method() {
        "initialize" => {
            let session = ["s1", "s2"][count.fetch_add(1, Ordering::SeqCst).min(1)];
            let greeting = json!({"protocolVersion": "2025-11-25", "capabilities": {}});
            Respond::Session(request.result(&greeting), session)
        }
        "tools/call" if request.header("mcp-session-id") == Some("s2") => {
            Respond::Json(200, request.text("done"))
        }
        "tools/call" => Respond::Status(404),
        _ => Respond::Status(202),
    })
    .await;
    let client = connect(Draft::Second, &server).await;
    assert_eq!(called(&client, "t").await.unwrap(), "done");
    assert_eq!(initializations.load(Ordering::SeqCst), 2);
}

/// A task of the second draft that asks at the first poll, and has this status at the next.
async fn server_with_ended_task(status: &'static str) -> FakeServer {
    task_server(move |request, server| {
        let polls = server
            .received(|request| request.method() == "tasks/get")
            .len();
        match request.method() {
            "tasks/get" if polls == 1 => {
                Respond::Json(200, request.result(&task("input_required")))
            }
            "tasks/get" => Respond::Json(200, request.result(&task(status))),
            _ => Respond::Json(200, request.error(-32603, "the disk is full", &Value::Null)),
        }
    })
    .await
}

#[tokio::test]
async fn task_can_end_between_get_and_result() {
    let server = server_with_ended_task("failed").await;
    let client = connect(Draft::Second, &server).await;
    let pending = failed_call(&client, "the disk is full").await;
    assert!(pending.is_none(), "nothing can be resumed");

    let server = server_with_ended_task("cancelled").await;
    let client = connect(Draft::Second, &server).await;
    let error = called(&client, "t").await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::TaskCancelled(_));

    // Only the request was rejected; the task continues.
    let server = server_with_ended_task("input_required").await;
    let client = connect(Draft::Second, &server).await;
    let error = called(&client, "t").await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::Rpc(_));
    assert!(error.pending.is_some(), "the task can be resumed");
}

#[tokio::test]
async fn cancelling_an_ended_task_succeeds() {
    for (status, ended) in [("completed", true), ("cancelled", true), ("working", false)] {
        let server = task_server(move |request, _| match request.method() {
            "tasks/get" => Respond::Json(200, request.result(&task(status))),
            _ => Respond::Json(
                200,
                request.error(-32602, "it cannot be cancelled", &Value::Null),
            ),
        })
        .await;
        let client = connect(Draft::Second, &server).await;
        match client.cancel_task("t1").await {
            Ok(()) => assert!(ended, "{status}"),
            Err(error) => {
                assert!(!ended, "{status}: {error}");
                assert_matches!(error.kind, ErrorKind::Rpc(_));
            }
        }
    }
}

#[tokio::test]
async fn request_missing_from_the_draft_is_not_sent() {
    let server = task_server(|request, _| Respond::Json(200, request.text("done"))).await;
    let client = connect(Draft::Sketch, &server).await;
    let error = client.cancel_task("t1").await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::Dialect(_));
    assert!(error.to_string().contains("tasks/cancel"), "{error}");
    let is_cancel = |request: &Received| request.method() == "tasks/cancel";
    until("initialize", || !server.received(|_| true).is_empty()).await;
    assert!(server.received(is_cancel).is_empty());
}

#[tokio::test]
async fn server_without_the_draft_is_reported() {
    let server = FakeServer::start_with(|request, _| {
        Respond::Json(200, request.error(-32601, "no such method", &Value::Null))
    })
    .await;
    let error = with_draft(Draft::Second).connect(&server.url).await;
    let error = error.unwrap_err();
    let ErrorKind::NotMcp { why, .. } = &error.kind else {
        panic!("{error}");
    };
    assert!(why.contains("no such method"), "{why}");
}

/// A server that asks in this draft without having negotiated it.
async fn server_asking_in(draft: Draft) -> FakeServer {
    FakeServer::start_with(move |request, _| {
        if let Some(response) = legacy_greeting(request, "2025-11-25", "s1") {
            return response;
        }
        let asked = match draft {
            Draft::Sketch => json!({"dependent_requests": asks(), "request_state": "s"}),
            Draft::First => json!({"input_requests": asks(), "request_state": "s"}),
            Draft::Second => json!({"result": {"inputRequests": asks(), "requestState": "s"}}),
        };
        let mut reply = json!({"jsonrpc": "2.0", "id": request.message["id"]});
        let members = reply.as_object_mut().expect("an object");
        members.extend(asked.as_object().expect("an object").clone());
        Respond::Json(200, reply)
    })
    .await
}

async fn assert_other_dialect(builder: ClientBuilder, server: &FakeServer) {
    let client = builder.connect(&server.url).await.expect("a connection");
    let called = within("a call", client.call_tool("t", json!({}))).await;
    let error = called.expect_err("the call does not complete");
    let is_reported = matches!(
        error.kind,
        ErrorKind::InvalidResponse(ReadError::OtherDialect)
    );
    assert!(is_reported, "{error}");
    assert!(error.pending.is_some(), "the error contains the call");
    let calls = server.received(is_call);
    assert_eq!(calls.len(), 1);
}

#[tokio::test]
async fn asks_in_another_dialect_are_rejected() {
    for draft in Draft::ALL {
        assert_other_dialect(Client::builder(), &server_asking_in(draft).await).await;
        let legacy = Client::builder().dialect(Revision::V2025_11_25);
        assert_other_dialect(legacy, &server_asking_in(draft).await).await;
        for other in Draft::ALL.into_iter().filter(|other| *other != draft) {
            assert_other_dialect(with_draft(other), &server_asking_in(draft).await).await;
        }
    }
}

#[tokio::test]
async fn asks_without_result_type_are_rejected() {
    for asked in [
        json!({"inputRequests": asks()}),
        json!({"requestState": "s"}),
    ] {
        let server = FakeServer::start_with(move |request, _| match request.method() {
            "server/discover" => {
                let discovered = json!({"resultType": "complete", "capabilities": {"tools": {}},
                    "supportedVersions": ["2026-07-28"]});
                Respond::Json(200, request.result(&discovered))
            }
            _ => Respond::Json(200, request.result(&asked)),
        })
        .await;
        assert_other_dialect(Client::builder(), &server).await;
    }
}

#[tokio::test]
async fn task_asks_in_another_draft_are_rejected() {
    let server = task_server(|request, _| match request.method() {
        "tasks/get" => Respond::Json(200, request.result(&task("input_required"))),
        _ => Respond::Json(200, request.result(&json!({"inputRequests": asks()}))),
    })
    .await;
    assert_other_dialect(with_draft(Draft::First), &server).await;
}
