//! Tasks: calls that go on at the server while nobody waits for them.
//!
//! Always: a task is looked at as often as its server says, whether or not it tells what changes; an ask of it is shown
//! once, whatever the server still lists; its answer is sent as soon as it is there; and what will not be answered by
//! anyone ends the task.

use crate::ask::{Answer, Ask};
use crate::client::{Client, Inner, Request, back_off};
use crate::error::{Error, ErrorKind, RpcFailure, Unanswered};
use crate::handlers::NoAnswer;
use crate::listen::{Change, Listening};
use crate::ordered::Ordered;
use crate::pending::PendingCall;
use crate::rounds::{check_asks_nothing, check_complete};
use futures_util::future::{AbortHandle, Abortable, Aborted, BoxFuture};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use refrain_wire::{Filter, TASK_RESULT, join_task};
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// How often to look after a task whose server says nothing of that.
const USUAL_POLL: Duration = Duration::from_secs(1);
/// A server is not asked more often, nor less often, whatever it says.
const POLL_MIN: Duration = Duration::from_millis(20);
const POLL_MAX: Duration = Duration::from_secs(3600);
/// How often to look after a task at least, though the server tells what changes.
const TOLD_POLL: Duration = Duration::from_secs(15);

/// The longest time that a task may name, in seconds: some thousand years.
const LONGEST: f64 = 1e11;

/// A task as the server shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Its id.
    pub id: String,
    /// How it stands.
    pub status: TaskStatus,
    /// What it is doing, or why it ended as it did.
    pub message: Option<String>,
    /// When it was made, as the server wrote it.
    pub created_at: String,
    /// When it last changed, as the server wrote it.
    pub updated_at: String,
    /// How long it lives from its creation; for ever without it.
    pub ttl: Option<Duration>,
    /// How often to look after it.
    pub poll_interval: Option<Duration>,
    /// What it asks.
    asks: Vec<(String, String)>,
}

/// How a task stands, with what belongs to that.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum TaskStatus {
    /// It runs, or waits to be run.
    Working,
    /// It asks something.
    InputRequired,
    /// It is done, and this is its result.
    Completed(Value),
    /// It could not be done.
    Failed(RpcFailure),
    /// It was called off.
    Cancelled,
}

impl TaskStatus {
    /// The name of the status.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed(_) => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Task {
    /// The keys of what it asks.
    pub fn asks(&self) -> impl Iterator<Item = &str> {
        self.asks.iter().map(|(key, _)| key.as_str())
    }

    pub(crate) fn read(raw: &RawValue) -> Result<Self, ErrorKind> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Shape {
            task_id: String,
            status: String,
            status_message: Option<String>,
            #[serde(default)]
            created_at: String,
            #[serde(default)]
            last_updated_at: String,
            ttl_ms: Option<Box<RawValue>>,
            poll_interval_ms: Option<Box<RawValue>>,
            input_requests: Option<Ordered<Box<RawValue>>>,
            result: Option<Value>,
            error: Option<RpcFailure>,
        }

        let bad = |why: String| ErrorKind::BadAnswer(format!("the task cannot be read: {why}"));
        let shape: Shape =
            serde_json::from_str(raw.get()).map_err(|error| bad(error.to_string()))?;
        let status = match (shape.status.as_str(), shape.result, shape.error) {
            ("working", ..) => TaskStatus::Working,
            ("input_required", ..) => TaskStatus::InputRequired,
            ("completed", Some(result), _) => TaskStatus::Completed(result),
            ("completed", None, _) => return Err(bad("it is completed without a result".into())),
            ("failed", _, Some(error)) => TaskStatus::Failed(error),
            ("failed", _, None) => return Err(bad("it has failed without an error".into())),
            ("cancelled", ..) => TaskStatus::Cancelled,
            (other, ..) => return Err(bad(format!("its status is {other:?}"))),
        };
        let asks = shape.input_requests.unwrap_or_default().0.into_iter();
        Ok(Self {
            id: shape.task_id,
            status,
            message: shape.status_message,
            created_at: shape.created_at,
            updated_at: shape.last_updated_at,
            ttl: shape.ttl_ms.and_then(|raw| milliseconds(&raw)),
            poll_interval: shape.poll_interval_ms.and_then(|raw| milliseconds(&raw)),
            asks: asks.map(|(key, raw)| (key, raw.get().to_owned())).collect(),
        })
    }
}

