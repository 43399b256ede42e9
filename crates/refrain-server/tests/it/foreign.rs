//! Entries, results, errors and `_meta` that a proxy passes on between its clients and other servers.
//!
//! Messages that do not match the schema contain the member `x-foreign`, so that they are not recorded.

use crate::support::tasks::{TASKS_EXTENSION, about, eager};
use crate::support::{
    CAPABILITIES_KEY, Instance, Request, asked, assert_contains, legacy, result, start, text,
    token, within,
};
use refrain_core::{Cx, Error, Result};
use refrain_server::{
    BuildError, Prompt, RawResult, Resource, ResourceTemplate, Server, ServerBuilder, Tool,
};
use refrain_store::MemoryStore;
use refrain_wire::client::AsSent;
use refrain_wire::{Cache, Icon};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

fn sent<T: DeserializeOwned>(json: &str) -> AsSent<T> {
    AsSent::read(serde_json::from_str(json).expect("JSON")).expect("an entry")
}

fn object(value: Value) -> Map<String, Value> {
    serde_json::from_value(value).expect("an object")
}

/// Returns its arguments as a raw result.
async fn reflect(_: Cx, arguments: Map<String, Value>) -> Result<RawResult> {
    Ok(RawResult(arguments))
}

async fn empty(_: Cx) -> Result<RawResult> {
    Ok(RawResult(Map::new()))
}

/// A session of a client of 2025-03-26.
async fn earliest(instance: &Instance) -> legacy::Session {
    legacy::Session::open_with(instance.address, "2025-03-26", &json!({}), &[]).await
}

async fn list(instance: &Instance, method: &str) -> String {
    let response = instance.send(&Request::rpc(method, json!({}))).await;
    response.reply().to_string()
}

const TOOL: &str = r#"{"x-foreign":{"b":1,"a":2},"name":"theirs","title":"T","inputSchema":{"type":"object","x-kept":true},"outputSchema":{"type":"object","required":["n"]},"annotations":{"readOnlyHint":"malformed"},"icons":[{"src":"i","sizes":"48x48"}],"execution":{"taskSupport":"required","x-mode":7},"_meta":{"com.example/k":[1]},"x-big":123456789012345678901234567890}"#;

