//! Tasks: creation, execution by workers, retries and limits.

use crate::support::tasks::{FaultyStore, LONG, TASKS_EXTENSION, about, eager, get, update};
use crate::support::{
    CAPABILITIES_KEY, Guard, Instance, Login, Request, SignalReceiver, Signals, accept, asked,
    assert_contains, expect_signal, keys, result, signals, start, text, token, until, within,
};
use refrain_core::{Cx, Error, Incomplete, MemoryReplayLog, Principal, Result, ok};
use refrain_server::{
    BuildError, Reply, Server, ServerBuilder, ServerLimits, State, TaskOptions, Tool,
};
use refrain_store::{
    ListTasks, MemoryStore, StoreError, StoredStatus, StoredTask, TaskId, TaskStore,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A server with this store and signals between handlers and the test.
fn server_with_signals(
    store: &MemoryStore,
    options: TaskOptions,
) -> (ServerBuilder, Arc<Signals>, SignalReceiver) {
    let (signals, received) = signals();
    let server = Server::builder("tasks", "1")
        .tasks(Arc::new(store.clone()), options)
        .state(signals.clone());
    (server, signals, received)
}

/// Options with a short lease and few attempts.
fn short_lease() -> TaskOptions {
    TaskOptions {
        lease: Duration::from_millis(300),
        retry_after: Duration::from_millis(1),
        attempts: 3,
        ..eager()
    }
}

/// A call of a client that supports tasks and forms.
fn call(tool: &str) -> Request {
    let capabilities = json!({"elicitation": {}, "extensions": {TASKS_EXTENSION: {}}});
    Request::tool(tool, json!({})).meta(CAPABILITIES_KEY, capabilities)
}

/// Sends a call that becomes a task and returns its id.
async fn start_task(instance: &Instance, request: &Request) -> String {
    let reply = instance.send(request).await.reply();
    let result = result(&reply);
    assert_eq!(result["resultType"], "task", "{reply}");
    result["taskId"]
        .as_str()
        .expect("taskId is a string")
        .to_owned()
}

/// The task in the store.
async fn stored_task(store: &MemoryStore, id: &str) -> StoredTask {
    let id = TaskId::parse(id).expect("a task id");
    let task = store.get(&id, &Principal::anonymous()).await;
    task.expect("the store is available")
        .expect("the task exists")
}

/// Polls the task until it satisfies the condition.
async fn wait_until(instance: &Instance, id: &str, condition: impl Fn(&Value) -> bool) -> Value {
    let polling = async {
        loop {
            let task = get(instance, id).await;
            if condition(&task) {
                return task;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the task to change", polling).await
}

async fn wait_for_status(instance: &Instance, id: &str, status: &str) -> Value {
    wait_until(instance, id, |task| task["status"] == status).await
}

/// Waits for the task to complete and returns the text of its result.
async fn completed_text(instance: &Instance, id: &str) -> String {
    let task = wait_until(instance, id, |task| {
        !["working", "input_required"].contains(&task["status"].as_str().unwrap_or_default())
    });
    let task = task.await;
    assert_eq!(task["status"], "completed", "{task}");
    let text = task["result"]["content"][0]["text"].as_str();
    text.expect("the content is text").to_owned()
}

async fn failure(instance: &Instance, id: &str) -> String {
    let task = wait_for_status(instance, id, "failed").await;
    task["error"]["message"]
        .as_str()
        .expect("the message is a string")
        .to_owned()
}

fn ask_keys(task: &Value) -> Vec<String> {
    let asks = task["inputRequests"].as_object();
    asks.map_or_else(Vec::new, |asks| asks.keys().cloned().collect())
}

async fn answer(instance: &Instance, id: &str, key: &str, name: &str) {
    let request = update(id, json!({key: accept(name)}));
    let reply = instance.send(&request).await.reply();
    assert_eq!(result(&reply)["resultType"], "complete", "{reply}");
}

async fn wait_until_idle(instance: &Instance) {
    until("the task to leave memory", || {
        instance.server.running_tasks() == 0
    })
    .await;
}

async fn ask_then_detach(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    let login: Login = cx.elicit("login", "Who are you?").await?;
    signals.say("answered");
    let before = cx.step("before", async {
        signals.say("before");
        ok(())
    });
    before.await?;
    cx.detach().await?;
    signals.say("detached");
    signals.pass().await;
    let again: Login = cx.elicit("login", "And who else?").await?;
    cx.step("after", async {
        signals.say("after");
        ok(())
    })
    .await?;
    Ok(format!("{} and {}", login.name, again.name))
}

#[tokio::test]
async fn detached_handler_continues_in_the_task() {
    let store = MemoryStore::new();
    let (server, signals, mut received) = server_with_signals(&store, eager());
    let instance = start(server.tool(Tool::new("work", ask_then_detach))).await;
    let first = instance.send(&call("work")).await.reply();
    assert_eq!(asked(&first), ["login"]);
    assert!(result(&first).get("taskId").is_none());
    let second = call("work").again(&token(&first), json!({"login": accept("Ada")}));
    let id = start_task(&instance, &second).await;
    for what in ["answered", "before", "detached"] {
        expect_signal(&mut received, what).await;
    }
    assert_eq!(instance.server.running_tasks(), 1);
    // The same handler continues: it was not restarted.
    signals.open();
    let waiting = wait_for_status(&instance, &id, "input_required").await;
    assert_eq!(ask_keys(&waiting), ["login#2"]);
    // After the resume, the handler waits again, but repeats no ask and no step.
    signals.open();
    answer(&instance, &id, "login#2", "Bob").await;
    assert_eq!(completed_text(&instance, &id).await, "Ada and Bob");
    let mut rest = Vec::new();
    while let Ok(signal) = received.try_recv() {
        rest.push(signal);
    }
    assert_eq!(rest.iter().filter(|signal| **signal == "before").count(), 0);
    assert_eq!(rest.iter().filter(|signal| **signal == "after").count(), 1);
}

#[tokio::test]
async fn repeated_round_is_the_same_task() {
    async fn work(cx: Cx) -> Result<&'static str> {
        let _: Login = cx.elicit("login", "Who are you?").await?;
        cx.detach().await?;
        cx.sleep(Duration::from_millis(20)).await;
        Ok("worked")
    }
    let store = MemoryStore::new();
    let (server, ..) = server_with_signals(&store, eager());
    let instance = start(server.tool(Tool::new("work", work))).await;
    let first = instance.send(&call("work")).await.reply();
    let second = call("work").again(&token(&first), json!({"login": accept("Ada")}));
    let id = start_task(&instance, &second).await;
    assert_eq!(start_task(&instance, &second).await, id);
    assert_eq!(completed_text(&instance, &id).await, "worked");
    let all = store
        .list(ListTasks {
            most: 9,
            ..ListTasks::default()
        })
        .await;
    assert_eq!(all.expect("the store lists tasks").len(), 1);
}

async fn ask_name(cx: Cx) -> Result<String> {
    let login: Login = cx.elicit("login", "Who are you?").await?;
    Ok(login.name)
}

/// Signals each step, and waits at the gate in it.
async fn two_steps(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    for step in ["one", "two"] {
        cx.step(step, async {
            signals.say(step);
            signals.pass().await;
            ok(())
        })
        .await?;
    }
    Ok("both".into())
}

async fn slow(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    let _guard = Guard((*signals).clone());
    signals.say("started");
    signals.pass().await;
    Ok(format!("as a task: {}", cx.is_task()))
}

#[tokio::test]
async fn long_round_becomes_a_task_without_a_restart() {
    let store = MemoryStore::new();
    let (server, signals, mut received) = server_with_signals(&store, eager());
    let tool = Tool::new("work", slow).task_after(Duration::from_millis(20));
    let instance = start(server.tool(tool)).await;
    let id = start_task(&instance, &call("work")).await;
    expect_signal(&mut received, "started").await;
    signals.open();
    assert_eq!(completed_text(&instance, &id).await, "as a task: true");
    expect_signal(&mut received, "dropped").await;
    assert!(received.try_recv().is_err(), "the handler started once");
}

#[tokio::test]
async fn client_without_task_support_gets_a_result_or_an_error() {
    let store = MemoryStore::new();
    let (server, signals, _received) = server_with_signals(&store, eager());
    let server = server
        .tool(Tool::new("detaches", |cx: Cx| async move {
            cx.detach().await?;
            Ok(format!("as a task: {}", cx.is_task()))
        }))
        .tool(Tool::new("at_once", slow).task())
        .tool(Tool::new("later", slow).task_after(Duration::ZERO))
        .tool(Tool::new("required", slow).task_required());
    let instance = start(server).await;
    for tool in ["detaches", "at_once", "later"] {
        signals.open();
        let reply = instance.send(&Request::tool(tool, json!({}))).await.reply();
        assert_eq!(text(&reply), "as a task: false", "{tool}");
    }
    let rejected = instance.send(&Request::tool("required", json!({}))).await;
    assert_contains(&rejected.error(400, -32021), &[TASKS_EXTENSION]);
}

#[test]
fn required_task_without_store_is_rejected() {
    let tool = Tool::new("work", |_: Cx| async { ok("") }).task_required();
    let built = Server::builder("tasks", "1").tool(tool).build();
    assert!(matches!(built, Err(BuildError::NeedsTaskStore { tool }) if tool == "work"));
}

/// Asks while a step runs until it is released.
async fn step_beside_ask(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    let _guard = Guard((*signals).clone());
    let work = cx.step("work", async {
        signals.say("working");
        signals.pass().await;
        ok("worked".to_owned())
    });
    let ask = cx.elicit::<Login>("login", "Who are you?");
    let (work, login) = tokio::join!(work, ask);
    Ok(format!("{} for {}", work?, login?.name))
}

#[tokio::test]
async fn ask_is_published_and_answered_while_a_step_runs() {
    let store = MemoryStore::new();
    let (server, signals, mut received) = server_with_signals(&store, eager());
    let tool = Tool::new("work", step_beside_ask).task();
    let instance = start(server.tool(tool)).await;
    let id = start_task(&instance, &call("work")).await;
    expect_signal(&mut received, "working").await;
    let waiting = wait_for_status(&instance, &id, "input_required").await;
    assert_eq!(ask_keys(&waiting), ["login"]);
    assert_eq!(instance.server.running_tasks(), 1, "the step continues");
    answer(&instance, &id, "login", "Ada").await;
    wait_for_status(&instance, &id, "working").await;
    signals.open();
    assert_eq!(completed_text(&instance, &id).await, "worked for Ada");
    expect_signal(&mut received, "dropped").await;
    assert!(
        received.try_recv().is_err(),
        "one run of the handler did everything"
    );
    wait_until_idle(&instance).await;
    let counted = instance.server.metrics_text();
    for line in [
        r#"refrain_tasks_total{event="created"} 1"#,
        r#"refrain_tasks_total{event="set_down"} 0"#,
        r#"refrain_tasks_total{event="completed"} 1"#,
        r#"refrain_asks_total{kind="form"} 1"#,
        "refrain_steps_run_total 1",
        "refrain_tasks_running 0",
    ] {
        assert!(counted.contains(line), "{line}");
    }
}

#[tokio::test]
async fn idle_task_leaves_memory_and_resumes_on_any_instance() {
    let store = MemoryStore::new();
    let (server, signals, mut received) = server_with_signals(&store, eager());
    let tool = || Tool::new("work", step_beside_ask).task();
    let one = start(server.tool(tool())).await;
    let id = start_task(&one, &call("work")).await;
    expect_signal(&mut received, "working").await;
    signals.open();
    expect_signal(&mut received, "dropped").await;
    wait_until_idle(&one).await;
    assert_eq!(get(&one, &id).await["status"], "input_required");
    one.stopped_now().await;
    let (server, _signals, mut received) = server_with_signals(&store, eager());
    let two = start(server.tool(tool())).await;
    answer(&two, &id, "login", "Ada").await;
    assert_eq!(completed_text(&two, &id).await, "worked for Ada");
    expect_signal(&mut received, "dropped").await;
    assert!(received.try_recv().is_err(), "the step was not run again");
}

#[tokio::test]
async fn cancel_stops_the_handler_on_another_instance() {
    let store = MemoryStore::new();
    let (server, _signals, mut received) = server_with_signals(&store, eager());
    let tool = || Tool::new("work", step_beside_ask).task();
    let one = start(server.tool(tool())).await;
    let id = start_task(&one, &call("work")).await;
    expect_signal(&mut received, "working").await;
    // This instance sends no hints.
    let other = Server::builder("tasks", "1").tasks(FaultyStore::new(&store), eager());
    let two = start(other).await;
    let cancelled = two.send(&about("tasks/cancel", &id)).await.reply();
    assert_eq!(result(&cancelled)["resultType"], "complete");
    expect_signal(&mut received, "dropped").await;
    wait_until_idle(&one).await;
    assert_eq!(get(&one, &id).await["status"], "cancelled");
}

#[tokio::test]
async fn repeated_ask_has_a_new_key() {
    let store = MemoryStore::new();
    let (server, ..) = server_with_signals(&store, eager());
    let instance = start(server.tool(Tool::new("work", ask_name).task())).await;
    let id = start_task(&instance, &call("work")).await;
    let waiting = wait_for_status(&instance, &id, "input_required").await;
    assert_eq!(ask_keys(&waiting), ["login"]);
    let invalid = json!({"login": {"action": "accept", "content": {"name": 7}}});
    let reply = instance.send(&update(&id, invalid)).await.reply();
    assert_eq!(result(&reply)["resultType"], "complete");
    let again = wait_until(&instance, &id, |task| ask_keys(task) == ["login.2"]).await;
    let message = &again["inputRequests"]["login.2"]["params"]["message"];
    assert_contains(
        message.as_str().expect("the message is a string"),
        &["not accepted"],
    );
    // Another answer to the old key is ignored.
    answer(&instance, &id, "login", "Eve").await;
    answer(&instance, &id, "login.2", "Ada").await;
    assert_eq!(completed_text(&instance, &id).await, "Ada");
}

#[tokio::test]
async fn sleep_survives_its_instance() {
    async fn work(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
        cx.step("before", async {
            signals.say("before");
            ok(())
        })
        .await?;
        cx.sleep(Duration::from_millis(1500)).await;
        cx.step("after", async {
            signals.say("after");
            ok(())
        })
        .await?;
        Ok("rested".into())
    }
    let store = MemoryStore::new();
    let (server, _signals, mut received) = server_with_signals(&store, eager());
    let one = start(server.tool(Tool::new("work", work).task())).await;
    let id = start_task(&one, &call("work")).await;
    expect_signal(&mut received, "before").await;
    wait_until_idle(&one).await;
    one.stopped_now().await;
    let (server, _signals, mut received) = server_with_signals(&store, eager());
    let two = start(server.tool(Tool::new("work", work).task())).await;
    assert_eq!(completed_text(&two, &id).await, "rested");
    expect_signal(&mut received, "after").await;
}

#[tokio::test]
async fn waiting_task_fails_when_its_ttl_expires() {
    let store = MemoryStore::new();
    let (server, ..) = server_with_signals(&store, eager());
    let tool = Tool::new("work", ask_name)
        .task()
        .task_ttl(Duration::from_secs(1));
    let instance = start(server.tool(tool)).await;
    let id = start_task(&instance, &call("work")).await;
    let error = failure(&instance, &id).await;
    assert_contains(&error, &["time to live of 1s", "unanswered asks: login"]);
}

#[tokio::test]
async fn running_task_fails_when_its_ttl_expires() {
    let store = MemoryStore::new();
    let (server, _signals, mut received) = server_with_signals(&store, eager());
    let tool = Tool::new("work", slow)
        .task()
        .task_ttl(Duration::from_secs(1));
    let instance = start(server.tool(tool)).await;
    let id = start_task(&instance, &call("work")).await;
    assert_contains(&failure(&instance, &id).await, &["time to live of 1s"]);
    expect_signal(&mut received, "started").await;
    expect_signal(&mut received, "dropped").await;
}

#[derive(Default)]
struct Attempts(AtomicU32);

async fn fails_twice(cx: Cx, attempts: State<Arc<Attempts>>) -> Result<String> {
    let number = cx.step("try", async {
        match attempts.0.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => Err(Error::retry("the service is down")),
            number => Ok(number),
        }
    });
    Ok(format!("after {} attempts", number.await?))
}

#[tokio::test]
async fn retryable_error_is_retried() {
    let store = MemoryStore::new();
    let attempts = Arc::new(Attempts::default());
    let (server, ..) = server_with_signals(&store, short_lease());
    let server = server.state(attempts.clone());
    let server = server
        .tool(Tool::new("work", fails_twice).task())
        .tool(Tool::new("inline", fails_twice));
    let instance = start(server).await;
    let id = start_task(&instance, &call("work")).await;
    assert_eq!(completed_text(&instance, &id).await, "after 2 attempts");
    assert_eq!(attempts.0.load(Ordering::SeqCst), 3);
    // Without a task, the call fails.
    attempts.0.store(0, Ordering::SeqCst);
    let reply = instance.send(&call("inline")).await.reply();
    assert_eq!(result(&reply)["isError"], true);
    assert_eq!(text(&reply), "the service is down");
}

#[tokio::test]
async fn task_fails_after_the_last_attempt_with_its_error() {
    async fn never(_: Cx, attempts: State<Arc<Attempts>>) -> Result<String> {
        attempts.0.fetch_add(1, Ordering::SeqCst);
        Err(Error::retry("the service is gone"))
    }
    async fn panics(_: Cx) -> Result<String> {
        panic!("requested panic")
    }
    let store = MemoryStore::new();
    let attempts = Arc::new(Attempts::default());
    let (server, ..) = server_with_signals(&store, short_lease());
    let server = server
        .state(attempts.clone())
        .tool(Tool::new("never", never).task())
        .tool(Tool::new("panics", panics).task());
    let instance = start(server).await;
    let id = start_task(&instance, &call("never")).await;
    let error = failure(&instance, &id).await;
    assert_contains(&error, &["3 attempts", "the service is gone"]);
    assert_eq!(attempts.0.load(Ordering::SeqCst), 3);
    let id = start_task(&instance, &call("panics")).await;
    assert_contains(&failure(&instance, &id).await, &["3 attempts", "panicked"]);
}

#[tokio::test]
async fn handler_error_completes_the_task() {
    let store = MemoryStore::new();
    let (server, ..) = server_with_signals(&store, eager());
    let fails = |_: Cx| async { Err::<String, _>(Error::msg("no more paper")) };
    let instance = start(server.tool(Tool::new("work", fails).task())).await;
    let id = start_task(&instance, &call("work")).await;
    let task = wait_for_status(&instance, &id, "completed").await;
    assert_eq!(task["result"]["isError"], true);
    assert_eq!(task["result"]["content"][0]["text"], "no more paper");
}

#[tokio::test]
async fn lost_lease_stops_the_handler_and_writes_nothing() {
    async fn work(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
        let _guard = Guard((*signals).clone());
        let who = cx.step("work", async {
            signals.say("working");
            signals.pass().await;
            ok(Arc::as_ptr(&signals) as usize)
        });
        Ok(who.await?.to_string())
    }
    let store = MemoryStore::new();
    let (server, first, mut received) = server_with_signals(&store, eager());
    let one = start(server.tool(Tool::new("work", work).task())).await;
    let id = start_task(&one, &call("work")).await;
    expect_signal(&mut received, "working").await;
    // The next claim has a higher fence.
    let (server, second, mut received_by_two) = server_with_signals(&store, eager());
    let two = start(server.tool(Tool::new("work", work).task())).await;
    let id_of = TaskId::parse(&id).expect("taskId is a string");
    one.server.start_draining();
    store
        .requeue(&id_of)
        .await
        .expect("the store is available")
        .expect("the task exists");
    expect_signal(&mut received, "dropped").await;
    first.open();
    expect_signal(&mut received_by_two, "working").await;
    second.open();
    let winner = completed_text(&two, &id).await;
    assert_eq!(winner, (Arc::as_ptr(&second) as usize).to_string());
}

#[tokio::test]
async fn status_message_is_published() {
    async fn work(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
        for message in ["gathering", "sorting"] {
            cx.status(message);
            signals.pass().await;
        }
        Ok("sorted".into())
    }
    let store = MemoryStore::new();
    let (server, signals, _received) = server_with_signals(&store, eager());
    let instance = start(server.tool(Tool::new("work", work).task())).await;
    let id = start_task(&instance, &call("work")).await;
    for message in ["gathering", "sorting"] {
        wait_until(&instance, &id, |task| task["statusMessage"] == message).await;
        signals.open();
    }
    assert_eq!(completed_text(&instance, &id).await, "sorted");
}

#[tokio::test]
async fn progress_of_a_task_becomes_its_status_message() {
    async fn work(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
        // The first message is written at once. The others share the next write.
        for page in 1..=500 {
            cx.progress(f64::from(page), Some(500.0), "reading pages");
            tokio::task::yield_now().await;
        }
        signals.pass().await;
        Ok("read".into())
    }
    let store = MemoryStore::new();
    let (server, signals, _received) = server_with_signals(&store, eager());
    let instance = start(server.tool(Tool::new("work", work).task())).await;
    let id = start_task(&instance, &call("work")).await;
    let last = "reading pages (500 of 500)";
    wait_until(&instance, &id, |task| task["statusMessage"] == last).await;
    let revision = stored_task(&store, &id).await.revision;
    assert!(revision < 20, "500 reports made {revision} writes");
    signals.open();
    let task = wait_for_status(&instance, &id, "completed").await;
    assert_eq!(task.get("statusMessage"), None, "{task}");
}

#[tokio::test]
async fn interim_status_message_is_dropped_at_the_end() {
    async fn fill_in(cx: Cx) -> Result<String> {
        cx.status("waiting for a name");
        Ok(cx.elicit::<Login>("login", "Who?").await?.name)
    }
    async fn step(cx: Cx) -> Result<&'static str> {
        cx.status("at work");
        cx.step("work", async { ok(1) }).await?;
        Ok("worked")
    }
    async fn parting(cx: Cx) -> Result<&'static str> {
        cx.status("at work");
        cx.step("work", async { ok(1) }).await?;
        cx.status("finished");
        let _ = cx.now();
        Ok("worked")
    }
    let store = MemoryStore::new();
    let (server, _signals, _received) = server_with_signals(&store, eager());
    let server = server
        .tool(Tool::new("fill_in", fill_in).task())
        .tool(Tool::new("step", step).task())
        .tool(Tool::new("parting", parting).task());
    let instance = start(server).await;
    for (tool, message) in [("step", None), ("parting", Some("finished"))] {
        let id = start_task(&instance, &call(tool)).await;
        let task = wait_for_status(&instance, &id, "completed").await;
        let status = task.get("statusMessage").and_then(Value::as_str);
        assert_eq!(status, message, "{task}");
    }

    let waiting = async || {
        let id = start_task(&instance, &call("fill_in")).await;
        let task = wait_for_status(&instance, &id, "input_required").await;
        assert_eq!(task["statusMessage"], "waiting for a name");
        id
    };
    let id = waiting().await;
    answer(&instance, &id, "login", "Ann").await;
    let task = wait_for_status(&instance, &id, "completed").await;
    assert_eq!(task.get("statusMessage"), None, "{task}");

    // After an error, the status message is the error.
    let id = waiting().await;
    let declined = update(&id, json!({"login": {"action": "decline"}}));
    instance.send(&declined).await.reply();
    let task = wait_for_status(&instance, &id, "completed").await;
    assert_eq!(task["result"]["isError"], true, "{task}");
    let why = &task["result"]["content"][0]["text"];
    assert_eq!(&task["statusMessage"], why, "{task}");

    let id = waiting().await;
    instance.send(&about("tasks/cancel", &id)).await.reply();
    let task = get(&instance, &id).await;
    assert_eq!(task["status"], "cancelled", "{task}");
    assert_eq!(task.get("statusMessage"), None, "{task}");
}

