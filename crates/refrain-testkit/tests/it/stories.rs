//! The examples of the proposals from which MCP 2026-07-28 came.

use crate::shapes::{Login, Tracker, weather_fleet, work_items};
use futures_util::join;
use refrain::prelude::*;
use refrain_testkit::{Capability, Fleet, Note, ReceivedAsk, Script, ScriptedAnswer};
use serde_json::json;

fn octocat() -> Script {
    Script::new().answer("github_login", json!({"name": "octocat"}))
}

#[tokio::test]
async fn weather_takes_two_rounds() {
    let outcome = weather_fleet()
        .call("get_weather", json!({"location": "New York"}))
        .script(octocat())
        .run()
        .await;
    assert_eq!(outcome.text(), "octocat, it is sunny in New York.");
    assert!(!outcome.is_error());
    let [first, second] = outcome.rounds() else {
        panic!("two rounds, not {}", outcome.rounds().len());
    };
    assert_eq!(first.keys(), ["github_login"]);
    let asked = &first.asks()[0];
    assert_eq!(asked.kind(), "form");
    assert_eq!(asked.message(), "Please provide your GitHub username");
    assert_eq!(asked.schema()["required"], json!(["name"]));
    assert_eq!(
        asked.answer(),
        Some(&json!({"action": "accept", "content": {"name": "octocat"}}))
    );
    assert!(first.token().is_some_and(|token| token.len() > 60));
    assert_eq!((first.replayed(), first.steps()), (0, 0));
    assert_eq!((second.replayed(), second.token()), (1, None));
}

#[tokio::test]
async fn declined_ask_ends_the_call_with_a_result() {
    for (script, words) in [
        (Script::new().decline("github_login"), "declined"),
        (Script::new().cancel("github_login"), "cancelled"),
    ] {
        let outcome = weather_fleet()
            .call("get_weather", json!({"location": "New York"}))
            .script(script)
            .run()
            .await;
        assert!(outcome.is_error());
        assert_eq!(
            outcome.error(),
            None,
            "it is a result, not a protocol error"
        );
        assert_eq!(outcome.text(), format!("the user {words} \"github_login\""));
    }
}

#[tokio::test]
async fn client_without_forms_gets_a_missing_capability_error() {
    let outcome = weather_fleet()
        .call("get_weather", json!({"location": "New York"}))
        .script(octocat().can([Capability::Url, Capability::Roots]))
        .run()
        .await;
    let error = outcome.error().expect("an error");
    assert_eq!(error.code, -32021);
    assert_eq!(
        error.data["requiredCapabilities"]["elicitation"],
        json!({"form": {}})
    );
    assert_eq!(outcome.rounds().len(), 1);
}

#[tokio::test]
async fn work_item_takes_one_round_per_rule() {
    let tracker = Tracker::default();
    let fleet = work_items(&tracker);
    let arguments = json!({"workItemId": 4522, "fields": {"System.State": "Resolved"}});
    let script = Script::new()
        .answer("resolution", json!({"resolution": "Duplicate"}))
        .answer("duplicate_of", json!({"duplicateOfId": 4301}));
    let outcome = fleet
        .call("update_work_item", arguments.clone())
        .script(script)
        .run()
        .await;
    assert_eq!(
        outcome.text(),
        "Bug #4522 resolved as Duplicate of Bug #4301. \
         State set to Resolved and duplicate link created."
    );
    let keys: Vec<&str> = outcome.asks().map(ReceivedAsk::key).collect();
    assert_eq!(keys, ["resolution", "duplicate_of"]);
    assert_eq!(outcome.rounds().len(), 3);
    let steps: Vec<u32> = outcome.rounds().iter().map(|round| round.steps()).collect();
    assert_eq!(steps, [0, 0, 1]);
    assert_eq!(tracker.0.total(), 1);

    let fixed = fleet
        .call("update_work_item", arguments)
        .script(Script::new().answer("resolution", json!({"resolution": "Fixed"})))
        .run()
        .await;
    assert_eq!(
        fixed.text(),
        "Bug #4522 resolved as Fixed. State set to Resolved."
    );
    assert_eq!(fixed.rounds().len(), 2);

    let reopened = fleet
        .call(
            "update_work_item",
            json!({"workItemId": 4522, "fields": {"System.State": "Active"}}),
        )
        .run()
        .await;
    assert_eq!(reopened.text(), "Bug #4522 updated.");
    assert_eq!(reopened.rounds().len(), 1);
}

