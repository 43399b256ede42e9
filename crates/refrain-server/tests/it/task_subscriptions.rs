//! Subscriptions to task states.

use crate::support::tasks::{
    FaultyStore, LONG, ReadingStore, TASKS_EXTENSION, Work, about, create, create_anonymous,
    declared, eager, form, stored, update, work,
};
use crate::support::{
    CAPABILITIES_KEY, Clock, Connection, Instance, LOG_LEVEL_KEY, Request, Signals,
    assert_contains, next_message, signals, start, until, within,
};
use refrain_core::{Cx, Principal, Result};
use refrain_server::{
    BearerTokens, Caller, MessageResponse, Server, ServerBuilder, ServerLimits, State, TaskOptions,
    Tool,
};
use refrain_store::{Claim, Commit, MemoryStore, Next, StoreError, TaskStore};
use refrain_wire::LogLevel;
use serde_json::{Value, json};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

const ID: &str = "io.modelcontextprotocol/subscriptionId";
const ALICE: &str = "alice-0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef";

/// A server without the tool of the tasks, so that only the test runs them.
fn builder(store: Arc<dyn TaskStore>, options: TaskOptions) -> ServerBuilder {
    Server::builder("subscriptions", "1").tasks(store, options)
}

fn build(store: Arc<dyn TaskStore>) -> Server {
    let built = builder(store, eager()).build();
    built.expect("the server builds")
}

/// A server whose store can fail, and a task in the store.
async fn with_faulty_store(store: &MemoryStore) -> (Server, Arc<FaultyStore>, Work) {
    let faulty = FaultyStore::new(store);
    let work = create_anonymous(store).await;
    (build(faulty.clone()), faulty, work)
}

/// Options of a server that relies on hints alone.
fn hints_only() -> TaskOptions {
    TaskOptions {
        store_poll: LONG,
        ..TaskOptions::default()
    }
}

fn listen(ids: &[&str]) -> Request {
    let request = Request::rpc("subscriptions/listen", json!({}));
    declared(request.param("notifications", json!({"taskIds": ids})))
}

/// Subscribes and returns the connection with the acknowledged tasks.
async fn subscribe(instance: &Instance, request: &Request) -> (Connection, Value) {
    let mut connection = instance.connect().await;
    connection.send(request).await;
    assert_eq!(connection.head().await.status, 200);
    let first = within("the acknowledgement", connection.event()).await;
    let first = first.expect("the subscription is acknowledged");
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(first["params"]["_meta"][ID], 1);
    let notifications = &first["params"]["notifications"];
    (connection, notifications["taskIds"].clone())
}

/// The next notification about a task.
async fn next_state(connection: &mut Connection) -> Value {
    let event = within("a notification", connection.event()).await;
    task_state(&event.expect("the stream is open"))
}

#[track_caller]
fn task_state(event: &Value) -> Value {
    assert_eq!(event["method"], "notifications/tasks", "{event}");
    assert_eq!(event["params"]["_meta"], json!({ID: 1}));
    event["params"].clone()
}

/// Opens a stream without a transport.
async fn stream(server: &Server, request: &Request, caller: impl Into<Caller>) -> MessageResponse {
    server.handle(&request.message(), caller.into()).await
}

/// The methods of all remaining messages.
async fn rest(stream: &mut MessageResponse) -> Vec<String> {
    let mut methods = Vec::new();
    while let Some(message) = within("the end", stream.next()).await {
        let message: Value = serde_json::from_slice(&message).expect("replies are JSON");
        let method = message["method"].as_str();
        methods.push(method.unwrap_or("the response").to_owned());
    }
    methods
}

/// The last messages of a subscription.
const END: [&str; 2] = ["the response", "notifications/cancelled"];

