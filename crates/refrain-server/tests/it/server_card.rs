//! The server card.

use crate::support::{Instance, Request, start};
use axum::Router;
use refrain_server::{
    AllowedHosts, BearerTokens, BuildError, HttpService, ResourceMetadata, Server, ServerBuilder,
    ServerCard, ServerCardError,
};
use refrain_testkit::net::Response;
use serde_json::{Value, json};
use tokio::net::TcpListener;

const PATH: &str = "/mcp/server-card";

fn builder(card: ServerCard) -> ServerBuilder {
    // Every other request needs a token.
    let tokens = BearerTokens::new().with("alice", "alice-0123456789abcdef");
    Server::builder("files", "1.2.0")
        .title("Files")
        .describe("Search files")
        .website("https://example.com/files")
        .instructions("a confidential instruction")
        .authenticator(tokens)
        .server_card(card)
}

fn card() -> ServerCard {
    ServerCard::new("com.example/files")
}

/// Sends a request for the card with these header lines.
async fn fetch(instance: &Instance, method: &str, headers: &str) -> Response {
    let request = format!("{method} {PATH} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
    instance.send_bytes(request.as_bytes()).await
}

fn parse(response: &Response) -> Value {
    serde_json::from_slice(&response.body).expect("JSON")
}

#[tokio::test]
async fn card_is_public() {
    let card = card().url("https://mcp.example.com/mcp");
    let instance = start(builder(card)).await;
    let response = instance.get(PATH).await;
    assert_eq!(response.status, 200);
    for (name, value) in [
        ("content-type", "application/mcp-server-card+json"),
        ("cache-control", "public, max-age=3600"),
        ("access-control-allow-origin", "*"),
        ("access-control-allow-methods", "GET"),
        (
            "access-control-allow-headers",
            "Content-Type, If-None-Match",
        ),
        ("access-control-expose-headers", "ETag"),
    ] {
        assert_eq!(response.header(name), Some(value), "{name}");
    }
    let document = parse(&response);
    let expected = json!({
        "$schema": "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json",
        "name": "com.example/files",
        "title": "Files",
        "version": "1.2.0",
        "description": "Search files",
        "websiteUrl": "https://example.com/files",
        "remotes": [{
            "type": "streamable-http",
            "url": "https://mcp.example.com/mcp",
            "supportedProtocolVersions": ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"],
        }],
    });
    assert_eq!(document, expected);
    let other = instance.send(&Request::rpc("tools/list", json!({}))).await;
    assert_eq!(other.status, 401);
}

#[tokio::test]
async fn known_card_is_not_sent_again() {
    let instance = start(builder(card())).await;
    let etag = instance.get(PATH).await;
    let etag = etag.header("etag").expect("a tag").to_owned();
    for known in [&*etag, &format!("\"other\", W/{etag}"), "*"] {
        let response = fetch(&instance, "GET", &format!("if-none-match: {known}\r\n")).await;
        assert_eq!(response.status, 304, "{known}");
        assert_eq!(response.header("etag"), Some(&*etag));
        assert_eq!(response.body, b"");
    }
    let response = fetch(&instance, "GET", "if-none-match: \"other\"\r\n").await;
    assert_eq!(response.status, 200);
    // The tag depends on the content only.
    let same = start(builder(card())).await.get(PATH).await;
    assert_eq!(same.header("etag"), Some(&*etag));
    let changed = start(builder(card()).title("More")).await.get(PATH).await;
    assert_ne!(changed.header("etag"), Some(&*etag));
}

#[tokio::test]
async fn web_page_may_read_the_card_of_an_allowed_host() {
    let instance = start(builder(card())).await;
    let origin = "origin: https://any.example\r\n";
    assert_eq!(fetch(&instance, "GET", origin).await.status, 200);
    let preflight = format!("{origin}access-control-request-method: GET\r\n");
    let preflight = fetch(&instance, "OPTIONS", &preflight).await;
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.header("access-control-allow-origin"), Some("*"));
    let post = fetch(&instance, "POST", "content-length: 0\r\n").await;
    assert_eq!(post.status, 405);
    assert_eq!(post.header("allow"), Some("GET, HEAD, OPTIONS"));
    let request = format!("GET {PATH} HTTP/1.1\r\nhost: evil.example\r\n\r\n");
    assert_eq!(instance.send_bytes(request.as_bytes()).await.status, 403);
}

#[tokio::test]
async fn url_of_the_card_defaults_to_the_resource() {
    let url = "https://mcp.example.com/files";
    let metadata = ResourceMetadata::new(url, ["https://login.example.com"]);
    let instance = start(builder(card()).resource_metadata(metadata)).await;
    assert_eq!(parse(&instance.get(PATH).await)["remotes"][0]["url"], url);
    // Without a URL there is no remote.
    let instance = start(builder(card())).await;
    assert_eq!(parse(&instance.get(PATH).await).get("remotes"), None);
}

#[tokio::test]
async fn without_a_card_there_is_no_such_path() {
    let instance = start(Server::builder("files", "1")).await;
    assert_eq!(instance.get(PATH).await.status, 404);
}

#[tokio::test]
async fn mounted_endpoint_serves_the_card() {
    let server = builder(card()).build().expect("a server");
    let service = HttpService::new(server, AllowedHosts::local());
    let app: Router = Router::new()
        .route_service("/files", service.clone())
        .route_service("/files/server-card", service);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    let page = refrain_testkit::net::http::text_of(address, "/files/server-card").await;
    assert!(page.contains("\"com.example/files\""), "{page}");
}

#[test]
fn invalid_cards_are_rejected() {
    let error = |builder: ServerBuilder| match builder.build() {
        Err(BuildError::ServerCard(error)) => error,
        built => panic!("{built:?}"),
    };
    for name in [
        "files",
        "com.example/a/b",
        "/files",
        "com.example/",
        "a b/c",
    ] {
        let card = ServerCard::new(name);
        assert_eq!(error(builder(card)), ServerCardError::Name, "{name}");
    }
    let long = "d".repeat(101);
    let described = builder(card()).describe(&long);
    assert_eq!(error(described), ServerCardError::Description);
    let bare = Server::builder("files", "1").server_card(card());
    assert_eq!(error(bare), ServerCardError::Description);
    assert_eq!(error(builder(card()).title(long)), ServerCardError::Title);
    let plain = builder(card().url("http://mcp.example.com/mcp"));
    assert!(matches!(error(plain), ServerCardError::Url(_)));
}
