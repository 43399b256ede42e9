//! Calls that become tasks are driven to their end.

use crate::shapes::{Amount, Login};
use futures_util::join;
use refrain::prelude::*;
use refrain::task::TaskOptions;
use refrain_testkit::{Capability, Effects, Fleet, Script, ScriptedAnswer};
use serde_json::json;
use std::time::Duration;

const THREE_DAYS: Duration = Duration::from_secs(3 * 24 * 3600);

/// Becomes a task after the first ask, works, sleeps, and asks twice at once.
#[tool]
async fn deliver(cx: Cx, effects: State<Effects>) -> Result<String> {
    let login: Login = cx.elicit("who", "Who?").await?;
    cx.detach().await?;
    cx.step_with_key("send", |key| async move { ok(effects.record(key)) })
        .await?;
    cx.sleep(THREE_DAYS).await;
    let (left, right) = join!(
        cx.elicit::<Amount>("left", "How many on the left?"),
        cx.elicit::<Amount>("right", "How many on the right?")
    );
    cx.sleep(Duration::from_millis(20)).await;
    Ok(format!(
        "{} got {} and {}",
        login.name, left?.amount, right?.amount
    ))
}

/// Fails at once, as a task.
#[tool(task_required)]
async fn hopeless(_cx: Cx) -> Result<String> {
    Err(Error::invalid_params("no such parcel"))
}

/// Is retried once, and then succeeds.
#[tool(task)]
async fn flaky(cx: Cx, effects: State<Effects>) -> Result<String> {
    match effects.record("attempt") {
        1 => Err(Error::retry("not yet")),
        count => Ok(format!("{} {count}", cx.is_task())),
    }
}

/// Waits an hour for an answer.
#[tool(task)]
async fn patient(cx: Cx) -> Result<String> {
    let answer = cx.elicit::<Login>("who", "Who?");
    let hour = cx.sleep(Duration::from_secs(3600));
    Ok(tokio::select! {
        answer = answer => format!("{} is here", answer?.name),
        () = hour => "nobody came".into(),
    })
}

fn fleet(effects: &Effects) -> Fleet {
    let effects = effects.clone();
    Fleet::new(move || {
        Server::builder("post", "1.0")
            .state(effects.clone())
            .tool(deliver())
            .tool(hopeless())
            .tool(flaky())
            .tool(patient())
    })
}

fn script() -> Script {
    Script::new()
        .answer("who", json!({"name": "octocat"}))
        .answer("left", json!({"amount": 1}))
        .answer("right", json!({"amount": 2}))
}

#[tokio::test]
async fn answers_of_the_script_reach_the_asks_of_a_task() {
    let effects = Effects::new();
    let fleet = fleet(&effects);
    let before = fleet.clock().now();
    let outcome = fleet
        .call("deliver", json!({}))
        .script(script())
        .run()
        .await;
    assert_eq!(outcome.text(), "octocat got 1 and 2");
    assert!(outcome.task_id().is_some());
    let keys: Vec<_> = outcome.rounds().iter().map(|round| round.keys()).collect();
    assert_eq!(keys, [vec!["who"], vec!["left", "right"], vec![]]);
    assert_eq!(effects.total(), 1);
    assert!(fleet.clock().now() >= before + THREE_DAYS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_survives_lost_messages_and_crashes_of_its_rounds() {
    let effects = Effects::new();
    let report = fleet(&effects)
        .call("deliver", json!({}))
        .script(script())
        .lose_every_response()
        .inspect(|_| {
            // A crash after the step and before its commit repeats it, with the same key.
            let counts: Vec<usize> = effects.take().into_values().collect();
            assert!(counts == [1] || counts == [2], "{counts:?}");
        })
        .crash_everywhere()
        .await;
    report.assert_same();
    assert!(report.points() >= 3, "{}", report.points());
}

#[tokio::test]
#[should_panic(expected = "the script has no answer to the form \"left\"")]
async fn unanswered_ask_of_a_task_fails_the_test() {
    let script = Script::new().answer("who", json!({"name": "octocat"}));
    let fleet = fleet(&Effects::new());
    fleet.call("deliver", json!({})).script(script).run().await;
}

#[tokio::test]
async fn failed_task_ends_the_call_with_its_error() {
    let outcome = fleet(&Effects::new())
        .call("hopeless", json!({}))
        .run()
        .await;
    let error = outcome.error().expect("an error");
    assert_eq!(
        (error.code, error.message.as_str()),
        (-32602, "no such parcel")
    );
}

#[tokio::test]
async fn retried_task_continues_after_its_wait() {
    let outcome = fleet(&Effects::new()).call("flaky", json!({})).run().await;
    assert_eq!(outcome.text(), "true 2");
}

#[tokio::test]
async fn time_passes_while_an_ask_of_a_task_is_left_unanswered() {
    let fleet = fleet(&Effects::new());
    let patient = |script| fleet.call("patient", json!({})).script(script).run();
    assert_eq!(patient(script()).await.text(), "octocat is here");
    let silent = Script::new().give("who", ScriptedAnswer::nothing());
    assert_eq!(patient(silent).await.text(), "nobody came");
}

#[tokio::test]
async fn client_without_tasks_gets_the_result_inline() {
    let fleet = Fleet::new(|| {
        let tool = Tool::new("work", |cx: Cx| async move { ok(cx.is_task().to_string()) });
        let options = TaskOptions::default();
        Server::builder("post", "1.0")
            .task_options(options)
            .tool(tool.task())
    });
    let call = |script| fleet.call("work", json!({})).script(script).run();
    assert_eq!(call(Script::new()).await.text(), "true");
    let inline = call(Script::new().can([Capability::Form])).await;
    assert_eq!((inline.text().as_str(), inline.task_id()), ("false", None));
}
