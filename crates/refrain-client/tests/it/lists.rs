//! Lists, their cache, parameter headers and output schemas of tools.

use crate::support::{FakeServer, Received, Respond, serve_forever};
use refrain::prelude::*;
use refrain::server::{Changes, Listing};
use refrain_client::wire::{Cache, Filter};
use refrain_client::{Client, ErrorKind, ServerChange};
use serde_json::{Value, json};
use std::time::Duration;

fn page(names: &[&str], next: Option<&str>, ttl: Value) -> Respond {
    let tool = |name| json!({"name": name, "inputSchema": {"type": "object"}});
    let tools: Vec<Value> = names.iter().map(tool).collect();
    let mut page = json!({"resultType": "complete", "tools": tools, "cacheScope": "private"});
    page["ttlMs"] = ttl;
    if let Some(next) = next {
        page["nextCursor"] = next.into();
    }
    Respond::Result(page)
}

async fn names(client: &Client) -> Vec<String> {
    let tools = client.tools().await.expect("tools");
    tools.into_iter().map(|tool| tool.name.clone()).collect()
}

#[tokio::test]
async fn list_pages_are_read_in_order_and_cached() {
    let server = FakeServer::start(|request| match request["params"]["cursor"].as_str() {
        None => page(&["a", "b"], Some("2"), json!(60_000)),
        Some(_) => page(&["c"], None, json!(60_000)),
    })
    .await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    for _ in 0..3 {
        assert_eq!(names(&client).await, ["a", "b", "c"]);
    }
    assert_eq!(server.requests("tools/list").len(), 2);
}

#[tokio::test]
async fn list_without_ttl_is_not_cached() {
    for ttl in [json!(0), json!(-5), json!("long"), Value::Null] {
        let server = FakeServer::start(move |_| page(&["a"], None, ttl.clone())).await;
        let client = Client::builder().connect(&server.url).await.unwrap();
        names(&client).await;
        names(&client).await;
        assert_eq!(server.requests("tools/list").len(), 2);
    }
}

#[tokio::test]
async fn endless_list_is_given_up() {
    let server = FakeServer::start(|_| page(&["a"], Some("more"), json!(0))).await;
    let limits = refrain_client::ClientLimits {
        pages: 5,
        ..Default::default()
    };
    let client = Client::builder()
        .limits(limits)
        .connect(&server.url)
        .await
        .unwrap();
    let error = client.tools().await.unwrap_err();
    assert!(error.to_string().contains("5 pages"), "{error}");
}

#[tokio::test]
async fn change_notification_invalidates_the_cache() {
    async fn nothing(_cx: Cx) -> Result<String> {
        Ok(String::new())
    }
    let builder = Server::builder("changing", "1")
        .tool(Tool::new("first", nothing))
        .cache(Listing::Tools, Cache::public(Duration::from_secs(600)));
    let instance = refrain_testkit::net::start(builder).await;

    let client = Client::builder().connect(&instance.url()).await.unwrap();
    assert_eq!(names(&client).await, ["first"]);
    let wanted = Filter {
        tools: true,
        ..Filter::default()
    };
    let mut changes = client.listen(&wanted).await.unwrap();
    assert!(changes.granted().tools);
    let update = Changes::new().tool(Tool::new("second", nothing));
    instance.server.change(update).unwrap();
    let change = crate::support::within("the change", changes.next())
        .await
        .unwrap();
    assert_eq!(change, Some(ServerChange::Tools));
    assert_eq!(names(&client).await, ["first", "second"]);
}

#[tokio::test]
async fn header_mismatch_reloads_the_tools() {
    #[derive(Deserialize, JsonSchema)]
    struct Region {
        #[schemars(extend("x-mcp-header" = "Region"))]
        region: String,
    }
    async fn deploy(_cx: Cx, args: Region) -> Result<String> {
        Ok(format!("deployed to {}", args.region))
    }
    let url =
        serve_forever(Server::builder("headers", "1").tool(Tool::new("deploy", deploy))).await;
    let client = Client::builder().connect(&url).await.unwrap();
    // The tool is not listed yet, so the first request lacks the header.
    let result = client
        .call_tool("deploy", json!({"region": "Zürich"}))
        .await
        .unwrap();
    assert_eq!(result.content[0].as_text(), Some("deployed to Zürich"));
}

