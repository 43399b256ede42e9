//! Limits of legacy clients: abandoned calls, sessions with state, long ids.

use crate::support::legacy::{Session, call, filled_in, request};
use crate::support::{
    Guard, Instance, Login, Request, SignalReceiver, Signals, assert_contains, echo, expect_signal,
    greet, keys, login, note, signals, start, start_advertised, text, token,
};
use refrain_core::{Cx, Result};
use refrain_server::{BearerTokens, Resource, Server, ServerBuilder, ServerLimits, State, Tool};
use refrain_testkit::net::until;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Logs, and waits at the gate.
async fn count(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    let _guard = Guard(Arc::clone(&signals));
    cx.log(refrain_wire::LogLevel::Info, "one");
    signals.say("counted");
    signals.pass().await;
    Ok("four".into())
}

async fn asks(cx: Cx) -> Result<String> {
    let login: Login = cx.elicit("login", "Who are you?").await?;
    Ok(login.name)
}

fn builder() -> (ServerBuilder, Arc<Signals>, SignalReceiver) {
    let (signals, received) = signals();
    let builder = Server::builder("legacy", "1")
        .keys(keys())
        .state(signals.clone())
        .tool(Tool::new("asks", asks))
        .tool(Tool::new("count", count))
        .tool(Tool::new("echo", echo))
        .tool(Tool::new("greet", greet))
        .resource(Resource::new("notes://today", "today", note));
    (builder, signals, received)
}

/// The number of live calls of an instance, from its metrics.
fn live_calls(instance: &Instance) -> String {
    let text = instance.server.metrics_text();
    let mut values = text
        .lines()
        .filter_map(|line| line.strip_prefix("refrain_live_calls "));
    values.next().expect("a gauge").to_owned()
}

/// Starts calls that ask, and hangs up on each, until one is rejected. Returns the number of started calls.
async fn abandon_calls(session: &Session) -> usize {
    for started in 0.. {
        let mut response = session.begin(&call(1, "asks", json!({}))).await;
        if response.head().await.status == 503 {
            return started;
        }
    }
    unreachable!("the loop has no end")
}

#[tokio::test]
async fn abandoned_calls_of_an_anonymous_client_end_after_the_resume_time() {
    let limits = ServerLimits {
        live_calls: 8,
        live_calls_each: 4,
        resume_time: Duration::from_secs(2),
        ..ServerLimits::default()
    };
    let (builder, _, _received) = builder();
    let live = Tool::new("live", greet).live();
    let instance = start(builder.tool(live).limits(limits)).await;
    // Another session does not give the client another quota.
    let mut started = 0;
    for _ in 0..2 {
        let session = Session::open(&instance).await;
        started += abandon_calls(&session.from_address([127, 0, 0, 2].into())).await;
    }
    assert_eq!(started, 4);
    assert_eq!(live_calls(&instance), "4");
    // A client at another address is not affected.
    let other = Session::open(&instance).await;
    let mut stream = other.stream(&call(1, "greet", json!({}))).await;
    let asked = stream.next().await;
    assert_eq!(other.post(&filled_in(&asked, "Ann")).await.status, 202);
    assert_eq!(stream.rest().await.len(), 1);
    let waiting = instance.send(&Request::tool("live", json!({}))).await;
    let token = token(&waiting.reply());
    until("the abandoned calls to end", || {
        live_calls(&instance) == "1"
    })
    .await;
    // A call whose asks were delivered still waits for its client.
    let request = Request::tool("live", json!({})).again(&token, login("Bob"));
    let done = instance.send(&request).await.reply();
    assert_eq!(text(&done), "Hello, Bob!");
    until("the last call to end", || live_calls(&instance) == "0").await;
}

#[tokio::test]
async fn abandoned_call_of_an_authenticated_client_waits_for_its_answer() {
    let limits = ServerLimits {
        resume_time: Duration::from_millis(100),
        ..ServerLimits::default()
    };
    let instance = start(builder().0.limits(limits.clone())).await;
    let tokens = BearerTokens::new().with("ann", "secret-of-ann");
    let (tools, signals, mut received) = builder();
    let instance_of_ann = start(tools.authenticator(tokens).limits(limits)).await;
    let header = [("Authorization", "Bearer secret-of-ann")];
    let capabilities = json!({"elicitation": {}});
    let address = instance_of_ann.address;
    let session = Session::open_with(address, "2025-11-25", &capabilities, &header).await;
    let mut stream = session.stream(&call(1, "count", json!({}))).await;
    let first_event = stream.event().await.expect("the first event");
    expect_signal(&mut received, "counted").await;
    drop(stream);
    // An anonymous call that was abandoned later has ended.
    abandon_call(&Session::open(&instance).await).await;
    until("the abandoned call to end", || live_calls(&instance) == "0").await;
    assert_eq!(live_calls(&instance_of_ann), "1");
    let mut resumed = session.resume(&first_event.id).await;
    signals.open();
    let rest = resumed.rest().await;
    let reply = rest.last().expect("the reply");
    assert_eq!(reply["result"]["content"][0]["text"], "four");
}

