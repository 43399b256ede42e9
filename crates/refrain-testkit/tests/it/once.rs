//! `once` and single-use tokens.

use crate::shapes::Login;
use refrain::prelude::*;
use refrain::runtime::core::MemoryReplayLog;
use refrain::server::BuildError;
use refrain_testkit::{Effects, Fleet, KeepResponse, Script};
use serde_json::json;
use std::sync::Arc;
use tokio::task::yield_now;

/// Pays, at most once.
#[tool(once)]
async fn pay(cx: Cx, effects: State<Effects>) -> Result<String> {
    let login: Login = cx.elicit("who", "Who pays?").await?;
    let pay = async {
        yield_now().await;
        effects.record("pay");
        yield_now().await;
        ok(7)
    };
    let receipt: u32 = cx.once("pay", pay).await?;
    let witness: Login = cx.elicit("witness", "Who saw it?").await?;
    Ok(format!(
        "{} paid {receipt}, {} saw it",
        login.name, witness.name
    ))
}

/// Votes with single-use tokens.
#[tool(single_use)]
async fn vote(cx: Cx, effects: State<Effects>) -> Result<String> {
    let login: Login = cx.elicit("who", "Who votes?").await?;
    let vote = async { ok(effects.record("vote")) };
    let votes: usize = cx.step("vote", vote).await?;
    Ok(format!("{} voted {votes}", login.name))
}

fn fleet(effects: &Effects, log: &MemoryReplayLog) -> Fleet {
    let (effects, log) = (effects.clone(), log.clone());
    Fleet::new(move || {
        Server::builder("till", "1.0")
            .state(effects.clone())
            .replay_log(Arc::new(log.clone()))
            .tool(pay())
            .tool(vote())
    })
}

fn voter() -> Script {
    Script::new()
        .answer("who", json!({"name": "octocat"}))
        .answer("witness", json!({"name": "hubot"}))
}

#[test]
fn once_without_a_replay_log_fails_registration() {
    for tool in [pay(), vote()] {
        let name = tool.info().name.clone();
        let built = Server::builder("till", "1.0")
            .state(Effects::new())
            .tool(tool)
            .build();
        let Err(BuildError::NeedsReplayLog { tool }) = built else {
            panic!("{name} was registered without a log");
        };
        assert_eq!(tool, name);
    }
    for tool in [pay(), vote()] {
        let builder = Server::builder("till", "1.0")
            .state(Effects::new())
            .tool(tool);
        assert!(builder.single_instance().build().is_ok());
    }
}

#[tokio::test]
async fn once_runs_once_with_duplicate_requests() {
    let (effects, log) = (Effects::new(), MemoryReplayLog::new());
    let fleet = fleet(&effects, &log);
    for keep in [KeepResponse::First, KeepResponse::Second] {
        let outcome = fleet
            .call("pay", json!({}))
            .script(voter())
            .duplicate_requests(keep)
            .lose_every_response()
            .run()
            .await;
        assert_eq!(outcome.text(), "octocat paid 7, hubot saw it");
        assert_eq!(effects.take().get("pay"), Some(&1));
    }
}

#[tokio::test]
async fn once_runs_once_on_two_concurrent_instances() {
    let (effects, log) = (Effects::new(), MemoryReplayLog::new());
    let fleet = fleet(&effects, &log);
    let first = fleet.call("pay", json!({})).script(voter());
    let outcome = first.race_requests(KeepResponse::First).run().await;
    assert_eq!(outcome.text(), "octocat paid 7, hubot saw it");
    assert_eq!(effects.take().get("pay"), Some(&1));

    // The second delivery cannot know the result of the first, so it fails without running the work.
    let second = fleet.call("pay", json!({})).script(voter());
    let outcome = second.race_requests(KeepResponse::Second).run().await;
    assert!(outcome.is_error());
    assert!(
        outcome.text().contains("it is not repeated"),
        "{}",
        outcome.text()
    );
    assert_eq!(effects.take().get("pay"), Some(&1));
}

