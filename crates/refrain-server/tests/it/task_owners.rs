//! Tasks of several owners: fair claims and quotas.

use crate::support::tasks::{about, eager};
use crate::support::{
    Guard, Instance, Login, OptionalBearer, Request, Signals, asked, assert_contains, handle,
    result, signals, start, until, within,
};
use refrain_core::{Cx, Principal, Result, ok};
use refrain_server::{BearerTokens, Server, State, TaskOptions, Tool};
use refrain_store::{MemoryStore, StoreFuture, StoreLayer, TaskStore};
use refrain_testkit::net::{CAPABILITIES_KEY, TASKS_EXTENSION};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const ALICE: &str = "alice-0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef";
const CAROL: &str = "carol-0123456789abcdef";

/// Runs until the test opens the signals.
async fn long(_: Cx, signals: State<Arc<Signals>>) -> Result<&'static str> {
    let _guard = Guard((*signals).clone());
    signals.pass().await;
    Ok("long")
}

async fn short(_: Cx) -> Result<&'static str> {
    Ok("short")
}

/// Has a large journal.
async fn hoard(cx: Cx) -> Result<String> {
    cx.step("one", async { ok("x".repeat(60_000)) }).await?;
    cx.step("two", async { ok("x".repeat(60_000)) }).await?;
    cx.step("three", async { ok("done".to_owned()) }).await
}

#[derive(Deserialize, JsonSchema)]
struct Text {
    text: String,
}

async fn read(_: Cx, signals: State<Arc<Signals>>, args: Text) -> Result<String> {
    signals.pass().await;
    Ok(format!("{} bytes", args.text.len()))
}

/// Has a large token.
async fn asks(cx: Cx) -> Result<String> {
    cx.step("one", async { ok("x".repeat(60_000)) }).await?;
    let login: Login = cx.elicit("login", "Who are you?").await?;
    Ok(login.name)
}

async fn asks_live(cx: Cx) -> Result<String> {
    let login: Login = cx.elicit("login", "Who are you?").await?;
    Ok(login.name)
}

fn call(tool: &str, bearer: &str) -> Request {
    Request::tool(tool, json!({}))
        .declares_tasks()
        .bearer(bearer)
}

async fn instance(options: TaskOptions) -> (Instance, Arc<Signals>) {
    let tokens = BearerTokens::new().with("alice", ALICE).with("bob", BOB);
    let (signals, _) = signals();
    let server = Server::builder("tasks", "1")
        .tasks(Arc::new(MemoryStore::new()), options)
        .authenticator(tokens.with("carol", CAROL))
        .state(signals.clone())
        .tool(Tool::new("long", long).task())
        .tool(Tool::new("slow", long).task_after(Duration::from_millis(1)))
        .max_token(1000)
        .tool(Tool::new("short", short).task())
        .tool(Tool::new("hoard", hoard).task())
        .tool(Tool::new("read", read).task())
        .tool(Tool::new("asks_live", asks_live).live().task())
        .tool(Tool::new("asks", asks));
    (start(server).await, signals)
}

/// Sends a call that becomes a task, and returns its id.
async fn start_task(instance: &Instance, tool: &str, bearer: &str) -> String {
    let reply = instance.send(&call(tool, bearer)).await.reply();
    let result = result(&reply);
    assert_eq!(result["resultType"], "task", "{reply}");
    let id = result["taskId"].as_str();
    id.expect("taskId is a string").to_owned()
}

