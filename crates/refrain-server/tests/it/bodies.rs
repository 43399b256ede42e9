//! Request bodies: authentication before the body, bytes in flight, and slow clients.

use crate::support::{
    Connection, Instance, Request, Signals, Word, echo, expect_signal, signals, start, text, within,
};
use bytes::Bytes;
use flate2::write::GzEncoder;
use futures_util::future::join_all;
use http_body_util::StreamBody;
use refrain_core::{Cx, Principal, Result};
use refrain_server::{
    AllowedHosts, AuthFuture, AuthRejection, Authenticator, BearerTokens, HttpService, Server,
    ServerBuilder, ServerLimits, Tool,
};
use serde_json::json;
use std::convert::Infallible;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

const ALICE: &str = "alice-0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef";

fn builder(limits: ServerLimits) -> ServerBuilder {
    Server::builder("bodies", "1")
        .tool(Tool::new("echo", echo))
        .limits(limits)
}

async fn instance(limits: ServerLimits) -> Instance {
    let tokens = BearerTokens::new().with("alice", ALICE).with("bob", BOB);
    start(builder(limits).authenticator(tokens)).await
}

/// The head of a POST with a body of this length.
fn head(length: usize, headers: &str) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n{headers}\r\n"
    )
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

fn echo_of_length(token: &str, length: usize) -> Request {
    Request::tool("echo", json!({"text": "x".repeat(length)})).bearer(token)
}

async fn large(_: Cx) -> Result<String> {
    Ok("x".repeat(LARGE))
}

/// More than the buffers of a socket on both sides.
const LARGE: usize = 24 << 20;

#[tokio::test]
async fn bytes_of_unread_responses_are_limited_per_caller() {
    let limits = ServerLimits {
        body_each: LARGE + (4 << 20),
        ..ServerLimits::default()
    };
    let tokens = BearerTokens::new().with("alice", ALICE).with("bob", BOB);
    let builder = builder(limits).tool(Tool::new("large", large));
    let instance = start(builder.authenticator(tokens)).await;
    let request = |token: &str| Request::tool("large", json!({})).bearer(token);
    let mut slow = instance.connect().await;
    slow.send(&request(ALICE)).await;
    // The first response may not be sent yet.
    let status = async |status| loop {
        let response = instance.send(&request(ALICE)).await;
        if response.status == status {
            return response;
        }
    };
    let rejected = within("a rejection", status(503)).await;
    let message = rejected.error(503, -32603);
    assert!(message.contains("bytes of unread responses"), "{message}");
    // Small responses, and other callers, are not affected.
    assert_eq!(instance.send(&echo_of_length(ALICE, 5)).await.status, 200);
    assert_eq!(instance.send(&request(BOB)).await.status, 200);
    // The client reads the response.
    assert!(slow.response().await.body.len() > LARGE);
    within("a response", status(200)).await;
}

/// Sends the signal "authenticated" for each request.
struct SignallingAuth(Arc<Signals>);

impl Authenticator for SignallingAuth {
    fn authenticate<'a>(&'a self, headers: &'a http::HeaderMap) -> AuthFuture<'a> {
        self.0.say("authenticated");
        let has_user = headers.contains_key("x-user");
        let caller = has_user.then(|| Principal::new("alice").into());
        Box::pin(async { caller.ok_or(AuthRejection::Missing("missing X-User header".into())) })
    }
}

#[tokio::test]
async fn caller_is_authenticated_before_the_body_is_sent() {
    let (signals, mut received) = signals();
    let authenticator = SignallingAuth(signals.clone());
    let instance = start(builder(ServerLimits::default()).authenticator(authenticator)).await;
    let mut connection = instance.connect().await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "nonsense"}).to_string();
    let head = head(body.len(), "X-User: alice\r\n");
    connection.write(head.as_bytes()).await;
    expect_signal(&mut received, "authenticated").await;
    connection.write(body.as_bytes()).await;
    assert_eq!(connection.response().await.json()["id"], 1);
}