#[tokio::test]
async fn failed_task_creation_is_an_error_or_continues_inline() {
    let store = MemoryStore::new();
    let faulty = FaultyStore::new(&store);
    let (signals, _received) = signals();
    let detaches = |cx: Cx| async move {
        cx.detach().await?;
        ok("never")
    };
    let server = Server::builder("tasks", "1")
        .state(signals.clone())
        .tasks(faulty.clone(), eager())
        .tool(Tool::new("detaches", detaches))
        .tool(Tool::new("at_once", slow).task())
        .tool(Tool::new("later", slow).task_after(Duration::ZERO));
    let instance = start(server).await;
    faulty.fail(Some(StoreError::Unavailable("failover".into())));
    let error = instance.send(&call("at_once")).await.error(200, -32603);
    assert_contains(&error, &["task store is unavailable", "try again"]);
    let reply = instance.send(&call("detaches")).await.reply();
    assert_eq!(result(&reply)["isError"], true);
    assert_contains(text(&reply), &["task store is unavailable", "try again"]);
    signals.open();
    let reply = instance.send(&call("later")).await.reply();
    assert_eq!(text(&reply), "as a task: false");
}

#[tokio::test]
async fn record_of_once_stays_if_the_store_may_have_created_a_task() {
    async fn pay(cx: Cx) -> Result<String> {
        tokio::task::yield_now().await;
        cx.once("pay", async { ok("paid".to_owned()) }).await
    }
    let faulty = FaultyStore::new(&MemoryStore::new());
    let log = MemoryReplayLog::new();
    let server = Server::builder("tasks", "1")
        .tasks(faulty.clone(), eager())
        .replay_log(Arc::new(log.clone()))
        .tool(Tool::new("at_once", pay).once().task_after(Duration::ZERO))
        .tool(Tool::new("later", pay).once().task_after(LONG));
    let instance = start(server).await;
    faulty.fail(Some(StoreError::Unavailable("failover".into())));
    // Each row: a tool, and the records after its call. The second call cannot have a task: its record is deleted.
    for (tool, records) in [("at_once", 1), ("later", 1)] {
        let reply = instance.send(&call(tool)).await.reply();
        assert_eq!(text(&reply), "paid");
        until("the records", || log.len() <= records).await;
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        assert_eq!(log.len(), records, "after {tool}");
    }
}

