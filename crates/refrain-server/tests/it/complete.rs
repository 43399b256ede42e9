//! Completion of prompt arguments and template variables.

use crate::support::{
    Request, assert_contains, expect_signal, handle, result, signals, start, until,
};
use refrain_core::{Cx, Error, Principal, Result};
use refrain_server::{
    BuildError, CompletionInput, Prompt, ResourceTemplate, Server, ServerBuilder, ServerLimits,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Review {
    language: String,
    framework: Option<String>,
    tone: Tone,
    free: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Tone {
    Friendly,
    /// To the point.
    Frank,
}

async fn review(_: Cx, _: Review) -> Result<&'static str> {
    Ok("Review this.")
}

#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct File {
    path: String,
}

async fn file(_: Cx, _: File) -> Result<&'static str> {
    Ok("text")
}

fn builder() -> ServerBuilder {
    let review = Prompt::new("review", review)
        .suggest("language", ["Python", "typescript", "pyret", "rust"])
        .complete("framework", async |input: CompletionInput| {
            if input.value == "fail" {
                return Err(Error::msg("a secret reason"));
            }
            assert_ne!(input.value, "panic", "requested panic");
            if input.value == "many" {
                return Ok((0..250).map(|n| n.to_string()).collect());
            }
            let language = input.arguments.get("language").cloned().unwrap_or_default();
            let who = input.principal.id().unwrap_or("anyone").to_owned();
            Ok(vec![format!("{}-{language}-{who}", input.value)])
        });
    let files = ResourceTemplate::new("files://{path}", "files", file)
        .suggest("path", ["readme", "license"]);
    Server::builder("complete", "1")
        .prompt(review)
        .resource_template(files)
}

fn complete(reference: Value, argument: &str, value: &str) -> Request {
    let params = json!({"argument": {"name": argument, "value": value}});
    Request::rpc("completion/complete", params).param("ref", reference)
}

fn prompt() -> Value {
    json!({"type": "ref/prompt", "name": "review"})
}

#[tokio::test]
async fn suggestions_come_from_lists_functions_and_enums() {
    let instance = start(builder()).await;
    let ask = async |request: Request| {
        let reply = instance.send(&request).await.reply();
        assert_eq!(result(&reply)["resultType"], "complete");
        result(&reply)["completion"].clone()
    };
    // Values that start with the text precede values that contain it, regardless of case.
    let found = ask(complete(prompt(), "language", "PY")).await;
    assert_eq!(
        found,
        json!({"values": ["Python", "pyret"], "total": 2, "hasMore": false})
    );
    let found = ask(complete(prompt(), "language", "t")).await;
    assert_eq!(
        found["values"],
        json!(["typescript", "Python", "pyret", "rust"])
    );
    let found = ask(complete(prompt(), "tone", "fra")).await;
    assert_eq!(found["values"], json!(["frank"]));
    let with_context = complete(prompt(), "framework", "fla")
        .param("context", json!({"arguments": {"language": "python"}}));
    assert_eq!(
        ask(with_context).await["values"],
        json!(["fla-python-anyone"])
    );
    // A known argument without a completer has no suggestions.
    let found = ask(complete(prompt(), "free", "x")).await;
    assert_eq!(found, json!({"values": [], "total": 0, "hasMore": false}));
    // A template is referenced by its URI template or by a matching URI.
    for uri in ["files://{path}", "files://anything"] {
        let reference = json!({"type": "ref/resource", "uri": uri});
        let found = ask(complete(reference, "path", "read")).await;
        assert_eq!(found["values"], json!(["readme"]));
    }
    let discovered = instance
        .send(&Request::rpc("server/discover", json!({})))
        .await;
    let discovered = discovered.reply();
    assert_eq!(
        result(&discovered)["capabilities"]["completions"],
        json!({})
    );
}

#[tokio::test]
async fn suggestions_are_limited_to_one_hundred() {
    let instance = start(builder()).await;
    let reply = instance
        .send(&complete(prompt(), "framework", "many"))
        .await
        .reply();
    let found = &result(&reply)["completion"];
    assert_eq!(found["values"].as_array().map(Vec::len), Some(100));
    assert_eq!(
        (&found["total"], &found["hasMore"]),
        (&json!(250), &json!(true))
    );
}

