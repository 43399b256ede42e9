//! Refrain's tools inside an rmcp server.

use crate::support::{accept, asks, instance, next, request, send, text};
use refrain::prelude::*;
use refrain_rmcp::{router, serve};
use refrain_testkit::Effects;
use refrain_testkit::net::wait::until;
use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::tool::ToolCallContext;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResponse, ClientCapabilities, ClientConfig,
    CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams, ElicitResult,
    ElicitationAction, Implementation, ListRootsResult, Root, SamplingMessage,
};
use rmcp::service::{PeerRequestOptions, RequestContext};
use rmcp::{ClientHandler, ErrorData, RoleClient, RoleServer, ServerHandler, ServiceExt};
use rmcp::{tool_handler, tool_router};
use serde_json::json;
use std::future::pending;

#[derive(Deserialize, Elicit)]
struct Guest {
    name: String,
}

/// Greets the guest with a line of the client's model.
#[refrain::tool]
async fn greet(cx: Cx) -> Result<String> {
    let guest: Guest = cx.elicit("guest", "Who are you?").await?;
    let roots = cx.roots("roots").await?;
    let line = cx
        .sample("line", SamplingParams::new(10).user("Greet."))
        .await?;
    cx.elicit_url(
        "sign",
        "Sign here.",
        "https://example.com/sign",
        async || ok(true),
    )
    .await?;
    Ok(format!(
        "{}, {}! {} roots",
        line.text(),
        guest.name,
        roots.len()
    ))
}

struct Mixed {
    tools: ToolRouter<Self>,
}

#[tool_router]
impl Mixed {
    fn new() -> Self {
        let server = Server::builder("greeter", "1.0").tool(greet()).build();
        let server = server.expect("a server");
        Self {
            tools: Self::tool_router() + router(&server),
        }
    }

    #[rmcp::tool(description = "Says yes")]
    async fn plain(&self) -> String {
        "yes".into()
    }
}

#[tool_handler(router = self.tools)]
impl ServerHandler for Mixed {}

/// A client of an older revision that answers everything.
struct Answering;

impl ClientHandler for Answering {
    fn get_info(&self) -> ClientConfig {
        let capabilities = json!({
            "elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {},
        });
        let capabilities: ClientCapabilities =
            serde_json::from_value(capabilities).expect("capabilities");
        ClientConfig::new(capabilities, Implementation::new("test", "1"))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let result = ElicitResult::new(ElicitationAction::Accept);
        Ok(match request {
            ElicitRequestParams::FormElicitationParams { .. } => {
                result.with_content(json!({"name": "Ada"}))
            }
            _ => result,
        })
    }

    async fn create_message(
        &self,
        _: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let message = SamplingMessage::assistant_text("Welcome");
        Ok(CreateMessageResult::new(message, "model".to_owned()))
    }

    async fn list_roots(
        &self,
        _: RequestContext<RoleClient>,
    ) -> Result<ListRootsResult, ErrorData> {
        Ok(ListRootsResult::new(vec![Root::new("file:///a")]))
    }
}

#[tokio::test]
async fn older_client_answers_through_its_peer() {
    let (ours, theirs) = tokio::io::duplex(4096);
    let serving = tokio::spawn(async move {
        let running = Mixed::new().serve(ours).await.expect("a server");
        running.waiting().await
    });
    let client = Answering.serve(theirs).await.expect("a client");
    let greeted = client.call_tool(CallToolRequestParams::new("greet")).await;
    let greeted = serde_json::to_value(greeted.expect("a result")).expect("JSON");
    assert_eq!(greeted["content"][0]["text"], "Welcome, Ada! 1 roots");
    let plain = client.call_tool(CallToolRequestParams::new("plain")).await;
    let plain = serde_json::to_value(plain.expect("a result")).expect("JSON");
    assert_eq!(plain["content"][0]["text"], "yes");
    client.cancel().await.expect("the client ends");
    serving.await.expect("no panic").expect("the server ends");
}

#[tokio::test]
async fn client_with_rounds_gets_the_rounds_of_the_tool() {
    // The adapter calls the rmcp server as a client of 2026-07-28 does.
    let server = instance(serve(Mixed::new()));
    let call = request("tools/call", json!({"name": "greet", "arguments": {}}));
    let (mut response, _) = send(&server, "", &call).await;
    for (key, answer) in [
        ("guest", accept(&json!({"name": "Bo"}))),
        ("roots", json!({"roots": []})),
        (
            "line",
            json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "Hi"}}),
        ),
        ("sign", json!({"action": "accept"})),
    ] {
        assert!(asks(&response).contains_key(key), "{key}: {response}");
        response = send(&server, "", &next(&call, &response, json!({key: answer})))
            .await
            .0;
    }
    assert_eq!(text(&response), "Hi, Bo! 0 roots");
}

/// Records the ends of its calls.
struct Recording {
    tools: ToolRouter<Self>,
    effects: Effects,
}

impl ServerHandler for Recording {
    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let call = ToolCallContext::new(self, request, context);
        let result = self.tools.call(call).await;
        self.effects.record("ended");
        result
    }
}

/// A client of an older revision that never answers.
struct Silent(Effects);

impl ClientHandler for Silent {
    fn get_info(&self) -> ClientConfig {
        Answering.get_info()
    }

    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.0.record("asked");
        pending().await
    }
}

#[tokio::test]
async fn cancelled_call_does_not_wait_for_an_answer() {
    let effects = Effects::new();
    let greeter = Server::builder("greeter", "1.0").tool(greet()).build();
    let recording = Recording {
        tools: router(&greeter.expect("a server")),
        effects: effects.clone(),
    };
    let (ours, theirs) = tokio::io::duplex(4096);
    let (serving, client) =
        tokio::join!(recording.serve(ours), Silent(effects.clone()).serve(theirs));
    let (_serving, client) = (serving.expect("a server"), client.expect("a client"));
    let call = CallToolRequest::new(CallToolRequestParams::new("greet"));
    let call = client.send_cancellable_request(call.into(), PeerRequestOptions::no_options());
    let call = call.await.expect("a call");
    until("the client is asked", || effects.of("asked") == 1).await;
    assert_eq!(effects.of("ended"), 0);
    call.cancel(None).await.expect("a cancellation");
    until("the call ends", || effects.of("ended") == 1).await;
}
