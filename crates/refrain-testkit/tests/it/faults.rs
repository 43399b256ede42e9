//! Lost responses, duplicated requests and draining instances.

use crate::shapes::{Login, Tracker, work_items};
use refrain::prelude::*;
use refrain_testkit::{Effects, Fleet, KeepResponse, ReceivedAsk, Script};
use serde_json::{Value, json};

fn resolve_as_duplicate() -> (Value, Script) {
    let arguments = json!({"workItemId": 4522, "fields": {"System.State": "Resolved"}});
    let script = Script::new()
        .answer("resolution", json!({"resolution": "Duplicate"}))
        .answer("duplicate_of", json!({"duplicateOfId": 4301}));
    (arguments, script)
}

/// Reserves, asks, and charges.
#[tool]
async fn buy(cx: Cx, effects: State<Effects>) -> Result<String> {
    let reserve = |key| async { ok((effects.record(format!("reserve {key}")), key)) };
    let (_, reserved): (usize, String) = cx.step_with_key("reserve", reserve).await?;
    let login: Login = cx.elicit("who", "Who pays?").await?;
    let charge = |key| async { ok((effects.record(format!("charge {key}")), key)) };
    let (_, charged): (usize, String) = cx.step_with_key("charge", charge).await?;
    assert_ne!(reserved, charged, "two steps have two keys");
    Ok(format!("{} paid", login.name))
}

/// Runs three steps and two asks in turn, and records each run of a step.
#[tool]
async fn count(cx: Cx, effects: State<Effects>) -> Result<String> {
    cx.step("first", async { ok(effects.record("first")) })
        .await?;
    cx.elicit::<Login>("who", "Who?").await?;
    cx.step("second", async { ok(effects.record("second")) })
        .await?;
    cx.elicit::<Login>("again", "Who else?").await?;
    cx.step("third", async { ok(effects.record("third")) })
        .await?;
    Ok("counted".into())
}

/// Charges a card, and asks for another one if the charge is declined.
#[tool]
async fn charge(cx: Cx, effects: State<Effects>) -> Result<String> {
    let refused = async {
        effects.record("first card");
        Err::<(), _>(Error::msg("the card was refused"))
    };
    let Err(refused) = cx.step("first", refused).await else {
        return Ok("charged".into());
    };
    let other: Login = cx.elicit("who", format!("{refused}. Another?")).await?;
    Ok(format!("charged to {}", other.name))
}

/// A long computation: the sum of the numbers up to ten.
#[tool]
async fn sum(cx: Cx, effects: State<Effects>) -> Result<String> {
    let (mut next, mut sum) = cx.resume("sum")?.unwrap_or((1u64, 0u64));
    while next <= 10 {
        effects.record(format!("add {next}"));
        sum += next;
        next += 1;
        cx.checkpoint("sum", &(next, sum)).await?;
    }
    Ok(format!("{sum}"))
}

fn shop(effects: &Effects) -> Fleet {
    let effects = effects.clone();
    Fleet::new(move || {
        Server::builder("shop", "1.0")
            .state(effects.clone())
            .tool(buy())
            .tool(count())
            .tool(charge())
            .tool(sum())
    })
}

fn payer() -> Script {
    Script::new()
        .answer("who", json!({"name": "octocat"}))
        .answer("again", json!({"name": "hubot"}))
}

#[tokio::test]
async fn lost_response_does_not_change_the_result() {
    let tracker = Tracker::default();
    let (arguments, script) = resolve_as_duplicate();
    let outcome = work_items(&tracker)
        .call("update_work_item", arguments)
        .script(script)
        .lose_every_response()
        .run()
        .await;
    assert!(
        outcome
            .text()
            .starts_with("Bug #4522 resolved as Duplicate of Bug #4301.")
    );
    let deliveries: Vec<usize> = outcome.rounds().iter().map(|r| r.deliveries()).collect();
    assert_eq!(deliveries, [2, 2, 2]);
    let applied: Vec<usize> = tracker.0.take().into_values().collect();
    assert_eq!(applied, [2], "done twice, under one idempotency key");
}

