//! Scopes of the server, of tools, prompts and resources.

use crate::support::{
    Instance, Request, Signals, StdioClient, greet, login, result, signals, start, text, token,
};
use refrain_core::{Cx, Principal, Result};
use refrain_server::{
    BearerTokens, BuildError, Caller, Prompt, Resource, ResourceMetadata, ResourceTemplate, Scopes,
    Server, ServerBuilder, State, Tool,
};
use serde_json::{Value, json};
use std::sync::Arc;

const ALICE: &str = "alice-0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef";
const CAROL: &str = "carol-0123456789abcdef";
const METADATA: &str = "https://mcp.example.com/.well-known/oauth-protected-resource/mcp";

async fn write(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    signals.say("started");
    greet(cx).await
}

async fn read(_: Cx) -> Result<String> {
    Ok("read".into())
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Note {
    name: String,
}

async fn read_note(_: Cx, note: Note) -> Result<String> {
    Ok(note.name)
}

fn builder() -> ServerBuilder {
    let tokens = BearerTokens::new()
        .with_scopes("alice", ALICE, ["use", "files:write", "files:share"])
        .with_scopes("bob", BOB, ["use", "files:share"])
        .with("carol", CAROL);
    let (state, _) = signals();
    Server::builder("scopes", "1")
        .state(state)
        .tool(Tool::new("read", read))
        .tool(Tool::new("write", write).scopes(["files:write", "files:share"]))
        .prompt(Prompt::new("p", read).scopes(["files:read"]))
        .resource(Resource::new("files://a", "a", read).scopes(["files:read"]))
        .resource_template(
            ResourceTemplate::new("notes://{name}", "n", read_note).scopes(["notes"]),
        )
        .authenticator(tokens)
}

fn metadata() -> ResourceMetadata {
    ResourceMetadata::new("https://mcp.example.com/mcp", ["https://login.example.com"])
}

/// Sends a request that lacks scopes. Returns the challenge.
async fn assert_forbidden(instance: &Instance, request: &Request) -> String {
    let response = instance.send(request).await;
    response.error(403, -32600);
    let challenge = response.header("www-authenticate");
    challenge.expect("a challenge").to_owned()
}

#[tokio::test]
async fn error_lists_all_required_scopes() {
    let instance = start(builder().scopes(["use"]).resource_metadata(metadata())).await;
    let write = || Request::tool("write", json!({})).id(json!("the id"));
    let response = instance.send(&write().bearer(BOB)).await;
    let message = response.error(403, -32600);
    assert_eq!(
        message,
        "missing scope: this request requires use, files:write, files:share"
    );
    let reply = response.json();
    assert_eq!(reply["id"], "the id");
    let needed = json!(["use", "files:write", "files:share"]);
    assert_eq!(reply["error"]["data"]["requiredScopes"], needed);
    assert_eq!(
        response.header("www-authenticate"),
        Some(
            format!(
                "Bearer error=\"insufficient_scope\", scope=\"use files:write files:share\", \
                 resource_metadata=\"{METADATA}\", \
                 error_description=\"the token lacks a required scope\""
            )
            .as_str()
        )
    );
    token(&instance.send(&write().bearer(ALICE)).await.reply());
}

#[tokio::test]
async fn prompts_and_resources_require_their_scopes() {
    let instance = start(builder()).await;
    for (request, scope) in [
        (Request::prompt("p", json!({})), "files:read"),
        (Request::read("files://a"), "files:read"),
        (Request::read("notes://monday"), "notes"),
    ] {
        let challenge = assert_forbidden(&instance, &request.bearer(ALICE)).await;
        assert!(
            challenge.contains(&format!("scope=\"{scope}\"")),
            "{challenge}"
        );
    }
    // A tool without scopes is available to all authenticated callers. An unknown tool is the usual error.
    let free = Request::tool("read", json!({})).bearer(CAROL);
    assert_eq!(text(&instance.send(&free).await.reply()), "read");
    let unknown = Request::tool("no such tool", json!({})).bearer(CAROL);
    instance.send(&unknown).await.error(200, -32602);
}

#[tokio::test]
async fn suggestion_names_only_tools_that_the_caller_may_call() {
    let instance = start(builder()).await;
    for (caller, expected) in [
        (ALICE, "Unknown tool: wriite; did you mean \"write\"?"),
        (BOB, "Unknown tool: wriite"),
    ] {
        let misspelt = Request::tool("wriite", json!({})).bearer(caller);
        let message = instance.send(&misspelt).await.error(200, -32602);
        assert_eq!(message, expected);
    }
    let misspelt = Request::tool("raed", json!({})).bearer(BOB);
    let message = instance.send(&misspelt).await.error(200, -32602);
    assert_eq!(message, "Unknown tool: raed; did you mean \"read\"?");
}

#[tokio::test]
async fn scopes_of_the_server_are_required_for_every_request() {
    let instance = start(builder().scopes(["use"])).await;
    let anonymous = instance.send(&Request::tool("read", json!({}))).await;
    anonymous.error(401, -32600);
    let expected = Some("Bearer scope=\"use\"");
    assert_eq!(anonymous.header("www-authenticate"), expected);
    for request in [
        Request::rpc("tools/list", json!({})),
        Request::rpc("prompts/list", json!({})),
        Request::rpc("resources/list", json!({})),
        Request::rpc("resources/templates/list", json!({})),
        Request::rpc("server/discover", json!({})),
        Request::tool("read", json!({})),
        // Callers without scopes cannot find out which names exist.
        Request::tool("no such tool", json!({})),
        Request::read("nowhere://"),
        Request::rpc(
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "?"}, "argument": {"name": "", "value": ""}}),
        ),
    ] {
        let challenge = assert_forbidden(&instance, &request.clone().bearer(CAROL)).await;
        assert!(challenge.contains("scope=\"use\""), "{challenge}");
        let bobs = instance.send(&request.bearer(BOB)).await;
        assert!(matches!(bobs.status, 200 | 404), "{}", bobs.status);
    }
    let listen = Request::rpc("subscriptions/listen", json!({"notifications": {}}));
    let challenge = assert_forbidden(&instance, &listen.clone().bearer(CAROL)).await;
    assert!(challenge.contains("scope=\"use\""), "{challenge}");
    let mut connection = instance.connect().await;
    connection.send(&listen.bearer(BOB)).await;
    assert_eq!(connection.head().await.status, 200);
}

