//! Large tokens and tasks take turns with the large requests of other callers.

use crate::auth::Caller;
use crate::limits::{LimitKey, QueuePermit};
use crate::server::Server;
use crate::{TaskOptions, Tool};
use refrain_core::{Cx, FlowId, Principal, ok};
use refrain_store::{Commit, Creation, MemoryStore, NewTask, StoredStatus, StoredTask, TaskId};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, SystemTime};
use tokio::task::{JoinHandle, yield_now};

const SIZE: usize = 200_000;

/// A server with a tool that asks after a step of this size, and the number of its runs.
fn server(step: usize) -> (Server, Arc<AtomicUsize>) {
    server_with(step, TaskOptions::default())
}

fn server_with(step: usize, options: TaskOptions) -> (Server, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let work = Tool::new("work", move |cx: Cx| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move {
            cx.step("hoard", async move { ok("x".repeat(step)) })
                .await?;
            cx.roots("where").await?;
            ok("done")
        }
    });
    let store = Arc::new(MemoryStore::new());
    let server = Server::builder("turns", "1").tool(work);
    let server = server.tasks(store, options).build();
    (server.expect("the server builds"), runs)
}

/// Starts a call, with the token of its previous round.
fn start(server: &Server, token: Option<&str>) -> JoinHandle<Value> {
    let mut params = json!({"name": "work", "arguments": {}, "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"roots": {}},
    }});
    if let Some(token) = token {
        params["requestState"] = json!(token);
    }
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let server = server.clone();
    tokio::spawn(async move {
        let call = call.to_string();
        let mut response = server.handle(call.as_bytes(), Principal::anonymous()).await;
        let reply = response.next().await.expect("a reply");
        serde_json::from_slice(&reply).expect("replies are JSON")
    })
}

fn token(reply: &Value) -> String {
    let token = reply["result"]["requestState"].as_str();
    token.unwrap_or_else(|| panic!("{reply}")).to_owned()
}

/// Takes all turns, one for each of several callers.
async fn take_all_turns(server: &Server) -> Vec<QueuePermit> {
    let queue = &server.0.services.limits.large_work;
    let mut permits = Vec::new();
    for number in 0..available_parallelism().map_or(2, |cores| cores.get().max(2)) {
        let caller = Principal::new(format!("caller {number}"));
        permits.push(queue.acquire(LimitKey::Principal(caller)).await);
    }
    permits
}

/// Runs the other tasks until they wait.
async fn run_tasks() {
    for _ in 0..100 {
        yield_now().await;
    }
}

#[tokio::test]
async fn large_token_is_sealed_in_turn() {
    let (server, runs) = server(SIZE);
    let turns = take_all_turns(&server).await;
    let call = start(&server, None);
    run_tasks().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert!(!call.is_finished());
    drop(turns);
    let reply = call.await.expect("it does not panic");
    assert!(token(&reply).len() < 100);
}

#[tokio::test]
async fn token_over_the_quota_is_rejected_before_it_is_sealed() {
    let options = TaskOptions {
        bytes_each: SIZE,
        ..TaskOptions::default()
    };
    let (server, _) = server_with(SIZE, options);
    let _turns = take_all_turns(&server).await;
    let call = start(&server, None);
    run_tasks().await;
    assert!(call.is_finished());
    let reply = call.await.expect("it does not panic");
    let error = reply["error"]["message"].as_str();
    assert!(
        error.is_some_and(|error| error.contains("bytes in the store")),
        "{reply}"
    );
}

#[tokio::test]
async fn large_stored_token_is_opened_in_turn() {
    let (server, runs) = server(SIZE);
    let first = start(&server, None).await.expect("it does not panic");
    let turns = take_all_turns(&server).await;
    let again = start(&server, Some(&token(&first)));
    run_tasks().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1, "the token was opened");
    drop(turns);
    let reply = again.await.expect("it does not panic");
    assert!(token(&reply).len() < 100);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    // The turn ended with the round.
    let all = take_all_turns(&server);
    let all = tokio::time::timeout(Duration::from_secs(60), all).await;
    assert!(all.is_ok(), "a turn is held");
}

