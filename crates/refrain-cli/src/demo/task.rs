//! A task, as the client sees it: made by a call, looked after, answered.

use super::balancer::{PASSED_OVER, SERVED_BY};
use super::client::{Call, Client, header, meta};
use crate::Failure;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// A request and what came back of the task.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Look {
    pub(super) request: &'static str,
    pub(super) instance: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) passed_over: Vec<String>,
    /// What was sent beside the id.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) answers: Map<String, Value>,
    pub(super) task_id: String,
    /// How the task stands. None: the reply does not say.
    pub(super) status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) asks: Map<String, Value>,
    /// The text of the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<String>,
}

impl Client {
    /// Makes a call that becomes a task.
    pub(super) async fn create_task(&self, call: &Call) -> Result<Look, Failure> {
        let params = json!({"name": call.tool, "arguments": call.arguments});
        self.about("tools/call", call.tool, params).await
    }

    /// Asks how a task stands.
    pub(super) async fn get_task(&self, id: &str) -> Result<Look, Failure> {
        self.about("tasks/get", id, json!({"taskId": id})).await
    }

    /// Answers what a task asks.
    pub(super) async fn update_task(&self, id: &str, answers: Value) -> Result<Look, Failure> {
        let params = json!({"taskId": id, "inputResponses": answers});
        self.about("tasks/update", id, params).await
    }

    async fn about(
        &self,
        method: &'static str,
        name: &str,
        mut params: Value,
    ) -> Result<Look, Failure> {
        let answers = params["inputResponses"].as_object().cloned();
        params["_meta"] = meta();
        let extensions = json!({"io.modelcontextprotocol/tasks": {}});
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"]["extensions"] = extensions;
        let response = self.post(method, name, 1, &params).await?;
        let reply: Value = serde_json::from_slice(response.body()).unwrap_or_default();
        let unexpected = || {
            let text = String::from_utf8_lossy(response.body());
            let start: String = text.chars().take(300).collect();
            format!("{method}: unexpected answer {}: {start}", response.status())
        };
        let instance = header(response.headers(), &SERVED_BY).ok_or_else(unexpected)?;
        let passed_over = header(response.headers(), &PASSED_OVER).unwrap_or_default();
        let result = reply.get("result").ok_or_else(unexpected)?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let task_id = text(&result["taskId"]).or_else(|| text(&params["taskId"]));
        Ok(Look {
            request: method,
            instance: instance.to_owned(),
            passed_over: passed_over
                .split(',')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
            answers: answers.unwrap_or_default(),
            task_id: task_id.ok_or_else(unexpected)?,
            status: text(&result["status"]),
            message: text(&result["statusMessage"]),
            asks: result["inputRequests"]
                .as_object()
                .cloned()
                .unwrap_or_default(),
            text: text(&result["result"]["content"][0]["text"]),
        })
    }
}

impl Look {
    pub(super) fn stands(&self, status: &str) -> bool {
        self.status.as_deref() == Some(status)
    }
}
