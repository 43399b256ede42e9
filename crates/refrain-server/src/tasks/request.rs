//! Client requests for tasks: get, update, cancel.
//!
//! Invariant: a task of another principal causes the same error as a task that does not exist.

use crate::auth::{Caller, MissingScopes};
use crate::catalog::complete::PendingReply;
use crate::dispatch::Dispatch;
use crate::limits::{LARGE_WORK, LimitReached};
use crate::tasks::Tasks;
use crate::tasks::sealing::TaskPart;
use crate::timer::within;
use bytes::Bytes;
use refrain_core::{Principal, limited_event};
use refrain_store::{StoreError, StoredStatus, StoredTask, TaskId};
use refrain_wire::{
    AskKind, Capability, Reply, ResultBody, RpcError, TaskInfo, TaskMethod, TaskParams, TaskState,
    check_answer_shape,
};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

/// The error for invalid and unknown ids, tasks of other principals and expired tasks.
const UNKNOWN_TASK: &str =
    "unknown task: it does not exist, has expired, or belongs to another caller";
pub(super) const STORE_UNAVAILABLE: &str = "the task store is unavailable; try again";

type SentAnswers = Vec<(String, Box<RawValue>)>;
type StoredAnswers = Vec<(String, Vec<u8>)>;

/// An open ask in its stored form, and the sent answer.
struct AnsweredAsk {
    key: String,
    ask: Bytes,
    answer: Box<RawValue>,
}

pub(super) enum TaskError {
    Unknown,
    /// The caller lacks a scope that the task's tool needs.
    Forbidden(MissingScopes),
    Malformed(String),
    Store(StoreError),
    /// The stored task cannot be decoded. The reason was logged.
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
            Self::Unknown => RpcError::invalid_params(UNKNOWN_TASK),
            Self::Forbidden(missing) => return Err(missing),
            Self::Malformed(reason) => RpcError::invalid_params(reason),
            Self::Unreadable => RpcError::internal("Internal error"),
            Self::Store(error) => {
                match &error {
                    StoreError::Quota(_) => {}
                    StoreError::Unavailable(_) => {
                        limited_event!(WARN, %error, "task request failed");
                    }
                    error => {
                        limited_event!(ERROR, %error, "task request failed");
                    }
                }
                store_error(&error)
            }
        })
    }
}

/// The error for the client. It gives the details of a reached quota only.
pub(crate) fn store_error(error: &StoreError) -> RpcError {
    match error {
        StoreError::Quota(reached) => RpcError::internal(reached.to_string()),
        StoreError::Unavailable(_) => RpcError::internal(STORE_UNAVAILABLE),
        _ => RpcError::internal("Internal error"),
    }
}

impl Tasks {
    /// Starts to handle a request. It counts as a call in flight.
    pub(crate) fn answer(
        self: &Arc<Self>,
        params: &TaskParams<'_>,
        caller: Caller,
    ) -> Result<PendingReply, Dispatch> {
        if !params.meta.capabilities.tasks {
            let missing = RpcError::missing_capability(&[Capability::Tasks]);
            return Err(Dispatch::Invalid(missing));
        }
        let permit = self.services.limits.calls.acquire(caller.limit_key());
        let permit = permit.map_err(|reached: LimitReached| Dispatch::Busy(reached.into()))?;
        let (tasks, method) = (self.clone(), params.method);
        let id = TaskId::parse(&params.id);
        let sent = params.answers.iter();
        let sent: SentAnswers = sent
            .map(|(key, answer)| (key.to_string(), (*answer).to_owned()))
            .collect();
        Ok(Box::pin(async move {
            let _permit = permit;
            let done = match id {
                None => Err(TaskError::Unknown),
                Some(id) => {
                    let request = tasks.request(method, &id, sent, &caller);
                    tasks.in_time(request).await
                }
            };
            done.or_else(|error: TaskError| error.into_rpc().map(Reply::Error))
        }))
    }