/// The old version of the tool, with the services GitHub and Google.
#[tool(name = "accounts", version = "1")]
async fn accounts_v1(cx: Cx) -> Result<String> {
    let (github, google) = join!(
        cx.elicit::<Login>("github_login", "Your GitHub username?"),
        cx.elicit::<Login>("google_login", "Your Google username?"),
    );
    Ok(format!("github={} google={}", github?.name, google?.name))
}

/// The new version of the tool, with Microsoft instead of Google.
#[tool(name = "accounts", version = "2")]
async fn accounts_v2(cx: Cx) -> Result<String> {
    let (github, microsoft) = join!(
        cx.elicit::<Login>("github_login", "Your GitHub username?"),
        cx.elicit::<Login>("microsoft_login", "Your Microsoft username?"),
    );
    Ok(format!(
        "github={} microsoft={}",
        github?.name, microsoft?.name
    ))
}

fn accounts() -> Fleet {
    Fleet::new(|| Server::builder("accounts", "1.0").tool(accounts_v1()))
        .and(|| Server::builder("accounts", "2.0").tool(accounts_v2()))
}

fn three_logins() -> Script {
    Script::new()
        .answer("github_login", json!({"name": "octocat"}))
        .answer("google_login", json!({"name": "goo"}))
        .answer("microsoft_login", json!({"name": "mic"}))
}

#[tokio::test]
async fn rolling_upgrade_keeps_the_answers() {
    let fleet = accounts();
    let outcome = fleet
        .call("accounts", json!({}))
        .script(three_logins())
        .run()
        .await;
    let seen: Vec<(usize, Vec<&str>)> = outcome
        .rounds()
        .iter()
        .map(|round| (round.version(), round.keys()))
        .collect();
    assert_eq!(
        seen,
        [
            (0, vec!["github_login", "google_login"]),
            (1, vec!["microsoft_login"]),
            (0, vec![]),
        ]
    );
    assert_eq!(outcome.text(), "github=octocat google=goo");

    let outcome = fleet
        .call("accounts", json!({}))
        .script(three_logins())
        .first_version(1)
        .run()
        .await;
    assert_eq!(outcome.text(), "github=octocat microsoft=mic");
    assert_eq!(
        outcome.asks().filter(|a| a.key() == "github_login").count(),
        1,
        "an answered ask is not sent again"
    );
}

#[tokio::test]
async fn lost_request_is_retried_on_the_next_instance() {
    let fleet = accounts();
    let call = fleet.call("accounts", json!({})).script(three_logins());
    let outcome = call.lose_requests([2, 3]).run().await;
    let seen: Vec<(usize, usize)> = outcome
        .rounds()
        .iter()
        .map(|round| (round.version(), round.deliveries()))
        .collect();
    assert_eq!(
        seen,
        [(0, 1), (0, 1)],
        "the newer version was never reached"
    );
    assert_eq!(outcome.text(), "github=octocat google=goo");
}

#[derive(Deserialize, Elicit)]
struct Age {
    age: u8,
}

/// Sends asks of several kinds at once.
#[tool]
async fn survey(cx: Cx) -> Result<String> {
    let question = SamplingParams::new(50).user("What is the capital of France?");
    let (login, capital, roots) = join!(
        cx.elicit::<Login>("github_login", "Who?"),
        cx.sample("capital", question),
        cx.roots("where"),
    );
    let roots: Vec<String> = roots?.into_iter().map(|root| root.uri).collect();
    Ok(format!(
        "{} {} {}",
        login?.name,
        capital?.text(),
        roots.join(",")
    ))
}