#[tokio::test]
async fn task_waits_for_an_unavailable_store() {
    let store = MemoryStore::new();
    let faulty = FaultyStore::new(&store);
    let (signals, mut received) = signals();
    let server = Server::builder("tasks", "1")
        .state(signals.clone())
        .tasks(faulty.clone(), eager())
        .tool(Tool::new("work", two_steps).task());
    let instance = start(server).await;
    let id = start_task(&instance, &call("work")).await;
    expect_signal(&mut received, "one").await;
    faulty.fail(Some(StoreError::Unavailable("failover".into())));
    signals.open();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(
        received.try_recv().is_err(),
        "the next step waits for the commit"
    );
    faulty.fail(None);
    expect_signal(&mut received, "two").await;
    signals.open();
    assert_eq!(completed_text(&instance, &id).await, "both");
    assert!(received.try_recv().is_err(), "no step ran twice");
}

#[tokio::test]
async fn explicit_style_works_in_tasks() {
    async fn work(cx: Cx) -> Result<Reply<String>> {
        let Some(name) = cx.answer("name") else {
            let form = <Login as refrain_core::Elicit>::form();
            let asks = Incomplete::new().form("name", "Who are you?", form);
            return Ok(Reply::Incomplete(asks.state(&7)?));
        };
        let seven: Option<u32> = cx.state()?;
        Ok(Reply::Complete(format!("{seven:?} {}", name.get())))
    }
    let store = MemoryStore::new();
    let (server, ..) = server_with_signals(&store, eager());
    let instance = start(server.tool(Tool::new("work", work).task())).await;
    let id = start_task(&instance, &call("work")).await;
    let waiting = wait_for_status(&instance, &id, "input_required").await;
    assert_eq!(ask_keys(&waiting), ["name"]);
    answer(&instance, &id, "name", "Ada").await;
    assert_contains(&completed_text(&instance, &id).await, &["Some(7)", "Ada"]);
}