    /// Runs an operation with the time limit of a round.
    pub(super) async fn in_time<T>(
        &self,
        operation: impl Future<Output = Result<T, TaskError>>,
    ) -> Result<T, TaskError> {
        let time = self.services.limits.round_time;
        let done = within(time, operation).await;
        done.unwrap_or_else(|| Err(StoreError::timed_out(time).into()))
    }

    async fn request(
        self: &Arc<Self>,
        method: TaskMethod,
        id: &TaskId,
        sent: SentAnswers,
        caller: &Caller,
    ) -> Result<Reply, TaskError> {
        // Held until the reply is made, because decoding a large task takes time.
        let _permit = self.queue.acquire(caller.limit_key()).await;
        let owner = &caller.principal;
        let exists = match method {
            TaskMethod::Get => {
                let task = self.task(id, caller).await?;
                let body = self.detailed(task, caller).await;
                return body.map(Reply::Complete).ok_or(TaskError::Unreadable);
            }
            TaskMethod::Update => {
                let keys: Vec<&str> = sent.iter().map(|(key, _)| key.as_str()).collect();
                let open = self.open_asks(id, caller, &keys).await?;
                let answers = self.answers(id, caller, open, sent).await?;
                // Without valid answers there is nothing to write, and the task existed a moment ago.
                answers.is_empty() || self.store.answer(id, owner, answers).await?
            }
            TaskMethod::Cancel => {
                self.open_asks(id, caller, &[]).await?;
                let exists = self.store.cancel(id, owner).await?;
                self.webhooks.task_ended();
                exists
            }
        };
        if !exists {
            return Err(TaskError::Unknown);
        }
        Ok(Reply::complete(json!({})))
    }

    /// A task of the caller, if the caller still has the scopes of its tool. Needs a permit of the queue.
    pub(super) async fn task(&self, id: &TaskId, caller: &Caller) -> Result<StoredTask, TaskError> {
        let task = self.store.get(id, &caller.principal).await?;
        let task = task.ok_or(TaskError::Unknown)?;
        self.check_scopes(&task.tool, caller)?;
        Ok(task)
    }

    /// As [`task`](Self::task), but reads only the open asks with these keys, and no other content of the task.
    pub(super) async fn open_asks(
        &self,
        id: &TaskId,
        caller: &Caller,
        keys: &[&str],
    ) -> Result<Vec<(String, Bytes)>, TaskError> {
        let found = self.store.open_asks(id, &caller.principal, keys).await?;
        let found = found.ok_or(TaskError::Unknown)?;
        self.check_scopes(&found.tool, caller)?;
        Ok(found.asks)
    }

    /// Checks that the caller still has the scopes of a task's tool, given by its stored name.
    fn check_scopes(&self, tool: &str, caller: &Caller) -> Result<(), TaskError> {
        let name = self.namespace.tool_of(tool);
        let name = name.ok_or(TaskError::Unknown)?;
        let entries = self.catalog.entries().clone();
        // A removed tool requires no scopes.
        let tool = entries.tools.get(name);
        let needed = tool.map_or(&[][..], |tool| &tool.tool.entry.scopes);
        let allowed = self.auth.allow(caller, needed);
        allowed.map_err(TaskError::Forbidden)
    }

    /// The answers to open asks, in their stored form. Large asks and answers are checked when it is the caller's turn.
    async fn answers(
        self: &Arc<Self>,
        id: &TaskId,
        caller: &Caller,
        open: Vec<(String, Bytes)>,
        sent: SentAnswers,
    ) -> Result<StoredAnswers, TaskError> {
        let mut open: HashMap<String, Bytes> = open.into_iter().collect();
        let answered = sent.into_iter().filter_map(|(key, answer)| {
            let ask = open.remove(&key)?;
            Some(AnsweredAsk { key, ask, answer })
        });
        let answered: Vec<AnsweredAsk> = answered.collect();
        let sizes = answered.iter();
        let sizes = sizes.map(|answered| answered.ask.len() + answered.answer.get().len());
        if sizes.sum::<usize>() <= LARGE_WORK {
            return self.check_answers((id, &caller.principal), answered);
        }
        let (tasks, id, owner) = (self.clone(), id.clone(), caller.principal.clone());
        let queue = self.services.limits.large_work.clone();
        let check = move || tasks.check_answers((&id, &owner), answered);
        queue.run(caller.limit_key(), check).await
    }

