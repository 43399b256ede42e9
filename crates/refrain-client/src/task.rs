//! Tasks: calls that the server executes in the background.
//!
//! A task is polled at its interval, even if the server sends notifications. An ask is shown once, and its answer sent as
//! soon as it is there. An ask that will never be answered cancels the task.

use crate::ask::{Answer, Ask};
use crate::client::{Client, Inner};
use crate::error::{Error, ErrorKind, Unanswered};
use crate::handlers::NoAnswer;
use crate::listen::{Change, Listening};
use crate::pending::PendingCall;
use crate::retry::{backoff, within};
use futures_util::future::{AbortHandle, Abortable, Aborted, BoxFuture};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use refrain_wire::client::{Request, Task, TaskStatus, check_complete};
use refrain_wire::{Filter, TaskMethod};
use serde_json::Value;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

const POLL_DEFAULT: Duration = Duration::from_secs(1);
const POLL_MIN: Duration = Duration::from_millis(20);
const POLL_MAX: Duration = Duration::from_secs(3600);
/// The poll interval while the server sends notifications.
const POLL_NOTIFIED: Duration = Duration::from_secs(15);

impl Client {
    /// The state of a task.
    pub async fn task(&self, id: &str) -> Result<Task, Error> {
        Ok(self.inner.task(id).await?)
    }

    /// Cancels a task. It is no error if it has already ended.
    pub async fn cancel_task(&self, id: &str) -> Result<(), Error> {
        Ok(self.inner.cancel_task(id).await?)
    }
}

type Answering =
    FuturesUnordered<BoxFuture<'static, (String, Result<Result<Answer, NoAnswer>, Aborted>)>>;

#[derive(Default)]
struct TaskAsks {
    answering: Answering,
    /// By key.
    handles: HashMap<String, AbortHandle>,
    unanswered: Vec<Unanswered>,
}

impl TaskAsks {
    /// Starts to answer new asks, and stops with withdrawn ones.
    fn update(&mut self, inner: &Arc<Inner>, open: Vec<Ask>) {
        let is_open = |key: &str| open.iter().any(|ask| ask.key() == key);
        for (_, handle) in self.handles.extract_if(|key, _| !is_open(key)) {
            handle.abort();
        }
        self.unanswered.retain(|given_up| is_open(&given_up.key));
        for ask in open {
            let is_given_up = |given_up: &Unanswered| given_up.key == ask.key();
            if !self.handles.contains_key(ask.key()) && !self.unanswered.iter().any(is_given_up) {
                self.start(Arc::clone(inner), ask);
            }
        }
    }

    fn start(&mut self, inner: Arc<Inner>, ask: Ask) {
        let (handle, registration) = AbortHandle::new_pair();
        self.handles.insert(ask.key().to_owned(), handle);
        let answer = async move {
            let key = ask.key().to_owned();
            let answer = async { inner.try_answer(&ask).await };
            let answer = Abortable::new(answer, registration).await;
            (key, answer)
        };
        self.answering.push(answer.boxed());
    }

    /// Takes the answer of a handler. Returns whether there will never be one.
    fn answered(
        &mut self,
        pending: &mut PendingCall,
        key: String,
        answer: Result<Answer, NoAnswer>,
    ) -> bool {
        self.handles.remove(&key);
        let Err(NoAnswer { why, is_final }) = pending.take(&key, answer) else {
            return false;
        };
        self.unanswered.push(Unanswered { key, why });
        is_final
    }
}

impl Inner {
    async fn task(&self, id: &str) -> Result<Task, ErrorKind> {
        let raw = self.request(Request::task(TaskMethod::Get, id)).await?;
        check_complete(&raw)?;
        Ok(Task::read(&raw)?)
    }

    pub(crate) async fn cancel_task(&self, id: &str) -> Result<(), ErrorKind> {
        let raw = self.request(Request::task(TaskMethod::Cancel, id)).await?;
        Ok(check_complete(&raw)?)
    }

    /// Sends the answers there are, and polls the task. Returns its result if it is done.
    pub(crate) async fn task_round(
        &self,
        pending: &mut PendingCall,
        id: &str,
    ) -> Result<Option<Value>, ErrorKind> {
        self.send_answers(pending, id).await?;
        self.poll(pending, id).await.map(|polled| polled.0)
    }

    async fn send_answers(&self, pending: &mut PendingCall, id: &str) -> Result<(), ErrorKind> {
        if pending.answers.is_empty() {
            return Ok(());
        }
        // This is safe to repeat: the server ignores answers that it has.
        let answers = pending.answers.clone().into_iter().collect();
        let request = Request::task(TaskMethod::Update, id).with_answers(answers, None);
        let raw = self.request(request).await?;
        check_complete(&raw)?;
        pending.answers_sent();
        (self.setup.on_pending)(pending);
        Ok(())
    }