#[tokio::test]
async fn sealed_task_content_is_unreadable_in_the_store() {
    async fn work(cx: Cx) -> Result<String> {
        let login: Login = cx.elicit("login", "Who is the mole?").await?;
        cx.step("keep", async { ok("in the archive".to_owned()) })
            .await?;
        cx.elicit::<Login>("sure", "Sure?").await?;
        Ok(login.name)
    }
    let store = MemoryStore::new();
    let keyring = keys();
    let options = TaskOptions {
        seal: true,
        ..short_lease()
    };
    let (server, ..) = server_with_signals(&store, options.clone());
    let tool = || Tool::new("work", work).task();
    let one = start(server.keys(keyring.clone()).tool(tool())).await;
    let id = start_task(&one, &call("work")).await;
    wait_for_status(&one, &id, "input_required").await;
    answer(&one, &id, "login", "George-Smiley").await;
    wait_until(&one, &id, |task| ask_keys(task) == ["sure"]).await;
    wait_until_idle(&one).await;
    let shown = get(&one, &id).await;
    assert_contains(&shown.to_string(), &["Sure?"]);
    let row = stored_task(&store, &id).await;
    assert!(row.asks.iter().all(|(_, ask)| !has(ask, "Sure?")));
    one.stopped_now().await;
    // An instance with other keys can neither read nor run the task.
    let (server, ..) = server_with_signals(&store, options.clone());
    let others = keys();
    let other = start(server.keys(others).tool(tool())).await;
    other
        .send(&about("tasks/get", &id))
        .await
        .error(200, -32603);
    other.stopped_now().await;
    let (server, ..) = server_with_signals(&store, options);
    let two = start(server.keys(keyring).tool(tool())).await;
    answer(&two, &id, "sure", "yes").await;
    assert_eq!(completed_text(&two, &id).await, "George-Smiley");
    let outcome = stored_task(&store, &id).await.outcome;
    assert!(!has(&outcome.expect("the task has an outcome"), "Smiley"));
}

