//! Pending calls: storage, resumption and Debug output.

use crate::support::serve_forever;
use refrain::prelude::*;
use refrain::runtime::SystemSource;
use refrain::server::KeyRing;
use refrain_client::wire::AskKind;
use refrain_client::{AskAnswer, CallSpec, Client, IncomingAsk, PendingCall, RoundOutcome};
use serde_json::json;

#[derive(Deserialize, Elicit)]
struct Confirm {
    /// Really?
    sure: bool,
}

async fn remove(cx: Cx) -> Result<String> {
    let Confirm { sure } = cx.elicit("confirm", "Remove everything?").await?;
    Ok(if sure { "Removed." } else { "Kept." }.to_owned())
}

fn server(keys: &KeyRing) -> ServerBuilder {
    let tool = Tool::new("remove", remove);
    Server::builder("files", "1").tool(tool).keys(keys.clone())
}

async fn connect(url: &str) -> Client {
    let client = Client::builder()
        .answer_manually([AskKind::Form])
        .connect(url);
    client.await.expect("a server")
}

async fn start_pending(url: &str) -> PendingCall {
    let call = CallSpec::tool("remove");
    match connect(url).await.start(call).await.expect("a round") {
        RoundOutcome::Pending(pending) => pending,
        RoundOutcome::Complete(result) => panic!("completed without an ask: {result}"),
    }
}

#[tokio::test]
async fn stored_call_resumes_at_another_address() {
    let keys = KeyRing::generate(&SystemSource::new());
    let first = serve_forever(server(&keys)).await;
    let text = serde_json::to_string(&start_pending(&first).await).unwrap();

    let second = serve_forever(server(&keys)).await;
    assert_ne!(first, second);
    let mut pending: PendingCall = serde_json::from_str(&text).unwrap();
    let asks = pending.unanswered();
    let [IncomingAsk::Form(ask)] = asks.as_slice() else {
        panic!("{asks:?}")
    };
    assert_eq!(ask.message, "Remove everything?");
    assert_eq!(ask.asker.server.as_deref(), Some("files"));
    assert_eq!(ask.asker.address, first);
    assert_eq!(ask.form.fields().len(), 1);
    pending
        .answer("confirm", AskAnswer::accept(json!({"sure": true})).unwrap())
        .unwrap();
    let result = connect(&second).await.finish(pending).await.unwrap();
    assert_eq!(result["content"][0]["text"], "Removed.");
}

#[tokio::test]
async fn pending_call_round_trips_through_json() {
    let url = serve_forever(server(&KeyRing::generate(&SystemSource::new()))).await;
    let mut pending = start_pending(&url).await;
    let round_trip = |pending: &PendingCall| {
        let text = serde_json::to_string(pending).unwrap();
        let read: PendingCall = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        read
    };
    pending = round_trip(&pending);
    pending.answer("confirm", AskAnswer::Decline).unwrap();
    pending = round_trip(&pending);
    assert!(pending.unanswered().is_empty());
    assert_eq!(pending.round(), 1);
}

#[tokio::test]
async fn debug_output_hides_state_and_answers() {
    let url = serve_forever(server(&KeyRing::generate(&SystemSource::new()))).await;
    let mut pending = start_pending(&url).await;
    pending
        .answer("confirm", AskAnswer::accept(json!({"sure": true})).unwrap())
        .unwrap();
    let text = serde_json::to_value(&pending).unwrap();
    let state = text["state"].as_str().unwrap();
    let call_id = text["callId"].as_str().unwrap();
    let debug = format!("{pending:?} {pending:#?}");
    assert!(!debug.contains(state));
    assert!(!debug.contains(call_id));
    assert!(!debug.contains("sure"));
    assert!(debug.contains("confirm"), "keys of asks are shown");
}

#[test]
fn invalid_stored_call_is_rejected_with_a_reason() {
    for (text, word) in [
        ("{}", "format"),
        (
            r#"{"format":9,"address":"","call":{"method":"tools/call","target":"t"},"callId":"c","round":1}"#,
            "format 9",
        ),
        (
            r#"{"format":1,"address":"","call":{"method":"dance","target":"t"},"callId":"c","round":1}"#,
            "dance",
        ),
        (
            r#"{"format":1,"address":"","call":{"method":"tools/call","target":"t"},"callId":"c","round":1,"more":1}"#,
            "more",
        ),
    ] {
        let error = serde_json::from_str::<PendingCall>(text)
            .unwrap_err()
            .to_string();
        assert!(error.contains(word), "{text}: {error}");
    }
}

