//! Flows that become tasks, and the workers that carry them on.

use crate::support::tasks::{FaultyStore, TASKS, about, eager, update};
use crate::support::{
    CAPABILITIES, Guard, Instance, Login, Request, Signals, asked, names, result, signals, start,
    text, token, within,
};
use refrain_core::{Cx, Error, Incomplete, KeyRing, Principal, Result, SystemSource, ok};
use refrain_server::{
    BuildError, Reply, Server, ServerBuilder, ServerLimits, State, TaskOptions, Tool,
};
use refrain_store::{ListTasks, MemoryStore, StoreError, StoredStatus, TaskId, TaskStore};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

type Heard = UnboundedReceiver<&'static str>;

/// A server on this store whose handlers can be watched.
fn watched(store: &MemoryStore, options: TaskOptions) -> (ServerBuilder, Arc<Signals>, Heard) {
    let (signals, heard) = signals();
    let server = Server::builder("tasks", "1")
        .tasks(Arc::new(store.clone()), options)
        .state(signals.clone());
    (server, signals, heard)
}

/// Options under which a lost worker is soon missed.
fn hasty() -> TaskOptions {
    TaskOptions {
        lease: Duration::from_millis(300),
        retry_after: Duration::from_millis(1),
        attempts: 3,
        ..eager()
    }
}

/// A call from a client that knows tasks, and forms.
fn call(tool: &str) -> Request {
    let capabilities = json!({"elicitation": {}, "extensions": {TASKS: {}}});
    Request::tool(tool, json!({})).meta(CAPABILITIES, capabilities)
}

/// A call that becomes a task, and its id.
async fn task(instance: &Instance, request: &Request) -> String {
    let reply = instance.send(request).await.reply();
    let result = result(&reply);
    assert_eq!(result["resultType"], "task", "{reply}");
    result["taskId"].as_str().expect("an id").to_owned()
}

async fn get(instance: &Instance, id: &str) -> Value {
    let reply = instance.send(&about("tasks/get", id)).await.reply();
    result(&reply).clone()
}

