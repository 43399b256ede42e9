//! Legacy sessions on several instances: relay to the holder, and takeover when it is gone.

use crate::support::legacy::{Session, Stream, call, filled_in, request};
use crate::support::{
    Instance, assert_contains, cancel, echo, greet, keys, logs, note, start, start_advertised,
    start_on, url_of, within,
};
use refrain_core::KeyRing;
use refrain_server::{
    AllowedHosts, BearerTokens, Resource, Server, ServerBuilder, ServerLimits, Tool,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

fn builder(keys: &KeyRing) -> ServerBuilder {
    let limits = ServerLimits {
        drain_grace: Duration::ZERO,
        drain_time: Duration::from_millis(100),
        ..ServerLimits::default()
    };
    Server::builder("legacy", "1")
        .keys(keys.clone())
        .limits(limits)
        .tool(Tool::new("greet", greet))
        .tool(Tool::new("logs", logs))
        .resource(Resource::new("notes://today", "today", note))
}

async fn fleet() -> [Instance; 3] {
    let keys = keys();
    [
        start_advertised(builder(&keys)).await,
        start_advertised(builder(&keys)).await,
        start_advertised(builder(&keys)).await,
    ]
}

fn text(reply: &Value) -> &Value {
    &reply["result"]["content"][0]["text"]
}

/// Starts a call. Returns its stream and its ask.
async fn call_that_asks(session: &Session, id: u32) -> (Stream, Value) {
    let mut stream = session.stream(&call(id, "greet", json!({}))).await;
    let asked = stream.next().await;
    assert_eq!(asked["method"], "elicitation/create");
    (stream, asked)
}

#[tokio::test]
async fn answers_of_several_calls_reach_the_holder() {
    let [one, other, third] = fleet().await;
    let session = Session::open(&one).await;
    let mut calls = Vec::new();
    for (id, instance) in (0..8).zip([&one, &other].into_iter().cycle()) {
        calls.push(call_that_asks(&session.at(instance), id).await);
    }
    for (_, asked) in &calls {
        let answered = session.at(&third).post(&filled_in(asked, "Ann")).await;
        assert_eq!(answered.status, 202);
    }
    for (stream, _) in &mut calls {
        assert_eq!(text(&stream.next().await), "Hello, Ann!");
        assert!(stream.rest().await.is_empty());
    }
}

#[tokio::test]
async fn holder_keeps_log_level_and_subscriptions() {
    let [one, other, third] = fleet().await;
    let session = Session::open(&one).await;
    let mut notifications = session.at(&other).get().await;
    let first_event = notifications.event().await.expect("the first event");
    let subscribe = request(1, "resources/subscribe", json!({"uri": "notes://today"}));
    assert_eq!(session.at(&third).result(&subscribe).await, json!({}));
    one.server.resource_updated("notes://today");
    let message = notifications.next().await;
    assert_eq!(message["params"], json!({"uri": "notes://today"}));
    drop(notifications);
    // Resumed from the start, at another instance.
    let mut notifications = session.at(&third).resume(&first_event.id).await;
    assert_eq!(
        notifications.next().await["params"],
        json!({"uri": "notes://today"})
    );
    let set = request(2, "logging/setLevel", json!({"level": "error"}));
    assert_eq!(session.at(&other).result(&set).await, json!({}));
    let reply = session.at(&third).result(&call(3, "logs", json!({}))).await;
    assert_eq!(reply["content"][0]["text"], "logged");
}

#[tokio::test]
async fn answer_with_a_forged_id_is_rejected() {
    let [one, other, _] = fleet().await;
    let session = Session::open(&one).await;
    let (_stream, asked) = call_that_asks(&session, 1).await;
    let id = asked["id"].as_str().expect("a text");
    let (number, seal) = id.split_once('-').expect("an id of two parts");
    for forged in [
        "1".to_owned(),
        format!("99-{seal}"),
        format!("{number}-{}", "A".repeat(seal.len())),
        format!("{number}-"),
        format!("{id}{}", "A".repeat(4000)),
    ] {
        let answer = json!({"jsonrpc": "2.0", "id": forged, "result": {}});
        for instance in [&one, &other] {
            let rejected = session.at(instance).post(&answer).await;
            assert_contains(&rejected.error(400, -32600), &["does not match a request"]);
        }
    }
    // Another session cannot answer either.
    let other_session = Session::open(&other).await;
    let rejected = other_session.post(&filled_in(&asked, "Eve")).await;
    assert_contains(&rejected.error(400, -32600), &["does not match a request"]);
}

#[tokio::test]
async fn caller_with_too_many_relayed_requests_gets_503() {
    let keys = keys();
    let with_limits = |connections| {
        let limits = ServerLimits {
            connections,
            ..ServerLimits::default()
        };
        start_advertised(builder(&keys).limits(limits))
    };
    // At the second instance, one caller can have 4 relayed requests.
    let (one, other) = (with_limits(1000).await, with_limits(16).await);
    let session = Session::open(&one).await;
    let mut calls = Vec::new();
    for id in 0..4 {
        calls.push(call_that_asks(&session.at(&other), id).await);
    }
    let list = request(4, "tools/list", json!({}));
    let rejected = session.at(&other).post(&call(5, "greet", json!({}))).await;
    let reason = "cannot relay this request now; try again later";
    assert_contains(&rejected.error(503, -32603), &[reason]);
    assert_eq!(rejected.header("retry-after"), Some("1"));
    // The session goes on at its holder, and here when a relayed request has ended.
    assert!(session.result(&list).await["tools"].is_array());
    let (mut stream, asked) = calls.remove(0);
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
    assert_eq!(text(&stream.next().await), "Hello, Ann!");
    assert!(stream.rest().await.is_empty());
    drop(call_that_asks(&session.at(&other), 6).await);
}

#[tokio::test]
async fn malformed_cancellation_is_ignored() {
    let [one, other, _] = fleet().await;
    let session = Session::open(&one).await;
    for odd in [
        json!(null),
        json!({"a": ["b"]}),
        json!([1]),
        json!("x".repeat(5000)),
        json!("x"),
    ] {
        for instance in [&one, &other] {
            let cancelled = session.at(instance).post(&cancel(&odd)).await;
            assert_eq!(cancelled.status, 202);
        }
    }
}

#[tokio::test]
async fn caller_is_the_same_at_the_holder() {
    let keys = keys();
    let build = || {
        let tokens = BearerTokens::new()
            .with_scopes("ada", "secret-of-ada-0123456789", ["use"])
            .with("ada", "weak-of-ada-0123456789")
            .with_scopes("bob", "secret-of-bob-0123456789", ["use"]);
        builder(&keys).scopes(["use"]).authenticator(tokens)
    };
    let one = start_advertised(build()).await;
    let other = start_advertised(build()).await;
    let ada = [("Authorization", "Bearer secret-of-ada-0123456789")];
    let session = Session::open_with(one.address, "2025-11-25", &json!({}), &ada).await;
    let there = session.at(&other);
    let ping = request(1, "ping", json!({}));
    assert_eq!(there.result(&ping).await, json!({}));
    let weak = there.clone().bearer("weak-of-ada-0123456789");
    let rejected = weak.post(&ping).await;
    rejected.error(403, -32600);
    assert!(
        rejected.header("www-authenticate").is_some(),
        "{rejected:?}"
    );
    let bob = there.bearer("secret-of-bob-0123456789");
    bob.post(&ping).await.error(404, -32600);
}

#[tokio::test]
async fn lost_holder_is_reported_and_the_session_continues() {
    let [one, other, third] = fleet().await;
    let session = Session::open(&one).await;
    let (mut direct, first) = call_that_asks(&session, 1).await;
    let (mut relayed, second) = call_that_asks(&session.at(&other), 2).await;
    let set = request(3, "logging/setLevel", json!({"level": "error"}));
    assert_eq!(session.result(&set).await, json!({}));
    one.stopped_now().await;
    // The holder fails its calls when it stops.
    for stream in [&mut direct, &mut relayed] {
        let last = stream.rest().await.pop().expect("a reply");
        assert!(last.get("error").is_some(), "{last}");
    }
    let began = Instant::now();
    for asked in [&first, &second] {
        let rejected = session.at(&other).post(&filled_in(asked, "Ann")).await;
        assert_contains(&rejected.error(400, -32603), &["lost", "call again"]);
    }
    let rejected = session.at(&third).post(&cancel(1)).await;
    assert_contains(&rejected.error(400, -32603), &["lost", "call again"]);
    assert!(began.elapsed() < Duration::from_secs(2));
    // Each instance serves the session, with the default log level.
    for instance in [&other, &third] {
        let there = session.at(instance);
        let messages = there.stream(&call(4, "logs", json!({}))).await.rest().await;
        assert_eq!(messages[0]["params"]["data"], "news");
        let set = request(5, "logging/setLevel", json!({"level": "error"}));
        assert_eq!(there.result(&set).await, json!({}));
        let reply = there.result(&call(6, "logs", json!({}))).await;
        assert_eq!(reply["content"][0]["text"], "logged");
    }
    // An answer reaches the instance that asked, although the session id names another.
    let (mut stream, asked) = call_that_asks(&session.at(&other), 7).await;
    let answered = session.at(&third).post(&filled_in(&asked, "Ann")).await;
    assert_eq!(answered.status, 202);
    assert_eq!(text(&stream.next().await), "Hello, Ann!");
    assert_eq!(session.at(&other).delete().await.status, 204);
    let ping = request(8, "ping", json!({}));
    session.at(&other).post(&ping).await.error(404, -32600);
}

/// The proxy aborts the connections of an instance, as SIGKILL would.
#[tokio::test]
async fn stream_of_a_lost_call_ends_with_an_error() {
    let keys = keys();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let front = url_of(&listener);
    let holder = start(builder(&keys).advertise(front)).await;
    let address = holder.address;
    let proxy = tokio::spawn(async move {
        let mut open = tokio::task::JoinSet::new();
        while let Ok((mut client, _)) = listener.accept().await {
            open.spawn(async move {
                let mut server = tokio::net::TcpStream::connect(address).await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    let other = start_advertised(builder(&keys)).await;
    let session = Session::open(&holder).await;
    let there = session.at(&other);
    let mut relayed = there.stream(&call(1, "greet", json!({}))).await;
    let first_event = relayed.event().await.expect("the first event");
    relayed.next().await;
    proxy.abort();
    let lost = async {
        loop {
            // A truncated event is completed first.
            let piece = relayed.0.block().await.expect("an event");
            if piece.contains("data: ") {
                return piece;
            }
        }
    };
    let lost = within("the error", lost).await;
    assert_contains(&lost, &["\"id\":1", "lost", "call again"]);
    // The resumed stream reports the same error.
    let mut resumed = there.resume(&first_event.id).await;
    let lost = resumed.next().await;
    assert_eq!(lost["id"], 1, "{lost}");
    let message = lost["error"]["message"].as_str().expect("a message");
    assert_contains(message, &["lost", "call again"]);
    assert!(resumed.rest().await.is_empty());
}

/// The event ids of a session that was taken over name the instance that stores the stream.
#[tokio::test]
async fn stream_of_a_taken_over_session_is_found_and_its_loss_reported() {
    let [one, other, third] = fleet().await;
    let session = Session::open(&one).await;
    one.stopped_now().await;
    let mut stream = session
        .at(&other)
        .stream(&call(1, "greet", json!({})))
        .await;
    let first_event = stream.event().await.expect("the first event");
    let asked = stream.next().await;
    drop(stream);
    let there = session.at(&third);
    let mut resumed = there.resume(&first_event.id).await;
    assert_eq!(resumed.next().await, asked);
    // Only URLs from sealed data of the same session and request are used.
    let (start, seal) = first_event.id.rsplit_once('.').expect("a sealed holder");
    let forged = format!("{start}.{}", "A".repeat(seal.len()));
    let another = Session::open(&third).await;
    for (session, id) in [(&there, &forged), (&another, &first_event.id)] {
        let resumed = session.clone().header("Last-Event-ID", id);
        let rejected = resumed.send_empty("GET").await;
        assert_eq!(rejected.status, 503, "{id}");
    }
    other.stopped_now().await;
    let mut lost = there.resume(&first_event.id).await;
    let reply = lost.next().await;
    assert_eq!(reply["id"], 1, "{reply}");
    let message = reply["error"]["message"].as_str().expect("a message");
    assert_contains(message, &["lost", "call again"]);
    assert_eq!(reply["error"]["data"]["callOver"], true, "{reply}");
}

#[tokio::test]
async fn restarted_holder_does_not_resume_its_calls() {
    let keys = keys();
    let one = start_advertised(builder(&keys)).await;
    let other = start_advertised(builder(&keys)).await;
    let session = Session::open(&one).await;
    let (_stream, asked) = call_that_asks(&session.at(&other), 1).await;
    let address = one.address;
    one.stopped_now().await;
    let listener = TcpListener::bind(address).await.expect("the same port");
    let again = builder(&keys).advertise(url_of(&listener));
    let again = start_on(listener, again, AllowedHosts::local());
    for instance in [&again, &other] {
        let there = session.at(instance);
        let rejected = there.post(&filled_in(&asked, "Ann")).await;
        assert_contains(&rejected.error(400, -32603), &["lost", "call again"]);
        let ping = request(2, "ping", json!({}));
        assert_eq!(there.result(&ping).await, json!({}));
    }
}

#[tokio::test]
async fn other_service_at_the_holder_url_is_not_used() {
    let (ours, theirs) = (keys(), keys());
    let foreign_service = start(builder(&theirs).tool(Tool::new("echo", echo))).await;
    let url = format!("http://{}/mcp", foreign_service.address);
    let holder = start(builder(&ours).advertise(url)).await;
    let other = start_advertised(builder(&ours)).await;
    let session = Session::open(&holder).await;
    let list = request(1, "tools/list", json!({}));
    let listed = session.at(&other).result(&list).await;
    let tools = listed["tools"].as_array().expect("tools").len();
    assert_eq!(tools, 2, "the tools of this server");
    // A session id sealed by another server is invalid, whatever URL it contains.
    let foreign = start_advertised(builder(&theirs)).await;
    let session = Session::open(&foreign).await;
    let ping = request(2, "ping", json!({}));
    session.at(&other).post(&ping).await.error(404, -32600);
}

#[tokio::test]
async fn error_without_advertised_url_names_the_flag() {
    let keys = keys();
    let (one, other) = (start(builder(&keys)).await, start(builder(&keys)).await);
    let session = Session::open(&one).await;
    let mut stream = session.stream(&call(1, "greet", json!({}))).await;
    let first_event = stream.event().await.expect("the first event");
    let asked = stream.next().await;
    let there = session.at(&other);
    for message in [filled_in(&asked, "Ann"), cancel(1)] {
        let rejected = there.post(&message).await;
        assert_contains(&rejected.error(400, -32600), &["--advertise"]);
    }
    let resumed = there.clone().header("Last-Event-ID", &first_event.id);
    let rejected = resumed.send_empty("GET").await;
    assert_contains(&rejected.error(503, -32603), &["--advertise"]);
    // Other requests are served.
    let listed = there.result(&request(2, "tools/list", json!({}))).await;
    assert_eq!(listed["tools"].as_array().map(Vec::len), Some(2));
    let mut stream_there = there.stream(&call(3, "greet", json!({}))).await;
    let asked_there = stream_there.next().await;
    let answered = there.post(&filled_in(&asked_there, "Bob")).await;
    assert_eq!(answered.status, 202);
    assert_eq!(text(&stream_there.next().await), "Hello, Bob!");
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
    assert_eq!(text(&stream.next().await), "Hello, Ann!");
}