async fn remove_two(cx: Cx) -> Result<String> {
    let (one, two) = tokio::try_join!(
        cx.elicit::<Confirm>("one", "Remove the first?"),
        cx.elicit::<Confirm>("two", "Remove the second?"),
    )?;
    Ok(format!("{} {}", one.sure, two.sure))
}

/// After a crash, the last observed state is enough to resume the call.
#[tokio::test]
async fn on_pending_reports_every_state_change() {
    let tool = Tool::new("remove_two", remove_two);
    let url = serve_forever(Server::builder("files", "1").tool(tool)).await;
    let (sender, mut states) = tokio::sync::mpsc::unbounded_channel();
    let client = Client::builder()
        .on_form(|ask| async move {
            if ask.key == "two" {
                std::future::pending::<()>().await;
            }
            Ok(AskAnswer::accept(json!({"sure": true}))?)
        })
        .on_pending(move |pending| {
            let text = serde_json::to_string(pending).unwrap();
            sender
                .send((pending.round(), pending.unanswered().len(), text))
                .unwrap();
        })
        .connect(&url);
    let client = client.await.unwrap();
    let call = tokio::spawn(async move { client.call(CallSpec::tool("remove_two")).await });
    let (round, open, _) = states.recv().await.unwrap();
    assert_eq!((round, open), (1, 2));
    let (round, open, text) = states.recv().await.unwrap();
    assert_eq!((round, open), (1, 1));
    call.abort();

    let mut pending: PendingCall = serde_json::from_str(&text).unwrap();
    pending
        .answer("two", AskAnswer::accept(json!({"sure": false})).unwrap())
        .unwrap();
    let result = connect(&url).await.finish(pending).await.unwrap();
    assert_eq!(result["content"][0]["text"], "true false");
}

/// An observer that saves the call writes it once for all of them.
#[tokio::test]
async fn answers_that_are_ready_are_reported_together() {
    let tool = Tool::new("remove_two", remove_two);
    let url = serve_forever(Server::builder("files", "1").tool(tool)).await;
    let (sender, mut states) = tokio::sync::mpsc::unbounded_channel();
    let client = Client::builder()
        .on_form(|_| async { Ok(AskAnswer::accept(json!({"sure": true}))?) })
        .on_pending(move |pending| sender.send(pending.unanswered().len()).unwrap())
        .connect(&url);
    let client = client.await.unwrap();
    client.call(CallSpec::tool("remove_two")).await.unwrap();
    drop(client);
    let mut open = Vec::new();
    while let Some(count) = states.recv().await {
        open.push(count);
    }
    assert_eq!(open, [2, 0]);
}

#[tokio::test]
async fn failed_resume_keeps_the_original_address() {
    let first = serve_forever(server(&KeyRing::generate(&SystemSource::new()))).await;
    let other = serve_forever(server(&KeyRing::generate(&SystemSource::new()))).await;
    let mut pending = start_pending(&first).await;
    pending.answer("confirm", AskAnswer::Decline).unwrap();
    let error = connect(&other).await.finish(pending).await.unwrap_err();
    let pending = error.pending.expect("the error contains the call");
    assert_eq!(pending.address(), first);
    assert!(pending.unanswered().is_empty(), "its answer is kept");
}

#[test]
fn stored_calls_of_every_stage_are_read_and_written_unchanged() {
    let ask = r#"{"method":"elicitation/create","params":{"mode":"url","message":"Go","url":"https://a.example/"}}"#;
    let start = r#"{"format":1,"address":"http://127.0.0.1:1/mcp","server":"files","call":{"method":"tools/call","target":"t","arguments":{"b":1,"a":2}},"callId":"c1""#;
    for (stage, task, is_unclear) in [
        (r#","round":0,"unclear":true}"#.to_owned(), None, true),
        (
            format!(
                r#","round":2,"asks":{{"z":{ask},"a":{ask}}},"answers":{{"a":{{"action":"accept"}}}},"state":"s"}}"#
            ),
            None,
            false,
        ),
        (
            format!(r#","round":1,"asks":{{"ask-1":{ask}}},"byError":"visit first"}}"#),
            None,
            false,
        ),
        (
            format!(r#","round":1,"asks":{{"b":{ask}}},"task":"t1","answered":["a"]}}"#),
            Some("t1"),
            false,
        ),
    ] {
        let text = format!("{start}{stage}");
        let pending: PendingCall = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (pending.task_id(), pending.is_delivery_unknown()),
            (task, is_unclear)
        );
        assert_eq!(serde_json::to_string(&pending).unwrap(), text);
    }
}