/// Waits until the task has ended.
async fn wait_for_end(instance: &Instance, id: &str, bearer: &str) -> Value {
    let polling = async {
        loop {
            let request = about("tasks/get", id).bearer(bearer);
            let task = result(&instance.send(&request).await.reply()).clone();
            if task["status"] != "working" {
                return task;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the end of the task", polling).await
}

async fn wait_for_running(instance: &Instance, count: usize) {
    until("the running tasks", || {
        instance.server.running_tasks() == count
    })
    .await;
}

#[tokio::test]
async fn task_runs_while_another_owner_has_many_long_ones() {
    let (instance, _signals) = instance(TaskOptions::default()).await;
    for _ in 0..300 {
        start_task(&instance, "long", ALICE).await;
    }
    // One owner takes half of the slots.
    wait_for_running(&instance, 32).await;
    let id = start_task(&instance, "short", BOB).await;
    let task = wait_for_end(&instance, &id, BOB).await;
    assert_eq!(task["status"], "completed", "{task}");
    assert_eq!(instance.server.running_tasks(), 32);
}

/// A live task stays in memory while it waits for an answer, but other tasks can run.
#[tokio::test]
async fn waiting_live_tasks_of_others_do_not_delay_a_task() {
    let (instance, _signals) = instance(TaskOptions::default()).await;
    let capabilities = json!({"elicitation": {}, "extensions": {TASKS_EXTENSION: {}}});
    let start_asking = async |bearer| {
        let call = call("asks_live", bearer).meta(CAPABILITIES_KEY, capabilities.clone());
        let reply = instance.send(&call).await.reply();
        let id = result(&reply)["taskId"].as_str();
        id.expect("taskId is a string").to_owned()
    };
    for bearer in [ALICE, CAROL] {
        for _ in 0..40 {
            start_asking(bearer).await;
        }
    }
    wait_for_running(&instance, 80).await;
    let waiting = start_asking(BOB).await;
    // Bob has a task that waits, so the places that are left to callers without a task are not for him.
    for _ in 0..3 {
        let id = start_task(&instance, "short", BOB).await;
        let task = wait_for_end(&instance, &id, BOB).await;
        assert_eq!(task["status"], "completed", "{task}");
    }
    let id = waiting.as_str();
    let answers = json!({"login": {"action": "accept", "content": {"name": "Bob"}}});
    let request = about("tasks/update", id).param("inputResponses", answers);
    let updated = instance.send(&request.bearer(BOB)).await.reply();
    assert_eq!(result(&updated)["resultType"], "complete");
    wait_for_running(&instance, 80).await;
    let task = wait_for_end(&instance, id, BOB).await;
    assert_eq!(task["result"]["content"][0]["text"], "Bob", "{task}");
}

/// Sends 100 calls at the same moment that become tasks, and returns their ids.
async fn start_tasks_at_once(instance: &Instance, tool: &'static str) -> Vec<String> {
    let mut starting = JoinSet::new();
    for _ in 0..100 {
        let server = instance.server.clone();
        starting.spawn(async move {
            let call = Request::tool(tool, json!({})).declares_tasks();
            handle(&server, &call, Principal::new("alice")).await
        });
    }
    let replies = within("the replies", starting.join_all()).await;
    let id = |reply: Value| {
        let id = result(&reply)["taskId"].as_str();
        id.expect("taskId is a string").to_owned()
    };
    replies.into_iter().map(id).collect()
}

#[tokio::test]
async fn tasks_that_start_at_once_leave_slots_to_other_owners() {
    let (instance, signals) = instance(TaskOptions::default()).await;
    let ids = start_tasks_at_once(&instance, "long").await;
    // None of them ends, so there were never more.
    wait_for_running(&instance, 32).await;
    let id = start_task(&instance, "short", BOB).await;
    let task = wait_for_end(&instance, &id, BOB).await;
    assert_eq!(task["status"], "completed", "{task}");
    assert_eq!(instance.server.running_tasks(), 32);
    // The others waited in the store.
    for _ in &ids {
        signals.open();
    }
    for id in &ids {
        let task = wait_for_end(&instance, id, ALICE).await;
        assert_eq!(task["status"], "completed", "{task}");
    }
}

/// A call that becomes a task while it runs keeps its permit as a call, so it needs no slot for a task.
#[tokio::test]
async fn calls_that_become_tasks_leave_slots_to_other_owners() {
    let (instance, _signals) = instance(TaskOptions::default()).await;
    start_tasks_at_once(&instance, "slow").await;
    assert_eq!(instance.server.running_tasks(), 100);
    let id = start_task(&instance, "short", BOB).await;
    let task = wait_for_end(&instance, &id, BOB).await;
    assert_eq!(task["status"], "completed", "{task}");
}

#[tokio::test]
async fn last_slot_is_left_to_an_owner_without_running_tasks() {
    let options = TaskOptions {
        concurrent: 4,
        ..eager()
    };
    let (instance, signals) = instance(options).await;
    let mut ids = Vec::new();
    for bearer in [ALICE, BOB] {
        for _ in 0..3 {
            ids.push((start_task(&instance, "long", bearer).await, bearer));
        }
    }
    // Alice has two of four slots, Bob has one of the other two.
    wait_for_running(&instance, 3).await;
    let id = start_task(&instance, "long", CAROL).await;
    wait_for_running(&instance, 4).await;
    ids.push((id, CAROL));
    for _ in &ids {
        signals.open();
    }
    for (id, bearer) in &ids {
        let task = wait_for_end(&instance, id, bearer).await;
        assert_eq!(task["status"], "completed", "{task}");
    }
}

/// The error of a call.
async fn error_of(instance: &Instance, request: &Request) -> String {
    let reply = instance.send(request).await.reply();
    assert_eq!(reply["error"]["code"], -32603, "{reply}");
    let message = reply["error"]["message"].as_str();
    message.expect("the message is a string").to_owned()
}

#[tokio::test]
async fn unfinished_tasks_of_an_owner_are_limited() {
    let options = TaskOptions {
        unfinished_each: 2,
        ..eager()
    };
    let (instance, signals) = instance(options).await;
    let first = start_task(&instance, "long", ALICE).await;
    start_task(&instance, "long", ALICE).await;
    let error = error_of(&instance, &call("short", ALICE)).await;
    assert_contains(&error, &["limit of 2 unfinished tasks", "try again"]);
    // Other owners are not affected.
    let id = start_task(&instance, "short", BOB).await;
    assert_eq!(
        wait_for_end(&instance, &id, BOB).await["status"],
        "completed"
    );
    signals.open();
    signals.open();
    wait_for_end(&instance, &first, ALICE).await;
    start_task(&instance, "short", ALICE).await;
}

#[tokio::test]
async fn stored_bytes_of_an_owner_are_limited() {
    let options = TaskOptions {
        bytes_each: 100_000,
        ..eager()
    };
    let (instance, _signals) = instance(options).await;
    let large = |bearer| {
        let arguments = json!({"text": "x".repeat(40_000)});
        Request::tool("read", arguments)
            .declares_tasks()
            .bearer(bearer)
    };
    for _ in 0..2 {
        let reply = instance.send(&large(ALICE)).await.reply();
        assert_eq!(result(&reply)["resultType"], "task", "{reply}");
    }
    let error = error_of(&instance, &large(ALICE)).await;
    assert_contains(&error, &["limit of 100000 bytes in the store", "try again"]);
    let reply = instance.send(&large(BOB)).await.reply();
    assert_eq!(result(&reply)["resultType"], "task", "{reply}");
}

#[tokio::test]
async fn task_whose_journal_exceeds_the_quota_fails() {
    let options = TaskOptions {
        bytes_each: 100_000,
        ..eager()
    };
    let (instance, _signals) = instance(options).await;
    let id = start_task(&instance, "hoard", ALICE).await;
    let task = wait_for_end(&instance, &id, ALICE).await;
    assert_eq!(task["status"], "failed", "{task}");
    let error = task["error"]["message"].as_str();
    let error = error.expect("the message is a string");
    assert_contains(error, &["could not be stored", "limit of 100000 bytes"]);
}

#[tokio::test]
async fn stored_tokens_of_an_owner_are_limited() {
    let options = TaskOptions {
        bytes_each: 100_000,
        ..eager()
    };
    let (instance, _signals) = instance(options).await;
    let ask = |bearer| Request::tool("asks", json!({})).bearer(bearer);
    let reply = instance.send(&ask(ALICE)).await.reply();
    assert_eq!(asked(&reply), ["login"]);
    let error = error_of(&instance, &ask(ALICE)).await;
    assert_contains(&error, &["limit of 100000 bytes in the store"]);
    let reply = instance.send(&ask(BOB)).await.reply();
    assert_eq!(asked(&reply), ["login"]);
}

#[tokio::test]
async fn anonymous_callers_at_one_address_cannot_use_up_the_tasks_of_others() {
    let options = TaskOptions {
        unfinished_each: 3,
        ..TaskOptions::default()
    };
    let (signals, _) = signals();
    let server = Server::builder("tasks", "1")
        .tasks(Arc::new(MemoryStore::new()), options)
        .state(signals.clone())
        .client_address_header("X-Forwarded-For")
        .tool(Tool::new("long", long).task())
        .tool(Tool::new("short", short).task());
    let instance = start(server).await;
    let call = |tool: &str, address: &str| {
        let request = Request::tool(tool, json!({})).declares_tasks();
        request.header("X-Forwarded-For", address)
    };
    for _ in 0..3 {
        instance.send(&call("long", "192.0.2.1")).await.reply();
    }
    let rejected = instance.send(&call("long", "192.0.2.1")).await;
    assert_contains(
        &rejected.error(200, -32603),
        &["limit of 3 unfinished tasks"],
    );
    let reply = instance.send(&call("short", "192.0.2.2")).await.reply();
    let id = result(&reply)["taskId"]
        .as_str()
        .expect("a task")
        .to_owned();
    // Access does not depend on the address: the id is the only secret.
    let done = async {
        loop {
            let request = about("tasks/get", &id).header("X-Forwarded-For", "192.0.2.3");
            let task = result(&instance.send(&request).await.reply()).clone();
            if task["status"] == "completed" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the end of the task", done).await;
}

#[tokio::test]
async fn authenticated_owner_gets_a_slot_despite_many_anonymous_owners() {
    let options = TaskOptions {
        concurrent: 8,
        ..eager()
    };
    let (signals, _) = signals();
    let tokens = BearerTokens::new().with("bob", BOB);
    let server = Server::builder("tasks", "1")
        .tasks(Arc::new(MemoryStore::new()), options)
        .authenticator(OptionalBearer(tokens))
        .client_address_header("X-Forwarded-For")
        .state(signals.clone())
        .tool(Tool::new("long", long).task())
        .tool(Tool::new("short", short).task());
    let instance = start(server).await;
    for address in 0..40 {
        let request = Request::tool("long", json!({})).declares_tasks();
        let request = request.header("X-Forwarded-For", &format!("192.0.2.{}", address % 20));
        instance.send(&request).await.reply();
    }
    wait_for_running(&instance, 6).await;
    let id = start_task(&instance, "short", BOB).await;
    let task = wait_for_end(&instance, &id, BOB).await;
    assert_eq!(task["status"], "completed", "{task}");
    assert_eq!(instance.server.running_tasks(), 6);
}

/// A store with few connections, in which readers keep theirs.
struct BusyStore {
    store: MemoryStore,
    connections: Semaphore,
    reading: AtomicUsize,
}

impl StoreLayer for BusyStore {
    fn store(&self) -> &dyn TaskStore {
        &self.store
    }

    fn pass<'a, T: Send + 'a>(
        &'a self,
        name: &'static str,
        operation: StoreFuture<'a, T>,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let _connection = match name {
                "get" | "create" => self.connections.acquire().await.ok(),
                _ => None,
            };
            if name == "get" {
                self.reading.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<()>().await;
            }
            operation.await
        })
    }
}

#[tokio::test]
async fn caller_with_many_store_operations_leaves_the_store_to_others() {
    let store = Arc::new(BusyStore {
        store: MemoryStore::new(),
        connections: Semaphore::new(20),
        reading: AtomicUsize::new(0),
    });
    let server = Server::builder("tasks", "1")
        .tasks(store.clone(), eager())
        .tool(Tool::new("short", short).task())
        .build()
        .expect("a valid server");
    let get = about("tasks/get", &"a".repeat(48));
    let mut reading = JoinSet::new();
    for _ in 0..100 {
        let (server, get) = (server.clone(), get.clone());
        reading.spawn(async move { handle(&server, &get, Principal::new("alice")).await });
    }
    until("the readers", || store.reading.load(Ordering::SeqCst) >= 16).await;
    let call = Request::tool("short", json!({})).declares_tasks();
    let reply = handle(&server, &call, Principal::new("bob")).await;
    assert_eq!(result(&reply)["resultType"], "task", "{reply}");
}
