//! Sampling requests and the client capabilities they need.

use crate::support::{CAPABILITIES_KEY, Request, asked, result, start, text, token};
use refrain_core::{Cx, Incomplete, Result};
use refrain_server::{Server, ServerBuilder, Tool};
use refrain_wire::{IncludeContext, SamplingParams, ToolChoice, ToolInfo};
use serde_json::{Value, json};

fn look() -> ToolInfo {
    ToolInfo {
        name: "look".into(),
        input_schema: json!({"type": "object"}),
        ..ToolInfo::default()
    }
}

fn question() -> SamplingParams {
    SamplingParams::new(9).user("Well?")
}

fn with_tools() -> SamplingParams {
    question().tool(look())
}

fn with_choice() -> SamplingParams {
    question().tool_choice(ToolChoice::None)
}

fn with_context() -> SamplingParams {
    let mut params = question();
    params.include_context = Some(IncludeContext::AllServers);
    params
}

/// Adds two tools that send this request: one awaits the answer, the other has the explicit style.
fn both(
    builder: ServerBuilder,
    name: &'static str,
    params: fn() -> SamplingParams,
) -> ServerBuilder {
    let awaiting = move |cx: Cx| async move { Ok(cx.sample("model", params()).await?.text()) };
    let explicit = move |_: Cx| async move { Ok(Incomplete::new().sample("model", params())) };
    builder
        .tool(Tool::new(name, awaiting))
        .tool(Tool::new(format!("{name}_explicit"), explicit))
}

async fn ask(tool: &str, sampling: &Value) -> std::result::Result<Value, Value> {
    let builder = Server::builder("sampling", "1");
    let builder = both(builder, "plain", question);
    let builder = both(builder, "tools", with_tools);
    let builder = both(builder, "choice", with_choice);
    let instance = start(both(builder, "context", with_context)).await;
    let request =
        Request::tool(tool, json!({})).meta(CAPABILITIES_KEY, json!({"sampling": sampling}));
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
async fn sampling_tools_require_the_client_capability() {
    for tool in ["plain", "plain_explicit"] {
        assert!(ask(tool, &json!({})).await.is_ok());
    }
    for tool in ["tools", "tools_explicit", "choice", "choice_explicit"] {
        for lacks in [json!({}), json!({"context": {}})] {
            let needs = json!({"sampling": {"tools": {}}});
            assert_eq!(ask(tool, &lacks).await, Err(needs), "{tool}");
        }
        let params = ask(tool, &json!({"tools": {}}))
            .await
            .expect("the model is asked");
        let member = if tool.starts_with("tools") {
            "tools"
        } else {
            "toolChoice"
        };
        assert!(params.get(member).is_some(), "{tool}: {params}");
    }
}

#[tokio::test]
async fn sampling_context_is_omitted_without_the_capability() {
    for tool in ["context", "context_explicit"] {
        for lacks in [json!({}), json!({"tools": {}})] {
            let params = ask(tool, &lacks).await.expect("the model is asked");
            assert_eq!(params.get("includeContext"), None, "{tool}");
        }
        let params = ask(tool, &json!({"context": {}}))
            .await
            .expect("the model is asked");
        assert_eq!(params["includeContext"], "allServers", "{tool}");
    }
}

/// Runs the tools that the model requests until it answers with text.
async fn advise(cx: Cx) -> Result<String> {
    let mut params = with_tools();
    loop {
        let answer = cx.sample("model", params.clone()).await?;
        let mut results = Vec::new();
        for tool in answer.tool_uses() {
            let seen = cx
                .step("look", async {
                    Ok::<_, refrain_core::Error>(tool.input.len())
                })
                .await?;
            results.push(tool.result(format!("seen: {seen}")));
        }
        if results.is_empty() {
            return Ok(answer.text());
        }
        params = params.answer(&answer).results(results);
    }
}

#[tokio::test]
async fn model_uses_tools_round_by_round() {
    let builder = Server::builder("sampling", "1").tool(Tool::new("advise", advise));
    let instance = start(builder).await;
    let plain = || {
        let declared = json!({"sampling": {"tools": {}}});
        Request::tool("advise", json!({})).meta(CAPABILITIES_KEY, declared)
    };
    let answer = |content: Value| json!({"role": "assistant", "model": "m", "content": content});
    let uses = json!([
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "1", "name": "look", "input": {}},
        {"type": "tool_use", "id": "2", "name": "look", "input": {"at": "it"}}
    ]);
    let first = instance.send(&plain()).await.reply();
    let messages = &result(&first)["inputRequests"]["model"]["params"]["messages"];
    assert_eq!(messages.as_array().map(Vec::len), Some(1));

    let again = plain().again(&token(&first), json!({"model": answer(uses.clone())}));
    let second = instance.send(&again).await.reply();
    assert_eq!(asked(&second), ["model#2"]);
    let params = &result(&second)["inputRequests"]["model#2"]["params"];
    let seen = |id: &str, text: &str| json!({"type": "tool_result", "toolUseId": id, "content": [{"type": "text", "text": text}]});
    assert_eq!(
        params["messages"],
        json!([
            {"role": "user", "content": {"type": "text", "text": "Well?"}},
            {"role": "assistant", "content": uses},
            {"role": "user", "content": [seen("1", "seen: 0"), seen("2", "seen: 1")]}
        ])
    );
    assert_eq!(params["tools"][0]["name"], "look");

    let done = json!({"model#2": answer(json!({"type": "text", "text": "It is fine."}))});
    let last = instance.send(&plain().again(&token(&second), done)).await;
    assert_eq!(text(&last.reply()), "It is fine.");
}

#[tokio::test]
async fn invalid_conversation_is_not_sent() {
    let without_result = || {
        let answer = json!({"role": "assistant", "model": "m",
            "content": {"type": "tool_use", "id": "1", "name": "look", "input": {}}});
        let answer = serde_json::from_value(answer).expect("the answer is valid");
        with_tools().answer(&answer).user("Well?")
    };
    let builder = both(
        Server::builder("sampling", "1"),
        "without_result",
        without_result,
    );
    let instance = start(builder).await;
    for tool in ["without_result", "without_result_explicit"] {
        let declared = json!({"sampling": {"tools": {}}});
        let request = Request::tool(tool, json!({})).meta(CAPABILITIES_KEY, declared);
        instance.send(&request).await.error(200, -32603);
    }
}
