//! Lists that change, cache hints, parameters in headers, structured content and annotations.

use refrain::prelude::*;
use refrain::server::{BuildError, Cache, Changes, Icon, Listing, ServerBuilder, ToolAnnotations};
use std::time::Duration;

const ICON: &str =
    "data:image/svg+xml;base64,PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciLz4=";

pub(crate) fn register(server: ServerBuilder) -> ServerBuilder {
    let hour = Duration::from_secs(3600);
    server
        .title("Refrain's conformance server")
        .describe("Everything that the protocol's conformance suite calls.")
        .instructions("Call the tools that the scenario names.")
        .icon(Icon::new(ICON))
        .cache_discover(Cache::public(hour))
        .cache(Listing::ResourceTemplates, Cache::public(hour))
        .tool(trigger_tool_change())
        .tool(trigger_prompt_change())
        .tool(trigger_resource_change())
        .tool(trigger_resource_update())
        .tool(x_mcp_header())
        .tool(
            structured_content()
                .title("Structured content")
                .icon(Icon::new(ICON))
                .meta("com.example/group", "samples")
                .annotations(ToolAnnotations {
                    read_only_hint: Some(true),
                    ..ToolAnnotations::default()
                }),
        )
}

/// Adds a tool to the list, or removes it if it exists.
#[tool(name = "test_trigger_tool_change")]
async fn trigger_tool_change(_cx: Cx, server: State<Server>) -> Result<&'static str> {
    let name = "test_added_tool";
    let tool = Tool::new(name, added).describe("Added at run time.");
    let remove = Changes::new().remove_tool(name);
    toggle(&server, Changes::new().tool(tool), remove)
}

async fn added(_cx: Cx) -> Result<&'static str> {
    Ok("This entry was added.")
}

/// Adds a prompt to the list, or removes it if it exists.
#[tool(name = "test_trigger_prompt_change")]
async fn trigger_prompt_change(_cx: Cx, server: State<Server>) -> Result<&'static str> {
    let name = "test_added_prompt";
    let prompt = refrain::server::Prompt::new(name, added).describe("Added at run time.");
    let remove = Changes::new().remove_prompt(name);
    toggle(&server, Changes::new().prompt(prompt), remove)
}

/// Adds a resource to the list, or removes it if it exists.
#[tool(name = "test_trigger_resource_change")]
async fn trigger_resource_change(_cx: Cx, server: State<Server>) -> Result<&'static str> {
    let uri = "test://added";
    let resource = refrain::server::Resource::new(uri, "added", added);
    let remove = Changes::new().remove_resource(uri);
    toggle(&server, Changes::new().resource(resource), remove)
}

fn toggle(server: &Server, add: Changes, remove: Changes) -> Result<&'static str> {
    match server.change(add) {
        Ok(()) => Ok("added"),
        Err(BuildError::Duplicate { .. }) => {
            server.change(remove)?;
            Ok("removed")
        }
        Err(error) => Err(error.into()),
    }
}

#[derive(Deserialize, JsonSchema)]
struct ResourceUri {
    /// The URI of the resource.
    uri: String,
}

/// Notifies subscribers that a resource changed.
#[tool(name = "test_trigger_resource_update")]
async fn trigger_resource_update(
    _cx: Cx,
    server: State<Server>,
    resource: ResourceUri,
) -> Result<&'static str> {
    server.resource_updated(&resource.uri);
    Ok("notified")
}

#[derive(Deserialize, JsonSchema)]
struct Query {
    /// The region to run the query in. A proxy may route by it.
    #[schemars(extend("x-mcp-header" = "Region"))]
    region: String,
    /// The number of rows to fetch.
    #[serde(default)]
    #[schemars(extend("x-mcp-header" = "Limit"))]
    limit: u32,
}

/// Returns the region and the limit of a query.
#[tool(name = "test_x_mcp_header")]
async fn x_mcp_header(_cx: Cx, query: Query) -> Result<String> {
    Ok(format!("{} rows from {}", query.limit, query.region))
}

#[derive(Deserialize, JsonSchema)]
struct Town {
    /// The name of a town.
    town: String,
}

#[derive(Serialize, JsonSchema)]
struct TownWeather {
    /// The name of the town.
    town: String,
    /// Degrees Celsius.
    temperature: f64,
    conditions: Vec<String>,
}

/// Returns the weather as structured content.
#[tool(name = "test_structured_content")]
async fn structured_content(_cx: Cx, args: Town) -> Result<Json<TownWeather>> {
    Ok(Json(TownWeather {
        town: args.town,
        temperature: 21.5,
        conditions: vec!["sunny".into(), "dry".into()],
    }))
}
