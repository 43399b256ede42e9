//! Other revisions of the protocol: refused for what they are, whatever else they say.

use crate::support::{CAPABILITIES, Request, VERSION, echo, names, start};
use refrain_core::Principal;
use refrain_server::{Server, Tool};
use serde_json::{Value, json};

fn later(method: &str, params: Value) -> Request {
    Request::rpc(method, params)
        .meta(VERSION, json!("2027-01-01"))
        .header("MCP-Protocol-Version", "2027-01-01")
}

#[tokio::test]
async fn a_request_of_another_revision_is_refused_for_that_alone() {
    let instance = start(Server::builder("v", "1").tool(Tool::new("echo", echo))).await;
    for request in [
        later("tools/list", json!({})),
        later("future/method", json!({})),
        later("tools/list", json!({"cursor": 5})),
        later("tools/call", json!({"name": "echo"})).meta(CAPABILITIES, json!({"sampling": []})),
    ] {
        let response = instance.send(&request).await;
        names(&response.error(400, -32022), &["2027-01-01", "2026-07-28"]);
        let data = &response.json()["error"]["data"];
        assert_eq!(
            data,
            &json!({"supported": ["2026-07-28"], "requested": "2027-01-01"})
        );
    }
    // What is ours is judged by our rules.
    let unknown = Request::rpc("future/method", json!({}));
    instance.send(&unknown).await.error(404, -32601);
}

#[tokio::test]
async fn a_handshake_of_older_revisions_is_told_what_is_spoken() {
    let server = Server::builder("v", "1").tool(Tool::new("echo", echo));
    let instance = start(server).await;
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}});
    let message =
        json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params.clone()});
    // With the metadata of the present revision it is none of an older one.
    let response = instance.send(&Request::rpc("initialize", params)).await;
    names(&response.error(404, -32601), &["2026-07-28"]);
    // Where there are no sessions there is nothing else to say.
    let mut out = instance
        .server
        .handle(message.to_string().as_bytes(), Principal::anonymous())
        .await;
    let reply: Value = serde_json::from_slice(&out.next().await.expect("a reply")).expect("JSON");
    assert_eq!(reply["error"]["data"], json!({"supported": ["2026-07-28"]}));
    assert_eq!(reply["id"], 0);
}
