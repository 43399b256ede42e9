//! Scoped clients: several sets of handlers on one connection.

use crate::legacy::support::{called, form, legacy_greeting, python, spawn, without_asks};
use crate::support::{FakeServer, Respond, until, within};
use parking_lot::Mutex;
use refrain_client::wire::LogLevel;
use refrain_client::{
    AskAnswer, AskKind, Client, ClientBuilder, ClientLimits, ErrorKind, WireMessage,
};
use refrain_testkit::net::Events;
use rustix::process::{Pid, test_kill_process};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::Notify;

const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

type Record = Arc<Mutex<Vec<String>>>;

/// Handlers that answer forms with this name, and record all messages.
fn recording(name: &'static str, record: &Record) -> impl FnOnce(ClientBuilder) -> ClientBuilder {
    let (asks, progress, log) = (Arc::clone(record), Arc::clone(record), Arc::clone(record));
    move |builder| {
        builder
            .on_form(move |ask| {
                asks.lock().push(format!("{name}: {}", ask.message));
                async move { Ok(AskAnswer::accept(json!({"b": name}))?) }
            })
            .on_progress(move |step| {
                let message = step.message.unwrap_or_default();
                progress.lock().push(format!("{name}: {message}"));
            })
            .on_log(LogLevel::Warning, move |message| {
                log.lock().push(format!("{name}: {}", message.data));
            })
    }
}

fn sorted(record: &Record) -> Vec<String> {
    let mut sorted = record.lock().clone();
    sorted.sort();
    sorted
}

#[tokio::test]
async fn scoped_clients_have_their_own_capabilities_handlers_and_limits() {
    let server = FakeServer::start(|request| {
        let params = &request["params"];
        if let Some(answers) = params.get("inputResponses") {
            return Respond::text(answers["it"]["content"]["b"].as_str().unwrap_or_default());
        }
        let token = &params["_meta"]["progressToken"];
        let step = json!({"progressToken": token, "progress": 1, "message": request.tool()});
        let ask = json!({"method": "elicitation/create", "params": form(request.tool())});
        let result = json!({"resultType": "input_required", "inputRequests": {"it": ask}});
        Respond::stream(
            request,
            &[
                json!({"method": "notifications/progress", "params": step}),
                json!({"result": result}),
            ],
        )
    })
    .await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let record = Record::default();
    let ada = client.scoped(recording("ada", &record));
    let bob = client.scoped(recording("bob", &record));
    let (first, second) = tokio::join!(called(&ada, "one"), called(&bob, "two"));
    assert_eq!(
        (first.unwrap(), second.unwrap()),
        ("ada".into(), "bob".into())
    );
    let expected = ["ada: one", "ada: one", "bob: two", "bob: two"];
    assert_eq!(sorted(&record), expected);
    called(&client, "three").await.unwrap_err();
    let limits = ClientLimits {
        rounds: 1,
        ..ClientLimits::default()
    };
    let limited = ada.scoped(|ada| ada.limits(limits));
    let error = called(&limited, "four").await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::TooManyRounds(1));
    let manual = client.scoped(|base| base.answer_manually([AskKind::Url]));
    called(&manual, "five").await.unwrap_err();
    let declared = |tool: &str| {
        let calls = server.received(|request| request.tool() == tool);
        calls[0]["params"]["_meta"][CAPABILITIES]["elicitation"].clone()
    };
    let both = json!({"form": {}});
    assert_eq!([declared("one"), declared("two")], [both.clone(), both]);
    assert_eq!(declared("three"), Value::Null);
    assert_eq!(declared("five"), json!({"url": {}}));
}

/// A legacy server with a session stream, on which it sends progress and log messages of each call before it asks.
async fn server_with_session_stream() -> FakeServer {
    let stream: Arc<Mutex<Option<Events>>> = Arc::default();
    FakeServer::start_with(move |request, server| {
        if request.verb == "GET" {
            let (writer, response) = Events::new();
            *stream.lock() = Some(writer);
            return response;
        }
        if let Some(response) = legacy_greeting(request, "2025-06-18", "s1") {
            return response;
        }
        let tool = request.tool().to_owned();
        let token = &request["params"]["_meta"]["progressToken"];
        let step = json!({"progressToken": token, "progress": 1, "message": tool});
        let of_session = |method: &str, params: &Value| {
            let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
            stream.lock().as_ref().expect("a stream").message(&message);
        };
        of_session("notifications/progress", &step);
        for level in ["info", "error"] {
            of_session(
                "notifications/message",
                &json!({"level": level, "data": tool}),
            );
        }
        let (writer, response) = Events::new();
        writer.ask(&tool, "elicitation/create", &form(&tool));
        let result = request.text(&tool);
        writer.after(server, move |answer| answer["id"] == tool.as_str(), result);
        response
    })
    .await
}

