//! What clients ask about their tasks: how one stands, to take in answers, to call it off.
//!
//! What always holds: a task of somebody else's is not there, in the same words as one that never was.

use crate::auth::{Caller, MissingScopes};
use crate::complete::{Later, NoReply};
use crate::dispatch::{Begin, no_place};
use crate::load::Place;
use crate::server::Server;
use crate::tasks::Tasks;
use crate::tasks::vault::Part;
use crate::tasks::worker::next_hint;
use refrain_core::Principal;
use refrain_store::{Hint, StoreError, Task, TaskId, TaskStatus};
use refrain_wire::{
    AskKind, Capability, Form, Reply, RpcError, TaskInfo, TaskMethod, TaskParams, TaskState,
    check_answer_shape,
};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

/// For an id that is none, that nobody's task has, that another's has, and that of a task which is gone.
const UNKNOWN: &str = "taskId: there is no such task, or no longer";
const STOPPING: &str = "this instance is stopping, and the task still works; ask again";
const UNREACHABLE: &str = "the task store cannot be reached; try again";

/// Answers by key, as they were sent.
type Given = Vec<(String, Box<RawValue>)>;

/// Answers that a task waits for.
struct Taken {
    /// By key, as they are stored.
    answers: Vec<(String, Vec<u8>)>,
    /// Whether each fits what was asked.
    all_fit: bool,
}

/// What the reply to a request is to wait for, and to show.
#[derive(Clone, Copy)]
struct Wishes {
    waits: bool,
    shows: bool,
    settles: bool,
}

/// Why a request about a task is not done.
pub(super) enum NotDone {
    /// There is no such task of this caller's.
    Unknown,
    /// The caller lacks a scope that the task's tool needs.
    Forbidden(MissingScopes),
    /// The task was over before it could be called off.
    Over(TaskStatus),
    /// An answer is none.
    Malformed(String),
    /// The store did not do it.
    Store(StoreError),
    /// What the task holds does not open; the log says why.
    Unreadable,
    /// This instance is to stop before the task is at rest.
    Stopping,
}