#[tokio::test]
async fn subscriber_gets_the_task_state_and_its_changes() {
    let store = MemoryStore::new();
    let instance = start(builder(Arc::new(store.clone()), hints_only())).await;
    let work = create_anonymous(&store).await;
    let (mut connection, acknowledged) = subscribe(&instance, &listen(&[work.id()])).await;
    assert_eq!(acknowledged, json!([work.id()]));
    let present = next_state(&mut connection).await;
    assert_eq!(present["taskId"], work.id());
    assert_eq!(present["status"], "working");

    work.say("halfway").await;
    assert_eq!(
        next_state(&mut connection).await["statusMessage"],
        "halfway"
    );
    work.ask(&[("name", form())]).await;
    let asking = next_state(&mut connection).await;
    assert_eq!(asking["status"], "input_required");
    assert_eq!(asking["inputRequests"], json!({"name": form()}));
    let answer = update(work.id(), json!({"name": {"action": "cancel"}}));
    instance.send(&answer).await.reply();
    assert_eq!(next_state(&mut connection).await["status"], "working");

    let result = json!({"content": [], "isError": false});
    work.complete(&result).await;
    let done = next_state(&mut connection).await;
    assert_eq!(done["status"], "completed");
    assert_eq!(done["result"], result);
    // The notification equals the result of tasks/get.
    let reply = instance.send(&about("tasks/get", work.id())).await.reply();
    let mut shown = reply["result"].clone();
    shown["_meta"] = json!({ID: 1});
    shown
        .as_object_mut()
        .expect("the result is an object")
        .remove("resultType");
    assert_eq!(done, shown);
}

#[tokio::test]
async fn subscriber_gets_no_progress_or_logs_of_a_task() {
    async fn reporting(cx: Cx, signals: State<Arc<Signals>>) -> Result<&'static str> {
        signals.pass().await;
        cx.progress(1.0, None, "one");
        cx.log(LogLevel::Error, "of the task");
        signals.pass().await;
        Ok("reported")
    }
    let store = MemoryStore::new();
    let (signals, _heard) = signals();
    let server = builder(Arc::new(store), eager())
        .state(signals.clone())
        .tool(Tool::new("reporting", reporting).task());
    let instance = start(server).await;
    let with_notes = |request: Request| {
        request
            .meta(LOG_LEVEL_KEY, json!("debug"))
            .meta("progressToken", json!("p"))
    };
    let call = declared(with_notes(Request::tool("reporting", json!({}))));
    let reply = instance.send(&call).await.reply();
    assert_eq!(reply["result"]["resultType"], "task");
    let id = reply["result"]["taskId"]
        .as_str()
        .expect("taskId is a string");
    let (mut connection, _) = subscribe(&instance, &with_notes(listen(&[id]))).await;
    assert_eq!(next_state(&mut connection).await["status"], "working");
    signals.open();
    signals.open();
    loop {
        let state = next_state(&mut connection).await;
        if state["status"] == "completed" {
            assert_eq!(state["result"]["content"][0]["text"], "reported");
            break;
        }
        assert_eq!(state["status"], "working");
    }
}

#[tokio::test]
async fn change_on_another_instance_is_reported_without_hint() {
    let store = MemoryStore::new();
    let without_hints = FaultyStore::new(&store);
    let here = start(builder(without_hints, eager())).await;
    let there = start(builder(Arc::new(store.clone()), eager())).await;
    let (first, second) = (
        create_anonymous(&store).await,
        create_anonymous(&store).await,
    );
    first.ask(&[("name", form())]).await;
    let request = listen(&[first.id(), second.id()]);
    let (mut connection, _) = subscribe(&here, &request).await;
    next_state(&mut connection).await;
    next_state(&mut connection).await;
    let answer = update(first.id(), json!({"name": {"action": "cancel"}}));
    there.send(&answer).await.reply();
    let state = next_state(&mut connection).await;
    assert_eq!(state["taskId"], first.id());
    assert_eq!(state["status"], "working");
    let cancel = about("tasks/cancel", second.id());
    there.send(&cancel).await.reply();
    let state = next_state(&mut connection).await;
    assert_eq!(state["taskId"], second.id());
    assert_eq!(state["status"], "cancelled");
}

