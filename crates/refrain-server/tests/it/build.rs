//! Building a server: states, duplicates, schemas, lists and limits.

use crate::support::{Request, Word, echo, greet, result, start, text};
use refrain_core::{Cx, Result};
use refrain_server::{
    BuildError, Prompt, Resource, ResourceTemplate, Server, ServerBuilder, ServerLimits, State,
    Tool,
};
use refrain_wire::ToolAnnotations;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

#[derive(Debug, Default)]
struct Counter(AtomicU32);

#[derive(Debug)]
struct Greeting(&'static str);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Order {
    /// What to order.
    item_name: String,
    #[serde(default)]
    count: Option<u8>,
}

async fn counted(
    _: Cx,
    counter: State<Counter>,
    greeting: State<Greeting>,
    word: Word,
) -> Result<String> {
    let before = counter.0.fetch_add(1, Ordering::SeqCst);
    Ok(format!("{} {} {before}", greeting.0, word.text))
}

async fn read(_: Cx, greeting: State<Greeting>) -> Result<&'static str> {
    Ok(greeting.0)
}

async fn order(_: Cx, order: Order) -> Result<String> {
    Ok(format!("{} {:?}", order.item_name, order.count))
}

async fn nothing(_: Cx) -> Result<&'static str> {
    Ok("nothing")
}

fn builder() -> ServerBuilder {
    Server::builder("build", "2.1")
}

#[tokio::test]
async fn handlers_receive_states_by_type() {
    let builder = builder()
        .tool(Tool::new("counted", counted))
        .resource(Resource::new("x://greeting", "greeting", read))
        .state(Greeting("Hi"))
        .state(Counter::default());
    let instance = start(builder).await;
    for n in 0..3 {
        let request = Request::tool("counted", json!({"text": "x"}));
        assert_eq!(
            text(&instance.send(&request).await.reply()),
            format!("Hi x {n}")
        );
    }
    let reply = instance.send(&Request::read("x://greeting")).await.reply();
    assert_eq!(result(&reply)["contents"][0]["text"], "Hi");
}

#[test]
fn missing_state_is_named_in_the_error() {
    let of_tool = builder()
        .tool(Tool::new("counted", counted))
        .state(Counter::default());
    let of_prompt = builder()
        .prompt(Prompt::new("p", read))
        .state(Counter::default());
    let of_resource = builder().resource(Resource::new("x://r", "r", read));
    let of_template = builder().resource_template(ResourceTemplate::new("x://{a}", "t", read));
    for (builder, handler_name) in [
        (of_tool, "counted"),
        (of_prompt, "p"),
        (of_resource, "x://r"),
        (of_template, "x://{a}"),
    ] {
        let error = builder.build().expect_err("a state is missing");
        assert!(
            matches!(&error, BuildError::MissingState { handler, .. } if handler == handler_name)
        );
        let text = error.to_string();
        assert!(
            text.contains("Greeting") && text.contains(".state("),
            "{text}"
        );
    }
}

#[test]
fn duplicate_registration_is_rejected() {
    let tools = builder()
        .tool(Tool::new("a", echo))
        .tool(Tool::new("a", greet));
    let prompts = builder()
        .prompt(Prompt::new("a", echo))
        .prompt(Prompt::new("a", echo));
    let resource = || Resource::new("x://a", "a", nothing);
    let resources = builder().resource(resource()).resource(resource());
    let template = || ResourceTemplate::new("x://{a}", "a", nothing);
    let templates = builder()
        .resource_template(template())
        .resource_template(template());
    for (builder, what) in [
        (tools, "tool \"a\""),
        (prompts, "prompt \"a\""),
        (resources, "resource \"x://a\""),
        (templates, "resource template \"x://{a}\""),
    ] {
        let error = builder.build().expect_err("the name is taken");
        assert!(matches!(error, BuildError::Duplicate { .. }));
        assert_eq!(error.to_string(), format!("{what} is registered twice"));
    }
    let one_of_each = builder()
        .tool(Tool::new("a", echo))
        .prompt(Prompt::new("a", echo));
    assert!(one_of_each.build().is_ok());
}

#[test]
fn invalid_schemas_and_templates_are_rejected() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "nonsense"}}});
    let error = builder()
        .tool(Tool::new("invalid", echo).input_schema(schema))
        .build();
    assert!(matches!(error, Err(BuildError::Schema { tool, .. }) if tool == "invalid"));
    for template in ["x://{a", "x://{}", "x://{a}{b}", "x://{a b}"] {
        let built = builder().resource_template(ResourceTemplate::new(template, "t", nothing));
        let error = built.build().expect_err("the template is invalid");
        assert!(error.to_string().contains(template), "{error}");
    }
}

