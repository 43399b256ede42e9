//! The Refrain side of the task benchmark: an instance with a worker, and clients without a transport.
//!
//! A client waits for the store's hints about its task instead of polling.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use refrain_core::{Cx, Elicit, Field, Form, Principal, Result as Handled};
use refrain_server::{Server, TaskOptions, Tool};
use refrain_store::{Hint, TaskId, TaskStore};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::counting_store::CountingStore;
use crate::error::Error;
use crate::wire::ANSWER;

/// The wait for hints after which a client sends `tasks/get`.
const HINT_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of these requests.
const MAX_POLLS: u32 = 15;

const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"refrain-bench","version":"0.1.0"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}}"#;

#[derive(Deserialize)]
struct BenchLogin {
    name: String,
}

impl Elicit for BenchLogin {
    fn form() -> &'static Form {
        static FORM: OnceLock<Form> = OnceLock::new();
        FORM.get_or_init(|| Form::new([Field::string("name")]))
    }
}

#[derive(Deserialize, JsonSchema)]
struct Weather {
    /// The name of the town.
    location: String,
}

/// The example tool of the multi-round-trip requests (MRTR) proposal, which asks once.
async fn get_weather(cx: Cx, args: Weather) -> Handled<String> {
    let login: BenchLogin = cx
        .elicit("github_login", "Please provide your GitHub username")
        .await?;
    let (name, location) = (login.name, args.location);
    Ok(format!(
        "Current weather in {location} for {name}: Temperature: 72°F"
    ))
}

/// A server with the tool and the store. Quotas are off: a run has many tasks, all of one owner.
pub(crate) fn server(store: Arc<dyn TaskStore>, mut options: TaskOptions) -> Result<Server, Error> {
    options.unfinished_each = usize::MAX;
    options.bytes_each = usize::MAX;
    options.bytes = usize::MAX;
    let tool = Tool::new("get_weather", get_weather).task_required();
    let server = Server::builder("refrain-bench", "0.1.0").tool(tool);
    Ok(server.tasks(store, options).build()?)
}

/// An instance with a worker, and the hints for its clients. Dropping it stops the worker.
pub(crate) struct TaskInstance {
    server: Server,
    pub(crate) store: Arc<CountingStore>,
    hint_counts: Arc<HintCounts>,
    _work: JoinSet<()>,
}

impl TaskInstance {
    pub(crate) fn start(store: Arc<CountingStore>) -> Result<Self, Error> {
        let server = server(store.clone(), TaskOptions::default())?;
        let hint_counts = Arc::new(HintCounts::default());
        let mut work = JoinSet::new();
        work.spawn(listen(store.hints(), hint_counts.clone()));
        let worker = server.clone();
        work.spawn(async move { worker.work(std::future::pending()).await });
        Ok(Self {
            server,
            store,
            hint_counts,
            _work: work,
        })
    }

    /// Runs a complete task: create, ask, answer, complete.
    pub(crate) async fn run_one_task(&self) -> Result<(), Error> {
        let id = self.open().await?;
        let update = format!(r#""taskId":"{id}",{ANSWER}"#);
        self.request("tasks/update", &update).await?;
        self.wait_for_status(&id, 2, "completed").await?;
        self.hint_counts.forget(&id);
        Ok(())
    }

    /// Creates a task that waits for its answer.
    pub(crate) async fn open(&self) -> Result<TaskId, Error> {
        let call = r#""name":"get_weather","arguments":{"location":"New York"}"#;
        let reply = self.request("tools/call", call).await?;
        let id = reply["result"]["taskId"].as_str().and_then(TaskId::parse);
        let id = id.ok_or_else(|| unexpected("a task", &reply))?;
        self.wait_for_status(&id, 1, "input_required").await?;
        Ok(id)
    }

    /// One `tasks/get` of a waiting task.
    pub(crate) async fn get(&self, id: &TaskId) -> Result<(), Error> {
        let message = message("tasks/get", &format!(r#""taskId":"{id}""#));
        let reply = self.exchange(&message).await?;
        match memchr::memmem::find(&reply, b"\"inputRequests\":{\"github_login\"") {
            Some(_) => Ok(()),
            None => Err(unexpected(
                "a waiting task",
                &String::from_utf8_lossy(&reply),
            )),
        }
    }

    /// Waits for this many hints since the creation or, if hints were lost, for a status.
    async fn wait_for_status(
        &self,
        id: &TaskId,
        times: u32,
        status: &'static str,
    ) -> Result<(), Error> {
        let mut hint_counts = self.hint_counts.of(id).subscribe();
        for _ in 0..MAX_POLLS {
            let enough_hints = hint_counts.wait_for(|hint_counts| *hint_counts >= times);
            if timeout(HINT_TIMEOUT, enough_hints).await.is_ok() {
                return Ok(());
            }
            let get = format!(r#""taskId":"{id}""#);
            let task = self.request("tasks/get", &get).await?;
            if task["result"]["status"] == status {
                return Ok(());
            }
        }
        Err(format!("the task is not {status} after {MAX_POLLS} requests").into())
    }

    async fn request(&self, method: &str, params: &str) -> Result<Value, Error> {
        let reply = self.exchange(&message(method, params)).await?;
        let reply: Value = serde_json::from_slice(&reply)?;
        match reply.get("result") {
            Some(_) => Ok(reply),
            None => Err(unexpected("a result", &reply)),
        }
    }

    async fn exchange(&self, message: &str) -> Result<Vec<u8>, Error> {
        let caller = Principal::new("bench");
        let mut response = self.server.handle(message.as_bytes(), caller).await;
        let reply = response.next().await;
        reply.ok_or_else(|| unexpected("a reply", &"nothing"))
    }
}

fn message(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params},{META}}}}}"#)
}

fn unexpected(expected: &'static str, reply: &dyn std::fmt::Display) -> Error {
    format!("expected {expected}, got {reply}").into()
}

#[derive(Default)]
struct HintCounts(Mutex<HashMap<TaskId, watch::Sender<u32>>>);

impl HintCounts {
    fn of(&self, id: &TaskId) -> watch::Sender<u32> {
        self.0.lock().entry(id.clone()).or_default().clone()
    }

    fn forget(&self, id: &TaskId) {
        self.0.lock().remove(id);
    }
}

async fn listen(mut hints: Receiver<Hint>, hint_counts: Arc<HintCounts>) {
    loop {
        match hints.recv().await {
            // Clients wait for changes by the worker.
            Ok(hint) if hint.own => hint_counts.of(&hint.task).send_modify(|times| *times += 1),
            // Changes by clients. If hints were lost, clients send `tasks/get`.
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}
