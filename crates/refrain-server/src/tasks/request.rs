//! The requests of clients about their tasks: get, update, cancel.
//!
//! Invariant: the task of another principal gets the same error as a task that does not exist.

use crate::auth::{Caller, MissingScopes};
use crate::catalog::complete::Later;
use crate::dispatch::Begin;
use crate::limits::LimitReached;
use crate::tasks::Tasks;
use crate::tasks::sealing::Part;
use refrain_core::Principal;
use refrain_store::{StoreError, StoredStatus, StoredTask, TaskId};
use refrain_wire::{
    AskKind, Capability, Reply, RpcError, TaskInfo, TaskMethod, TaskParams, TaskState,
    check_answer_shape,
};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use std::future::Future;
use std::sync::Arc;

/// For an invalid or unknown id, a task of another principal, and an expired task.
const UNKNOWN: &str = "taskId: there is no such task, or no longer";
pub(super) const UNREACHABLE: &str = "the task store cannot be reached; try again";

/// Answers by key, as they were sent.
type Given = Vec<(String, Box<RawValue>)>;

/// Answers by key, as they are stored.
type Taken = Vec<(String, Vec<u8>)>;

pub(super) enum TaskError {
    Unknown,
    /// The caller lacks a scope that the task's tool needs.
    Forbidden(MissingScopes),
    /// Of an answer.
    Malformed(String),
    Store(StoreError),
    /// The content of the task does not open; the log says why.
    Unreadable,
}

impl From<StoreError> for TaskError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl TaskError {
    pub(super) fn into_rpc(self) -> Result<RpcError, MissingScopes> {
        Ok(match self {
            Self::Unknown => RpcError::invalid_params(UNKNOWN),
            Self::Forbidden(missing) => return Err(missing),
            Self::Malformed(reason) => RpcError::invalid_params(reason),
            Self::Unreadable => RpcError::internal("Internal error"),
            Self::Store(error @ StoreError::Unavailable(_)) => {
                tracing::warn!(%error, "a request about a task failed");
                RpcError::internal(UNREACHABLE)
            }
            Self::Store(error) => {
                tracing::error!(%error, "a request about a task failed");
                RpcError::internal("Internal error")
            }
        })
    }
}

impl Tasks {
    /// Starts to answer a request about a task. It takes the permit of a call.
    pub(crate) fn answer(
        self: &Arc<Self>,
        params: TaskParams<'_>,
        caller: Caller,
    ) -> Result<Later, Begin> {
        if !params.meta.capabilities.tasks {
            let missing = RpcError::missing_capability(&[Capability::Tasks]);
            return Err(Begin::Refused(missing));
        }
        let permit = self.services.limits.calls.acquire(None);
        let permit = permit.map_err(|reached: LimitReached| Begin::Busy(reached.into()))?;
        let (tasks, method) = (self.clone(), params.method);
        let id = TaskId::parse(&params.id);
        let given = params.answers.0.into_iter();
        let given: Given = given
            .map(|(key, answer)| (key.into_owned(), answer.to_owned()))
            .collect();
        Ok(Box::pin(async move {
            let _permit = permit;
            let done = match id {
                None => Err(TaskError::Unknown),
                Some(id) => {
                    let request = tasks.request(method, &id, given, &caller);
                    tasks.in_time(request).await
                }
            };
            done.or_else(|error: TaskError| error.into_rpc().map(Reply::Error))
        }))
    }

    /// Runs an operation within the time limit of a request.
    pub(super) async fn in_time<T>(
        &self,
        operation: impl Future<Output = Result<T, TaskError>>,
    ) -> Result<T, TaskError> {
        let time = self.services.limits.round_time;
        let done = tokio::time::timeout(time, operation).await;
        done.unwrap_or_else(|_| Err(StoreError::timed_out(time).into()))
    }

    async fn request(
        &self,
        method: TaskMethod,
        id: &TaskId,
        given: Given,
        caller: &Caller,
    ) -> Result<Reply, TaskError> {
        let task = self.task(id, caller).await?;
        let owner = &caller.principal;
        let there = match method {
            TaskMethod::Get => {
                let info = self.task_info(task, owner).ok_or(TaskError::Unreadable)?;
                return Ok(Reply::Complete(info.to_detailed()));
            }
            TaskMethod::Update => {
                let answers = self.answers(task, owner, given)?;
                // Without answers to take in, that the task was there a moment ago is enough.
                answers.is_empty() || self.store.answer(id, owner, answers).await?
            }
            TaskMethod::Cancel => self.store.cancel(id, owner).await?,
        };
        if !there {
            return Err(TaskError::Unknown);
        }
        Ok(Reply::complete(json!({})))
    }

