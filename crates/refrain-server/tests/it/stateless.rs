//! Statelessness: a request does not depend on earlier requests or on its connection.

use crate::support::{
    CAPABILITIES_KEY, CLIENT_INFO_KEY, Guard, Request, Response, Signals, Word, asked, echo,
    echo_call, expect_signal, greet, login, result, signals, start, text, token,
};
use refrain_core::{Cx, Result};
use refrain_server::{Prompt, Resource, ResourceTemplate, Server, ServerBuilder, State, Tool};
use serde_json::{Value, json};
use std::sync::Arc;

/// Greets, and signals when it is dropped.
async fn guarded(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    let _guard = Guard(Arc::clone(&signals));
    greet(cx).await
}

async fn quote(_: Cx, word: Word) -> Result<String> {
    Ok(word.text)
}

async fn diary(cx: Cx) -> Result<String> {
    greet(cx).await
}

async fn readme(_: Cx) -> Result<&'static str> {
    Ok("read me")
}

fn builder() -> ServerBuilder {
    Server::builder("stateless", "1")
        .tool(Tool::new("echo", echo))
        .tool(Tool::new("greet", greet))
        .prompt(Prompt::new("quote", quote))
        .resource(Resource::new("docs://readme", "readme", readme))
        .resource(Resource::new("docs://diary", "diary", diary))
        .resource_template(ResourceTemplate::new("docs://old/{name}", "old", readme))
}

const LISTS: [&str; 5] = [
    "server/discover",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
];

fn greeting() -> Request {
    Request::tool("greet", json!({}))
}

fn code(response: &Response) -> Value {
    response.json()["error"]["code"].clone()
}

#[tokio::test]
async fn request_does_not_inherit_metadata_of_earlier_requests() {
    let instance = start(builder()).await;
    let mut connection = instance.connect().await;
    for _ in 0..2 {
        let capable = connection.exchange(&greeting()).await;
        assert_eq!(asked(&capable.reply()), ["login"]);
        let incapable = greeting().meta(CAPABILITIES_KEY, json!({}));
        assert_eq!(code(&connection.exchange(&incapable).await), -32021);
        let silent = greeting().without_meta(CAPABILITIES_KEY);
        assert_eq!(code(&connection.exchange(&silent).await), -32602);
        let silent = greeting().without_meta(crate::support::VERSION_KEY);
        assert_eq!(code(&connection.exchange(&silent).await), -32602);
    }
}

#[tokio::test]
async fn client_that_lost_a_capability_is_not_asked_again() {
    let instance = start(builder()).await;
    let state = token(&instance.send(&greeting()).await.reply());
    let incapable = || greeting().meta(CAPABILITIES_KEY, json!({}));
    let empty = instance.send(&incapable().again(&state, json!({}))).await;
    empty.error(400, -32021);
    // An answer that it already has is accepted.
    let reply = instance
        .send(&incapable().again(&state, login("octocat")))
        .await;
    assert_eq!(text(&reply.reply()), "Hello, octocat!");
}

#[tokio::test]
async fn client_info_has_no_effect() {
    let instance = start(builder()).await;
    let as_client = |request: Request, info: &Value| match info {
        Value::Null => request.without_meta(CLIENT_INFO_KEY),
        info => request.meta(CLIENT_INFO_KEY, info.clone()),
    };
    let clients = [
        json!({"name": "a", "version": "1"}),
        json!({"name": "admin", "version": "999", "title": "Root", "more": true}),
        Value::Null,
    ];
    let mut lists = Vec::new();
    for info in &clients {
        let state = token(&instance.send(&as_client(greeting(), info)).await.reply());
        for other in &clients {
            let again = as_client(greeting(), other).again(&state, login("octocat"));
            let reply = instance.send(&again).await.reply();
            assert_eq!(text(&reply), "Hello, octocat!");
        }
        let list = as_client(Request::rpc("tools/list", json!({})), info);
        lists.push(instance.send(&list).await.body);
    }
    lists.dedup();
    assert_eq!(lists.len(), 1);
}

#[tokio::test]
async fn unknown_metadata_is_ignored() {
    let instance = start(builder()).await;
    let request = echo_call()
        .meta(
            "io.modelcontextprotocol/unheard-of",
            json!([1, {"a": null}]),
        )
        .meta("com.example/own", json!("x"))
        .meta("plain", json!(7));
    assert_eq!(text(&instance.send(&request).await.reply()), "Echo: x");
}

#[tokio::test]
async fn lists_do_not_depend_on_earlier_requests() {
    let instance = start(builder()).await;
    let mut busy = instance.connect().await;
    for method in LISTS {
        let list = Request::rpc(method, json!({}));
        let fresh = instance.send(&list).await.body;
        for between in [
            echo_call(),
            greeting(),
            Request::tool("nope", json!({})),
            Request::read("docs://readme"),
        ] {
            busy.exchange(&between).await;
            assert_eq!(busy.exchange(&list).await.body, fresh, "{method}");
        }
    }
}

#[tokio::test]
async fn every_result_has_its_type_and_the_server_info() {
    let instance = start(builder()).await;
    let calls = [
        (echo_call(), "complete"),
        (greeting(), "input_required"),
        (Request::prompt("quote", json!({"text": "x"})), "complete"),
        (Request::read("docs://readme"), "complete"),
        (Request::read("docs://diary"), "input_required"),
    ];
    let lists = LISTS.map(|method| (Request::rpc(method, json!({})), "complete"));
    for (request, kind) in calls.into_iter().chain(lists) {
        let reply = instance.send(&request).await.reply();
        let result = result(&reply);
        assert_eq!(result["resultType"], kind, "{reply}");
        let info = &result["_meta"]["io.modelcontextprotocol/serverInfo"];
        assert_eq!(info, &json!({"name": "stateless", "version": "1"}));
    }
}

#[tokio::test]
async fn only_calls_ask_and_asking_replies_are_not_cacheable() {
    let instance = start(builder()).await;
    for method in LISTS {
        let request = Request::rpc(method, json!({})).again("nonsense", login("octocat"));
        let reply = instance.send(&request).await.reply();
        assert_eq!(result(&reply)["resultType"], "complete", "{reply}");
    }
    let reply = instance.send(&Request::read("docs://diary")).await.reply();
    assert_eq!(asked(&reply), ["login"]);
    let members = result(&reply).as_object().expect("a result is an object");
    assert!(!members.contains_key("ttlMs") && !members.contains_key("cacheScope"));
}

#[tokio::test]
async fn handler_is_dropped_between_rounds() {
    let (signals, mut received) = signals();
    let builder = builder().tool(Tool::new("guarded", guarded)).state(signals);
    let instance = start(builder).await;
    let reply = instance.send(&Request::tool("guarded", json!({}))).await;
    assert_eq!(asked(&reply.reply()), ["login"]);
    expect_signal(&mut received, "dropped").await;
    instance.at_rest().await;
}