#[tokio::test]
async fn session_stream_notifications_reach_the_scoped_client_of_their_call() {
    let server = server_with_session_stream().await;
    let client = without_asks().connect(&server.url).await.unwrap();
    let record = Record::default();
    let ada = client.scoped(recording("ada", &record));
    // The call ends only after these notifications.
    let ada_after = |expected: &'static [&'static str]| {
        let record = Arc::clone(&record);
        ada.scoped(move |ada| {
            ada.on_form(move |_| {
                let record = Arc::clone(&record);
                async move {
                    until("the notifications", || sorted(&record) == expected).await;
                    Ok(AskAnswer::accept(json!({"b": "x"}))?)
                }
            })
        })
    };
    let notified = ada_after(&["ada: \"one\"", "ada: one"]);
    assert_eq!(called(&notified, "one").await.unwrap(), "one");
    record.lock().clear();
    // While a call of another scoped client is in flight, the call of a log message is unknown.
    let is_asked = Arc::new(Notify::new());
    let asked = Arc::clone(&is_asked);
    let waiting = client.scoped(move |bob| {
        bob.on_form(move |_| {
            asked.notify_one();
            std::future::pending()
        })
        .on_log(LogLevel::Debug, |message| assert_ne!(message.data, "three"))
    });
    tokio::select! {
        biased;
        ended = waiting.call_tool("two", json!({})) => panic!("the call waits: {ended:?}"),
        () = async {
            is_asked.notified().await;
            let notified = ada_after(&["ada: three"]);
            assert_eq!(called(&notified, "three").await.unwrap(), "three");
        } => {}
    }
}

#[tokio::test]
async fn renewed_session_declares_the_capabilities_of_the_client_that_connected() {
    let server = FakeServer::start_with(|request, server| {
        let session = ["s1", "s2"][server.count("initialize").saturating_sub(1).min(1)];
        legacy_greeting(request, "2025-11-25", session).unwrap_or_else(|| {
            match request.header("mcp-session-id") {
                Some("s2") => Respond::Json(200, request.text("done")),
                _ => Respond::Status(404),
            }
        })
    })
    .await;
    let client = without_asks().connect(&server.url).await.unwrap();
    let scoped = client.scoped(|base| base.on_roots(|_| async { Ok(Vec::new()) }));
    assert_eq!(called(&scoped, "t").await.unwrap(), "done");
    let declared: Vec<_> = server.requests("initialize");
    let declared: Vec<_> = declared
        .iter()
        .map(|one| &one["params"]["capabilities"])
        .collect();
    assert_eq!(declared.len(), 2);
    assert_eq!(declared[0], declared[1]);
    assert_eq!(declared[1].get("roots"), None);
}

#[tokio::test]
async fn pipe_asks_and_notifications_reach_the_scoped_client() {
    let client = spawn(without_asks(), &[]).await.unwrap();
    let record = Record::default();
    for name in ["ada", "bob"] {
        let scoped = client.scoped(recording(name, &record));
        let answer = called(&scoped, "form").await.unwrap();
        assert_eq!(answer["content"]["b"], name);
        assert_eq!(called(&scoped, "progress").await.unwrap(), "done");
        // The log message is below the level.
        let steps = [format!("{name}: Which?"), format!("{name}: ")];
        let mut expected = steps.to_vec();
        expected.extend([steps[1].clone(), steps[1].clone()]);
        assert_eq!(*record.lock(), expected);
        record.lock().clear();
    }
}

#[tokio::test]
async fn pipe_ask_during_calls_of_two_scoped_clients_is_rejected() {
    let client = spawn(without_asks(), &[]).await.unwrap();
    let [ada, bob] = [(), ()].map(|()| client.scoped(|base| base));
    tokio::select! {
        biased;
        ended = ada.call_tool("wait", json!({})) => panic!("the tool never returns: {ended:?}"),
        answer = called(&bob, "form") => assert_eq!(answer.unwrap()["code"], -32602),
    }
    let record = Record::default();
    let eve = client.scoped(recording("eve", &record));
    assert_eq!(called(&eve, "form").await.unwrap()["content"]["b"], "eve");
}

/// The server waits for the answer to a form of a call that is dropped.
#[tokio::test]
async fn open_ask_of_a_dropped_call_does_not_reach_another_scoped_client() {
    let sent = Record::default();
    let observer = Arc::clone(&sent);
    let builder = without_asks().on_wire(move |message| {
        if let WireMessage::Sent { message } = message {
            observer.lock().push(message.to_owned());
        }
    });
    let client = spawn(builder, &[]).await.unwrap();
    let is_asked = Arc::new(Notify::new());
    let asked = Arc::clone(&is_asked);
    let ada = client.scoped(move |base| {
        base.on_form(move |_| {
            asked.notify_one();
            std::future::pending()
        })
    });
    let first = tokio::spawn(async move { ada.call_tool("form", json!({})).await });
    within("the ask", is_asked.notified()).await;
    let record = Record::default();
    let bob = client.scoped(recording("bob", &record));
    let second = tokio::spawn(async move { called(&bob, "pid").await });
    let is_sent = || sent.lock().iter().any(|one| one.contains("\"pid\""));
    until("the second call", is_sent).await;
    first.abort();
    let pid = within("the second call", second).await.unwrap().unwrap();
    assert!(pid.is_number(), "{pid}");
    assert!(sorted(&record).is_empty(), "{record:?}");
}

#[tokio::test]
async fn last_scoped_client_closes_the_connection() {
    let client = within("the server", Client::builder().spawn(python(&[])));
    let client = client.await.unwrap();
    let pid = called(&client, "pid").await.unwrap().as_i64().unwrap();
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    let scoped = client.scoped(|base| base);
    within("nothing to close", client.close()).await;
    assert!(called(&scoped, "pid").await.is_ok());
    within("the exit", scoped.close()).await;
    assert!(test_kill_process(pid).is_err(), "the process has ended");
}
