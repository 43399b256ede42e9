//! Tokens: lifetime and binding.

use crate::shapes::{Login, weather_fleet};
use refrain::auth::Principal;
use refrain::prelude::*;
use refrain_testkit::{CallError, Clock, Dialogue, Fleet, Script, ScriptedAnswer};
use serde_json::json;
use std::time::{Duration, UNIX_EPOCH};

const HOUR: Duration = Duration::from_secs(3600);

fn octocat() -> Script {
    Script::new().answer("github_login", json!({"name": "octocat"}))
}

/// Runs the first round of a weather call.
async fn asked(fleet: &Fleet) -> Dialogue<'_> {
    let arguments = json!({"location": "New York"});
    let mut dialogue = fleet
        .call("get_weather", arguments)
        .script(octocat())
        .begin();
    dialogue.next().await;
    assert!(dialogue.rounds()[0].token().is_some());
    dialogue
}

/// The error that rejects the second round.
async fn refusal(mut dialogue: Dialogue<'_>) -> CallError {
    dialogue.next().await;
    dialogue
        .into_outcome()
        .error()
        .expect("the token was accepted")
}

#[tokio::test]
async fn expired_token_is_rejected() {
    let fleet = weather_fleet();
    let mut in_time = asked(&fleet).await;
    fleet.clock().advance(HOUR);
    in_time.next().await;
    assert_eq!(
        in_time.into_outcome().text(),
        "octocat, it is sunny in New York."
    );

    let late = asked(&fleet).await;
    // The lifetime of a token plus the allowed clock skew.
    fleet.clock().advance(HOUR + Duration::from_secs(31));
    assert_eq!(refusal(late).await.code, -32602);
}

#[tokio::test]
async fn token_that_expires_during_an_answer_is_rejected() {
    let clock = Clock::new(1);
    let fleet = weather_fleet().with_clock(&clock);
    let script = Script::new().react("github_login", move |_| {
        clock.advance(2 * HOUR);
        ScriptedAnswer::form(json!({"name": "octocat"}))
    });
    let call = fleet.call("get_weather", json!({"location": "New York"}));
    let outcome = call.script(script).run().await;
    assert_eq!(outcome.error().map(|error| error.code), Some(-32602));
}

#[tokio::test]
async fn token_is_bound_to_caller_tool_and_arguments() {
    let fleet = Fleet::new(|| {
        Server::builder("weather", "1.0")
            .tool(timestamps())
            .tool(Tool::new("other", |cx: Cx| async move {
                cx.elicit::<Login>("login", "Who?").await?;
                ok("other")
            }))
    });
    // The call after its first round.
    let first_round = async || {
        let script = Script::new().answer("login", json!({"name": "octocat"}));
        let call = fleet.call("timestamps", json!({}));
        let mut dialogue = call.script(script.principal("alice")).begin();
        dialogue.next().await;
        dialogue
    };
    let mut errors = Vec::new();

    let mut stolen = first_round().await;
    stolen.set_script(Script::new().principal("mallory"));
    errors.push(refusal(stolen).await);

    let mut anonymous = first_round().await;
    anonymous.set_script(Script::new());
    errors.push(refusal(anonymous).await);

    let mut other_tool = first_round().await;
    other_tool.request()["params"]["name"] = json!("other");
    errors.push(refusal(other_tool).await);

    let mut other_arguments = first_round().await;
    other_arguments.request()["params"]["arguments"] = json!({"places": 2});
    errors.push(refusal(other_arguments).await);

    let mut tampered = first_round().await;
    let token = tampered.rounds()[0].token().expect("a token").to_owned();
    let flipped = if token.ends_with('A') { "B" } else { "A" };
    let token = format!("{}{flipped}", &token[..token.len() - 1]);
    tampered.request()["params"]["requestState"] = json!(token);
    errors.push(refusal(tampered).await);

    let late = first_round().await;
    fleet.clock().advance(2 * HOUR);
    errors.push(refusal(late).await);

    assert_eq!(errors[0].code, -32602);
    assert!(
        errors.iter().all(|error| *error == errors[0]),
        "every reason gives the same error: {errors:#?}"
    );

    let mut untouched = first_round().await;
    untouched.next().await;
    assert!(!untouched.into_outcome().is_error());
}

#[tokio::test]
async fn flow_deadline_applies_to_fresh_tokens() {
    let fleet = Fleet::new(|| {
        Server::builder("weather", "1.0")
            .flow_ttl(3 * HOUR)
            .tool(Tool::new("patient", |cx: Cx| async move {
                for _ in 0..10 {
                    cx.elicit::<Login>("login", "Who?").await?;
                }
                ok("patient")
            }))
    });
    let clock = fleet.clock().clone();
    let script = Script::new().otherwise(move |_| {
        clock.advance(HOUR);
        ScriptedAnswer::form(json!({"name": "octocat"}))
    });
    let outcome = fleet.call("patient", json!({})).script(script).run().await;
    // No token was older than an hour, but the fourth came after the deadline.
    assert_eq!(outcome.error().map(|error| error.code), Some(-32602));
    assert_eq!(outcome.rounds().len(), 5);
}

#[derive(Deserialize, JsonSchema)]
struct Places {
    #[expect(dead_code, reason = "only its presence in the request matters")]
    places: Option<u32>,
}

/// Returns the seconds between its start and its end, and a random number.
#[tool]
async fn timestamps(cx: Cx, _args: Places) -> Result<String> {
    let begun = cx.now();
    let chance = cx.random();
    cx.elicit::<Login>("login", "Who?").await?;
    let ended = cx.now();
    let since = |time: std::time::SystemTime| time.duration_since(UNIX_EPOCH).map(|t| t.as_secs());
    Ok(format!("{} {}", since(ended)? - since(begun)?, chance))
}

#[tokio::test]
async fn time_and_random_values_are_journaled() {
    let fleet = Fleet::new(|| Server::builder("clock", "1.0").tool(timestamps()));
    let clock = fleet.clock().clone();
    let script = Script::new().react("login", move |_| {
        clock.advance(Duration::from_secs(90));
        ScriptedAnswer::form(json!({"name": "octocat"}))
    });
    let call = || fleet.call("timestamps", json!({})).script(script.clone());
    let outcome = call().lose_responses([2]).run().await;
    let text = outcome.text();
    let (seconds, chance) = text.split_once(' ').expect("two numbers");
    assert_eq!(seconds, "90");
    let another = call().run().await.text();
    assert!(!another.ends_with(chance), "another flow, other numbers");

    let mut repeated = call().begin();
    repeated.next().await;
    let again = repeated.request().to_string();
    repeated.next().await;
    let twice = fleet.send(again.as_bytes(), Principal::anonymous()).await;
    assert_eq!(
        twice[0]["result"]["content"][0]["text"],
        json!(repeated.into_outcome().text()),
        "one token, one number"
    );
}
