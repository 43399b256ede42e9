//! Streams of legacy clients: resumption, and which messages are sent on which stream.

use crate::support::legacy::{Event, Session, Stream, call, filled_in, request};
use crate::support::{
    Clock, Guard, Instance, Login, SignalReceiver, Signals, assert_contains, echo, expect_signal,
    greet, keys, note, signals, start, until, within,
};
use refrain_core::{Cx, Result};
use refrain_server::{Changes, Resource, Server, ServerBuilder, ServerLimits, State, Tool};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Logs twice, waits at the gate, and logs again.
async fn count(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    let _guard = Guard(Arc::clone(&signals));
    cx.log(refrain_wire::LogLevel::Info, "one");
    cx.log(refrain_wire::LogLevel::Info, "two");
    signals.say("counted");
    signals.pass().await;
    cx.log(refrain_wire::LogLevel::Info, "three");
    Ok("four".into())
}

/// Asks, logs a long message, and asks again.
async fn asks(cx: Cx) -> Result<String> {
    let login: Login = cx.elicit("login", "Who are you?").await?;
    cx.log(refrain_wire::LogLevel::Info, "x".repeat(600));
    let other: Login = cx.elicit("other", "And you?").await?;
    Ok(format!("{} and {}", login.name, other.name))
}

fn builder() -> (ServerBuilder, Arc<Signals>, SignalReceiver) {
    let (signals, received) = signals();
    let builder = Server::builder("legacy", "1")
        .keys(keys())
        .state(signals.clone())
        .tool(Tool::new("count", count))
        .tool(Tool::new("greet", greet))
        .tool(Tool::new("asks", asks))
        .resource(Resource::new("notes://today", "today", note))
        .resource(Resource::new("notes://never", "never", note));
    (builder, signals, received)
}

async fn instance() -> Instance {
    start(builder().0).await
}

fn data(messages: &[Value]) -> Vec<&Value> {
    let logs = messages.iter().map(|message| &message["params"]["data"]);
    logs.filter(|data| !data.is_null()).collect()
}

#[tokio::test]
async fn broken_stream_can_be_resumed_without_ending_the_call() {
    let (builder, signals, mut received) = builder();
    let instance = start(builder).await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(5, "count", json!({}))).await;
    let first_event = stream.event().await.expect("the first event");
    assert_eq!(first_event.message, None);
    let one = stream.event().await.expect("a message");
    assert_eq!(
        one.message.as_ref().expect("a message")["params"]["data"],
        "one"
    );
    expect_signal(&mut received, "counted").await;
    drop(stream);

    // Twice, because a resumed stream may break as well.
    for _ in 0..2 {
        let mut again = session.resume(&one.id).await;
        assert_eq!(again.next().await["params"]["data"], "two");
    }
    let mut again = session.resume(&first_event.id).await;
    assert_eq!(again.next().await["params"]["data"], "one");
    signals.open();
    let rest = again.rest().await;
    assert_eq!(data(&rest), ["two", "three"]);
    assert_eq!(rest.last().expect("the reply")["id"], 5);
    expect_signal(&mut received, "dropped").await;
    // The ended stream can be resumed, too.
    let rest = session.resume(&one.id).await.rest().await;
    assert_eq!(data(&rest), ["two", "three"]);
    assert_eq!(
        rest.last().expect("the reply")["result"]["content"][0]["text"],
        "four"
    );
}

#[tokio::test]
async fn missed_ask_is_delivered_on_the_resumed_stream() {
    let instance = instance().await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(5, "greet", json!({}))).await;
    let first_event = stream.event().await.expect("the first event");
    drop(stream);
    let mut again = session.resume(&first_event.id).await;
    let asked = again.next().await;
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
    assert_eq!(
        again.next().await["result"]["content"][0]["text"],
        "Hello, Ann!"
    );
}

#[tokio::test]
async fn earlier_revisions_get_no_empty_first_event() {
    let instance = instance().await;
    let all = json!({"elicitation": {}});
    let session = Session::open_with(instance.address, "2025-06-18", &all, &[]).await;
    let mut stream = session.stream(&call(5, "greet", json!({}))).await;
    let first = stream.event().await.expect("an event");
    let asked = first.message.expect("a message at once");
    assert_eq!(asked["method"], "elicitation/create");
    drop(stream);
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
    let rest = session.resume(&first.id).await.rest().await;
    assert_eq!(rest[0]["result"]["content"][0]["text"], "Hello, Ann!");
}

