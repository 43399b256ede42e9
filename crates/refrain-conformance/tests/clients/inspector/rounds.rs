//! Calls that ask for input.

use super::{Check, call, checks, final_text, read, run, run_failing};
use refrain_testkit::net::mcpdo::Mcpdo;
use serde_json::{Value, json};

pub(super) fn checks() -> Vec<(&'static str, Check)> {
    checks! {
        "ask: a form": form,
        "ask: a field of every kind": every_field,
        "ask: again, with the reason": again,
        "ask: declined": declined,
        "ask: cancelled": cancelled,
        "ask: a decline ends the call": decline_ends,
        "ask: a URL": url,
        "ask: the roots": roots,
        "ask: one thing after the other": in_turn,
        "ask: a step before it is kept": step,
        "ask: from a prompt": prompt,
        "ask: from a resource": resource,
        "ask: what the client cannot be asked": unsupported,
        "ask: only what the client can be asked": only_supported,
    }
}

const ROUND: &str = "test_input_required_result_";

/// An elicitation that waits for the user.
struct PendingElicitation(Value);

impl PendingElicitation {
    #[track_caller]
    fn new(output: &Value) -> Self {
        let pending = &output["elicitationPending"];
        assert!(pending.is_object(), "{output} asks for nothing");
        Self(pending.clone())
    }

    /// Answers it and returns the result.
    async fn answer(&self, mcpdo: &Mcpdo, answer: &str) -> Value {
        let id = self.0["elicitationId"].as_str().expect("it has an id");
        run(mcpdo, &["elicitation/respond", id, answer]).await
    }
}

async fn ask(mcpdo: &Mcpdo, tool: &str) -> PendingElicitation {
    PendingElicitation::new(&call(mcpdo, tool).await)
}

async fn form(mcpdo: &Mcpdo) {
    let pending = ask(mcpdo, &format!("{ROUND}elicitation")).await;
    assert_eq!(pending.0["message"], "What is your name?");
    let schema = &pending.0["requestedSchema"];
    assert_eq!(schema["properties"], json!({"name": {"type": "string"}}));
    let result = pending.answer(mcpdo, r#"{"name":"Alice"}"#).await;
    assert_eq!(final_text(&result), "Hello, Alice!");
}

fn sign_up(age: u8) -> String {
    let answers = json!({
        "address": "alice@example.com",
        "age": age,
        "height": 1.75,
        "public": false,
        "howOften": "daily",
        "topics": ["fixes", "news"],
    });
    answers.to_string()
}

const SIGNED_UP: &str = "alice@example.com, 33, 1.75, false, Daily, [Fixes, News]";

async fn every_field(mcpdo: &Mcpdo) {
    let pending = ask(mcpdo, "test_form").await;
    let result = pending.answer(mcpdo, &sign_up(33)).await;
    assert_eq!(final_text(&result), SIGNED_UP);
}

async fn again(mcpdo: &Mcpdo) {
    let pending = ask(mcpdo, "test_form").await;
    let pending = PendingElicitation::new(&pending.answer(mcpdo, &sign_up(200)).await);
    let message = pending.0["message"].as_str().expect("it has a message");
    assert!(message.contains("not accepted"), "{message}");
    let result = pending.answer(mcpdo, &sign_up(33)).await;
    assert_eq!(final_text(&result), SIGNED_UP);
}

async fn declined(mcpdo: &Mcpdo) {
    let pending = ask(mcpdo, "test_outcome").await;
    let result = pending.answer(mcpdo, "--decline").await;
    assert_eq!(final_text(&result), "declined");
}

async fn cancelled(mcpdo: &Mcpdo) {
    let pending = ask(mcpdo, "test_outcome").await;
    let result = pending.answer(mcpdo, "--cancel").await;
    assert_eq!(final_text(&result), "cancelled");
}

async fn decline_ends(mcpdo: &Mcpdo) {
    let pending = ask(mcpdo, &format!("{ROUND}elicitation")).await;
    let id = pending.0["elicitationId"].as_str().expect("it has an id");
    let output = mcpdo.run(&["elicitation/respond", id, "--decline"]).await;
    assert_eq!(output.status, Some(5), "{output:?}");
    assert_eq!(output.out["isError"], true);
}

async fn url(mcpdo: &Mcpdo) {
    let pending = ask(mcpdo, "test_url").await;
    assert_eq!(pending.0["mode"], "url");
    assert_eq!(pending.0["url"], "https://example.com/consent");
    let result = pending.answer(mcpdo, "--done").await;
    assert_eq!(final_text(&result), "The page was opened.");
}

const ROOTS: &str = r#"[{"uri":"file:///srv/one"},{"uri":"file:///srv/two"}]"#;

async fn roots(mcpdo: &Mcpdo) {
    run(mcpdo, &["roots/set", "--roots-json", ROOTS]).await;
    let result = call(mcpdo, &format!("{ROUND}list_roots")).await;
    let text = "Your roots: file:///srv/one, file:///srv/two";
    assert_eq!(final_text(&result), text);
}

async fn in_turn(mcpdo: &Mcpdo) {
    let pending = ask(mcpdo, &format!("{ROUND}multi_round")).await;
    assert_eq!(pending.0["message"], "Step 1: What is your name?");
    let pending = PendingElicitation::new(&pending.answer(mcpdo, r#"{"name":"Alice"}"#).await);
    let message = "Step 2: What is your favorite color?";
    assert_eq!(pending.0["message"], message);
    let result = pending.answer(mcpdo, r#"{"color":"blue"}"#).await;
    assert_eq!(final_text(&result), "Alice likes blue.");
}

async fn step(mcpdo: &Mcpdo) {
    let pending = ask(mcpdo, &format!("{ROUND}request_state")).await;
    let result = pending.answer(mcpdo, r#"{"ok":true}"#).await;
    assert_eq!(final_text(&result), "state-ok, confirmed: true");
}

async fn prompt(mcpdo: &Mcpdo) {
    let output = run(mcpdo, &["prompts/get", &format!("{ROUND}prompt")]).await;
    let answer = r#"{"context":"a rainy day"}"#;
    let result = PendingElicitation::new(&output).answer(mcpdo, answer).await;
    let text = "Use this context: a rainy day";
    assert_eq!(result["messages"][0]["content"]["text"], text);
}

async fn resource(mcpdo: &Mcpdo) {
    let output = read(mcpdo, "test://asking").await;
    let result = PendingElicitation::new(&output)
        .answer(mcpdo, r#"{"name":"Alice"}"#)
        .await;
    let text = "This was written for Alice.";
    assert_eq!(result["contents"][0]["text"], text);
}

async fn unsupported(mcpdo: &Mcpdo) {
    let error = run_failing(mcpdo, &["tools/call", "test_missing_capability"]).await;
    assert!(error.contains("sampling"), "{error}");
}

async fn only_supported(mcpdo: &Mcpdo) {
    run(mcpdo, &["roots/set", "--roots-json", ROOTS]).await;
    let pending = ask(mcpdo, &format!("{ROUND}capabilities")).await;
    let result = pending.answer(mcpdo, r#"{"name":"Alice"}"#).await;
    let text = "name: Alice; roots: file:///srv/one, file:///srv/two";
    assert_eq!(final_text(&result), text);
}
