//! Tasks: calls that the server executes in the background.
//!
//! Tasks are polled even if the server sends notifications. Each ask goes to its handler once, and each answer is sent as
//! soon as it is available. An ask that will never be answered cancels the task.

use crate::ask::{AskAnswer, IncomingAsk};
use crate::client::{Client, ClientInner};
use crate::error::{Error, ErrorKind, UnansweredAsk};
use crate::handlers::AnswerFailure;
use crate::large_message;
use crate::listen::{ChangeStream, ServerChange};
use crate::pace::Pace;
use crate::pending::PendingCall;
use crate::retry::{backoff, within};
use futures_util::future::{AbortHandle, Abortable, Aborted, BoxFuture};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use refrain_wire::client::{ReadError, Request, Task, TaskStatus, check_complete};
use refrain_wire::{Excerpt, Filter, TaskMethod};
use serde_json::Value;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// The poll interval if the server suggests none.
const POLL_DEFAULT: Duration = Duration::from_secs(1);
/// The bounds of an interval that the server suggests.
const POLL_MIN: Duration = Duration::from_millis(20);
const POLL_MAX: Duration = Duration::from_secs(3600);
/// The poll interval while the server sends notifications.
const POLL_NOTIFIED: Duration = Duration::from_secs(15);

impl Client {
    /// The state of a task.
    pub async fn task(&self, id: &str) -> Result<Task, Error> {
        Ok(self.inner.task(id).await?)
    }

    /// Cancels a task. Succeeds if the task has already ended.
    pub async fn cancel_task(&self, id: &str) -> Result<(), Error> {
        Ok(self.inner.cancel_task(id).await?)
    }
}

/// The key of an ask and the outcome of its handler.
type EndedHandler = (String, Result<Result<AskAnswer, AnswerFailure>, Aborted>);
type AnswerFutures = FuturesUnordered<BoxFuture<'static, EndedHandler>>;

#[derive(Default)]
struct TaskAsks {
    answering: AnswerFutures,
    handles: HashMap<String, AbortHandle>,
    unanswered: Vec<UnansweredAsk>,
    /// The number of asks so far.
    count: usize,
}

impl TaskAsks {
    /// Starts handlers for new asks, and aborts those of withdrawn asks.
    fn update(&mut self, inner: &Arc<ClientInner>, open: Vec<IncomingAsk>) {
        let is_open = |key: &str| open.iter().any(|ask| ask.key() == key);
        for (_, handle) in self.handles.extract_if(|key, _| !is_open(key)) {
            handle.abort();
        }
        self.unanswered.retain(|failed| is_open(&failed.key));
        for ask in open {
            let has_failed = |failed: &UnansweredAsk| failed.key == ask.key();
            if !self.handles.contains_key(ask.key()) && !self.unanswered.iter().any(has_failed) {
                self.start(Arc::clone(inner), ask);
            }
        }
    }

    fn start(&mut self, inner: Arc<ClientInner>, ask: IncomingAsk) {
        self.count += 1;
        let (handle, registration) = AbortHandle::new_pair();
        self.handles.insert(ask.key().to_owned(), handle);
        let answer = async move {
            let key = ask.key().to_owned();
            let answer = async { inner.try_answer(ask).await };
            let answer = Abortable::new(answer, registration).await;
            (key, answer)
        };
        self.answering.push(answer.boxed());
    }

    /// Records the outcome of a handler, and of all others that have ended. Returns whether one of their asks will never be
    /// answered.
    fn record_all(&mut self, pending: &mut PendingCall, ended: EndedHandler) -> bool {
        let mut ended = Some(ended);
        while let Some((key, answer)) = ended {
            if let Ok(answer) = answer
                && self.record(pending, key, answer)
            {
                return true;
            }
            ended = self.answering.next().now_or_never().flatten();
        }
        false
    }

    /// Records the outcome of a handler. Returns whether there will never be an answer.
    fn record(
        &mut self,
        pending: &mut PendingCall,
        key: String,
        answer: Result<AskAnswer, AnswerFailure>,
    ) -> bool {
        self.handles.remove(&key);
        let Err(AnswerFailure { why, is_final }) = pending.record_answer(&key, answer) else {
            return false;
        };
        self.unanswered.push(UnansweredAsk { key, why });
        is_final
    }
}

impl ClientInner {
    async fn task(&self, id: &str) -> Result<Task, ErrorKind> {
        let raw = self.request(Request::task(TaskMethod::Get, id)).await?;
        let task = large_message::parse(raw.get().len(), move || {
            check_complete(&raw)?;
            Task::read(&raw)
        });
        Ok(task.await?)
    }

    pub(crate) async fn cancel_task(&self, id: &str) -> Result<(), ErrorKind> {
        let raw = self.request(Request::task(TaskMethod::Cancel, id)).await?;
        Ok(check_complete(&raw)?)
    }

