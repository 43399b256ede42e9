//! Streams of older clients: taken up again after they broke, and what goes out on which.

use crate::support::legacy::{Event, Session, Stream, call, filled_in, request};
use crate::support::{
    Clock, Guard, Instance, Login, Signals, echo, greet, names, signals, start, within,
};
use refrain_core::{Cx, KeyRing, Result, SystemSource};
use refrain_server::{Changes, Resource, Server, ServerBuilder, ServerLimits, State, Tool};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

/// Counts, waits to be let through, and counts on.
async fn count(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    let _guard = Guard(Arc::clone(&signals));
    cx.log(refrain_wire::LogLevel::Info, "one");
    cx.log(refrain_wire::LogLevel::Info, "two");
    signals.say("counted");
    signals.pass().await;
    cx.log(refrain_wire::LogLevel::Info, "three");
    Ok("four".into())
}

/// Asks before it says anything.
async fn asks(cx: Cx) -> Result<String> {
    let login: Login = cx.elicit("login", "Who are you?").await?;
    cx.log(refrain_wire::LogLevel::Info, "x".repeat(600));
    let other: Login = cx.elicit("other", "And you?").await?;
    Ok(format!("{} and {}", login.name, other.name))
}

async fn note(_: Cx) -> Result<String> {
    Ok("a note".into())
}

fn builder() -> (ServerBuilder, Arc<Signals>, UnboundedReceiver<&'static str>) {
    let (signals, heard) = signals();
    let builder = Server::builder("older", "1")
        .keys(KeyRing::generate(&SystemSource::new()))
        .state(signals.clone())
        .tool(Tool::new("count", count))
        .tool(Tool::new("greet", greet))
        .tool(Tool::new("asks", asks))
        .resource(Resource::new("notes://today", "today", note))
        .resource(Resource::new("notes://never", "never", note));
    (builder, signals, heard)
}

async fn instance() -> Instance {
    start(builder().0).await
}

fn data(messages: &[Value]) -> Vec<&Value> {
    let logs = messages.iter().map(|message| &message["params"]["data"]);
    logs.filter(|data| !data.is_null()).collect()
}

#[tokio::test]
async fn a_broken_stream_ends_nothing_and_is_taken_up_again() {
    let (builder, signals, mut heard) = builder();
    let instance = start(builder).await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(5, "count", json!({}))).await;
    let begins = stream.event().await.expect("where the stream begins");
    assert_eq!(begins.message, None);
    let one = stream.event().await.expect("a message");
    assert_eq!(
        one.message.as_ref().expect("a message")["params"]["data"],
        "one"
    );
    assert_eq!(within("the count", heard.recv()).await, Some("counted"));
    drop(stream);

    // Twice, since the second may break as well.
    for _ in 0..2 {
        let mut again = session.resume(&one.id).await;
        assert_eq!(again.next().await["params"]["data"], "two");
    }
    let mut again = session.resume(&begins.id).await;
    assert_eq!(again.next().await["params"]["data"], "one");
    signals.open();
    let rest = again.rest().await;
    assert_eq!(data(&rest), ["two", "three"]);
    assert_eq!(rest.last().expect("the reply")["id"], 5);
    assert_eq!(within("its end", heard.recv()).await, Some("dropped"));
    // What was missed at the very end can be had, too.
    let rest = session.resume(&one.id).await.rest().await;
    assert_eq!(data(&rest), ["two", "three"]);
    assert_eq!(
        rest.last().expect("the reply")["result"]["content"][0]["text"],
        "four"
    );
}

#[tokio::test]
async fn an_ask_that_was_missed_is_found_and_answered() {
    let instance = instance().await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(5, "greet", json!({}))).await;
    let begins = stream.event().await.expect("where the stream begins");
    drop(stream);
    let mut again = session.resume(&begins.id).await;
    let asked = again.next().await;
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
    assert_eq!(
        again.next().await["result"]["content"][0]["text"],
        "Hello, Ann!"
    );
}

