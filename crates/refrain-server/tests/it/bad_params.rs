//! Invalid params: metadata, names, arguments and answers.

use crate::support::{
    CAPABILITIES_KEY, CLIENT_INFO_KEY, Instance, LOG_LEVEL_KEY, Request, Response, VERSION_KEY,
    Word, asked, assert_contains, echo, echo_call, greet, start, text, token,
};
use refrain_core::{Cx, Result};
use refrain_server::{Prompt, Resource, Server, Tool};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize, JsonSchema)]
struct Order {
    item: String,
    count: u8,
    #[serde(default)]
    note: Option<String>,
}

async fn order(_: Cx, order: Order) -> Result<String> {
    Ok(format!("{} {} {:?}", order.count, order.item, order.note))
}

async fn quote(_: Cx, word: Word) -> Result<String> {
    Ok(word.text)
}

async fn readme(_: Cx) -> Result<&'static str> {
    Ok("text")
}

async fn instance() -> Instance {
    let builder = Server::builder("bad", "1")
        .tool(Tool::new("echo", echo))
        .tool(Tool::new("greet", greet))
        .tool(Tool::new("order", order))
        .prompt(Prompt::new("quote", quote))
        .resource(Resource::new("docs://readme", "readme", readme));
    start(builder).await
}

#[tokio::test]
async fn meta_must_contain_revision_and_capabilities() {
    let instance = instance().await;
    let plain = || echo_call();
    let list = || Request::rpc("tools/list", json!({}));
    for (request, word) in [
        (plain().without_param("_meta"), "_meta"),
        (list().without_param("_meta"), "_meta"),
        (
            Request::rpc("server/discover", json!({})).without_param("_meta"),
            "_meta",
        ),
        (plain().param("_meta", json!([])), "_meta"),
        (plain().without_meta(VERSION_KEY), VERSION_KEY),
        (list().without_meta(VERSION_KEY), VERSION_KEY),
        (plain().meta(VERSION_KEY, json!(7)), VERSION_KEY),
        (plain().without_meta(CAPABILITIES_KEY), CAPABILITIES_KEY),
        (list().without_meta(CAPABILITIES_KEY), CAPABILITIES_KEY),
        (
            plain().meta(CAPABILITIES_KEY, json!("all")),
            CAPABILITIES_KEY,
        ),
        (
            plain().meta(CAPABILITIES_KEY, json!({"sampling": true})),
            "sampling",
        ),
        (
            plain().meta(CAPABILITIES_KEY, json!({"elicitation": {"url": 1}})),
            "elicitation.url",
        ),
        (plain().meta(CLIENT_INFO_KEY, json!("me")), CLIENT_INFO_KEY),
        (plain().meta(LOG_LEVEL_KEY, json!("loud")), LOG_LEVEL_KEY),
        (plain().meta("progressToken", json!(1.5)), "progressToken"),
        (plain().meta("refrain/callId", json!("")), "refrain/callId"),
    ] {
        let response = instance.send(&request.id(json!("mine"))).await;
        assert_contains(&response.error(400, -32602), &[word]);
        assert_eq!(response.json()["id"], "mine");
    }
    let nameless = plain().without_meta(CLIENT_INFO_KEY);
    assert_eq!(text(&instance.send(&nameless).await.reply()), "Echo: x");
}

#[tokio::test]
async fn errors_for_unknown_names_quote_the_name() {
    let instance = instance().await;
    for method in [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "tools/calls",
    ] {
        let response = instance
            .send(&Request::rpc(method, json!({})).id(json!(9)))
            .await;
        assert_contains(&response.error(404, -32601), &[method]);
        assert_eq!(response.json()["id"], 9);
    }
    // Names are case-sensitive.
    for name in ["nope", "ECHO", "Echo"] {
        let response = instance.send(&Request::tool(name, json!({}))).await;
        assert_contains(&response.error(200, -32602), &["tool", name]);
    }
    let response = instance.send(&Request::prompt("nope", json!({}))).await;
    assert_contains(&response.error(200, -32602), &["prompt", "nope"]);
    let response = instance.send(&Request::read("docs://nope")).await;
    assert_contains(&response.error(200, -32602), &["resource", "docs://nope"]);
    assert_eq!(
        response.json()["error"]["data"],
        json!({"uri": "docs://nope"})
    );
}

