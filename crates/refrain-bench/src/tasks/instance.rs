//! Refrain's side: an instance with a worker, and clients without a transport.
//!
//! A client waits for the store's hints instead of polling.

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
use crate::error::BenchError;
use crate::wire::ANSWER;

/// How long a client waits for a hint before it sends `tasks/get`.
const PATIENCE: Duration = Duration::from_secs(2);
/// The number of such requests before a client gives up.
const LOOKS: u32 = 15;

const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"refrain-bench","version":"0.1.0"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}}"#;

#[derive(Deserialize)]
struct LoginForm {
    name: String,
}

impl Elicit for LoginForm {
    fn form() -> &'static Form {
        static FORM: OnceLock<Form> = OnceLock::new();
        FORM.get_or_init(|| Form::new([Field::string("name")]))
    }
}

#[derive(Deserialize, JsonSchema)]
struct WeatherArguments {
    /// The location.
    location: String,
}

/// A tool that asks once.
async fn get_weather(cx: Cx, args: WeatherArguments) -> Handled<String> {
    let login: LoginForm = cx
        .elicit("github_login", "Please provide your GitHub username")
        .await?;
    let (name, location) = (login.name, args.location);
    Ok(format!(
        "Current weather in {location} for {name}: Temperature: 72°F"
    ))
}

/// A server with the tool and the store.
pub(crate) fn server(
    store: Arc<dyn TaskStore>,
    options: TaskOptions,
) -> Result<Server, BenchError> {
    let tool = Tool::new("get_weather", get_weather).task_required();
    let server = Server::builder("refrain-bench", "0.1.0").tool(tool);
    Ok(server.tasks(store, options).build()?)
}

/// An instance with a worker, and the hints for its clients. Dropping it stops the worker.
pub(crate) struct TaskInstance {
    server: Server,
    pub(crate) store: Arc<CountingStore>,
    heard: Arc<Heard>,
    _work: JoinSet<()>,
}

impl TaskInstance {
    pub(crate) fn start(store: Arc<CountingStore>) -> Result<Self, BenchError> {
        let server = server(store.clone(), TaskOptions::default())?;
        let heard = Arc::new(Heard::default());
        let mut work = JoinSet::new();
        work.spawn(listen(store.hints(), heard.clone()));
        let worker = server.clone();
        work.spawn(async move { worker.work(std::future::pending()).await });
        Ok(Self {
            server,
            store,
            heard,
            _work: work,
        })
    }

    /// Runs the life cycle of a task: called, asked, answered, completed.
    pub(crate) async fn life(&self) -> Result<(), BenchError> {
        let id = self.open().await?;
        let update = format!(r#""taskId":"{id}",{ANSWER}"#);
        self.request("tasks/update", &update).await?;
        self.until(&id, 2, "completed").await?;
        self.heard.forget(&id);
        Ok(())
    }

    /// Creates a task that waits for its answer.
    pub(crate) async fn open(&self) -> Result<TaskId, BenchError> {
        let call = r#""name":"get_weather","arguments":{"location":"New York"}"#;
        let reply = self.request("tools/call", call).await?;
        let id = reply["result"]["taskId"].as_str().and_then(TaskId::parse);
        let id = id.ok_or_else(|| unexpected("a task", &reply))?;
        self.until(&id, 1, "input_required").await?;
        Ok(id)
    }

    /// One `tasks/get` of a waiting task.
    pub(crate) async fn get(&self, id: &TaskId) -> Result<(), BenchError> {
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

    /// Waits for `times` hints of a task or, if hints were missed, for its status.
    async fn until(&self, id: &TaskId, times: u32, status: &'static str) -> Result<(), BenchError> {
        let mut heard = self.heard.of(id).subscribe();
        for _ in 0..LOOKS {
            let often = heard.wait_for(|heard| *heard >= times);
            if timeout(PATIENCE, often).await.is_ok() {
                return Ok(());
            }
            let get = format!(r#""taskId":"{id}""#);
            let task = self.request("tasks/get", &get).await?;
            if task["result"]["status"] == status {
                return Ok(());
            }
        }
        Err(BenchError::TimedOut {
            what: format!("a task that should become {status}"),
            limit: PATIENCE * LOOKS,
        })
    }

    async fn request(&self, method: &str, params: &str) -> Result<Value, BenchError> {
        let reply = self.exchange(&message(method, params)).await?;
        let reply: Value = serde_json::from_slice(&reply)?;
        match reply.get("result") {
            Some(_) => Ok(reply),
            None => Err(unexpected("a result", &reply)),
        }
    }

    async fn exchange(&self, message: &str) -> Result<Vec<u8>, BenchError> {
        let caller = Principal::new("bench");
        let mut response = self.server.handle(message.as_bytes(), caller).await;
        let reply = response.next().await;
        reply.ok_or_else(|| unexpected("a reply", &"nothing"))
    }
}

fn message(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params},{META}}}}}"#)
}

fn unexpected(expected: &'static str, reply: &dyn std::fmt::Display) -> BenchError {
    BenchError::Unexpected {
        expected,
        reply: reply.to_string(),
    }
}

/// The number of hints for each task.
#[derive(Default)]
struct Heard(Mutex<HashMap<TaskId, watch::Sender<u32>>>);

impl Heard {
    fn of(&self, id: &TaskId) -> watch::Sender<u32> {
        self.0.lock().entry(id.clone()).or_default().clone()
    }

    fn forget(&self, id: &TaskId) {
        self.0.lock().remove(id);
    }
}

async fn listen(mut hints: Receiver<Hint>, heard: Arc<Heard>) {
    loop {
        match hints.recv().await {
            Ok(hint) if hint.own => heard.of(&hint.task).send_modify(|times| *times += 1),
            // A client that missed its hint sends `tasks/get`.
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}
