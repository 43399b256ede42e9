//! Protocol rules for HTTP requests and responses.

use crate::support::{FakeServer, Respond};
use refrain_client::wire::{Filter, LogLevel};
use refrain_client::{Bearer, Client, ErrorKind};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

const TASK: &str = "t/1";

/// A valid response to every kind of request.
fn respond_to_any(request: &Value) -> Respond {
    match request["method"].as_str() {
        Some("tools/list") => Respond::Result(json!({"tools": []})),
        Some("prompts/get") => Respond::Result(json!({"messages": []})),
        Some("resources/read") => Respond::Result(json!({"contents": []})),
        Some("subscriptions/listen") => {
            let method = "notifications/subscriptions/acknowledged";
            let acknowledged = json!({"method": method, "params": {"notifications": {}}});
            Respond::stream(request, &[acknowledged])
        }
        Some("tasks/get") => {
            Respond::Result(json!({"taskId": TASK, "status": "working", "ttlMs": null}))
        }
        _ => Respond::text("done"),
    }
}

/// Makes a request of every kind.
async fn request_everything(client: &Client) {
    client.tools().await.expect("a response");
    client
        .call_tool("wärme", json!({}))
        .await
        .expect("a response");
    client
        .get_prompt("plain", json!({}))
        .await
        .expect("a response");
    client
        .read_resource("file:///a b")
        .await
        .expect("a response");
    client.listen(&Filter::default()).await.expect("a response");
    client.task(TASK).await.expect("a response");
    client.cancel_task(TASK).await.expect("a response");
}

#[tokio::test]
async fn headers_of_the_host_are_sent_with_every_request() {
    let server = FakeServer::legacy(|request, _| Respond::Json(200, request.text("done"))).await;
    let builder = Client::builder()
        .header("X-Api-Key", "s3cret")
        .header("authorization", "Basic s3cret");
    assert!(!format!("{builder:?}").contains("s3cret"));
    let client = builder.connect(&server.url).await.unwrap();
    client.call_tool("t", json!({})).await.unwrap();
    assert!(!format!("{client:?}").contains("s3cret"));
    client.close().await;
    let verbs = ["POST", "GET", "DELETE"];
    for verb in verbs {
        let requests = server.received(|request| request.verb == verb);
        assert!(!requests.is_empty(), "{verb}");
        for request in requests {
            assert_eq!(request.header("x-api-key"), Some("s3cret"), "{verb}");
            assert_eq!(request.header("authorization"), Some("Basic s3cret"));
        }
    }
}

#[tokio::test]
async fn authorization_replaces_a_header_of_the_host() {
    let server = FakeServer::start(|_| Respond::text("done")).await;
    let builder = Client::builder().header("authorization", "Basic s3cret");
    let builder = builder.authorize(Bearer::new("token").unwrap());
    let client = builder.connect(&server.url).await.unwrap();
    client.call_tool("t", json!({})).await.unwrap();
    for request in server.all() {
        let sent: Vec<_> = request.headers.get_all("authorization").iter().collect();
        assert_eq!(sent, ["Bearer token"]);
    }
}

#[tokio::test]
async fn invalid_header_of_the_host_is_rejected() {
    let headers = [
        ("", "x"),
        ("a b", "x"),
        ("x-key", "s3cret\n"),
        ("Mcp-Session-Id", "s3cret"),
        ("content-type", "s3cret"),
    ];
    for (name, value) in headers {
        let builder = Client::builder().header(name, value);
        let error = builder.connect("http://127.0.0.1:9/mcp").await.unwrap_err();
        assert_matches!(error.kind, ErrorKind::InvalidArgument(_));
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
    }
}

