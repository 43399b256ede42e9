//! Metrics of rejected tokens and requests.

use super::{assert_rounds, builder, call, served};
use crate::support::{Clock, Request, VERSION_KEY, echo, echo_call, keys, login, token};
use refrain_core::KeyRing;
use refrain_server::{
    AuthFuture, AuthRejection, Authenticator, BearerTokens, ServerLimits, Tool, TrustedProxy,
};
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn rejected_tokens_are_counted_by_reason() {
    let (keys, other, clock) = (keys(), keys(), Clock::new());
    let builder = |keys: &KeyRing| {
        builder()
            .keys(keys.clone())
            .source(clock.clone())
            .token_ttl(Duration::from_secs(100))
            .clock_skew(Duration::from_secs(10))
            .max_token(4096)
    };
    let (instance, port) = served(builder(&keys)).await;
    let (foreign_instance, _) = served(builder(&other)).await;
    let good = token(&instance.send(&call("greet")).await.reply());
    let foreign = token(&foreign_instance.send(&call("greet")).await.reply());
    let version = format!("D{}", &good[1..]);
    for bad in [
        "short",
        &"A".repeat(5000),
        &"!".repeat(200),
        &version,
        &foreign,
    ] {
        let request = call("greet").again(bad, login("alice"));
        instance.send(&request).await.error(200, -32602);
    }
    let stolen = echo_call().again(&good, login("alice"));
    instance.send(&stolen).await.error(200, -32602);
    clock.forward(200);
    let late = call("greet").again(&good, login("alice"));
    instance.send(&late).await.error(200, -32602);
    let scrape = port.scrape().await;
    assert_eq!(
        scrape.all("refrain_tokens_refused_total"),
        [
            ("{reason=\"encoding\"}", 1.0),
            ("{reason=\"expired\"}", 1.0),
            ("{reason=\"length\"}", 2.0),
            ("{reason=\"seal\"}", 1.0),
            ("{reason=\"unknown_key\"}", 1.0),
            ("{reason=\"version\"}", 1.0),
        ]
    );
    let rounds = [
        ("echo invalid_params", 1.0),
        ("greet input_required", 1.0),
        ("greet invalid_params", 6.0),
    ];
    assert_rounds(&scrape, "tools/call", &rounds);
}

#[tokio::test]
async fn rejected_requests_are_counted_by_reason() {
    let limits = ServerLimits {
        body: 1000,
        ..ServerLimits::default()
    };
    let tokens = BearerTokens::new().with("alice", "alice-0123456789abcdef");
    let builder = builder().limits(limits).authenticator(tokens);
    let (instance, port) = served(builder).await;
    let alice = |request: Request| request.bearer("alice-0123456789abcdef");
    for (status, request) in [
        (403, echo_call().header("Host", "example.com")),
        (403, echo_call().header("Origin", "https://example.com")),
        (415, echo_call().header("Content-Type", "text/plain")),
        (401, echo_call()),
        (
            413,
            alice(Request::tool("echo", json!({"text": "x".repeat(2000)}))),
        ),
        (400, alice(Request::bytes("not JSON"))),
        (400, alice(Request::bytes("[]"))),
        (404, alice(Request::rpc("no/such", json!({})))),
        (400, alice(echo_call().without_param("name"))),
        (400, alice(echo_call().header("Mcp-Name", "greet"))),
        (400, alice(echo_call().without_header("Mcp-Method"))),
    ] {
        let response = instance.send(&request).await;
        assert_eq!(response.status, status, "{request:?}");
    }
    assert_eq!(instance.get("/mcp").await.status, 405);
    let old = echo_call()
        .meta(VERSION_KEY, json!("2025-11-25"))
        .header("MCP-Protocol-Version", "2025-11-25");
    assert_eq!(instance.send(&alice(old)).await.status, 400);
    // A body with invalid chunked encoding.
    let mut broken = instance.connect().await;
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Authorization: Bearer alice-0123456789abcdef\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        instance.address
    );
    broken.write(head.as_bytes()).await;
    assert_eq!(broken.response().await.status, 400);
    instance
        .send(&alice(Request::rpc("tools/list", json!({}))))
        .await
        .reply();

    let scrape = port.scrape().await;
    assert_eq!(
        scrape.all("refrain_requests_refused_total"),
        [
            ("{reason=\"header_mismatch\"}", 2.0),
            ("{reason=\"host\"}", 2.0),
            ("{reason=\"http_method\"}", 1.0),
            ("{reason=\"invalid_params\"}", 1.0),
            ("{reason=\"invalid_request\"}", 1.0),
            ("{reason=\"media_type\"}", 1.0),
            ("{reason=\"parse\"}", 1.0),
            ("{reason=\"too_large\"}", 1.0),
            ("{reason=\"unauthenticated\"}", 1.0),
            ("{reason=\"unknown_method\"}", 1.0),
            ("{reason=\"unreadable\"}", 1.0),
            ("{reason=\"unsupported_version\"}", 1.0),
        ]
    );
    assert_eq!(scrape.all("refrain_rounds_total"), []);
    let lists = scrape.all("refrain_other_requests_total");
    assert_eq!(lists, [("{method=\"tools/list\"}", 1.0)]);
}