#[tokio::test]
async fn sealed_task_does_not_store_its_error_in_plain_text() {
    async fn work(cx: Cx) -> Result<String> {
        let login: Login = cx.elicit("login", "Who is the mole?").await?;
        Err(Error::msg(format!("{} is not", login.name)))
    }
    let store = MemoryStore::new();
    let options = TaskOptions {
        seal: true,
        ..short_lease()
    };
    let (server, ..) = server_with_signals(&store, options);
    let keyring = keys();
    let one = start(server.keys(keyring).tool(Tool::new("work", work).task())).await;
    let id = start_task(&one, &call("work")).await;
    wait_for_status(&one, &id, "input_required").await;
    answer(&one, &id, "login", "George-Smiley").await;
    let shown = wait_for_status(&one, &id, "completed").await;
    assert_contains(&shown["result"].to_string(), &["George-Smiley is not"]);
    let row = stored_task(&store, &id).await;
    assert_eq!(row.status_message, None);
}

fn has(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}

#[tokio::test]
async fn oversized_journal_fails_the_task_with_largest_entry() {
    async fn work(cx: Cx) -> Result<String> {
        cx.step("hoard", async { ok("x".repeat(5000)) }).await?;
        cx.sleep(Duration::from_secs(3600)).await;
        Ok("never".into())
    }
    let store = MemoryStore::new();
    let options = TaskOptions {
        journal: 4000,
        ..eager()
    };
    let (server, ..) = server_with_signals(&store, options);
    let instance = start(server.tool(Tool::new("work", work).task())).await;
    let id = start_task(&instance, &call("work")).await;
    assert_contains(&failure(&instance, &id).await, &["limit is 4000", "hoard"]);
}

