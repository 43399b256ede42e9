//! The client's requests in each scenario. The suite's server checks them.

use super::ClientError;
use super::answers::example_object;
use refrain_client::wire::ToolInfo;
use refrain_client::{AsSent, Client};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Calls a tool with two numbers.
pub(super) async fn tools_call(client: &Client) -> Result<(), ClientError> {
    find(&client.tools().await?, "add_numbers")?;
    call(client, "add_numbers", json!({"a": 5, "b": 3})).await
}

/// Calls every tool, reads every resource and gets every prompt.
pub(super) async fn standard_headers(client: &Client) -> Result<(), ClientError> {
    call_all(client).await?;
    for resource in client.resources().await? {
        client.read_resource(&resource.uri).await?;
    }
    for prompt in client.prompts().await? {
        client.get_prompt(&prompt.name, json!({})).await?;
    }
    Ok(())
}

/// Makes the calls listed in the context. Their arguments are also sent in headers.
pub(super) async fn custom_headers(client: &Client, context: Value) -> Result<(), ClientError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct HeaderContext {
        tool_calls: Vec<ScenarioCall>,
    }
    #[derive(Deserialize)]
    struct ScenarioCall {
        name: String,
        arguments: Map<String, Value>,
    }

    let context: HeaderContext = serde_json::from_value(context)?;
    let tools = client.tools().await?;
    for expected in context.tool_calls {
        find(&tools, &expected.name)?;
        call(client, &expected.name, expected.arguments.into()).await?;
    }
    Ok(())
}

/// Generates arguments for tools whose schemas have remote references, which must not be fetched.
pub(super) async fn schema_refs(client: &Client) -> Result<(), ClientError> {
    for tool in client.tools().await? {
        example_object(&tool.input_schema);
    }
    Ok(())
}

/// Sends a schema back unchanged.
pub(super) async fn schema_preservation(client: &Client) -> Result<(), ClientError> {
    let tools = client.tools().await?;
    let schema = &find(&tools, "json_schema_2020_12_tool")?.input_schema;
    call(client, "json_schema_echo", json!({"schema": schema})).await
}

/// Calls tools that need input, two of them concurrently.
pub(super) async fn request_state(client: &Client) -> Result<(), ClientError> {
    client.tools().await?;
    tokio::try_join!(
        call(client, "test_mrtr_echo_state", json!({})),
        call(client, "test_mrtr_unrelated", json!({})),
    )?;
    for name in ["test_mrtr_no_state", "test_mrtr_no_result_type"] {
        call(client, name, json!({})).await?;
    }
    Ok(())
}

/// Calls every tool with generated arguments.
pub(super) async fn call_all(client: &Client) -> Result<(), ClientError> {
    for tool in client.tools().await? {
        call(
            client,
            &tool.name,
            example_object(&tool.input_schema).into(),
        )
        .await?;
    }
    Ok(())
}

/// Calls a tool that must not fail.
pub(super) async fn call(client: &Client, tool: &str, arguments: Value) -> Result<(), ClientError> {
    let result = client.call_tool(tool, arguments).await?;
    if result.is_error {
        return Err(ClientError::Tool {
            tool: tool.to_owned(),
            content: json!(result.content),
        });
    }
    Ok(())
}

fn find<'a>(tools: &'a [AsSent<ToolInfo>], name: &str) -> Result<&'a ToolInfo, ClientError> {
    tools
        .iter()
        .map(|tool| &**tool)
        .find(|tool| tool.name == name)
        .ok_or_else(|| ClientError::NoTool(name.to_owned()))
}
