//! The builders that `#[tool]`, `#[prompt]` and `#[resource]` return.

use refrain::runtime::PROTOCOL_VERSION;
use refrain::server::{Prompt, Resource, ResourceTemplate, Server, Tool, serve_stdio};
use refrain::{Cx, Result, State, prompt, resource, tool};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

#[derive(Deserialize, JsonSchema)]
struct Place {
    location: String,
}

/// Tells the weather
/// of a place.
///
/// Only sunny so far.
#[tool]
async fn get_weather(_cx: Cx, place: Place) -> Result<String> {
    Ok(format!("{}: sunny", place.location))
}

/// Not this one.
#[tool(
    name = "weather.set",
    title = "Set the weather",
    description = "Makes it rain.",
    version = "7"
)]
async fn set(_cx: Cx, _log: State<Vec<String>>, _place: Place) -> Result<String> {
    Ok(String::new())
}

#[tool(once)]
async fn pay(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[tool(single_use)]
async fn vote(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[tool]
async fn r#move(mut _cx: Cx) -> Result<&'static str> {
    Ok("moved")
}

/// Asks for a review.
#[prompt(title = "Review")]
async fn review(_cx: Cx, place: Place) -> Result<String> {
    Ok(place.location)
}

/// The settings in force.
#[resource(uri = "config://app", mime_type = "application/json")]
async fn settings(_cx: Cx) -> Result<String> {
    Ok("{}".to_owned())
}

#[resource(uri = "places://{location}", name = "place", title = "A place")]
async fn place(_cx: Cx, place: Place) -> Result<String> {
    Ok(place.location)
}

/// Tools can be associated functions.
struct Tracker;

impl Tracker {
    /// Closes an item.
    #[tool]
    async fn close(_cx: Cx) -> Result<String> {
        Ok(String::new())
    }
}

#[test]
fn tool_takes_name_and_docs_from_its_function() {
    let tool: Tool = get_weather();
    let info = tool.info();
    assert_eq!(info.name, "get_weather");
    assert_eq!(info.title, None);
    assert_eq!(
        info.description.as_deref(),
        Some("Tells the weather\nof a place.\n\nOnly sunny so far.")
    );
    assert_eq!(info.input_schema["required"], json!(["location"]));
}

#[test]
fn keys_override_name_and_docs() {
    let tool = set();
    assert_eq!(tool.info().name, "weather.set");
    assert_eq!(tool.info().title.as_deref(), Some("Set the weather"));
    assert_eq!(tool.info().description.as_deref(), Some("Makes it rain."));
    assert!(format!("{tool:?}").contains("\"7\""), "{tool:?}");
}

#[test]
fn raw_identifier_loses_its_prefix() {
    let tool = r#move();
    assert_eq!(tool.info().name, "move");
    assert_eq!(tool.info().description, None);
}

#[test]
fn associated_function_can_be_a_tool() {
    let tool = Tracker::close();
    assert_eq!(tool.info().name, "close");
    assert_eq!(tool.info().description.as_deref(), Some("Closes an item."));
}

#[test]
fn flags_are_passed_to_the_builder() {
    for tool in [pay(), vote()] {
        let name = tool.info().name.clone();
        let error = Server::builder("test", "1").tool(tool).build().unwrap_err();
        assert!(error.to_string().contains("replay log"), "{name}: {error}");
    }
}

#[test]
fn prompt_lists_its_arguments() {
    let prompt: Prompt = review();
    let info = prompt.info();
    assert_eq!(info.name, "review");
    assert_eq!(info.title.as_deref(), Some("Review"));
    assert_eq!(info.description.as_deref(), Some("Asks for a review."));
    assert_eq!(info.arguments.len(), 1);
    assert_eq!(info.arguments[0].name, "location");
}

/// The response of a server with the resources of this file, over stdio.
async fn answer(method: &str, mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let resource: Resource = settings();
    let template: ResourceTemplate = place();
    let server = Server::builder("test", "1")
        .tool(get_weather())
        .resource(resource)
        .resource_template(template)
        .build()
        .expect("a server");
    let (mut client, served) = tokio::io::duplex(1 << 16);
    let (input, output) = tokio::io::split(served);
    let serving = tokio::spawn(serve_stdio(
        server,
        BufReader::new(input),
        output,
        std::future::pending(),
    ));
    client
        .write_all(format!("{request}\n").as_bytes())
        .await
        .expect("a stream in memory");
    let mut line = String::new();
    BufReader::new(&mut client)
        .read_line(&mut line)
        .await
        .expect("a line of text");
    drop(client);
    serving.await.expect("no panic").expect("no failure");
    let reply: Value = serde_json::from_str(&line).expect("a line of JSON");
    reply["result"].clone()
}

#[tokio::test]
async fn uri_without_braces_is_a_resource() {
    let listed = answer("resources/list", json!({})).await;
    assert_eq!(
        listed["resources"],
        json!([{
            "uri": "config://app",
            "name": "settings",
            "description": "The settings in force.",
            "mimeType": "application/json",
        }])
    );
    let read = answer("resources/read", json!({"uri": "config://app"})).await;
    assert_eq!(read["contents"][0]["text"], "{}");
    assert_eq!(read["contents"][0]["mimeType"], "application/json");
}

#[tokio::test]
async fn uri_with_braces_is_a_template() {
    let listed = answer("resources/templates/list", json!({})).await;
    assert_eq!(
        listed["resourceTemplates"],
        json!([{"uriTemplate": "places://{location}", "name": "place", "title": "A place"}])
    );
    let read = answer("resources/read", json!({"uri": "places://Oslo"})).await;
    assert_eq!(read["contents"][0]["text"], "Oslo");
}

#[tokio::test]
async fn registered_tool_can_be_called() {
    let call = json!({"name": "get_weather", "arguments": {"location": "Oslo"}});
    let result = answer("tools/call", call).await;
    assert_eq!(result["content"][0]["text"], "Oslo: sunny");
}
