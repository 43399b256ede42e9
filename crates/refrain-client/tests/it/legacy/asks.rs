//! Asks of a legacy server during a call.

use super::support::{
    Events, FakeServer, Received, Respond, called, form, legacy_greeting, spawn, until, within,
};
use refrain_client::wire::{AskKind, CallKind, Root};
use refrain_client::{AskAnswer, Client, ClientLimits, ErrorKind};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{Barrier, Notify};

/// A client that fills in forms.
fn with_form_handler() -> refrain_client::ClientBuilder {
    Client::builder().on_form(|_| async { Ok(AskAnswer::accept(json!({"b": "y"}))?) })
}

#[tokio::test]
async fn form_is_answered_with_its_defaults() {
    let builder = Client::builder().on_form(|ask| async move {
        assert_eq!(ask.key, "ask-1");
        assert_eq!(ask.message, "Which?");
        assert_eq!(ask.asker.kind, CallKind::Tool);
        assert_eq!(ask.asker.target, "form");
        assert_eq!(ask.asker.server.as_deref(), Some("old"));
        Ok(AskAnswer::accept(json!({"b": "y"}))?)
    });
    let client = spawn(builder, &["2025-06-18"]).await.unwrap();
    let answer = called(&client, "form").await.unwrap();
    let content = json!({"a": "x", "b": "y"});
    assert_eq!(answer, json!({"action": "accept", "content": content}));
}

#[tokio::test]
async fn form_on_the_stream_of_its_call_is_answered() {
    let server = FakeServer::legacy(|request, server| {
        let (writer, response) = Events::new();
        writer.ask("q", "elicitation/create", &form("Which?"));
        writer.after(
            server,
            |request| request.message["id"] == "q",
            request.text("done"),
        );
        response
    })
    .await;
    let client = with_form_handler().connect(&server.url).await.unwrap();
    assert_eq!(called(&client, "t").await.unwrap(), "done");
    let answer = &server.received(|request| request.message["id"] == "q")[0];
    assert_eq!(answer.message["result"]["content"], json!({"b": "y"}));
    assert_eq!(answer.header("mcp-session-id"), Some("s1"));
    assert_eq!(answer.header("mcp-protocol-version"), Some("2025-11-25"));
}

#[tokio::test]
async fn answer_is_retried_while_the_server_is_busy() {
    let server = FakeServer::start_with(|request, server| {
        let is_answer = |request: &Received| request.message["id"] == "q";
        if is_answer(request) {
            return match server.received(is_answer).len() {
                1 => Respond::RetryAfter(503, "0"),
                _ => Respond::Status(202),
            };
        }
        legacy_greeting(request, "2025-11-25", "s1").unwrap_or_else(|| {
            let (writer, response) = Events::new();
            writer.ask("q", "elicitation/create", &form("Which?"));
            let (server, done) = (server.clone(), request.text("done"));
            tokio::spawn(async move {
                until("two answers", || server.received(is_answer).len() == 2).await;
                writer.message(&done);
            });
            response
        })
    })
    .await;
    let client = with_form_handler().connect(&server.url).await.unwrap();
    assert_eq!(called(&client, "t").await.unwrap(), "done");
    let answers = server.received(|request| request.message["id"] == "q");
    assert_eq!(answers[0].message, answers[1].message);
}

#[tokio::test]
async fn asks_are_answered_concurrently() {
    let both = Arc::new(Barrier::new(2));
    let builder = Client::builder().on_form(move |ask| {
        let both = Arc::clone(&both);
        async move {
            both.wait().await;
            Ok(AskAnswer::accept(json!({"b": ask.message}))?)
        }
    });
    let client = spawn(builder, &[]).await.unwrap();
    let answers = called(&client, "both").await.unwrap();
    assert_eq!(answers[0]["content"]["b"], "one");
    assert_eq!(answers[1]["content"]["b"], "two");
}

#[tokio::test]
async fn withdrawn_ask_aborts_its_handler() {
    struct DropFlag(Arc<AtomicBool>);
    impl Drop for DropFlag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let (aborted, progress) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
    let (flag, heard) = (Arc::clone(&aborted), Arc::clone(&progress));
    let asked = Arc::new(Notify::new());
    let started = Arc::clone(&asked);
    let builder = Client::builder()
        .on_form(move |_| {
            let guard = DropFlag(Arc::clone(&flag));
            started.notify_one();
            async move {
                std::future::pending::<()>().await;
                drop(guard);
                Ok(AskAnswer::Cancel)
            }
        })
        .on_progress(move |_| heard.notify_one());
    let client = spawn(builder, &[]).await.unwrap();
    let meanwhile = async {
        within("the ask", asked.notified()).await;
        let after = async {
            until("the handler is aborted", || aborted.load(Ordering::SeqCst)).await;
            called(&client, "meta").await
        };
        let (first, second) = futures_util::future::join(called(&client, "meta"), after).await;
        first.and(second).unwrap();
    };
    let call = called(&client, "withdrawn early");
    let (result, ()) = futures_util::future::join(call, meanwhile).await;
    assert_eq!(result.unwrap(), "withdrawn");
    within("progress during the ask", progress.notified()).await;
    let notes = called(&client, "notes").await.unwrap();
    let notes = notes.as_array().unwrap();
    assert!(
        notes.iter().all(|note| note["id"] != "s1"),
        "withdrawn asks are not answered: {notes:?}"
    );
}