#[tokio::test]
async fn rejected_request_is_answered_without_its_body() {
    let instance = instance(ServerLimits::default()).await;
    let expect = |headers: &str| head(1_000_000, &format!("Expect: 100-continue\r\n{headers}"));
    for (sent, status) in [
        (expect(""), 401),
        (expect(&bearer("nonsense")), 401),
        (
            head(1_000_000, "").replace("localhost", "evil.example"),
            403,
        ),
        (head(1_000_000, "Refrain-Relay: nonsense\r\n"), 403),
        // More than is discarded of a request without authentication.
        (head(4 * 1024 * 1024 + 1, ""), 401),
    ] {
        let mut connection = instance.connect().await;
        connection.write(sent.as_bytes()).await;
        let response = connection.response().await;
        assert_eq!(response.status, status, "{sent}");
        connection.closed().await;
    }
}

#[tokio::test]
async fn client_that_sends_all_of_its_body_reads_the_authentication_error() {
    let instance = instance(ServerLimits::default()).await;
    let mut connection = instance.connect().await;
    let large = echo_of_length("nonsense", 2_000_000);
    connection.exchange(&large).await.error(401, -32600);
    let reply = connection.exchange(&echo_of_length(ALICE, 1)).await.reply();
    assert_eq!(text(&reply), "Echo: x", "the connection stays open");
}

/// Sends a body of 60,000 bytes except for its last byte.
async fn hold(instance: &Instance, token: &str) -> Connection {
    let mut connection = instance.connect().await;
    connection
        .write(head(60_000, &bearer(token)).as_bytes())
        .await;
    connection.write(&vec![b' '; 59_999]).await;
    connection
}

/// Repeats the request until it has this status.
async fn until_status(instance: &Instance, request: &Request, status: u16) -> String {
    let repeated = async {
        loop {
            let response = instance.send(request).await;
            if response.status == status {
                assert_eq!(response.header("retry-after"), Some("1"));
                return response.error(status, -32603);
            }
        }
    };
    within("the status", repeated).await
}

#[tokio::test]
async fn body_bytes_in_flight_are_limited_per_caller() {
    let limits = ServerLimits {
        body: 100_000,
        body_each: 100_000,
        ..ServerLimits::default()
    };
    let instance = instance(limits).await;
    let mut first = hold(&instance, ALICE).await;
    let message = until_status(&instance, &echo_of_length(ALICE, 90_000), 503).await;
    let expected = "this caller is at its limit of 100000 bytes of request bodies on this instance";
    assert!(message.starts_with(expected), "{message}");
    // Another caller and small bodies are not affected.
    instance.send(&echo_of_length(BOB, 90_000)).await.reply();
    instance.send(&echo_of_length(ALICE, 10)).await.reply();
    first.write(b"x").await;
    first.response().await.error(400, -32700);
    instance.send(&echo_of_length(ALICE, 90_000)).await.reply();
}

#[tokio::test]
async fn body_bytes_in_flight_are_limited_in_total() {
    let limits = ServerLimits {
        body: 100_000,
        body_all: 120_000,
        ..ServerLimits::default()
    };
    let instance = instance(limits).await;
    let _held = hold(&instance, ALICE).await;
    let message = until_status(&instance, &echo_of_length(BOB, 90_000), 503).await;
    let expected = "this instance is at its limit of 120000 bytes of request bodies";
    assert!(message.starts_with(expected), "{message}");
}

#[tokio::test]
async fn slow_body_times_out() {
    let limits = ServerLimits {
        body_time: Duration::from_millis(100),
        ..ServerLimits::default()
    };
    let instance = instance(limits).await;
    let mut slow = hold(&instance, ALICE).await;
    let message = slow.response().await.error(408, -32600);
    assert!(message.contains("`body_seconds`"), "{message}");
    slow.closed().await;
    // Without authentication, the server does not wait for the rest of the body.
    let mut stranger = hold(&instance, "nonsense").await;
    stranger.response().await.error(401, -32600);
    stranger.closed().await;
}

#[tokio::test]
async fn missing_body_times_out_in_a_mounted_service() {
    let limits = ServerLimits {
        body_time: Duration::from_millis(50),
        ..ServerLimits::default()
    };
    let server = builder(limits).build().expect("a valid server");
    let service = HttpService::new(server, AllowedHosts::local());
    let endless = futures_util::stream::pending::<Result<http_body::Frame<Bytes>, Infallible>>();
    let request = http::Request::post("/mcp")
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(StreamBody::new(endless))
        .expect("a valid request");
    let response = within("a response", service.handle(request)).await;
    assert_eq!(response.status(), 408);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).expect("a vector");
    encoder.finish().expect("a vector")
}