#[tokio::test]
async fn completions_and_subscriptions_require_scopes() {
    let template = ResourceTemplate::new("notes://{name}", "n", read_note);
    let prompt = Prompt::new("n", read_note).suggest("name", ["secret"]);
    let tokens = BearerTokens::new()
        .with_scopes("alice", ALICE, ["use", "notes", "n"])
        .with_scopes("bob", BOB, ["use"]);
    let builder = Server::builder("guarded", "1")
        .scopes(["use"])
        .resource(Resource::new("files://a", "a", read).scopes(["notes"]))
        .resource_template(template.suggest("name", ["secret"]).scopes(["notes"]))
        .prompt(prompt.scopes(["n"]))
        .authenticator(tokens);
    let instance = start(builder).await;
    let complete = |reference: Value| {
        let argument = json!({"name": "name", "value": ""});
        let params = json!({"ref": reference, "argument": argument});
        Request::rpc("completion/complete", params)
    };
    let listen = |uris: Value| {
        let filter = json!({"notifications": {"resourceSubscriptions": uris}});
        Request::rpc("subscriptions/listen", filter)
    };
    for (request, needed) in [
        (
            complete(json!({"type": "ref/prompt", "name": "n"})),
            "use n",
        ),
        (
            complete(json!({"type": "ref/resource", "uri": "notes://{name}"})),
            "use notes",
        ),
        (
            complete(json!({"type": "ref/resource", "uri": "notes://monday"})),
            "use notes",
        ),
        (listen(json!(["files://a"])), "use notes"),
        (listen(json!(["other://", "notes://monday"])), "use notes"),
    ] {
        let challenge = assert_forbidden(&instance, &request.clone().bearer(BOB)).await;
        assert!(
            challenge.contains(&format!("scope=\"{needed}\"")),
            "{challenge}"
        );
        let mut connection = instance.connect().await;
        connection.send(&request.bearer(ALICE)).await;
        assert_eq!(connection.head().await.status, 200);
    }
    let mut connection = instance.connect().await;
    connection
        .send(&listen(json!(["other://"])).bearer(BOB))
        .await;
    assert_eq!(connection.head().await.status, 200);
}

