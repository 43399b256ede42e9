//! Streamed responses: progress, log messages and the reply.

use crate::support::{
    CAPABILITIES_KEY, Connection, LOG_LEVEL_KEY, Login, Request, Signals, Word, accept, asked,
    expect_signal, signals, start, text, token,
};
use refrain_core::{Cx, Error, Result};
use refrain_server::{Server, ServerBuilder, ServerLimits, State, Tool};
use refrain_wire::LogLevel;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Counts to three and reports each step.
async fn count(cx: Cx) -> Result<String> {
    for n in 1..=3 {
        cx.progress(f64::from(n), Some(3.0), &format!("counted {n}"));
        cx.log(LogLevel::Info, format!("at {n}"));
        cx.checkpoint("count", &n).await?;
    }
    cx.log(LogLevel::Debug, "no more");
    Ok("three".into())
}

/// Reports before, between and after two asks.
async fn interview(cx: Cx) -> Result<String> {
    cx.progress(1.0, None, "");
    cx.log(LogLevel::Info, "before");
    let first: Login = cx.elicit("first", "Who?").await?;
    cx.progress(2.0, None, "");
    cx.log(LogLevel::Info, "between");
    let second: Login = cx.elicit("second", "Who else?").await?;
    cx.progress(3.0, None, "");
    cx.log(LogLevel::Info, "after");
    Ok(format!("{} and {}", first.name, second.name))
}

/// Logs a message, then waits.
async fn slow(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    cx.log(LogLevel::Warning, json!({"step": 1}));
    signals.pass().await;
    Ok("done".into())
}

/// Waits without a message, then asks.
async fn silent(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    signals.pass().await;
    let login: Login = cx.elicit("login", "Who?").await?;
    Ok(login.name)
}

/// Reports progress that does not always increase.
async fn stuck(cx: Cx) -> Result<String> {
    for done in [1.0, 1.0, 0.5, 2.0, 2.0] {
        cx.progress(done, None, "");
    }
    Ok("stuck".into())
}

/// Reports numbers that are not finite among finite ones.
async fn non_finite(cx: Cx) -> Result<String> {
    for done in [f64::NAN, 1.5, f64::INFINITY, 2.0, f64::NEG_INFINITY] {
        cx.progress(done, Some(f64::NAN), "");
    }
    Ok("non_finite".into())
}

/// Reports more notes than the limit.
async fn flood(cx: Cx) -> Result<String> {
    for n in 1..=1000 {
        cx.progress(f64::from(n), None, "");
        cx.log(LogLevel::Info, format!("{n}"));
    }
    Ok("flooded".into())
}

/// Reports its argument, waits, and reports it again.
async fn named(cx: Cx, signals: State<Arc<Signals>>, word: Word) -> Result<String> {
    cx.progress(1.0, None, &word.text);
    cx.log(LogLevel::Info, word.text.as_str());
    signals.say("reported");
    signals.pass().await;
    cx.progress(2.0, None, &word.text);
    cx.log(LogLevel::Info, word.text.as_str());
    Ok(word.text)
}

/// Reports and fails.
async fn failing(cx: Cx) -> Result<String> {
    cx.log(LogLevel::Error, "about to fail");
    Err(Error::internal("a secret reason"))
}

fn builder() -> (ServerBuilder, Arc<Signals>) {
    let (signals, _) = signals();
    let builder = Server::builder("streams", "1")
        .tool(Tool::new("count", count))
        .tool(Tool::new("interview", interview))
        .tool(Tool::new("slow", slow))
        .tool(Tool::new("silent", silent))
        .tool(Tool::new("stuck", stuck))
        .tool(Tool::new("non_finite", non_finite))
        .tool(Tool::new("failing", failing))
        .state(signals.clone());
    (builder, signals)
}

fn progress(token: Value, done: i32) -> Value {
    let mut note = json!({"jsonrpc": "2.0", "method": "notifications/progress"});
    note["params"]["progressToken"] = token;
    note["params"]["progress"] = done.into();
    note
}

fn counted(token: Value, done: i32) -> Value {
    let mut note = progress(token, done);
    note["params"]["total"] = json!(3);
    note["params"]["message"] = json!(format!("counted {done}"));
    note
}

fn log(level: &str, data: &str) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/message",
        "params": {"level": level, "data": data}})
}

#[tokio::test]
async fn progress_and_logs_precede_the_result_in_order() {
    let instance = start(builder().0).await;
    let request = Request::tool("count", json!({})).id(json!("q"));
    let request = request.meta(LOG_LEVEL_KEY, json!("debug"));
    for progress_token in [json!("mine"), json!(17)] {
        let request = request
            .clone()
            .meta("progressToken", progress_token.clone());
        let response = instance.send(&request).await;
        assert_eq!(response.status, 200);
        assert_eq!(response.header("x-accel-buffering"), Some("no"));
        assert_eq!(
            response.header("cache-control"),
            Some("no-cache, no-transform")
        );
        assert_eq!(response.header("content-length"), None);
        let mut events = response.events();
        let last = events.pop().unwrap();
        assert_eq!((text(&last), &last["id"]), ("three", &json!("q")));
        let mut expected = Vec::new();
        for n in 1..=3 {
            expected.push(counted(progress_token.clone(), n));
            expected.push(log("info", &format!("at {n}")));
        }
        expected.push(log("debug", "no more"));
        assert_eq!(events, expected);
    }
}