    /// Sends the available answers, and polls the task. Returns its result if it completed.
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
        // Safe to retry: the server ignores answers that it already has.
        let answers = pending.answers.clone().into_iter().collect();
        let request = Request::task(TaskMethod::Update, id).with_answers(answers, None);
        let raw = self.request(request).await?;
        check_complete(&raw)?;
        pending.mark_answers_sent();
        (self.setup.on_pending)(pending);
        Ok(())
    }

    /// Polls the task. Returns its result if it completed, and the pause before the next poll.
    async fn poll(
        &self,
        pending: &mut PendingCall,
        id: &str,
    ) -> Result<(Option<Value>, Duration), ErrorKind> {
        let task = self.task(id).await?;
        if task.id != id {
            let why = format!(
                "the result of tasks/get is about task {:?}",
                Excerpt(&task.id)
            );
            return Err(ReadError::Unexpected(why).into());
        }
        (self.setup.on_task)(&task);
        let interval = task.poll_interval.unwrap_or(POLL_DEFAULT);
        let interval = interval.clamp(POLL_MIN, POLL_MAX);
        self.check_asks(task.asks())?;
        self.check_task_asks(task.asks().len() + pending.answered_count())?;
        if task.status.is_over() {
            pending.end();
        }
        match task.status {
            TaskStatus::Completed(result) => Ok((Some(result), interval)),
            TaskStatus::Failed(error) => Err(ErrorKind::Rpc(error)),
            TaskStatus::Cancelled => {
                Err(ErrorKind::TaskCancelled(task.message.unwrap_or_default()))
            }
            _ => {
                pending.set_task_asks(task.into_asks())?;
                Ok((None, interval))
            }
        }
    }

    /// Checks the number of all asks of a task.
    fn check_task_asks(&self, asks: usize) -> Result<(), ErrorKind> {
        let limits = &self.setup.limits;
        let limit = limits.asks.saturating_mul(limits.rounds as usize);
        match asks > limit {
            true => Err(ErrorKind::TooManyAsks { asks, limit }),
            false => Ok(()),
        }
    }

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
            let (result, interval) = updates.run_meanwhile(poll.boxed()).await?;
            if let Some(result) = result {
                return Ok(result);
            }
            asks.update(self, pending.unanswered());
            self.check_task_asks(asks.count)?;
            if asks.handles.is_empty() && !asks.unanswered.is_empty() {
                return Err(ErrorKind::Unanswered(asks.unanswered));
            }
            tokio::select! {
                Some(ended) = asks.answering.next() => {
                    let is_final = asks.record_all(pending, ended);
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

    async fn listen_to_task(self: &Arc<Self>, id: &str) -> Option<ChangeStream> {
        let filter = Filter {
            tasks: vec![id.to_owned()],
            ..Filter::default()
        };
        let listening = ChangeStream::open(self, &filter).await;
        let is_granted = |granted: &Filter| granted.tasks.iter().any(|task| task == id);
        listening
            .ok()
            .filter(|listening| is_granted(listening.granted()))
    }
}

/// Waits for notifications of a task, and for the next poll.
struct TaskUpdates {
    subscription: UpdateSubscription,
    /// Whether the subscription has just started: earlier changes were not announced.
    is_new: bool,
    pace: Pace,
}

enum UpdateSubscription {
    Opening(BoxFuture<'static, Option<ChangeStream>>),
    Open(ChangeStream),
    None,
}

impl TaskUpdates {
    fn subscribe(inner: &Arc<ClientInner>, id: &str) -> Self {
        let (inner, id) = (Arc::clone(inner), id.to_owned());
        let opening = async move { inner.listen_to_task(&id).await };
        Self {
            subscription: UpdateSubscription::Opening(opening.boxed()),
            is_new: false,
            pace: Pace::of_polls(),
        }
    }

    fn set_opened(&mut self, listening: Option<ChangeStream>) {
        self.is_new = listening.is_some();
        self.subscription = listening.map_or(UpdateSubscription::None, UpdateSubscription::Open);
    }

    /// Completes a future while the subscription opens.
    async fn run_meanwhile<T>(&mut self, mut work: BoxFuture<'_, T>) -> T {
        if let UpdateSubscription::Opening(opening) = &mut self.subscription {
            tokio::select! {
                biased;
                opened = opening => self.set_opened(opened),
                done = &mut work => return done,
            }
        }
        work.await
    }

    /// Waits until the task changes or the next poll is due.
    async fn wait(&mut self, interval: Duration) {
        let mut pause = pin!(tokio::time::sleep(interval));
        if let UpdateSubscription::Opening(opening) = &mut self.subscription {
            tokio::select! {
                opened = opening => self.set_opened(opened),
                () = &mut pause => return,
            }
        }
        if std::mem::take(&mut self.is_new) {
            return;
        }
        let UpdateSubscription::Open(listening) = &mut self.subscription else {
            return pause.await;
        };
        match within(interval.max(POLL_NOTIFIED), listening.next()).await {
            Some(Ok(Some(ServerChange::Task(_)))) => {
                self.pace.count_poll();
                self.pace.wait().await;
            }
            None => {}
            // A change that was not subscribed to must not cause polls without a pause.
            Some(Ok(Some(_))) => tokio::time::sleep(backoff(1)).await,
            Some(Ok(None) | Err(_)) => {
                self.subscription = UpdateSubscription::None;
                pause.await;
            }
        }
    }
}
