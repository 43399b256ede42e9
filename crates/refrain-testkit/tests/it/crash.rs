//! A crash at every operation of `cx`.

use crate::shapes::{Amount, Login, Tracker, work_items};
use futures_util::join;
use refrain::prelude::*;
use refrain_testkit::{Effects, Fleet, KeepResponse, Script};
use serde_json::json;
use tokio::task::yield_now;

/// Two concurrent asks and two concurrent steps, one of which fails.
#[tool]
async fn side_by_side(cx: Cx, effects: State<Effects>) -> Result<String> {
    let slow = |key| async {
        yield_now().await;
        effects.record(key);
        yield_now().await;
        ok(3)
    };
    let refused = async {
        yield_now().await;
        Err::<u32, _>(Error::msg("no stock"))
    };
    let (left, right, slow, refused): (_, _, Result<i32>, _) = join!(
        cx.elicit::<Login>("left", "Left?"),
        cx.elicit::<Login>("right", "Right?"),
        cx.step_with_key("slow", slow),
        cx.step("refused", refused),
    );
    let refused = refused.expect_err("it always fails");
    let last: Amount = cx
        .elicit("last", format!("{refused}: how many else?"))
        .await?;
    let note = |key| async { ok(effects.record(key)) };
    cx.step_with_key("note", note).await?;
    Ok(format!(
        "{} {} {} {}",
        left?.name, right?.name, slow?, last.amount
    ))
}

/// Asks and works in a loop until the amounts reach ten.
#[tool]
async fn collect(cx: Cx, effects: State<Effects>) -> Result<String> {
    let mut total = 0;
    let mut rounds = 0;
    while total < 10 {
        rounds += 1;
        let more: Amount = cx
            .elicit("more", format!("{total} so far. How much more?"))
            .await?;
        let add = |key| async {
            yield_now().await;
            effects.record(key);
            ok(more.amount)
        };
        let added: u32 = cx.step_with_key("add", add).await?;
        total += added;
        cx.checkpoint("total", &total).await?;
    }
    Ok(format!("{total} after {rounds}"))
}

/// A faulty handler: effects outside steps, and a value that differs in each run.
#[tool]
async fn careless(cx: Cx, effects: State<Effects>) -> Result<String> {
    let count = effects.record("outside");
    let login: Login = cx.elicit("login", "Who?").await?;
    Ok(format!("{} {count}", login.name))
}

/// Pays, and returns the idempotency key as the receipt.
#[tool]
async fn pay(cx: Cx) -> Result<String> {
    let login: Login = cx.elicit("login", "Who?").await?;
    let receipt: String = cx.step_with_key("pay", |key| async { ok(key) }).await?;
    let tip: String = cx.step_with_key("tip", |key| async { ok(key) }).await?;
    Ok(format!("{}: {receipt}, {tip}, {receipt}", login.name))
}

fn fleet(effects: &Effects) -> Fleet {
    let effects = effects.clone();
    Fleet::new(move || {
        Server::builder("crashes", "1.0")
            .state(effects.clone())
            .tool(side_by_side())
            .tool(collect())
            .tool(careless())
            .tool(pay())
    })
}

#[tokio::test]
async fn work_item_survives_a_crash_at_any_await() {
    let tracker = Tracker::default();
    let report = work_items(&tracker)
        .call(
            "update_work_item",
            json!({"workItemId": 4522, "fields": {"System.State": "Resolved"}}),
        )
        .script(
            Script::new()
                .answer("resolution", json!({"resolution": "Duplicate"}))
                .answer("duplicate_of", json!({"duplicateOfId": 4301})),
        )
        .inspect(|outcome| {
            let applied: Vec<usize> = tracker.0.take().into_values().collect();
            assert_eq!(applied.len(), 1, "one key, at {:?}", outcome.crash());
            assert!(applied[0] <= 2);
        })
        .crash_everywhere()
        .await;
    report.assert_same();
    // Round 1 has one ask, round 2 two asks, and round 3 two asks and a step. In each round the
    // reply can be lost as well.
    let in_rounds = |round| {
        let crashes = report.crashed().iter().filter_map(|run| run.crash());
        crashes.filter(|point| point.round == round).count()
    };
    assert!(in_rounds(1) >= 2 && in_rounds(2) >= 3 && in_rounds(3) >= 4);
    assert_eq!(in_rounds(4), 0);
    assert_eq!(report.points(), in_rounds(1) + in_rounds(2) + in_rounds(3));
}