#[tokio::test]
async fn tool_with_invalid_annotations_is_neither_listed_nor_called() {
    let server = FakeServer::start(|request| match request["method"].as_str() {
        Some("tools/list") => {
            let bad = json!({"type": "object", "properties": {"x": {"type": "string", "x-mcp-header": "no spaces"}}});
            Respond::Result(json!({
                "resultType": "complete",
                "tools": [{"name": "bad", "inputSchema": bad}, {"name": "good", "inputSchema": {"type": "object"}}],
            }))
        }
        _ => Respond::text("done"),
    })
    .await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    assert_eq!(names(&client).await, ["good"]);
    let error = client
        .call_tool("bad", json!({"x": "y"}))
        .await
        .unwrap_err();
    assert_matches!(error.kind, ErrorKind::InvalidTool { .. });
    assert!(server.requests("tools/call").is_empty());
}

/// A server with a tool that has this output schema and always returns this content.
fn server_with_output_schema(
    schema: &Value,
    content: &Value,
) -> impl Fn(&Received) -> Respond + Send + Sync + 'static {
    let tool =
        json!({"name": "weather", "inputSchema": {"type": "object"}, "outputSchema": schema});
    let list = json!({"resultType": "complete", "tools": [tool], "ttlMs": 60_000, "cacheScope": "private"});
    let result = json!({"resultType": "complete", "content": [], "structuredContent": content});
    move |request| match request["method"].as_str() {
        Some("tools/list") => Respond::Result(list.clone()),
        _ => Respond::Result(result.clone()),
    }
}

#[tokio::test]
async fn result_violating_the_output_schema_is_returned_in_the_error() {
    let schema = json!({"type": "object", "properties": {"degrees": {"type": "number"}}});
    let content = json!({"degrees": "many"});
    let server = FakeServer::start(server_with_output_schema(&schema, &content)).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    // The output schema is not known yet.
    client
        .call_tool("weather", json!({}))
        .await
        .expect("a result");
    client.tools().await.expect("tools");
    let error = client.call_tool("weather", json!({})).await;
    let error = error.expect_err("the result violates the schema");
    assert!(error.pending.is_none(), "the call has completed");
    assert!(error.to_string().contains("\"/degrees\""), "{error}");
    let ErrorKind::InvalidResult { result, .. } = error.kind else {
        panic!("{error}");
    };
    assert_eq!(result["structuredContent"], content);
    assert_eq!(server.requests("tools/call").len(), 2);
    let raw = client.call(refrain_client::CallSpec::tool("weather")).await;
    let raw = raw.expect("`call` does not validate");
    assert!(client.output_schema_mismatch("weather", &raw).is_some());
    assert_eq!(client.output_schema_mismatch("another", &raw), None);
}

#[tokio::test]
async fn changed_output_schema_is_reloaded() {
    let content = json!([1]);
    let before = server_with_output_schema(&json!({"type": "object"}), &content);
    let now = server_with_output_schema(&json!({"type": "array"}), &content);
    let listed = std::sync::atomic::AtomicBool::new(false);
    let server = FakeServer::start(move |request| {
        let is_list = request["method"] == "tools/list";
        if is_list && !listed.swap(true, std::sync::atomic::Ordering::SeqCst) {
            return before(request);
        }
        now(request)
    })
    .await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    client.tools().await.expect("tools");
    let result = client
        .call_tool("weather", json!({}))
        .await
        .expect("a result");
    assert_eq!(result.structured_content, Some(content));
    assert_eq!(server.requests("tools/list").len(), 2);
    assert_eq!(server.requests("tools/call").len(), 1);
}

#[tokio::test]
async fn external_schema_references_are_not_fetched() {
    let elsewhere = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    elsewhere.set_nonblocking(true).expect("a listener");
    let address = elsewhere.local_addr().expect("an address");
    let schema = json!({"$ref": format!("http://{address}/schema.json")});
    let server = FakeServer::start(server_with_output_schema(&schema, &json!({}))).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    client.tools().await.expect("tools");
    let error = client.call_tool("weather", json!({})).await;
    let error = error.expect_err("the schema cannot be resolved");
    assert_matches!(error.kind, ErrorKind::InvalidResult { .. });
    assert!(
        error.to_string().contains("output schema is invalid"),
        "{error}"
    );
    let fetched = elsewhere.accept().expect_err("nothing is fetched");
    assert_eq!(fetched.kind(), std::io::ErrorKind::WouldBlock);
}
