//! Exceeding a limit ends the call with an error that names the limit.

use crate::shapes::Login;
use futures_util::future::join_all;
use refrain::prelude::*;
use refrain::server::{ServerBuilder, ServerLimits};
use refrain::task::{Limits, TaskOptions};
use refrain_testkit::{CallError, Fleet, Script, ScriptedAnswer};
use serde_json::json;

/// Asks endlessly.
#[tool]
async fn insatiable(cx: Cx) -> Result<String> {
    loop {
        cx.elicit::<Login>("more", "More?").await?;
    }
}

/// Asks for many things at once.
#[tool]
async fn curious(cx: Cx) -> Result<String> {
    let asks = (0..5).map(|n| cx.elicit::<Login>(format!("ask{n}"), "What?"));
    let answers = join_all(asks).await;
    Ok(format!("{}", answers.len()))
}

/// Takes many steps.
#[tool]
async fn busy(cx: Cx) -> Result<String> {
    for _ in 0..20 {
        // A handler cannot ignore the error of a limit.
        let _ = cx.step("work", async { ok(()) }).await;
    }
    Ok("done".into())
}

/// Journals a large value.
#[tool]
async fn hoarder(cx: Cx) -> Result<String> {
    let small: String = cx.step("small", async { ok("x".repeat(10)) }).await?;
    let large: String = cx.step("large", async { ok("x".repeat(5000)) }).await?;
    cx.elicit::<Login>("more", "More?").await?;
    Ok(format!("{}", small.len() + large.len()))
}

fn fleet(set: impl Fn(ServerBuilder) -> ServerBuilder + Send + Sync + 'static) -> Fleet {
    Fleet::new(move || {
        let builder = Server::builder("limits", "1.0")
            .tool(insatiable())
            .tool(curious())
            .tool(busy())
            .tool(hoarder());
        set(builder)
    })
}

fn limited(flow: Limits) -> Fleet {
    fleet(move |builder| {
        builder.limits(ServerLimits {
            flow: flow.clone(),
            ..ServerLimits::default()
        })
    })
}

fn generous() -> Script {
    Script::new().otherwise(|_| ScriptedAnswer::form(json!({"name": "octocat"})))
}

async fn failure(fleet: &Fleet, tool: &str) -> (usize, CallError) {
    let outcome = fleet.call(tool, json!({})).script(generous()).run().await;
    let error = outcome.error().expect("the limit was exceeded");
    (outcome.rounds().len(), error)
}

#[tokio::test]
async fn rounds_are_limited() {
    let fleet = limited(Limits {
        rounds: 4,
        ..Limits::default()
    });
    let (rounds, error) = failure(&fleet, "insatiable").await;
    assert_eq!((rounds, error.code), (4, -32603));
    assert!(
        error.message.contains("limit is 4 rounds"),
        "{}",
        error.message
    );
}

#[tokio::test]
async fn asks_per_round_are_limited() {
    for (asks, fits) in [(4, false), (5, true)] {
        let fleet = limited(Limits {
            asks,
            ..Limits::default()
        });
        let outcome = fleet
            .call("curious", json!({}))
            .script(generous())
            .run()
            .await;
        if fits {
            assert_eq!(outcome.text(), "5");
        } else {
            let error = outcome.error().expect("the limit was exceeded");
            assert_eq!(error.code, -32603);
            assert!(
                error.message.contains("5 asks") && error.message.contains("is 4"),
                "{}",
                error.message
            );
        }
    }
}

#[tokio::test]
async fn journal_entries_are_limited() {
    for (entries, fits) in [(19, false), (20, true)] {
        let fleet = limited(Limits {
            entries,
            ..Limits::default()
        });
        let outcome = fleet.call("busy", json!({})).run().await;
        if fits {
            assert_eq!(outcome.text(), "done");
        } else {
            let error = outcome.error().expect("the limit was exceeded");
            assert_eq!(error.code, -32603);
            assert!(
                error.message.contains("19 entries") && error.message.contains("work#20"),
                "{}",
                error.message
            );
        }
    }
}

#[tokio::test]
async fn oversized_token_error_names_the_largest_entry() {
    let small = |builder: ServerBuilder| {
        // A token that is too large to send is stored, up to the limit of journals.
        let journal = 2048;
        let options = TaskOptions {
            journal,
            ..TaskOptions::default()
        };
        builder.max_token(journal).task_options(options)
    };
    let (rounds, error) = failure(&fleet(small), "hoarder").await;
    assert_eq!((rounds, error.code), (1, -32603));
    assert!(
        error.message.contains("2048") && error.message.contains("large with 5002 bytes"),
        "{}",
        error.message
    );
    let outcome = fleet(|builder| builder.max_token(8192))
        .call("hoarder", json!({}))
        .script(generous())
        .run()
        .await;
    assert_eq!(outcome.text(), "5010");
    assert!(
        outcome.rounds()[0]
            .token()
            .is_some_and(|token| token.len() > 5000)
    );
}

#[tokio::test]
async fn invalid_answers_are_limited() {
    let fleet = limited(Limits {
        retries: 2,
        ..Limits::default()
    });
    let outcome = fleet
        .call("insatiable", json!({}))
        .script(Script::new().answer("more", json!({"nom": "octocat"})))
        .run()
        .await;
    assert!(outcome.is_error());
    assert!(
        outcome.text().contains("no usable answer to \"more\""),
        "{}",
        outcome.text()
    );
    assert_eq!(outcome.rounds().len(), 4);
}