#[tokio::test]
async fn once_never_runs_twice_after_a_crash() {
    let (effects, log) = (Effects::new(), MemoryReplayLog::new());
    let report = fleet(&effects, &log)
        .call("pay", json!({}))
        .script(voter())
        .inspect(|outcome| {
            let paid = effects.take().get("pay").copied().unwrap_or_default();
            assert!(paid <= 1, "paid {paid} times after {:?}", outcome.crash());
            if outcome.is_error() {
                assert!(outcome.text().contains("interrupted"), "{}", outcome.text());
            } else {
                assert_eq!(
                    paid,
                    1,
                    "the call succeeded without a payment after {:?}",
                    outcome.crash()
                );
            }
        })
        .crash_everywhere()
        .await;
    assert_eq!(report.undisturbed().text(), "octocat paid 7, hubot saw it");
    // The payment awaits twice; only a crash at one of these awaits interrupts it.
    let interrupted = report.crashed().iter().filter(|run| run.is_error());
    assert_eq!(interrupted.count(), 2);
    assert!(report.points() >= 10, "{}", report.points());
}

#[tokio::test]
async fn repeated_token_gets_the_recorded_reply() {
    let (effects, log) = (Effects::new(), MemoryReplayLog::new());
    let fleet = fleet(&effects, &log);
    let outcome = fleet
        .call("vote", json!({}))
        .script(voter())
        .lose_responses([2])
        .duplicate_requests(KeepResponse::Second)
        .run()
        .await;
    assert_eq!(outcome.text(), "octocat voted 1");
    assert_eq!(outcome.rounds()[1].deliveries(), 3);
    assert_eq!(
        outcome.rounds()[1].steps(),
        0,
        "the reply was recorded, nothing ran"
    );
    assert_eq!(effects.take().get("vote"), Some(&1));
}

#[tokio::test]
async fn repeated_first_request_with_call_id_gets_the_recorded_reply() {
    let (effects, log) = (Effects::new(), MemoryReplayLog::new());
    let fleet = fleet(&effects, &log);
    let call = || {
        fleet
            .call("vote", json!({}))
            .script(voter().call_id("ballot 1"))
    };
    let mut one = call().begin();
    one.next().await;
    let mut other = call().begin();
    other.next().await;
    let token = one.rounds()[0].token();
    assert!(token.is_some());
    assert_eq!(token, other.rounds()[0].token(), "the very same reply");

    one.next().await;
    other.next().await;
    assert_eq!(one.into_outcome().text(), "octocat voted 1");
    assert_eq!(other.into_outcome().text(), "octocat voted 1");
    assert_eq!(effects.take().get("vote"), Some(&1));
}

#[tokio::test]
async fn interrupted_single_use_token_cannot_be_reused() {
    let (effects, log) = (Effects::new(), MemoryReplayLog::new());
    let outcome = fleet(&effects, &log)
        .call("vote", json!({}))
        .script(voter())
        .crash(2, 0)
        .run()
        .await;
    assert!(outcome.crash().is_some());
    let error = outcome.error().expect("an error");
    assert_eq!(error.code, -32602);
    assert!(error.message.contains("only once"), "{}", error.message);
    assert_eq!(effects.total(), 0);
}

#[tokio::test]
async fn full_replay_log_rejects_new_records() {
    let (effects, log) = (Effects::new(), MemoryReplayLog::with_capacity(1));
    let fleet = fleet(&effects, &log);
    let call = || fleet.call("pay", json!({})).script(voter());
    assert_eq!(call().run().await.text(), "octocat paid 7, hubot saw it");
    assert_eq!(log.len(), 1);
    let refused = call().run().await;
    assert_eq!(refused.error().map(|error| error.code), Some(-32603));
    assert_eq!(effects.of("pay"), 1);
}
