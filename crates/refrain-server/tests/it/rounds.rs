//! Calls over HTTP with each round on another instance.

use crate::support::{
    CAPABILITIES_KEY, Instance, Login, Request, Word, accept, asked, greet, keys, result, start,
    text, token,
};
use futures_util::try_join;
use refrain_core::{Cx, Error, Incomplete, KeyRing, Result};
use refrain_server::{
    Json, Prompt, Reply, Resource, ResourceTemplate, Server, ServerBuilder, Tool,
};
use refrain_wire::{ResourceContents, SamplingParams};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize, JsonSchema)]
struct Note {
    year: u16,
    name: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Gone {
    name: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Page {
    year: String,
    name: String,
}

async fn everything(cx: Cx) -> Result<Json<Value>> {
    let (login, model, roots) = try_join!(
        cx.elicit::<Login>("login", "Who?"),
        cx.sample("opinion", SamplingParams::new(9).user("Well?")),
        cx.roots("where"),
    )?;
    Ok(Json(
        json!({"name": login.name, "opinion": model.text(), "roots": roots.len()}),
    ))
}

async fn visit(cx: Cx) -> Result<String> {
    let done = || async { Ok::<_, Error>(true) };
    cx.elicit_url("visit", "Please sign in", "https://example.com/in", done)
        .await?;
    Ok("signed in".into())
}

async fn opinion(cx: Cx) -> Result<String> {
    Ok(cx
        .sample("opinion", SamplingParams::new(9).user("Well?"))
        .await?
        .text())
}

async fn count_roots(cx: Cx) -> Result<String> {
    Ok(format!("{}", cx.roots("where").await?.len()))
}

async fn careful(cx: Cx) -> Result<String> {
    match cx.can_elicit() {
        true => greet(cx).await,
        false => Ok("Hello, stranger!".into()),
    }
}

async fn explicit(cx: Cx) -> Result<Reply<String>> {
    let rounds = cx.state::<u32>()?.unwrap_or(0);
    if let Some(answer) = cx.answer("where") {
        return Ok(Reply::Complete(format!("{rounds}: {}", answer.get())));
    }
    Ok(Reply::Incomplete(
        Incomplete::new().roots("where").state(&(rounds + 1))?,
    ))
}

async fn draft(cx: Cx, word: Word) -> Result<String> {
    let login: Login = cx.elicit("login", "Who?").await?;
    Ok(format!("{} for {}", word.text, login.name))
}

async fn diary(cx: Cx) -> Result<String> {
    greet(cx).await
}

async fn page(cx: Cx, page: Page) -> Result<ResourceContents> {
    let login: Login = cx.elicit("login", "Who?").await?;
    let uri = format!("notes://{}/{}", page.year, page.name);
    let text = format!("{} of {} for {}", page.name, page.year, login.name);
    Ok(ResourceContents::text(uri, "text/markdown", text))
}

async fn numbered(_: Cx, note: Note) -> Result<String> {
    Ok(format!("{}-{}", note.year, note.name))
}

async fn broken(_: Cx) -> Result<String> {
    Err(Error::msg("the disk is full"))
}

async fn gone(_: Cx, gone: Gone) -> Result<String> {
    Err(Error::invalid_params(format!("there is no {}", gone.name)))
}

fn builder(keys: &KeyRing) -> ServerBuilder {
    Server::builder("rounds", "1")
        .tool(Tool::new("greet", greet))
        .tool(Tool::new("everything", everything))
        .tool(Tool::new("visit", visit))
        .tool(Tool::new("opinion", opinion))
        .tool(Tool::new("count_roots", count_roots))
        .tool(Tool::new("careful", careful))
        .tool(Tool::new("explicit", explicit))
        .tool(Tool::new("broken", broken))
        .prompt(Prompt::new("draft", draft))
        .prompt(Prompt::new("broken", broken))
        .resource(Resource::new("notes://diary", "diary", diary).mime_type("text/x-diary"))
        .resource(Resource::new("notes://broken", "broken", broken))
        .resource_template(ResourceTemplate::new("notes://{year}/{name}", "page", page))
        .resource_template(ResourceTemplate::new(
            "n:{year}.{name}.txt",
            "numbered",
            numbered,
        ))
        .resource_template(ResourceTemplate::new("gone:{name}", "gone", gone))
        .keys(keys.clone())
}

async fn pair() -> (Instance, Instance) {
    let keys = keys();
    (start(builder(&keys)).await, start(builder(&keys)).await)
}

/// Lets the first instance ask for a login and the second one finish.
async fn finish(first: &Instance, second: &Instance, request: Request) -> Value {
    let reply = first.send(&request).await.reply();
    assert_eq!(asked(&reply), ["login"]);
    let ask = &result(&reply)["inputRequests"]["login"];
    assert_eq!(ask["method"], "elicitation/create");
    assert_eq!(
        ask["params"]["requestedSchema"],
        json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
    );
    let again = request.again(&token(&reply), json!({"login": accept("octocat")}));
    let reply = second.send(&again.id(json!("second"))).await.reply();
    assert_eq!(
        (&reply["id"], &result(&reply)["resultType"]),
        (&json!("second"), &json!("complete"))
    );
    let info = &result(&reply)["_meta"]["io.modelcontextprotocol/serverInfo"];
    assert_eq!(info, &json!({"name": "rounds", "version": "1"}));
    reply
}

#[tokio::test]
async fn tool_asks_on_one_instance_and_finishes_on_another() {
    let (first, second) = pair().await;
    let reply = finish(&first, &second, Request::tool("greet", json!({}))).await;
    assert_eq!(text(&reply), "Hello, octocat!");
}

#[tokio::test]
async fn prompt_asks_like_a_tool() {
    let (first, second) = pair().await;
    let reply = finish(
        &first,
        &second,
        Request::prompt("draft", json!({"text": "A poem"})),
    )
    .await;
    let message =
        json!([{"role": "user", "content": {"type": "text", "text": "A poem for octocat"}}]);
    assert_eq!(result(&reply)["messages"], message);
}

#[tokio::test]
async fn resource_asks_like_a_tool() {
    let (first, second) = pair().await;
    let reply = finish(&first, &second, Request::read("notes://diary")).await;
    let contents =
        json!([{"uri": "notes://diary", "mimeType": "text/x-diary", "text": "Hello, octocat!"}]);
    let result = result(&reply);
    assert_eq!(result["contents"], contents);
    assert_eq!(
        (&result["ttlMs"], &result["cacheScope"]),
        (&json!(0), &json!("private"))
    );
}

#[tokio::test]
async fn template_token_is_bound_to_its_variables() {
    let (first, second) = pair().await;
    let reply = finish(&first, &second, Request::read("notes://2026/july")).await;
    let contents = json!([{"uri": "notes://2026/july", "mimeType": "text/markdown",
        "text": "july of 2026 for octocat"}]);
    assert_eq!(result(&reply)["contents"], contents);

    let july = first
        .send(&Request::read("notes://2026/july"))
        .await
        .reply();
    let june = Request::read("notes://2026/june").again(&token(&july), json!({}));
    second.send(&june).await.error(200, -32602);
    for unknown in [
        "notes://2026/",
        "notes://2026/a/b",
        "notes:///x",
        "n:1..txt",
        "n:1.a.txt.x",
    ] {
        let response = first.send(&Request::read(unknown)).await;
        assert!(response.error(200, -32602).contains(unknown));
        assert_eq!(response.json()["error"]["data"]["uri"], unknown);
    }
    let reply = first.send(&Request::read("n:7.a.txt")).await.reply();
    assert_eq!(result(&reply)["contents"][0]["text"], "7-a");
}

#[tokio::test]
async fn concurrent_asks_are_sent_together() {
    let (first, second) = pair().await;
    let plain = || Request::tool("everything", json!({}));
    let reply = first.send(&plain()).await.reply();
    assert_eq!(asked(&reply), ["login", "opinion", "where"]);
    let requests = &result(&reply)["inputRequests"];
    assert_eq!(requests["where"], json!({"method": "roots/list"}));
    assert_eq!(requests["opinion"]["method"], "sampling/createMessage");
    assert_eq!(requests["opinion"]["params"]["maxTokens"], 9);

    // Answers may arrive in several rounds. Answered asks are not repeated.
    let opinion =
        json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "fine"}});
    let some = json!({"where": {"roots": [{"uri": "file:///a"}]}, "login": accept("ann")});
    let reply = second
        .send(&plain().again(&token(&reply), some))
        .await
        .reply();
    assert_eq!(asked(&reply), ["opinion"]);
    let late = json!({"opinion": opinion, "login": accept("mallory")});
    let reply = first
        .send(&plain().again(&token(&reply), late))
        .await
        .reply();
    let content = json!({"name": "ann", "opinion": "fine", "roots": 1});
    assert_eq!(result(&reply)["structuredContent"], content);
    assert_eq!(
        serde_json::from_str::<Value>(text(&reply)).unwrap(),
        content
    );
}

