//! Task requests in the drafts.

use super::Translator;
use crate::transport::{LinkExchange, LinkResponse, LinkResult, OutgoingMessage};
use refrain_wire::TaskMethod;
use refrain_wire::client::{ReadError, RpcFailure, Task, TaskStatus, check_no_asks};
use refrain_wire::drafts::{TASK_RESULT, join_task};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use std::collections::VecDeque;
use std::sync::Arc;

/// The maximum number of sent answers for which a later rejection is recognised.
const SENT_ANSWERS_MAX: usize = 1024;

impl Translator {
    pub(super) async fn get_task(
        self: &Arc<Self>,
        request: &OutgoingMessage,
        id: &str,
    ) -> LinkResult<LinkResponse> {
        let task = match self.request(request).await?.outcome {
            Ok(task) => self.with_outcome(request, task).await?,
            Err(failure) => Err(failure),
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
        } else if let Some(failure) = self.rejected_answer(id) {
            return Ok(response(Err(failure)));
        }
        Ok(response(task))
    }

    /// Adds the result of a task, which the draft returns in a separate request.
    async fn with_outcome(
        self: &Arc<Self>,
        request: &OutgoingMessage,
        mut task: Box<RawValue>,
    ) -> LinkResult<Result<Box<RawValue>, RpcFailure>> {
        let mut status = status(&task)?;
        if matches!(status.as_str(), "working" | "cancelled") {
            return Ok(Ok(task));
        }
        let outcome = self.with_new_id(request, Some(TASK_RESULT));
        let failure = match self.request(&outcome).await?.outcome {
            Ok(outcome) => return Ok(Ok(join_task(&task, &outcome))),
            Err(failure) => failure,
        };
        if status != "failed" {
            // The task may have ended meanwhile.
            let again = self.with_new_id(request, None);
            task = match self.request(&again).await?.outcome {
                Ok(task) => task,
                Err(failure) => return Ok(Err(failure)),
            };
            status = self::status(&task)?;
        }
        match status.as_str() {
            "cancelled" => Ok(Ok(task)),
            "failed" => {
                let error = to_raw_value(&json!({"error": failure})).map_err(invalid_task)?;
                Ok(Ok(join_task(&task, &error)))
            }
            _ => Ok(Err(failure)),
        }
    }

    /// Cancels a task. Succeeds for an ended task, even if the server rejects that.
    pub(super) async fn cancel_task(
        self: &Arc<Self>,
        request: &OutgoingMessage,
    ) -> LinkResult<LinkResponse> {
        let cancelled = self.request(request).await?;
        if cancelled.outcome.is_ok() {
            return Ok(cancelled);
        }
        let get = self.with_new_id(request, Some(TaskMethod::Get.as_str()));
        match self.request(&get).await?.outcome {
            Err(failure) => Ok(response(Err(failure))),
            Ok(task) => match status(&task)?.as_str() {
                "completed" | "failed" | "cancelled" => Ok(acknowledged()),
                _ => Ok(cancelled),
            },
        }
    }

    pub(super) async fn update_task(
        self: &Arc<Self>,
        request: &OutgoingMessage,
        id: &str,
    ) -> LinkResult<LinkResponse> {
        if !self.translate(request)?.is_silent {
            return self.request(request).await;
        }
        let mut exchange = self.open_in_session(request).await?;
        if exchange.is_done() {
            return Ok(acknowledged());
        }
        if self.link.pipe().is_none() {
            return exchange.response().await;
        }
        let mut sent_answers = self.sent_answers.lock();
        if sent_answers.len() >= SENT_ANSWERS_MAX {
            sent_answers.pop_front();
        }
        if let Some(exchange) = exchange.inner {
            sent_answers.push_back((id.to_owned(), exchange));
        }
        Ok(acknowledged())
    }

    /// The error response to an answer that was sent before, if it has arrived.
    fn rejected_answer(&self, id: &str) -> Option<RpcFailure> {
        let mut sent_answers = self.sent_answers.lock();
        sent_answers
            .iter_mut()
            .find_map(|(task, exchange)| match exchange {
                LinkExchange::Pipe(exchange) if task == id => exchange.failure(),
                _ => None,
            })
    }

    fn forget_answers(&self, id: &str) {
        let mut sent_answers = self.sent_answers.lock();
        let all = std::mem::take(&mut *sent_answers).into_iter();
        let (removed, rest): (VecDeque<_>, VecDeque<_>) = all.partition(|(task, _)| task == id);
        *sent_answers = rest;
        // Dropping an exchange takes locks, so this one is released first.
        drop(sent_answers);
        drop(removed);
    }
}

fn response(outcome: Result<Box<RawValue>, RpcFailure>) -> LinkResponse {
    LinkResponse {
        outcome,
        status: None,
        has_request_id: true,
    }
}

fn acknowledged() -> LinkResponse {
    response(Ok(
        RawValue::from_string("{}".to_owned()).expect("an empty object is valid JSON")
    ))
}

fn status(task: &RawValue) -> Result<String, ReadError> {
    #[derive(Deserialize)]
    struct TaskHead {
        status: String,
    }
    let read: TaskHead = serde_json::from_str(task.get()).map_err(invalid_task)?;
    Ok(read.status)
}

fn invalid_task(error: serde_json::Error) -> ReadError {
    ReadError::Result {
        what: "invalid task",
        error,
    }
}