/// Asks for an age until it is valid.
#[tool]
async fn how_old(cx: Cx) -> Result<String> {
    let Age { age } = cx.elicit("age", "How old are you?").await?;
    cx.log(LogLevel::Info, "an age came");
    cx.progress(1.0, Some(1.0), "done");
    Ok(format!("{age}"))
}

/// Prepares a review for someone.
#[prompt]
async fn review(cx: Cx) -> Result<String> {
    let login: Login = cx.elicit("login", "Who?").await?;
    Ok(format!("Review for {}.", login.name))
}

/// A note that belongs to someone.
#[resource(uri = "note://today")]
async fn note(cx: Cx) -> Result<String> {
    let login: Login = cx.elicit("login", "Who?").await?;
    Ok(format!("The note of {}.", login.name))
}

fn mixed() -> Fleet {
    Fleet::new(|| {
        Server::builder("mixed", "1.0")
            .tool(survey())
            .tool(how_old())
            .prompt(review())
            .resource(note())
    })
}

#[tokio::test]
async fn concurrent_asks_share_one_round() {
    let script = Script::new()
        .answer("github_login", json!({"name": "octocat"}))
        .sample("capital", "Paris")
        .roots(["file:///a", "file:///b"]);
    let outcome = mixed().call("survey", json!({})).script(script).run().await;
    assert_eq!(outcome.text(), "octocat Paris file:///a,file:///b");
    assert_eq!(outcome.rounds().len(), 2);
    let asked: Vec<_> = outcome
        .asks()
        .map(|a| (a.key(), a.kind(), a.message()))
        .collect();
    assert_eq!(
        asked,
        [
            ("capital", "sampling", "What is the capital of France?"),
            ("github_login", "form", "Who?"),
            ("where", "roots", ""),
        ]
    );
}

#[tokio::test]
async fn invalid_answer_is_asked_again_with_the_reason() {
    let script = Script::new()
        .answer("age", json!({"age": "old"}))
        .give("age", ScriptedAnswer::nothing())
        .answer("age", json!({"age": 30}))
        .wants_progress()
        .wants_logs(LogLevel::Info);
    let outcome = mixed()
        .call("how_old", json!({}))
        .script(script)
        .run()
        .await;
    assert_eq!(outcome.text(), "30");
    let messages: Vec<&str> = outcome.asks().map(ReceivedAsk::message).collect();
    assert_eq!(messages[0], "How old are you?");
    assert!(
        messages[1].starts_with("How old are you?") && messages[1].contains("age"),
        "{messages:?}"
    );
    assert_eq!(messages.len(), 3, "a missing answer is asked again too");
    let notes: Vec<&Note> = outcome.notes().collect();
    assert_eq!(
        notes,
        [
            &Note::Log {
                level: LogLevel::Info,
                data: json!("an age came"),
            },
            &Note::Progress {
                done: 1.0,
                total: Some(1.0),
                message: Some("done".into()),
            },
        ]
    );
}

#[tokio::test]
async fn prompts_and_resources_can_ask() {
    let script = Script::new().answer("login", json!({"name": "octocat"}));
    let fleet = mixed();
    let review = fleet.prompt("review", json!({})).script(script.clone());
    assert_eq!(review.run().await.text(), "Review for octocat.");
    let note = fleet.resource("note://today").script(script);
    assert_eq!(note.run().await.text(), "The note of octocat.");
    let unknown = fleet.resource("note://tomorrow").run().await;
    let error = unknown.error().expect("an error");
    assert_eq!(
        (error.code, &error.data["uri"]),
        (-32602, &json!("note://tomorrow"))
    );
}