#[tokio::test]
async fn only_tasks_of_the_caller_are_acknowledged() {
    let store = MemoryStore::new();
    let tokens = BearerTokens::new().with("alice", ALICE).with("bob", BOB);
    let server = builder(Arc::new(store.clone()), eager()).authenticator(tokens);
    let instance = start(server).await;
    let alices = create(Arc::new(store.clone()), Principal::new("alice")).await;
    let bobs = create(Arc::new(store.clone()), Principal::new("bob")).await;
    let anonymous = create_anonymous(&store).await;
    let unknown = "000000000000000000000000000000000000000000000000";
    let ids = [alices.id(), bobs.id(), anonymous.id(), unknown, "../", ""];
    let request = listen(&ids).bearer(BOB);
    let (mut connection, acknowledged) = subscribe(&instance, &request).await;
    assert_eq!(acknowledged, json!([bobs.id()]));
    assert_eq!(next_state(&mut connection).await["taskId"], bobs.id());
    // Changes of other tasks are not reported.
    alices.say("secret").await;
    anonymous.say("secret").await;
    bobs.say("mine").await;
    let state = next_state(&mut connection).await;
    assert_eq!(
        (&state["taskId"], &state["statusMessage"]),
        (&json!(bobs.id()), &json!("mine"))
    );
    // Without own tasks, none are acknowledged.
    let request = listen(&[alices.id()]).bearer(BOB);
    let (_connection, acknowledged) = subscribe(&instance, &request).await;
    assert_eq!(acknowledged, Value::Null);
}

#[tokio::test]
async fn task_subscription_requires_the_scopes_of_the_tool() {
    let store = MemoryStore::new();
    let server = Server::builder("subscriptions", "1")
        .tool(Tool::new("work", work).scopes(["files:write"]))
        .tasks(Arc::new(store.clone()), eager())
        .build()
        .expect("the server builds");
    let alice = || Principal::new("alice");
    let work = create(Arc::new(store.clone()), alice()).await;
    let request = listen(&[work.id()]);
    let mut without = stream(&server, &request, alice()).await;
    let acknowledged = next_message(&mut without).await;
    assert_eq!(acknowledged["params"]["notifications"], json!({}));
    let caller = Caller {
        scopes: ["files:write"].into_iter().collect(),
        ..alice().into()
    };
    let mut with = stream(&server, &request, caller).await;
    let acknowledged = next_message(&mut with).await;
    let expected = json!({"taskIds": [work.id()]});
    assert_eq!(acknowledged["params"]["notifications"], expected);
    task_state(&next_message(&mut with).await);
    work.say("on").await;
    task_state(&next_message(&mut with).await);
    server.start_draining();
    assert_eq!(rest(&mut without).await, END);
}

