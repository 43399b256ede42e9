//! Clients that listen for what becomes of their tasks.

use crate::support::tasks::{
    FaultyStore, LONG, TASKS, Work, about, create, declared, eager, form, stored, update,
};
use crate::support::{
    CAPABILITIES, Clock, Connection, Instance, LOG_LEVEL, Request, Signals, names, signals, start,
    within,
};
use refrain_core::{Cx, Principal, Result};
use refrain_server::{
    BearerTokens, Caller, MessageResponse, Scopes, Server, ServerBuilder, ServerLimits, State,
    TaskOptions, Tool,
};
use refrain_store::{Claim, Commit, MemoryStore, Next, StoreError, TaskStore};
use refrain_wire::LogLevel;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const ID: &str = "io.modelcontextprotocol/subscriptionId";
const ALICE: &str = "alice-0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef";

async fn work(_: Cx) -> Result<&'static str> {
    Ok("worked")
}

/// A server without the tool whose tasks these are: nobody but the test runs them.
fn builder(store: Arc<dyn TaskStore>, options: TaskOptions) -> ServerBuilder {
    Server::builder("news", "1").tasks(store, options)
}

/// Options of a server that goes by hints alone.
fn patient() -> TaskOptions {
    TaskOptions {
        look: LONG,
        ..TaskOptions::default()
    }
}

async fn anyones(store: &MemoryStore) -> Work {
    create(Arc::new(store.clone()), Principal::anonymous()).await
}

fn listen(ids: &[&str]) -> Request {
    let request = Request::rpc("subscriptions/listen", json!({}));
    declared(request.param("notifications", json!({"taskIds": ids})))
}

/// Begins to listen, and gives the connection with the tasks that were agreed on.
async fn listening(instance: &Instance, request: &Request) -> (Connection, Value) {
    let mut connection = instance.connect().await;
    connection.send(request).await;
    assert_eq!(connection.head().await.status, 200);
    let first = within("an acknowledgement", connection.event()).await;
    let first = first.expect("an acknowledgement");
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(first["params"]["_meta"][ID], 1);
    let notifications = &first["params"]["notifications"];
    (connection, notifications["taskIds"].clone())
}

/// What is told of a task next.
async fn told(connection: &mut Connection) -> Value {
    let event = within("news", connection.event()).await.expect("news");
    news(&event)
}

#[track_caller]
fn news(event: &Value) -> Value {
    assert_eq!(event["method"], "notifications/tasks", "{event}");
    assert_eq!(event["params"]["_meta"], json!({ID: 1}));
    event["params"].clone()
}

/// A stream without a transport, and what it says next.
async fn stream(server: &Server, request: &Request, caller: impl Into<Caller>) -> MessageResponse {
    server.handle(&request.message(), caller.into()).await
}

async fn next(stream: &mut MessageResponse) -> Value {
    let message = within("a message", stream.next()).await;
    serde_json::from_slice(&message.expect("a message")).expect("JSON")
}

/// All that is left to say, by method.
async fn rest(stream: &mut MessageResponse) -> Vec<String> {
    let mut methods = Vec::new();
    while let Some(message) = within("the end", stream.next()).await {
        let message: Value = serde_json::from_slice(&message).expect("JSON");
        let method = message["method"].as_str();
        methods.push(method.unwrap_or("the response").to_owned());
    }
    methods
}

/// How a subscription ends that had nothing more to say.
const END: [&str; 2] = ["the response", "notifications/cancelled"];

