//! Tasks as a client sees them: made by a call, looked after, answered and called off.

use super::client::{Call, Client, Reply};
use super::within;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Writes a configuration for instances that look often.
pub(crate) fn eager(files: &super::Files) -> PathBuf {
    files.write("eager.toml", "[tasks]\nlook_ms = 50\n")
}

/// The same, for instances that are killed or paused: others have their tasks soon.
pub(crate) fn brief(files: &super::Files) -> PathBuf {
    let settings = "[tasks]\nlook_ms = 50\nlease_ms = 4000\n";
    files.write("brief.toml", settings)
}

/// Tells a story in which something happens in the middle of what takes so many milliseconds. Where it could not be told,
/// because the machine was so busy that it was over before, that is `None`: it is told again with more time.
pub(crate) async fn in_the_middle(mut story: impl AsyncFnMut(u64) -> Option<()>) {
    for pause_ms in [500, 1000, 2000, 4000, 6000] {
        if story(pause_ms).await.is_some() {
            return;
        }
    }
    panic!("the machine is too busy for anything to be done in the middle of anything");
}

/// What a task has come to, of a reply that tells it.
#[derive(Debug)]
pub(crate) struct Look(pub(crate) Value);

impl Look {
    pub(crate) fn status(&self) -> &str {
        self.0["status"].as_str().expect("a status")
    }

    /// The keys that are open.
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

/// A form that is filled in.
pub(crate) fn form(content: &Value) -> Value {
    json!({"action": "accept", "content": content})
}

impl Client {
    /// Makes a call that becomes a task, and gives its id.
    pub(crate) async fn create(&self, mut call: Call) -> String {
        match self.clone().with_tasks().round(&mut call).await {
            Reply::Task(id) => id,
            other => panic!("{call:?} has become no task: {other:?}"),
        }
    }

    /// The result of a request about a task.
    async fn ask_about(&self, method: &str, id: &str, answers: Option<&Value>) -> Value {
        let message = self.about_task(method, id, answers).await;
        let message = message.unwrap_or_else(|reason| panic!("{method}: {reason}"));
        let result = message.get("result").cloned();
        result.unwrap_or_else(|| panic!("{method}: {message}"))
    }

    /// How a task stands.
    pub(crate) async fn task(&self, id: &str) -> Look {
        Look(self.ask_about("tasks/get", id, None).await)
    }

    /// Looks after a task until it is so.
    pub(crate) async fn task_until(&self, id: &str, so: impl Fn(&Look) -> bool) -> Look {
        let found = async {
            loop {
                let look = self.task(id).await;
                if so(&look) {
                    return look;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        within("a task comes to something", found).await
    }

    /// Looks after a task until it is completed, which it must come to.
    pub(crate) async fn completed(&self, id: &str) -> Look {
        let over = ["completed", "failed", "cancelled"];
        let look = self.task_until(id, |look| over.contains(&look.status()));
        let look = look.await;
        assert_eq!(look.status(), "completed", "{look:?}");
        look
    }

    /// Looks after a task until it asks for all of these, and for nothing else.
    pub(crate) async fn asked(&self, id: &str, keys: &[&str]) -> Look {
        self.task_until(id, |look| look.asked() == keys).await
    }

    /// Answers an ask of a task with a form.
    pub(crate) async fn update(&self, id: &str, key: &str, content: &Value) {
        let answers = json!({key: form(content)});
        self.ask_about("tasks/update", id, Some(&answers)).await;
    }

    pub(crate) async fn cancel(&self, id: &str) {
        self.ask_about("tasks/cancel", id, None).await;
    }
}

/// The store that several instances share.
pub(crate) fn shared(files: &super::Files) -> PathBuf {
    files.path("shared.db")
}

/// What `refrain tasks show --json` says of a task.
pub(crate) fn shown(store: &Path, id: &str) -> Value {
    let store = super::sqlite(store);
    let said = super::refrain(["tasks", "show", id, "--json", "--store", &store]);
    assert!(said.ok, "{said:?}");
    serde_json::from_str(&said.out).expect("JSON")
}

/// Waits until the same says that a task is completed.
pub(crate) async fn completed(store: &Path, id: &str) {
    let completed = async {
        while shown(store, id)["status"] != "completed" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("a task is completed", completed).await;
}