#[tokio::test]
async fn every_request_is_a_post_with_standard_headers() {
    let server = FakeServer::start(|request| respond_to_any(request)).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    request_everything(&client).await;
    let messages = server.all();
    for request in &messages {
        assert_eq!(request.verb, "POST");
        assert_eq!(request.header("content-type"), Some("application/json"));
        let accepted = request.header("accept").unwrap();
        for kind in ["application/json", "text/event-stream"] {
            assert!(accepted.contains(kind), "{accepted}");
        }
        assert_eq!(request.header("mcp-method"), request["method"].as_str());
        let version = &request["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"];
        assert_eq!(request.header("mcp-protocol-version"), version.as_str());
    }
    let names: Vec<_> = messages
        .iter()
        .map(|request| {
            (
                request["method"].as_str().unwrap(),
                request.header("mcp-name"),
            )
        })
        .collect();
    assert_eq!(
        names,
        [
            ("server/discover", None),
            ("tools/list", None),
            ("tools/call", Some("=?base64?d8Okcm1l?=")),
            ("prompts/get", Some("plain")),
            ("resources/read", Some("file:///a b")),
            ("subscriptions/listen", None),
            ("tasks/get", Some(TASK)),
            ("tasks/cancel", Some(TASK)),
        ]
    );
}

#[tokio::test]
async fn every_request_has_client_metadata_and_a_unique_id() {
    let server = FakeServer::start(|request| respond_to_any(request)).await;
    let client = Client::builder()
        .on_roots(|_| async { Ok(Vec::new()) })
        .on_progress(|_| {})
        .connect(&server.url)
        .await
        .unwrap();
    request_everything(&client).await;
    let (mut ids, mut tokens) = (HashSet::new(), HashSet::new());
    for request in server.all() {
        let meta = &request["params"]["_meta"];
        assert_eq!(request["jsonrpc"], "2.0");
        assert_eq!(
            meta["io.modelcontextprotocol/protocolVersion"],
            "2026-07-28"
        );
        let info = &meta["io.modelcontextprotocol/clientInfo"];
        assert_eq!(info["name"], "refrain-client");
        assert!(info["version"].is_string());
        let capabilities = &meta["io.modelcontextprotocol/clientCapabilities"];
        let tasks = json!({"io.modelcontextprotocol/tasks": {}});
        assert_eq!(capabilities, &json!({"roots": {}, "extensions": tasks}));
        let id = request["id"].as_u64().expect("an integer");
        assert!(ids.insert(id), "duplicate id {id}");
        if let Some(token) = meta.get("progressToken") {
            let token = token.as_u64().expect("an integer");
            assert!(tokens.insert(token), "duplicate token {token}");
        }
    }
    assert_eq!(tokens.len(), 3, "each call has a progress token");
}

#[tokio::test]
async fn requests_on_a_response_stream_are_ignored() {
    let server = FakeServer::start(|request| {
        let token = &request["params"]["_meta"]["progressToken"];
        let progress = json!({"progressToken": token, "progress": 0.5, "total": 1.0});
        Respond::stream(
            request,
            &[
                json!({"method": "notifications/progress", "params": progress}),
                json!({"method": "notifications/message", "params": {"level": "info", "data": "so far"}}),
                json!({"method": "notifications/dance", "params": {}}),
                json!({"method": "notifications/progress", "params": {"progress": "far"}}),
                json!({"method": "notifications/message", "params": {"level": 7, "data": "?"}}),
                json!({"method": "roots/list", "id": 1}),
                json!({"method": "ping", "id": "p"}),
                json!({"result": {"content": [{"type": "text", "text": "done"}]}}),
                json!({"error": {"code": -32603, "message": "too late"}}),
            ],
        )
    })
    .await;
    let received: Arc<Mutex<Vec<String>>> = Arc::default();
    let (steps, lines) = (Arc::clone(&received), Arc::clone(&received));
    let client = Client::builder()
        .on_roots(|_| async { panic!("the handler must not run") })
        .on_progress(move |step| steps.lock().unwrap().push(step.progress.to_string()))
        .on_log(LogLevel::Info, move |line| {
            lines.lock().unwrap().push(line.data.to_string());
        })
        .connect(&server.url)
        .await
        .unwrap();
    let result = client.call_tool("t", json!({})).await.unwrap();
    assert_eq!(result.content[0].as_text(), Some("done"));
    assert_eq!(*received.lock().unwrap(), ["0.5", "\"so far\""]);
    let sent = server.all();
    assert_eq!(sent.len(), 2, "no response is sent: {sent:?}");
    let meta = &sent[1]["params"]["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/logLevel"], "info");
}

