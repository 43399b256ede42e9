//! The round loop: rounds, limits, deadline, cancellation.

use crate::support::{FakeServer, Respond, form, serve_forever, until, within};
use refrain::prelude::*;
use refrain_client::{AskAnswer, CallSpec, Client, ClientLimits, ErrorKind, RoundOutcome};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Barrier;

#[derive(Deserialize, Elicit)]
struct Name {
    name: String,
}

/// Asks once, then twice at the same time.
async fn introduce(cx: Cx) -> Result<String> {
    let Name { name } = cx.elicit("name", "Who are you?").await?;
    let (friend, other) = tokio::try_join!(
        cx.elicit::<Name>("friend", "Who is your friend?"),
        cx.elicit::<Name>("other", "And who else?"),
    )?;
    Ok(format!("{name}, {} and {}", friend.name, other.name))
}

#[tokio::test]
async fn call_repeats_rounds_until_it_completes() {
    let url =
        serve_forever(Server::builder("talk", "1").tool(Tool::new("introduce", introduce))).await;
    let client = Client::builder()
        .on_form(|ask| async move {
            assert_eq!(ask.asker.server.as_deref(), Some("talk"));
            assert_eq!(ask.asker.target, "introduce");
            Ok(AskAnswer::accept(json!({"name": ask.key}))?)
        })
        .connect(&url)
        .await
        .unwrap();
    let result = client.call_tool("introduce", json!({})).await.unwrap();
    assert_eq!(result.content[0].as_text(), Some("name, friend and other"));
}

#[tokio::test]
async fn asks_of_a_round_are_answered_concurrently() {
    let url =
        serve_forever(Server::builder("talk", "1").tool(Tool::new("introduce", introduce))).await;
    // Each handler waits for the other.
    let both = Arc::new(Barrier::new(2));
    let client = Client::builder()
        .on_form(move |ask| {
            let both = Arc::clone(&both);
            async move {
                if ask.key != "name" {
                    both.wait().await;
                }
                Ok(AskAnswer::accept(json!({"name": ask.key}))?)
            }
        })
        .connect(&url)
        .await
        .unwrap();
    let called = within("both answers", client.call_tool("introduce", json!({}))).await;
    assert!(!called.unwrap().is_error);
}

/// A server whose calls ask in two rounds, with a state that is easily damaged.
async fn two_rounds() -> FakeServer {
    FakeServer::start(|request| {
        let params = &request["params"];
        match params["requestState"].as_str() {
            None => Respond::asks(
                json!({"a": form("A?", json!({"x": {"type": "string"}}))}),
                Some(STATE),
            ),
            Some(STATE) => Respond::asks(json!({"b": form("B?", json!({}))}), None),
            Some(other) => panic!("unknown state: {other:?}"),
        }
    })
    .await
}

/// Spaces, escapes, a null character, and text that looks like JSON.
const STATE: &str = " {\"b\":1, \"a\":\"é\\n\\u0000\u{0}\u{1F3B5}\"} ";

#[tokio::test]
async fn rounds_do_not_leak_state_or_answers() {
    let server = FakeServer::start(|request| {
        let params = &request["params"];
        let (state, answers) = (&params["requestState"], &params["inputResponses"]);
        if answers.get("b").is_some() {
            assert!(state.is_null());
            return Respond::text("done");
        }
        if state == STATE {
            return Respond::asks(json!({"b": form("B?", json!({}))}), None);
        }
        Respond::asks(
            json!({"a": form("A?", json!({"x": {"type": "string"}}))}),
            Some(STATE),
        )
    })
    .await;
    let client = Client::builder()
        .on_form(|_| async { Ok(AskAnswer::accept(json!({}))?) })
        .connect(&server.url)
        .await
        .unwrap();
    client.call_tool("t", json!({"n": 1})).await.unwrap();
    let rounds = server.requests("tools/call");
    assert_eq!(rounds.len(), 3);
    let answer = json!({"action": "accept", "content": {}});
    assert_eq!(rounds[0]["params"].get("requestState"), None);
    assert_eq!(rounds[0]["params"].get("inputResponses"), None);
    assert_eq!(rounds[1]["params"]["requestState"], STATE);
    assert_eq!(rounds[1]["params"]["inputResponses"], json!({"a": answer}));
    assert_eq!(rounds[2]["params"].get("requestState"), None);
    assert_eq!(rounds[2]["params"]["inputResponses"], json!({"b": answer}));
    let mut ids: Vec<_> = rounds.iter().map(|round| round["id"].as_u64()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 3, "every round has a unique request id");
    let call_ids: Vec<_> = rounds
        .iter()
        .map(|round| &round["params"]["_meta"]["refrain/callId"])
        .collect();
    assert!(call_ids[0].is_string());
    assert!(
        call_ids.iter().all(|id| *id == call_ids[0]),
        "all rounds have the same call id"
    );
    for round in &rounds {
        assert_eq!(round["params"]["arguments"], json!({"n": 1}));
    }
}

