//! A call that has become a task, as its caller sees it.

use super::balancer::Exchange;
use super::client::{Dialogue, Script, object};
use crate::Failure;
use serde::Serialize;
use serde_json::{Map, Value};

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Look {
    pub(super) request: String,
    #[serde(flatten)]
    pub(super) exchange: Exchange,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) answers: Map<String, Value>,
    pub(super) task_id: String,
    /// The task's status, if the reply has it.
    pub(super) status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) asks: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<String>,
}

impl Dialogue {
    /// Makes the call, asks for the task's status or, with a script, answers the task's asks.
    pub(super) async fn look(&mut self, script: Script<'_>) -> Result<Look, Failure> {
        let answers = match script {
            [] => Map::new(),
            script => self.answer(script)?,
        };
        let (reply, exchanges) = self.send().await?;
        reply?;
        let id = self
            .pending
            .task_id()
            .ok_or("the call did not become a task")?;
        let first = exchanges.into_iter().next();
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
            asks: object(&result["inputRequests"]),
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