#[tokio::test]
async fn reply_without_subscription_is_one_json_object() {
    let instance = start(builder().0).await;
    let response = instance.send(&Request::tool("count", json!({}))).await;
    assert_eq!(text(&response.reply()), "three");
    assert_eq!(response.header("x-accel-buffering"), None);
    let response = instance.send(&Request::tool("interview", json!({}))).await;
    assert_eq!(asked(&response.reply()), ["first"]);
}

#[tokio::test]
async fn logs_below_the_level_are_omitted() {
    let instance = start(builder().0).await;
    let count = || Request::tool("count", json!({}));
    // Without any message there is no stream.
    let response = instance
        .send(&count().meta(LOG_LEVEL_KEY, json!("notice")))
        .await;
    assert_eq!(text(&response.reply()), "three");
    let response = instance
        .send(&count().meta(LOG_LEVEL_KEY, json!("info")))
        .await;
    let events = response.events();
    assert_eq!(
        events[..3],
        [
            log("info", "at 1"),
            log("info", "at 2"),
            log("info", "at 3")
        ]
    );
    assert_eq!((events.len(), text(&events[3])), (4, "three"));
}

#[tokio::test]
async fn progress_token_alone_subscribes_only_to_progress() {
    let instance = start(builder().0).await;
    let request = Request::tool("count", json!({})).meta("progressToken", json!("p"));
    let events = instance.send(&request).await.events();
    assert_eq!(events[..3], [1, 2, 3].map(|n| counted(json!("p"), n)));
    assert_eq!((events.len(), text(&events[3])), (4, "three"));
}

#[tokio::test]
async fn progress_that_does_not_increase_is_omitted() {
    let instance = start(builder().0).await;
    let request = Request::tool("stuck", json!({})).meta("progressToken", json!(1));
    let events = instance.send(&request).await.events();
    assert_eq!(events[..2], [progress(json!(1), 1), progress(json!(1), 2)]);
    assert_eq!((events.len(), text(&events[2])), (3, "stuck"));
}

#[tokio::test]
async fn non_finite_progress_is_omitted() {
    let instance = start(builder().0).await;
    let request = Request::tool("non_finite", json!({})).meta("progressToken", json!(1));
    let events = instance.send(&request).await.events();
    let mut half = progress(json!(1), 0);
    half["params"]["progress"] = json!(1.5);
    assert_eq!(events[..2], [half, progress(json!(1), 2)]);
    assert_eq!((events.len(), text(&events[2])), (3, "non_finite"));
}

#[tokio::test]
async fn of_too_many_notes_only_the_latest_are_sent() {
    let mut limits = ServerLimits::default();
    limits.flow.notes = 4;
    let builder = Server::builder("streams", "1").tool(Tool::new("flood", flood));
    let instance = start(builder.limits(limits)).await;
    let request = Request::tool("flood", json!({}))
        .meta("progressToken", json!(1))
        .meta(LOG_LEVEL_KEY, json!("info"));
    let events = instance.send(&request).await.events();
    let last = [999, 1000].map(|n| [progress(json!(1), n), log("info", &n.to_string())]);
    assert_eq!(events[..4], last.concat());
    assert_eq!((events.len(), text(&events[4])), (5, "flooded"));
}

#[tokio::test]
async fn stream_has_only_the_notes_of_its_call() {
    let (signals, mut received) = signals();
    let builder = Server::builder("streams", "1").tool(Tool::new("named", named));
    let instance = start(builder.state(signals.clone())).await;
    let names = ["ann", "bob", "cid"];
    let mut connections = Vec::new();
    for name in names {
        let mut connection = instance.connect().await;
        let request = Request::tool("named", json!({"text": name})).id(json!(name));
        let request = request.meta("progressToken", json!(name));
        connection
            .send(&request.meta(LOG_LEVEL_KEY, json!("info")))
            .await;
        expect_signal(&mut received, "reported").await;
        connections.push(connection);
    }
    // All calls run at the same time.
    assert_eq!(instance.server.running(), names.len());
    names.iter().for_each(|_| signals.open());
    for (name, connection) in names.iter().zip(&mut connections) {
        let events = connection.response().await.events();
        let notes = [1, 2].map(|n| {
            let mut note = progress(json!(name), n);
            note["params"]["message"] = json!(name);
            [note, log("info", name)]
        });
        assert_eq!(events[..4], notes.concat());
        assert_eq!((events.len(), text(&events[4])), (5, *name));
        assert_eq!(events[4]["id"], *name);
    }
}