/// A call of `echo` with a text of this length, as JSON.
fn call(length: usize) -> Vec<u8> {
    let request = Request::tool("echo", json!({"text": "x".repeat(length)}));
    let bytes = request.to_bytes("localhost");
    let head = bytes.windows(4).position(|end| end == b"\r\n\r\n");
    bytes[head.expect("a head") + 4..].to_vec()
}

fn compressed(body: Vec<u8>) -> Request {
    Request::bytes(body).header("Content-Encoding", "gzip")
}

#[tokio::test]
async fn gzip_body_is_decompressed() {
    let instance = start(builder(ServerLimits::default())).await;
    for length in [1, 100_000, 3_000_000] {
        let request = compressed(gzip(&call(length)));
        for request in [request.clone(), request.chunked()] {
            let response = instance.send(&request).await;
            assert_eq!(text(&response.reply()).len(), "Echo: ".len() + length);
        }
    }
    let identity = Request::bytes(call(1)).header("Content-Encoding", "identity");
    assert_eq!(text(&instance.send(&identity).await.reply()), "Echo: x");
}

#[tokio::test]
async fn decompressed_body_is_limited() {
    let limits = ServerLimits {
        body: 64 << 10,
        body_each: 128 << 10,
        ..ServerLimits::default()
    };
    let instance = start(builder(limits)).await;
    let large = compressed(gzip(&call(64 << 10)));
    let message = instance.send(&large).await.error(413, -32600);
    assert!(message.contains("`body_bytes`"), "{message}");
    // 60 MiB in less than 64 KiB.
    let bomb = gzip(&vec![b' '; 60 << 20]);
    assert!(bomb.len() < 64 << 10, "{}", bomb.len());
    instance.send(&compressed(bomb)).await.error(413, -32600);
    // The permits of rejected bodies are returned.
    let small = compressed(gzip(&call(32 << 10)));
    for _ in 0..3 {
        assert_eq!(instance.send(&small).await.status, 200);
    }
}

#[tokio::test]
async fn malformed_or_unsupported_encoding_is_rejected() {
    let instance = start(builder(ServerLimits::default())).await;
    let whole = gzip(&call(100));
    let truncated = whole[..whole.len() - 9].to_vec();
    let mut wrong_checksum = whole.clone();
    wrong_checksum[whole.len() - 5] ^= 1;
    let trailing = [&whole[..], &whole].concat();
    for body in [call(1), truncated, wrong_checksum, trailing, Vec::new()] {
        let response = instance.send(&compressed(body)).await;
        let message = response.error(400, -32700);
        assert!(message.contains("invalid gzip"), "{message}");
    }
    for encoding in ["br", "deflate", "gzip, gzip", ""] {
        let request = compressed(whole.clone()).header("Content-Encoding", encoding);
        let response = instance.send(&request).await;
        let message = response.error(415, -32600);
        assert!(message.contains(&format!("{encoding:?}")), "{message}");
        assert_eq!(response.header("accept-encoding"), Some("gzip, identity"));
    }
}

/// Large requests of one caller that are parsed at the same time, and the maximum so far.
#[derive(Default)]
struct Concurrency {
    now: AtomicUsize,
    max: AtomicUsize,
}

impl Concurrency {
    /// Counts work that uses a thread, such as the conversion of large arguments.
    fn work(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.max.fetch_max(now, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn large_requests_of_one_caller_leave_cores_to_others() {
    let counted = Arc::new(Concurrency::default());
    let counter = counted.clone();
    let work = Tool::new("work", move |_: Cx, word: Word| {
        counter.work();
        async move { Ok(word.text.len().to_string()) }
    });
    let server = start(Server::builder("bodies", "1").tool(work)).await;
    let request = Request::tool("work", json!({"text": "x".repeat(64 << 10)}));
    let sending = (0..16).map(|_| server.send(&request));
    for response in within("the responses", join_all(sending)).await {
        assert_eq!(text(&response.reply()), "65536");
    }
    let cores = available_parallelism().map_or(2, |cores| cores.get().max(2));
    let max = counted.max.load(Ordering::SeqCst);
    assert!(max <= cores.div_ceil(2), "{max} of {cores}");
}