#[tokio::test]
async fn invalid_completion_request_names_the_problem() {
    let instance = start(builder()).await;
    let good = || complete(prompt(), "language", "p");
    for (request, expected) in [
        (
            complete(
                json!({"type": "ref/prompt", "name": "none"}),
                "language",
                "",
            ),
            "none",
        ),
        (
            complete(json!({"type": "ref/prompt"}), "language", ""),
            "ref.name",
        ),
        (
            complete(json!({"type": "ref/resource", "uri": "x://y"}), "path", ""),
            "x://y",
        ),
        (
            complete(json!({"type": "ref/resource"}), "path", ""),
            "ref.uri",
        ),
        (
            complete(json!({"type": "ref/tool", "name": "x"}), "path", ""),
            "ref.type",
        ),
        (complete(prompt(), "nothing", ""), "nothing"),
        (good().without_param("ref"), "ref"),
        (good().without_param("argument"), "argument"),
        (
            good().param("argument", json!({"name": "language"})),
            "value",
        ),
        (
            good().param("context", json!({"arguments": {"a": 1}})),
            "string",
        ),
    ] {
        let message = instance.send(&request).await.error(400, -32602);
        assert_contains(&message, &[expected]);
    }
}

#[tokio::test]
async fn failing_completer_is_an_internal_error_without_reason() {
    let instance = start(builder()).await;
    for value in ["fail", "panic"] {
        let response = instance.send(&complete(prompt(), "framework", value)).await;
        let message = response.error(200, -32603);
        assert!(!message.contains("secret"), "{message}");
    }
}

#[tokio::test]
async fn completion_takes_a_call_permit() {
    let (signals, mut received) = signals();
    let gate = signals.clone();
    let slow = Prompt::new("review", review).complete("language", move |_: CompletionInput| {
        let signals = gate.clone();
        async move {
            signals.say("started");
            signals.pass().await;
            Ok(vec!["late"])
        }
    });
    let limits = ServerLimits {
        concurrent_calls: 2,
        ..ServerLimits::default()
    };
    let builder = Server::builder("complete", "1").prompt(slow).limits(limits);
    let instance = start(builder).await;
    let request = complete(prompt(), "language", "");
    let mut busy = Vec::new();
    for _ in 0..2 {
        let mut connection = instance.connect().await;
        connection.send(&request).await;
        expect_signal(&mut received, "started").await;
        busy.push(connection);
    }
    assert_eq!(instance.server.running(), 2);
    let third = instance.send(&request).await;
    assert_contains(&third.error(503, -32603), &["2 calls"]);
    assert_eq!(third.header("retry-after"), Some("1"));
    // A disconnect releases the permit.
    busy.pop();
    until("the permit to be released", || {
        instance.server.running() <= 1
    })
    .await;
    signals.open();
    for connection in &mut busy {
        let reply = connection.response().await.reply();
        assert_eq!(result(&reply)["completion"]["values"], json!(["late"]));
    }
    instance.at_rest().await;
}

#[tokio::test]
async fn completion_method_is_unknown_without_completers() {
    let plain = Server::builder("plain", "1").prompt(Prompt::new("p", async |_: Cx| Ok("p")));
    let instance = start(plain).await;
    let request = complete(json!({"type": "ref/prompt", "name": "p"}), "a", "");
    instance.send(&request).await.error(404, -32601);
}

#[tokio::test]
async fn completer_receives_the_principal() {
    let server = builder().build().expect("the server builds");
    let request = complete(prompt(), "framework", "x");
    let reply = handle(&server, &request, Principal::new("alice")).await;
    assert_eq!(result(&reply)["completion"]["values"], json!(["x--alice"]));
}

#[test]
fn completer_for_unknown_argument_is_rejected() {
    let misspelt = Prompt::new("review", review).suggest("langauge", ["rust"]);
    let rejected = Server::builder("s", "1").prompt(misspelt).build();
    let Err(error @ BuildError::UnknownCompletion { .. }) = rejected else {
        panic!("the server was built")
    };
    assert_contains(&error.to_string(), &["review", "langauge", "language, "]);
    let template = ResourceTemplate::new("files://{path}", "files", file).suggest("file", ["x"]);
    let rejected = Server::builder("s", "1")
        .resource_template(template)
        .build();
    assert!(matches!(
        rejected,
        Err(BuildError::UnknownCompletion { .. })
    ));
}
