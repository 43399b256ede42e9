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

fn fleet(effects: &Effects) -> Fleet {
    let effects = effects.clone();
    Fleet::new(move || {
        Server::builder("crashes", "1.0")
            .state(effects.clone())
            .tool(side_by_side())
            .tool(collect())
            .tool(careless())
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
    // One ask, two asks, two asks and a step, plus a lost reply in each of the three rounds.
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
#[should_panic(expected = "after a crash at Some(CrashPoint { round: 1, operation: Some(0) })")]
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