#[tokio::test]
async fn step_does_not_run_again_once_a_token_has_its_value() {
    let effects = Effects::new();
    let fleet = shop(&effects);
    for (lost, first, second, third) in [(1, 2, 1, 1), (2, 1, 2, 1), (3, 1, 1, 2)] {
        let call = fleet.call("count", json!({})).script(payer());
        let outcome = call.lose_responses([lost]).run().await;
        assert_eq!(outcome.text(), "counted");
        let counts: Vec<usize> = effects.take().into_values().collect();
        assert_eq!(counts, [first, second, third], "with reply {lost} lost");
    }
}

#[tokio::test]
async fn failed_step_is_not_retried() {
    let effects = Effects::new();
    let outcome = shop(&effects)
        .call("charge", json!({}))
        .script(payer())
        .lose_responses([2])
        .run()
        .await;
    assert_eq!(outcome.text(), "charged to octocat");
    let asked: Vec<&str> = outcome.asks().map(ReceivedAsk::message).collect();
    assert_eq!(asked, ["the card was refused. Another?"]);
    assert_eq!(effects.of("first card"), 1);
}

#[tokio::test]
async fn duplicate_requests_are_one_flow_after_the_first_token() {
    let effects = Effects::new();
    let fleet = shop(&effects);
    for keep in [KeepResponse::First, KeepResponse::Second] {
        for together in [false, true] {
            let call = fleet.call("buy", json!({})).script(payer());
            let outcome = match together {
                true => call.race_requests(keep).run().await,
                false => call.duplicate_requests(keep).run().await,
            };
            assert_eq!(outcome.text(), "octocat paid");
            let counts = effects.take();
            let of = |name: &str| -> Vec<usize> {
                let counts = counts.iter().filter(|(key, _)| key.starts_with(name));
                counts.map(|(_, count)| *count).collect()
            };
            // Two first requests without a call id are two flows; the client continues one of them.
            assert_eq!(of("reserve"), [1, 1]);
            assert_eq!(of("charge"), [2]);
        }
    }
}

#[tokio::test]
async fn call_id_makes_a_repeated_first_request_the_same_flow() {
    let effects = Effects::new();
    let fleet = shop(&effects);
    let call = |id: &str| {
        let script = payer().call_id(id);
        fleet
            .call("buy", json!({}))
            .script(script)
            .lose_responses([1])
    };
    call("order 1").run().await;
    let first = effects.take();
    assert_eq!(first.values().copied().collect::<Vec<_>>(), [1, 2]);

    call("order 1").run().await;
    assert_eq!(effects.take(), first, "the same call, the same keys");

    call("order 2").run().await;
    let other = effects.take();
    assert!(first.keys().all(|key| !other.contains_key(key)));

    let stranger = payer().call_id("order 1").principal("mallory");
    fleet.call("buy", json!({})).script(stranger).run().await;
    let stranger = effects.take();
    assert!(
        first.keys().all(|key| !stranger.contains_key(key)),
        "a call id belongs to its caller"
    );
}

#[tokio::test]
async fn draining_instance_hands_the_flow_on() {
    let effects = Effects::new();
    let fleet = shop(&effects);
    let outcome = fleet.call("sum", json!({})).draining([1, 2]).run().await;
    assert_eq!(outcome.text(), "55");
    assert_eq!(outcome.rounds().len(), 3);
    assert!(outcome.rounds()[0].keys().is_empty());
    assert!(outcome.rounds()[0].token().is_some());
    let counts = effects.take();
    assert_eq!(counts.len(), 10);
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");

    // At most two extra rounds: clients limit a call to about ten rounds.
    let outcome = fleet.call("sum", json!({})).draining(1..=20).run().await;
    assert_eq!((outcome.text(), outcome.rounds().len()), ("55".into(), 3));
}

#[tokio::test]
async fn flow_is_handed_on_at_a_step() {
    let effects = Effects::new();
    let outcome = shop(&effects)
        .call("count", json!({}))
        .script(payer())
        .draining(1..=20)
        .run()
        .await;
    assert_eq!(outcome.text(), "counted");
    assert!(effects.take().values().all(|count| *count == 1));
    let state_only = outcome
        .rounds()
        .iter()
        .filter(|round| round.keys().is_empty() && round.token().is_some());
    assert_eq!(state_only.count(), 2);
}
