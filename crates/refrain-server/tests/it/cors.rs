//! CORS: preflights and the responses that web pages may read.

use crate::support::{
    Instance, Request, Response, assert_contains, echo, echo_call, start_for, text,
};
use refrain_server::{AllowedHosts, BearerTokens, ResourceMetadata, Server, ServerBuilder, Tool};

const APP: &str = "https://app.example.com";
const TOKEN: &str = "alice-0123456789abcdef";
const METADATA: &str = "/.well-known/oauth-protected-resource";

fn builder() -> ServerBuilder {
    let metadata =
        ResourceMetadata::new("https://mcp.example.com/mcp", ["https://login.example.com"]);
    Server::builder("cors", "1")
        .tool(Tool::new("echo", echo))
        .authenticator(BearerTokens::new().with("alice", TOKEN))
        .resource_metadata(metadata)
}

async fn instance() -> Instance {
    let origins = [APP, "http://app.local:3000"];
    start_for(builder(), AllowedHosts::local().with_origins(origins)).await
}

fn call(origin: &str) -> Request {
    echo_call().bearer(TOKEN).header("Origin", origin)
}

/// The request with which a browser asks whether a page may send these headers.
fn preflight(path: &str, origin: &str, headers: &str) -> Request {
    Request::plain("OPTIONS", path, [])
        .header("Origin", origin)
        .header("Access-Control-Request-Method", "POST")
        .header("Access-Control-Request-Headers", headers)
}

/// Whether a page of this origin may read the response.
fn is_readable(response: &Response, origin: &str) -> bool {
    response.header("access-control-allow-origin") == Some(origin)
}

#[tokio::test]
async fn preflight_of_an_allowed_origin_needs_no_authentication() {
    let instance = instance().await;
    let wanted = "authorization,content-type,mcp-method,mcp-param-region,mcp-protocol-version,\
                  traceparent,dpop,last-event-id";
    for path in ["/mcp", METADATA] {
        let response = instance.send(&preflight(path, APP, wanted)).await;
        assert_eq!((response.status, response.body.len()), (204, 0));
        assert!(is_readable(&response, APP), "{response:?}");
        let allowed = response.header("access-control-allow-headers");
        assert_eq!(allowed, Some(wanted.replace(',', ", ").as_str()));
        let methods = response.header("access-control-allow-methods");
        assert_eq!(methods, Some("GET, POST, DELETE"));
        assert_eq!(response.header("access-control-max-age"), Some("7200"));
        assert_eq!(response.header("vary"), Some("origin"));
    }
    let other = preflight("/mcp", APP, "x-forwarded-user, refrain-relay, Mcp-Name");
    let response = instance.send(&other).await;
    let allowed = response.header("access-control-allow-headers");
    assert_eq!(allowed, Some("Mcp-Name"));
}

#[tokio::test]
async fn page_of_an_allowed_origin_reads_results_and_errors() {
    let instance = instance().await;
    for origin in [APP, "http://app.local:3000"] {
        let response = instance.send(&call(origin)).await;
        assert!(is_readable(&response, origin), "{response:?}");
        assert_eq!(response.header("vary"), Some("origin"));
        let exposed = response.header("access-control-expose-headers");
        assert_contains(
            exposed.expect("exposed headers"),
            &["mcp-session-id", "www-authenticate", "retry-after"],
        );
        assert_eq!(text(&response.reply()), "Echo: x");
    }
    let rejected = instance
        .send(&call(APP).without_header("Authorization"))
        .await;
    rejected.error(401, -32600);
    assert!(is_readable(&rejected, APP), "{rejected:?}");
    let metadata = Request::get(METADATA).header("Origin", APP);
    let response = instance.send(&metadata).await;
    assert_eq!(response.status, 200);
    assert!(is_readable(&response, APP), "{response:?}");
}

#[tokio::test]
async fn other_origins_are_rejected_by_name() {
    let instance = instance().await;
    for origin in [
        "https://app.example.com:8443",
        "http://app.example.com",
        "https://app.example.com.evil.example",
        "null",
    ] {
        let response = instance.send(&call(origin)).await;
        let message = response.error(403, -32600);
        assert_contains(&message, &[&format!("{origin:?}"), "`allowed_origins`"]);
        let preflight = instance.send(&preflight("/mcp", origin, "mcp-name")).await;
        preflight.error(403, -32600);
        for response in [response, preflight] {
            assert_eq!(response.header("access-control-allow-origin"), None);
            assert_eq!(response.header("vary"), Some("origin"));
        }
    }
    // The host of a local page is allowed, but the page may not read the response.
    let local = instance.send(&call("http://localhost:6274")).await;
    assert_eq!(local.header("access-control-allow-origin"), None);
    assert_eq!(text(&local.reply()), "Echo: x");
    // Requests for other hosts stay rejected.
    let rebound = instance
        .send(&call(APP).header("Host", "evil.example"))
        .await;
    rebound.error(403, -32600);
}

#[tokio::test]
async fn any_origin_is_allowed_by_its_own_name() {
    let hosts = AllowedHosts::local().with_origins(["*"]);
    let instance = start_for(builder(), hosts).await;
    for origin in [APP, "null"] {
        let response = instance.send(&call(origin)).await;
        assert!(is_readable(&response, origin), "{response:?}");
    }
}

#[tokio::test]
async fn without_allowed_origins_there_are_no_cors_headers() {
    let instance = start_for(builder(), AllowedHosts::local()).await;
    let local = "http://localhost:6274";
    instance
        .send(&preflight("/mcp", local, "mcp-name"))
        .await
        .error(405, -32600);
    let metadata = Request::get(METADATA).header("Origin", local);
    for request in [call(local), call(APP), metadata] {
        let response = instance.send(&request).await;
        let is_cors = |(name, _): &&(String, String)| name.starts_with("access-control");
        assert_eq!(response.headers.iter().find(is_cors), None);
        assert_eq!(response.header("vary"), None);
    }
}
