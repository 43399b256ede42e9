//! Changes of lists and resources that a handler reports: during a call, from `on_initialized`, through a subscription.

use crate::support::{instance, request, send};
use parking_lot::Mutex;
use refrain::auth::Principal;
use refrain::server::Server;
use refrain_rmcp::serve;
use refrain_testkit::Effects;
use refrain_testkit::net::wait::within;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, Resource, ResourceUpdatedNotificationParam, ServerCapabilities,
    ServerConfig, SubscriptionFilter, Tool, object,
};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext, SubscriptionSink};
use rmcp::{ErrorData, Peer, RoleServer, ServerHandler};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::timeout;

/// Each call adds a tool. The name of the called tool says through which peer the change is reported.
#[derive(Default)]
struct Growing {
    tools: Mutex<usize>,
    effects: Effects,
    initialized: Mutex<Option<Peer<RoleServer>>>,
    subscription: Mutex<Option<SubscriptionSink>>,
}

impl ServerHandler for Growing {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .build();
        ServerConfig::new(capabilities)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let added = (0..*self.tools.lock()).map(|number| format!("added_{number}"));
        let reporters = ["call", "initialized", "subscription", "resource"].map(str::to_owned);
        let tool = |name| Tool::new(name, "Grows", object(json!({"type": "object"})));
        let tools = reporters.into_iter().chain(added).map(tool);
        Ok(ListToolsResult::with_all_items(tools.collect()))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let resource = Resource::new("state://now", "state");
        Ok(ListResourcesResult::with_all_items(vec![resource]))
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.effects.record("initialized");
        *self.initialized.lock() = Some(context.peer);
    }

    fn accepted_subscription_filter(
        &self,
        filter: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(filter.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        *self.subscription.lock() = Some(context.sink().clone());
        context.cancelled().await;
        Ok(())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        *self.tools.lock() += 1;
        let initialized = self.initialized.lock().clone();
        let subscription = self.subscription.lock().clone();
        let sent = match &*request.name {
            "call" => context.peer.notify_tool_list_changed().await.is_ok(),
            "initialized" => {
                let peer = initialized.expect("on_initialized was called");
                peer.notify_tool_list_changed().await.is_ok()
            }
            "subscription" => {
                let sink = subscription.expect("listen was called");
                sink.notify_tool_list_changed().await.is_ok()
            }
            _ => {
                let updated = ResourceUpdatedNotificationParam::new("state://now");
                context.peer.notify_resource_updated(updated).await.is_ok()
            }
        };
        assert!(sent);
        Ok(CallToolResult::success(Vec::new()).into())
    }
}

/// Subscribes, calls the tool, and returns the notification.
async fn notification_after(server: &Server, tool: &str, filter: Value) -> Value {
    let listen = request("subscriptions/listen", json!({"notifications": filter}));
    let listen = listen.to_string();
    let mut stream = server
        .handle(listen.as_bytes(), Principal::anonymous())
        .await;
    let acknowledged = within("the acknowledgment", stream.next()).await;
    assert!(acknowledged.is_some());
    let call = request("tools/call", json!({"name": tool, "arguments": {}}));
    let (response, _) = send(server, "", &call).await;
    assert!(response["result"].is_object(), "{response}");
    let sent = within("a notification", stream.next())
        .await
        .expect("a notification");
    serde_json::from_slice(&sent).expect("JSON")
}

#[tokio::test]
async fn changed_tools_are_listed_and_announced() {
    for (number, reporter) in ["call", "initialized", "subscription"].iter().enumerate() {
        let server = instance(serve(Growing::default()));
        let filter = json!({"toolsListChanged": true});
        let sent = notification_after(&server, reporter, filter).await;
        assert_eq!(
            sent["method"], "notifications/tools/list_changed",
            "{number} {reporter}"
        );
        let (tools, _) = send(&server, "", &request("tools/list", json!({}))).await;
        let tools = tools["result"]["tools"].as_array().expect("tools");
        assert!(
            tools.iter().any(|tool| tool["name"] == "added_0"),
            "{reporter}: {tools:?}"
        );
    }
}

#[tokio::test]
async fn updated_resource_is_announced() {
    let server = instance(serve(Growing::default()));
    let filter = json!({"resourceSubscriptions": ["state://now"]});
    let sent = notification_after(&server, "resource", filter).await;
    assert_eq!(sent["method"], "notifications/resources/updated");
    assert_eq!(sent["params"]["uri"], "state://now");
}

#[tokio::test]
async fn handler_is_watched_once_even_if_its_first_call_is_dropped() {
    let growing = Growing::default();
    let effects = growing.effects.clone();
    let server = instance(serve(growing));
    let read = request("resources/read", json!({"uri": "state://now"}));
    let dropped = timeout(Duration::from_millis(20), send(&server, "", &read)).await;
    assert!(dropped.is_err(), "the call waits for the subscription");
    send(&server, "", &read).await;
    assert_eq!(effects.of("initialized"), 1);
}