#[tokio::test]
async fn a_listener_is_told_how_a_task_stands_and_what_becomes_of_it() {
    let store = MemoryStore::new();
    // By hints alone.
    let instance = start(builder(Arc::new(store.clone()), patient())).await;
    let work = anyones(&store).await;
    let (mut connection, agreed) = listening(&instance, &listen(&[work.id()])).await;
    assert_eq!(agreed, json!([work.id()]));
    let present = told(&mut connection).await;
    assert_eq!(present["taskId"], work.id());
    assert_eq!(present["status"], "working");

    work.say("halfway").await;
    assert_eq!(told(&mut connection).await["statusMessage"], "halfway");
    work.ask(&[("name", form())]).await;
    let asking = told(&mut connection).await;
    assert_eq!(asking["status"], "input_required");
    assert_eq!(asking["inputRequests"], json!({"name": form()}));
    let answer = update(work.id(), json!({"name": {"action": "cancel"}}));
    instance.send(&answer).await.reply();
    assert_eq!(told(&mut connection).await["status"], "working");

    let result = json!({"content": [], "isError": false});
    work.complete(&result).await;
    let done = told(&mut connection).await;
    assert_eq!(done["status"], "completed");
    assert_eq!(done["result"], result);
    // It says what tasks/get says.
    let reply = instance.send(&about("tasks/get", work.id())).await.reply();
    let mut shown = reply["result"].clone();
    shown["_meta"] = json!({ID: 1});
    shown
        .as_object_mut()
        .expect("an object")
        .remove("resultType");
    assert_eq!(done, shown);
}

#[tokio::test]
async fn nothing_but_how_it_stands_is_told_of_a_task_at_work() {
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
    let wants_both = |request: Request| {
        request
            .meta(LOG_LEVEL, json!("debug"))
            .meta("progressToken", json!("p"))
    };
    let call = declared(wants_both(Request::tool("reporting", json!({}))));
    let reply = instance.send(&call).await.reply();
    assert_eq!(reply["result"]["resultType"], "task");
    let id = reply["result"]["taskId"].as_str().expect("an id");
    let (mut connection, _) = listening(&instance, &wants_both(listen(&[id]))).await;
    assert_eq!(told(&mut connection).await["status"], "working");
    signals.open();
    signals.open();
    loop {
        let news = told(&mut connection).await;
        if news["status"] == "completed" {
            assert_eq!(news["result"]["content"][0]["text"], "reported");
            break;
        }
        assert_eq!(news["status"], "working");
    }
}

#[tokio::test]
async fn a_change_on_another_instance_is_told_without_a_hint() {
    let store = MemoryStore::new();
    let deaf = FaultyStore::new(&store);
    let here = start(builder(deaf, eager())).await;
    let there = start(builder(Arc::new(store.clone()), eager())).await;
    let (first, second) = (anyones(&store).await, anyones(&store).await);
    first.ask(&[("name", form())]).await;
    let request = listen(&[first.id(), second.id()]);
    let (mut connection, _) = listening(&here, &request).await;
    told(&mut connection).await;
    told(&mut connection).await;
    let answer = update(first.id(), json!({"name": {"action": "cancel"}}));
    there.send(&answer).await.reply();
    let news = told(&mut connection).await;
    assert_eq!(news["taskId"], first.id());
    assert_eq!(news["status"], "working");
    let cancel = about("tasks/cancel", second.id());
    there.send(&cancel).await.reply();
    let news = told(&mut connection).await;
    assert_eq!(news["taskId"], second.id());
    assert_eq!(news["status"], "cancelled");
}

#[tokio::test]
async fn only_tasks_of_the_caller_are_agreed_on() {
    let store = MemoryStore::new();
    let tokens = BearerTokens::new().with("alice", ALICE).with("bob", BOB);
    let server = builder(Arc::new(store.clone()), eager()).authenticator(tokens);
    let instance = start(server).await;
    let alices = create(Arc::new(store.clone()), Principal::new("alice")).await;
    let bobs = create(Arc::new(store.clone()), Principal::new("bob")).await;
    let nobodys = anyones(&store).await;
    let unknown = "000000000000000000000000000000000000000000000000";
    let ids = [alices.id(), bobs.id(), nobodys.id(), unknown, "../", ""];
    let request = listen(&ids).header("Authorization", &format!("Bearer {BOB}"));
    let (mut connection, agreed) = listening(&instance, &request).await;
    assert_eq!(agreed, json!([bobs.id()]));
    assert_eq!(told(&mut connection).await["taskId"], bobs.id());
    // Nothing of the others, whatever becomes of them.
    alices.say("secret").await;
    nobodys.say("secret").await;
    bobs.say("mine").await;
    let news = told(&mut connection).await;
    assert_eq!(
        (&news["taskId"], &news["statusMessage"]),
        (&json!(bobs.id()), &json!("mine"))
    );
    // Without any there is nothing to agree on.
    let request = listen(&[alices.id()]).header("Authorization", &format!("Bearer {BOB}"));
    let (_connection, agreed) = listening(&instance, &request).await;
    assert_eq!(agreed, Value::Null);
}

