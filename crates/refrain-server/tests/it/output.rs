//! Structured content and output schemas.

use crate::support::{Request, assert_contains, result, start};
use refrain_core::{Cx, Result};
use refrain_server::{BuildError, Json, Resource, Server, Tool};
use refrain_wire::{Content, ToolResult};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

#[derive(Serialize, JsonSchema)]
struct Weather {
    /// Degrees.
    temperature: i32,
    conditions: Vec<String>,
}

async fn weather(_: Cx) -> Result<Json<Weather>> {
    Ok(Json(Weather {
        temperature: 20,
        conditions: vec!["dry".into()],
    }))
}

async fn anything(_: Cx) -> Result<Json<Value>> {
    Ok(Json(json!({"free": true})))
}

async fn list(_: Cx) -> Result<Json<Vec<u32>>> {
    Ok(Json(vec![1, 2, 3]))
}

async fn nothing(_: Cx) -> Result<Json<Option<u32>>> {
    Ok(Json(None))
}

async fn plain(_: Cx) -> Result<&'static str> {
    Ok("no structure")
}

async fn failing(_: Cx) -> Result<ToolResult> {
    Ok(ToolResult::error("no weather today"))
}

async fn with_meta(_: Cx) -> Result<ToolResult> {
    let mut meta = serde_json::Map::new();
    meta.insert("com.example/cost".into(), json!(3));
    Ok(ToolResult {
        content: vec![Content::text("text")],
        meta: Some(meta),
        ..ToolResult::default()
    })
}

fn number() -> Value {
    json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 10}}, "required": ["n"]})
}

#[tokio::test]
async fn structured_result_matches_its_schema() {
    let builder = Server::builder("out", "1")
        .tool(Tool::new("weather", weather))
        .tool(Tool::new("anything", anything))
        .tool(Tool::new("list", list))
        .tool(Tool::new("nothing", nothing));
    let instance = start(builder).await;
    let listed = instance
        .send(&Request::rpc("tools/list", json!({})))
        .await
        .reply();
    let tools = &result(&listed)["tools"];
    let schema = &tools[0]["outputSchema"];
    assert_eq!(schema["type"], "object");
    assert_eq!(schema["required"], json!(["temperature", "conditions"]));
    assert_eq!(
        schema["properties"]["temperature"]["description"],
        "Degrees."
    );
    // A schema that accepts everything is not listed.
    assert_eq!(tools[1].get("outputSchema"), None);
    assert_eq!(tools[2]["outputSchema"]["type"], "array");
    for (tool, content) in [
        ("weather", json!({"temperature": 20, "conditions": ["dry"]})),
        ("anything", json!({"free": true})),
        ("list", json!([1, 2, 3])),
        ("nothing", Value::Null),
    ] {
        let reply = instance.send(&Request::tool(tool, json!({}))).await.reply();
        let result = result(&reply);
        assert_eq!(result.get("structuredContent"), Some(&content));
        // The content is repeated as text for clients that read only text.
        let text = result["content"][0]["text"]
            .as_str()
            .expect("the content is text");
        assert_eq!(
            serde_json::from_str::<Value>(text).expect("replies are JSON"),
            content
        );
    }
}

#[tokio::test]
async fn result_that_violates_its_schema_is_not_sent() {
    let small = async |_: Cx| Ok(Json(json!({"n": 5, "secret": "s3cret"})));
    let builder = Server::builder("out", "1")
        .tool(Tool::new("small", small).output_schema(number()))
        .tool(Tool::new("plain", plain).output_schema(number()))
        .tool(Tool::new("failing", failing).output_schema(number()));
    let instance = start(builder).await;
    for (tool, expected) in [("small", "/n"), ("plain", "structuredContent")] {
        let response = instance.send(&Request::tool(tool, json!({}))).await;
        let message = response.error(200, -32603);
        assert_contains(&message, &["output schema", expected]);
        assert!(!message.contains("s3cret"), "{message}");
    }
    // Tool errors are not checked against the schema.
    let reply = instance
        .send(&Request::tool("failing", json!({})))
        .await
        .reply();
    assert_eq!(result(&reply)["isError"], true);
}

#[tokio::test]
async fn result_metadata_is_merged_with_server_metadata() {
    let instance = start(Server::builder("out", "1").tool(Tool::new("with_meta", with_meta))).await;
    let reply = instance
        .send(&Request::tool("with_meta", json!({})))
        .await
        .reply();
    let meta = &result(&reply)["_meta"];
    assert_eq!(meta["com.example/cost"], 3);
    assert_eq!(meta["io.modelcontextprotocol/serverInfo"]["name"], "out");
}

#[tokio::test]
async fn json_resource_has_json_media_type() {
    let resource = Resource::new("x://w", "w", async |_: Cx| Ok(Json(json!({"a": 1}))));
    let instance = start(Server::builder("out", "1").resource(resource)).await;
    let reply = instance.send(&Request::read("x://w")).await.reply();
    let contents = &result(&reply)["contents"][0];
    assert_eq!(contents["mimeType"], "application/json");
    assert_eq!(contents["text"], r#"{"a":1}"#);
}

#[test]
fn invalid_schemas_names_and_uris_are_rejected() {
    let input = |schema: Value| {
        let tool = Tool::new("t", plain).input_schema(schema);
        Server::builder("s", "1").tool(tool).build()
    };
    for schema in [
        json!(true),
        json!({}),
        json!({"type": "string"}),
        json!({"type": ["object"]}),
    ] {
        assert!(matches!(
            input(schema),
            Err(BuildError::Schema { which: "input", .. })
        ));
    }
    let output = Tool::new("t", plain).output_schema(json!({"type": "no such type"}));
    let rejected = Server::builder("s", "1").tool(output).build();
    assert!(matches!(
        rejected,
        Err(BuildError::Schema {
            which: "output",
            ..
        })
    ));
    let unnamed = Server::builder("s", "1").tool(Tool::new("", plain)).build();
    assert!(matches!(unnamed, Err(BuildError::EmptyName)));
    for uri in [
        "",
        "no scheme",
        "1x://a",
        "x://a b",
        "x://ü",
        "x://{a}",
        "://a",
    ] {
        let rejected = Server::builder("s", "1")
            .resource(Resource::new(uri, "r", plain))
            .build();
        assert!(matches!(rejected, Err(BuildError::Uri { .. })), "{uri}");
    }
    for name in [
        "",
        "thing",
        "/thing",
        "com.example/",
        "a b/c",
        "-a/b",
        "a-/b",
        "1a/b",
        "a.1b/c",
        "a..b/c",
        "a_b/c",
        "a/b/c",
        "a/b-",
        "a/-b",
    ] {
        let rejected = Server::builder("s", "1")
            .extension(name, serde_json::Map::new())
            .build();
        assert!(
            matches!(rejected, Err(BuildError::ExtensionName { .. })),
            "{name}"
        );
    }
    for name in ["com.example/thing", "io.my-label2/1.a_b-c", "a/b"] {
        let taken = Server::builder("s", "1").extension(name, serde_json::Map::new());
        assert!(taken.build().is_ok(), "{name}");
    }
}
