//! Task requests of the drafts that need more than one 2026-07-28 request.
//!
//! | draft | 2026-07-28 |
//! | --- | --- |
//! | `tasks/result` | `tasks/get` until the status is not `working`: at once, then after each change that `subscriptions/listen` reports, and at least every half second |
//! | `tasks/cancel` | `tasks/get`, `tasks/cancel`, `tasks/get`: the reply shows the task; an ended task is an error |
//! | `tasks/input_response` | `tasks/get`, `tasks/update`; after an invalid answer, `tasks/get` until the task asks again |

use super::DraftEndpoint;
use crate::auth::Caller;
use crate::response::{Disposition, MessageResponse, Status};
use crate::timer::within;
use refrain_wire::drafts::DraftExchange;
use refrain_wire::ratified::read_message;
use refrain_wire::{Form, Id, Message, Reply, RpcError, parse};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use std::time::Duration;

/// The longest time between two polls of a task, even if no change is reported.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
const SHUTTING_DOWN: &str = "this instance is shutting down and the task is still working: retry";

/// A task request, translated to 2026-07-28.
struct TaskRequest<'a> {
    id: Id<'a>,
    params: Value,
}

impl<'a> TaskRequest<'a> {
    fn read(message: &'a [u8]) -> Option<Self> {
        let Ok(Message::Request { id, params, .. }) = parse(message) else {
            return None;
        };
        let params = serde_json::from_str(params?.get()).ok()?;
        Some(Self { id, params })
    }

    /// Serializes a request with this method and the same params.
    fn write(&self, method: &str) -> Vec<u8> {
        let (id, params) = (self.id.as_json(), &self.params);
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
            .into_bytes()
    }

    fn write_listen(&self) -> Vec<u8> {
        let (meta, task) = (&self.params["_meta"], &self.params["taskId"]);
        let listen = json!({
            "jsonrpc": "2.0", "id": "changes", "method": "subscriptions/listen",
            "params": {"_meta": meta, "notifications": {"taskIds": [task]}},
        });
        listen.to_string().into_bytes()
    }
}

/// The reply of the server to a translated task request.
struct TaskReply {
    status: Status,
    message: Vec<u8>,
    /// The parsed message.
    json: Value,
}

impl TaskReply {
    fn task_status(&self) -> Option<&str> {
        self.json["result"]["status"].as_str()
    }

    fn is_error(&self) -> bool {
        !self.json["error"].is_null()
    }
}

