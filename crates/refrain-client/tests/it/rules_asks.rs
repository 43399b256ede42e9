//! Protocol rules for asks: declared kinds, sampling, roots, URLs.

use crate::support::{FakeServer, Respond, server_asking};
use refrain_client::wire::{AskKind, Content, Role, Root, SamplingAnswer};
use refrain_client::{AskAnswer, Client, ErrorKind};
use serde_json::{Value, json};
use std::io::ErrorKind::WouldBlock;
use std::net::TcpListener;

/// A server that sends this ask once, and then completes.
async fn server_with_ask(ask: Value) -> FakeServer {
    server_asking(json!({"it": ask})).await
}

/// Makes a call, and returns the reason why its ask has no answer.
async fn unanswered_reason(client: &Client) -> String {
    let called = client.call_tool("t", json!({})).await;
    let error = called.expect_err("the ask is not answered");
    assert!(error.pending.is_some(), "the error contains the call");
    match error.kind {
        ErrorKind::Unanswered(mut asks) if asks.len() == 1 => asks.remove(0).why,
        kind => panic!("{kind}"),
    }
}

fn declared(server: &FakeServer) -> Value {
    let requests = server.requests("tools/call");
    requests[0]["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"].clone()
}

#[tokio::test]
async fn undeclared_asks_are_not_answered() {
    let message = json!({"role": "user", "content": {"type": "text", "text": "?"}});
    let url = json!({"mode": "url", "message": "?", "url": "https://example.com/"});
    for (method, params) in [
        ("roots/list", json!({})),
        (
            "sampling/createMessage",
            json!({"messages": [message], "maxTokens": 1}),
        ),
        ("elicitation/create", url),
    ] {
        let server = server_with_ask(json!({"method": method, "params": params})).await;
        let client = Client::builder()
            .on_form(|_| async { panic!("not a form") })
            .connect(&server.url)
            .await
            .unwrap();
        let why = unanswered_reason(&client).await;
        assert!(why.contains("no handler for"), "{why}");
        assert_eq!(declared(&server)["elicitation"], json!({"form": {}}));
        assert_eq!(declared(&server).get("roots"), None);
        assert_eq!(declared(&server).get("sampling"), None);
        assert_eq!(server.requests("tools/call").len(), 1);
    }
}

#[tokio::test]
async fn url_elicitation_can_be_declared_alone() {
    let server = FakeServer::start(|_| Respond::text("done")).await;
    let client = Client::builder().answer_manually([AskKind::Url]);
    let client = client.connect(&server.url).await.unwrap();
    client.call_tool("t", json!({})).await.unwrap();
    assert_eq!(declared(&server)["elicitation"], json!({"url": {}}));
}

#[tokio::test]
async fn sampling_with_tools_or_invalid_messages_is_rejected() {
    let text = json!({"type": "text", "text": "?"});
    let user = json!([{"role": "user", "content": text}]);
    let result = json!({"type": "tool_result", "toolUseId": "1", "content": []});
    let tool_use = json!({"role": "assistant", "content": {
        "type": "tool_use", "id": "1", "name": "x", "input": {},
    }});
    let tool = json!({"name": "x", "inputSchema": {"type": "object"}});
    let link = json!({"type": "resource_link", "uri": "file:///x", "name": "x"});
    for (params, word) in [
        (json!({"messages": user, "tools": [tool]}), "tools"),
        (
            json!({"messages": user, "toolChoice": {"mode": "none"}}),
            "tools",
        ),
        (
            json!({"messages": [user[0], tool_use, {"role": "user", "content": [result]}]}),
            "tools",
        ),
        (
            json!({"messages": [{"role": "system", "content": text}]}),
            "system",
        ),
        (
            json!({"messages": [{"role": "user", "content": link}]}),
            "messages[0]",
        ),
    ] {
        let mut params = params;
        params["maxTokens"] = 5.into();
        let server =
            server_with_ask(json!({"method": "sampling/createMessage", "params": params})).await;
        let client = Client::builder()
            .on_sampling(|_| async { panic!("the handler must not run") })
            .connect(&server.url)
            .await
            .unwrap();
        let why = unanswered_reason(&client).await;
        assert!(why.contains(word), "{word}: {why}");
        assert_eq!(declared(&server)["sampling"], json!({}));
    }
}