/// The task, once it is as `is` wants it.
async fn once(instance: &Instance, id: &str, is: impl Fn(&Value) -> bool) -> Value {
    let seen = async {
        loop {
            let task = get(instance, id).await;
            if is(&task) {
                return task;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the task to get on", seen).await
}

async fn stands(instance: &Instance, id: &str, status: &str) -> Value {
    once(instance, id, |task| task["status"] == status).await
}

/// The text of a task's result.
async fn done(instance: &Instance, id: &str) -> String {
    let task = once(instance, id, |task| {
        !["working", "input_required"].contains(&task["status"].as_str().unwrap_or_default())
    });
    let task = task.await;
    assert_eq!(task["status"], "completed", "{task}");
    let text = task["result"]["content"][0]["text"].as_str();
    text.expect("a text").to_owned()
}

async fn failed(instance: &Instance, id: &str) -> String {
    let task = stands(instance, id, "failed").await;
    task["error"]["message"]
        .as_str()
        .expect("a message")
        .to_owned()
}

fn keys(task: &Value) -> Vec<String> {
    let asks = task["inputRequests"].as_object();
    asks.map_or_else(Vec::new, |asks| asks.keys().cloned().collect())
}

fn filled(name: &str) -> Value {
    json!({"action": "accept", "content": {"name": name}})
}

async fn answer(instance: &Instance, id: &str, key: &str, name: &str) {
    let request = update(id, json!({key: filled(name)}));
    let reply = instance.send(&request).await.reply();
    assert_eq!(result(&reply)["resultType"], "complete", "{reply}");
}

async fn heard(signals: &mut Heard, what: &str) {
    let said = within(what, signals.recv()).await;
    assert_eq!(said, Some(what));
}

async fn nothing_runs(instance: &Instance) {
    let rest = async {
        while instance.server.running_tasks() > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within("the task to leave memory", rest).await;
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
async fn rounds_come_first_and_the_running_handler_moves_into_the_task() {
    let store = MemoryStore::new();
    let (server, signals, mut said) = watched(&store, eager());
    let instance = start(server.tool(Tool::new("work", ask_then_detach))).await;
    let first = instance.send(&call("work")).await.reply();
    assert_eq!(asked(&first), ["login"]);
    assert!(result(&first).get("taskId").is_none());
    let second = call("work").again(&token(&first), json!({"login": filled("Ada")}));
    let id = task(&instance, &second).await;
    for what in ["answered", "before", "detached"] {
        heard(&mut said, what).await;
    }
    assert_eq!(instance.server.running_tasks(), 1);
    // What comes next is said by the handler that got so far: it was not started again.
    signals.open();
    let waiting = stands(&instance, &id, "input_required").await;
    assert_eq!(keys(&waiting), ["login#2"]);
    // Taken up again from its journal it comes to the gate once more, but asks and does nothing twice.
    signals.open();
    answer(&instance, &id, "login#2", "Bob").await;
    assert_eq!(done(&instance, &id).await, "Ada and Bob");
    let mut rest = Vec::new();
    while let Ok(said) = said.try_recv() {
        rest.push(said);
    }
    assert_eq!(rest.iter().filter(|said| **said == "before").count(), 0);
    assert_eq!(rest.iter().filter(|said| **said == "after").count(), 1);
}

#[tokio::test]
async fn the_same_round_sent_twice_is_one_task() {
    async fn work(cx: Cx) -> Result<&'static str> {
        let _: Login = cx.elicit("login", "Who are you?").await?;
        cx.detach().await?;
        cx.sleep(Duration::from_millis(20)).await;
        Ok("worked")
    }
    let store = MemoryStore::new();
    let (server, ..) = watched(&store, eager());
    let instance = start(server.tool(Tool::new("work", work))).await;
    let first = instance.send(&call("work")).await.reply();
    let second = call("work").again(&token(&first), json!({"login": filled("Ada")}));
    let id = task(&instance, &second).await;
    assert_eq!(task(&instance, &second).await, id);
    assert_eq!(done(&instance, &id).await, "worked");
    let all = store
        .list(ListTasks {
            most: 9,
            ..ListTasks::default()
        })
        .await;
    assert_eq!(all.expect("a list").len(), 1);
}

async fn slow(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    let _guard = Guard((*signals).clone());
    signals.say("started");
    signals.pass().await;
    Ok(format!("as a task: {}", cx.is_task()))
}

#[tokio::test]
async fn a_round_that_runs_for_long_becomes_a_task_and_the_handler_notices_nothing() {
    let store = MemoryStore::new();
    let (server, signals, mut said) = watched(&store, eager());
    let tool = Tool::new("work", slow).task_after(Duration::from_millis(20));
    let instance = start(server.tool(tool)).await;
    let id = task(&instance, &call("work")).await;
    heard(&mut said, "started").await;
    signals.open();
    assert_eq!(done(&instance, &id).await, "as a task: true");
    heard(&mut said, "dropped").await;
    assert!(said.try_recv().is_err(), "it was started once");
}

#[tokio::test]
async fn whoever_does_not_know_tasks_gets_the_call_inline_or_an_error() {
    let store = MemoryStore::new();
    let (server, signals, _said) = watched(&store, eager());
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
    let refused = instance.send(&Request::tool("required", json!({}))).await;
    names(&refused.error(400, -32021), &[TASKS]);
}

#[test]
fn a_tool_that_must_be_a_task_needs_a_store() {
    let tool = Tool::new("work", |_: Cx| async { ok("") }).task_required();
    let built = Server::builder("tasks", "1").tool(tool).build();
    assert!(matches!(built, Err(BuildError::NeedsTaskStore { tool }) if tool == "work"));
}

/// Asks, while a step works until it is let go on.
async fn works_while_it_waits(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
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
async fn an_ask_is_published_while_other_branches_work_and_may_be_answered_first() {
    let store = MemoryStore::new();
    let (server, signals, mut said) = watched(&store, eager());
    let tool = Tool::new("work", works_while_it_waits).task();
    let instance = start(server.tool(tool)).await;
    let id = task(&instance, &call("work")).await;
    heard(&mut said, "working").await;
    let waiting = stands(&instance, &id, "input_required").await;
    assert_eq!(keys(&waiting), ["login"]);
    assert_eq!(instance.server.running_tasks(), 1, "the step goes on");
    answer(&instance, &id, "login", "Ada").await;
    stands(&instance, &id, "working").await;
    signals.open();
    assert_eq!(done(&instance, &id).await, "worked for Ada");
    heard(&mut said, "dropped").await;
    assert!(
        said.try_recv().is_err(),
        "all of it by one run of the handler"
    );
    nothing_runs(&instance).await;
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
async fn a_task_that_only_asks_leaves_memory_and_any_instance_takes_it_up() {
    let store = MemoryStore::new();
    let (server, signals, mut said) = watched(&store, eager());
    let tool = || Tool::new("work", works_while_it_waits).task();
    let one = start(server.tool(tool())).await;
    let id = task(&one, &call("work")).await;
    heard(&mut said, "working").await;
    signals.open();
    heard(&mut said, "dropped").await;
    nothing_runs(&one).await;
    assert_eq!(get(&one, &id).await["status"], "input_required");
    one.stopped_now().await;
    let (server, _signals, mut said) = watched(&store, eager());
    let two = start(server.tool(tool())).await;
    answer(&two, &id, "login", "Ada").await;
    assert_eq!(done(&two, &id).await, "worked for Ada");
    heard(&mut said, "dropped").await;
    assert!(said.try_recv().is_err(), "the step was not run again");
}

#[tokio::test]
async fn cancelling_reaches_a_handler_that_runs_on_another_instance() {
    let store = MemoryStore::new();
    let (server, _signals, mut said) = watched(&store, eager());
    let tool = || Tool::new("work", works_while_it_waits).task();
    let one = start(server.tool(tool())).await;
    let id = task(&one, &call("work")).await;
    heard(&mut said, "working").await;
    // By another way to the store, over which no hints come.
    let other = Server::builder("tasks", "1").tasks(FaultyStore::new(&store), eager());
    let two = start(other).await;
    let cancelled = two.send(&about("tasks/cancel", &id)).await.reply();
    assert_eq!(result(&cancelled)["resultType"], "complete");
    heard(&mut said, "dropped").await;
    nothing_runs(&one).await;
    assert_eq!(get(&one, &id).await["status"], "cancelled");
}

#[tokio::test]
async fn a_question_that_is_asked_again_has_another_key() {
    async fn work(cx: Cx) -> Result<String> {
        let login: Login = cx.elicit("login", "Who are you?").await?;
        Ok(login.name)
    }
    let store = MemoryStore::new();
    let (server, ..) = watched(&store, eager());
    let instance = start(server.tool(Tool::new("work", work).task())).await;
    let id = task(&instance, &call("work")).await;
    let waiting = stands(&instance, &id, "input_required").await;
    assert_eq!(keys(&waiting), ["login"]);
    let misfit = json!({"login": {"action": "accept", "content": {"name": 7}}});
    let reply = instance.send(&update(&id, misfit)).await.reply();
    assert_eq!(result(&reply)["resultType"], "complete");
    let again = once(&instance, &id, |task| keys(task) == ["login.2"]).await;
    let message = &again["inputRequests"]["login.2"]["params"]["message"];
    names(message.as_str().expect("a message"), &["not accepted"]);
    // The old key is answered for good.
    answer(&instance, &id, "login", "Eve").await;
    answer(&instance, &id, "login.2", "Ada").await;
    assert_eq!(done(&instance, &id).await, "Ada");
}

#[tokio::test]
async fn a_sleep_survives_the_instance_that_began_it() {
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
    let (server, _signals, mut said) = watched(&store, eager());
    let one = start(server.tool(Tool::new("work", work).task())).await;
    let id = task(&one, &call("work")).await;
    heard(&mut said, "before").await;
    nothing_runs(&one).await;
    one.stopped_now().await;
    let (server, _signals, mut said) = watched(&store, eager());
    let two = start(server.tool(Tool::new("work", work).task())).await;
    assert_eq!(done(&two, &id).await, "rested");
    heard(&mut said, "after").await;
}

#[tokio::test]
async fn a_task_that_waits_for_longer_than_it_lives_fails_and_says_so() {
    async fn work(cx: Cx) -> Result<String> {
        let login: Login = cx.elicit("login", "Who are you?").await?;
        Ok(login.name)
    }
    let store = MemoryStore::new();
    let (server, ..) = watched(&store, eager());
    let tool = Tool::new("work", work)
        .task()
        .task_ttl(Duration::from_secs(1));
    let instance = start(server.tool(tool)).await;
    let id = task(&instance, &call("work")).await;
    let error = failed(&instance, &id).await;
    names(
        &error,
        &["time to live of 1s", "waiting for answers to: login"],
    );
}

#[tokio::test]
async fn a_running_task_is_ended_at_the_end_of_its_life() {
    let store = MemoryStore::new();
    let (server, _signals, mut said) = watched(&store, eager());
    let tool = Tool::new("work", slow)
        .task()
        .task_ttl(Duration::from_secs(1));
    let instance = start(server.tool(tool)).await;
    let id = task(&instance, &call("work")).await;
    names(&failed(&instance, &id).await, &["time to live of 1s"]);
    heard(&mut said, "started").await;
    heard(&mut said, "dropped").await;
}

#[derive(Default)]
struct Tries(AtomicU32);

async fn fails_twice(cx: Cx, tries: State<Arc<Tries>>) -> Result<String> {
    let number = cx.step("try", async {
        match tries.0.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => Err(Error::retry("the other side is asleep")),
            number => Ok(number),
        }
    });
    Ok(format!("after {} tries", number.await?))
}

#[tokio::test]
async fn what_may_succeed_later_is_tried_again() {
    let store = MemoryStore::new();
    let tries = Arc::new(Tries::default());
    let (server, ..) = watched(&store, hasty());
    let server = server.state(tries.clone());
    let server = server
        .tool(Tool::new("work", fails_twice).task())
        .tool(Tool::new("inline", fails_twice));
    let instance = start(server).await;
    let id = task(&instance, &call("work")).await;
    assert_eq!(done(&instance, &id).await, "after 2 tries");
    assert_eq!(tries.0.load(Ordering::SeqCst), 3);
    // A call that is no task fails like any other.
    tries.0.store(0, Ordering::SeqCst);
    let reply = instance.send(&call("inline")).await.reply();
    assert_eq!(result(&reply)["isError"], true);
    assert_eq!(text(&reply), "the other side is asleep");
}

#[tokio::test]
async fn attempts_are_counted_and_the_last_error_is_told() {
    async fn never(_: Cx, tries: State<Arc<Tries>>) -> Result<String> {
        tries.0.fetch_add(1, Ordering::SeqCst);
        Err(Error::retry("the other side is gone"))
    }
    async fn panics(_: Cx) -> Result<String> {
        panic!("out of ideas")
    }
    let store = MemoryStore::new();
    let tries = Arc::new(Tries::default());
    let (server, ..) = watched(&store, hasty());
    let server = server
        .state(tries.clone())
        .tool(Tool::new("never", never).task())
        .tool(Tool::new("panics", panics).task());
    let instance = start(server).await;
    let id = task(&instance, &call("never")).await;
    let error = failed(&instance, &id).await;
    names(&error, &["tried 3 times", "the other side is gone"]);
    assert_eq!(tries.0.load(Ordering::SeqCst), 3);
    let id = task(&instance, &call("panics")).await;
    names(
        &failed(&instance, &id).await,
        &["tried 3 times", "panicked"],
    );
}

#[tokio::test]
async fn an_error_of_the_handlers_own_completes_the_task() {
    let store = MemoryStore::new();
    let (server, ..) = watched(&store, eager());
    let fails = |_: Cx| async { Err::<String, _>(Error::msg("no more paper")) };
    let instance = start(server.tool(Tool::new("work", fails).task())).await;
    let id = task(&instance, &call("work")).await;
    let task = stands(&instance, &id, "completed").await;
    assert_eq!(task["result"]["isError"], true);
    assert_eq!(task["result"]["content"][0]["text"], "no more paper");
}

#[tokio::test]
async fn a_worker_that_lost_its_lease_stops_at_once_and_writes_nothing() {
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
    let (server, first, mut said) = watched(&store, eager());
    let one = start(server.tool(Tool::new("work", work).task())).await;
    let id = task(&one, &call("work")).await;
    heard(&mut said, "working").await;
    // Whoever takes it next has a higher fence.
    let (server, second, mut says) = watched(&store, eager());
    let two = start(server.tool(Tool::new("work", work).task())).await;
    let id_of = TaskId::parse(&id).expect("an id");
    one.server.start_draining();
    store
        .requeue(&id_of)
        .await
        .expect("a store")
        .expect("a task");
    heard(&mut said, "dropped").await;
    first.open();
    heard(&mut says, "working").await;
    second.open();
    let winner = done(&two, &id).await;
    assert_eq!(winner, (Arc::as_ptr(&second) as usize).to_string());
}

#[tokio::test]
async fn what_a_handler_says_of_how_it_stands_is_told() {
    async fn work(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
        for message in ["gathering", "sorting"] {
            cx.status(message);
            signals.pass().await;
        }
        Ok("sorted".into())
    }
    let store = MemoryStore::new();
    let (server, signals, _said) = watched(&store, eager());
    let instance = start(server.tool(Tool::new("work", work).task())).await;
    let id = task(&instance, &call("work")).await;
    for message in ["gathering", "sorting"] {
        once(&instance, &id, |task| task["statusMessage"] == message).await;
        signals.open();
    }
    assert_eq!(done(&instance, &id).await, "sorted");
}

#[tokio::test]
async fn what_was_said_on_the_way_is_not_said_of_the_end() {
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
        cx.status("all of it is done");
        let _ = cx.now();
        Ok("worked")
    }
    let store = MemoryStore::new();
    let (server, _signals, _said) = watched(&store, eager());
    let server = server
        .tool(Tool::new("fill_in", fill_in).task())
        .tool(Tool::new("step", step).task())
        .tool(Tool::new("parting", parting).task());
    let instance = start(server).await;
    for (tool, message) in [("step", None), ("parting", Some("all of it is done"))] {
        let id = task(&instance, &call(tool)).await;
        let task = stands(&instance, &id, "completed").await;
        let said = task.get("statusMessage").and_then(Value::as_str);
        assert_eq!(said, message, "{task}");
    }

    let waiting = async || {
        let id = task(&instance, &call("fill_in")).await;
        let task = stands(&instance, &id, "input_required").await;
        assert_eq!(task["statusMessage"], "waiting for a name");
        id
    };
    let id = waiting().await;
    answer(&instance, &id, "login", "Ann").await;
    let task = stands(&instance, &id, "completed").await;
    assert_eq!(task.get("statusMessage"), None, "{task}");

    // One that ends with an error says which.
    let id = waiting().await;
    let declined = update(&id, json!({"login": {"action": "decline"}}));
    instance.send(&declined).await.reply();
    let task = stands(&instance, &id, "completed").await;
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
async fn a_call_whose_task_cannot_be_made_says_so_or_goes_on_inline() {
    let store = MemoryStore::new();
    let shaky = FaultyStore::new(&store);
    let (signals, _said) = signals();
    let detaches = |cx: Cx| async move {
        cx.detach().await?;
        ok("never")
    };
    let server = Server::builder("tasks", "1")
        .state(signals.clone())
        .tasks(shaky.clone(), eager())
        .tool(Tool::new("detaches", detaches))
        .tool(Tool::new("at_once", slow).task())
        .tool(Tool::new("later", slow).task_after(Duration::ZERO));
    let instance = start(server).await;
    shaky.fail(Some(StoreError::Unavailable("it is being moved".into())));
    let error = instance.send(&call("at_once")).await.error(200, -32603);
    names(&error, &["task store cannot be reached", "try again"]);
    let reply = instance.send(&call("detaches")).await.reply();
    assert_eq!(result(&reply)["isError"], true);
    names(text(&reply), &["task store cannot be reached", "try again"]);
    signals.open();
    let reply = instance.send(&call("later")).await.reply();
    assert_eq!(text(&reply), "as a task: false");
}

#[tokio::test]
async fn a_task_waits_for_a_store_that_is_away_and_loses_nothing() {
    async fn work(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
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
    let store = MemoryStore::new();
    let shaky = FaultyStore::new(&store);
    let (signals, mut said) = signals();
    let server = Server::builder("tasks", "1")
        .state(signals.clone())
        .tasks(shaky.clone(), eager())
        .tool(Tool::new("work", work).task());
    let instance = start(server).await;
    let id = task(&instance, &call("work")).await;
    heard(&mut said, "one").await;
    shaky.fail(Some(StoreError::Unavailable("it is being moved".into())));
    signals.open();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(
        said.try_recv().is_err(),
        "nothing new begins before the old is written"
    );
    shaky.fail(None);
    heard(&mut said, "two").await;
    signals.open();
    assert_eq!(done(&instance, &id).await, "both");
    assert!(said.try_recv().is_err(), "nothing was done twice");
}

#[tokio::test]
async fn the_explicit_style_works_in_tasks_too() {
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
    let (server, ..) = watched(&store, eager());
    let instance = start(server.tool(Tool::new("work", work).task())).await;
    let id = task(&instance, &call("work")).await;
    let waiting = stands(&instance, &id, "input_required").await;
    assert_eq!(keys(&waiting), ["name"]);
    answer(&instance, &id, "name", "Ada").await;
    names(&done(&instance, &id).await, &["Some(7)", "Ada"]);
}

#[tokio::test]
async fn what_lies_in_the_store_is_sealed_if_so_configured() {
    async fn work(cx: Cx) -> Result<String> {
        let login: Login = cx.elicit("login", "Who is the mole?").await?;
        cx.step("keep", async { ok("in the archive".to_owned()) })
            .await?;
        cx.elicit::<Login>("sure", "Sure?").await?;
        Ok(login.name)
    }
    let store = MemoryStore::new();
    let keyring = KeyRing::generate(&SystemSource::new());
    let options = TaskOptions {
        seal: true,
        ..hasty()
    };
    let (server, ..) = watched(&store, options.clone());
    let tool = || Tool::new("work", work).task();
    let one = start(server.keys(keyring.clone()).tool(tool())).await;
    let id = task(&one, &call("work")).await;
    stands(&one, &id, "input_required").await;
    answer(&one, &id, "login", "George-Smiley").await;
    once(&one, &id, |task| keys(task) == ["sure"]).await;
    nothing_runs(&one).await;
    let shown = get(&one, &id).await;
    names(&shown.to_string(), &["Sure?"]);
    let row = store
        .get(&TaskId::parse(&id).expect("an id"), &Principal::anonymous())
        .await;
    let row = row.expect("a store").expect("a task");
    assert!(row.asks.iter().all(|(_, ask)| !has(ask, "Sure?")));
    one.stopped_now().await;
    // An instance with other keys can neither show it nor carry it on, and says so.
    let (server, ..) = watched(&store, options.clone());
    let others = KeyRing::generate(&SystemSource::new());
    let other = start(server.keys(others).tool(tool())).await;
    other
        .send(&about("tasks/get", &id))
        .await
        .error(200, -32603);
    other.stopped_now().await;
    let (server, ..) = watched(&store, options);
    let two = start(server.keys(keyring).tool(tool())).await;
    answer(&two, &id, "sure", "yes").await;
    assert_eq!(done(&two, &id).await, "George-Smiley");
    let row = store
        .get(&TaskId::parse(&id).expect("an id"), &Principal::anonymous())
        .await;
    let outcome = row.expect("a store").expect("a task").outcome;
    assert!(!has(&outcome.expect("an outcome"), "Smiley"));
}

#[tokio::test]
async fn why_a_sealed_task_says_no_is_sealed_too() {
    async fn work(cx: Cx) -> Result<String> {
        let login: Login = cx.elicit("login", "Who is the mole?").await?;
        Err(Error::msg(format!("{} is not", login.name)))
    }
    let store = MemoryStore::new();
    let options = TaskOptions {
        seal: true,
        ..hasty()
    };
    let (server, ..) = watched(&store, options);
    let keyring = KeyRing::generate(&SystemSource::new());
    let one = start(server.keys(keyring).tool(Tool::new("work", work).task())).await;
    let id = task(&one, &call("work")).await;
    stands(&one, &id, "input_required").await;
    answer(&one, &id, "login", "George-Smiley").await;
    let shown = stands(&one, &id, "completed").await;
    names(&shown["result"].to_string(), &["George-Smiley is not"]);
    let id = TaskId::parse(&id).expect("an id");
    let row = store.get(&id, &Principal::anonymous()).await;
    let row = row.expect("a store").expect("a task");
    assert_eq!(row.status_message, None);
}

fn has(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}

#[tokio::test]
async fn a_journal_over_the_limit_fails_the_task_and_names_its_largest_entry() {
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
    let (server, ..) = watched(&store, options);
    let instance = start(server.tool(Tool::new("work", work).task())).await;
    let id = task(&instance, &call("work")).await;
    names(
        &failed(&instance, &id).await,
        &["the limit is 4000", "hoard"],
    );
}

#[tokio::test]
async fn draining_hands_tasks_on_at_the_next_step() {
    async fn work(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
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
    let store = MemoryStore::new();
    let (server, first, mut said) = watched(&store, eager());
    let mut one = start(server.tool(Tool::new("work", work).task())).await;
    let id = task(&one, &call("work")).await;
    heard(&mut said, "one").await;
    one.stop();
    first.open();
    one.stopped().await;
    assert!(
        said.try_recv().is_err(),
        "the second step is another instance's"
    );
    let (server, second, mut said) = watched(&store, eager());
    second.open();
    let two = start(server.tool(Tool::new("work", work).task())).await;
    assert_eq!(done(&two, &id).await, "both");
    heard(&mut said, "two").await;
    assert!(said.try_recv().is_err(), "the first step was not run again");
}

#[tokio::test]
async fn only_so_many_tasks_run_at_the_same_time() {
    let store = MemoryStore::new();
    let options = TaskOptions {
        concurrent: 2,
        ..eager()
    };
    let (server, signals, mut said) = watched(&store, options);
    let instance = start(server.tool(Tool::new("work", slow).task())).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(task(&instance, &call("work")).await);
    }
    heard(&mut said, "started").await;
    heard(&mut said, "started").await;
    assert_eq!(instance.server.running_tasks(), 2);
    assert!(said.try_recv().is_err(), "no third one has begun");
    for _ in &ids {
        signals.open();
    }
    for id in &ids {
        assert_eq!(done(&instance, id).await, "as a task: true");
    }
    let rows = store
        .list(ListTasks {
            most: 9,
            ..ListTasks::default()
        })
        .await;
    let rows = rows.expect("a list");
    assert!(
        rows.iter()
            .all(|row| row.task.status == StoredStatus::Completed)
    );
}

#[tokio::test]
async fn an_answer_is_heard_of_by_whatever_is_written_next() {
    async fn talks(cx: Cx) -> Result<String> {
        let talk = async {
            for number in 0_u32.. {
                cx.status(format!("still waiting: {number}"));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let login = tokio::select! {
            login = cx.elicit::<Login>("login", "Who are you?") => login?,
            () = talk => unreachable!("it talks for ever"),
        };
        Ok(login.name)
    }
    let store = MemoryStore::new();
    // No hints come, and nobody looks while the test lasts.
    let deaf = TaskOptions {
        look: Duration::from_secs(3600),
        ..TaskOptions::default()
    };
    let server = Server::builder("tasks", "1")
        .tasks(FaultyStore::new(&store), deaf)
        .tool(Tool::new("work", talks).task());
    let instance = start(server).await;
    let id = task(&instance, &call("work")).await;
    stands(&instance, &id, "input_required").await;
    answer(&instance, &id, "login", "Ada").await;
    assert_eq!(done(&instance, &id).await, "Ada");
}

#[tokio::test]
async fn a_checkpoint_that_says_nothing_new_is_no_progress() {
    async fn stuck(cx: Cx, tries: State<Arc<Tries>>) -> Result<String> {
        let at: u32 = cx.resume("at")?.unwrap_or(5);
        cx.checkpoint("at", &at).await?;
        tries.0.fetch_add(1, Ordering::SeqCst);
        panic!("part {at} cannot be done")
    }
    let store = MemoryStore::new();
    let tries = Arc::new(Tries::default());
    let (server, ..) = watched(&store, hasty());
    let server = server.state(tries.clone());
    let instance = start(server.tool(Tool::new("work", stuck).task())).await;
    let id = task(&instance, &call("work")).await;
    let error = failed(&instance, &id).await;
    names(&error, &["tried 3 times", "panicked"]);
    assert!(
        !error.contains("part 5"),
        "what a panic says is for the log"
    );
    // The first attempt got as far as the checkpoint; three did not get on from there.
    assert_eq!(tries.0.load(Ordering::SeqCst), 4);
}

#[test]
fn sealing_needs_keys_that_outlive_the_process() {
    let options = TaskOptions {
        seal: true,
        ..TaskOptions::default()
    };
    let store = Arc::new(MemoryStore::new());
    let built = Server::builder("tasks", "1").tasks(store, options).build();
    assert!(matches!(built, Err(BuildError::SealingNeedsKeys)));
}

#[tokio::test]
async fn a_task_that_became_one_holds_the_place_of_its_call() {
    let store = MemoryStore::new();
    let (server, signals, mut said) = watched(&store, eager());
    let limits = ServerLimits {
        concurrent_calls: 2,
        ..ServerLimits::default()
    };
    let tool = Tool::new("work", slow).task_after(Duration::ZERO);
    let instance = start(server.limits(limits).tool(tool)).await;
    let one = task(&instance, &call("work")).await;
    let two = task(&instance, &call("work")).await;
    heard(&mut said, "started").await;
    heard(&mut said, "started").await;
    let busy = instance.send(&call("work")).await;
    names(&busy.error(503, -32603), &["limit of 2 calls"]);
    signals.open();
    signals.open();
    for id in [one, two] {
        // Whoever asks needs a place as well.
        let ended = async {
            while instance.server.running() > 1 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within("a place to be free", ended).await;
        assert_eq!(done(&instance, &id).await, "as a task: true");
    }
}
