//! Tasks: calls that go on at the server while nobody waits for them.
//!
//! Always: a task is looked at as often as its server says, whether or not it tells what changes; an ask of it is shown
//! once, whatever the server still lists; its answer is sent as soon as it is there; and what will not be answered by
//! anyone ends the task.

use crate::ask::{Answer, Ask};
use crate::client::{Client, Inner};
use crate::error::{Error, ErrorKind, Unanswered};
use crate::handlers::NoAnswer;
use crate::listen::{Change, Listening};
use crate::pending::PendingCall;
use crate::retry::backoff;
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

/// How often to look after a task whose server says nothing of that.
const USUAL_POLL: Duration = Duration::from_secs(1);
/// A server is not asked more often, nor less often, whatever it says.
const POLL_MIN: Duration = Duration::from_millis(20);
const POLL_MAX: Duration = Duration::from_secs(3600);
/// How often to look after a task at least, though the server tells what changes.
const TOLD_POLL: Duration = Duration::from_secs(15);

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

type Answering =
    FuturesUnordered<BoxFuture<'static, (String, Result<Result<Answer, NoAnswer>, Aborted>)>>;

/// The asks of a task that are being answered.
#[derive(Default)]
struct TaskAsks {
    answering: Answering,
    /// How to stop each, by key.
    in_hand: HashMap<String, AbortHandle>,
    unanswered: Vec<Unanswered>,
}

impl TaskAsks {
    /// Has new asks answered, and stops with those that are asked no more.
    fn update(&mut self, inner: &Arc<Inner>, open: Vec<Ask>) {
        let is_open = |key: &str| open.iter().any(|ask| ask.key() == key);
        self.in_hand.retain(|key, handle| {
            let stays = is_open(key);
            if !stays {
                handle.abort();
            }
            stays
        });
        self.unanswered.retain(|given_up| is_open(&given_up.key));
        for ask in open {
            let is_given_up = |given_up: &Unanswered| given_up.key == ask.key();
            if !self.in_hand.contains_key(ask.key()) && !self.unanswered.iter().any(is_given_up) {
                self.take_in_hand(Arc::clone(inner), ask);
            }
        }
    }

    fn take_in_hand(&mut self, inner: Arc<Inner>, ask: Ask) {
        let (handle, registration) = AbortHandle::new_pair();
        self.in_hand.insert(ask.key().to_owned(), handle);
        let answer = async move {
            let key = ask.key().to_owned();
            let answer = async { inner.try_answer(&ask).await };
            let answer = Abortable::new(answer, registration).await;
            (key, answer)
        };
        self.answering.push(answer.boxed());
    }

    /// Takes what a handler said. Whether there will never be an answer.
    fn answered(
        &mut self,
        pending: &mut PendingCall,
        key: String,
        answer: Result<Answer, NoAnswer>,
    ) -> bool {
        self.in_hand.remove(&key);
        let taken = answer.and_then(|answer| {
            let taken = pending.answer(&key, answer);
            taken.map_err(|error| NoAnswer::later(error.why()))
        });
        let Err(NoAnswer { why, is_final }) = taken else {
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
        // It may be sent again: the server ignores an answer that it has.
        let answers = pending.answers().clone().into_iter().collect();
        let request = Request::task(TaskMethod::Update, id).answered(answers, None);
        let raw = self.request(request).await?;
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
        let poll = task
            .poll_interval
            .unwrap_or(USUAL_POLL)
            .clamp(POLL_MIN, POLL_MAX);
        let (asks, limit) = (task.asks().count(), self.setup.limits.asks);
        if asks > limit {
            return Err(ErrorKind::TooManyAsks { asks, limit });
        }
        match task.status {
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
            _ => {
                pending.task_asks(task.into_asks())?;
                Ok((None, poll))
            }
        }
    }

    /// Polls a task until it is done, and has answered what it asks.
    pub(crate) async fn drive_task(
        self: &Arc<Self>,
        pending: &mut PendingCall,
        id: &str,
    ) -> Result<Value, ErrorKind> {
        let mut told = Told::ask(self, id);
        let mut asks = TaskAsks::default();
        loop {
            let look = async {
                self.tell_answers(pending, id).await?;
                self.look(pending, id).await
            };
            let (result, poll) = told.meanwhile(look.boxed()).await?;
            if let Some(result) = result {
                return Ok(result);
            }
            asks.update(self, pending.unanswered());
            if asks.in_hand.is_empty() && !asks.unanswered.is_empty() {
                return Err(ErrorKind::Unanswered(asks.unanswered));
            }
            tokio::select! {
                Some((key, answer)) = asks.answering.next() => {
                    let Ok(answer) = answer else { continue };
                    let is_final = asks.answered(pending, key, answer);
                    self.setup.onlooker.see(pending);
                    if is_final {
                        self.cancel_task(id).await?;
                        pending.end();
                        return Err(ErrorKind::Unanswered(asks.unanswered));
                    }
                }
                () = told.wait(poll) => {}
            }
        }
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
            Ok(Ok(Some(_))) => tokio::time::sleep(backoff(1)).await,
            // Nobody tells any more; looking goes on.
            Ok(Ok(None) | Err(_)) => {
                self.listening = None;
                pause.await;
            }
        }
    }
}