#[tokio::test]
async fn declared_sampling_with_tools_reaches_the_handler() {
    let tool = json!({"name": "x", "inputSchema": {"type": "object"}});
    let params = json!({
        "messages": [{"role": "user", "content": {"type": "text", "text": "?"}}],
        "tools": [tool], "toolChoice": {"mode": "required"}, "includeContext": "thisServer", "maxTokens": 5,
    });
    let server =
        server_with_ask(json!({"method": "sampling/createMessage", "params": params})).await;
    let tool_use = json!({"type": "tool_use", "id": "1", "name": "x", "input": {}});
    let answer = json!({"role": "assistant", "model": "m", "content": tool_use});
    let answered: SamplingAnswer = serde_json::from_value(answer).unwrap();
    let builder = Client::builder().on_sampling(move |ask| {
        assert_eq!(ask.params.tools[0].name, "x");
        assert!(ask.params.include_context.is_some());
        let answer = answered.clone();
        async { Ok(answer) }
    });
    let builder = builder.sampling_tools().sampling_context();
    let client = builder.connect(&server.url).await.unwrap();
    client.call_tool("t", json!({})).await.unwrap();
    assert_eq!(
        declared(&server)["sampling"],
        json!({"context": {}, "tools": {}})
    );
    let answer = &server.requests("tools/call")[1]["params"]["inputResponses"]["it"];
    assert_eq!(answer["content"]["name"], "x");
}

#[tokio::test]
async fn sampling_params_reach_the_handler() {
    let server = server_with_ask(json!({"method": "sampling/createMessage", "params": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "Capital?"}}],
        "modelPreferences": {"hints": [{"name": "first"}, {"name": "second"}], "costPriority": 0.3},
        "systemPrompt": "Be brief.",
        "temperature": 0.1,
        "maxTokens": 7,
        "stopSequences": ["."],
        "metadata": {"seed": 1},
    }}))
    .await;
    let client = Client::builder()
        .on_sampling(|ask| async move {
            let asked = json!(ask.params);
            let hints = json!([{"name": "first"}, {"name": "second"}]);
            assert_eq!(asked["modelPreferences"]["hints"], hints);
            assert_eq!(asked["systemPrompt"], "Be brief.");
            assert_eq!(asked["maxTokens"], 7);
            assert_eq!(asked["metadata"], json!({"seed": 1}));
            assert_eq!(ask.asker.server.as_deref(), Some("fake"));
            Ok(SamplingAnswer {
                role: Role::Assistant,
                content: vec![Content::text("Paris").into()],
                model: "m".to_owned(),
                stop_reason: Some("maxTokens".to_owned()),
            })
        })
        .connect(&server.url)
        .await
        .unwrap();
    client.call_tool("t", json!({})).await.unwrap();
    let answer = &server.requests("tools/call")[1]["params"]["inputResponses"]["it"];
    assert_eq!(answer["role"], "assistant");
    assert_eq!(answer["model"], "m");
    assert_eq!(answer["stopReason"], "maxTokens");
}

#[tokio::test]
async fn roots_must_be_unambiguous_file_uris() {
    let server = server_with_ask(json!({"method": "roots/list"})).await;
    let client_with_root = |uri: &'static str| {
        let url = server.url.clone();
        async move {
            let root = Root {
                uri: uri.to_owned(),
                name: None,
            };
            Client::builder()
                .on_roots(move |_| std::future::ready(Ok(vec![root.clone()])))
                .connect(&url)
                .await
                .unwrap()
        }
    };
    for uri in ["file:///home/ada", "file:///a%20b/..c", "file:///"] {
        let client = client_with_root(uri).await;
        client.call_tool("t", json!({})).await.unwrap();
    }
    for uri in [
        "https://example.com/",
        "/home/ada",
        "file:home",
        "file:///home/../etc",
        "file:///home/%2E%2e/etc",
        "file:///./x",
        "",
    ] {
        let why = unanswered_reason(&client_with_root(uri).await).await;
        assert!(why.contains("invalid root"), "{uri}: {why}");
    }
}

#[tokio::test]
async fn url_reaches_the_handler_unchanged_and_is_not_fetched() {
    let trap = TcpListener::bind("127.0.0.1:0").unwrap();
    trap.set_nonblocking(true).unwrap();
    let url = format!("http://{}/a/b?c=d&e=%20f#g", trap.local_addr().unwrap());
    let asked = url.clone();
    let params = json!({"mode": "url", "message": "Sign in", "url": url});
    let server = server_with_ask(json!({"method": "elicitation/create", "params": params})).await;
    let client = Client::builder()
        .on_url(move |ask| {
            assert_eq!(ask.url.as_str(), asked);
            assert_eq!(ask.message, "Sign in");
            assert_eq!(ask.asker.server.as_deref(), Some("fake"));
            assert_eq!(ask.asker.target, "t");
            async { Ok(AskAnswer::visited()) }
        })
        .connect(&server.url)
        .await
        .unwrap();
    client.call_tool("t", json!({})).await.unwrap();
    let fetched = trap.accept().map(|_| ()).map_err(|error| error.kind());
    assert_eq!(fetched, Err(WouldBlock), "the URL is not fetched");
}

#[tokio::test]
async fn debug_output_hides_private_data() {
    let secret = AskAnswer::accept(json!({"name": "Ada"})).unwrap();
    assert!(!format!("{secret:?}").contains("Ada"));
    let server = FakeServer::start(|_| Respond::Error(-32603, "no")).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let error = client.call_tool("t", json!({"name": "Ada"})).await;
    assert!(!format!("{:?}", error.unwrap_err()).contains("Ada"));
}