#[tokio::test]
async fn whoever_may_not_call_the_tool_is_not_told_of_its_tasks() {
    let store = MemoryStore::new();
    let server = Server::builder("news", "1")
        .tool(Tool::new("work", work).scopes(["files:write"]))
        .tasks(Arc::new(store.clone()), eager())
        .build()
        .expect("a usable server");
    let alice = || Principal::new("alice");
    let work = create(Arc::new(store.clone()), alice()).await;
    let request = listen(&[work.id()]);
    let mut without = stream(&server, &request, alice()).await;
    let acknowledged = next(&mut without).await;
    assert_eq!(acknowledged["params"]["notifications"], json!({}));
    let caller = Caller {
        principal: alice(),
        scopes: ["files:write"].into_iter().collect(),
        expires: None,
    };
    let mut with = stream(&server, &request, caller).await;
    let acknowledged = next(&mut with).await;
    let agreed = json!({"taskIds": [work.id()]});
    assert_eq!(acknowledged["params"]["notifications"], agreed);
    news(&next(&mut with).await);
    work.say("on").await;
    news(&next(&mut with).await);
    server.start_draining();
    assert_eq!(rest(&mut without).await, END);
}

#[tokio::test]
async fn a_wish_for_tasks_can_be_refused() {
    let store = MemoryStore::new();
    let options = TaskOptions {
        subscribed: 2,
        ..eager()
    };
    let instance = start(builder(Arc::new(store), options)).await;
    let bare = listen(&["a"]).meta(CAPABILITIES, json!({}));
    let response = instance.send(&bare).await;
    names(&response.error(400, -32021), &[TASKS]);
    assert_eq!(
        response.json()["error"]["data"],
        json!({"requiredCapabilities": {"extensions": {TASKS: {}}}})
    );
    let many = listen(&["a", "b", "c"]);
    let message = instance.send(&many).await.error(400, -32602);
    names(&message, &["notifications.taskIds", "at most 2 tasks"]);
    let wrong = listen(&[]).param("notifications", json!({"taskIds": [7]}));
    let message = instance.send(&wrong).await.error(400, -32602);
    names(&message, &["notifications.taskIds", "strings"]);
    assert_eq!(instance.server.subscriptions(), 0);
    // Each is counted once, and those that are not there count too, since that is not known yet.
    let (_connection, agreed) = listening(&instance, &listen(&["a", "b", "a"])).await;
    assert_eq!(agreed, Value::Null);
    // No wish is no wish that needs anything.
    let none = listen(&[]).meta(CAPABILITIES, json!({}));
    listening(&instance, &none).await;
    // And a server without tasks does not know what is meant.
    let plain = start(Server::builder("plain", "1")).await;
    let (_connection, agreed) = listening(&plain, &bare).await;
    assert_eq!(agreed, Value::Null);
}

#[tokio::test]
async fn a_slow_listener_is_told_the_latest_of_each_task() {
    let store = MemoryStore::new();
    let server = builder(Arc::new(store.clone()), eager());
    let server = server.build().expect("a usable server");
    let (first, second) = (anyones(&store).await, anyones(&store).await);
    let request = listen(&[first.id(), second.id()]);
    let mut slow = stream(&server, &request, Principal::anonymous()).await;
    next(&mut slow).await;
    // The watcher hears of all this, and the client of none.
    for n in 0..500 {
        first.say(&format!("step {n}")).await;
        second.say(&format!("part {n}")).await;
        tokio::task::yield_now().await;
    }
    let mut latest = Vec::new();
    for _ in 0..2 {
        let news = news(&next(&mut slow).await);
        latest.push(news["statusMessage"].clone());
    }
    latest.sort_by_key(ToString::to_string);
    assert_eq!(latest, ["part 499", "step 499"]);
    // And then what comes after.
    first.complete(&json!({"content": []})).await;
    let news = news(&next(&mut slow).await);
    assert_eq!(news["status"], "completed");
}