    /// Polls the task: its result if it is done, and the pause before the next poll.
    async fn poll(
        &self,
        pending: &mut PendingCall,
        id: &str,
    ) -> Result<(Option<Value>, Duration), ErrorKind> {
        let task = self.task(id).await?;
        let interval = task.poll_interval.unwrap_or(POLL_DEFAULT);
        let interval = interval.clamp(POLL_MIN, POLL_MAX);
        let (asks, limit) = (task.asks().count(), self.setup.limits.asks);
        if asks > limit {
            return Err(ErrorKind::TooManyAsks { asks, limit });
        }
        if task.status.is_over() {
            pending.end();
        }
        match task.status {
            TaskStatus::Completed(result) => Ok((Some(result), interval)),
            TaskStatus::Failed(error) => Err(ErrorKind::Refused(error)),
            TaskStatus::Cancelled => {
                Err(ErrorKind::TaskCancelled(task.message.unwrap_or_default()))
            }
            _ => {
                pending.task_asks(task.into_asks())?;
                Ok((None, interval))
            }
        }
    }

    /// Polls a task until it is done, and answers its asks.
    pub(crate) async fn drive_task(
        self: &Arc<Self>,
        pending: &mut PendingCall,
        id: &str,
    ) -> Result<Value, ErrorKind> {
        let mut updates = TaskUpdates::subscribe(self, id);
        let mut asks = TaskAsks::default();
        loop {
            let poll = async {
                self.send_answers(pending, id).await?;
                self.poll(pending, id).await
            };
            let (result, interval) = updates.meanwhile(poll.boxed()).await?;
            if let Some(result) = result {
                return Ok(result);
            }
            asks.update(self, pending.unanswered());
            if asks.handles.is_empty() && !asks.unanswered.is_empty() {
                return Err(ErrorKind::Unanswered(asks.unanswered));
            }
            tokio::select! {
                Some((key, answer)) = asks.answering.next() => {
                    let Ok(answer) = answer else { continue };
                    let is_final = asks.answered(pending, key, answer);
                    (self.setup.on_pending)(pending);
                    if is_final {
                        self.cancel_task(id).await?;
                        pending.end();
                        return Err(ErrorKind::Unanswered(asks.unanswered));
                    }
                }
                () = updates.wait(interval) => {}
            }
        }
    }

    async fn listen_to_task(self: &Arc<Self>, id: &str) -> Option<Listening> {
        let filter = Filter {
            tasks: vec![id.to_owned()],
            ..Filter::default()
        };
        let listening = Listening::open(self, &filter).await;
        let is_granted = |granted: &Filter| granted.tasks.iter().any(|task| task == id);
        listening
            .ok()
            .filter(|listening| is_granted(listening.granted()))
    }
}

/// The notifications of a task. It is polled all the same.
struct TaskUpdates {
    subscription: Subscription,
    /// Whether it has just begun: earlier changes were not notified.
    is_new: bool,
}

enum Subscription {
    Opening(BoxFuture<'static, Option<Listening>>),
    Open(Listening),
    None,
}

impl TaskUpdates {
    fn subscribe(inner: &Arc<Inner>, id: &str) -> Self {
        let (inner, id) = (Arc::clone(inner), id.to_owned());
        let opening = async move { inner.listen_to_task(&id).await };
        Self {
            subscription: Subscription::Opening(opening.boxed()),
            is_new: false,
        }
    }

    fn opened(&mut self, listening: Option<Listening>) {
        self.is_new = listening.is_some();
        self.subscription = listening.map_or(Subscription::None, Subscription::Open);
    }

    /// Does some work while the subscription is opened.
    async fn meanwhile<T>(&mut self, mut work: BoxFuture<'_, T>) -> T {
        if let Subscription::Opening(opening) = &mut self.subscription {
            tokio::select! {
                biased;
                opened = opening => self.opened(opened),
                done = &mut work => return done,
            }
        }
        work.await
    }

    /// Waits until the task has changed, or is to be polled.
    async fn wait(&mut self, interval: Duration) {
        let mut pause = pin!(tokio::time::sleep(interval));
        if let Subscription::Opening(opening) = &mut self.subscription {
            tokio::select! {
                opened = opening => self.opened(opened),
                () = &mut pause => return,
            }
        }
        if std::mem::take(&mut self.is_new) {
            return;
        }
        let Subscription::Open(listening) = &mut self.subscription else {
            return pause.await;
        };
        match within(interval.max(POLL_NOTIFIED), listening.next()).await {
            Some(Ok(Some(Change::Task(_)))) | None => {}
            Some(Ok(Some(_))) => tokio::time::sleep(backoff(1)).await,
            Some(Ok(None) | Err(_)) => {
                self.subscription = Subscription::None;
                pause.await;
            }
        }
    }
}
