//! Servers that violate the protocol, are busy, or cannot be reached.

use crate::support::{FakeServer, HeaderAuth, Respond, form};
use futures_util::FutureExt;
use http::HeaderMap;
use refrain_client::wire::AskKind;
use refrain_client::{Client, ClientLimits, Error, ErrorKind};
use serde_json::json;
use std::time::Duration;

async fn connect(server: &FakeServer) -> Client {
    let client = Client::builder().answer_manually([AskKind::Form]);
    client.connect(&server.url).await.expect("a server")
}

async fn call(server: &FakeServer) -> Result<(), Error> {
    let called = connect(server).await.call_tool("t", json!({})).await;
    called.map(|_| ())
}

#[tokio::test]
async fn missing_result_type_means_complete_and_unknown_type_is_rejected() {
    let server = FakeServer::start(|_| Respond::Result(json!({"content": []}))).await;
    call(&server).await.unwrap();
    for kind in [json!("dance"), json!(null), json!(7)] {
        let server =
            FakeServer::start(move |_| Respond::Result(json!({"resultType": kind, "content": []})))
                .await;
        let error = call(&server).await.unwrap_err();
        assert_matches!(error.kind, ErrorKind::UnknownResultType(_));
    }
}

#[tokio::test]
async fn too_large_state_is_rejected_and_the_last_round_kept() {
    let huge = "x".repeat(10 * 1024 * 1024);
    let server = FakeServer::start(move |request| match request["params"].get("requestState") {
        None => Respond::asks(json!({"go": form("Go?", json!({}))}), Some("small")),
        Some(_) => Respond::asks(json!({}), Some(&huge)),
    })
    .await;
    let client = connect(&server).await;
    let error = client.call_tool("t", json!({})).await.unwrap_err();
    let mut pending = *error.pending.unwrap();
    pending
        .answer("go", refrain_client::AskAnswer::Decline)
        .unwrap();
    let error = client.finish(pending).await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::TooLarge { .. });
    assert!(error.to_string().contains("4194304"), "{error}");
    let pending = error.pending.expect("the error contains the last round");
    assert_eq!(pending.round(), 1);
    assert!(pending.unanswered().is_empty(), "its answer is kept");
}

#[tokio::test]
async fn too_large_message_is_rejected() {
    let server = FakeServer::start(|_| Respond::text(&"x".repeat(3_000_000))).await;
    let limits = ClientLimits {
        message: 1_000_000,
        ..ClientLimits::default()
    };
    let client = Client::builder()
        .limits(limits)
        .connect(&server.url)
        .await
        .unwrap();
    let error = client.call_tool("t", json!({})).await.unwrap_err();
    assert_matches!(
        error.kind,
        ErrorKind::TooLarge {
            limit: 1_000_000,
            ..
        }
    );
}

#[tokio::test]
async fn too_many_asks_are_rejected() {
    let server = FakeServer::start(|_| {
        let many = (0..101).map(|n| (n.to_string(), json!({"method": "roots/list"})));
        Respond::asks(many.collect::<serde_json::Map<_, _>>().into(), None)
    })
    .await;
    let error = call(&server).await.unwrap_err();
    assert_matches!(
        error.kind,
        ErrorKind::TooManyAsks {
            asks: 101,
            limit: 100
        }
    );
}

#[tokio::test]
async fn invalid_responses_are_reported() {
    for (body, word) in [
        ("{\"jsonrpc\":\"2.0\",", "EOF"),
        ("{\"jsonrpc\":\"2.0\",\"id\":1}", "not a JSON-RPC message"),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}",
            "another request",
        ),
    ] {
        let server =
            FakeServer::start(move |_| Respond::Raw(200, "application/json", body.to_owned()))
                .await;
        let error = call(&server).await.unwrap_err();
        assert_matches!(error.kind, ErrorKind::InvalidResponse(_));
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[tokio::test]
async fn html_page_is_not_an_mcp_server() {
    let server = FakeServer::start_raw(|_| {
        Respond::Raw(200, "text/html", "<html>Welcome</html>".to_owned())
    })
    .await;
    let error = Client::builder().connect(&server.url).await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::NotMcp { .. });
    assert!(error.to_string().contains("Welcome"), "{error}");
}

#[tokio::test]
async fn unreachable_server_and_invalid_addresses_are_reported() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    drop(listener);
    let error = Client::builder().connect(&url).await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::Unreachable { .. });
    for address in [
        "",
        "localhost:80",
        "ftp://example.com/",
        "http://me:secret@localhost/",
    ] {
        let error = Client::builder().connect(address).await.unwrap_err();
        assert_matches!(error.kind, ErrorKind::InvalidAddress { .. });
    }
}