#[tokio::test]
async fn what_nobody_can_see_is_not_told() {
    let store = MemoryStore::new();
    let server = builder(FaultyStore::new(&store), eager());
    let server = server.build().expect("a usable server");
    let work = anyones(&store).await;
    let mut stream = stream(&server, &listen(&[work.id()]), Principal::anonymous()).await;
    next(&mut stream).await;
    news(&next(&mut stream).await);
    // Its journal grows, and another worker takes it: it is working as before.
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
    };
    let claimed = store.claim(claim).await.expect("a store");
    let lease = claimed[0].lease.clone();
    let done = Commit {
        next: Next::Complete(stored(&json!({"content": []}))),
        ..Commit::default()
    };
    let listened = async {
        // Long enough for the watcher to have looked many times; what follows does not depend on it.
        tokio::time::sleep(Duration::from_millis(100)).await;
        store.commit(&lease, done).await.expect("the lease is held");
    };
    let (news, ()) = tokio::join!(next(&mut stream), listened);
    assert_eq!(news["params"]["status"], "completed");
}

#[tokio::test]
async fn a_task_that_is_over_is_watched_no_more() {
    let store = MemoryStore::new();
    let shaky = FaultyStore::new(&store);
    let server = builder(shaky.clone(), eager());
    let server = server.build().expect("a usable server");
    let work = anyones(&store).await;
    let mut stream = stream(&server, &listen(&[work.id()]), Principal::anonymous()).await;
    next(&mut stream).await;
    shaky.has_watchers(1).await;
    news(&next(&mut stream).await);
    let error = json!({"code": -32603, "message": "no"});
    work.next(Next::Fail(stored(&error))).await;
    let failed = news(&next(&mut stream).await);
    assert_eq!(failed["error"], error);
    // With it the watcher has gone, though the client still listens.
    shaky.has_watchers(0).await;
    assert_eq!(server.subscriptions(), 1);
    store.requeue(&work.lease.task).await.expect("a store");
    server.start_draining();
    assert_eq!(rest(&mut stream).await, END);
}

#[tokio::test]
async fn nothing_is_said_of_a_task_that_was_thrown_away() {
    let clock = Clock::new();
    let store = MemoryStore::with_source(clock.clone());
    let shaky = FaultyStore::new(&store);
    let server = builder(shaky.clone(), eager());
    let server = server.build().expect("a usable server");
    let work = anyones(&store).await;
    let mut stream = stream(&server, &listen(&[work.id()]), Principal::anonymous()).await;
    next(&mut stream).await;
    news(&next(&mut stream).await);
    shaky.has_watchers(1).await;
    // It ends and is gone before anybody looks.
    shaky.fail(Some(StoreError::Unavailable("for a moment".into())));
    work.complete(&json!({"content": []})).await;
    clock.forward(3600);
    let swept = store.sweep(Duration::ZERO, 10).await.expect("a store");
    assert_eq!(swept.tasks, 1);
    shaky.fail(None);
    let gone = async {
        shaky.has_watchers(0).await;
        server.start_draining();
    };
    let (methods, ()) = tokio::join!(rest(&mut stream), gone);
    assert_eq!(methods, END);
}

#[tokio::test]
async fn a_listener_outlasts_a_store_that_cannot_be_reached() {
    let store = MemoryStore::new();
    let shaky = FaultyStore::new(&store);
    let server = builder(shaky.clone(), eager());
    let server = server.build().expect("a usable server");
    let work = anyones(&store).await;
    let mut stream = stream(&server, &listen(&[work.id()]), Principal::anonymous()).await;
    next(&mut stream).await;
    // Not even how it stands could be told.
    shaky.fail(Some(StoreError::Unavailable("for a while".into())));
    let back = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        shaky.fail(None);
    };
    let (first, ()) = tokio::join!(next(&mut stream), back);
    assert_eq!(news(&first)["status"], "working");
    shaky.fail(Some(StoreError::Unavailable("again".into())));
    work.say("unheard at first").await;
    let back = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        shaky.fail(None);
    };
    let (second, ()) = tokio::join!(next(&mut stream), back);
    assert_eq!(news(&second)["statusMessage"], "unheard at first");
}