#[tokio::test]
async fn calls_with_insufficient_scope_are_counted() {
    let tokens = BearerTokens::new().with_scopes("alice", "alice-0123456789abcdef", ["use"]);
    let write = Tool::new("write", echo).scopes(["write"]);
    let builder = builder().tool(write).authenticator(tokens).scopes(["use"]);
    let (instance, port) = served(builder).await;
    let alice = |request: Request| request.bearer("alice-0123456789abcdef");
    // Scopes are checked before arguments and tokens.
    for request in [
        call("write"),
        call("write").again("short", login("alice")),
        Request::tool("write", json!({"text": 5})),
    ] {
        instance.send(&alice(request)).await.error(403, -32600);
    }
    let scrape = port.scrape().await;
    let rejected = [("{reason=\"insufficient_scope\"}", 3.0)];
    assert_eq!(scrape.all("refrain_requests_refused_total"), rejected);
    assert_rounds(&scrape, "tools/call", &[("write insufficient_scope", 3.0)]);
    assert_eq!(scrape.all("refrain_tokens_refused_total"), []);
    assert_eq!(scrape.all("refrain_calls_total"), []);
}

#[tokio::test]
async fn other_requests_with_insufficient_scope_are_counted() {
    let tokens = BearerTokens::new().with("alice", "alice-0123456789abcdef");
    let (instance, port) = served(builder().authenticator(tokens).scopes(["use"])).await;
    let reference = json!({"type": "ref/prompt", "name": "none"});
    for (method, params) in [
        ("tools/list", json!({})),
        ("server/discover", json!({})),
        ("subscriptions/listen", json!({"notifications": {}})),
        (
            "completion/complete",
            json!({"ref": reference, "argument": {"name": "a", "value": ""}}),
        ),
    ] {
        let request = Request::rpc(method, params);
        let request = request.bearer("alice-0123456789abcdef");
        instance.send(&request).await.error(403, -32600);
    }
    let scrape = port.scrape().await;
    let rejected = [("{reason=\"insufficient_scope\"}", 4.0)];
    assert_eq!(scrape.all("refrain_requests_refused_total"), rejected);
    assert_eq!(scrape.all("refrain_other_requests_total"), []);
}

#[tokio::test]
async fn failed_authentication_is_counted_by_reason() {
    struct Unavailable;
    impl Authenticator for Unavailable {
        fn authenticate<'a>(&'a self, _: &'a http::HeaderMap) -> AuthFuture<'a> {
            Box::pin(async {
                Err(AuthRejection::Unavailable {
                    reason: "outage".into(),
                    retry_after: Duration::from_secs(1),
                })
            })
        }
    }
    let (instance, port) = served(builder().authenticator(Unavailable)).await;
    instance.send(&echo_call()).await.error(503, -32603);
    let rejected = [("{reason=\"unavailable\"}", 1.0)];
    let scrape = port.scrape().await;
    assert_eq!(scrape.all("refrain_requests_refused_total"), rejected);

    let proxy =
        TrustedProxy::new("correct horse battery staple").expect("the secret is long enough");
    let (instance, port) = served(builder().authenticator(proxy)).await;
    instance.send(&echo_call()).await.error(403, -32600);
    let rejected = [("{reason=\"forbidden\"}", 1.0)];
    let scrape = port.scrape().await;
    assert_eq!(scrape.all("refrain_requests_refused_total"), rejected);
}