    /// Checks answers and converts them to their stored form. One malformed answer rejects all of them.
    fn check_answers(
        &self,
        owned: (&TaskId, &Principal),
        answered: Vec<AnsweredAsk>,
    ) -> Result<StoredAnswers, TaskError> {
        let limit = self.options.journal / 4;
        let mut answers = Vec::with_capacity(answered.len());
        for AnsweredAsk { key, ask, answer } in answered {
            let ask = self.open_json(owned, TaskPart::Ask(&key), ask);
            let ask = ask.ok_or(TaskError::Unreadable)?;
            let kind = AskKind::of_request(ask.get()).ok_or_else(|| {
                limited_event!(ERROR, task = ?owned.0, key, "stored ask has an unknown kind");
                TaskError::Unreadable
            })?;
            check_answer_shape(kind, &answer).map_err(|reason| {
                TaskError::Malformed(format!("inputResponses[{key:?}]: {reason}"))
            })?;
            let size = answer.get().len();
            if size > limit {
                return Err(TaskError::Malformed(format!(
                    "inputResponses[{key:?}] has {size} bytes, but the limit is {limit}"
                )));
            }
            let answer = self.seal(owned, TaskPart::Answer(&key), answer.get().as_bytes());
            answers.push((key, answer));
        }
        Ok(answers)
    }

    /// The public state of a task as JSON; a large one is made when it is the caller's turn. `None` if it cannot be decoded;
    /// the reason is logged.
    pub(super) async fn detailed(
        self: &Arc<Self>,
        task: StoredTask,
        caller: &Caller,
    ) -> Option<ResultBody> {
        let asks = task.asks.iter().map(|(_, ask)| ask.len());
        let size = task.outcome.as_ref().map_or(0, Bytes::len) + asks.sum::<usize>();
        if size <= LARGE_WORK {
            let info = self.task_info(task, &caller.principal)?;
            return Some(info.to_detailed());
        }
        let (tasks, owner) = (self.clone(), caller.principal.clone());
        let queue = self.services.limits.large_work.clone();
        let read = move || Some(tasks.task_info(task, &owner)?.to_detailed());
        queue.run(caller.limit_key(), read).await
    }

    /// The public state of a task. `None` if it cannot be decoded; the reason is logged.
    pub(super) fn task_info(&self, task: StoredTask, owner: &Principal) -> Option<TaskInfo> {
        let StoredTask { id, outcome, .. } = task;
        let outcome = || {
            let stored = outcome.or_else(|| {
                limited_event!(ERROR, task = ?id, "ended task has no outcome");
                None
            })?;
            self.open_json((&id, owner), TaskPart::Outcome, stored)
        };
        let mut status_message = task.status_message;
        let state = match task.status {
            StoredStatus::Working => TaskState::Working,
            StoredStatus::Cancelled => TaskState::Cancelled,
            StoredStatus::Completed => TaskState::Completed(outcome()?),
            StoredStatus::Failed => {
                let error = outcome()?;
                status_message = error_message(&error).or(status_message);
                TaskState::Failed(error)
            }
            StoredStatus::InputRequired => {
                let asks = task.asks.into_iter().map(|(key, ask)| {
                    let ask = self.open_json((&id, owner), TaskPart::Ask(&key), ask)?;
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

    fn open_json(
        &self,
        owned: (&TaskId, &Principal),
        part: TaskPart<'_>,
        stored: Bytes,
    ) -> Option<Box<RawValue>> {
        let content = String::from_utf8(self.open(owned, part, stored.into())?).ok();
        let json = content.and_then(|text| RawValue::from_string(text).ok());
        if json.is_none() {
            limited_event!(ERROR, task = ?owned.0, ?part, "stored task content is not JSON");
        }
        json
    }
}

fn error_message(error: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct ErrorMessage {
        message: String,
    }
    let error: ErrorMessage = serde_json::from_str(error.get()).ok()?;
    Some(error.message)
}