#[tokio::test]
async fn unavailable_events_are_reported_as_lost() {
    let (first, _, _received) = builder();
    let limits = ServerLimits {
        resume_bytes: 300,
        ..ServerLimits::default()
    };
    let instance = start(first.limits(limits)).await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(5, "asks", json!({}))).await;
    let first_event = stream.event().await.expect("the first event");
    let asked = stream.next().await;
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
    let second = stream.next().await;
    let second = match second["method"].as_str() {
        Some("notifications/message") => stream.next().await,
        _ => second,
    };
    assert_eq!(second["method"], "elicitation/create");
    drop(stream);
    let resume = |id: &str| session.clone().header("Last-Event-ID", id);
    let lost = resume(&first_event.id).send_empty("GET").await;
    assert_contains(&lost.error(400, -32600), &["no longer available"]);
    let (_, rest) = first_event
        .id
        .split_once('-')
        .expect("an id of three parts");
    let other_instance = resume(&format!("0123456789abcdef-{rest}"));
    let other_instance = other_instance.send_empty("GET").await;
    assert_contains(
        &other_instance.error(503, -32603),
        &["another instance", "Retry"],
    );
    let never = first_event.id.replace("-0", "-99");
    resume(&never).send_empty("GET").await.error(400, -32600);
    let odd = resume("yesterday").send_empty("GET").await;
    assert_contains(&odd.error(400, -32600), &["Last-Event-ID"]);
    // Another session cannot resume the stream.
    let other_session = Session::open(&instance).await;
    let other_session = other_session.header("Last-Event-ID", &first_event.id);
    other_session.send_empty("GET").await.error(400, -32600);
    assert_eq!(session.post(&filled_in(&second, "Bob")).await.status, 202);
}

#[tokio::test]
async fn ended_stream_is_removed_after_the_resume_time() {
    let (first, _, _received) = builder();
    let limits = ServerLimits {
        resume_time: Duration::from_millis(1),
        ..ServerLimits::default()
    };
    let instance = start(first.limits(limits)).await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(5, "greet", json!({}))).await;
    let first_event = stream.event().await.expect("the first event");
    let asked = stream.next().await;
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
    assert_eq!(stream.rest().await.len(), 1);
    let resume = session.clone().header("Last-Event-ID", &first_event.id);
    let gone = async {
        while resume.get_opens_stream().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the stream to be removed", gone).await;
}

#[tokio::test]
async fn asks_are_never_sent_on_the_notification_stream() {
    let instance = instance().await;
    let session = Session::open(&instance).await;
    let mut notifications = session.get().await;
    let mut stream = session.stream(&call(5, "asks", json!({}))).await;
    for name in ["Ann", "Bob"] {
        let asked = loop {
            let message = stream.next().await;
            if message.get("id").is_some() {
                break message;
            }
        };
        assert_eq!(asked["method"], "elicitation/create");
        assert_eq!(session.post(&filled_in(&asked, name)).await.status, 202);
    }
    assert_eq!(
        stream.next().await["result"]["content"][0]["text"],
        "Ann and Bob"
    );
    let more = Changes::new().tool(Tool::new("echo", echo));
    instance.server.change(more).expect("a change");
    // The first message on the notification stream.
    let message = notifications.next().await;
    assert_eq!(
        message,
        json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    );
    let mut instance = instance;
    instance.stop();
    for rest in notifications.rest().await {
        assert!(rest.get("id").is_none(), "a request: {rest}");
    }
}

