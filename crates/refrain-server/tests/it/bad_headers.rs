//! Invalid request heads: metadata headers, media type, method, path, host and origin.

use crate::support::{
    Instance, Request, VERSION_KEY, echo, echo_call, greet, start, start_for, text,
};
use refrain_core::{Cx, Result};
use refrain_server::{AllowedHosts, Resource, Server, ServerBuilder, Tool};
use serde_json::json;

async fn readme(_: Cx) -> Result<&'static str> {
    Ok("read me")
}

fn builder() -> ServerBuilder {
    Server::builder("headers", "1")
        .tool(Tool::new("echo", echo))
        .tool(Tool::new("größe", greet))
        .tool(Tool::new("=?base64?ZWNobw==?=", greet))
        .resource(Resource::new("docs://readme", "readme", readme))
}

async fn assert_served(instance: &Instance, request: &Request) {
    let response = instance.send(request).await;
    assert_eq!(text(&response.reply()), "Echo: x");
}

#[tokio::test]
async fn metadata_headers_must_match_the_body() {
    let instance = start(builder()).await;
    for (name, wrong) in [
        ("MCP-Protocol-Version", vec!["2025-11-25", "2026-07-2", ""]),
        (
            "Mcp-Method",
            vec![
                "tools/list",
                "TOOLS/CALL",
                "Tools/call",
                "tools/call,tools/call",
                "",
            ],
        ),
        ("Mcp-Name", vec!["other", "ECHO", "Echo", "echo echo", ""]),
    ] {
        for value in wrong {
            let response = instance
                .send(&echo_call().header(name, value).id(json!("h")))
                .await;
            let message = response.error(400, -32020);
            assert!(message.contains(name), "{message}");
            assert_eq!(response.json()["id"], "h");
        }
        let missing = instance.send(&echo_call().without_header(name)).await;
        assert!(missing.error(400, -32020).contains(name));
        let right = echo_call();
        for value in ["echo", "tools/call", "2026-07-28"] {
            // A repeated header is rejected even if both values are equal.
            let response = instance
                .send(&right.clone().second_header(name, value))
                .await;
            assert!(response.error(400, -32020).contains(name));
        }
    }
    assert_served(&instance, &echo_call()).await;
}

#[tokio::test]
async fn header_names_ignore_case_and_values_are_trimmed() {
    let instance = start(builder()).await;
    let other_case = echo_call()
        .without_header("Mcp-Name")
        .without_header("Mcp-Method")
        .second_header("MCP-NAME", "echo")
        .second_header("mcp-method", "tools/call");
    assert_served(&instance, &other_case).await;
    let padded = echo_call()
        .header("Mcp-Name", "  echo  ")
        .header("Mcp-Method", "\ttools/call ")
        .header("MCP-Protocol-Version", "  2026-07-28");
    assert_served(&instance, &padded).await;
}

#[tokio::test]
async fn mcp_name_is_the_uri_of_a_resource_and_absent_for_lists() {
    let instance = start(builder()).await;
    let read = instance.send(&Request::read("docs://readme")).await.reply();
    assert_eq!(read["result"]["contents"][0]["text"], "read me");
    let wrong = Request::read("docs://readme").header("Mcp-Name", "readme");
    instance.send(&wrong).await.error(400, -32020);
    let listed = instance
        .send(&Request::rpc("tools/list", json!({})))
        .await
        .reply();
    assert_eq!(listed["result"]["tools"].as_array().map(Vec::len), Some(3));
    let wrong = Request::rpc("tools/list", json!({})).header("Mcp-Method", "prompts/list");
    instance.send(&wrong).await.error(400, -32020);
}

#[tokio::test]
async fn mcp_name_may_be_base64_encoded() {
    let instance = start(builder()).await;
    assert_served(
        &instance,
        &echo_call().header("Mcp-Name", "=?base64?ZWNobw==?="),
    )
    .await;
    // A header is ASCII, so "größe" must be encoded.
    let call = Request::tool("größe", json!({}));
    let message = instance.send(&call).await.error(400, -32020);
    assert!(message.contains("Mcp-Name"), "{message}");
    let encoded = call.clone().header("Mcp-Name", "=?base64?Z3LDtsOfZQ==?=");
    let reply = instance.send(&encoded).await.reply();
    assert_eq!(reply["result"]["resultType"], "input_required");
    // A name that looks encoded must be encoded itself.
    let odd = Request::tool("=?base64?ZWNobw==?=", json!({}));
    instance.send(&odd).await.error(400, -32020);
    let encoded = odd.header("Mcp-Name", "=?base64?PT9iYXNlNjQ/WldOb2J3PT0/PQ==?=");
    let reply = instance.send(&encoded).await.reply();
    assert_eq!(reply["result"]["resultType"], "input_required");

    for bad in [
        "=?base64?ZWNobw?=",
        "=?base64?ZWNo*w==?=",
        "=?base64?ZWNobw===?=",
        "=?base64?/////w==?=",
        "=?base64??=",
        "=?base64?ZWNobw==",
        "=?BASE64?ZWNobw==?=",
        "=?base64?RWNobw==?=",
    ] {
        let response = instance.send(&echo_call().header("Mcp-Name", bad)).await;
        let message = response.error(400, -32020);
        assert!(message.contains("Mcp-Name"), "{message}");
    }
    // The other headers are never decoded.
    let method = echo_call().header("Mcp-Method", "=?base64?dG9vbHMvY2FsbA==?=");
    instance.send(&method).await.error(400, -32020);
}

