//! Tasks of the drafts.

use super::Translator;
use crate::transport::{Exchange, LinkResult, Outgoing, Response};
use refrain_wire::TaskMethod;
use refrain_wire::client::{ReadError, RpcFailure, Task, TaskStatus, check_no_asks};
use refrain_wire::drafts::{TASK_RESULT, join_task};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use std::collections::VecDeque;
use std::sync::Arc;

/// How many answers may wait for a refusal.
const ANSWERED_MAX: usize = 1024;

impl Translator {
    pub(super) async fn get_task(
        self: &Arc<Self>,
        request: &Outgoing,
        id: &str,
    ) -> LinkResult<Response> {
        let task = match self.ask(request).await?.outcome {
            Ok(task) => self.with_outcome(request, task).await?,
            Err(refusal) => Err(refusal),
        };
        let Ok(raw) = &task else {
            return Ok(response(task));
        };
        let read = Task::read(raw)?;
        if let TaskStatus::Completed(result) = &read.status {
            check_no_asks(result)?;
        }
        if read.status.is_over() {
            self.forget_answers(id);
        } else if let Some(refusal) = self.refused_answer(id) {
            return Ok(response(Err(refusal)));
        }
        Ok(response(task))
    }

    /// Adds the result of a task, which is the result of another request.
    async fn with_outcome(
        self: &Arc<Self>,
        request: &Outgoing,
        mut task: Box<RawValue>,
    ) -> LinkResult<Result<Box<RawValue>, RpcFailure>> {
        let mut status = status(&task)?;
        if matches!(status.as_str(), "working" | "cancelled") {
            return Ok(Ok(task));
        }
        let outcome = self.again(request, Some(TASK_RESULT));
        let refusal = match self.ask(&outcome).await?.outcome {
            Ok(outcome) => return Ok(Ok(join_task(&task, &outcome))),
            Err(refusal) => refusal,
        };
        if status != "failed" {
            // The task may have ended since.
            let again = self.again(request, None);
            task = match self.ask(&again).await?.outcome {
                Ok(task) => task,
                Err(refusal) => return Ok(Err(refusal)),
            };
            status = self::status(&task)?;
        }
        match status.as_str() {
            "cancelled" => Ok(Ok(task)),
            "failed" => {
                let RpcFailure {
                    code,
                    message,
                    data,
                } = refusal;
                let error = json!({"error": {"code": code, "message": message, "data": data}});
                let error = to_raw_value(&error).map_err(unreadable)?;
                Ok(Ok(join_task(&task, &error)))
            }
            _ => Ok(Err(refusal)),
        }
    }

    /// Cancels a task. Servers of a draft may refuse that for a task that has ended.
    pub(super) async fn cancel_task(self: &Arc<Self>, request: &Outgoing) -> LinkResult<Response> {
        let cancelled = self.ask(request).await?;
        if cancelled.outcome.is_ok() {
            return Ok(cancelled);
        }
        let get = self.again(request, Some(TaskMethod::Get.as_str()));
        match self.ask(&get).await?.outcome {
            Err(refusal) => Ok(response(Err(refusal))),
            Ok(task) => match status(&task)?.as_str() {
                "completed" | "failed" | "cancelled" => Ok(acknowledged()),
                _ => Ok(cancelled),
            },
        }
    }

    pub(super) async fn update_task(
        self: &Arc<Self>,
        request: &Outgoing,
        id: &str,
    ) -> LinkResult<Response> {
        if !self.translate(request)?.is_silent {
            return self.ask(request).await;
        }
        let mut exchange = self.open_in_session(request).await?;
        if exchange.is_done() {
            return Ok(acknowledged());
        }
        if self.link.pipe().is_none() {
            return exchange.response().await;
        }
        let mut answered = self.answered.lock();
        if answered.len() >= ANSWERED_MAX {
            answered.pop_front();
        }
        if let Some(exchange) = exchange.inner {
            answered.push_back((id.to_owned(), exchange));
        }
        Ok(acknowledged())
    }

    /// The refusal of an answer that was sent before, if it has come by now.
    fn refused_answer(&self, id: &str) -> Option<RpcFailure> {
        let mut answered = self.answered.lock();
        answered
            .iter_mut()
            .find_map(|(task, exchange)| match exchange {
                Exchange::Pipe(exchange) if task == id => exchange.refusal(),
                _ => None,
            })
    }

    fn forget_answers(&self, id: &str) {
        let mut answered = self.answered.lock();
        let all = std::mem::take(&mut *answered).into_iter();
        let (gone, kept): (VecDeque<_>, VecDeque<_>) = all.partition(|(task, _)| task == id);
        *answered = kept;
        drop(answered);
        // Exchanges take locks when they are dropped.
        drop(gone);
    }
}

fn response(outcome: Result<Box<RawValue>, RpcFailure>) -> Response {
    Response {
        outcome,
        status: None,
        names_request: true,
    }
}

fn acknowledged() -> Response {
    response(Ok(
        RawValue::from_string("{}".to_owned()).expect("an object is JSON")
    ))
}

fn status(task: &RawValue) -> Result<String, ReadError> {
    #[derive(Deserialize)]
    struct Standing {
        status: String,
    }
    let read: Standing = serde_json::from_str(task.get()).map_err(unreadable)?;
    Ok(read.status)
}

fn unreadable(error: serde_json::Error) -> ReadError {
    ReadError::Result {
        what: "the task cannot be read",
        error,
    }
}