#[tokio::test]
async fn concurrent_asks_and_steps_survive_a_crash_at_any_await() {
    let effects = Effects::new();
    let report = fleet(&effects)
        .call("side_by_side", json!({}))
        .script(
            Script::new()
                .answer("left", json!({"name": "a"}))
                .answer("right", json!({"name": "b"}))
                .answer("last", json!({"amount": 7}))
                .call_id("side by side"),
        )
        .inspect(|outcome| {
            let counts = effects.take();
            assert_eq!(counts.len(), 2, "two keys, at {:?}", outcome.crash());
            assert!(counts.values().all(|count| *count <= 2), "{counts:?}");
        })
        .crash_everywhere()
        .await;
    report.assert_same();
    assert_eq!(report.undisturbed().text(), "a b 3 7");
    assert_eq!(report.undisturbed().rounds().len(), 3);
    // The slow step is polled three times.
    assert!(report.points() >= 12, "{}", report.points());
}

#[tokio::test]
async fn loop_survives_a_crash_at_any_await() {
    let effects = Effects::new();
    let script = Script::new()
        .answer("more", json!({"amount": 4}))
        .answer("more#2", json!({"amount": 5}))
        .answer("more#3", json!({"amount": 6}));
    let report = fleet(&effects)
        .call("collect", json!({}))
        .script(script)
        .inspect(|outcome| {
            let counts = effects.take();
            assert_eq!(counts.len(), 3, "three keys, at {:?}", outcome.crash());
            let again: usize = counts.values().map(|count| count - 1).sum();
            assert!(again <= 1, "one crash repeats one step at most: {counts:?}");
        })
        .crash_everywhere()
        .await;
    report.assert_same();
    assert_eq!(report.undisturbed().text(), "15 after 3");
    assert!(report.points() >= 20, "{}", report.points());
    let messages: Vec<&str> = report.undisturbed().asks().map(|a| a.message()).collect();
    assert_eq!(messages[2], "9 so far. How much more?");
}

#[tokio::test]
async fn call_survives_a_crash_with_duplicate_requests_and_lost_responses() {
    let effects = Effects::new();
    let script = Script::new()
        .answer("more", json!({"amount": 9}))
        .answer("more#2", json!({"amount": 1}))
        .call_id("all at once");
    let report = fleet(&effects)
        .call("collect", json!({}))
        .script(script)
        .race_requests(KeepResponse::Second)
        .lose_every_response()
        .inspect(|_| assert_eq!(effects.take().len(), 2))
        .crash_everywhere()
        .await;
    report.assert_same();
    assert_eq!(report.undisturbed().text(), "10 after 2");
    assert!(report.points() >= 12, "{}", report.points());
}

#[tokio::test]
#[should_panic(
    expected = "the call ends differently if the instance crashes in round 1 after 0 operations (-: without the crash, +: with it)\n"
)]
async fn handler_with_effects_outside_steps_is_detected() {
    let effects = Effects::new();
    let report = fleet(&effects)
        .call("careless", json!({}))
        .script(Script::new().answer("login", json!({"name": "octocat"})))
        .inspect(|_| drop(effects.take()))
        .crash_everywhere()
        .await;
    report.assert_same();
}

#[tokio::test]
async fn idempotency_keys_in_the_result_are_compared_by_their_places() {
    let fleet = fleet(&Effects::new());
    let pay = |name: &str| {
        let script = Script::new().answer("login", json!({"name": name}));
        fleet.call("pay", json!({})).script(script)
    };
    let report = pay("octocat").crash_everywhere().await;
    report.assert_same();
    report.assert_same_by(|outcome| outcome.rounds()[0].keys().join(" "));
    let run = report.undisturbed();
    assert_ne!(run.text(), report.crashed()[0].text());
    assert!(!run.ends_like(&pay("hubot").run().await));
}

#[tokio::test]
#[should_panic(expected = "- \"octocat 2\"\n+ \"octocat 3\"\n")]
async fn difference_of_two_runs_is_shown() {
    let report = fleet(&Effects::new())
        .call("careless", json!({}))
        .script(Script::new().answer("login", json!({"name": "octocat"})))
        .crash_everywhere()
        .await;
    report.assert_same_by(|outcome| match outcome.crash() {
        None => outcome.text(),
        Some(_) => "octocat 3".to_owned(),
    });
}