/// Starts a call that asks, and hangs up.
async fn abandon_call(session: &Session) {
    let mut stream = session.stream(&call(1, "asks", json!({}))).await;
    assert_eq!(stream.next().await["method"], "elicitation/create");
}

#[tokio::test]
async fn relayed_calls_of_an_anonymous_client_count_for_its_address() {
    let keys = keys();
    let limits = ServerLimits {
        live_calls_each: 1,
        resume_time: Duration::from_secs(2),
        ..ServerLimits::default()
    };
    let build = || builder().0.keys(keys.clone()).limits(limits.clone());
    let holder = start_advertised(build()).await;
    let other = start_advertised(build()).await;
    let session = Session::open(&holder).await;
    let there = session.at(&other).from_address([127, 0, 0, 2].into());
    abandon_call(&there).await;
    assert_eq!(live_calls(&holder), "1");
    assert_eq!(there.post(&call(2, "asks", json!({}))).await.status, 503);
    // The relaying instance has the same address as this client.
    let mut stream = session.stream(&call(3, "greet", json!({}))).await;
    let asked = stream.next().await;
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
    assert_eq!(stream.rest().await.len(), 1);
    until("the abandoned call to end", || live_calls(&holder) == "0").await;
}

fn set_level(level: &str) -> Value {
    request(1, "logging/setLevel", json!({"level": level}))
}

#[tokio::test]
async fn sessions_of_one_caller_are_limited_and_can_always_be_ended() {
    let limits = ServerLimits {
        sessions_each: 2,
        session_bytes_each: 20,
        ..ServerLimits::default()
    };
    let instance = start(builder().0.limits(limits)).await;
    let own = |session: Session| session.from_address([127, 0, 0, 2].into());
    let mut sessions = Vec::new();
    for _ in 0..4 {
        sessions.push(own(Session::open(&instance).await));
    }
    let subscribe = request(2, "resources/subscribe", json!({"uri": "notes://today"}));
    sessions[0].result(&subscribe).await;
    sessions[1].result(&set_level("error")).await;
    let rejected = sessions[2].post(&set_level("error")).await;
    assert_eq!(rejected.header("retry-after"), Some("1"));
    let message = rejected.error(503, -32603);
    assert_contains(
        &message,
        &["this caller", "limit of 2 sessions with a log level"],
    );
    let rejected = sessions[1].post(&subscribe).await;
    let message = rejected.error(503, -32603);
    assert_contains(
        &message,
        &["this caller", "limit of 20 bytes of subscribed URIs"],
    );
    // Rejected requests do not count as served.
    let metrics = instance.server.metrics_text();
    let lines = [
        "refrain_other_requests_total{method=\"resources/subscribe\"} 1",
        "refrain_other_requests_total{method=\"logging/setLevel\"} 1",
        "refrain_requests_refused_total{reason=\"busy\"} 2",
    ];
    assert_contains(&metrics, &lines);
    // A stream does not lift the limit.
    let stream = sessions[2].get().await;
    assert_eq!(sessions[2].post(&set_level("error")).await.status, 503);
    drop(stream);
    // Sessions of other callers can be changed.
    let other = Session::open(&instance).await;
    other.result(&set_level("error")).await;
    other.result(&subscribe).await;
    // Every session can be ended; the oldest ended sessions are forgotten.
    for session in &sessions {
        assert_eq!(session.delete().await.status, 204);
        assert_eq!(session.post(&set_level("error")).await.status, 404);
    }
    assert_eq!(other.delete().await.status, 204);
    assert_eq!(other.post(&set_level("error")).await.status, 404);
    assert_eq!(sessions[3].post(&set_level("error")).await.status, 404);
    // An ended session no longer counts.
    own(Session::open(&instance).await).result(&subscribe).await;
}

#[tokio::test]
async fn default_state_does_not_count_as_a_session() {
    let limits = ServerLimits {
        sessions_each: 1,
        ..ServerLimits::default()
    };
    let instance = start(builder().0.limits(limits)).await;
    let uri = json!({"uri": "notes://today"});
    for _ in 0..3 {
        let session = Session::open(&instance).await;
        let mut stream = session.get().await;
        stream.event().await.expect("the first event");
        let subscribe = request(2, "resources/subscribe", uri.clone());
        session.result(&subscribe).await;
        let unsubscribe = request(3, "resources/unsubscribe", uri.clone());
        session.result(&unsubscribe).await;
    }
}

#[tokio::test]
async fn long_request_id_is_rejected() {
    let instance = start(builder().0).await;
    let session = Session::open(&instance).await;
    let mut message = call(1, "echo", json!({"text": "x"}));
    message["id"] = json!("i".repeat(1020));
    session.result(&message).await;
    message["id"] = json!("i".repeat(1030));
    assert_contains(
        &session.post(&message).await.error(200, -32600),
        &["id", "1024"],
    );
}
