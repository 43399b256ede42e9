//! Errors of handlers, and of clients that cannot answer.

use crate::restaurant::Restaurant;
use crate::support::{instance, request, send, text};
use refrain_rmcp::serve;
use rmcp::model::{ListToolsResult, PaginatedRequestParams, Tool, object};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::json;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

#[tokio::test]
async fn tool_error_is_a_result() {
    let server = instance(serve(Restaurant::default()));
    let call = request("tools/call", json!({"name": "burn", "arguments": {}}));
    let (response, _) = send(&server, "", &call).await;
    assert_eq!(response["result"]["isError"], true);
    assert_eq!(text(&response), "the food is burnt");
}

#[tokio::test]
async fn protocol_error_keeps_code_message_and_data() {
    let server = instance(serve(Restaurant::default()));
    let call = request("tools/call", json!({"name": "close", "arguments": {}}));
    let (response, _) = send(&server, "", &call).await;
    let error = json!({"code": -32050, "message": "the kitchen is closed", "data": {"until": 12}});
    assert_eq!(response["error"], error);
}

#[tokio::test]
async fn handler_sees_the_capabilities_of_the_client() {
    let server = instance(serve(Restaurant::default()));
    let mut call = request("tools/call", json!({"name": "roots", "arguments": {}}));
    call["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    let (response, _) = send(&server, "", &call).await;
    assert_eq!(response["result"]["isError"], true, "{response}");
    assert!(text(&response).contains("roots"), "{response}");
    call["params"]["name"] = json!("pay");
    let (response, _) = send(&server, "", &call).await;
    assert!(
        text(&response).contains("does not support elicitation"),
        "{response}"
    );
}

#[tokio::test]
async fn invalid_arguments_are_rejected_by_the_handler() {
    let server = instance(serve(Restaurant::default()));
    let call = request(
        "tools/call",
        json!({"name": "reserve", "arguments": {"seats": "two"}}),
    );
    let (response, _) = send(&server, "", &call).await;
    assert_eq!(response["result"]["isError"], true, "{response}");
    assert!(
        text(&response).contains("failed to deserialize parameters"),
        "{response}"
    );
}

/// Asks while it lists. Its tool has the result as its description.
struct AskingList;

impl ServerHandler for AskingList {
    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let roots = format!("{:?}", context.peer.list_roots().await);
        let tool = Tool::new("roots", roots, object(json!({"type": "object"})));
        Ok(ListToolsResult::with_all_items(vec![tool]))
    }
}

#[tokio::test]
async fn request_sent_while_listing_is_rejected() {
    let (sender, served) = mpsc::channel();
    thread::spawn(move || sender.send(serve(AskingList)).is_ok());
    let builder = served.recv_timeout(Duration::from_secs(10));
    let server = instance(builder.expect("the lists are read"));
    let (tools, _) = send(&server, "", &request("tools/list", json!({}))).await;
    let description = tools["result"]["tools"][0]["description"].to_string();
    assert!(description.contains("belongs to no call"), "{description}");
}
