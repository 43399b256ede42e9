//! Servers that try to exhaust the memory or the time of a client. The limits are the defaults unless a test sets them.

use crate::support::{Events, FakeServer, Respond, connect, task_server, within};
use refrain_client::{Client, ClientBuilder, ClientLimits, Error, ErrorKind};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Small values whose text is a hundred times smaller than the memory they need.
fn small_values() -> Value {
    vec![json!({"": 0}); 70_000].into()
}

async fn call(server: &FakeServer) -> Error {
    let client = connect(server).await;
    let called = client.call_tool("t", json!({})).await;
    called.expect_err("the response exceeds a limit")
}

fn assert_limit(error: &Error, expected: &str) {
    assert_matches!(error.kind, ErrorKind::TooLarge { .. });
    assert!(error.to_string().contains(expected), "{error}");
}

const VALUES: &str =
    "a message with more than 150000 JSON values, the limit set by `ClientLimits::values`";

#[tokio::test]
async fn message_with_too_many_values_is_rejected() {
    let result =
        json!({"resultType": "complete", "content": [], "structuredContent": small_values()});
    let asks = json!({"k": {"method": "x", "params": small_values()}});
    for response in [
        result.clone(),
        json!({"resultType": "input_required", "inputRequests": asks}),
    ] {
        let server = FakeServer::start(move |_| Respond::Result(response.clone())).await;
        assert_limit(&call(&server).await, VALUES);
    }
    let server =
        FakeServer::start(move |request| Respond::stream(request, &[json!({"result": result})]))
            .await;
    assert_limit(&call(&server).await, VALUES);
    let server = FakeServer::start(|request| {
        let error = json!({"code": -32000, "message": "m", "data": small_values()});
        Respond::Json(
            200,
            json!({"jsonrpc": "2.0", "id": request["id"], "error": error}),
        )
    })
    .await;
    assert_limit(&call(&server).await, VALUES);
    let batch = json!(vec![0; 250_000]);
    let server = FakeServer::start(move |_| Respond::Json(200, batch.clone())).await;
    assert_limit(&call(&server).await, VALUES);
}

#[tokio::test]
async fn http_error_with_too_many_values_is_reported_by_its_status() {
    let server = FakeServer::start(|_| Respond::Json(500, small_values())).await;
    let error = call(&server).await;
    assert_matches!(error.kind, ErrorKind::HttpStatus { status: 500, .. });
}

#[tokio::test]
async fn discovery_with_too_many_values_is_rejected() {
    let server = FakeServer::start_raw(|request| {
        let info = json!({"resultType": "complete", "supportedVersions": ["2026-07-28"],
            "capabilities": {}, "_meta": {"x": small_values()}});
        Respond::Json(
            200,
            json!({"jsonrpc": "2.0", "id": request["id"], "result": info}),
        )
    })
    .await;
    let error = Client::builder().connect(&server.url).await.unwrap_err();
    assert_limit(&error, VALUES);
}

/// A server with an endless list; each page has these tools.
async fn endless_list(page: impl Fn() -> Vec<Value> + Send + Sync + 'static) -> FakeServer {
    let pages = AtomicUsize::new(0);
    FakeServer::start(move |_| {
        let next = pages.fetch_add(1, Ordering::Relaxed).to_string();
        Respond::Result(json!({"resultType": "complete", "tools": page(), "nextCursor": next}))
    })
    .await
}

async fn list(server: &FakeServer) -> Error {
    let listed = connect(server).await.tools().await;
    listed.expect_err("the list exceeds a limit")
}

#[tokio::test]
async fn list_with_too_many_entries_is_rejected() {
    let tool = json!({"name": "t", "inputSchema": {"type": "object"}});
    let server = endless_list(move || vec![tool.clone(); 3000]).await;
    assert_limit(&list(&server).await, "a list with more than 10000 entries");
    // Invalid entries count too.
    let server = endless_list(|| vec![json!(0); 6000]).await;
    assert_limit(&list(&server).await, "a list with more than 10000 entries");
    assert_eq!(server.requests("tools/list").len(), 2);
}

#[tokio::test]
async fn list_with_too_many_bytes_is_rejected() {
    let text = "d".repeat(3_000_000);
    let tool = json!({"name": "t", "description": text, "inputSchema": {"type": "object"}});
    let server = endless_list(move || vec![tool.clone()]).await;
    assert_limit(&list(&server).await, "a list with more than 16777216 bytes");
    assert_eq!(server.requests("tools/list").len(), 6);
}

#[tokio::test]
async fn list_with_too_many_values_is_rejected() {
    let values = vec![json!({"": 0}); 20_000];
    let tool = json!({"name": "t", "inputSchema": {"type": "object", "x": values}});
    let server = endless_list(move || vec![tool.clone()]).await;
    assert_limit(
        &list(&server).await,
        "a list with more than 150000 JSON values",
    );
    assert_eq!(server.requests("tools/list").len(), 3);
}