#[tokio::test]
async fn invalid_task_subscriptions_are_rejected() {
    let store = MemoryStore::new();
    let options = TaskOptions {
        subscribed: 2,
        ..eager()
    };
    let instance = start(builder(Arc::new(store), options)).await;
    let bare = listen(&["a"]).meta(CAPABILITIES_KEY, json!({}));
    let response = instance.send(&bare).await;
    assert_contains(&response.error(400, -32021), &[TASKS_EXTENSION]);
    assert_eq!(
        response.json()["error"]["data"],
        json!({"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}})
    );
    let many = listen(&["a", "b", "c"]);
    let message = instance.send(&many).await.error(400, -32602);
    assert_contains(&message, &["notifications.taskIds", "at most 2 tasks"]);
    let wrong = listen(&[]).param("notifications", json!({"taskIds": [7]}));
    let message = instance.send(&wrong).await.error(400, -32602);
    assert_contains(&message, &["notifications.taskIds", "strings"]);
    assert_eq!(instance.server.subscriptions(), 0);
    // Duplicates count once. Unknown ids count, because they are not looked up yet.
    let (_connection, acknowledged) = subscribe(&instance, &listen(&["a", "b", "a"])).await;
    assert_eq!(acknowledged, Value::Null);
    // A subscription without tasks needs no capability.
    let none = listen(&[]).meta(CAPABILITIES_KEY, json!({}));
    subscribe(&instance, &none).await;
    // A server without tasks ignores the filter.
    let plain = start(Server::builder("plain", "1")).await;
    let (_connection, acknowledged) = subscribe(&plain, &bare).await;
    assert_eq!(acknowledged, Value::Null);
}

#[tokio::test]
async fn slow_subscriber_gets_the_latest_state_of_each_task() {
    let store = MemoryStore::new();
    let server = build(Arc::new(store.clone()));
    let (first, second) = (
        create_anonymous(&store).await,
        create_anonymous(&store).await,
    );
    let request = listen(&[first.id(), second.id()]);
    let mut slow = stream(&server, &request, Principal::anonymous()).await;
    next_message(&mut slow).await;
    // The watcher sees all changes while the client reads none.
    for n in 0..500 {
        first.say(&format!("step {n}")).await;
        second.say(&format!("part {n}")).await;
        tokio::task::yield_now().await;
    }
    let mut latest = Vec::new();
    for _ in 0..2 {
        let state = task_state(&next_message(&mut slow).await);
        latest.push(state["statusMessage"].clone());
    }
    latest.sort_by_key(ToString::to_string);
    assert_eq!(latest, ["part 499", "step 499"]);
    // Later changes are reported as usual.
    first.complete(&json!({"content": []})).await;
    let state = task_state(&next_message(&mut slow).await);
    assert_eq!(state["status"], "completed");
}

#[tokio::test]
async fn invisible_changes_are_not_reported() {
    let store = MemoryStore::new();
    let (server, _faulty, work) = with_faulty_store(&store).await;
    let mut stream = stream(&server, &listen(&[work.id()]), Principal::anonymous()).await;
    next_message(&mut stream).await;
    task_state(&next_message(&mut stream).await);
    // A new journal and another worker do not change the public state.
    let journal = Some(vec![1]);
    work.commit(Commit {
        journal,
        next: Next::HandOn,
        ..Commit::default()
    })
    .await;
    let claim = Claim {
        worker: "another",
        tools: &["work".to_owned()],
        lease: LONG,
        most: 1,
        except: &[],
        anonymous: true,
    };
    let claimed = store.claim(claim).await.expect("the store is available");
    let lease = claimed[0].lease.clone();
    let done = Commit {
        next: Next::Complete(stored(&json!({"content": []}))),
        ..Commit::default()
    };
    let complete = async {
        // Gives the watcher time for many polls. The assertions do not depend on it.
        tokio::time::sleep(Duration::from_millis(100)).await;
        store.commit(&lease, done).await.expect("the lease is held");
    };
    let (state, ()) = tokio::join!(next_message(&mut stream), complete);
    assert_eq!(state["params"]["status"], "completed");
}

#[tokio::test]
async fn ended_task_is_no_longer_watched() {
    let store = MemoryStore::new();
    let (server, faulty, work) = with_faulty_store(&store).await;
    let mut stream = stream(&server, &listen(&[work.id()]), Principal::anonymous()).await;
    next_message(&mut stream).await;
    faulty.wait_for_watchers(1).await;
    task_state(&next_message(&mut stream).await);
    let error = json!({"code": -32603, "message": "no"});
    work.next(Next::Fail(stored(&error))).await;
    let failed = task_state(&next_message(&mut stream).await);
    assert_eq!(failed["error"], error);
    // The watcher ended, although the subscription is still open.
    faulty.wait_for_watchers(0).await;
    assert_eq!(server.subscriptions(), 1);
    store
        .requeue(&work.lease.task)
        .await
        .expect("the store is available");
    server.start_draining();
    assert_eq!(rest(&mut stream).await, END);
}

#[tokio::test]
async fn deleted_task_is_not_reported() {
    let clock = Clock::new();
    let store = MemoryStore::with_source(clock.clone());
    let (server, faulty, work) = with_faulty_store(&store).await;
    let mut stream = stream(&server, &listen(&[work.id()]), Principal::anonymous()).await;
    next_message(&mut stream).await;
    task_state(&next_message(&mut stream).await);
    faulty.wait_for_watchers(1).await;
    // The task ends and is deleted before the watcher polls.
    faulty.fail(Some(StoreError::Unavailable("outage".into())));
    work.complete(&json!({"content": []})).await;
    clock.forward(3600);
    let swept = store
        .sweep(Duration::ZERO, 10)
        .await
        .expect("the store is available");
    assert_eq!(swept.tasks, 1);
    faulty.fail(None);
    let deleted = async {
        faulty.wait_for_watchers(0).await;
        server.start_draining();
    };
    let (methods, ()) = tokio::join!(rest(&mut stream), deleted);
    assert_eq!(methods, END);
}

#[tokio::test]
async fn subscription_survives_an_unavailable_store() {
    let store = MemoryStore::new();
    let (server, faulty, work) = with_faulty_store(&store).await;
    let mut stream = stream(&server, &listen(&[work.id()]), Principal::anonymous()).await;
    next_message(&mut stream).await;
    // The initial state cannot be read.
    let recover = async || {
        tokio::time::sleep(Duration::from_millis(50)).await;
        faulty.fail(None);
    };
    faulty.fail(Some(StoreError::Unavailable("outage".into())));
    let (first, ()) = tokio::join!(next_message(&mut stream), recover());
    assert_eq!(task_state(&first)["status"], "working");
    faulty.fail(Some(StoreError::Unavailable("outage".into())));
    work.say("reported late").await;
    let (second, ()) = tokio::join!(next_message(&mut stream), recover());
    assert_eq!(task_state(&second)["statusMessage"], "reported late");
}

#[tokio::test]
async fn subscription_fails_if_the_store_is_unavailable() {
    let store = MemoryStore::new();
    let faulty = FaultyStore::new(&store);
    let limits = ServerLimits {
        round_time: Duration::from_millis(50),
        ..ServerLimits::default()
    };
    let instance = start(builder(faulty.clone(), eager()).limits(limits)).await;
    let work = create_anonymous(&store).await;
    for (fault, message) in [
        (
            Some(StoreError::Unavailable("away".into())),
            "the task store is unavailable; try again",
        ),
        (Some(StoreError::Failed("bad".into())), "Internal error"),
        // The store hangs.
        (None, "the task store is unavailable; try again"),
    ] {
        if fault.is_none() {
            faulty.hang();
        }
        faulty.fail(fault);
        let events = instance.send(&listen(&[work.id()])).await.events();
        assert_eq!(events.len(), 1);
        assert_eq!(events[0]["id"], 1);
        assert_eq!(events[0]["error"]["code"], -32603);
        assert_eq!(events[0]["error"]["message"], message);
    }
}

#[tokio::test]
async fn shutdown_does_not_wait_for_the_store() {
    let store = MemoryStore::new();
    let (server, faulty, work) = with_faulty_store(&store).await;
    let request = listen(&[work.id()]);
    let mut open = stream(&server, &request, Principal::anonymous()).await;
    next_message(&mut open).await;
    faulty.hang();
    let mut opening = stream(&server, &request, Principal::anonymous()).await;
    let stop = async {
        tokio::task::yield_now().await;
        server.start_draining();
    };
    let (first, second, ()) = tokio::join!(rest(&mut open), rest(&mut opening), stop);
    assert_eq!(
        (first, second),
        (END.map(Into::into).into(), END.map(Into::into).into())
    );
}

/// Uses paused time, which advances to the expiry of the access token.
#[tokio::test(start_paused = true)]
async fn subscription_ends_when_the_access_token_expires() {
    let store = MemoryStore::new();
    let server = build(Arc::new(store.clone()));
    let work = create(Arc::new(store.clone()), Principal::new("alice")).await;
    let caller = Caller {
        expires: Some(SystemTime::now() + Duration::from_secs(10)),
        ..Principal::new("alice").into()
    };
    let mut stream = stream(&server, &listen(&[work.id()]), caller).await;
    next_message(&mut stream).await;
    task_state(&next_message(&mut stream).await);
    assert_eq!(rest(&mut stream).await, END);
    assert_eq!(server.subscriptions(), 1);
    drop(stream);
    assert_eq!(server.subscriptions(), 0);
}

#[tokio::test]
async fn one_watcher_serves_all_subscribers_and_ends_with_the_last() {
    let store = MemoryStore::new();
    let (server, faulty, work) = with_faulty_store(&store).await;
    let request = listen(&[work.id()]);
    let mut first = stream(&server, &request, Principal::anonymous()).await;
    let mut second = stream(&server, &request, Principal::anonymous()).await;
    for stream in [&mut first, &mut second] {
        next_message(stream).await;
        task_state(&next_message(stream).await);
    }
    faulty.wait_for_watchers(1).await;
    work.say("on").await;
    for stream in [&mut first, &mut second] {
        assert_eq!(
            task_state(&next_message(stream).await)["statusMessage"],
            "on"
        );
    }
    drop(first);
    work.say("on still").await;
    assert_eq!(
        task_state(&next_message(&mut second).await)["statusMessage"],
        "on still"
    );
    drop(second);
    faulty.wait_for_watchers(0).await;
    // The next subscription starts a new watcher.
    let mut third = stream(&server, &request, Principal::anonymous()).await;
    next_message(&mut third).await;
    faulty.wait_for_watchers(1).await;
    // The watcher does not keep the server alive.
    drop((third, server));
    faulty.wait_for_watchers(0).await;
    until("the server to be dropped", || {
        Arc::strong_count(&faulty) <= 1
    })
    .await;
}

#[tokio::test]
async fn subscriptions_of_a_caller_read_one_task_at_a_time() {
    let store = MemoryStore::new();
    let reading = ReadingStore::new(&store, 0);
    let server = build(reading.clone());
    let mut streams = Vec::new();
    for owner in ["alice", "bob"] {
        let owner = Principal::new(owner);
        let work = create(Arc::new(store.clone()), owner.clone()).await;
        let result = json!({"content": [], "isError": false});
        work.complete(&result).await;
        for _ in 0..5 {
            let request = listen(&[work.id()]);
            let mut stream = stream(&server, &request, owner.clone()).await;
            let acknowledged = next_message(&mut stream).await;
            let tasks = &acknowledged["params"]["notifications"]["taskIds"];
            assert_eq!(tasks, &json!([work.id()]));
            streams.push(stream);
        }
    }
    assert_eq!(reading.reads(), 0, "a subscription needs no results");
    let states = streams.into_iter().map(|mut stream| {
        tokio::spawn(async move { task_state(&next_message(&mut stream).await) })
    });
    let states: Vec<_> = states.collect();
    until("the first reads", || reading.reads() >= 2).await;
    for done in 0..8 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(reading.reads() <= 2 + done, "one for each caller");
        reading.allow(1);
        until("the next read", || reading.reads() >= 3 + done.min(7)).await;
    }
    reading.allow(2);
    for state in states {
        assert_eq!(state.await.expect("no panic")["status"], "completed");
    }
    assert_eq!(reading.reads(), 10);
}

#[tokio::test]
async fn client_that_does_not_read_does_not_hold_up_its_other_subscriptions() {
    let store = MemoryStore::new();
    let server = build(Arc::new(store.clone()));
    let work = create_anonymous(&store).await;
    let request = listen(&[work.id()]);
    let mut idle = stream(&server, &request, Principal::anonymous()).await;
    next_message(&mut idle).await;
    // It starts to read the task, and is not polled again.
    let first = std::future::poll_fn(|cx| Poll::Ready(idle.poll_next(cx).is_ready())).await;
    let mut other = stream(&server, &request, Principal::anonymous()).await;
    next_message(&mut other).await;
    task_state(&next_message(&mut other).await);
    if !first {
        task_state(&next_message(&mut idle).await);
    }
}
