//! The credentials that a backend over HTTP gets: configured headers and tokens, never the
//! caller's.

use crate::support::{Running, authenticator, text, token};
use refrain_gateway::GatewayConfig;
use refrain_testkit::net::oauth::{CannedResponse, OAuthServer};
use refrain_testkit::net::{FakeServer, Received, Respond};
use serde_json::json;

const METADATA: &str = "/.well-known/oauth-protected-resource/mcp";

/// The response of a modern server with one tool.
fn respond(request: &Received) -> Respond {
    let tool = json!({"name": "echo", "inputSchema": {"type": "object"}});
    match request.method() {
        "tools/list" => Respond::Result(json!({
            "resultType": "complete", "tools": [tool], "ttlMs": 0, "cacheScope": "private",
        })),
        "tools/call" => Respond::text("hi"),
        _ => Respond::Error(-32601, "unknown method"),
    }
}

/// Calls the tool as alice. Her token must not be in any request to the server.
async fn call_as_alice(server: &FakeServer, settings: &str) -> Vec<Received> {
    let config = format!("[backends.tested]\nurl = \"{}\"\n{settings}", server.url);
    let config: GatewayConfig = toml::from_str(&config).expect("valid TOML");
    let with_alice = authenticator(&["alice"]);
    let running = Running::start_with(&config, |builder| builder.authenticator(with_alice)).await;
    let alice = running.client_of("alice").await;
    assert_eq!(text(&alice, "echo", json!({})).await, "hi");
    running.stop().await;
    let received = server.all();
    for request in &received {
        let all = format!("{:?} {}", request.headers, request.message);
        assert!(!all.contains(&token("alice")), "{all}");
    }
    received
}

#[tokio::test]
async fn headers_from_files_and_variables_reach_the_backend() {
    let server = FakeServer::start(respond).await;
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("key");
    std::fs::write(&file, "from a file\nanother line\n").expect("the file");
    // Cargo sets the variable for this test.
    let settings = format!(
        "[backends.tested.headers]\nx-key = {{ file = {file:?} }}\nx-name = {{ env = \"CARGO_PKG_NAME\" }}\n"
    );
    let received = call_as_alice(&server, &settings).await;
    let calls = received.iter().filter(|one| one.method() == "tools/call");
    assert_eq!(calls.count(), 1);
    for request in received {
        assert_eq!(request.header("x-key"), Some("from a file"), "{request:?}");
        assert_eq!(
            request.header("x-name"),
            Some("refrain-gateway"),
            "{request:?}"
        );
    }
}

#[tokio::test]
async fn token_of_the_caller_never_reaches_the_backend() {
    let server = FakeServer::start(respond).await;
    let received = call_as_alice(&server, "").await;
    assert!(received.iter().any(|one| one.method() == "tools/call"));
    let authorized = received
        .iter()
        .find(|one| one.header("authorization").is_some());
    assert!(authorized.is_none(), "{authorized:?}");
}

/// Calls a backend that accepts only the tokens of one issuer. The identifier of the issuer is its
/// origin and this path.
async fn call_with_client_credentials(path: &str) {
    let issuer = OAuthServer::start().await;
    let id = format!("{}{path}", issuer.origin);
    issuer.change(|does| does.metadata = json!({"issuer": id}));
    let named = id.clone();
    let server = FakeServer::start_with(move |request, server| {
        if request.path == METADATA {
            let servers = [&named];
            return Respond::Json(
                200,
                json!({"resource": server.url, "authorization_servers": servers}),
            );
        }
        let authorization = request.header("authorization").unwrap_or_default();
        if !authorization.starts_with("Bearer secret-access-") {
            let metadata = server.url.replace("/mcp", METADATA);
            let challenge = format!("Bearer resource_metadata=\"{metadata}\"");
            return Respond::With(CannedResponse::new(401).header("www-authenticate", challenge));
        }
        match request.method() {
            "server/discover" => Respond::Result(json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
                "ttlMs": 0, "cacheScope": "private",
            })),
            _ => respond(request),
        }
    })
    .await;
    let settings = format!(
        "[backends.tested.oauth]\nclient_id = \"gateway\"\nclient_secret = \"hush\"\nissuer = \"{id}\"\nscopes = [\"tools:call\"]\n"
    );
    let received = call_as_alice(&server, &settings).await;
    let is_authorized = |one: &Received| one.header("authorization").is_some();
    assert!(
        received
            .iter()
            .any(|one| one.method() == "tools/call" && is_authorized(one))
    );
    let tokens = issuer.requests_to("/token");
    assert!(!tokens.is_empty());
    for request in tokens {
        assert_eq!(request.params["grant_type"], "client_credentials");
        assert_eq!(request.params["scope"], "tools:call");
        // `gateway:hush` in Base64.
        assert_eq!(
            request.header("authorization"),
            Some("Basic Z2F0ZXdheTpodXNo")
        );
    }
}

#[tokio::test]
async fn client_credentials_get_a_token_for_the_backend() {
    call_with_client_credentials("/").await;
}

#[tokio::test]
async fn client_credentials_accept_an_issuer_without_a_path() {
    call_with_client_credentials("").await;
}
