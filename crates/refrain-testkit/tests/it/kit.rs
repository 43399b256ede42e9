//! The kit itself: when it fails a test, and which messages it can send.

use crate::shapes::weather_fleet;
use refrain::auth::Principal;
use refrain::prelude::*;
use refrain::runtime::Source;
use refrain_testkit::{Clock, Fleet, Script, ScriptedAnswer};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn weather(fleet: &Fleet) -> refrain_testkit::TestCall<'_> {
    fleet.call("get_weather", json!({"location": "Rome"}))
}

#[tokio::test]
#[should_panic(
    expected = "the script has no answer to the form \"github_login\", which asks \"Please provide"
)]
async fn unanswered_ask_fails_the_test() {
    weather(&weather_fleet()).run().await;
}

#[tokio::test]
#[should_panic(
    expected = "the call has not ended after 3 rounds; the last one asks [\"github_login\"]"
)]
async fn endless_call_fails_the_test() {
    let script = Script::new().give("github_login", ScriptedAnswer::nothing());
    weather(&weather_fleet())
        .script(script)
        .max_rounds(3)
        .run()
        .await;
}

#[tokio::test]
#[should_panic(expected = "the call ended with the error -32602: Unknown tool: no_such_tool")]
async fn text_of_an_error_panics() {
    let fleet = weather_fleet();
    fleet.call("no_such_tool", json!({})).run().await.text();
}

#[test]
#[should_panic(expected = "could not build the server")]
fn invalid_server_fails_the_test() {
    let _ = Fleet::new(|| {
        let ping = || Tool::new("ping", |_: Cx| async { ok("pong") });
        Server::builder("twice", "1.0").tool(ping()).tool(ping())
    });
}

#[tokio::test]
async fn script_scopes_reach_the_tool() {
    let fleet = Fleet::new(|| {
        let ping = Tool::new("ping", |_: Cx| async { ok("pong") });
        Server::builder("scoped", "1.0").tool(ping.scopes(["ping"]))
    });
    let call = |script: Script| fleet.call("ping", json!({})).script(script);
    let refused = call(Script::new().scopes(["pong"])).run().await;
    assert_eq!(refused.error().map(|error| error.code), Some(-32600));
    assert_eq!(
        call(Script::new().scopes(["ping"])).run().await.text(),
        "pong"
    );
}

#[tokio::test]
async fn invalid_arguments_give_an_error_result_with_the_reason() {
    let fleet = weather_fleet();
    let outcome = fleet
        .call("get_weather", json!({"location": 7}))
        .run()
        .await;
    assert!(outcome.is_error());
    assert!(outcome.text().contains("location"), "{}", outcome.text());
}

#[tokio::test]
async fn every_request_is_served_by_a_new_instance() {
    let built = Arc::new(AtomicUsize::new(0));
    let counter = built.clone();
    let fleet = Fleet::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        Server::builder("ping", "1.0").tool(Tool::new("ping", |_: Cx| async { ok("pong") }))
    });
    let before = built.load(Ordering::Relaxed);
    let outcome = fleet
        .call("ping", json!({}))
        .lose_responses([1])
        .run()
        .await;
    assert_eq!(outcome.text(), "pong");
    assert_eq!(built.load(Ordering::Relaxed) - before, 2);
}

#[tokio::test]
async fn malformed_answer_error_names_its_key() {
    let script = Script::new().give(
        "github_login",
        ScriptedAnswer::raw(json!({"action": "maybe"})),
    );
    let outcome = weather(&weather_fleet()).script(script).run().await;
    let error = outcome.error().expect("an error");
    assert_eq!(error.code, -32602);
    assert!(error.message.contains("github_login"), "{}", error.message);
}

#[tokio::test]
async fn answers_in_the_first_request_are_used() {
    let fleet = weather_fleet();
    let mut dialogue = weather(&fleet).begin();
    dialogue.request()["params"]["inputResponses"] =
        json!({"github_login": {"action": "accept", "content": {"name": "hubot"}}});
    dialogue.next().await;
    assert_eq!(
        dialogue.into_outcome().text(),
        "hubot, it is sunny in Rome."
    );
}

#[tokio::test]
async fn arbitrary_message_can_be_sent() {
    let fleet = weather_fleet();
    let anyone = Principal::anonymous;
    let replies = fleet.send(b"{", anyone()).await;
    assert_eq!(replies[0]["error"]["code"], -32700);
    let notification = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    assert!(fleet.send(notification, anyone()).await.is_empty());
    let list = json!({"jsonrpc": "2.0", "id": "a", "method": "tools/list", "params": {"_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }}});
    let replies = fleet.send(list.to_string().as_bytes(), anyone()).await;
    assert_eq!(replies[0]["id"], "a");
    assert_eq!(replies[0]["result"]["tools"][0]["name"], "get_weather");
}

#[test]
fn same_seed_gives_the_same_random_bytes() {
    let draw = |seed| {
        let clock = Clock::new(seed);
        let mut bytes = [0; 21];
        clock.fill(&mut bytes);
        let mut more = [0; 21];
        clock.fill(&mut more);
        assert_ne!(bytes, more);
        bytes
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}
