//! Calls that ask for input.

use super::user::{MODEL_ANSWER, ROOTS, User};
use super::{Check, Target, call, checks, final_text, none, refused, text, tool, wire};
use ::rmcp::model::{
    CallToolResponse, ErrorCode, GetPromptRequestParams, InputRequiredResult, InputResponses,
    ReadResourceRequestParams,
};
use serde_json::{Value, json};

pub(super) fn checks() -> Vec<(&'static str, Check)> {
    checks! {
        "ask: a form": form,
        "ask: a field of every kind": every_field,
        "ask: again, with the reason": again,
        "ask: declined": declined,
        "ask: cancelled": cancelled,
        "ask: a decline ends the call": decline_ends,
        "ask: the model": sampling,
        "ask: the roots": roots,
        "ask: three things in one round": three,
        "ask: one thing after the other": in_turn,
        "ask: a step before it is kept": step,
        "ask: after progress": after_progress,
        "ask: from a prompt": prompt,
        "ask: from a resource": resource,
        "ask: what the client cannot be asked": unsupported,
        "ask: only what the client can be asked": only_supported,
        "rounds by hand": by_hand,
        "a changed state is refused": tampered,
    }
}

const PREFIX: &str = "test_input_required_result_";

/// The final text of a tool call.
async fn ask(target: &Target, user: &User, name: &str) -> String {
    let client = target.connect(user.clone()).await;
    final_text(call(&client, name, none()).await)
}

async fn form(target: &Target) {
    let user = User::new([("user_name", json!({"name": "Alice"}))]);
    let text = ask(target, &user, &format!("{PREFIX}elicitation")).await;
    assert_eq!(text, "Hello, Alice!");
    let memory = user.memory();
    assert_eq!(memory.messages, ["What is your name?"]);
    let fields = json!({"name": {"type": "string"}});
    assert_eq!(memory.forms[0]["properties"], fields);
    assert_eq!(memory.forms[0]["required"], json!(["name"]));
}

fn sign_up(age: u8) -> Value {
    json!({
        "address": "alice@example.com",
        "age": age,
        "height": 1.75,
        "public": false,
        "howOften": "daily",
        "topics": ["fixes", "news"],
    })
}

async fn every_field(target: &Target) {
    let user = User::new([("sign_up", sign_up(33))]);
    let text = ask(target, &user, "test_form").await;
    let wanted = "alice@example.com, 33, 1.75, false, Daily, [Fixes, News]";
    assert_eq!(text, wanted);
    let form = &user.memory().forms[0]["properties"];
    for (field, kind) in [
        ("address", "string"),
        ("age", "integer"),
        ("height", "number"),
        ("public", "boolean"),
        ("howOften", "string"),
        ("topics", "array"),
    ] {
        assert_eq!(form[field]["type"], kind, "{field} of {form}");
    }
}

async fn again(target: &Target) {
    let user = User::new([("sign_up", sign_up(200)), ("sign_up", sign_up(33))]);
    let text = ask(target, &user, "test_form").await;
    assert!(text.starts_with("alice@example.com, 33"), "{text}");
    let memory = user.memory();
    assert_eq!(memory.asked, ["sign_up", "sign_up"]);
    let message = &memory.messages[1];
    assert!(message.contains("not accepted"), "{message}");
}

async fn declined(target: &Target) {
    let user = User::new([("user_name", json!("decline"))]);
    assert_eq!(ask(target, &user, "test_outcome").await, "declined");
    assert_eq!(user.memory().asked, ["user_name"]);
}

async fn cancelled(target: &Target) {
    let user = User::new([("user_name", json!("cancel"))]);
    assert_eq!(ask(target, &user, "test_outcome").await, "cancelled");
    assert_eq!(user.memory().asked, ["user_name"]);
}

async fn decline_ends(target: &Target) {
    let user = User::new([("user_name", json!("decline"))]);
    let client = target.connect(user.clone()).await;
    let result = call(&client, format!("{PREFIX}elicitation"), none()).await;
    assert_eq!(result.is_error, Some(true));
    assert_ne!(text(result), "");
    assert_eq!(user.memory().asked, ["user_name"]);
}

async fn sampling(target: &Target) {
    let user = User::silent();
    let text = ask(target, &user, &format!("{PREFIX}sampling")).await;
    assert_eq!(text, MODEL_ANSWER);
    let sampled = &user.memory().sampled[0];
    assert!(
        sampled
            .to_string()
            .contains("What is the capital of France?"),
        "{sampled}"
    );
}

async fn roots(target: &Target) {
    let text = ask(target, &User::silent(), &format!("{PREFIX}list_roots")).await;
    assert_eq!(text, format!("Your roots: {}", ROOTS.join(", ")));
}

async fn three(target: &Target) {
    let user = User::new([("user_name", json!({"name": "Alice"}))]);
    let text = ask(target, &user, &format!("{PREFIX}multiple_inputs")).await;
    let roots = ROOTS.join(", ");
    assert_eq!(text, format!("Alice: {MODEL_ANSWER} Your roots: {roots}"));
    let mut asked = user.memory().asked.clone();
    asked.sort();
    assert_eq!(asked, ["client_roots", "greeting", "user_name"]);
}