impl Client {
    /// How a task stands.
    pub async fn task(&self, id: &str) -> Result<Task, Error> {
        Ok(self.inner.task(id).await?)
    }

    /// Calls a task off. That it has already ended is no error.
    pub async fn cancel_task(&self, id: &str) -> Result<(), Error> {
        Ok(self.inner.cancel_task(id).await?)
    }
}

/// What is being answered, and how to take it back.
type Answering<'a> =
    FuturesUnordered<BoxFuture<'a, (String, Result<Result<Answer, NoAnswer>, Aborted>)>>;

impl Inner {
    async fn task(&self, id: &str) -> Result<Task, ErrorKind> {
        let task = self.task_as_it_stands(id).await?;
        if self.setup.draft().is_none() {
            return Task::read(&task);
        }
        let task = Task::read(&self.with_what_became(id, task).await?)?;
        if let TaskStatus::Completed(result) = &task.status {
            check_asks_nothing(result)?;
        }
        Ok(task)
    }

    async fn task_as_it_stands(&self, id: &str) -> Result<Box<RawValue>, ErrorKind> {
        let raw = self.request(&about("tasks/get", id)).await?;
        check_complete(&raw)?;
        Ok(raw)
    }

    /// A task of a draft: what became of it is told by another request.
    async fn with_what_became(
        &self,
        id: &str,
        mut task: Box<RawValue>,
    ) -> Result<Box<RawValue>, ErrorKind> {
        let mut status = status_of(&task)?;
        if matches!(status.as_str(), "working" | "cancelled") {
            return Ok(task);
        }
        let error = match self.request(&about(TASK_RESULT, id)).await {
            Err(ErrorKind::Refused(error)) => error,
            became => return Ok(join_task(&task, &became?)),
        };
        if status != "failed" {
            // It may have ended since it was looked at.
            task = self.task_as_it_stands(id).await?;
            status = status_of(&task)?;
        }
        match status.as_str() {
            "cancelled" => Ok(task),
            "failed" => {
                let error =
                    json!({"code": error.code, "message": error.message, "data": error.data});
                let became = to_raw_value(&json!({"error": error}))
                    .map_err(|error| ErrorKind::BadAnswer(error.to_string()))?;
                Ok(join_task(&task, &became))
            }
            _ => Err(ErrorKind::Refused(error)),
        }
    }

    pub(crate) async fn cancel_task(&self, id: &str) -> Result<(), ErrorKind> {
        let refused = match self.request(&about("tasks/cancel", id)).await {
            Err(ErrorKind::Refused(refused)) if self.setup.draft().is_some() => refused,
            cancelled => return check_complete(&cancelled?),
        };
        // Servers of a draft may refuse to call off what has ended.
        let task = self.task_as_it_stands(id).await?;
        match status_of(&task)?.as_str() {
            "completed" | "failed" | "cancelled" => Ok(()),
            _ => Err(ErrorKind::Refused(refused)),
        }
    }

    /// Tells the task the answers there are, and looks at it. Gives its result if it is done.
    pub(crate) async fn task_round(
        &self,
        pending: &mut PendingCall,
        id: &str,
    ) -> Result<Option<Value>, ErrorKind> {
        self.tell_answers(pending, id).await?;
        self.look(pending, id).await.map(|looked| looked.0)
    }

    async fn tell_answers(&self, pending: &mut PendingCall, id: &str) -> Result<(), ErrorKind> {
        if pending.answers().is_empty() {
            return Ok(());
        }
        let mut request = about("tasks/update", id);
        let answers = Map::from_iter(pending.answers().clone());
        request
            .params
            .insert("inputResponses".to_owned(), answers.into());
        let raw = self.request(&request).await?;
        check_complete(&raw)?;
        pending.answers_sent();
        self.setup.onlooker.see(pending);
        Ok(())
    }

