//! What the client does in each scenario. Whether it did it right is for the suite to judge, which is the server.

use super::ClientError;
use super::answers::sample;
use super::session::{Session, Tool};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Calls a tool with two numbers.
pub(super) async fn tools_call(session: &Session) -> Result<(), ClientError> {
    let tools = session.tools().await?;
    let mut arguments = Map::new();
    arguments.insert("a".to_owned(), 5.into());
    arguments.insert("b".to_owned(), 3.into());
    session
        .call(find(&tools, "add_numbers")?, &arguments)
        .await?;
    Ok(())
}

/// Makes a request, whose metadata is looked at. The server refuses the version the first time.
pub(super) async fn request_metadata(session: &Session) -> Result<(), ClientError> {
    session.tools().await?;
    Ok(())
}

/// Makes a request of every kind that has headers of its own, for everything that is listed.
pub(super) async fn standard_headers(session: &Session) -> Result<(), ClientError> {
    call_all(session).await?;
    for resource in session.list("resources/list", "resources").await? {
        let uri = json!({"uri": resource["uri"]});
        session.request("resources/read", &object(uri)).await?;
    }
    for prompt in session.list("prompts/list", "prompts").await? {
        let name = json!({"name": prompt["name"]});
        session.request("prompts/get", &object(name)).await?;
    }
    Ok(())
}

/// Makes the calls that the context lists, of tools whose parameters go into headers too.
pub(super) async fn custom_headers(session: &Session, context: &str) -> Result<(), ClientError> {
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

    let context: Context = serde_json::from_str(context)?;
    let tools = session.tools().await?;
    for call in &context.tool_calls {
        session
            .call(find(&tools, &call.name)?, &call.arguments)
            .await?;
    }
    Ok(())
}

/// Calls every tool that is left when those with invalid annotations are dropped.
pub(super) async fn invalid_tool_headers(session: &Session) -> Result<(), ClientError> {
    call_all(session).await
}

/// Lists a tool whose schema refers to a URL, and makes up arguments for it. Nothing of this fetches anything.
pub(super) async fn schema_refs(session: &Session) -> Result<(), ClientError> {
    for tool in session.tools().await? {
        sample(&tool.schema);
    }
    Ok(())
}

/// Calls tools that need input, one of them while another call is under way.
pub(super) async fn request_state(session: &Session) -> Result<(), ClientError> {
    let tools = session.tools().await?;
    let nothing = Map::new();
    let with_state = find(&tools, "test_mrtr_echo_state")?;
    let unrelated = find(&tools, "test_mrtr_unrelated")?;
    tokio::try_join!(
        session.call(with_state, &nothing),
        session.call(unrelated, &nothing),
    )?;
    for name in ["test_mrtr_no_state", "test_mrtr_no_result_type"] {
        session.call(find(&tools, name)?, &nothing).await?;
    }
    Ok(())
}

async fn call_all(session: &Session) -> Result<(), ClientError> {
    for tool in session.tools().await? {
        session.call(&tool, &sample(&tool.schema)).await?;
    }
    Ok(())
}

fn find<'a>(tools: &'a [Tool], name: &str) -> Result<&'a Tool, ClientError> {
    tools
        .iter()
        .find(|tool| tool.name == name)
        .ok_or_else(|| ClientError::NoTool(name.to_owned()))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}
