//! Drives a task until it asks or ends, with one instance after the other as its worker.

use crate::fleet::{Fleet, parse};
use crate::script::Script;
use refrain::auth::Caller;
use refrain::server::Server;
use refrain_store::{TaskId, TaskRow};
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::future::pending;
use std::time::{Duration, Instant, SystemTime};

/// How often the task is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long a task that a worker still holds must stay unchanged before its asks are answered together.
const REST_TIME: Duration = Duration::from_millis(100);
/// How long a lease may exist without a running task before its worker counts as crashed.
const CRASH_TIMEOUT: Duration = Duration::from_millis(100);
/// How long a task may run without a change before the test fails.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// The task that a call has become.
#[derive(Clone, Debug)]
pub(crate) struct TestTask {
    pub(crate) id: String,
    meta: Value,
    caller: Caller,
    /// The keys of asks that the script did not answer.
    pub(crate) unanswered: HashSet<String>,
}

/// The last revision of a task, and when the kit first saw it.
struct LastRevision {
    revision: u64,
    since: Instant,
}

impl TestTask {
    pub(crate) fn new(id: &str, meta: &Value, script: &Script) -> Self {
        Self {
            id: id.to_owned(),
            meta: meta.clone(),
            caller: script.caller.clone(),
            unanswered: HashSet::new(),
        }
    }

    /// The request with answers to the asks of the task.
    pub(crate) fn update(&self, id: u64, answers: &Map<String, Value>) -> Value {
        let params = json!({"taskId": self.id, "inputResponses": answers, "_meta": self.meta});
        json!({"jsonrpc": "2.0", "id": id, "method": "tasks/update", "params": params})
    }

    /// Runs the task until it has new asks or has ended, and returns it. If only time can continue
    /// it, the fleet's clock is advanced.
    pub(crate) async fn settle(&self, fleet: &Fleet, turn: &mut usize) -> Value {
        loop {
            let worker = fleet.instance(*turn % fleet.versions());
            *turn += 1;
            let watched = tokio::select! {
                biased;
                () = worker.work(pending()) => unreachable!("a worker runs until its shutdown"),
                watched = self.watch(fleet, &worker) => watched,
            };
            fleet.running.lock().push(worker);
            match watched {
                Ok(task) => return task,
                Err(wakes_at) => fleet.clock().advance_to(wakes_at),
            }
        }
    }

    /// Waits until the task asks or ends. `Err` with the time at which it continues, if it sleeps or its worker
    /// has crashed.
    async fn watch(&self, fleet: &Fleet, worker: &Server) -> Result<Value, SystemTime> {
        let store = worker.task_store().expect("a task has a store");
        let id = TaskId::parse(&self.id).expect("the server made the id");
        let mut last = LastRevision {
            revision: 0,
            since: Instant::now(),
        };
        loop {
            let row = store.find(&id).await;
            let row = row.unwrap_or_else(|error| panic!("could not read the task: {error}"));
            let row = row.unwrap_or_else(|| panic!("the task {id} is no longer in the store"));
            if row.task.revision != last.revision {
                last.revision = row.task.revision;
                last.since = Instant::now();
            }
            if row.task.status.is_terminal() || self.is_asking(&row, &last) {
                return Ok(self.get(worker).await);
            }
            let now = fleet.clock().now();
            let wakes_at = row.due.filter(|due| *due > now);
            match (wakes_at, fleet.runs_tasks(worker)) {
                (Some(wakes_at), false) if last.is_unattended(&row) => return Err(wakes_at),
                // The task may be in a short sleep, which stays in memory: let the clock advance.
                (_, true) => fleet.clock().advance(POLL_INTERVAL),
                _ => {}
            }
            assert!(
                last.since.elapsed() < STALL_TIMEOUT,
                "the task {id} of {:?} has not changed for {STALL_TIMEOUT:?}; its status is {}: {:?}",
                row.task.tool,
                row.task.status,
                row.task.status_message.unwrap_or_default()
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Whether the task has asks that the script has not seen, and no further ones are about to join them.
    fn is_asking(&self, row: &TaskRow, last: &LastRevision) -> bool {
        let mut open = row.task.asks.iter();
        open.any(|(key, _)| !self.unanswered.contains(key))
            && (row.worker.is_none() || last.since.elapsed() >= REST_TIME)
    }

    /// The task, as its client sees it.
    async fn get(&self, server: &Server) -> Value {
        let params = json!({"taskId": self.id, "_meta": self.meta});
        let get = json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": params});
        let mut response = server
            .handle(get.to_string().as_bytes(), self.caller.clone())
            .await;
        let reply = response.next().await.expect("a request has a reply");
        let mut reply = parse(&reply);
        assert!(
            reply["result"].is_object(),
            "tasks/get failed for the task of the call: {reply}"
        );
        reply["result"].take()
    }
}

impl LastRevision {
    /// Whether no instance is about to run the task: it sleeps, or its worker has crashed.
    fn is_unattended(&self, row: &TaskRow) -> bool {
        row.worker.is_none() || self.since.elapsed() >= CRASH_TIMEOUT
    }
}

impl Fleet {
    /// Whether this worker or an earlier instance runs a task.
    fn runs_tasks(&self, worker: &Server) -> bool {
        let mut running = self.running.lock();
        running.retain(|server| server.running_tasks() > 0);
        !running.is_empty() || worker.running_tasks() > 0
    }
}

/// The reply to a call whose task has ended; `None` if the task has not ended.
///
/// # Panics
///
/// If the task was cancelled.
pub(crate) fn final_reply(request: &Value, task: &Value) -> Option<Value> {
    let (member, outcome) = match task["status"].as_str()? {
        "completed" => ("result", &task["result"]),
        "failed" => ("error", &task["error"]),
        "cancelled" => panic!(
            "the task of the call was cancelled: {}",
            task["statusMessage"]
        ),
        _ => return None,
    };
    Some(json!({"jsonrpc": "2.0", "id": request["id"], member: outcome}))
}
