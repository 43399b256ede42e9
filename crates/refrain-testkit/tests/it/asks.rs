//! Asks from spawned tasks, after ignored errors, for URLs, and in the explicit style.

use crate::shapes::Login;
use refrain::prelude::*;
use refrain_testkit::{Effects, Fleet, KeepResponse, ReceivedAsk, Script};
use serde_json::json;
use tokio::task::JoinSet;

/// Asks from spawned tasks.
#[tool]
async fn spawned(cx: Cx) -> Result<String> {
    let mut tasks = JoinSet::new();
    for name in ["left", "right"] {
        let cx = cx.scope(name);
        tasks.spawn(async move {
            let login = cx.elicit::<Login>(name, "Who?").await?;
            cx.step("work", async { ok(login.name.to_uppercase()) })
                .await
        });
    }
    let mut done = Vec::new();
    while let Some(name) = tasks.join_next().await {
        done.push(name??);
    }
    done.sort();
    Ok(done.join("+"))
}

/// Ignores every error.
#[tool]
async fn swallows(cx: Cx, effects: State<Effects>) -> Result<String> {
    let name = match cx.elicit::<Login>("first", "Who?").await {
        Ok(login) => login.name,
        Err(_) => "nobody".into(),
    };
    let _ = cx.elicit::<Login>("second", "Who else?").await;
    effects.record("after both");
    Ok(name)
}

/// Asks to open a page until the user has signed there.
#[tool]
async fn sign(cx: Cx, effects: State<Effects>) -> Result<String> {
    let signed = || async { ok(effects.record("look") >= 3) };
    cx.elicit_url("contract", "Please sign.", "https://example.org/c", signed)
        .await?;
    Ok("signed".into())
}

/// The explicit style: reads the answers and manages its state itself.
#[tool]
async fn explicit(cx: Cx) -> Result<Reply<String>> {
    let asked: u32 = cx.state()?.unwrap_or_default();
    let Some(answer) = cx.answer("login") else {
        let asks = Incomplete::new().form("login", "Who?", Login::form());
        return Ok(Reply::Incomplete(asks.state(&(asked + 1))?));
    };
    let answer: serde_json::Value = serde_json::from_str(answer.get())?;
    let name = answer["content"]["name"].as_str().unwrap_or("nobody");
    Ok(Reply::Complete(format!("{name} after {asked}")))
}

fn fleet(effects: &Effects) -> Fleet {
    let effects = effects.clone();
    Fleet::new(move || {
        Server::builder("asks", "1.0")
            .state(effects.clone())
            .tool(spawned())
            .tool(swallows())
            .tool(sign())
            .tool(explicit())
    })
}

fn script() -> Script {
    Script::new()
        .answer("left", json!({"name": "a"}))
        .answer("right", json!({"name": "b"}))
        .answer("first", json!({"name": "octocat"}))
        .decline("second")
        .consent("contract")
        .consent("contract#2")
        .consent("contract#3")
        .answer("login", json!({"name": "octocat"}))
}

#[tokio::test]
async fn asks_of_spawned_tasks_share_one_round() {
    let fleet = fleet(&Effects::new());
    let call = || fleet.call("spawned", json!({})).script(script());
    let outcome = call().run().await;
    assert_eq!(outcome.text(), "A+B");
    assert_eq!(outcome.rounds()[0].keys(), ["left", "right"]);
    assert_eq!(outcome.rounds().len(), 2);
    let report = call().crash_everywhere().await;
    report.assert_same();
    assert!(report.points() >= 6, "{}", report.points());
}

#[tokio::test(flavor = "multi_thread")]
async fn asks_of_tasks_on_other_threads_are_sent() {
    let fleet = fleet(&Effects::new());
    for _ in 0..20 {
        let outcome = fleet
            .call("spawned", json!({}))
            .script(script())
            .run()
            .await;
        // The number of rounds depends on the threads' timing; the result does not.
        assert_eq!(outcome.text(), "A+B");
        assert_eq!(outcome.asks().count(), 2);
    }
}

#[tokio::test]
async fn swallowed_error_does_not_hide_a_suspension() {
    let effects = Effects::new();
    let outcome = fleet(&effects)
        .call("swallows", json!({}))
        .script(script())
        .lose_every_response()
        .run()
        .await;
    assert_eq!(outcome.text(), "octocat");
    let keys: Vec<&str> = outcome.asks().map(ReceivedAsk::key).collect();
    assert_eq!(keys, ["first", "second"]);
    assert_eq!(
        effects.of("after both"),
        2,
        "in the last round alone, which was served twice"
    );
}

#[tokio::test]
async fn url_is_asked_until_its_condition_holds() {
    let effects = Effects::new();
    let outcome = fleet(&effects)
        .call("sign", json!({}))
        .script(script())
        .run()
        .await;
    assert_eq!(outcome.text(), "signed");
    assert!(outcome.asks().all(|a| a.url() == "https://example.org/c"));
    let messages: Vec<&str> = outcome.asks().map(ReceivedAsk::message).collect();
    assert_eq!(messages[0], "Please sign.");
    assert!(messages[2].contains("not been completed"), "{messages:?}");
    assert_eq!((messages.len(), effects.of("look")), (3, 3));
}

#[tokio::test]
async fn explicit_style_survives_the_same_faults() {
    let fleet = fleet(&Effects::new());
    let call = || fleet.call("explicit", json!({})).script(script());
    assert_eq!(call().run().await.text(), "octocat after 1");
    let duplicated = call()
        .duplicate_requests(KeepResponse::Second)
        .lose_every_response();
    assert_eq!(duplicated.run().await.text(), "octocat after 1");
    call().crash_everywhere().await.assert_same();
}

/// Uses one name twice at the same time.
#[tool]
async fn ambiguous(cx: Cx) -> Result<String> {
    let (one, _) = futures_util::join!(
        cx.elicit::<Login>("who", "Who?"),
        cx.elicit::<Login>("who", "Who else?")
    );
    Ok(one?.name)
}

#[tokio::test]
async fn fault_of_a_handler_tells_the_client_no_source_path() {
    let fleet = Fleet::new(|| Server::builder("faulty", "1.0").tool(ambiguous()));
    let outcome = fleet.call("ambiguous", json!({})).run().await;
    let error = outcome.error().expect("a fault");
    assert_eq!(error.code, -32603);
    assert!(
        error.message.contains("\"who\" is used twice"),
        "{}",
        error.message
    );
    assert!(!error.message.contains(".rs"), "{}", error.message);
}