#[tokio::test]
async fn failed_handler_cancels_and_is_reported_in_the_call_error() {
    let builder = Client::builder().on_form(|_| async { Err("no terminal".into()) });
    let client = spawn(builder, &[]).await.unwrap();
    let answer = called(&client, "form").await.unwrap();
    assert_eq!(answer, json!({"action": "cancel"}));

    let error = called(&client, "insist").await.unwrap_err();
    let ErrorKind::Unanswered(unanswered) = &error.kind else {
        panic!("{error}");
    };
    assert_eq!(unanswered[0].key, "ask-1");
    let why = &unanswered[0].why;
    assert!(why.contains("no terminal"), "{why}");
    assert!(why.contains("no answer, no result"), "{why}");
}

#[tokio::test]
async fn invalid_answer_is_not_sent() {
    let builder = Client::builder().on_form(|_| async { Ok(AskAnswer::accept(json!({"b": 7}))?) });
    let client = spawn(builder, &[]).await.unwrap();
    let answer = called(&client, "form").await.unwrap();
    assert_eq!(answer, json!({"action": "cancel"}));
}

#[tokio::test]
async fn unanswered_request_gets_an_error_response() {
    let client = spawn(Client::builder(), &[]).await.unwrap();
    for tool in ["sample", "roots", "odd"] {
        let error = called(&client, tool).await.unwrap();
        assert_eq!(error["code"], -32601, "{tool}: {error}");
    }
    let builder = Client::builder()
        .on_sampling(|_| async { Err("no model".into()) })
        .on_roots(|_| async { Err("no disk".into()) });
    let client = spawn(builder, &[]).await.unwrap();
    let error = called(&client, "sample tools").await.unwrap();
    assert_eq!(error["code"], -32602, "sampling with tools is not declared");
    let error = called(&client, "sample").await.unwrap();
    assert_eq!(error, json!({"code": -1, "message": "no model"}));
    let error = called(&client, "roots").await.unwrap();
    assert_eq!(error, json!({"code": -32603, "message": "no disk"}));
}

#[tokio::test]
async fn roots_are_sent() {
    let builder = Client::builder().on_roots(|ask| async move {
        assert_eq!(ask.asker.target, "roots");
        Ok(vec![Root {
            uri: "file:///home".to_owned(),
            name: None,
        }])
    });
    let client = spawn(builder, &[]).await.unwrap();
    let roots = called(&client, "roots").await.unwrap();
    assert_eq!(roots["roots"][0]["uri"], "file:///home");
}

#[tokio::test]
async fn endless_asking_hits_the_ask_limit() {
    let limits = ClientLimits {
        asks: 5,
        ..ClientLimits::default()
    };
    let client = spawn(with_form_handler().limits(limits), &[])
        .await
        .unwrap();
    let error = called(&client, "endless").await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::TooManyAsks { limit: 5, .. });
}

#[tokio::test]
async fn large_ask_ends_the_call() {
    let ask_bytes = 1000;
    let limits = ClientLimits {
        ask_bytes,
        ..ClientLimits::default()
    };
    let client = with_form_handler().limits(limits);
    let server = FakeServer::legacy(move |request, server| {
        let (writer, response) = Events::new();
        let bytes: usize = request.message["params"]["name"]
            .as_str()
            .and_then(|name| name.parse().ok())
            .expect("a size");
        // Minus the rest of the parameters.
        let rest = form("").to_string().len();
        writer.ask("q", "elicitation/create", &form(&"m".repeat(bytes - rest)));
        writer.after(
            server,
            |request| request.message["id"] == "q",
            request.text("done"),
        );
        response
    })
    .await;
    let client = client.connect(&server.url).await.unwrap();
    assert_eq!(
        called(&client, &ask_bytes.to_string()).await.unwrap(),
        "done"
    );
    let error = called(&client, &(ask_bytes + 1).to_string())
        .await
        .unwrap_err();
    assert_matches!(error.kind, ErrorKind::TooLarge { limit: 1000, .. });
}

#[tokio::test]
async fn only_kinds_with_handlers_are_declared() {
    let builder = with_form_handler().answer_manually([AskKind::Url, AskKind::Sampling]);
    let client = spawn(builder, &[]).await.unwrap();
    let greeting = called(&client, "greeting").await.unwrap();
    assert_eq!(
        greeting["capabilities"],
        json!({"elicitation": {"form": {}}})
    );
    assert_eq!(greeting["clientInfo"]["name"], "refrain-client");
    // Metadata of 2026-07-28 is not sent to a legacy server.
    assert_eq!(called(&client, "meta").await.unwrap(), json!({}));

    let client = spawn(with_form_handler().on_progress(|_| {}), &[])
        .await
        .unwrap();
    let meta = called(&client, "meta").await.unwrap();
    let members: Vec<_> = meta.as_object().unwrap().keys().collect();
    assert_eq!(members, ["progressToken"]);
}