#[tokio::test]
async fn draining_hands_tasks_on_at_the_next_step() {
    let store = MemoryStore::new();
    let (server, first, mut received) = server_with_signals(&store, eager());
    let mut one = start(server.tool(Tool::new("work", two_steps).task())).await;
    let id = start_task(&one, &call("work")).await;
    expect_signal(&mut received, "one").await;
    one.stop();
    first.open();
    one.stopped().await;
    assert!(
        received.try_recv().is_err(),
        "the second step is left to another instance"
    );
    let (server, second, mut received) = server_with_signals(&store, eager());
    second.open();
    let two = start(server.tool(Tool::new("work", two_steps).task())).await;
    assert_eq!(completed_text(&two, &id).await, "both");
    expect_signal(&mut received, "two").await;
    assert!(
        received.try_recv().is_err(),
        "the first step was not run again"
    );
}

#[tokio::test]
async fn concurrent_tasks_are_limited() {
    let store = MemoryStore::new();
    // One owner gets two slots, since it must leave as many free as it had before.
    let options = TaskOptions {
        concurrent: 3,
        ..eager()
    };
    let (server, signals, mut received) = server_with_signals(&store, options);
    let instance = start(server.tool(Tool::new("work", slow).task())).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(start_task(&instance, &call("work")).await);
    }
    expect_signal(&mut received, "started").await;
    expect_signal(&mut received, "started").await;
    assert_eq!(instance.server.running_tasks(), 2);
    assert!(received.try_recv().is_err(), "no third task started");
    for _ in &ids {
        signals.open();
    }
    for id in &ids {
        assert_eq!(completed_text(&instance, id).await, "as a task: true");
    }
    let rows = store
        .list(ListTasks {
            most: 9,
            ..ListTasks::default()
        })
        .await;
    let rows = rows.expect("the store lists tasks");
    assert!(
        rows.iter()
            .all(|row| row.task.status == StoredStatus::Completed)
    );
}

