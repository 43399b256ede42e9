//! The drafts' requests about tasks that are more than one request of 2026-07-28.
//!
//! | draft | ratified |
//! | --- | --- |
//! | `tasks/result` | `tasks/get` until the task no longer works, with `subscriptions/listen` as a hint when to look |
//! | `tasks/cancel` | `tasks/get`, `tasks/cancel`, `tasks/get`: the reply shows the task, and a finished one is an error |
//! | `tasks/input_response` | `tasks/get`, `tasks/update`; after an invalid answer, `tasks/get` until it is asked again |

use super::Drafted;
use crate::auth::Caller;
use crate::response::{Handled, Response, Status};
use crate::timer::within;
use refrain_wire::drafts::DraftExchange;
use refrain_wire::ratified::read_message;
use refrain_wire::{Form, Id, Message, Reply, RpcError, parse};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use std::time::Duration;

/// How often a task is looked at, whatever hints there are.
const LOOK: Duration = Duration::from_millis(500);
const STOPPING: &str = "this instance is stopping, and the task still works; ask again";

/// A request about a task, as the ratified revision has it.
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

    /// The request of this method with the same params.
    fn write(&self, method: &str) -> Vec<u8> {
        let (id, params) = (self.id.as_json(), &self.params);
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
            .into_bytes()
    }

    /// A subscription to the changes of the task.
    fn write_listen(&self) -> Vec<u8> {
        let (meta, task) = (&self.params["_meta"], &self.params["taskId"]);
        let listen = json!({
            "jsonrpc": "2.0", "id": "changes", "method": "subscriptions/listen",
            "params": {"_meta": meta, "notifications": {"taskIds": [task]}},
        });
        listen.to_string().into_bytes()
    }
}

/// The reply to a request about a task.
struct Replied {
    status: Status,
    message: Vec<u8>,
    content: Value,
}

impl Replied {
    /// The status of the task, if the reply shows one.
    fn task_status(&self) -> Option<&str> {
        self.content["result"]["status"].as_str()
    }

    fn is_error(&self) -> bool {
        !self.content["error"].is_null()
    }
}

impl Drafted {
    /// Carries out a request that was translated.
    pub(super) async fn carry_out<'a>(
        &self,
        message: &'a [u8],
        exchange: &DraftExchange,
        caller: Caller,
    ) -> Handled<'a> {
        if !exchange.waits_for_task() && !exchange.shows_task() && !exchange.settles_task() {
            let message = read_message(message);
            return self.server.accept(message, caller.into()).await;
        }
        let (this, exchange) = (self.clone(), exchange.clone());
        let message = message.to_vec();
        Handled::Response(Response::deferred(&self.server, async move {
            match TaskRequest::read(&message) {
                None => this.server.handle(&message, caller).await,
                Some(request) if exchange.waits_for_task() => this.wait(&request, caller).await,
                Some(request) if exchange.shows_task() => this.cancel(&request, caller).await,
                Some(request) => this.update(&request, caller).await,
            }
        }))
    }

    async fn call(&self, message: &[u8], caller: &Caller) -> Replied {
        let mut response = self.server.handle(message, caller.clone()).await;
        let message = response.next().await.unwrap_or_default();
        Replied {
            status: response.status().clone(),
            content: serde_json::from_slice(&message).unwrap_or_default(),
            message,
        }
    }

    fn written(&self, replied: Replied) -> Response {
        Response::written(&self.server, replied.message).with_status(replied.status)
    }

    /// Waits until the task no longer works. That takes a permit of its own, and not one of a call.
    async fn wait(&self, request: &TaskRequest<'_>, caller: Caller) -> Response {
        let _permit = match self.waiting.acquire(None) {
            Ok(permit) => permit,
            Err(reached) => return Response::busy(&self.server, request.id, reached.into()),
        };
        self.at_rest(request, &caller).await
    }

    async fn at_rest(&self, request: &TaskRequest<'_>, caller: &Caller) -> Response {
        let get = request.write("tasks/get");
        let mut changes = None;
        loop {
            let replied = self.call(&get, caller).await;
            let is_working = replied.task_status() == Some("working");
            // Without a permit for the call now: it is looked at again later.
            let is_busy = replied.status == Status::Busy && changes.is_some();
            if !is_working && !is_busy {
                return self.written(replied);
            }
            if self.server.is_draining() {
                let error = RpcError::internal(STOPPING);
                return Response::busy(&self.server, request.id, error);
            }
            let changes = match &mut changes {
                Some(changes) => changes,
                none => {
                    let listen = request.write_listen();
                    none.insert(self.server.handle(&listen, caller.clone()).await)
                }
            };
            if let Some(None) = within(LOOK, changes.next()).await {
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// Cancels a task and shows it. A task that has ended cannot be cancelled.
    async fn cancel(&self, request: &TaskRequest<'_>, caller: Caller) -> Response {
        let get = request.write("tasks/get");
        let before = self.call(&get, &caller).await;
        match before.task_status() {
            None => return self.written(before),
            Some(status @ ("completed" | "failed" | "cancelled")) => {
                return self.over(request.id, status);
            }
            Some(_) => {}
        }
        let cancelled = self.call(&request.write("tasks/cancel"), &caller).await;
        if cancelled.is_error() {
            return self.written(cancelled);
        }
        let after = self.call(&get, &caller).await;
        match after.task_status() {
            // It ended by itself meanwhile.
            Some(status) if status != "cancelled" => self.over(request.id, status),
            _ => self.written(after),
        }
    }

    fn over(&self, id: Id<'_>, status: &str) -> Response {
        let error = RpcError::invalid_params(format!(
            "taskId: the task is {status} already, and cannot be called off"
        ));
        Response::reply(&self.server, id, "tasks/cancel", Reply::Error(error))
    }

    /// Takes in answers. If one of them is invalid, the reply waits until it is asked again: in a draft a task that was not
    /// answered does not work.
    async fn update(&self, request: &TaskRequest<'_>, caller: Caller) -> Response {
        let before = self.call(&request.write("tasks/get"), &caller).await;
        let updated = self.call(&request.write("tasks/update"), &caller).await;
        let asks = &before.content["result"]["inputRequests"];
        if !updated.is_error() && !all_valid(asks, &request.params["inputResponses"]) {
            let time = self.server.limits().round_time / 2;
            // It is acknowledged in any case.
            within(time, self.at_rest(request, &caller)).await;
        }
        self.written(updated)
    }
}

/// Whether each accepted form among the answers matches the schema that was asked for.
fn all_valid(asks: &Value, answers: &Value) -> bool {
    let answers = answers.as_object().into_iter().flatten();
    let mut forms = answers.filter_map(|(key, answer)| {
        let schema = to_raw_value(&asks[key]["params"]["requestedSchema"]).ok()?;
        Some((Form::parse(&schema).ok()?, answer.get("content")?))
    });
    forms.all(|(form, content)| form.check(content).is_ok())
}
