//! Tasks of several owners: fair claims.

use crate::support::tasks::{about, eager};
use crate::support::{Guard, Instance, Request, Signals, result, signals, start, within};
use refrain_core::{Cx, Result};
use refrain_server::{BearerTokens, Server, State, TaskOptions, Tool};
use refrain_store::MemoryStore;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

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

fn of(request: Request, bearer: &str) -> Request {
    request.header("Authorization", &format!("Bearer {bearer}"))
}

fn call(tool: &str, bearer: &str) -> Request {
    of(Request::tool(tool, json!({})).declares_tasks(), bearer)
}

async fn instance(options: TaskOptions) -> (Instance, Arc<Signals>) {
    let tokens = BearerTokens::new().with("alice", ALICE).with("bob", BOB);
    let (signals, _) = signals();
    let server = Server::builder("tasks", "1")
        .tasks(Arc::new(MemoryStore::new()), options)
        .authenticator(tokens.with("carol", CAROL))
        .state(signals.clone())
        .tool(Tool::new("long", long).task())
        .tool(Tool::new("short", short).task());
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
async fn ended(instance: &Instance, id: &str, bearer: &str) -> Value {
    let polling = async {
        loop {
            let request = of(about("tasks/get", id), bearer);
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
    let polling = async {
        while instance.server.running_tasks() != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the running tasks", polling).await;
}

#[tokio::test]
async fn task_runs_while_another_owner_has_many_long_ones() {
    let (instance, _signals) = instance(TaskOptions::default()).await;
    for _ in 0..300 {
        start_task(&instance, "long", ALICE).await;
    }
    // One owner takes half of the places.
    wait_for_running(&instance, 32).await;
    let id = start_task(&instance, "short", BOB).await;
    let task = ended(&instance, &id, BOB).await;
    assert_eq!(task["status"], "completed", "{task}");
    assert_eq!(instance.server.running_tasks(), 32);
}

#[tokio::test]
async fn last_place_is_left_to_an_owner_without_running_tasks() {
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
    // Alice has two of four places, Bob has one of the other two.
    wait_for_running(&instance, 3).await;
    let id = start_task(&instance, "long", CAROL).await;
    wait_for_running(&instance, 4).await;
    ids.push((id, CAROL));
    for _ in &ids {
        signals.open();
    }
    for (id, bearer) in &ids {
        let task = ended(&instance, id, bearer).await;
        assert_eq!(task["status"], "completed", "{task}");
    }
}
