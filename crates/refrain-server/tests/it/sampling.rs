//! What is asked of a client's model, and of which clients.

use crate::support::{CAPABILITIES, Request, asked, result, start};
use refrain_core::{Cx, Incomplete, Result};
use refrain_server::{Server, ServerBuilder, Tool};
use refrain_wire::{IncludeContext, SamplingParams};
use serde_json::{Value, json};

fn question() -> SamplingParams {
    SamplingParams::new(9).user("Well?")
}

fn with_tools() -> SamplingParams {
    let mut params = question();
    params.tools = Some(json!([{"name": "look", "inputSchema": {"type": "object"}}]));
    params
}

fn with_choice() -> SamplingParams {
    let mut params = question();
    params.tool_choice = Some(json!({"mode": "none"}));
    params
}

fn with_context() -> SamplingParams {
    let mut params = question();
    params.include_context = Some(IncludeContext::AllServers);
    params
}

/// A tool that asks this in the straight style, and one in the explicit style.
fn both(
    builder: ServerBuilder,
    name: &'static str,
    params: fn() -> SamplingParams,
) -> ServerBuilder {
    let straight = move |cx: Cx| async move { Ok(cx.sample("model", params()).await?.text()) };
    let explicit = move |_: Cx| async move { Ok(Incomplete::new().sample("model", params())) };
    builder
        .tool(Tool::new(name, straight))
        .tool(Tool::new(format!("{name}_explicit"), explicit))
}

async fn ask(tool: &str, sampling: &Value) -> std::result::Result<Value, Value> {
    let builder = Server::builder("sampling", "1");
    let builder = both(builder, "plain", question);
    let builder = both(builder, "tools", with_tools);
    let builder = both(builder, "choice", with_choice);
    let instance = start(both(builder, "context", with_context)).await;
    let request = Request::tool(tool, json!({})).meta(CAPABILITIES, json!({"sampling": sampling}));
    let response = instance.send(&request).await;
    if response.status == 200 {
        let reply = response.reply();
        assert_eq!(asked(&reply), ["model"]);
        return Ok(result(&reply)["inputRequests"]["model"]["params"].clone());
    }
    response.error(400, -32021);
    Err(response.json()["error"]["data"]["requiredCapabilities"].clone())
}

#[tokio::test]
async fn tools_are_offered_only_where_they_can_be_used() {
    for tool in ["plain", "plain_explicit"] {
        assert!(ask(tool, &json!({})).await.is_ok());
    }
    for tool in ["tools", "tools_explicit", "choice", "choice_explicit"] {
        for lacks in [json!({}), json!({"context": {}})] {
            let needs = json!({"sampling": {"tools": {}}});
            assert_eq!(ask(tool, &lacks).await, Err(needs), "{tool}");
        }
        let params = ask(tool, &json!({"tools": {}})).await.expect("an ask");
        let member = if tool.starts_with("tools") {
            "tools"
        } else {
            "toolChoice"
        };
        assert!(params.get(member).is_some(), "{tool}: {params}");
    }
}

#[tokio::test]
async fn context_is_asked_for_only_where_it_can_be_given() {
    for tool in ["context", "context_explicit"] {
        for lacks in [json!({}), json!({"tools": {}})] {
            let params = ask(tool, &lacks).await.expect("an ask");
            assert_eq!(params.get("includeContext"), None, "{tool}");
        }
        let params = ask(tool, &json!({"context": {}})).await.expect("an ask");
        assert_eq!(params["includeContext"], "allServers", "{tool}");
    }
}