#[tokio::test]
async fn a_subscription_cannot_begin_without_the_store() {
    let store = MemoryStore::new();
    let shaky = FaultyStore::new(&store);
    let limits = ServerLimits {
        round_time: Duration::from_millis(50),
        ..ServerLimits::default()
    };
    let instance = start(builder(shaky.clone(), eager()).limits(limits)).await;
    let work = anyones(&store).await;
    for (fault, message) in [
        (
            Some(StoreError::Unavailable("away".into())),
            "the task store cannot be reached; try again",
        ),
        (Some(StoreError::Failed("bad".into())), "Internal error"),
        // Stuck.
        (None, "the task store cannot be reached; try again"),
    ] {
        if fault.is_none() {
            shaky.hang();
        }
        shaky.fail(fault);
        let events = instance.send(&listen(&[work.id()])).await.events();
        assert_eq!(events.len(), 1);
        assert_eq!(events[0]["id"], 1);
        assert_eq!(events[0]["error"]["code"], -32603);
        assert_eq!(events[0]["error"]["message"], message);
    }
}

#[tokio::test]
async fn a_server_that_stops_does_not_wait_for_the_store() {
    let store = MemoryStore::new();
    let shaky = FaultyStore::new(&store);
    let server = builder(shaky.clone(), eager());
    let server = server.build().expect("a usable server");
    let work = anyones(&store).await;
    let request = listen(&[work.id()]);
    let mut told = stream(&server, &request, Principal::anonymous()).await;
    next(&mut told).await;
    shaky.hang();
    let mut opening = stream(&server, &request, Principal::anonymous()).await;
    let stop = async {
        tokio::task::yield_now().await;
        server.start_draining();
    };
    let (first, second, ()) = tokio::join!(rest(&mut told), rest(&mut opening), stop);
    assert_eq!(
        (first, second),
        (END.map(Into::into).into(), END.map(Into::into).into())
    );
}

/// The time is not real: when nothing else happens, it runs on to the end of the token.
#[tokio::test(start_paused = true)]
async fn a_listener_whose_token_expires_is_told_nothing_more() {
    let store = MemoryStore::new();
    let server = builder(Arc::new(store.clone()), eager());
    let server = server.build().expect("a usable server");
    let work = create(Arc::new(store.clone()), Principal::new("alice")).await;
    let caller = Caller {
        principal: Principal::new("alice"),
        scopes: Scopes::none(),
        expires: Some(SystemTime::now() + Duration::from_secs(10)),
    };
    let mut stream = stream(&server, &listen(&[work.id()]), caller).await;
    next(&mut stream).await;
    news(&next(&mut stream).await);
    assert_eq!(rest(&mut stream).await, END);
    assert_eq!(server.subscriptions(), 1);
    drop(stream);
    assert_eq!(server.subscriptions(), 0);
}

#[tokio::test]
async fn one_watcher_serves_all_who_listen_and_goes_with_the_last() {
    let store = MemoryStore::new();
    let shaky = FaultyStore::new(&store);
    let server = builder(shaky.clone(), eager());
    let server = server.build().expect("a usable server");
    let work = anyones(&store).await;
    let request = listen(&[work.id()]);
    let mut first = stream(&server, &request, Principal::anonymous()).await;
    let mut second = stream(&server, &request, Principal::anonymous()).await;
    for stream in [&mut first, &mut second] {
        next(stream).await;
        news(&next(stream).await);
    }
    shaky.has_watchers(1).await;
    work.say("on").await;
    for stream in [&mut first, &mut second] {
        assert_eq!(news(&next(stream).await)["statusMessage"], "on");
    }
    drop(first);
    work.say("on still").await;
    assert_eq!(news(&next(&mut second).await)["statusMessage"], "on still");
    drop(second);
    shaky.has_watchers(0).await;
    // And comes again with the next.
    let mut third = stream(&server, &request, Principal::anonymous()).await;
    next(&mut third).await;
    shaky.has_watchers(1).await;
    // It does not keep the server alive either.
    drop((third, server));
    shaky.has_watchers(0).await;
    let alone = async {
        while Arc::strong_count(&shaky) > 1 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within("the server to be gone", alone).await;
}
