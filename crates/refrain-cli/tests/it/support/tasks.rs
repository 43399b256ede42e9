//! Tasks from the view of a client: created, polled, answered and cancelled.

use super::client::{Call, Client, Reply};
use super::within;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Writes a configuration for instances that poll the store often.
pub(crate) fn fast_poll_config(files: &super::Files) -> PathBuf {
    files.write("eager.toml", "[tasks]\nlook_ms = 50\n")
}

/// Writes such a configuration with a short lease, for instances that are killed or paused.
pub(crate) fn short_lease_config(files: &super::Files) -> PathBuf {
    let settings = "[tasks]\nlook_ms = 50\nlease_ms = 4000\n";
    files.write("brief.toml", settings)
}

/// Runs a test in which something must happen during a pause of the given milliseconds. `None` means that the pause was too
/// short on a busy machine: the test is repeated with a longer one.
pub(crate) async fn in_the_middle(mut test: impl AsyncFnMut(u64) -> Option<()>) {
    for pause_ms in [500, 1000, 2000, 4000, 6000] {
        if test(pause_ms).await.is_some() {
            return;
        }
    }
    panic!("the machine is too busy for this test");
}

/// A task in a reply.
#[derive(Debug)]
pub(crate) struct TaskView(pub(crate) Value);

impl TaskView {
    pub(crate) fn status(&self) -> &str {
        self.0["status"].as_str().expect("a status")
    }

    /// The keys of the open asks.
    pub(crate) fn asked(&self) -> Vec<&str> {
        let asks = self.0["inputRequests"].as_object().into_iter().flatten();
        asks.map(|(key, _)| key.as_str()).collect()
    }

    /// The text of the result.
    pub(crate) fn text(&self) -> &str {
        let text = self.0["result"]["content"][0]["text"].as_str();
        text.unwrap_or_else(|| panic!("no result: {self:?}"))
    }
}

/// An accepted form.
pub(crate) fn form(content: &Value) -> Value {
    json!({"action": "accept", "content": content})
}

impl Client {
    /// Makes a call that becomes a task, and returns its id.
    pub(crate) async fn create(&self, mut call: Call) -> String {
        match self.clone().with_tasks().round(&mut call).await {
            Reply::Task(id) => id,
            other => panic!("{call:?} did not become a task: {other:?}"),
        }
    }

    /// The result of a request about a task.
    async fn ask_about(&self, method: &str, id: &str, answers: Option<&Value>) -> Value {
        let message = self.about_task(method, id, answers).await;
        let message = message.unwrap_or_else(|reason| panic!("{method}: {reason}"));
        let result = message.get("result").cloned();
        result.unwrap_or_else(|| panic!("{method}: {message}"))
    }

    /// The current state of a task.
    pub(crate) async fn task(&self, id: &str) -> TaskView {
        TaskView(self.ask_about("tasks/get", id, None).await)
    }

    /// Polls a task until it fulfils a condition.
    pub(crate) async fn task_until(
        &self,
        id: &str,
        is_reached: impl Fn(&TaskView) -> bool,
    ) -> TaskView {
        let found = async {
            loop {
                let look = self.task(id).await;
                if is_reached(&look) {
                    return look;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        within("the expected state of a task", found).await
    }

    /// Polls a task until it ends.
    pub(crate) async fn ended(&self, id: &str) -> TaskView {
        let ended = ["completed", "failed", "cancelled"];
        self.task_until(id, |look| ended.contains(&look.status()))
            .await
    }

    /// Polls a task until it is completed. It must not fail.
    pub(crate) async fn completed(&self, id: &str) -> TaskView {
        let look = self.ended(id).await;
        assert_eq!(look.status(), "completed", "{look:?}");
        look
    }

    /// Polls a task until its open asks are these.
    pub(crate) async fn asked(&self, id: &str, keys: &[&str]) -> TaskView {
        self.task_until(id, |look| look.asked() == keys).await
    }

    /// Answers an ask of a task with the content of a form.
    pub(crate) async fn update(&self, id: &str, key: &str, content: &Value) {
        let answers = json!({key: form(content)});
        self.ask_about("tasks/update", id, Some(&answers)).await;
    }

    pub(crate) async fn cancel(&self, id: &str) {
        self.ask_about("tasks/cancel", id, None).await;
    }
}

/// The file of a store that several instances share.
pub(crate) fn shared_store(files: &super::Files) -> PathBuf {
    files.path("shared.db")
}

/// The output of `refrain store tasks show --json`.
pub(crate) fn show_task(store: &Path, id: &str) -> Value {
    let store = super::sqlite(store);
    let output = super::refrain(["store", "tasks", "show", id, "--json", "--store", &store]);
    assert!(output.ok, "{output:?}");
    serde_json::from_str(&output.out).expect("valid JSON")
}

/// Waits until `refrain store tasks show` reports a task as completed.
pub(crate) async fn wait_until_completed(store: &Path, id: &str) {
    let completed = async {
        while show_task(store, id)["status"] != "completed" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("the completion of a task", completed).await;
}