impl DraftEndpoint {
    /// Handles a request that was translated to 2026-07-28.
    pub(super) async fn handle_translated<'a>(
        &self,
        message: &'a [u8],
        exchange: &DraftExchange,
        caller: Caller,
    ) -> Disposition<'a> {
        if !exchange.waits_for_task() && !exchange.cancels_task() && !exchange.answers_task() {
            let message = read_message(message);
            return self.server.accept(message, caller.into()).await;
        }
        let (this, exchange) = (self.clone(), exchange.clone());
        let message = message.to_vec();
        Disposition::Response(MessageResponse::deferred(&self.server, async move {
            match TaskRequest::read(&message) {
                None => this.server.handle(&message, caller).await,
                Some(request) if exchange.waits_for_task() => this.wait(&request, caller).await,
                Some(request) if exchange.cancels_task() => this.cancel(&request, caller).await,
                Some(request) => this.update(&request, caller).await,
            }
        }))
    }

    async fn send(&self, message: &[u8], caller: &Caller) -> TaskReply {
        let mut response = self.server.handle(message, caller.clone()).await;
        let message = response.next().await.unwrap_or_default();
        TaskReply {
            status: response.status().clone(),
            json: serde_json::from_slice(&message).unwrap_or_default(),
            message,
        }
    }

    fn respond(&self, reply: TaskReply) -> MessageResponse {
        MessageResponse::serialized(&self.server, reply.message).with_status(reply.status)
    }

    /// Waits until the task is no longer working. Holds a permit for waiting clients, not one for calls.
    async fn wait(&self, request: &TaskRequest<'_>, caller: Caller) -> MessageResponse {
        let _permit = match self.waiting.acquire(caller.limit_key()) {
            Ok(permit) => permit,
            Err(reached) => return MessageResponse::busy(&self.server, request.id, reached.into()),
        };
        self.await_task(request, &caller).await
    }

    async fn await_task(&self, request: &TaskRequest<'_>, caller: &Caller) -> MessageResponse {
        let get = request.write("tasks/get");
        let mut changes = None;
        loop {
            let reply = self.send(&get, caller).await;
            let is_working = reply.task_status() == Some("working");
            // Once the client waits, a lack of permits is no reason to end: poll again later.
            let is_busy = matches!(reply.status, Status::Busy(_)) && changes.is_some();
            if !is_working && !is_busy {
                return self.respond(reply);
            }
            if self.server.is_draining() {
                let error = RpcError::internal(SHUTTING_DOWN);
                return MessageResponse::busy(&self.server, request.id, error);
            }
            let changes = match &mut changes {
                Some(changes) => changes,
                empty => {
                    let listen = request.write_listen();
                    empty.insert(self.server.handle(&listen, caller.clone()).await)
                }
            };
            // Without a subscription, polls at the interval.
            if let Some(None) = within(POLL_INTERVAL, changes.next()).await {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
    }

    /// Cancels a task and returns it. An ended task cannot be cancelled.
    async fn cancel(&self, request: &TaskRequest<'_>, caller: Caller) -> MessageResponse {
        let get = request.write("tasks/get");
        let before = self.send(&get, &caller).await;
        match before.task_status() {
            None => return self.respond(before),
            Some(status @ ("completed" | "failed" | "cancelled")) => {
                return self.already_ended(request.id, status);
            }
            Some(_) => {}
        }
        let cancelled = self.send(&request.write("tasks/cancel"), &caller).await;
        if cancelled.is_error() {
            return self.respond(cancelled);
        }
        let after = self.send(&get, &caller).await;
        match after.task_status() {
            // The task ended before it was cancelled.
            Some(status) if status != "cancelled" => self.already_ended(request.id, status),
            _ => self.respond(after),
        }
    }

    fn already_ended(&self, id: Id<'_>, status: &str) -> MessageResponse {
        let error = RpcError::invalid_params(format!(
            "taskId: the task is already {status} and cannot be cancelled"
        ));
        MessageResponse::reply(&self.server, id, "tasks/cancel", Reply::Error(error))
    }

    /// Adds answers to a task. After an invalid answer, the reply waits until the task asks again, since in the drafts a
    /// task with an open ask must not have the status `working`.
    async fn update(&self, request: &TaskRequest<'_>, caller: Caller) -> MessageResponse {
        let before = self.send(&request.write("tasks/get"), &caller).await;
        let updated = self.send(&request.write("tasks/update"), &caller).await;
        let asks = &before.json["result"]["inputRequests"];
        if !updated.is_error()
            && !all_valid(asks, &request.params["inputResponses"])
            && let Ok(_permit) = self.waiting.acquire(caller.limit_key())
        {
            let timeout = self.server.limits().round_time / 2;
            // The answers are acknowledged even after a timeout, or without a permit to wait.
            within(timeout, self.await_task(request, &caller)).await;
        }
        self.respond(updated)
    }
}

/// Whether the content of each answered form matches the schema of its ask.
fn all_valid(asks: &Value, answers: &Value) -> bool {
    let answers = answers.as_object().into_iter().flatten();
    let mut forms = answers.filter_map(|(key, answer)| {
        let schema = to_raw_value(&asks[key]["params"]["requestedSchema"]).ok()?;
        Some((Form::parse(&schema).ok()?, answer.get("content")?))
    });
    forms.all(|(form, content)| form.check(content).is_ok())
}