#[tokio::test]
async fn retry_after_a_lost_response_has_a_new_id() {
    let server = FakeServer::start(|request| match request["id"].as_u64() {
        Some(2) => Respond::Raw(200, "text/event-stream", ": interrupted\n".to_owned()),
        _ => respond_to_any(request),
    })
    .await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    client.read_resource("file:///x").await.unwrap();
    let requests = server.requests("resources/read");
    let ids: Vec<_> = requests.iter().map(|request| &request["id"]).collect();
    assert_eq!(ids, [&json!(2), &json!(3)]);
}

#[tokio::test]
async fn redirect_to_another_server_is_not_followed() {
    let other = FakeServer::start(|request| respond_to_any(request)).await;
    for status in [301, 302, 303, 307, 308] {
        let url = other.url.clone();
        let server = FakeServer::start(move |_| Respond::Redirect(status, url.clone())).await;
        let client = Client::builder().connect(&server.url).await.unwrap();
        let error = client.call_tool("t", json!({})).await.unwrap_err();
        assert_matches!(error.kind, ErrorKind::NotMcp { .. });
        assert!(error.to_string().contains(&other.url), "{error}");
    }
    assert!(other.all().is_empty());
}

#[tokio::test]
async fn only_redirects_that_keep_method_and_body_are_followed() {
    for status in [301, 302, 303, 307, 308] {
        let server = FakeServer::start(move |request| match request["params"]["name"].as_str() {
            Some("moved") => Respond::Redirect(status, "/elsewhere".to_owned()),
            _ => respond_to_any(request),
        })
        .await;
        let client = Client::builder().connect(&server.url).await.unwrap();
        let called = client.call_tool("moved", json!({})).await;
        let seen: Vec<_> = server.all();
        let paths: Vec<_> = seen.iter().map(|request| request.path.as_str()).collect();
        if status < 307 {
            assert!(matches!(called.unwrap_err().kind, ErrorKind::NotMcp { .. }));
            assert_eq!(paths, ["/mcp", "/mcp"]);
        } else {
            assert!(called.is_err(), "the redirects do not end");
            assert_eq!(paths[..3], ["/mcp", "/mcp", "/elsewhere"]);
            assert!(paths.len() < 10, "redirects are limited: {paths:?}");
            assert_eq!(seen[1].message, seen[2].message);
            assert_eq!(seen[2].header("mcp-name"), Some("moved"));
        }
    }
}

#[tokio::test]
async fn any_error_code_is_reported_unchanged() {
    for code in [-32002, -32000, -32042, -32602, -32099, 7] {
        let server = FakeServer::start(move |_| Respond::Error(code, "no such thing")).await;
        let client = Client::builder().connect(&server.url).await.unwrap();
        let error = client.read_resource("file:///x").await.unwrap_err();
        let ErrorKind::Rpc(failure) = &error.kind else {
            panic!("{error}")
        };
        assert_eq!(
            (failure.code, failure.message.as_str()),
            (code, "no such thing")
        );
        assert_eq!(server.requests("resources/read").len(), 1);
    }
}

#[tokio::test]
async fn malformed_reserved_meta_is_ignored() {
    let malformed = json!({
        "io.modelcontextprotocol/serverInfo": 7,
        "io.modelcontextprotocol/protocolVersion": ["?"],
        "progressToken": {},
        "traceparent": 0,
    });
    let server = FakeServer::start_raw(move |request| match request["method"].as_str() {
        Some("server/discover") => {
            Respond::Result(json!({"supportedVersions": ["2026-07-28"], "_meta": malformed}))
        }
        _ => Respond::Result(json!({"content": [], "_meta": malformed})),
    })
    .await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    assert_eq!(client.server().info, None);
    let result = client.call_tool("t", json!({})).await.unwrap();
    assert_eq!(
        result.meta.unwrap()["traceparent"],
        0,
        "it is passed on unchanged"
    );
}

#[tokio::test]
async fn discover_result_of_unknown_type_is_rejected() {
    let server = FakeServer::start_raw(|_| {
        Respond::Result(json!({"resultType": "dance", "supportedVersions": ["2026-07-28"]}))
    })
    .await;
    let error = Client::builder().connect(&server.url).await.unwrap_err();
    assert_matches!(&error.kind, ErrorKind::UnknownResultType(kind) if kind == "dance");
}
