//! Tools in the home `replay`: each round runs on a new instance.

use crate::restaurant::Restaurant;
use refrain_rmcp::Adapter;
use refrain_testkit::{Effects, Fleet, Script};
use serde_json::json;

/// A fleet whose tools all replay. The instances share only `effects`, which counts.
fn fleet(effects: &Effects) -> Fleet {
    let effects = effects.clone();
    Fleet::new(move || {
        let effects = effects.clone();
        let tools = [
            "reserve", "invite", "pay", "wine", "roots", "cook", "burn", "close",
        ];
        Adapter::new(Restaurant { effects })
            .replay(tools)
            .into_builder()
    })
}

fn guest_and_hour() -> Script {
    Script::new()
        .answer("elicitation-1", json!({"name": "Ada"}))
        .answer("elicitation-2", json!({"hour": 20}))
}

#[tokio::test]
async fn elicitations_pass_over_three_instances_and_the_step_runs_once() {
    let effects = Effects::new();
    let fleet = fleet(&effects);
    let call = fleet
        .call("reserve", json!({"seats": 2}))
        .script(guest_and_hour());
    let outcome = call.run().await;
    assert_eq!(outcome.text(), "2 seats for Ada at 20, note 1");
    let keys: Vec<_> = outcome
        .rounds()
        .iter()
        .map(|round| round.keys().len())
        .collect();
    assert_eq!(keys, [1, 1, 0]);
    assert_eq!(effects.of("kitchen told"), 1);
    assert_eq!(
        effects.of("run"),
        3,
        "the tool runs from the top in each round"
    );
}

#[tokio::test]
async fn asked_form_has_the_schema_and_message_of_the_tool() {
    let fleet = fleet(&Effects::new());
    let call = fleet
        .call("reserve", json!({"seats": 2}))
        .script(guest_and_hour());
    let outcome = call.run().await;
    let ask = outcome.asks().next().expect("an ask");
    assert_eq!(ask.message(), "For whom is the table?");
    let name = &ask.schema()["properties"]["name"];
    assert_eq!(name["description"], "The name for the reservation.");
}

#[tokio::test]
async fn declined_elicitation_reaches_the_tool() {
    let effects = Effects::new();
    let fleet = fleet(&effects);
    let script = Script::new().decline("elicitation-1");
    let outcome = fleet
        .call("reserve", json!({"seats": 2}))
        .script(script)
        .run()
        .await;
    assert_eq!(outcome.text(), "Nothing was reserved.");
    assert_eq!(effects.of("kitchen told"), 0);
}

#[tokio::test]
async fn invalid_answer_is_asked_again() {
    let fleet = fleet(&Effects::new());
    let script = Script::new()
        .answer("elicitation-1", json!({"name": "Ada"}))
        .answer("elicitation-2", json!({"hour": "late"}));
    let call = fleet.call("reserve", json!({"seats": 2})).script(script);
    let mut dialogue = call.begin();
    for _ in 0..2 {
        dialogue.next().await.expect("a round");
    }
    dialogue.set_script(guest_and_hour());
    let again = dialogue.next().await.expect("a round");
    assert_eq!(again.keys(), ["elicitation-2"]);
    dialogue.next().await.expect("a round");
    assert_eq!(
        dialogue.into_outcome().text(),
        "2 seats for Ada at 20, note 1"
    );
}

#[tokio::test]
async fn concurrent_elicitations_are_asked_in_one_round() {
    let fleet = fleet(&Effects::new());
    let script = Script::new()
        .answer("elicitation-1", json!({"name": "Ada"}))
        .answer("elicitation-2", json!({"name": "Bo"}));
    let outcome = fleet.call("invite", json!({})).script(script).run().await;
    assert_eq!(outcome.text(), "Ada and Bo");
    assert_eq!(
        outcome.rounds()[0].keys(),
        ["elicitation-1", "elicitation-2"]
    );
}

#[tokio::test]
async fn url_sampling_and_roots_are_answered() {
    let fleet = fleet(&Effects::new());
    let script = Script::new().consent("elicitation-1");
    let paid = fleet.call("pay", json!({})).script(script).run().await;
    assert_eq!(paid.text(), "Accept");
    assert_eq!(
        paid.asks().next().expect("an ask").url(),
        "https://example.com/pay"
    );

    let script = Script::new().sample("sampling-1", "Riesling");
    let wine = fleet.call("wine", json!({})).script(script).run().await;
    assert_eq!(wine.text(), "Riesling");

    let script = Script::new().roots(["file:///a", "file:///b"]);
    let roots = fleet.call("roots", json!({})).script(script).run().await;
    assert_eq!(roots.text(), "file:///a file:///b");
}

#[tokio::test]
async fn prompt_asks_and_continues_on_another_instance() {
    let fleet = fleet(&Effects::new());
    let script = Script::new().answer("elicitation-1", json!({"name": "Ada"}));
    let outcome = fleet
        .prompt("review", json!({"dish": "soup"}))
        .script(script)
        .run()
        .await;
    let text = &outcome.result()["messages"][0]["content"]["text"];
    assert_eq!(text, "Review soup as Ada");
    assert_eq!(outcome.rounds().len(), 2);
}

#[tokio::test]
async fn resources_and_templates_are_read() {
    let fleet = fleet(&Effects::new());
    let menu = fleet.resource("menu://today").run().await;
    assert_eq!(menu.result()["contents"][0]["text"], "soup, fish");
    let dish = fleet.resource("dish://cake").run().await;
    assert_eq!(dish.result()["contents"][0]["text"], "cake with salt");
    let missing = fleet.resource("dish://stone").run().await;
    assert_eq!(missing.error().expect("an error").code, -32602);
}

#[tokio::test]
async fn answers_of_two_callers_are_not_mixed_up() {
    let fleet = fleet(&Effects::new());
    let script = |name: &str| {
        Script::new()
            .answer("elicitation-1", json!({"name": name}))
            .answer("elicitation-2", json!({"hour": 20}))
            .principal(name)
    };
    let one = fleet
        .call("reserve", json!({"seats": 1}))
        .script(script("Ada"))
        .run();
    let two = fleet
        .call("reserve", json!({"seats": 1}))
        .script(script("Bo"))
        .run();
    let (one, two) = tokio::join!(one, two);
    assert!(one.text().starts_with("1 seats for Ada"), "{}", one.text());
    assert!(two.text().starts_with("1 seats for Bo"), "{}", two.text());
}