async fn in_turn(target: &Target) {
    let user = User::new([
        ("step1", json!({"name": "Alice"})),
        ("step2", json!({"color": "blue"})),
    ]);
    let text = ask(target, &user, &format!("{PREFIX}multi_round")).await;
    assert_eq!(text, "Alice likes blue.");
    assert_eq!(user.memory().asked, ["step1", "step2"]);
}

async fn step(target: &Target) {
    let user = User::new([("confirm", json!({"ok": true}))]);
    let text = ask(target, &user, &format!("{PREFIX}request_state")).await;
    assert_eq!(text, "state-ok, confirmed: true");
}

async fn after_progress(target: &Target) {
    let user = User::new([("user_name", json!({"name": "Alice"}))]);
    let text = ask(target, &user, "test_streaming_elicitation").await;
    assert_eq!(text, "Hello, Alice!");
    // The second round does not repeat the progress of the first.
    user.notes_until(|notes| notes.progress.len() >= 2).await;
    let progress = user.notes().progress;
    let done: Vec<f64> = progress.iter().map(|(done, ..)| *done).collect();
    assert_eq!(done, [1.0, 2.0]);
}

async fn prompt(target: &Target) {
    let user = User::new([("user_context", json!({"context": "a rainy day"}))]);
    let client = target.connect(user).await;
    let params = GetPromptRequestParams::new(format!("{PREFIX}prompt"));
    let result = client.get_prompt(params).await;
    let messages = wire(result.expect("there are messages").messages);
    let text = "Use this context: a rainy day";
    assert_eq!(messages[0]["content"]["text"], text);
}

async fn resource(target: &Target) {
    let user = User::new([("reader", json!({"name": "Alice"}))]);
    let client = target.connect(user).await;
    let params = ReadResourceRequestParams::new("test://asking");
    let result = client.read_resource(params).await;
    let contents = wire(result.expect("there are contents").contents);
    assert_eq!(contents[0]["text"], "This was written for Alice.");
}

async fn unsupported(target: &Target) {
    let user = User::silent().limited_to(json!({"elicitation": {"form": {}}}));
    let client = target.connect(user).await;
    let result = client.call_tool(tool("test_missing_capability", &none()));
    let code = ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY;
    let data = refused(result.await, code);
    assert_eq!(data, json!({"requiredCapabilities": {"sampling": {}}}));
}

async fn only_supported(target: &Target) {
    let user = User::silent().limited_to(json!({"sampling": {}, "roots": {}}));
    let text = ask(target, &user, &format!("{PREFIX}capabilities")).await;
    let roots = ROOTS.join(", ");
    assert_eq!(text, format!("greeting: {MODEL_ANSWER}; roots: {roots}"));
}

/// The answer to one ask.
fn answer(key: &str, content: &Value) -> InputResponses {
    let answer = json!({"action": "accept", "content": content});
    [(key.to_owned(), answer)].into_iter().collect()
}

/// The keys of the asks, and the state.
#[track_caller]
fn asked(response: CallToolResponse) -> (Vec<String>, String) {
    let CallToolResponse::InputRequired(InputRequiredResult {
        input_requests,
        request_state,
        ..
    }) = response
    else {
        panic!("expected asks: {response:?}");
    };
    let keys = input_requests.unwrap_or_default().into_keys().collect();
    (keys, request_state.expect("there is a state"))
}

async fn by_hand(target: &Target) {
    let client = target.connect(User::silent()).await;
    let params = || tool(format!("{PREFIX}multi_round"), &none());
    let first = client.call_tool_once(params()).await;
    let (keys, first) = asked(first.expect("the first round asks"));
    assert_eq!(keys, ["step1"]);

    let answered = params()
        .with_input_responses(answer("step1", &json!({"name": "Alice"})))
        .with_request_state(&first);
    let second = client.call_tool_once(answered).await;
    let (keys, second) = asked(second.expect("the second round asks"));
    assert_eq!(keys, ["step2"]);
    assert_ne!(first, second);

    // The same state can be used twice.
    for color in ["blue", "green"] {
        let answered = params()
            .with_input_responses(answer("step2", &json!({"color": color})))
            .with_request_state(&second);
        let last = client.call_tool_once(answered).await;
        let Ok(CallToolResponse::Complete(result)) = last else {
            panic!("expected a final result: {last:?}");
        };
        assert_eq!(final_text(result), format!("Alice likes {color}."));
    }
}

async fn tampered(target: &Target) {
    let client = target.connect(User::silent()).await;
    let params = || tool(format!("{PREFIX}tampered_state"), &none());
    let first = client.call_tool_once(params()).await;
    let (_, state) = asked(first.expect("the first round asks"));
    let changed = params()
        .with_input_responses(answer("confirm", &json!({"ok": true})))
        .with_request_state(format!("{state}-TAMPERED"));
    let result = client.call_tool_once(changed).await;
    refused(result, ErrorCode::INVALID_PARAMS);
    // The state is not valid for another call either.
    let other = tool(format!("{PREFIX}elicitation"), &none()).with_request_state(state);
    let result = client.call_tool_once(other).await;
    refused(result, ErrorCode::INVALID_PARAMS);
}
