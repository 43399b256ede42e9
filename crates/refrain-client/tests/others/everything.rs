//! `@modelcontextprotocol/server-everything`, revision 2025-11-25, over standard input and output.

use crate::server::Target;
use crate::user::{MODEL_TEXT, User};
use refrain_client::wire::{Filter, Reference, ResourceContents, ToolResult};
use refrain_client::{AskAnswer, Client, ServerChange};
use refrain_testkit::net::sdk_programs::EVERYTHING;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::timeout;

/// The timeout of each step.
const TEST_TIME: Duration = Duration::from_secs(120);

async fn connect(user: &User) -> Client {
    let client = Target::Stdio(EVERYTHING).connect(user.client());
    let client = timeout(TEST_TIME, client)
        .await
        .expect("connecting ends in time");
    client.expect("the server accepts the client")
}

/// Calls a tool, and returns the text of its result.
async fn call(client: &Client, tool: &str, arguments: Value) -> String {
    let called = timeout(TEST_TIME, client.call_tool(tool, arguments)).await;
    let result: ToolResult = called.expect("the call ends in time").expect("a result");
    assert!(!result.is_error, "{result:?}");
    let texts = result.content.iter().filter_map(|block| block.as_text());
    texts.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn tools_prompts_and_resources_work() {
    let client = connect(&User::default()).await;
    assert_eq!(client.server().version, "2025-11-25");
    assert_eq!(client.server().name(), Some("Everything Reference Server"));

    let tools = client.tools().await.expect("there are tools");
    assert!(
        tools
            .iter()
            .any(|tool| tool.name == "trigger-elicitation-request")
    );
    assert_eq!(
        call(&client, "echo", json!({"message": "hi"})).await,
        "Echo: hi"
    );
    let sum = call(&client, "get-sum", json!({"a": 2, "b": 3})).await;
    assert!(sum.contains('5'), "{sum}");

    let prompts = client.prompts().await.expect("there are prompts");
    assert!(prompts.iter().any(|prompt| prompt.name == "simple-prompt"));
    let prompt = client.get_prompt("simple-prompt", json!({})).await;
    assert!(!prompt.expect("a prompt").messages.is_empty());

    let resources = client.resources().await.expect("there are resources");
    let read = client.read_resource(&resources[0].uri).await;
    let contents = read.expect("a resource").contents;
    assert!(matches!(&contents[0], ResourceContents::Text { text, .. } if !text.is_empty()));
}

#[tokio::test]
async fn form_with_every_field_kind_is_answered() {
    let user = User::default();
    let client = connect(&user).await;
    let ask = "trigger-elicitation-request";
    user.set_answers(json!({
        "name": "Ada",
        "check": true,
        "email": "ada@example.com",
        "homepage": "https://example.com/ada",
        "birthdate": "1815-12-10",
        "number": 2.5,
        "untitledMultipleSelectEnum": ["Piano", "Bass"],
    }));
    let text = call(&client, ask, json!({})).await;
    for line in [
        "- Name: Ada",
        "- Agreed to terms: true",
        "- Email: ada@example.com",
        "- Homepage: https://example.com/ada",
        "- Birthdate: 1815-12-10",
        "- Favorite Integer: 42",
        "- Favorite Number: 2.5",
        "\"titledSingleSelectEnum\": \"hero-1\"",
        "\"legacyTitledEnum\": \"pet-1\"",
        "\"Piano\"",
    ] {
        assert!(text.contains(line), "{line} is missing: {text}");
    }
    for (answer, expected) in [
        (AskAnswer::Decline, "declined"),
        (AskAnswer::Cancel, "cancelled"),
    ] {
        user.set_only_answer(answer);
        let text = call(&client, ask, json!({})).await;
        assert!(text.contains(expected), "{text}");
    }
}

/// The first visit is required by an error; the repeated call asks for a second one.
#[tokio::test]
async fn visit_required_by_an_error_is_answered() {
    let user = User::default();
    let client = connect(&user).await;
    user.set_answers(json!({}));
    let arguments = json!({"url": "https://example.com/pay", "errorPath": true});
    let text = call(&client, "trigger-url-elicitation", arguments).await;
    assert!(
        text.contains("User completed the URL elicitation"),
        "{text}"
    );
    let asked = user.take_asked();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(
        asked
            .iter()
            .any(|asked| asked.ends_with("https://example.com/pay"))
    );
    assert!(
        asked
            .iter()
            .any(|asked| asked.contains("https://modelcontextprotocol.io"))
    );
}

/// The server also asks for the roots outside of calls, which is rejected.
#[tokio::test]
async fn sampling_and_roots_are_answered() {
    let user = User::default();
    let client = connect(&user).await;
    user.set_answers(json!({}));
    let question = json!({"prompt": "Which wine?", "maxTokens": 10});
    let text = call(&client, "trigger-sampling-request", question).await;
    assert!(text.contains(MODEL_TEXT), "{text}");
    assert!(user.take_asked()[0].contains("Which wine?"));
    let text = call(&client, "get-roots-list", json!({})).await;
    assert!(text.contains("the garden"), "{text}");
}

#[tokio::test]
async fn changes_and_completions_work() {
    let client = connect(&User::default()).await;
    let resources = client.resources().await.expect("there are resources");
    let wanted = Filter {
        uris: vec![resources[0].uri.clone()],
        ..Filter::default()
    };
    let mut changes = client.listen(&wanted).await.expect("a subscription");
    assert_eq!(*changes.granted(), wanted);
    call(&client, "toggle-subscriber-updates", json!({})).await;
    let change = timeout(TEST_TIME, changes.next()).await;
    let change = change.expect("a change in time").expect("a change");
    assert_eq!(change, Some(ServerChange::Resource(wanted.uris[0].clone())));

    let prompt = Reference::Prompt("completable-prompt".into());
    let context = BTreeMap::from([("department".to_owned(), "Sales".to_owned())]);
    let completed = client.complete(&prompt, "name", "E", &context).await;
    assert_eq!(completed.expect("suggestions").values, ["Eve"]);
    client.ping().await.expect("a pong");
}

#[tokio::test]
async fn progress_is_reported() {
    let steps = Arc::new(Mutex::new(Vec::new()));
    let recorder = Arc::clone(&steps);
    let client = User::default().client().on_progress(move |progress| {
        let mut steps = recorder.lock().expect("the lock is not poisoned");
        steps.push(progress.progress);
    });
    let client = Target::Stdio(EVERYTHING).connect(client).await;
    let client = client.expect("the server accepts the client");
    let arguments = json!({"duration": 0.2, "steps": 4});
    let text = call(&client, "trigger-long-running-operation", arguments).await;
    assert!(text.contains("completed"), "{text}");
    let steps = steps.lock().expect("the lock is not poisoned");
    assert_eq!(*steps, [1.0, 2.0, 3.0, 4.0]);
}