#[tokio::test]
async fn errors_for_malformed_params_name_the_param() {
    let instance = instance().await;
    for (request, word) in [
        (
            Request::tool("echo", json!({})).without_param("name"),
            "name",
        ),
        (
            Request::tool("echo", json!({})).param("name", json!(1)),
            "name",
        ),
        (Request::tool("echo", json!([])), "arguments"),
        (
            Request::tool("echo", json!({})).param("requestState", json!(1)),
            "requestState",
        ),
        (Request::read("docs://readme").without_param("uri"), "uri"),
        (
            Request::rpc("tools/list", json!({"cursor": "more"})),
            "cursor",
        ),
        (Request::rpc("tools/list", json!({"cursor": 1})), "cursor"),
    ] {
        assert_contains(&instance.send(&request).await.error(400, -32602), &[word]);
    }
    let prompt = Request::prompt("quote", json!({"text": 7}));
    assert_contains(
        &instance.send(&prompt).await.error(200, -32602),
        &["text", "string"],
    );
    let prompt = Request::prompt("quote", json!({}));
    assert_contains(&instance.send(&prompt).await.error(200, -32602), &["text"]);
}

#[tokio::test]
async fn invalid_arguments_are_a_tool_error_naming_the_field() {
    let instance = instance().await;
    for (arguments, words) in [
        (json!({}), vec!["item", "count", "required"]),
        (json!({"item": "pen"}), vec!["count", "required"]),
        (json!({"item": 7, "count": 1}), vec!["item", "string"]),
        (
            json!({"item": "pen", "count": "two"}),
            vec!["count", "integer"],
        ),
        (json!({"item": "pen", "count": 1.5}), vec!["count"]),
        (
            json!({"item": "pen", "count": -1}),
            vec!["count", "minimum"],
        ),
        (
            json!({"item": "pen", "count": 256}),
            vec!["count", "maximum"],
        ),
        (json!({"item": "pen", "count": 1, "note": {}}), vec!["note"]),
    ] {
        let reply = instance
            .send(&Request::tool("order", arguments))
            .await
            .reply();
        assert_eq!(reply["result"]["isError"], true, "{reply}");
        assert_contains(text(&reply), &["order"]);
        assert_contains(text(&reply), &words);
    }
    let fits = Request::tool("order", json!({"item": "pen", "count": 2}));
    let reply = instance.send(&fits).await.reply();
    assert_eq!(
        (text(&reply), &reply["result"]["isError"]),
        ("2 pen None", &json!(false))
    );
    // Missing arguments are empty ones. A tool without arguments rejects others.
    let none = Request::tool("order", json!({})).without_param("arguments");
    assert_eq!(
        instance.send(&none).await.reply()["result"]["isError"],
        true
    );
    let extra = instance
        .send(&Request::tool("greet", json!({"loud": true})))
        .await
        .reply();
    assert_eq!(extra["result"]["isError"], true);
    assert_contains(text(&extra), &["loud"]);
}

#[tokio::test]
async fn errors_for_malformed_answers_name_the_ask() {
    let instance = instance().await;
    let plain = || Request::tool("greet", json!({}));
    let first = instance.send(&plain()).await.reply();
    let message = async |answers: Value, status: u16, later: bool| {
        let request = plain().param("inputResponses", answers);
        let request = match later {
            true => request.param("requestState", json!(token(&first))),
            false => request,
        };
        let response: Response = instance.send(&request).await;
        response.error(status, -32602)
    };
    for later in [false, true] {
        for answers in [json!([]), json!("x"), json!(7), Value::Null] {
            assert_contains(&message(answers, 400, later).await, &["inputResponses"]);
        }
        for answer in [json!(12345), Value::Null, json!("x"), json!([])] {
            let message = message(json!({"login": answer}), 400, later).await;
            assert_contains(&message, &["inputResponses", "login", "object"]);
        }
        for (answer, word) in [
            (json!({}), "action"),
            (json!({"action": "maybe"}), "maybe"),
            (json!({"action": 1}), "action"),
            (json!({"action": "accept", "content": "x"}), "content"),
            (json!({"action": "accept", "content": []}), "content"),
        ] {
            let message = message(json!({"login": answer}), 200, later).await;
            assert_contains(&message, &["inputResponses", "login"]);
            if word != "action" || answer != json!({"action": 1}) {
                assert_contains(&message, &[word]);
            }
        }
    }
    // An answer without an ask is ignored.
    let stray = plain().again(&token(&first), json!({"other": {"any": "thing"}}));
    assert_eq!(asked(&instance.send(&stray).await.reply()), ["login"]);
}