#[tokio::test]
async fn cached_pages_count_towards_the_limits_of_a_list() {
    let server = FakeServer::start(|request| {
        let tools = vec![json!({"name": "t", "inputSchema": {"type": "object"}}); 6000];
        let cursor = request["params"]["cursor"].as_str();
        let next = if cursor.is_none() { "2" } else { "3" };
        Respond::Result(
            json!({"resultType": "complete", "tools": tools, "nextCursor": next,
            "ttlMs": 60_000, "cacheScope": "private"}),
        )
    })
    .await;
    let client = connect(&server).await;
    for _ in 0..2 {
        let error = client.tools().await.unwrap_err();
        assert_limit(&error, "10000 entries");
    }
    assert_eq!(server.requests("tools/list").len(), 2);
}

#[tokio::test]
async fn endless_notifications_end_the_call() {
    let text = "x".repeat(1_000_000);
    let notification =
        json!({"method": "notifications/message", "params": {"level": "info", "data": text}});
    let server = FakeServer::start(move |request| {
        let mut messages = vec![notification.clone(); 70];
        messages.push(json!({"result": {"resultType": "complete", "content": []}}));
        Respond::stream(request, &messages)
    })
    .await;
    let error = call(&server).await;
    assert_limit(
        &error,
        "a response with more than 67108864 bytes, the limit set by `ClientLimits::response`",
    );
    let limits = ClientLimits {
        response: 80_000_000,
        ..ClientLimits::default()
    };
    let client = Client::builder().limits(limits).connect(&server.url).await;
    let called = client.unwrap().call_tool("t", json!({})).await;
    called.expect("the limit is higher");
}

#[tokio::test]
async fn long_error_message_is_truncated() {
    let text = "é".repeat(1_000_000);
    let server = FakeServer::start(move |request| {
        let error = json!({"code": -32000, "message": text});
        Respond::Json(
            200,
            json!({"jsonrpc": "2.0", "id": request["id"], "error": error}),
        )
    })
    .await;
    let error = call(&server).await;
    let ErrorKind::Rpc(failure) = error.kind else {
        panic!("{error}");
    };
    assert_eq!(failure.message.len(), 64 * 1024);
}

/// A server whose calls become a task. Each poll returns the asks for its number, from 0.
async fn asking_task_server(asks: impl Fn(usize) -> Value + Send + Sync + 'static) -> FakeServer {
    let polls = AtomicUsize::new(0);
    task_server(move |method| match method {
        "tasks/get" => {
            let asks = asks(polls.fetch_add(1, Ordering::Relaxed));
            json!({"resultType": "complete", "taskId": "t1", "pollIntervalMs": 1,
                "status": "input_required", "inputRequests": asks})
        }
        _ => json!({"resultType": "complete"}),
    })
    .await
}

/// The error of a call whose task may make 6 asks, 3 at a time.
async fn call_with_ask_limit(server: &FakeServer, builder: ClientBuilder) -> Error {
    let limits = ClientLimits {
        asks: 3,
        rounds: 2,
        ..ClientLimits::default()
    };
    let client = builder.limits(limits).connect(&server.url).await;
    let client = client.expect("a connection");
    let called = within("the error", client.call_tool("t", json!({}))).await;
    called.expect_err("the task makes too many asks")
}

#[tokio::test]
async fn task_that_asks_in_a_loop_is_given_up() {
    let ask = json!({"method": "roots/list", "params": {}});
    let server = asking_task_server(move |poll| json!({(poll.to_string()): ask})).await;
    let builder = Client::builder().on_roots(|_| async { Ok(Vec::new()) });
    let error = call_with_ask_limit(&server, builder).await;
    assert_matches!(error.kind, ErrorKind::TooManyAsks { asks: 7, limit: 6 });
}

#[tokio::test]
async fn task_that_replaces_unanswered_asks_is_given_up() {
    let ask = json!({"method": "roots/list", "params": {}});
    let server = asking_task_server(move |poll| {
        let asks = (0..3).map(|n| (format!("{poll}-{n}"), ask.clone()));
        asks.collect()
    })
    .await;
    // No ask is ever answered.
    let builder = Client::builder().on_roots(|_| std::future::pending());
    let error = call_with_ask_limit(&server, builder).await;
    assert_matches!(error.kind, ErrorKind::TooManyAsks { asks: 9, limit: 6 });
}

/// Forms with so many fields that a client should not keep all of them.
fn large_forms() -> Value {
    let fields = (0..150).map(|field| (field.to_string(), json!({"type": "string"})));
    let schema = json!({"type": "object", "properties": fields.collect::<Value>()});
    let params = json!({"mode": "form", "message": "?", "requestedSchema": schema});
    let ask = json!({"method": "elicitation/create", "params": params});
    (0..95).map(|key| (key.to_string(), ask.clone())).collect()
}

#[tokio::test]
async fn asks_with_too_many_values_are_rejected() {
    let expected = "a round of asks with more than 50000 JSON values, the limit set by `ClientLimits::ask_values`";
    let server = FakeServer::start(|_| Respond::asks(large_forms(), None)).await;
    assert_limit(&call(&server).await, expected);
    let server = asking_task_server(|_| large_forms()).await;
    assert_limit(&call(&server).await, expected);
}