#[tokio::test]
async fn small_token_needs_no_turn() {
    let (server, _) = server(1000);
    let _turns = take_all_turns(&server).await;
    let first = start(&server, None).await.expect("it does not panic");
    let again = start(&server, Some(&token(&first)));
    token(&again.await.expect("it does not panic"));
}

#[tokio::test]
async fn large_task_is_read_in_turn() {
    let (server, _) = server(0);
    let tasks = server.0.tasks.clone().expect("a store");
    let read = |size: usize| {
        let tasks = tasks.clone();
        let outcome = json!({"content": [{"type": "text", "text": "x".repeat(size)}]});
        let mut stored = vec![0];
        stored.extend_from_slice(outcome.to_string().as_bytes());
        let task = StoredTask {
            id: TaskId::new([7; 24]),
            tool: "work".into(),
            status: StoredStatus::Completed,
            status_message: None,
            created: SystemTime::UNIX_EPOCH,
            updated: SystemTime::UNIX_EPOCH,
            ttl: Duration::from_secs(60),
            poll_interval: Duration::from_secs(1),
            revision: 1,
            asks: Vec::new(),
            outcome: Some(stored.into()),
        };
        tokio::spawn(async move {
            let caller = Caller::from(Principal::anonymous());
            let body = tasks.detailed(task, &caller).await.expect("it opens");
            body.members().len()
        })
    };
    let turns = take_all_turns(&server).await;
    assert!(read(1000).await.expect("it does not panic") > 1000);
    let large = read(SIZE);
    run_tasks().await;
    assert!(!large.is_finished());
    drop(turns);
    assert!(large.await.expect("it does not panic") > SIZE);
}

/// Creates a task with an ask of this size, with the key `large`.
async fn ask(server: &Server, size: usize) -> TaskId {
    let tasks = server.0.tasks.clone().expect("a store");
    let id = TaskId::new([size as u8; 24]);
    let new = NewTask {
        id: id.clone(),
        flow: FlowId::from_bytes([size as u8; 16]),
        owner: Principal::anonymous(),
        account: Principal::anonymous(),
        tool: "work".into(),
        call: Vec::new(),
        journal: Vec::new(),
        status_message: None,
        ttl: Duration::from_secs(60),
        poll_interval: Duration::from_secs(1),
        claimed: Some(("the test".into(), Duration::from_secs(60))),
        webhooks: Vec::new(),
    };
    let created = tasks.store.create(new).await.expect("a task");
    let Creation::New(_, Some(lease)) = created else {
        panic!("expected a new task with a lease, not {created:?}");
    };
    let ask = json!({"method": "roots/list", "params": {"_meta": {"a": "x".repeat(size)}}});
    let mut stored = vec![0];
    stored.extend_from_slice(ask.to_string().as_bytes());
    let publish = Commit {
        publish: vec![("large".to_owned(), stored)],
        ..Commit::default()
    };
    let committed = tasks.store.commit(&lease, publish).await;
    committed.expect("the lease is held");
    id
}

#[tokio::test]
async fn large_ask_is_opened_in_turn() {
    let (server, _) = server(0);
    let update = |id: TaskId, key: &str| {
        let params = json!({"taskId": id.as_str(), "inputResponses": {key: {"roots": [7]}}, "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
        }});
        let update = json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/update", "params": params});
        let server = server.clone();
        tokio::spawn(async move {
            let update = update.to_string();
            let mut response = server
                .handle(update.as_bytes(), Principal::anonymous())
                .await;
            let reply = response.next().await.expect("a reply");
            serde_json::from_slice::<Value>(&reply).expect("replies are JSON")
        })
    };
    let (small, large) = (ask(&server, 1000).await, ask(&server, SIZE).await);
    let turns = take_all_turns(&server).await;
    let reply = update(small, "large").await.expect("it does not panic");
    assert_eq!(reply["error"]["code"], -32602, "{reply}");
    let reply = update(large.clone(), "never").await;
    let reply = reply.expect("it does not panic");
    assert_eq!(reply["result"]["resultType"], "complete", "{reply}");
    let malformed = update(large, "large");
    run_tasks().await;
    assert!(!malformed.is_finished());
    drop(turns);
    let reply = malformed.await.expect("it does not panic");
    assert_eq!(reply["error"]["code"], -32602, "{reply}");
}
