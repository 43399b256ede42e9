//! The protected resource metadata.

use crate::support::{Connection, Instance, Request, start};
use axum::Router;
use refrain_server::{
    AllowedHosts, BearerTokens, BuildError, HttpService, ResourceMetadata, Server, ServerBuilder,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";
const ISSUER: &str = "https://login.example.com";

fn metadata(resource: &str) -> ResourceMetadata {
    ResourceMetadata::new(resource, [ISSUER])
}

fn builder(metadata: ResourceMetadata) -> ServerBuilder {
    let tokens = BearerTokens::new().with("alice", "alice-0123456789abcdef");
    Server::builder("metadata", "1")
        .authenticator(tokens)
        .resource_metadata(metadata)
}

async fn document(instance: &Instance, path: &str) -> Value {
    let response = instance.get(path).await;
    let body = String::from_utf8_lossy(&response.body).into_owned();
    assert_eq!(response.status, 200, "{path}: {body}");
    let kind = response.header("content-type");
    assert_eq!(kind, Some("application/json"));
    let cached = response.header("cache-control");
    assert_eq!(cached, Some("public, max-age=300"));
    serde_json::from_str(&body).expect("JSON")
}

/// Sends a request without a token. Returns the URL in the challenge.
async fn challenge_url(instance: &Instance) -> String {
    let response = instance.send(&Request::rpc("tools/list", json!({}))).await;
    response.error(401, -32600);
    let challenge = response.header("www-authenticate").expect("a challenge");
    let url = challenge.strip_prefix("Bearer resource_metadata=\"");
    let url = url.and_then(|url| url.strip_suffix('"'));
    url.unwrap_or_else(|| panic!("{challenge}")).to_owned()
}

#[tokio::test]
async fn metadata_is_public_at_both_paths() {
    let mut metadata = metadata("https://mcp.example.com/mcp");
    metadata.resource_name = Some("Files".into());
    let instance = start(builder(metadata)).await;
    let own = format!("{WELL_KNOWN}/mcp");
    let expected = json!({
        "resource": "https://mcp.example.com/mcp",
        "authorization_servers": [ISSUER],
        "resource_name": "Files",
        "bearer_methods_supported": ["header"],
    });
    for path in [WELL_KNOWN, &own] {
        assert_eq!(document(&instance, path).await, expected);
        let post = Request::rpc("tools/list", json!({}));
        let bytes = String::from_utf8(post.to_bytes("localhost")).expect("text");
        let bytes = bytes.replacen("/mcp", path, 1);
        let response = instance.send_bytes(bytes.as_bytes()).await;
        assert_eq!(response.status, 405);
        assert_eq!(response.header("allow"), Some("GET"));
    }
    let unknown = instance.get(&format!("{WELL_KNOWN}/other")).await;
    assert_eq!(unknown.status, 404);
    let url = challenge_url(&instance).await;
    assert_eq!(url, format!("https://mcp.example.com{own}"));
}

#[tokio::test]
async fn metadata_url_is_derived_from_the_resource() {
    for (resource, url) in [
        (
            "https://mcp.example.com",
            "https://mcp.example.com/.well-known/oauth-protected-resource",
        ),
        (
            "https://mcp.example.com/",
            "https://mcp.example.com/.well-known/oauth-protected-resource",
        ),
        (
            "https://mcp.example.com:8443/public/mcp",
            "https://mcp.example.com:8443/.well-known/oauth-protected-resource/public/mcp",
        ),
    ] {
        let instance = start(builder(metadata(resource))).await;
        assert_eq!(challenge_url(&instance).await, url);
        let (_, path) = url.split_once("/.well-known").expect("a well-known URL");
        let document = document(&instance, &format!("/.well-known{path}")).await;
        assert_eq!(document["resource"], resource);
    }
}

#[tokio::test]
async fn required_scopes_are_listed_by_default() {
    let scoped = builder(metadata("https://mcp.example.com")).scopes(["use"]);
    let instance = start(scoped).await;
    let listed = document(&instance, WELL_KNOWN).await;
    assert_eq!(listed["scopes_supported"], json!(["use"]));
    let mut other = metadata("https://mcp.example.com");
    other.scopes_supported = vec!["use".into(), "read".into()];
    let instance = start(builder(other).scopes(["use"])).await;
    let listed = document(&instance, WELL_KNOWN).await;
    assert_eq!(listed["scopes_supported"], json!(["use", "read"]));
}

#[tokio::test]
async fn server_without_metadata_serves_none() {
    let instance = start(Server::builder("none", "1")).await;
    assert_eq!(instance.get(WELL_KNOWN).await.status, 404);
}

#[tokio::test]
async fn metadata_can_be_mounted() {
    let server = builder(metadata("https://mcp.example.com/v1/tools"))
        .build()
        .expect("a valid server");
    let service = HttpService::new(server, AllowedHosts::local());
    let own = format!("{WELL_KNOWN}/v1/tools");
    let paths = [own.as_str(), WELL_KNOWN];
    let mut app = Router::new();
    for path in paths.into_iter().chain(["/v1/tools"]) {
        app = app.route_service(path, service.clone());
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    let mut connection = Connection::open(address).await;
    for path in paths {
        let get = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        connection.write(get.as_bytes()).await;
        let response = connection.response().await;
        let document: Value = serde_json::from_slice(&response.body).expect("JSON");
        assert_eq!(document["resource"], "https://mcp.example.com/v1/tools");
    }
}

#[test]
fn invalid_metadata_urls_are_rejected() {
    let build = |metadata| {
        Server::builder("bad", "1")
            .resource_metadata(metadata)
            .build()
    };
    let urls = [
        "",
        "mcp.example.com",
        "http://mcp.example.com/mcp",
        "https://mcp.example.com/mcp#here",
        "https://mcp.example.com/mcp?x=1",
        "https://user@mcp.example.com/mcp",
    ];
    for bad in urls {
        for metadata in [
            metadata(bad),
            ResourceMetadata::new("https://mcp.example.com", [ISSUER, bad]),
        ] {
            match build(metadata) {
                Err(BuildError::Metadata { url, .. }) => assert_eq!(url, bad),
                other => panic!("{bad:?}: {other:?}"),
            }
        }
    }
    let no_issuer = ResourceMetadata::new("https://mcp.example.com", [""; 0]);
    let error = build(no_issuer).expect_err("no authorization server");
    assert!(error.to_string().contains("at least one"), "{error}");
    build(metadata("http://127.0.0.1:8080/mcp"))
        .expect("plain http is allowed for loopback addresses");
}