#[tokio::test]
async fn answers_in_the_first_request_are_used() {
    let (first, _) = pair().await;
    let answers = json!({"login": accept("octocat"), "more": {}, "and": {"more": 1}});
    let request = Request::tool("greet", json!({})).param("inputResponses", answers);
    assert_eq!(text(&first.send(&request).await.reply()), "Hello, octocat!");
}

#[tokio::test]
async fn declined_ask_ends_the_call_and_invalid_answer_is_asked_again() {
    let (first, second) = pair().await;
    let plain = || Request::tool("greet", json!({}));
    let state = token(&first.send(&plain()).await.reply());
    for (action, expected) in [("decline", "declined"), ("cancel", "cancelled")] {
        let answers = json!({"login": {"action": action}});
        let reply = second.send(&plain().again(&state, answers)).await.reply();
        assert_eq!(result(&reply)["isError"], true);
        assert!(text(&reply).contains(expected) && text(&reply).contains("login"));
        // Prompts have no error results.
        let prompt = || Request::prompt("draft", json!({"text": "x"}));
        let asked = token(&first.send(&prompt()).await.reply());
        let answers = json!({"login": {"action": action}});
        let message = second
            .send(&prompt().again(&asked, answers))
            .await
            .error(200, -32602);
        assert!(message.contains(expected), "{message}");
    }
    let answers = json!({"login": {"action": "accept", "content": {"name": 7}}});
    let reply = second.send(&plain().again(&state, answers)).await.reply();
    let ask = result(&reply)["inputRequests"]["login"]["params"]["message"]
        .as_str()
        .unwrap();
    assert!(
        ask.starts_with("Who are you?") && ask.contains("name"),
        "{ask}"
    );
    let answers = json!({"login": accept("octocat")});
    let reply = first
        .send(&plain().again(&token(&reply), answers))
        .await
        .reply();
    assert_eq!(text(&reply), "Hello, octocat!");
}

