//! Requests of unsupported protocol revisions.

use crate::support::{
    CAPABILITIES_KEY, Request, VERSION_KEY, assert_contains, echo, handle, start,
};
use refrain_core::Principal;
use refrain_server::{Server, Tool};
use serde_json::{Value, json};

fn later(method: &str, params: Value) -> Request {
    Request::rpc(method, params)
        .meta(VERSION_KEY, json!("2027-01-01"))
        .header("MCP-Protocol-Version", "2027-01-01")
}

#[tokio::test]
async fn unsupported_revision_takes_precedence_over_other_errors() {
    let instance = start(Server::builder("v", "1").tool(Tool::new("echo", echo))).await;
    for request in [
        later("tools/list", json!({})),
        later("future/method", json!({})),
        later("tools/list", json!({"cursor": 5})),
        later("tools/call", json!({"name": "echo"}))
            .meta(CAPABILITIES_KEY, json!({"sampling": []})),
    ] {
        let response = instance.send(&request).await;
        assert_contains(&response.error(400, -32022), &["2027-01-01", "2026-07-28"]);
        let data = &response.json()["error"]["data"];
        assert_eq!(
            data,
            &json!({"supported": ["2026-07-28"], "requested": "2027-01-01"})
        );
    }
    // A request of the supported revision gets the usual error.
    let unknown = Request::rpc("future/method", json!({}));
    instance.send(&unknown).await.error(404, -32601);
}

#[tokio::test]
async fn initialize_without_sessions_lists_supported_revisions() {
    let server = Server::builder("v", "1").tool(Tool::new("echo", echo));
    let instance = start(server).await;
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}});
    let message =
        json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params.clone()});
    // With 2026-07-28 metadata it is not a legacy request.
    let response = instance.send(&Request::rpc("initialize", params)).await;
    let words = [
        "not part of 2026-07-28",
        "leave out _meta",
        "legacy session",
    ];
    assert_contains(&response.error(404, -32601), &words);
    // `handle` has no sessions, so it rejects the legacy handshake.
    let request = Request::bytes(message.to_string());
    let reply = handle(&instance.server, &request, Principal::anonymous()).await;
    let message = reply["error"]["message"].as_str().expect("a message");
    assert_contains(message, &["supports only 2026-07-28"]);
    assert_eq!(reply["error"]["data"], json!({"supported": ["2026-07-28"]}));
    assert_eq!(reply["id"], 0);
}