#[tokio::test]
async fn concurrent_calls_do_not_share_state() {
    // The server accepts only the states of the same call.
    let server = FakeServer::start(|request| {
        let params = &request["params"];
        let n = params["arguments"]["n"].as_u64().expect("a number");
        let expected = |round: u32| format!("{n}/{round}");
        match params["requestState"].as_str() {
            None => Respond::asks(json!({"a": form("A?", json!({}))}), Some(&expected(1))),
            Some(state) if state == expected(1) => {
                Respond::asks(json!({"b": form("B?", json!({}))}), Some(&expected(2)))
            }
            Some(state) if state == expected(2) => Respond::text(state),
            Some(other) => panic!("the state of another call: {other:?}"),
        }
    })
    .await;
    // All calls are in the same round at the same time.
    let together = Arc::new(Barrier::new(4));
    let client = Client::builder()
        .on_form(move |_| {
            let together = Arc::clone(&together);
            async move {
                together.wait().await;
                Ok(AskAnswer::accept(json!({}))?)
            }
        })
        .connect(&server.url)
        .await
        .unwrap();
    let calls = (0..4).map(|n| {
        let client = client.clone();
        async move { (n, client.call_tool("t", json!({"n": n})).await) }
    });
    let called = within("all calls", futures_util::future::join_all(calls)).await;
    for (n, result) in called {
        let expected = format!("{n}/2");
        assert_eq!(
            result.unwrap().content[0].as_text(),
            Some(expected.as_str())
        );
    }
    let rounds = server.requests("tools/call");
    assert_eq!(rounds.len(), 12);
    let mut ids: Vec<_> = rounds
        .iter()
        .map(|round| round["params"]["_meta"]["refrain/callId"].to_string())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4, "one id for each call");
}

#[tokio::test]
async fn round_without_asks_returns_the_state_after_a_pause() {
    let rounds = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&rounds);
    let server = FakeServer::start(move |_| match counted.fetch_add(1, Ordering::SeqCst) {
        n if n < 3 => {
            Respond::Result(json!({"resultType": "input_required", "requestState": format!("{n}")}))
        }
        _ => Respond::text("done"),
    })
    .await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let start = std::time::Instant::now();
    client.call_tool("t", json!({})).await.unwrap();
    // Each pause is at least half of 100, 200 and 400 ms.
    assert!(start.elapsed() >= Duration::from_millis(350));
    let states: Vec<_> = server
        .requests("tools/call")
        .iter()
        .map(|round| round["params"]["requestState"].clone())
        .collect();
    assert_eq!(states, [Value::Null, json!("0"), json!("1"), json!("2")]);
}

#[tokio::test]
async fn endless_asking_hits_the_round_limit() {
    let server = FakeServer::start(|_| {
        Respond::asks(json!({"again": form("Again?", json!({}))}), Some("s"))
    })
    .await;
    let client = Client::builder()
        .on_form(|_| async { Ok(AskAnswer::accept(json!({}))?) })
        .limits(ClientLimits {
            rounds: 7,
            ..ClientLimits::default()
        })
        .connect(&server.url)
        .await
        .unwrap();
    let error = client.call_tool("t", json!({})).await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::TooManyRounds(7));
    assert_eq!(server.requests("tools/call").len(), 7);
    let pending = error.pending.expect("the error contains the call");
    assert_eq!(pending.asks().len(), 1);
}

#[tokio::test]
async fn deadline_fails_the_call_but_keeps_its_answers() {
    let server = FakeServer::start(|_| {
        let asks = json!({"quick": form("?", json!({})), "slow": form("?", json!({}))});
        Respond::asks(asks, Some("s"))
    })
    .await;
    let client = Client::builder()
        .on_form(|ask| async move {
            if ask.key == "slow" {
                std::future::pending::<()>().await;
            }
            Ok(AskAnswer::accept(json!({}))?)
        })
        .limits(ClientLimits {
            deadline: Some(Duration::from_secs(2)),
            ..ClientLimits::default()
        })
        .connect(&server.url)
        .await
        .unwrap();
    let called = within("the deadline", client.call_tool("t", json!({}))).await;
    let error = called.unwrap_err();
    assert_matches!(error.kind, ErrorKind::DeadlineExceeded(_));
    let pending = error.pending.expect("the error contains the call");
    let open: Vec<_> = pending
        .unanswered()
        .iter()
        .map(|ask| ask.key().to_owned())
        .collect();
    assert_eq!(open, ["slow"], "the quick answer is kept");
}

#[tokio::test]
async fn stopped_call_is_returned_in_the_error() {
    let server = two_rounds().await;
    let client = Client::builder()
        .on_form(|_| std::future::pending())
        .connect(&server.url)
        .await
        .unwrap();
    let RoundOutcome::Pending(pending) = client.start(CallSpec::tool("t")).await.unwrap() else {
        panic!("expected a pending call")
    };
    let stop = tokio::time::sleep(Duration::from_millis(50));
    let stopped = within("the stop", client.finish_unless(pending, stop)).await;
    let error = stopped.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Stopped));
    assert_eq!(error.pending.unwrap().unanswered()[0].key(), "a");
}

#[tokio::test]
async fn dropped_call_is_cancelled_at_the_server() {
    #[derive(Clone, Default)]
    struct Seen(Arc<Mutex<Vec<&'static str>>>);
    struct DropGuard(Seen);
    impl Drop for DropGuard {
        fn drop(&mut self) {
            self.0.0.lock().unwrap().push("dropped");
        }
    }
    async fn slow(_cx: Cx, seen: State<Seen>) -> Result<String> {
        let _guard = DropGuard((*seen).clone());
        seen.0.lock().unwrap().push("started");
        std::future::pending().await
    }

    let seen = Seen::default();
    let builder = Server::builder("slow", "1").state(seen.clone());
    let url = serve_forever(builder.tool(Tool::new("slow", slow))).await;
    let client = Client::builder().connect(&url).await.unwrap();
    let has = |what| seen.0.lock().unwrap().contains(&what);
    tokio::select! {
        _ = client.call_tool("slow", json!({})) => panic!("the tool never returns"),
        () = until("the call", || has("started")) => {}
    }
    until("the end of the handler", || has("dropped")).await;
}