impl From<StoreError> for NotDone {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl NotDone {
    /// What the client is told.
    pub(super) fn told(self) -> Result<RpcError, NoReply> {
        Ok(match self {
            Self::Unknown => RpcError::invalid_params(UNKNOWN),
            Self::Forbidden(missing) => return Err(NoReply::Forbidden(missing)),
            Self::Over(status) => RpcError::invalid_params(format!(
                "taskId: the task is {} already, and cannot be called off",
                status.as_str()
            )),
            Self::Malformed(reason) => RpcError::invalid_params(reason),
            Self::Unreadable => RpcError::internal("Internal error"),
            Self::Stopping => return Err(NoReply::Busy(RpcError::internal(STOPPING))),
            Self::Store(error) => store_error(&error),
        })
    }
}

/// What a client is told of a store that did not do what it was asked; the log has the rest.
fn store_error(error: &StoreError) -> RpcError {
    match error {
        StoreError::Unavailable(_) => {
            tracing::warn!(%error, "a request about a task was not done");
            RpcError::internal(UNREACHABLE)
        }
        _ => {
            tracing::error!(%error, "a request about a task was not done");
            RpcError::internal("Internal error")
        }
    }
}

/// Begins to do what is asked about a task. That takes a place like a call, or one of those who wait.
pub(crate) fn answer(
    server: &Server,
    params: TaskParams<'_>,
    caller: Caller,
) -> Result<Later, Begin> {
    if !params.meta.capabilities.tasks {
        let missing = RpcError::missing_capability(&[Capability::Tasks]);
        return Err(Begin::Refused(missing));
    }
    let place = place(server, params.waits).map_err(Begin::Busy)?;
    let (server, method) = (server.clone(), params.method);
    let wishes = Wishes {
        waits: params.waits,
        shows: params.shows,
        settles: params.settles,
    };
    let id = TaskId::parse(&params.id);
    let given = params.answers.0.into_iter();
    let given: Given = given
        .map(|(key, answer)| (key.into_owned(), answer.to_owned()))
        .collect();
    Ok(Box::pin(async move {
        let _place = place;
        let done = if wishes.waits {
            server.task_at_rest(id, &caller).await
        } else {
            let time = server.limits().round_time;
            let doing = server.task_request(method, wishes, id, given, &caller);
            let done = tokio::time::timeout(time, doing).await;
            done.unwrap_or_else(|_| Err(slow(time)))
        };
        match done {
            Ok(reply) => Ok(reply),
            Err(not_done) => not_done.told().map(Reply::Error),
        }
    }))
}

/// A place for a request about a task, or why there is none.
fn place(server: &Server, waits: bool) -> Result<Place, RpcError> {
    let (load, most, of) = match &server.0.tasks {
        Some(tasks) if waits => {
            let of = "clients that wait for what becomes of a task";
            (&tasks.waiting, tasks.options.waiting, of)
        }
        _ => (&server.0.load, server.0.limits.concurrent_calls, "calls"),
    };
    load.enter().ok_or_else(|| no_place(most, of))
}

/// The store took longer than a request may.
pub(super) fn slow(time: std::time::Duration) -> NotDone {
    NotDone::Store(StoreError::Unavailable(format!(
        "no answer within {time:?}"
    )))
}

impl Server {
    async fn task_request(
        &self,
        method: TaskMethod,
        wishes: Wishes,
        id: Option<TaskId>,
        given: Given,
        caller: &Caller,
    ) -> Result<Reply, NotDone> {
        let (Some(id), Some(tasks)) = (id, &self.0.tasks) else {
            return Err(NotDone::Unknown);
        };
        let task = self.task(tasks, &id, caller).await?;
        let owner = &caller.principal;
        let before = task.status;
        let there = match method {
            TaskMethod::Get => return self.show(task, owner),
            TaskMethod::Update => {
                let Taken { answers, all_fit } = self.answers(task, owner, given)?;
                // Nothing to take in: the task was there a moment ago, which will do.
                let there = answers.is_empty() || tasks.store.answer(&id, owner, answers).await?;
                if there && !all_fit && wishes.settles {
                    let time = self.limits().round_time / 2;
                    let settled = self.at_rest(tasks, &id, caller);
                    // It is acknowledged in any case.
                    let _ = tokio::time::timeout(time, settled).await;
                }
                there
            }
            TaskMethod::Cancel => tasks.store.cancel(&id, owner).await?,
        };
        if !there {
            return Err(NotDone::Unknown);
        }
        if wishes.shows {
            let task = self.task(tasks, &id, caller).await?;
            // It may have ended by itself since it was read.
            if before.is_terminal() || task.status != TaskStatus::Cancelled {
                return Err(NotDone::Over(task.status));
            }
            return self.show(task, owner);
        }
        Ok(Reply::complete(json!({})))
    }

    fn show(&self, task: Task, owner: &Principal) -> Result<Reply, NotDone> {
        let info = self.task_info(task, owner).ok_or(NotDone::Unreadable)?;
        Ok(Reply::Complete(info.to_detailed()))
    }

    /// How a task stands as soon as it no longer works, or this instance is to stop.
    async fn task_at_rest(&self, id: Option<TaskId>, caller: &Caller) -> Result<Reply, NotDone> {
        let (Some(id), Some(tasks)) = (id, &self.0.tasks) else {
            return Err(NotDone::Unknown);
        };
        let task = self.at_rest(tasks, &id, caller).await?;
        self.show(task, &caller.principal)
    }

    /// A task of the caller's as soon as it no longer works.
    async fn at_rest(&self, tasks: &Tasks, id: &TaskId, caller: &Caller) -> Result<Task, NotDone> {
        let time = self.limits().round_time;
        let mut hints = Some(tasks.store.hints());
        loop {
            let reading = self.task(tasks, id, caller);
            let read = tokio::time::timeout(time, reading).await;
            let task = read.unwrap_or_else(|_| Err(slow(time)))?;
            if task.status != TaskStatus::Working {
                return Ok(task);
            }
            if self.is_draining() {
                return Err(NotDone::Stopping);
            }
            let news = async {
                let other = |hint: Hint| hint.task != *id;
                while next_hint(&mut hints).await.is_some_and(other) {}
            };
            // A hint may be lost.
            let _ = tokio::time::timeout(tasks.options.look, news).await;
        }
    }