#[tokio::test]
async fn session_is_notified_of_subscribed_resources() {
    let (first, _, _received) = builder();
    let instance = start(first).await;
    let session = Session::open(&instance).await;
    let subscribe = |method: &str, uri: &str| request(1, method, json!({"uri": uri}));
    let mut notifications = session.get().await;
    let today = subscribe("resources/subscribe", "notes://today");
    assert_eq!(session.result(&today).await, json!({}));
    // The open stream uses the new subscription.
    let updates = async {
        loop {
            instance.server.resource_updated("notes://never");
            instance.server.resource_updated("notes://today");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let message = tokio::select! {
        message = notifications.next() => message,
        () = updates => unreachable!("an endless loop"),
    };
    assert_eq!(message["method"], "notifications/resources/updated");
    assert_eq!(message["params"], json!({"uri": "notes://today"}));
    let no_more = subscribe("resources/unsubscribe", "notes://today");
    assert_eq!(session.result(&no_more).await, json!({}));
    // A later stream uses existing subscriptions.
    let never = subscribe("resources/subscribe", "notes://never");
    assert_eq!(session.result(&never).await, json!({}));
    let mut later = session.get().await;
    instance.server.resource_updated("notes://today");
    instance.server.resource_updated("notes://never");
    let message = later.next().await;
    assert_eq!(message["params"], json!({"uri": "notes://never"}));
    // The later stream replaced the earlier one, which ends.
    notifications.rest().await;
}

#[tokio::test]
async fn deleted_session_ends_its_notification_stream() {
    let (first, _, _received) = builder();
    let instance = start(first).await;
    let session = Session::open(&instance).await;
    let mut notifications = session.get().await;
    assert_eq!(session.delete().await.status, 204);
    assert!(notifications.rest().await.is_empty());
}

#[tokio::test]
async fn missed_notifications_are_delivered_on_resumption() {
    let instance = instance().await;
    let session = Session::open(&instance).await;
    let mut notifications = session.get().await;
    let first_event = notifications.event().await.expect("the first event");
    drop(notifications);
    let more = Changes::new().tool(Tool::new("echo", echo));
    instance.server.change(more).expect("a change");
    let mut again = session.resume(&first_event.id).await;
    let message = again.next().await;
    assert_eq!(message["method"], "notifications/tools/list_changed");
}

/// Changes the list of tools and returns the notification on this stream.
async fn assert_notified(instance: &Instance, notifications: &mut Stream) -> Event {
    let more = Changes::new().tool(Tool::new("echo", echo));
    instance.server.change(more).expect("a change");
    loop {
        let event = within("a change", notifications.event()).await;
        let event = event.expect("another event");
        if let Some(message) = &event.message {
            assert_eq!(message["method"], "notifications/tools/list_changed");
            return event;
        }
    }
}

#[tokio::test]
async fn notifications_resume_at_another_instance_and_after_a_restart() {
    let keys = keys();
    let instance = || start(builder().0.keys(keys.clone()));
    for revision in ["2025-11-25", "2025-06-18"] {
        let (one, other) = (instance().await, instance().await);
        let session = Session::open_with(one.address, revision, &json!({}), &[]).await;
        let mut notifications = session.get().await;
        let last = match revision {
            // No notification was sent yet.
            "2025-11-25" => notifications.event().await.expect("the first event"),
            _ => assert_notified(&one, &mut notifications).await,
        };
        let mut there = session.at(&other).resume(&last.id).await;
        assert_notified(&other, &mut there).await;
        one.stopped_now().await;
        let restarted = instance().await;
        let mut there = session.at(&restarted).resume(&last.id).await;
        assert_notified(&restarted, &mut there).await;
    }
}

#[tokio::test]
async fn notifications_restart_if_the_stream_was_removed() {
    let limits = ServerLimits {
        resume_time: Duration::from_millis(1),
        ..ServerLimits::default()
    };
    let instance = start(builder().0.limits(limits)).await;
    let session = Session::open(&instance).await;
    let mut notifications = session.get().await;
    let first_event = notifications.event().await.expect("the first event");
    drop(notifications);
    let restarted = async {
        loop {
            let mut again = session.resume(&first_event.id).await;
            let first = again.event().await.expect("the first event");
            if first.id != first_event.id {
                return again;
            }
            drop(again);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let mut again = within("the stream to be removed", restarted).await;
    assert_notified(&instance, &mut again).await;
}

#[tokio::test]
async fn stream_can_be_resumed_only_where_it_is_stored() {
    let keys = keys();
    let one = start(builder().0.keys(keys.clone())).await;
    let other = start(builder().0.keys(keys)).await;
    let session = Session::open(&one).await;
    let mut stream = session.stream(&call(5, "greet", json!({}))).await;
    let first_event = stream.event().await.expect("the first event");
    let asked = stream.next().await;
    drop(stream);
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
    let there = session.at(&other).header("Last-Event-ID", &first_event.id);
    let rejected = there.send_empty("GET").await;
    assert_contains(
        &rejected.error(503, -32603),
        &["another instance", "restart", "Retry", "--advertise"],
    );
    assert_eq!(rejected.header("retry-after"), Some("1"));
    let rest = session.resume(&first_event.id).await.rest().await;
    let reply = rest.last().expect("the reply");
    assert_eq!(reply["result"]["content"][0]["text"], "Hello, Ann!");
}

#[tokio::test]
async fn notifications_do_not_evict_the_reply() {
    let (builder, signals, mut received) = builder();
    let limits = ServerLimits {
        resume_bytes: 150,
        ..ServerLimits::default()
    };
    let instance = start(builder.limits(limits)).await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(5, "count", json!({}))).await;
    let first_event = stream.event().await.expect("the first event");
    expect_signal(&mut received, "counted").await;
    drop(stream);
    signals.open();
    expect_signal(&mut received, "dropped").await;
    let rest = session.resume(&first_event.id).await.rest().await;
    assert!(data(&rest).len() < 3, "not all notifications fit");
    let reply = rest.last().expect("the reply");
    assert_eq!(reply["result"]["content"][0]["text"], "four");
}

/// Waits for this number of subscriptions.
async fn wait_for_subscriptions(instance: &Instance, wanted: usize) {
    until("streams to end", || {
        instance.server.subscriptions() == wanted
    })
    .await;
}

/// An instance that keeps streams for longer than any test takes.
async fn instance_keeping_streams(tools: ServerBuilder) -> Instance {
    let limits = ServerLimits {
        resume_time: Duration::from_secs(3600),
        subscriptions: 3,
        ..ServerLimits::default()
    };
    start(tools.limits(limits)).await
}

#[tokio::test]
async fn replaced_notification_stream_releases_its_permit() {
    let instance = instance_keeping_streams(builder().0).await;
    let session = Session::open(&instance).await;
    for _ in 0..10 {
        let mut notifications = session.get().await;
        notifications.event().await.expect("the first event");
        // The client disconnects and opens another stream.
        drop(notifications);
        wait_for_subscriptions(&instance, 1).await;
    }
    let mut first = session.get().await;
    let first_event = first.event().await.expect("the first event");
    let _second = session.get().await;
    assert!(first.rest().await.is_empty());
    wait_for_subscriptions(&instance, 1).await;
    // The replaced stream cannot be resumed.
    let resume = session.clone().header("Last-Event-ID", &first_event.id);
    resume.send_empty("GET").await.error(400, -32600);
}

#[tokio::test]
async fn deleted_session_releases_its_subscription() {
    let instance = instance_keeping_streams(builder().0).await;
    let session = Session::open(&instance).await;
    let mut notifications = session.get().await;
    wait_for_subscriptions(&instance, 1).await;
    assert_eq!(session.delete().await.status, 204);
    assert!(notifications.rest().await.is_empty());
    wait_for_subscriptions(&instance, 0).await;
}

#[tokio::test]
async fn promptly_answered_calls_leave_no_runtime_tasks() {
    let instance = instance_keeping_streams(builder().0.tool(Tool::new("echo", echo))).await;
    let session = Session::open(&instance).await;
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let message = |id| call(id, "echo", json!({"text": "x"}));
    session.result(&message(0)).await;
    let before = tasks();
    for id in 1..20 {
        let echoed = session.result(&message(id)).await;
        assert_eq!(echoed["content"][0]["text"], "Echo: x");
    }
    until("the tasks to end", || tasks() <= before).await;
}

#[tokio::test]
async fn session_with_maximum_lifetime_is_notified() {
    let limits = ServerLimits {
        session_time: Duration::MAX,
        ..ServerLimits::default()
    };
    let instance = start(builder().0.limits(limits)).await;
    let session = Session::open(&instance).await;
    let mut notifications = session.get().await;
    wait_for_subscriptions(&instance, 1).await;
    let more = Changes::new().tool(Tool::new("echo", echo));
    instance.server.change(more).expect("a change");
    let message = notifications.next().await;
    assert_eq!(message["method"], "notifications/tools/list_changed");
}

/// Waits at the gate, then asks.
async fn asks_late(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    signals.say("waits");
    signals.pass().await;
    let login: Login = cx.elicit("login", "Who are you?").await?;
    Ok(login.name)
}

#[tokio::test]
async fn call_waiting_for_an_answer_ends_when_its_session_expires() {
    let (builder, signals, mut received) = builder();
    let clock = Clock::new();
    let limits = ServerLimits {
        session_time: Duration::from_secs(600),
        ..ServerLimits::default()
    };
    let builder = builder.tool(Tool::new("asks_late", asks_late));
    let instance = start(builder.source(clock.clone()).limits(limits)).await;
    let session = Session::open(&instance).await;
    let mut asks = session.stream(&call(5, "asks_late", json!({}))).await;
    expect_signal(&mut received, "waits").await;
    let mut counts = session.stream(&call(6, "count", json!({}))).await;
    expect_signal(&mut received, "counted").await;
    clock.forward(599);
    signals.open();
    let asked = asks.next().await;
    assert_eq!(asked["method"], "elicitation/create");
    clock.forward(1);
    let answer = filled_in(&asked, "Ann");
    session.post(&answer).await.error(404, -32600);
    let rest = asks.rest().await;
    let [withdrawn, reply] = &rest[..] else {
        panic!("expected a cancellation and a reply, not {rest:?}");
    };
    assert_eq!(withdrawn["method"], "notifications/cancelled");
    assert_eq!(withdrawn["params"]["requestId"], asked["id"]);
    assert_eq!(reply["id"], 5);
    assert_eq!(reply["error"]["code"], -32603);
    let error = reply["error"]["message"].as_str().expect("a message");
    assert_contains(error, &["session expired", "not undone", "initialize"]);
    // A call that does not wait for an answer continues.
    signals.open();
    let counted = counts.rest().await;
    let reply = counted.last().expect("the reply");
    assert_eq!(reply["result"]["content"][0]["text"], "four");
}