#[tokio::test]
async fn busy_server_is_retried() {
    let times = std::sync::atomic::AtomicUsize::new(0);
    let server =
        FakeServer::start(
            move |_| match times.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
                0 => Respond::RetryAfter(503, "0"),
                1 => Respond::Raw(429, "text/plain", "slower".to_owned()),
                _ => Respond::text("done"),
            },
        )
        .await;
    call(&server).await.unwrap();
    assert_eq!(server.requests("tools/call").len(), 3);
}

#[tokio::test]
async fn long_retry_after_is_not_waited_for() {
    let server = FakeServer::start(|_| Respond::RetryAfter(429, "3600")).await;
    let error = call(&server).await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::HttpStatus { status: 429, .. });
    assert_eq!(server.requests("tools/call").len(), 1);
}

#[tokio::test]
async fn event_of_another_type_is_ignored() {
    let server = FakeServer::start(|request| {
        let result = json!({"resultType": "complete", "content": []});
        let last = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
        let body = format!("event: ping\ndata: 12:00\n\nevent: message\ndata: {last}\n\n");
        Respond::Raw(200, "Text/Event-Stream; charset=utf-8", body)
    })
    .await;
    call(&server).await.unwrap();
}

/// The silence limit, which is shorter than the login.
const SILENCE: Duration = Duration::from_secs(3);

#[tokio::test]
async fn login_time_does_not_count_as_server_silence() {
    let server = FakeServer::start(|_| Respond::text("done")).await;
    let limits = ClientLimits {
        silence: SILENCE,
        ..ClientLimits::default()
    };
    let slow_login = HeaderAuth(|| {
        let login = tokio::time::sleep(SILENCE + Duration::from_secs(1));
        login.map(|()| HeaderMap::new()).boxed()
    });
    let builder = Client::builder().limits(limits).authorize(slow_login);
    builder.connect(&server.url).await.unwrap();
}

#[tokio::test]
async fn lost_response_is_not_retried_without_call_ids() {
    // This server does not support call ids.
    for status in [502, 503, 504] {
        let server =
            FakeServer::start(move |_| Respond::Raw(status, "text/plain", "gateway".to_owned()))
                .await;
        let error = call(&server).await.unwrap_err();
        assert_eq!(server.requests("tools/call").len(), 1, "{status}");
        let pending = error.pending.expect("the host may decide to resend");
        assert_eq!(pending.round(), 0);
    }
}

#[tokio::test]
async fn invalid_result_is_returned_in_the_error() {
    let content = json!([{"type": "hologram", "beams": 7}]);
    let sent = json!({"resultType": "complete", "content": content});
    let answer = sent.clone();
    let server = FakeServer::start(move |_| Respond::Result(answer.clone())).await;
    let error = call(&server).await.unwrap_err();
    let ErrorKind::InvalidResult { result, .. } = error.kind else {
        panic!("{error}")
    };
    assert_eq!(result, sent);
}

#[tokio::test]
async fn error_status_of_an_event_stream_is_reported() {
    for body in ["", ": nothing\n\n", "data: oops\n\n"] {
        let server =
            FakeServer::start(move |_| Respond::Raw(500, "text/event-stream", body.to_owned()))
                .await;
        let error = call(&server).await.unwrap_err();
        assert_matches!(error.kind, ErrorKind::HttpStatus { status: 500, .. });
    }
}

#[tokio::test]
async fn password_in_a_url_is_not_repeated_in_errors() {
    for url in [
        "http://ada:secret@127.0.0.1:1/mcp",
        "http://secret@127.0.0.1:1/mcp",
        "http://ada:sec@ret@127.0.0.1:1/mcp",
        "http://ada:secr/et@127.0.0.1:99999/mcp",
        "ftp://ada:secret@127.0.0.1/mcp",
        "ada:secret@127.0.0.1/mcp",
    ] {
        let error = Client::builder().connect(url).await.unwrap_err();
        assert_matches!(error.kind, ErrorKind::InvalidAddress { .. });
        let text = format!("{error} {error:?}");
        assert!(!text.contains("sec") && !text.contains("ret@"), "{text}");
        assert!(text.contains("127.0.0.1"), "{text}");
    }
    let error = Client::builder().connect("ftp://host/a@b").await;
    assert!(error.unwrap_err().to_string().contains("ftp://host/a@b"));
}