#[tokio::test]
async fn foreign_entry_is_listed_as_sent() {
    let prompt = r#"{"name":"theirs","x-more":null,"arguments":[{"name":"a","x-deep":1}]}"#;
    let resource = r#"{"uri":"x://theirs","name":"theirs","size":3,"x-more":[{"y":0.10}]}"#;
    let template = r#"{"uriTemplate":"x://{id}","name":"theirs","x-more":{}}"#;
    let builder = Server::builder("proxy", "1")
        .tool(Tool::new("ours", reflect).listing(&sent(TOOL)))
        .prompt(Prompt::new("ours", reflect).listing(&sent(prompt)))
        .resource(Resource::new("y://ours", "our name", empty).listing(&sent(resource)))
        .resource_template(
            ResourceTemplate::new("y://{id}", "our name", reflect).listing(&sent(template)),
        );
    let instance = start(builder).await;
    let tool = TOOL
        .replace("theirs", "ours")
        .replace(r#""taskSupport":"required","#, "");
    for (method, entry) in [
        ("tools/list", tool),
        ("prompts/list", prompt.replace("theirs", "ours")),
        (
            "resources/list",
            resource
                .replace("x://theirs", "y://ours")
                .replace("theirs", "our name"),
        ),
        (
            "resources/templates/list",
            template
                .replace("x://", "y://")
                .replace("theirs", "our name"),
        ),
    ] {
        let request = Request::rpc(method, json!({}));
        let body = instance.send(&request).await.body;
        let body = String::from_utf8(body).expect("text");
        assert!(body.contains(&entry), "{method}: {entry} in {body}");
    }
    let session = earliest(&instance).await;
    let listed = session
        .result(&legacy::request(1, "tools/list", json!({})))
        .await;
    let tool = &listed["tools"][0];
    assert_eq!(tool["x-foreign"], json!({"b": 1, "a": 2}));
    assert_eq!(tool.get("outputSchema"), None, "unknown to 2025-03-26");
}

#[tokio::test]
async fn later_methods_change_a_foreign_entry() {
    let tool = Tool::new("ours", reflect)
        .listing(&sent(r#"{"name":"a","inputSchema":{},"title":"old","x-foreign":1,"execution":{"taskSupport":"optional"}}"#))
        .title("new")
        .icon(Icon::new("https://example.com/i.png"))
        .meta("com.example/k", 1);
    assert_eq!(tool.info().title.as_deref(), Some("new"));
    let instance = start(Server::builder("proxy", "1").tool(tool)).await;
    let listed = list(&instance, "tools/list").await;
    let expected = r#"{"name":"ours","inputSchema":{},"title":"new","x-foreign":1,"icons":[{"src":"https://example.com/i.png"}],"_meta":{"com.example/k":1}}"#;
    assert!(listed.contains(expected), "{listed}");
}

#[tokio::test]
async fn foreign_schemas_are_not_applied() {
    // Neither schema compiles, and the input schema has no root type.
    let entry = r#"{"name":"a","inputSchema":{"properties":{"n":{"type":"what"}}},"outputSchema":{"type":7}}"#;
    let tool = || Tool::new("ours", reflect).listing(&sent(entry));
    let instance = start(Server::builder("proxy", "1").tool(tool())).await;
    let arguments = json!({"content": [], "structuredContent": {"n": "no number"}});
    let call = Request::tool("ours", arguments.clone());
    let reply = instance.send(&call).await.reply();
    assert_eq!(
        result(&reply)["structuredContent"],
        json!({"n": "no number"})
    );
    // Schemas that are set afterwards are applied.
    let number = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let checked = tool().output_schema(number);
    let instance = start(Server::builder("proxy", "1").tool(checked)).await;
    let response = instance.send(&Request::tool("ours", arguments)).await;
    assert_contains(&response.error(200, -32603), &["output schema", "/n"]);
    let broken = tool().input_schema(json!({"type": 7}));
    let built = Server::builder("proxy", "1").tool(broken).build();
    assert!(matches!(built, Err(BuildError::Schema { .. })));
}

fn raw() -> Value {
    json!({
        "resultType": "x-other",
        "x-foreign": {"b": 1, "a": [null]},
        "content": [{"type": "x-hologram", "x": 1}, {"type": "text", "text": "t", "x-deep": 2}],
        "structuredContent": {"n": 1.5},
        "isError": true,
        "requestState": "not ours",
        "_meta": {"com.example/cost": 3, "io.modelcontextprotocol/serverInfo": {"name": "theirs"}},
    })
}

fn results() -> ServerBuilder {
    let tool = async |_: Cx| Ok(RawResult(object(raw())));
    let prompt = async |_: Cx| {
        Ok(RawResult(object(json!({
            "messages": [{"role": "x-role", "content": {"type": "x"}}], "x-foreign": 1,
        }))))
    };
    let read = async |_: Cx| {
        Ok(RawResult(object(
            json!({"contents": [{"uri": "x://r", "x-foreign": 1}]}),
        )))
    };
    let cached = async |_: Cx| Ok(RawResult(object(json!({"contents": [], "ttlMs": 7}))));
    let cache = Cache::public(Duration::from_secs(1));
    Server::builder("proxy", "1")
        .tool(Tool::new("raw", tool))
        .prompt(Prompt::new("raw", prompt))
        .resource(Resource::new("x://r", "r", read).cache(cache))
        .resource(Resource::new("x://c", "c", cached).cache(cache))
}

#[tokio::test]
async fn raw_result_keeps_all_members() {
    let instance = start(results()).await;
    let request = Request::tool("raw", json!({}));
    let mut sent = result(&instance.send(&request).await.reply()).clone();
    let meta = sent["_meta"].take();
    assert_eq!(meta["com.example/cost"], 3);
    assert_eq!(meta["io.modelcontextprotocol/serverInfo"]["name"], "proxy");
    let mut expected = raw();
    expected["resultType"] = json!("complete");
    expected["_meta"] = Value::Null;
    let expected = object(expected);
    let expected: Map<_, _> = expected
        .into_iter()
        .filter(|(name, _)| name != "requestState")
        .collect();
    assert_eq!(sent, Value::Object(expected));

    let reply = instance.send(&Request::prompt("raw", json!({}))).await;
    let reply = reply.reply();
    let sent = result(&reply);
    assert_eq!(sent["messages"][0]["role"], "x-role");
    assert_eq!(sent["x-foreign"], 1);

    let reply = instance.send(&Request::read("x://r")).await.reply();
    let sent = result(&reply);
    assert_eq!(sent["contents"], json!([{"uri": "x://r", "x-foreign": 1}]));
    assert_eq!(
        (&sent["ttlMs"], &sent["cacheScope"]),
        (&json!(1000), &json!("public"))
    );
    let reply = instance.send(&Request::read("x://c")).await.reply();
    assert_eq!(result(&reply)["ttlMs"], 7);
}

#[tokio::test]
async fn raw_result_is_downgraded_for_legacy_clients() {
    let instance = start(results()).await;
    let call = legacy::call(1, "raw", json!({}));
    let session = legacy::Session::open(&instance).await;
    let sent = session.result(&call).await;
    let mut expected = raw();
    let members = expected.as_object_mut().expect("an object");
    members.remove("resultType");
    members.remove("requestState");
    members["_meta"] = json!({"com.example/cost": 3});
    assert_eq!(sent, expected);
    let sent = earliest(&instance).await.result(&call).await;
    assert_eq!(sent.get("structuredContent"), None);
    assert_eq!(sent["content"][0], json!({"type": "x-hologram", "x": 1}));
    let read = legacy::request(2, "resources/read", json!({"uri": "x://r"}));
    let session = legacy::Session::open(&instance).await;
    let expected = json!({"contents": [{"uri": "x://r", "x-foreign": 1}]});
    assert_eq!(session.result(&read).await, expected);
}

/// Fails with the error in its arguments.
async fn fail(_: Cx, error: Map<String, Value>) -> Result<String> {
    let code = error["code"].as_str().and_then(|code| code.parse().ok());
    let data = error.get("data").cloned().unwrap_or_default();
    Err(Error::rpc(code.expect("a number"), "their message", data))
}

async fn fail_to_read(_: Cx) -> Result<String> {
    Err(Error::rpc(-32002, "their message", json!({"uri": "x://r"})))
}

fn failures() -> ServerBuilder {
    Server::builder("proxy", "1")
        .tool(Tool::new("fail", fail).input_schema(json!({"type": "object"})))
        .prompt(Prompt::new("fail", fail))
        .resource(Resource::new("x://r", "r", fail_to_read))
}

#[tokio::test]
async fn foreign_error_keeps_code_message_and_data() {
    let instance = start(failures()).await;
    let session = legacy::Session::open(&instance).await;
    for (code, expected) in [
        ("-32042", -32042),
        ("7", 7),
        ("-32602", -32602),
        ("-32601", -32601),
        ("-32002", -32002),
        // These describe a problem between a client and its own server.
        ("-32020", -32603),
        ("-32021", -32603),
        ("-32022", -32603),
        ("99999999999", -32603),
    ] {
        let arguments = json!({"code": code, "data": "theirs"});
        let error = json!({"code": expected, "message": "their message", "data": "theirs"});
        for request in [
            Request::tool("fail", arguments.clone()),
            Request::prompt("fail", arguments.clone()),
        ] {
            let response = instance.send(&request).await;
            assert_eq!(response.status, 200, "{code}");
            assert_eq!(response.reply()["error"], error);
        }
        let call = legacy::call(1, "fail", arguments);
        assert_eq!(session.post(&call).await.reply()["error"], error);
    }
    let reply = instance.send(&Request::read("x://r")).await.reply();
    assert_eq!(reply["error"]["code"], -32002);
    assert_eq!(reply["error"]["data"]["uri"], "x://r");
    let bare = Request::tool("fail", json!({"code": "5"}));
    let reply = instance.send(&bare).await.reply();
    assert_eq!(
        reply["error"],
        json!({"code": 5, "message": "their message"})
    );
}

fn with_tasks(tool: Tool) -> ServerBuilder {
    Server::builder("proxy", "1")
        .tasks(Arc::new(MemoryStore::new()), eager())
        .tool(tool)
}

/// Creates a task and waits until it has ended.
async fn ended_task(instance: &Instance, call: Request) -> Value {
    let capabilities = json!({"elicitation": {}, "extensions": {TASKS_EXTENSION: {}}});
    let reply = instance
        .send(&call.meta(CAPABILITIES_KEY, capabilities))
        .await;
    let id = result(&reply.reply())["taskId"].clone();
    let get = about("tasks/get", id.as_str().expect("a task"));
    within("the end of the task", async {
        loop {
            let reply = instance.send(&get).await.reply();
            if result(&reply)["status"] != "working" {
                return result(&reply).clone();
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

#[tokio::test]
async fn foreign_error_is_the_error_of_a_task() {
    let tool = Tool::new("fail", fail)
        .input_schema(json!({"type": "object"}))
        .task();
    let instance = start(with_tasks(tool)).await;
    let call = Request::tool("fail", json!({"code": "-32042", "data": [1]}));
    let task = ended_task(&instance, call).await;
    assert_eq!(task["status"], "failed");
    let error = json!({"code": -32042, "message": "their message", "data": [1]});
    assert_eq!(task["error"], error);
    assert_eq!(task["statusMessage"], "their message");
}

async fn raw_in_task(_: Cx) -> Result<RawResult> {
    Ok(RawResult(object(raw())))
}

#[tokio::test]
async fn raw_result_is_the_result_of_a_task() {
    let instance = start(with_tasks(Tool::new("raw", raw_in_task).task())).await;
    let task = ended_task(&instance, Request::tool("raw", json!({}))).await;
    assert_eq!(task["result"]["content"], raw()["content"]);
    assert_eq!(task["result"]["_meta"], json!({"com.example/cost": 3}));
}

/// Returns `cx.meta()` after an ask.
async fn meta_after_ask(cx: Cx) -> Result<String> {
    cx.roots("roots").await?;
    Ok(Value::Object(cx.meta()).to_string())
}

async fn meta(cx: Cx) -> Result<String> {
    Ok(Value::Object(cx.meta()).to_string())
}

fn marked(request: Request) -> Request {
    request
        .meta("com.example/tenant", json!({"id": 1}))
        .meta("plain", json!("p"))
        .meta("progressToken", json!(7))
        .meta("traceparent", json!("malformed"))
        .meta("refrain/callId", json!("id"))
        .meta("io.modelcontextprotocol/future", json!(1))
        .meta("com.mcp.tools/x", json!(1))
}

const MARKS: &str = r#"{"com.example/tenant":{"id":1},"plain":"p"}"#;

#[tokio::test]
async fn handler_sees_the_members_of_meta_that_are_not_reserved() {
    let builder = with_tasks(Tool::new("task", meta).task())
        .tool(Tool::new("meta", meta))
        .tool(Tool::new("round", meta_after_ask))
        .tool(Tool::new("live", meta_after_ask).live());
    let instance = start(builder).await;
    // The second request finds the parsed `_meta` of the first one.
    for _ in 0..2 {
        let plain = instance.send(&Request::tool("meta", json!({}))).await;
        assert_eq!(text(&plain.reply()), "{}");
        let call = marked(Request::tool("meta", json!({})));
        assert_eq!(text(&instance.send(&call).await.reply()), MARKS);
    }
    let session = legacy::Session::open(&instance).await;
    let mut call = legacy::call(1, "meta", json!({}));
    call["params"]["_meta"] = json!({"com.example/tenant": 2, "progressToken": 1});
    let sent = session.result(&call).await;
    let expected = json!(r#"{"com.example/tenant":2}"#);
    assert_eq!(sent["content"][0]["text"], expected);
    // A later round sees its own members, a live call those of its first request.
    for (tool, expected) in [("round", r#"{"com.example/round":2}"#), ("live", MARKS)] {
        let request = Request::tool(tool, json!({}));
        let first = instance.send(&marked(request.clone())).await.reply();
        assert_eq!(asked(&first), ["roots"]);
        let roots = json!({"roots": {"roots": []}});
        let second = request
            .again(&token(&first), roots)
            .meta("com.example/round", json!(2));
        assert_eq!(text(&instance.send(&second).await.reply()), expected);
    }
    let task = ended_task(&instance, marked(Request::tool("task", json!({})))).await;
    assert_eq!(task["result"]["content"][0]["text"], MARKS);
}