#[tokio::test]
async fn clients_of_before_are_not_told_where_a_stream_begins() {
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
async fn what_cannot_be_taken_up_again_is_said_to_be_lost() {
    let (first, _, _heard) = builder();
    let limits = ServerLimits {
        resume_bytes: 300,
        ..ServerLimits::default()
    };
    let instance = start(first.limits(limits)).await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(5, "asks", json!({}))).await;
    let begins = stream.event().await.expect("where the stream begins");
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
    let lost = resume(&begins.id).refused("GET").await;
    names(&lost.error(400, -32600), &["no longer kept"]);
    let (_, rest) = begins.id.split_once('-').expect("an id of three parts");
    let elsewhere = resume(&format!("0123456789abcdef-{rest}"));
    let elsewhere = elsewhere.refused("GET").await;
    names(
        &elsewhere.error(503, -32603),
        &["another instance", "try again"],
    );
    let never = begins.id.replace("-0", "-99");
    resume(&never).refused("GET").await.error(400, -32600);
    let odd = resume("yesterday").refused("GET").await;
    names(&odd.error(400, -32600), &["Last-Event-ID"]);
    // Nobody takes up the stream of another session.
    let stranger = Session::open(&instance).await;
    let stranger = stranger.header("Last-Event-ID", &begins.id);
    stranger.refused("GET").await.error(400, -32600);
    assert_eq!(session.post(&filled_in(&second, "Bob")).await.status, 202);
}

#[tokio::test]
async fn a_stream_is_kept_for_a_while_only() {
    let (first, _, _heard) = builder();
    let limits = ServerLimits {
        resume_time: Duration::from_millis(1),
        ..ServerLimits::default()
    };
    let instance = start(first.limits(limits)).await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(5, "greet", json!({}))).await;
    let begins = stream.event().await.expect("where the stream begins");
    let asked = stream.next().await;
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
    assert_eq!(stream.rest().await.len(), 1);
    let resume = session.clone().header("Last-Event-ID", &begins.id);
    let gone = async {
        while resume.refused_or_stream().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the stream to be forgotten", gone).await;
}

/// While a call asks, and the client listens, every ask is on the call's stream.
#[tokio::test]
async fn nothing_is_asked_on_the_stream_of_the_session() {
    let instance = instance().await;
    let session = Session::open(&instance).await;
    let mut news = session.get().await;
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
    // The first thing that is said there.
    let told = news.next().await;
    assert_eq!(
        told,
        json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    );
    let mut instance = instance;
    instance.stop();
    for rest in news.rest().await {
        assert!(rest.get("id").is_none(), "a request: {rest}");
    }
}