    /// A task of the caller, who must still have the scopes of its tool.
    pub(super) async fn task(&self, id: &TaskId, caller: &Caller) -> Result<StoredTask, TaskError> {
        let task = self.store.get(id, &caller.principal).await?;
        let task = task.ok_or(TaskError::Unknown)?;
        let name = self.namespace.tool_of(&task.tool);
        let name = name.ok_or(TaskError::Unknown)?;
        let entries = self.catalog.entries().clone();
        // A tool that was removed needs no scopes.
        let tool = entries.tools.get(name);
        let needed = tool.map_or(&[][..], |tool| &tool.tool.entry.scopes);
        let allowed = self.auth.allow(caller, needed);
        allowed.map_err(TaskError::Forbidden)?;
        Ok(task)
    }

    /// The answers to open asks, in their stored form. One malformed answer rejects all.
    fn answers(
        &self,
        task: StoredTask,
        owner: &Principal,
        given: Given,
    ) -> Result<Taken, TaskError> {
        let id = task.id;
        let most = self.options.journal / 4;
        let mut open = task.asks;
        let mut answers = Vec::new();
        for (key, answer) in given {
            let Some(at) = open.iter().position(|(asked, _)| *asked == key) else {
                continue;
            };
            let (_, ask) = open.swap_remove(at);
            let ask = self.json((&id, owner), Part::Ask(&key), ask);
            let ask = ask.ok_or(TaskError::Unreadable)?;
            let kind = AskKind::of_request(ask.get()).ok_or_else(|| {
                tracing::error!(task = ?id, key, "what a task asks is of no known kind");
                TaskError::Unreadable
            })?;
            check_answer_shape(kind, &answer).map_err(|reason| {
                TaskError::Malformed(format!("inputResponses[{key:?}]: {reason}"))
            })?;
            let size = answer.get().len();
            if size > most {
                return Err(TaskError::Malformed(format!(
                    "inputResponses[{key:?}] has {size} bytes, and the limit is {most}"
                )));
            }
            let answer = self.seal((&id, owner), Part::Answer(&key), answer.get().as_bytes());
            answers.push((key, answer));
        }
        Ok(answers)
    }

    /// A task as clients see it. `None` if its content does not open; the log says why.
    pub(super) fn task_info(&self, task: StoredTask, owner: &Principal) -> Option<TaskInfo> {
        let StoredTask { id, outcome, .. } = task;
        let outcome = || {
            let stored = outcome.or_else(|| {
                tracing::error!(task = ?id, "a task that is over has no outcome");
                None
            })?;
            self.json((&id, owner), Part::Outcome, stored)
        };
        let mut status_message = task.status_message;
        let state = match task.status {
            StoredStatus::Working => TaskState::Working,
            StoredStatus::Cancelled => TaskState::Cancelled,
            StoredStatus::Completed => TaskState::Completed(outcome()?),
            StoredStatus::Failed => {
                let error = outcome()?;
                status_message = message(&error).or(status_message);
                TaskState::Failed(error)
            }
            StoredStatus::InputRequired => {
                let asks = task.asks.into_iter().map(|(key, ask)| {
                    let ask = self.json((&id, owner), Part::Ask(&key), ask)?;
                    Some((key, ask))
                });
                TaskState::InputRequired(asks.collect::<Option<_>>()?)
            }
        };
        Some(TaskInfo {
            id: id.to_string(),
            state,
            status_message,
            created_at: task.created,
            updated_at: task.updated,
            ttl: task.ttl,
            poll_interval: task.poll_interval,
        })
    }

    fn json(
        &self,
        whose: (&TaskId, &Principal),
        part: Part<'_>,
        stored: Vec<u8>,
    ) -> Option<Box<RawValue>> {
        let content = String::from_utf8(self.open(whose, part, stored)?).ok();
        let json = content.and_then(|text| RawValue::from_string(text).ok());
        if json.is_none() {
            tracing::error!(task = ?whose.0, ?part, "what a task holds is not JSON");
        }
        json
    }
}

fn message(error: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Message {
        message: String,
    }
    let error: Message = serde_json::from_str(error.get()).ok()?;
    Some(error.message)
}
