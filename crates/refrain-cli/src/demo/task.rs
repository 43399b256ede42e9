//! A task, as its caller sees it: made by a call, looked after, answered.

use super::balancer::Exchange;
use super::client::{Call, Caller, Script, answer};
use crate::Failure;
use refrain_client::{Outcome, PendingCall};
use serde::Serialize;
use serde_json::{Map, Value};

/// A request about a task, and what came back.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Look {
    pub(super) request: String,
    #[serde(flatten)]
    pub(super) exchange: Exchange,
    /// What was sent beside the id.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) answers: Map<String, Value>,
    pub(super) task_id: String,
    /// The task's status, if the reply has it.
    pub(super) status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) asks: Map<String, Value>,
    /// The text of the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<String>,
}

/// A call that has become a task.
pub(super) struct TaskCall {
    caller: Caller,
    pending: PendingCall,
}

impl TaskCall {
    /// Makes a call that becomes a task.
    pub(super) async fn create(caller: &Caller, call: &Call) -> Result<(Self, Look), Failure> {
        let mut task = Self {
            caller: caller.clone(),
            pending: call.prepare(&caller.client),
        };
        let look = task.send(Map::new()).await?;
        Ok((task, look))
    }

    /// Asks for the task's status.
    pub(super) async fn look(&mut self) -> Result<Look, Failure> {
        self.send(Map::new()).await
    }

    /// Answers what the task asks.
    pub(super) async fn answer(&mut self, script: Script<'_>) -> Result<Look, Failure> {
        let answers = answer(&mut self.pending, script)?;
        self.send(answers).await
    }

    /// Sends the call, its answers or a question for its status: the first request of the round.
    async fn send(&mut self, answers: Map<String, Value>) -> Result<Look, Failure> {
        self.caller.exchanges.take();
        if let Outcome::Pending(pending) = self.caller.client.resume(self.pending.clone()).await? {
            self.pending = pending;
        }
        let id = self
            .pending
            .task_id()
            .ok_or("the call did not become a task")?;
        let first = self.caller.exchanges.take().into_iter().next();
        let exchange = first.ok_or("no instance served the request")?;
        let reply = exchange.json();
        let result = &reply["result"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Ok(Look {
            request: exchange.method.clone(),
            answers,
            task_id: id.to_owned(),
            status: text(&result["status"]),
            message: text(&result["statusMessage"]),
            asks: result["inputRequests"]
                .as_object()
                .cloned()
                .unwrap_or_default(),
            text: text(&result["result"]["content"][0]["text"]),
            exchange,
        })
    }
}

impl Look {
    pub(super) fn has_status(&self, status: &str) -> bool {
        self.status.as_deref() == Some(status)
    }

    pub(super) fn instance(&self) -> &'static str {
        self.exchange.instance
    }
}