#[tokio::test]
async fn unsupported_ask_is_never_sent() {
    let (first, _) = pair().await;
    for (tool, has, needs) in [
        ("greet", json!({}), json!({"elicitation": {"form": {}}})),
        (
            "greet",
            json!({"elicitation": {"url": {}}}),
            json!({"elicitation": {"form": {}}}),
        ),
        (
            "visit",
            json!({"elicitation": {}}),
            json!({"elicitation": {"url": {}}}),
        ),
        (
            "opinion",
            json!({"elicitation": {}, "roots": {}}),
            json!({"sampling": {}}),
        ),
        (
            "count_roots",
            json!({"elicitation": {}, "sampling": {}}),
            json!({"roots": {}}),
        ),
        ("explicit", json!({"sampling": {}}), json!({"roots": {}})),
    ] {
        let request = Request::tool(tool, json!({})).id(json!(3));
        let response = first.send(&request.meta(CAPABILITIES_KEY, has)).await;
        response.error(400, -32021);
        let reply = response.json();
        assert_eq!(
            (
                &reply["id"],
                &reply["error"]["data"]["requiredCapabilities"]
            ),
            (&json!(3), &needs)
        );
    }
    let prompt = Request::prompt("draft", json!({"text": "x"})).meta(CAPABILITIES_KEY, json!({}));
    first.send(&prompt).await.error(400, -32021);
    let read = Request::read("notes://diary").meta(CAPABILITIES_KEY, json!({}));
    first.send(&read).await.error(400, -32021);
    let checked =
        Request::tool("careful", json!({})).meta(CAPABILITIES_KEY, json!({"sampling": {}}));
    assert_eq!(
        text(&first.send(&checked).await.reply()),
        "Hello, stranger!"
    );
}