#[tokio::test]
async fn a_session_is_told_of_what_it_subscribed_to() {
    let (first, _, _heard) = builder();
    let instance = start(first).await;
    let session = Session::open(&instance).await;
    let subscribe = |method: &str, uri: &str| request(1, method, json!({"uri": uri}));
    let mut news = session.get().await;
    let today = subscribe("resources/subscribe", "notes://today");
    assert_eq!(session.result(&today).await, json!({}));
    // The stream follows the subscription.
    let happens = async {
        loop {
            instance.server.resource_updated("notes://never");
            instance.server.resource_updated("notes://today");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let told = tokio::select! {
        told = news.next() => told,
        () = happens => unreachable!("it happens again and again"),
    };
    assert_eq!(told["method"], "notifications/resources/updated");
    assert_eq!(told["params"], json!({"uri": "notes://today"}));
    let no_more = subscribe("resources/unsubscribe", "notes://today");
    assert_eq!(session.result(&no_more).await, json!({}));
    // Whoever begins to listen later is told of what was subscribed to before.
    let never = subscribe("resources/subscribe", "notes://never");
    assert_eq!(session.result(&never).await, json!({}));
    let mut later = session.get().await;
    instance.server.resource_updated("notes://today");
    instance.server.resource_updated("notes://never");
    let told = later.next().await;
    assert_eq!(told["params"], json!({"uri": "notes://never"}));
    // It took the place of the one before.
    news.rest().await;
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_stream() {
    let (first, _, _heard) = builder();
    let instance = start(first).await;
    let session = Session::open(&instance).await;
    let mut news = session.get().await;
    assert_eq!(session.delete().await.status, 204);
    assert!(news.rest().await.is_empty());
}

#[tokio::test]
async fn news_that_were_missed_are_told_on_the_next_stream() {
    let instance = instance().await;
    let session = Session::open(&instance).await;
    let mut news = session.get().await;
    let begins = news.event().await.expect("where the stream begins");
    drop(news);
    let more = Changes::new().tool(Tool::new("echo", echo));
    instance.server.change(more).expect("a change");
    let mut again = session.resume(&begins.id).await;
    let told = again.next().await;
    assert_eq!(told["method"], "notifications/tools/list_changed");
}

/// Something changes there, and is told on this stream.
async fn is_told(instance: &Instance, news: &mut Stream) -> Event {
    let more = Changes::new().tool(Tool::new("echo", echo));
    instance.server.change(more).expect("a change");
    loop {
        let event = within("a change", news.event()).await;
        let event = event.expect("another event");
        if let Some(told) = &event.message {
            assert_eq!(told["method"], "notifications/tools/list_changed");
            return event;
        }
    }
}

#[tokio::test]
async fn whoever_listened_listens_anew_at_another_instance_and_after_a_restart() {
    let keys = KeyRing::generate(&SystemSource::new());
    let instance = || start(builder().0.keys(keys.clone()));
    for revision in ["2025-11-25", "2025-06-18"] {
        let (one, other) = (instance().await, instance().await);
        let session = Session::open_with(one.address, revision, &json!({}), &[]).await;
        let mut news = session.get().await;
        let last = match revision {
            // It has said nothing yet.
            "2025-11-25" => news.event().await.expect("where the stream begins"),
            _ => is_told(&one, &mut news).await,
        };
        let mut there = session.at(&other).resume(&last.id).await;
        is_told(&other, &mut there).await;
        one.stopped_now().await;
        let restarted = instance().await;
        let mut there = session.at(&restarted).resume(&last.id).await;
        is_told(&restarted, &mut there).await;
    }
}

#[tokio::test]
async fn whoever_listened_listens_anew_when_the_stream_is_no_longer_kept() {
    let limits = ServerLimits {
        resume_time: Duration::from_millis(1),
        ..ServerLimits::default()
    };
    let instance = start(builder().0.limits(limits)).await;
    let session = Session::open(&instance).await;
    let mut news = session.get().await;
    let begins = news.event().await.expect("where the stream begins");
    drop(news);
    let anew = async {
        loop {
            let mut again = session.resume(&begins.id).await;
            let first = again.event().await.expect("where the stream begins");
            if first.id != begins.id {
                return again;
            }
            drop(again);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let mut again = within("the stream to be forgotten", anew).await;
    is_told(&instance, &mut again).await;
}

#[tokio::test]
async fn a_stream_is_taken_up_again_where_it_is() {
    let keys = KeyRing::generate(&SystemSource::new());
    let one = start(builder().0.keys(keys.clone())).await;
    let other = start(builder().0.keys(keys)).await;
    let session = Session::open(&one).await;
    let mut stream = session.stream(&call(5, "greet", json!({}))).await;
    let begins = stream.event().await.expect("where the stream begins");
    let asked = stream.next().await;
    drop(stream);
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
    let there = session.at(&other).header("Last-Event-ID", &begins.id);
    let refused = there.refused("GET").await;
    names(
        &refused.error(503, -32603),
        &["another instance", "restarted", "try again", "--advertise"],
    );
    assert_eq!(refused.header("retry-after"), Some("1"));
    let rest = session.resume(&begins.id).await.rest().await;
    let reply = rest.last().expect("the reply");
    assert_eq!(reply["result"]["content"][0]["text"], "Hello, Ann!");
}

#[tokio::test]
async fn what_a_call_says_does_not_put_its_reply_out_of_reach() {
    let (builder, signals, mut heard) = builder();
    let limits = ServerLimits {
        resume_bytes: 150,
        ..ServerLimits::default()
    };
    let instance = start(builder.limits(limits)).await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(5, "count", json!({}))).await;
    let begins = stream.event().await.expect("where the stream begins");
    assert_eq!(within("the count", heard.recv()).await, Some("counted"));
    drop(stream);
    signals.open();
    assert_eq!(within("its end", heard.recv()).await, Some("dropped"));
    let rest = session.resume(&begins.id).await.rest().await;
    assert!(data(&rest).len() < 3, "there was no room for all of it");
    let reply = rest.last().expect("the reply");
    assert_eq!(reply["result"]["content"][0]["text"], "four");
}

/// Waits until so many clients listen.
async fn listening(instance: &Instance, wanted: usize) {
    let listening = async {
        while instance.server.subscriptions() != wanted {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within("streams to end", listening).await;
}

/// An instance on which streams are kept for longer than any test takes.
async fn patient(tools: ServerBuilder) -> Instance {
    let limits = ServerLimits {
        resume_time: Duration::from_secs(3600),
        subscriptions: 3,
        ..ServerLimits::default()
    };
    start(tools.limits(limits)).await
}

#[tokio::test]
async fn a_stream_that_another_takes_the_place_of_leaves_its_own() {
    let instance = patient(builder().0).await;
    let session = Session::open(&instance).await;
    for _ in 0..10 {
        let mut news = session.get().await;
        news.event().await.expect("where the stream begins");
        // The client breaks it off, and begins anew.
        drop(news);
        listening(&instance, 1).await;
    }
    let mut first = session.get().await;
    let begins = first.event().await.expect("where the stream begins");
    let _second = session.get().await;
    assert!(first.rest().await.is_empty());
    listening(&instance, 1).await;
    // It is not kept either.
    let resume = session.clone().header("Last-Event-ID", &begins.id);
    resume.refused("GET").await.error(400, -32600);
}

#[tokio::test]
async fn the_stream_of_a_session_that_ended_leaves_its_place() {
    let instance = patient(builder().0).await;
    let session = Session::open(&instance).await;
    let mut news = session.get().await;
    listening(&instance, 1).await;
    assert_eq!(session.delete().await.status, 204);
    assert!(news.rest().await.is_empty());
    listening(&instance, 0).await;
}

#[tokio::test]
async fn nothing_is_left_of_calls_that_were_answered_at_once() {
    let instance = patient(builder().0.tool(Tool::new("echo", echo))).await;
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
    let gone = async {
        while tasks() > before {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within("the calls to leave nothing behind", gone).await;
}

#[tokio::test]
async fn a_session_without_an_end_listens() {
    let limits = ServerLimits {
        session_time: Duration::MAX,
        ..ServerLimits::default()
    };
    let instance = start(builder().0.limits(limits)).await;
    let session = Session::open(&instance).await;
    let mut news = session.get().await;
    listening(&instance, 1).await;
    let more = Changes::new().tool(Tool::new("echo", echo));
    instance.server.change(more).expect("a change");
    let told = news.next().await;
    assert_eq!(told["method"], "notifications/tools/list_changed");
}

/// Asks when it is let through.
async fn asks_late(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    signals.say("waits");
    signals.pass().await;
    let login: Login = cx.elicit("login", "Who are you?").await?;
    Ok(login.name)
}

#[tokio::test]
async fn a_call_that_waits_for_an_answer_ends_with_its_session() {
    let (builder, signals, mut heard) = builder();
    let clock = Clock::new();
    let limits = ServerLimits {
        session_time: Duration::from_secs(600),
        ..ServerLimits::default()
    };
    let builder = builder.tool(Tool::new("asks_late", asks_late));
    let instance = start(builder.source(clock.clone()).limits(limits)).await;
    let session = Session::open(&instance).await;
    let mut asks = session.stream(&call(5, "asks_late", json!({}))).await;
    assert_eq!(within("the call", heard.recv()).await, Some("waits"));
    let mut counts = session.stream(&call(6, "count", json!({}))).await;
    assert_eq!(within("the count", heard.recv()).await, Some("counted"));
    clock.forward(599);
    signals.open();
    let asked = asks.next().await;
    assert_eq!(asked["method"], "elicitation/create");
    clock.forward(1);
    let answer = filled_in(&asked, "Ann");
    session.post(&answer).await.error(404, -32600);
    let rest = asks.rest().await;
    let [withdrawn, reply] = &rest[..] else {
        panic!("that it is withdrawn, and a reply, and not {rest:?}");
    };
    assert_eq!(withdrawn["method"], "notifications/cancelled");
    assert_eq!(withdrawn["params"]["requestId"], asked["id"]);
    assert_eq!(reply["id"], 5);
    assert_eq!(reply["error"]["code"], -32603);
    let why = reply["error"]["message"].as_str().expect("a message");
    names(why, &["session is over", "done", "initialize"]);
    // What waits for nobody goes on to its end.
    signals.open();
    let counted = counts.rest().await;
    let reply = counted.last().expect("the reply");
    assert_eq!(reply["result"]["content"][0]["text"], "four");
}