#[tokio::test]
async fn asks_with_too_many_bytes_are_rejected() {
    // Each is within the limit, and together they are not.
    let large_asks = || -> Value {
        let params =
            json!({"mode": "url", "message": "m".repeat(3 << 20), "url": "https://a.example"});
        let ask = json!({"method": "elicitation/create", "params": params});
        json!({"a": ask, "b": ask})
    };
    let expected =
        "a round of asks with more than 4194304 bytes, the limit set by `ClientLimits::ask_bytes`";
    let server = FakeServer::start(move |_| Respond::asks(large_asks(), None)).await;
    assert_limit(&call(&server).await, expected);
    let server = asking_task_server(move |_| large_asks()).await;
    assert_limit(&call(&server).await, expected);
}

#[tokio::test]
async fn long_status_message_of_a_task_is_cut() {
    const MAX: usize = 64 * 1024;
    let server = task_server(|_| {
        json!({"resultType": "complete", "taskId": "t1", "status": "completed",
            "statusMessage": format!("a{}", "é".repeat(MAX)), "result": {"content": []}})
    })
    .await;
    let longest = Arc::new(AtomicUsize::new(0));
    let seen = longest.clone();
    let builder = Client::builder().on_task(move |task| {
        let message = task.message.as_deref().expect("a status message");
        seen.fetch_max(message.len(), Ordering::Relaxed);
    });
    let client = builder.connect(&server.url).await.expect("a connection");
    client.call_tool("t", json!({})).await.expect("a result");
    // The last character would end after the limit.
    assert_eq!(longest.load(Ordering::Relaxed), MAX - 1);
}

#[tokio::test]
async fn ask_with_a_long_key_is_rejected() {
    let key = "k".repeat(5000);
    let server = FakeServer::start(move |_| {
        let mut asks = json!({});
        asks[&key] = json!({"method": "roots/list", "params": {}});
        Respond::asks(asks, None)
    })
    .await;
    let error = call(&server).await;
    assert_matches!(error.kind, ErrorKind::InvalidResponse(_));
    assert!(error.to_string().contains("4096 bytes"), "{error}");
}

#[tokio::test]
async fn tool_that_is_no_longer_listed_is_forgotten() {
    let lists = AtomicUsize::new(0);
    let server = FakeServer::start(move |_| {
        let name = lists.fetch_add(1, Ordering::Relaxed).to_string();
        let schema = json!({"type": "object"});
        let tool = json!({"name": name, "inputSchema": schema, "outputSchema": schema});
        Respond::Result(json!({"resultType": "complete", "tools": [tool]}))
    })
    .await;
    let client = connect(&server).await;
    client.tools().await.unwrap();
    let invalid = json!({"structuredContent": 7});
    assert!(client.output_schema_mismatch("0", &invalid).is_some());
    client.tools().await.unwrap();
    assert!(client.output_schema_mismatch("1", &invalid).is_some());
    assert_eq!(client.output_schema_mismatch("0", &invalid), None);
}

/// A server that responds to every request with interim responses and nothing else.
async fn interim_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let _ = connection.read(&mut request).await;
                let interim = b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1000);
                while connection.write_all(&interim).await.is_ok() {}
            });
        }
    });
    url
}

#[tokio::test]
async fn endless_interim_responses_end_the_request() {
    let url = interim_server().await;
    let connecting = Client::builder().connect(&url);
    let error = within("the error", connecting).await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::ConnectionLost(_));
    let expected = "the server sent more than 8 MiB of interim responses or control frames";
    assert!(error.to_string().contains(expected), "{error}");
}

#[tokio::test]
async fn endless_notifications_of_a_task_do_not_cause_endless_polls() {
    const POLLS: usize = 18;
    let polls = AtomicUsize::new(0);
    let server = FakeServer::start(move |request| match request.method() {
        "subscriptions/listen" => {
            let (stream, respond) = Events::new();
            let meta = json!({"io.modelcontextprotocol/subscriptionId": request["id"]});
            stream.message(
                &json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
                "params": {"notifications": {"taskIds": ["t1"]}, "_meta": meta}}),
            );
            for _ in 0..10_000 {
                stream.message(&json!({"jsonrpc": "2.0", "method": "notifications/tasks",
                    "params": {"taskId": "t1", "status": "working", "_meta": meta}}));
            }
            stream.stays_open();
            respond
        }
        "tasks/get" if polls.fetch_add(1, Ordering::Relaxed) < POLLS => {
            Respond::Result(json!({"resultType": "complete", "taskId": "t1", "status": "working"}))
        }
        "tasks/get" => Respond::Result(json!({"resultType": "complete", "taskId": "t1",
            "status": "completed", "result": {"content": []}})),
        _ => Respond::Result(json!({"resultType": "task", "taskId": "t1", "status": "working"})),
    })
    .await;
    let client = connect(&server).await;
    let began = Instant::now();
    let called = within("the result", client.call_tool("t", json!({}))).await;
    called.expect("the task completes");
    // Ten polls at once, then five per second.
    assert!(
        began.elapsed() > Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
}