/// The check precedes the opening of the token and the handler.
#[tokio::test]
async fn scopes_are_checked_in_every_round() {
    let (state, mut received) = signals();
    let server = Server::builder("rounds", "1")
        .state(state)
        .tool(Tool::new("write", write).scopes(["files:write"]))
        .build()
        .expect("a valid server");
    let caller = |scopes| Caller {
        scopes: Scopes::parse(scopes),
        ..Principal::new("alice").into()
    };
    let receive = async |request: &Request, scopes| {
        let mut out = server.handle(&request.message(), caller(scopes)).await;
        let reply: Value = serde_json::from_slice(&out.next().await.expect("a reply")).unwrap();
        assert_eq!(out.next().await, None);
        reply
    };
    let plain = || Request::tool("write", json!({}));
    let first = receive(&plain(), "files:write").await;
    assert_eq!(received.recv().await, Some("started"));
    for again in [
        plain().again(&token(&first), login("x")),
        plain().again("nonsense", login("x")),
        plain(),
    ] {
        let rejected = receive(&again, "files:read").await;
        assert_eq!(rejected["error"]["code"], -32600, "{rejected}");
        assert_eq!(rejected["id"], 1);
    }
    assert!(received.try_recv().is_err(), "a handler ran");
    let done = receive(&plain().again(&token(&first), login("x")), "files:write").await;
    assert_eq!(text(&done), "Hello, x!");
}

#[tokio::test]
async fn broader_scope_implies_narrower_ones() {
    let rules = builder()
        .scope_implies("files:admin", ["files:write"])
        .scope_implies("files:write", ["files:read"])
        // A cycle is allowed.
        .scope_implies("files:read", ["files:admin"])
        .scope_implies("other", ["notes"]);
    let instance = start(rules).await;
    let reply = instance
        .send(&Request::read("files://a").bearer(ALICE))
        .await;
    assert_eq!(result(&reply.reply())["contents"][0]["text"], "read");
    assert_forbidden(&instance, &Request::read("files://a").bearer(BOB)).await;
    assert_forbidden(&instance, &Request::read("notes://x").bearer(ALICE)).await;
}

#[tokio::test]
async fn anonymous_http_callers_have_no_scopes_and_stdio_has_all() {
    let (state, _) = signals();
    let build = || {
        Server::builder("open", "1")
            .state(state.clone())
            .scopes(["use"])
            .tool(Tool::new("write", write).scopes(["files:write"]))
    };
    let instance = start(build()).await;
    let request = Request::tool("write", json!({})).bearer(ALICE);
    let challenge = assert_forbidden(&instance, &request).await;
    assert!(
        challenge.contains("scope=\"use files:write\""),
        "{challenge}"
    );

    let mut client = StdioClient::start(build());
    token(&client.call(&request).await);
    client.leave().await;
}

#[test]
fn invalid_scopes_are_rejected() {
    for bad in [
        "",
        "two words",
        "quo\"te",
        "back\\slash",
        "ü",
        "offline_access",
    ] {
        let tool = Tool::new("t", read).scopes(["fine", bad]);
        let prompt = Prompt::new("p", read).scopes([bad]);
        let resource = Resource::new("r://", "r", read).scopes([bad]);
        let template = ResourceTemplate::new("r://{name}", "r", read_note).scopes([bad]);
        let mut listed = metadata();
        listed.scopes_supported = vec![bad.to_owned()];
        let plain = || Server::builder("bad", "1");
        for (builder, expected_owner) in [
            (plain().tool(tool), "t"),
            (plain().prompt(prompt), "p"),
            (plain().resource(resource), "r://"),
            (plain().resource_template(template), "r://{name}"),
            (plain().scopes([bad]), "the server"),
            (plain().scope_implies(bad, ["fine"]), "the server"),
            (plain().scope_implies("fine", ["fine", bad]), "the server"),
            (plain().resource_metadata(listed), "the resource metadata"),
        ] {
            match builder.build() {
                Err(BuildError::Scope { owner, scope, .. }) => {
                    assert_eq!((owner.as_str(), scope.as_str()), (expected_owner, bad));
                }
                other => panic!("{bad:?} of {expected_owner}: {other:?}"),
            }
        }
    }
}