    /// A task of the caller's, if they may still call its tool.
    pub(super) async fn task(
        &self,
        tasks: &Tasks,
        id: &TaskId,
        caller: &Caller,
    ) -> Result<Task, NotDone> {
        let task = tasks.store.get(id, &caller.principal).await?;
        let task = task.ok_or(NotDone::Unknown)?;
        let name = tasks.space.tool_of(&task.tool).ok_or(NotDone::Unknown)?;
        let catalog = self.catalog().clone();
        // A tool that is gone needs nothing any more.
        let tool = catalog.tools.get(name);
        let needed = tool.map_or(&[][..], |tool| &tool.tool.scopes);
        let allowed = self.0.access.allow(caller, needed);
        allowed.map_err(NotDone::Forbidden)?;
        Ok(task)
    }

    /// Those of the answers that the task waits for. All of them are well formed, or none is taken.
    fn answers(&self, task: Task, owner: &Principal, given: Given) -> Result<Taken, NotDone> {
        let id = task.id;
        let most = self.0.tasks.as_ref().map_or(0, |t| t.options.journal / 4);
        let mut open = task.asks;
        let (mut answers, mut all_fit) = (Vec::new(), true);
        for (key, answer) in given {
            let Some(at) = open.iter().position(|(asked, _)| *asked == key) else {
                continue;
            };
            let (_, ask) = open.swap_remove(at);
            let ask = self.json((&id, owner), Part::Ask(&key), ask);
            let ask = ask.ok_or(NotDone::Unreadable)?;
            let kind = AskKind::of_request(ask.get()).ok_or_else(|| {
                tracing::error!(task = ?id, key, "what a task asks is of no known kind");
                NotDone::Unreadable
            })?;
            check_answer_shape(kind, &answer).map_err(|reason| {
                NotDone::Malformed(format!("inputResponses[{key:?}]: {reason}"))
            })?;
            all_fit &= fits(&ask, &answer);
            let size = answer.get().len();
            if size > most {
                return Err(NotDone::Malformed(format!(
                    "inputResponses[{key:?}] has {size} bytes, and the limit is {most}"
                )));
            }
            let answer = self.shut((&id, owner), Part::Answer(&key), answer.get().as_bytes());
            answers.push((key, answer));
        }
        Ok(Taken { answers, all_fit })
    }

    /// A task as clients see it. `None` if what it holds does not open; the log says why.
    pub(crate) fn task_info(&self, task: Task, owner: &Principal) -> Option<TaskInfo> {
        let Task { id, outcome, .. } = task;
        let outcome = || {
            let stored = outcome.or_else(|| {
                tracing::error!(task = ?id, "a task that is over has no outcome");
                None
            })?;
            self.json((&id, owner), Part::Outcome, stored)
        };
        let mut status_message = task.status_message;
        let state = match task.status {
            TaskStatus::Working => TaskState::Working,
            TaskStatus::Cancelled => TaskState::Cancelled,
            TaskStatus::Completed => TaskState::Completed(outcome()?),
            TaskStatus::Failed => {
                let error = outcome()?;
                status_message = message(&error).or(status_message);
                TaskState::Failed(error)
            }
            TaskStatus::InputRequired => {
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

    /// A part of a task that is JSON.
    fn json(
        &self,
        whose: (&TaskId, &Principal),
        part: Part<'_>,
        stored: Vec<u8>,
    ) -> Option<Box<RawValue>> {
        let content = String::from_utf8(self.unshut(whose, part, stored)?).ok();
        let json = content.and_then(|text| RawValue::from_string(text).ok());
        if json.is_none() {
            tracing::error!(task = ?whose.0, ?part, "what a task holds is not JSON");
        }
        json
    }
}

/// Has what was filled in the schema of the form? All else that is well formed fits.
fn fits(ask: &RawValue, answer: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Asked<'a> {
        #[serde(borrow)]
        params: Params<'a>,
    }
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow, rename = "requestedSchema")]
        schema: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Accepted {
        content: serde_json::Value,
    }
    let Ok(asked) = serde_json::from_str::<Asked<'_>>(ask.get()) else {
        return true;
    };
    let form = Form::parse(asked.params.schema);
    let accepted = serde_json::from_str::<Accepted>(answer.get());
    match (form, accepted) {
        (Ok(form), Ok(accepted)) => form.check(&accepted.content).is_ok(),
        _ => true,
    }
}

/// What an error says.
fn message(error: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Message {
        message: String,
    }
    let error: Message = serde_json::from_str(error.get()).ok()?;
    Some(error.message)
}