#[tokio::test]
async fn replayed_notes_are_not_sent_again() {
    let instance = start(builder().0).await;
    let plain = || {
        Request::tool("interview", json!({}))
            .meta("progressToken", json!("p"))
            .meta(LOG_LEVEL_KEY, json!("info"))
    };
    let first = instance.send(&plain()).await.events();
    assert_eq!(first[..2], [progress(json!("p"), 1), log("info", "before")]);
    assert_eq!((first.len(), asked(&first[2])), (3, vec!["first"]));

    let request = plain().again(&token(&first[2]), json!({"first": accept("ann")}));
    let second = instance.send(&request).await.events();
    assert_eq!(
        second[..2],
        [progress(json!("p"), 2), log("info", "between")]
    );
    assert_eq!((second.len(), asked(&second[2])), (3, vec!["second"]));

    let request = plain().again(&token(&second[2]), json!({"second": accept("bob")}));
    let third = instance.send(&request).await.events();
    assert_eq!(third[..2], [progress(json!("p"), 3), log("info", "after")]);
    assert_eq!((third.len(), text(&third[2])), (3, "ann and bob"));

    // A round that gets no further replays nothing and sends the same notes.
    let request = plain().again(&token(&first[2]), json!({}));
    let same = instance.send(&request).await.events();
    assert_eq!(same[..2], first[..2]);
    assert_eq!((same.len(), asked(&same[2])), (3, vec!["first"]));
}

#[tokio::test]
async fn events_are_sent_immediately() {
    let (builder, signals) = builder();
    let instance = start(builder).await;
    let mut connection = instance.connect().await;
    let request = Request::tool("slow", json!({})).meta(LOG_LEVEL_KEY, json!("debug"));
    connection.send(&request).await;
    let head = connection.head().await;
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    let event = connection.event().await.unwrap();
    assert_eq!(
        event["params"],
        json!({"level": "warning", "data": {"step": 1}})
    );
    // The handler still runs, and continues only now.
    assert_eq!(instance.server.running(), 1);
    signals.open();
    assert_eq!(text(&connection.event().await.unwrap()), "done");
    assert_eq!(connection.event().await, None);
    // The connection can be reused.
    let next = connection
        .exchange(&Request::tool("stuck", json!({})))
        .await;
    assert_eq!(text(&next.reply()), "stuck");
}

#[tokio::test]
async fn error_is_the_last_event() {
    let instance = start(builder().0).await;
    let request = Request::tool("failing", json!({})).meta(LOG_LEVEL_KEY, json!("error"));
    let response = instance.send(&request).await;
    let events = response.events();
    assert_eq!(
        (events.len(), &events[0]),
        (2, &log("error", "about to fail"))
    );
    assert_eq!(events[1]["error"]["code"], -32603);
    assert!(!String::from_utf8_lossy(&response.body).contains("secret"));
    // The same for an unsupported ask after a note.
    let request = Request::tool("interview", json!({})).meta("progressToken", json!(1));
    let events = instance
        .send(&request.meta(CAPABILITIES_KEY, json!({})))
        .await
        .events();
    assert_eq!(
        (events.len(), &events[1]["error"]["code"]),
        (2, &json!(-32021))
    );
}

fn brief_keep_alive() -> ServerLimits {
    ServerLimits {
        keep_alive: Duration::from_millis(10),
        ..ServerLimits::default()
    }
}

#[tokio::test]
async fn silent_call_becomes_a_stream_with_keep_alives() {
    let (builder, signals) = builder();
    let instance = start(builder.limits(brief_keep_alive())).await;
    let call = Request::tool("silent", json!({}));
    let mut connection = instance.connect().await;
    connection.send(&call).await;
    let head = connection.head().await;
    assert_eq!(head.status, 200);
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    for _ in 0..3 {
        assert_eq!(connection.block().await.as_deref(), Some(":"));
    }
    signals.open();
    let reply = next_event(&mut connection).await;
    assert_eq!(asked(&reply), ["login"]);
    assert_eq!(connection.event().await, None);

    // The status is sent before the error is known.
    connection
        .send(&call.clone().meta(CAPABILITIES_KEY, json!({})))
        .await;
    assert_eq!(connection.head().await.status, 200);
    signals.open();
    let reply = next_event(&mut connection).await;
    assert_eq!(reply["error"]["code"], -32021);
    assert_eq!(connection.event().await, None);
}

/// The next message, after any number of keep-alives.
async fn next_event(connection: &mut Connection) -> Value {
    loop {
        let block = connection.block().await.expect("an event");
        if let Some((_, data)) = block.split_once("data: ") {
            return serde_json::from_str(data).expect("JSON");
        }
        assert_eq!(block, ":");
    }
}

#[tokio::test]
async fn silent_call_without_accept_stays_one_json_object() {
    let (builder, signals) = builder();
    let instance = start(builder.limits(brief_keep_alive())).await;
    let call = Request::tool("silent", json!({}));
    let mut plain = instance.connect().await;
    plain
        .send(&call.clone().header("Accept", "application/json"))
        .await;
    let mut streamed = instance.connect().await;
    streamed.send(&call).await;
    streamed.head().await;
    for _ in 0..3 {
        assert_eq!(streamed.block().await.as_deref(), Some(":"));
    }
    signals.open();
    signals.open();
    let response = plain.response().await;
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(asked(&response.reply()), ["login"]);
}