#[tokio::test]
async fn answer_is_received_with_the_next_commit() {
    async fn reports_status(cx: Cx) -> Result<String> {
        let talk = async {
            for number in 0_u32.. {
                cx.status(format!("still waiting: {number}"));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let login = tokio::select! {
            login = cx.elicit::<Login>("login", "Who are you?") => login?,
            () = talk => unreachable!("the loop is endless"),
        };
        Ok(login.name)
    }
    let store = MemoryStore::new();
    // No hints and no polls: only a commit reports answers.
    let no_polls = TaskOptions {
        store_poll: Duration::from_secs(3600),
        ..TaskOptions::default()
    };
    let server = Server::builder("tasks", "1")
        .tasks(FaultyStore::new(&store), no_polls)
        .tool(Tool::new("work", reports_status).task());
    let instance = start(server).await;
    let id = start_task(&instance, &call("work")).await;
    wait_for_status(&instance, &id, "input_required").await;
    answer(&instance, &id, "login", "Ada").await;
    assert_eq!(completed_text(&instance, &id).await, "Ada");
}

#[tokio::test]
async fn unchanged_checkpoint_is_not_progress() {
    async fn stuck(cx: Cx, attempts: State<Arc<Attempts>>) -> Result<String> {
        let at: u32 = cx.resume("at")?.unwrap_or(5);
        cx.checkpoint("at", &at).await?;
        attempts.0.fetch_add(1, Ordering::SeqCst);
        panic!("part {at} cannot be done")
    }
    let store = MemoryStore::new();
    let attempts = Arc::new(Attempts::default());
    let (server, ..) = server_with_signals(&store, short_lease());
    let server = server.state(attempts.clone());
    let instance = start(server.tool(Tool::new("work", stuck).task())).await;
    let id = start_task(&instance, &call("work")).await;
    let error = failure(&instance, &id).await;
    assert_contains(&error, &["3 attempts", "panicked"]);
    assert!(!error.contains("part 5"), "panic messages are only logged");
    // The first attempt reached the checkpoint; three more made no progress.
    assert_eq!(attempts.0.load(Ordering::SeqCst), 4);
}

#[test]
fn sealing_without_keys_is_rejected() {
    let options = TaskOptions {
        seal: true,
        ..TaskOptions::default()
    };
    let store = Arc::new(MemoryStore::new());
    let built = Server::builder("tasks", "1").tasks(store, options).build();
    assert!(matches!(built, Err(BuildError::SealingNeedsKeys)));
}

#[tokio::test]
async fn task_keeps_the_permit_of_its_call() {
    let store = MemoryStore::new();
    let (server, signals, mut received) = server_with_signals(&store, eager());
    let limits = ServerLimits {
        concurrent_calls: 2,
        ..ServerLimits::default()
    };
    let tool = Tool::new("work", slow).task_after(Duration::ZERO);
    let instance = start(server.limits(limits).tool(tool)).await;
    let one = start_task(&instance, &call("work")).await;
    let two = start_task(&instance, &call("work")).await;
    expect_signal(&mut received, "started").await;
    expect_signal(&mut received, "started").await;
    let busy = instance.send(&call("work")).await;
    assert_contains(&busy.error(503, -32603), &["limit of 2 calls"]);
    signals.open();
    signals.open();
    for id in [one, two] {
        // The request for the result needs a permit too.
        until("a permit to be released", || instance.server.running() <= 1).await;
        assert_eq!(completed_text(&instance, &id).await, "as a task: true");
    }
}