#[tokio::test]
async fn unsupported_revision_error_lists_supported_ones() {
    let instance = start(builder()).await;
    for request in [echo_call(), Request::rpc("server/discover", json!({}))] {
        for version in ["2025-11-25", "1999-01-01", "2026-07-29"] {
            let request = request.clone().meta(VERSION_KEY, json!(version));
            let request = request.header("MCP-Protocol-Version", version);
            let response = instance.send(&request.id(json!(5))).await;
            let message = response.error(400, -32022);
            assert!(message.contains(version), "{message}");
            let reply = response.json();
            assert_eq!(reply["id"], 5);
            let data = json!({"supported": ["2026-07-28"], "requested": version});
            assert_eq!(reply["error"]["data"], data);
        }
    }
}

#[tokio::test]
async fn content_type_must_be_json() {
    let instance = start(builder()).await;
    for kind in [
        "text/plain",
        "application/jsonp",
        "application/x-www-form-urlencoded",
        "",
    ] {
        let response = instance
            .send(&echo_call().header("Content-Type", kind))
            .await;
        let message = response.error(415, -32600);
        assert!(message.contains("Content-Type"), "{message}");
    }
    let none = instance
        .send(&echo_call().without_header("Content-Type"))
        .await;
    none.error(415, -32600);
    for kind in ["application/json; charset=utf-8", "Application/JSON"] {
        assert_served(&instance, &echo_call().header("Content-Type", kind)).await;
    }
}

#[tokio::test]
async fn other_methods_than_post_are_rejected() {
    let instance = start(builder()).await;
    for method in ["GET", "PUT", "DELETE", "OPTIONS"] {
        let host = instance.address;
        let request =
            format!("{method} /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
        let response = instance.send_bytes(request.as_bytes()).await;
        response.error(405, -32600);
        assert_eq!(response.header("allow"), Some("POST"));
    }
}

#[tokio::test]
async fn legacy_session_headers_are_ignored() {
    let instance = start(builder()).await;
    for value in ["abc", "", "1, 2"] {
        let request = echo_call()
            .header("Mcp-Session-Id", value)
            .header("Last-Event-ID", value);
        let response = instance.send(&request).await;
        assert_eq!(text(&response.reply()), "Echo: x");
        for name in ["mcp-session-id", "last-event-id"] {
            assert_eq!(response.header(name), None);
        }
    }
    let response = instance.send(&echo_call()).await;
    assert_eq!(response.header("mcp-session-id"), None);
}

#[tokio::test]
async fn unknown_path_is_not_found() {
    let instance = start(builder()).await;
    for path in ["/", "/mcp/", "/mcp2", "/MCP"] {
        let response = instance.send(&echo_call().path(path)).await;
        assert_eq!(response.status, 404);
        let body = String::from_utf8_lossy(&response.body);
        assert_eq!(body, "not found: the MCP endpoint is /mcp\n");
    }
    assert_served(&instance, &echo_call().path("/mcp?session=1")).await;
}

#[tokio::test]
async fn notification_gets_202_without_a_body() {
    let instance = start(builder()).await;
    for body in [
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/unheard-of"}"#,
        r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"echo"}}"#,
    ] {
        let mut connection = instance.connect().await;
        let response = connection.exchange(&Request::bytes(body)).await;
        assert_eq!((response.status, response.body.len()), (202, 0));
        // The next response on the connection belongs to the next request.
        let next = connection.exchange(&echo_call()).await;
        assert_eq!(text(&next.reply()), "Echo: x");
    }
}

#[tokio::test]
async fn error_for_an_unknown_host_or_origin_quotes_it() {
    let instance = start(builder()).await;
    for host in [
        "evil.example",
        "evil.example:80",
        "localhost.evil.example",
        "127.0.0.1.evil",
        "127.0.0.1:99@evil.example",
        "localhost:x",
        "",
    ] {
        let response = instance.send(&echo_call().header("Host", host)).await;
        let message = response.error(403, -32600);
        assert!(message.contains(&format!("host {host:?}")), "{message}");
        assert!(message.contains("allowed_hosts"), "{message}");
    }
    for host in [
        "localhost",
        "LOCALHOST:1234",
        "127.0.0.1",
        "[::1]:99",
        "[::1]",
    ] {
        assert_served(&instance, &echo_call().header("Host", host)).await;
    }
    for origin in [
        "http://evil.example",
        "https://localhost.evil.example",
        "http://localhost:80@evil.example",
        "null",
        "localhost",
        "",
    ] {
        let response = instance.send(&echo_call().header("Origin", origin)).await;
        let message = response.error(403, -32600);
        assert!(message.contains(&format!("origin {origin:?}")), "{message}");
        assert!(message.contains("allowed_hosts"), "{message}");
    }
    for origin in [
        "http://localhost:6274",
        "https://127.0.0.1",
        "http://[::1]:3000",
    ] {
        assert_served(&instance, &echo_call().header("Origin", origin)).await;
    }
}

#[tokio::test]
async fn allowed_hosts_can_be_listed_or_any() {
    let instance = start_for(builder(), AllowedHosts::only(["MCP.example.com", "b:8443"])).await;
    for (host, status) in [
        ("mcp.example.com", 200),
        ("mcp.example.com:444", 200),
        ("b:8443", 200),
        ("b:8444", 403),
        ("b", 403),
        ("localhost", 403),
    ] {
        let response = instance.send(&echo_call().header("Host", host)).await;
        assert_eq!(response.status, status, "{host}");
    }
    let instance = start_for(builder(), AllowedHosts::any()).await;
    let anywhere = echo_call()
        .header("Host", "evil.example")
        .header("Origin", "https://evil.example");
    assert_served(&instance, &anywhere).await;
}