#[tokio::test]
async fn lists_contain_entries_in_registration_order() {
    let hints = ToolAnnotations {
        read_only_hint: Some(true),
        ..ToolAnnotations::default()
    };
    let custom = json!({"type": "object", "properties": {"text": {"type": "string", "maxLength": 3}},
        "required": ["text"]});
    let builder = builder()
        .tool(
            Tool::new("z", order)
                .describe("Orders.")
                .title("Order")
                .annotations(hints),
        )
        .tool(Tool::new("a", nothing))
        .tool(Tool::new("m", echo).input_schema(custom.clone()))
        .prompt(Prompt::new("p", order).describe("Asks."))
        .resource(
            Resource::new("x://r", "r", nothing)
                .mime_type("text/plain")
                .describe("R."),
        )
        .resource_template(ResourceTemplate::new("x://{a}/t", "t", nothing).title("T"))
        .title("Built")
        .instructions("Use it well.");
    let instance = start(builder).await;
    let list = async |method: &str, member: &str| -> Value {
        let reply = instance
            .send(&Request::rpc(method, json!({})))
            .await
            .reply();
        let result = result(&reply);
        assert_eq!(result["resultType"], "complete");
        assert_eq!(
            (&result["ttlMs"], &result["cacheScope"]),
            (&json!(0), &json!("private"))
        );
        result[member].clone()
    };

    let tools = list("tools/list", "tools").await;
    let schema = json!({"type": "object", "required": ["itemName"], "properties": {
        "itemName": {"type": "string", "description": "What to order."},
        "count": {"type": ["integer", "null"], "minimum": 0, "maximum": 255, "default": null}}});
    let expected = json!({"name": "z", "title": "Order", "description": "Orders.",
        "inputSchema": schema, "annotations": {"readOnlyHint": true}});
    assert_eq!(tools[0], expected);
    let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
    assert_eq!(tools[1], json!({"name": "a", "inputSchema": none}));
    assert_eq!(tools[2], json!({"name": "m", "inputSchema": custom}));

    let arguments = json!([
        {"name": "count", "required": false},
        {"name": "itemName", "description": "What to order.", "required": true}]);
    let mut prompts = list("prompts/list", "prompts").await;
    let listed = prompts[0]["arguments"].as_array_mut().unwrap();
    listed.sort_by_key(|argument| argument["name"].to_string());
    assert_eq!(
        prompts,
        json!([{"name": "p", "description": "Asks.", "arguments": arguments}])
    );
    let resource =
        json!({"uri": "x://r", "name": "r", "description": "R.", "mimeType": "text/plain"});
    assert_eq!(list("resources/list", "resources").await, json!([resource]));
    let template = json!({"uriTemplate": "x://{a}/t", "name": "t", "title": "T"});
    assert_eq!(
        list("resources/templates/list", "resourceTemplates").await,
        json!([template])
    );

    let reply = instance
        .send(&Request::rpc("server/discover", json!({})))
        .await
        .reply();
    let found = result(&reply);
    assert_eq!(found["supportedVersions"], json!(["2026-07-28"]));
    assert_eq!(
        found["capabilities"],
        json!({
            "tools": {"listChanged": true}, "prompts": {"listChanged": true},
            "resources": {"listChanged": true, "subscribe": true}, "logging": {},
            "extensions": {"refrain/callId": {}},
        })
    );
    assert_eq!(found["instructions"], "Use it well.");
    let info = &found["_meta"]["io.modelcontextprotocol/serverInfo"];
    assert_eq!(
        info,
        &json!({"name": "build", "title": "Built", "version": "2.1"})
    );

    // Arguments are checked against the author's schema.
    let long = Request::tool("m", json!({"text": "long"}));
    assert_eq!(result(&instance.send(&long).await.reply())["isError"], true);
}

#[tokio::test]
async fn empty_server_has_empty_lists_and_few_capabilities() {
    let instance = start(builder()).await;
    for (method, member) in [
        ("tools/list", "tools"),
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ] {
        let reply = instance
            .send(&Request::rpc(method, json!({})))
            .await
            .reply();
        assert_eq!(result(&reply)[member], json!([]), "{method}");
    }
    let reply = instance
        .send(&Request::rpc("server/discover", json!({})))
        .await
        .reply();
    assert_eq!(
        result(&reply)["capabilities"],
        json!({"logging": {}, "extensions": {"refrain/callId": {}}})
    );
}

#[test]
fn too_small_limits_are_rejected() {
    let default = ServerLimits::default;
    let (zero, half) = (Duration::ZERO, Duration::from_millis(500));
    for (limit, limits) in [
        (
            "page_size",
            ServerLimits {
                page_size: 0,
                ..default()
            },
        ),
        (
            "keep_alive",
            ServerLimits {
                keep_alive: zero,
                ..default()
            },
        ),
        (
            "session_time",
            ServerLimits {
                session_time: zero,
                ..default()
            },
        ),
        (
            "session_time",
            ServerLimits {
                session_time: half,
                ..default()
            },
        ),
    ] {
        let error = builder().limits(limits).build();
        let error = error.expect_err("the limit is too small").to_string();
        assert!(error.contains(limit), "{error}");
    }
}

#[test]
fn too_large_clock_skew_is_rejected() {
    let most = ServerBuilder::MAX_CLOCK_SKEW;
    assert!(builder().clock_skew(most).build().is_ok());
    let error = builder().clock_skew(most + Duration::from_secs(1)).build();
    let error = error.expect_err("too large").to_string();
    assert_eq!(
        error,
        "clock skew of 3601 seconds is too large: use at most 3600 seconds"
    );
}