#[tokio::test]
async fn url_asks_and_explicit_style_work_over_http() {
    let (first, second) = pair().await;
    let plain = || Request::tool("visit", json!({}));
    let reply = first.send(&plain()).await.reply();
    let ask = &result(&reply)["inputRequests"]["visit"];
    let params =
        json!({"mode": "url", "message": "Please sign in", "url": "https://example.com/in"});
    assert_eq!(
        (&ask["method"], &ask["params"]),
        (&json!("elicitation/create"), &params)
    );
    let again = plain().again(&token(&reply), json!({"visit": {"action": "accept"}}));
    assert_eq!(text(&second.send(&again).await.reply()), "signed in");

    let plain = || Request::tool("explicit", json!({}));
    let one = token(&first.send(&plain()).await.reply());
    let two = token(&second.send(&plain().again(&one, json!({}))).await.reply());
    let answer = json!({"where": {"roots": []}});
    let reply = first.send(&plain().again(&two, answer)).await.reply();
    assert_eq!(text(&reply), r#"2: {"roots":[]}"#);
}

#[tokio::test]
async fn failure_is_a_result_for_tools_and_an_error_otherwise() {
    let (first, _) = pair().await;
    let reply = first
        .send(&Request::tool("broken", json!({})))
        .await
        .reply();
    assert_eq!(
        (&result(&reply)["isError"], text(&reply)),
        (&json!(true), "the disk is full")
    );
    for request in [
        Request::read("notes://broken"),
        Request::prompt("broken", json!({})),
    ] {
        let message = first.send(&request).await.error(200, -32603);
        assert_eq!(message, "the disk is full");
    }
    // A handler reports a missing resource as an error.
    let message = first
        .send(&Request::read("gone:x"))
        .await
        .error(200, -32602);
    assert_eq!(message, "there is no x");
}

#[tokio::test]
async fn reply_has_the_id_of_its_request() {
    let (first, _) = pair().await;
    for id in [
        json!(0),
        json!(-7),
        json!("x\"\n\u{1F600}"),
        json!(""),
        json!(u64::MAX),
    ] {
        let reply = first
            .send(&Request::tool("greet", json!({})).id(id.clone()))
            .await
            .reply();
        assert_eq!(reply["id"], id);
    }
}

#[tokio::test]
async fn explain_as_adds_the_round_header() {
    let keys = keys();
    let silent = start(builder(&keys)).await;
    let explaining = start(builder(&keys).explain_as("a")).await;
    let plain = || Request::tool("greet", json!({}));
    assert_eq!(silent.send(&plain()).await.header("refrain-round"), None);
    let response = explaining.send(&plain()).await;
    let state = token(&response.reply());
    let header = format!(
        "instance=a; round=1; replayed=0; steps=0; token={}",
        state.len()
    );
    assert_eq!(response.header("refrain-round"), Some(header.as_str()));
    let again = plain().again(&state, json!({"login": accept("octocat")}));
    let header = "instance=a; round=2; replayed=1; steps=0; token=0";
    assert_eq!(
        explaining.send(&again).await.header("refrain-round"),
        Some(header)
    );
}