    /// Looks at the task: its result if it is done, and how long to wait before the next look if not.
    async fn look(
        &self,
        pending: &mut PendingCall,
        id: &str,
    ) -> Result<(Option<Value>, Duration), ErrorKind> {
        let task = self.task(id).await?;
        let is_over = !matches!(task.status, TaskStatus::Working | TaskStatus::InputRequired);
        if is_over {
            self.forget_task(id);
        }
        self.refused_by_task(id)?;
        let poll = task
            .poll_interval
            .unwrap_or(USUAL_POLL)
            .clamp(POLL_MIN, POLL_MAX);
        if task.asks.len() > self.setup.limits.asks {
            return Err(ErrorKind::TooManyAsks {
                asks: task.asks.len(),
                limit: self.setup.limits.asks,
            });
        }
        match task.status {
            TaskStatus::Working | TaskStatus::InputRequired => {
                let raw =
                    |(key, json): (String, String)| Some((key, RawValue::from_string(json).ok()?));
                let asks = Ordered(task.asks.into_iter().filter_map(raw).collect());
                pending.task_asks(asks).map_err(|key| {
                    let why =
                        format!("the task asks something else under {key:?}, which was answered");
                    ErrorKind::BadAnswer(why)
                })?;
                Ok((None, poll))
            }
            TaskStatus::Completed(result) => {
                pending.end();
                Ok((Some(result), poll))
            }
            TaskStatus::Failed(error) => {
                pending.end();
                Err(ErrorKind::Refused(error))
            }
            TaskStatus::Cancelled => {
                pending.end();
                Err(ErrorKind::TaskCancelled(task.message.unwrap_or_default()))
            }
        }
    }

    /// Looks after a task until it is done, and has answered what it asks.
    pub(crate) async fn drive_task(
        self: &Arc<Self>,
        pending: &mut PendingCall,
        id: &str,
    ) -> Result<Value, ErrorKind> {
        let mut told = Told::ask(self, id);
        let mut answering: Answering<'_> = FuturesUnordered::new();
        let mut in_hand: HashMap<String, AbortHandle> = HashMap::new();
        let mut unanswered: Vec<Unanswered> = Vec::new();
        loop {
            let look = async {
                self.tell_answers(pending, id).await?;
                self.look(pending, id).await
            };
            let (result, poll) = told.meanwhile(look.boxed()).await?;
            if let Some(result) = result {
                return Ok(result);
            }
            let open = pending.unanswered();
            // What is asked no more need not be answered.
            in_hand.retain(|key, handle| {
                let stays = open.iter().any(|ask| ask.key() == key);
                if !stays {
                    handle.abort();
                }
                stays
            });
            unanswered.retain(|given_up| open.iter().any(|ask| ask.key() == given_up.key));
            for ask in open {
                let is_new = !in_hand.contains_key(ask.key())
                    && unanswered.iter().all(|given_up| given_up.key != ask.key());
                if is_new {
                    in_hand.insert(ask.key().to_owned(), self.take_in_hand(&answering, ask));
                }
            }
            if in_hand.is_empty() && !unanswered.is_empty() {
                return Err(ErrorKind::Unanswered(unanswered));
            }
            tokio::select! {
                Some((key, answer)) = answering.next() => {
                    let Ok(answer) = answer else { continue };
                    in_hand.remove(&key);
                    let given_up = match answer {
                        Ok(answer) => pending.answer(&key, answer).map_err(|error| NoAnswer::later(error.why())),
                        Err(none) => Err(none),
                    };
                    self.setup.onlooker.see(pending);
                    let Err(none) = given_up else { continue };
                    let why = none.why;
                    unanswered.push(Unanswered { key, why });
                    if none.is_final {
                        self.cancel_task(id).await?;
                        pending.end();
                        return Err(ErrorKind::Unanswered(unanswered));
                    }
                }
                () = told.wait(poll) => {}
            }
        }
    }

