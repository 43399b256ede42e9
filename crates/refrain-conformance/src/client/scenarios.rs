//! What the client does in each scenario. Whether it did it right is for the suite to judge, which is the server.

use super::ClientError;
use super::answers::sample;
use refrain_client::Client;
use refrain_client::wire::ToolInfo;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Calls a tool with two numbers.
pub(super) async fn tools_call(client: &Client) -> Result<(), ClientError> {
    let tools = client.tools().await?;
    find(&tools, "add_numbers")?;
    call(client, "add_numbers", json!({"a": 5, "b": 3})).await
}

/// Makes a request, whose metadata is looked at, or what came before it. A server of the present revision refuses the
/// version the first time.
pub(super) async fn lists(client: &Client) -> Result<(), ClientError> {
    client.tools().await?;
    Ok(())
}

/// Calls a tool that asks with something filled in beforehand.
pub(super) async fn defaults(client: &Client) -> Result<(), ClientError> {
    call(client, "test_client_elicitation_defaults", json!({})).await
}

/// Calls a tool whose stream breaks before there is a reply.
pub(super) async fn retry(client: &Client) -> Result<(), ClientError> {
    call(client, "test_reconnection", json!({})).await
}

/// Makes a request of every kind that has headers of its own, for everything that is listed.
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

/// Makes the calls that the context lists, of tools whose parameters go into headers too.
pub(super) async fn custom_headers(client: &Client, context: Value) -> Result<(), ClientError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Context {
        tool_calls: Vec<ToolCall>,
    }
    #[derive(Deserialize)]
    struct ToolCall {
        name: String,
        arguments: Map<String, Value>,
    }

    let context: Context = serde_json::from_value(context)?;
    let tools = client.tools().await?;
    for wanted in context.tool_calls {
        find(&tools, &wanted.name)?;
        call(client, &wanted.name, wanted.arguments.into()).await?;
    }
    Ok(())
}

/// Calls every tool that is left when those with invalid annotations are dropped.
pub(super) async fn invalid_tool_headers(client: &Client) -> Result<(), ClientError> {
    call_all(client).await
}

/// Lists a tool whose schema refers to a URL, and makes up arguments for it. Nothing of this fetches anything.
pub(super) async fn schema_refs(client: &Client) -> Result<(), ClientError> {
    for tool in client.tools().await? {
        sample(&tool.input_schema);
    }
    Ok(())
}

/// Sends a schema back as it came.
pub(super) async fn schema_preservation(client: &Client) -> Result<(), ClientError> {
    let tools = client.tools().await?;
    let schema = &find(&tools, "json_schema_2020_12_tool")?.input_schema;
    call(client, "json_schema_echo", json!({"schema": schema})).await
}

/// Calls tools that need input, one of them while another call is under way.
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

/// Makes two requests of a server that wants authorization for each, and perhaps more for the second.
pub(super) async fn authorized(client: &Client) -> Result<(), ClientError> {
    call_all(client).await
}

async fn call_all(client: &Client) -> Result<(), ClientError> {
    for tool in client.tools().await? {
        call(client, &tool.name, sample(&tool.input_schema).into()).await?;
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

fn find<'a>(tools: &'a [ToolInfo], name: &str) -> Result<&'a ToolInfo, ClientError> {
    tools
        .iter()
        .find(|tool| tool.name == name)
        .ok_or_else(|| ClientError::NoTool(name.to_owned()))
}
