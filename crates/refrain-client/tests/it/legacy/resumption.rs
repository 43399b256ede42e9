//! Resumption of interrupted streams of legacy servers.

use super::support::{
    Events, FakeServer, Received, Respond, called, form, is_call, legacy_greeting,
};
use refrain_client::{AskAnswer, Client, ErrorKind};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

fn is_resumed(request: &Received) -> bool {
    request.verb == "GET" && request.headers.contains_key("last-event-id")
}

/// A server whose call streams end after this event. `after` responds to the GET that resumes them.
async fn interrupting_server(
    first: &'static str,
    after: impl Fn(&Received, &Value, &FakeServer) -> Respond + Send + Sync + 'static,
) -> FakeServer {
    let call: Arc<Mutex<Option<Received>>> = Arc::default();
    FakeServer::start_with(move |request, server| {
        if is_resumed(request) {
            let call = call
                .lock()
                .expect("the lock is not poisoned")
                .clone()
                .expect("a call");
            return after(request, &call.text("done"), server);
        }
        legacy_greeting(request, "2025-11-25", "s1").unwrap_or_else(|| {
            *call.lock().expect("the lock is not poisoned") = Some(request.clone());
            let (writer, response) = Events::new();
            writer.event(first);
            response
        })
    })
    .await
}

#[tokio::test]
async fn stream_resumes_after_the_last_event() {
    let server = interrupting_server("id: e1\ndata:\nretry: 10", |_, last, _| {
        let (writer, response) = Events::new();
        writer.message(last);
        response
    })
    .await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    assert_eq!(called(&client, "t").await.unwrap(), "done");
    let resumed = &server.received(is_resumed)[0];
    assert_eq!(resumed.header("last-event-id"), Some("e1"));
    assert_eq!(resumed.header("mcp-session-id"), Some("s1"));
    assert_eq!(server.received(is_call).len(), 1, "the call is sent once");
}

#[tokio::test]
async fn stream_resumes_repeatedly_with_asks_between() {
    let server = interrupting_server("id: e1\ndata:\nretry: 10", |request, last, server| {
        let (writer, response) = Events::new();
        if request.header("last-event-id") == Some("e1") {
            let ask = json!({
                "jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": form("?"),
            });
            writer.event(&format!("id: e2\ndata: {ask}"));
        } else {
            writer.after(server, |request| request.message["id"] == "q", last.clone());
        }
        response
    })
    .await;
    let builder =
        Client::builder().on_form(|_| async { Ok(AskAnswer::accept(json!({"b": "y"}))?) });
    let client = builder.connect(&server.url).await.unwrap();
    assert_eq!(called(&client, "t").await.unwrap(), "done");
    let after: Vec<_> = server.received(is_resumed);
    let after: Vec<_> = after
        .iter()
        .map(|request| request.header("last-event-id"))
        .collect();
    assert_eq!(after, [Some("e1"), Some("e2")]);
}

#[tokio::test]
async fn stream_that_cannot_resume_fails_without_a_retry() {
    let without_id = interrupting_server("retry: 10\ndata:", |_, _, _| Respond::Status(500)).await;
    let rejected =
        interrupting_server("id: e1\ndata:\nretry: 10", |_, _, _| Respond::Status(405)).await;
    for (server, resumed) in [(without_id, 0), (rejected, 1)] {
        let client = Client::builder().connect(&server.url).await.unwrap();
        let error = called(&client, "t").await.unwrap_err();
        assert_matches!(error.kind, ErrorKind::ConnectionLost(_));
        assert_eq!(server.received(is_call).len(), 1);
        assert_eq!(server.received(is_resumed).len(), resumed);
    }
}

/// Like the server of the official suite, this one treats any GET as the resumption of the waiting call.
#[tokio::test]
async fn session_stream_opens_before_the_first_call() {
    let waiting: Arc<Mutex<Option<Received>>> = Arc::default();
    let server = FakeServer::start_with(move |request, _| {
        let mut waiting = waiting.lock().expect("the lock is not poisoned");
        let (writer, response) = Events::new();
        match (
            request.verb.as_str(),
            legacy_greeting(request, "2025-11-25", "s1"),
        ) {
            ("GET", _) => {
                writer.event("id: e0\ndata:\nretry: 10");
                if let Some(call) = waiting.take() {
                    writer.message(&call.text("done"));
                }
                writer.stays_open();
                response
            }
            (_, Some(greeting)) => greeting,
            _ => {
                *waiting = Some(request.clone());
                writer.event("id: e1\ndata:\nretry: 10");
                response
            }
        }
    })
    .await;
    for _ in 0..20 {
        let client = Client::builder().connect(&server.url).await.unwrap();
        assert_eq!(called(&client, "t").await.unwrap(), "done");
    }
}