    fn take_in_hand<'a>(self: &Arc<Self>, answering: &Answering<'a>, ask: Ask) -> AbortHandle {
        let (handle, registration) = AbortHandle::new_pair();
        let inner = Arc::clone(self);
        let answer = async move {
            let key = ask.key().to_owned();
            let answer = async { inner.try_answer(&ask).await };
            let answer = Abortable::new(answer, registration).await;
            (key, answer)
        };
        answering.push(answer.boxed());
        handle
    }

    /// Whether the server will tell when the task changes.
    async fn listen_to_task(self: &Arc<Self>, id: &str) -> Option<Listening> {
        let filter = Filter {
            tasks: vec![id.to_owned()],
            ..Filter::default()
        };
        let listening = Listening::open(self, &filter).await;
        listening
            .ok()
            .filter(|listening| listening.granted().tasks.iter().any(|told| told == id))
    }
}

/// Whether the server tells when a task changes. It is looked after all the same.
struct Told {
    /// The server was asked to, and has not said yet.
    asking: Option<BoxFuture<'static, Option<Listening>>>,
    /// It does.
    listening: Option<Listening>,
    /// It has only just begun to: what changed before was not told.
    is_new: bool,
}

impl Told {
    fn ask(inner: &Arc<Inner>, id: &str) -> Self {
        let (inner, id) = (Arc::clone(inner), id.to_owned());
        let asking = async move { inner.listen_to_task(&id).await };
        Self {
            asking: Some(asking.boxed()),
            listening: None,
            is_new: false,
        }
    }

    /// The server has said whether it will.
    fn said(&mut self, listening: Option<Listening>) {
        self.asking = None;
        self.is_new = listening.is_some();
        self.listening = listening;
    }

    /// Does something, and hears meanwhile what the server says.
    async fn meanwhile<T>(&mut self, mut work: BoxFuture<'_, T>) -> T {
        if let Some(asking) = &mut self.asking {
            tokio::select! {
                biased;
                said = asking => self.said(said),
                done = &mut work => return done,
            }
        }
        work.await
    }

    /// Waits until the task has changed, or it is time to look whether it has.
    async fn wait(&mut self, poll: Duration) {
        let mut pause = pin!(tokio::time::sleep(poll));
        if let Some(asking) = &mut self.asking {
            tokio::select! {
                said = asking => self.said(said),
                () = &mut pause => return,
            }
        }
        if std::mem::take(&mut self.is_new) {
            return;
        }
        let Some(listening) = &mut self.listening else {
            return pause.await;
        };
        match tokio::time::timeout(poll.max(TOLD_POLL), listening.next()).await {
            Ok(Ok(Some(Change::Task(_)))) | Err(_) => {}
            Ok(Ok(Some(_))) => tokio::time::sleep(back_off(1)).await,
            // Nobody tells any more; looking goes on.
            Ok(Ok(None) | Err(_)) => {
                self.listening = None;
                pause.await;
            }
        }
    }
}

/// A time as tasks have it: any number of milliseconds. One that makes no sense is as good as none, and the task is not
/// lost with it.
fn milliseconds(raw: &RawValue) -> Option<Duration> {
    let time: f64 = raw.get().parse().ok()?;
    (time >= 0.0).then(|| Duration::from_secs_f64((time / 1000.0).min(LONGEST)))
}

/// How a task of a draft stands.
fn status_of(task: &RawValue) -> Result<String, ErrorKind> {
    #[derive(Deserialize)]
    struct Standing {
        status: String,
    }
    let read: Result<Standing, _> = serde_json::from_str(task.get());
    read.map(|standing| standing.status)
        .map_err(|error| ErrorKind::BadAnswer(format!("the task cannot be read: {error}")))
}

/// A request about a task. Each may be sent again: an answer that is there already is passed over by the server.
fn about<'a>(method: &'a str, id: &str) -> Request<'a> {
    let params = Map::from_iter([("taskId".to_owned(), Value::from(id))]);
    Request::harmless(method, params)
}
