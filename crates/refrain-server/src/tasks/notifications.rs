//! Subscriptions to the state of tasks.
//!
//! Invariant: a slow client is owed at most one notification per task. The state is read when the client can take it, so
//! that it is the latest.
//!
//! Changes are known from the store's hints and from polling the revisions of all subscribed tasks: a hint may be lost, and
//! not every store has hints from other instances. One watcher does both while there are subscriptions.

use super::Tasks;
use super::request::TaskError;
use crate::auth::Caller;
use parking_lot::Mutex;
use refrain_store::{Hint, Task, TaskId};
use refrain_wire::{ResultBody, RpcError};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{sleep, timeout};

/// Revisions of one query.
const BATCH: usize = 256;

type Doing<T> = Pin<Box<dyn Future<Output = Result<T, TaskError>> + Send>>;

/// The subscribed tasks.
#[derive(Default)]
pub(super) struct Watch(Mutex<Watched>);

#[derive(Default)]
struct Watched {
    /// The subscribers of a task, and its index in their lists.
    tasks: HashMap<TaskId, Vec<(Arc<Known>, usize)>>,
    /// Is there a watcher?
    running: bool,
}

/// The tasks of one subscription.
struct Known {
    tasks: Vec<TaskId>,
    news: Mutex<News>,
}

struct News {
    /// What the client was last told of each task.
    told: Vec<Option<Told>>,
    /// Indexes of the tasks to read, each at most once.
    due: VecDeque<usize>,
    waker: Option<Waker>,
}

/// The state of a task that a client was last told.
#[derive(Clone, Copy)]
struct Told {
    revision: u64,
    seen: u64,
}

impl Known {
    /// All tasks are due: the client knows none of them.
    fn new(tasks: Vec<TaskId>) -> Arc<Self> {
        let news = News {
            told: vec![None; tasks.len()],
            due: (0..tasks.len()).collect(),
            waker: None,
        };
        Arc::new(Self {
            tasks,
            news: Mutex::new(news),
        })
    }

    /// Makes a task due, unless the client knows this revision. Returns the waker to wake.
    fn note(&self, place: usize, revision: Option<u64>) -> Option<Waker> {
        let mut news = self.news.lock();
        let knows = |told: Told| revision.is_some_and(|revision| told.revision >= revision);
        let known = news.told[place].is_some_and(knows);
        if known || news.due.contains(&place) {
            return None;
        }
        news.due.push_back(place);
        news.waker.take()
    }
}

impl Watch {
    /// Adds a subscription. `true`: the watcher must be started.
    fn add(&self, known: &Arc<Known>) -> bool {
        let mut watched = self.0.lock();
        for (place, task) in known.tasks.iter().enumerate() {
            let listeners = watched.tasks.entry(task.clone()).or_default();
            listeners.push((known.clone(), place));
        }
        !known.tasks.is_empty() && !std::mem::replace(&mut watched.running, true)
    }

    /// Removes a task from a subscription.
    fn remove(&self, known: &Arc<Known>, task: &TaskId) {
        let mut watched = self.0.lock();
        if let Some(listeners) = watched.tasks.get_mut(task) {
            listeners.retain(|(listener, _)| !Arc::ptr_eq(listener, known));
            if listeners.is_empty() {
                watched.tasks.remove(task);
            }
        }
    }

    /// The subscribed tasks. `None`: there are none, and the watcher ends.
    fn tasks(&self) -> Option<Vec<TaskId>> {
        let mut watched = self.0.lock();
        watched.running = !watched.tasks.is_empty();
        let all = || watched.tasks.keys().cloned().collect();
        watched.running.then(all)
    }

    /// Makes a task due for its subscribers, unless they know this revision.
    fn note(&self, task: &TaskId, revision: Option<u64>) {
        let wakers: Vec<Waker> = {
            let watched = self.0.lock();
            let listeners = watched.tasks.get(task).into_iter().flatten();
            let wakers = listeners.filter_map(|(known, place)| known.note(*place, revision));
            wakers.collect()
        };
        // Outside of the locks: a waker is foreign code.
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Watches until there are no subscriptions, or the server is dropped.
async fn watch(tasks: Weak<Tasks>, mut hints: Receiver<Hint>, look: Duration) {
    let mut reached = true;
    while let Some(()) = hear(&tasks, &mut hints, look).await {
        let Some(alive) = tasks.upgrade() else {
            return;
        };
        let Some(watched) = alive.watch.tasks() else {
            return;
        };
        let (store, time) = (alive.store.clone(), alive.services.limits.round_time);
        drop(alive);
        for batch in watched.chunks(BATCH) {
            let looked = timeout(time, store.revisions(batch)).await;
            let reason = match looked {
                Ok(Ok(revisions)) => {
                    let revisions = revisions.into_iter().collect();
                    compare(&tasks, batch, &revisions);
                    reached = true;
                    continue;
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {time:?}"),
            };
            // Logged once for each outage.
            if std::mem::take(&mut reached) {
                tracing::warn!(%reason, "what became of tasks could not be looked at");
            }
            break;
        }
    }
}

/// Receives hints until it is time to poll. `None`: the server was dropped.
async fn hear(tasks: &Weak<Tasks>, hints: &mut Receiver<Hint>, look: Duration) -> Option<()> {
    let mut time = std::pin::pin!(sleep(look));
    loop {
        let hint = tokio::select! {
            () = &mut time => return Some(()),
            hint = hints.recv() => hint,
        };
        match hint {
            Ok(hint) => note(tasks, &hint.task, None)?,
            // Lost hints: the next poll finds the changes.
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => {
                time.await;
                return Some(());
            }
        }
    }
}

/// Makes the tasks due whose revision changed or that are gone.
fn compare(tasks: &Weak<Tasks>, batch: &[TaskId], revisions: &HashMap<TaskId, u64>) {
    for task in batch {
        if note(tasks, task, revisions.get(task).copied()).is_none() {
            return;
        }
    }
}

fn note(tasks: &Weak<Tasks>, task: &TaskId, revision: Option<u64>) -> Option<()> {
    tasks.upgrade()?.watch.note(task, revision);
    Some(())
}

/// The stream of one subscription to tasks.
pub(crate) struct TaskNews {
    owner: Arc<Tasks>,
    caller: Caller,
    /// Finds the tasks of the caller among the requested ones.
    finding: Option<Doing<Vec<TaskId>>>,
    known: Arc<Known>,
    /// A task that is being read, by index.
    reading: Option<(usize, Doing<Task>)>,
}

impl TaskNews {
    /// Subscribes to the tasks with these ids that belong to the caller.
    pub(crate) fn new(tasks: &Arc<Tasks>, ids: &[String], caller: &Caller) -> Self {
        let ids: Vec<TaskId> = ids.iter().filter_map(|id| TaskId::parse(id)).collect();
        let finding = find(tasks.clone(), ids, caller.clone());
        Self {
            owner: tasks.clone(),
            caller: caller.clone(),
            finding: Some(Box::pin(finding)),
            known: Known::new(Vec::new()),
            reading: None,
        }
    }

    /// The ids of the tasks that belong to the caller. They are watched from then on.
    pub(crate) fn poll_open(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Vec<String>, RpcError>> {
        let Some(finding) = &mut self.finding else {
            return Poll::Ready(Ok(Vec::new()));
        };
        let found = ready!(finding.as_mut().poll(cx));
        self.finding = None;
        let found = match found.map_err(TaskError::into_rpc) {
            Ok(found) => found,
            Err(told) => return Poll::Ready(Err(told.unwrap_or_else(RpcError::from))),
        };
        let ids = found.iter().map(ToString::to_string).collect();
        self.known = Known::new(found);
        self.owner.watch(&self.known);
        Poll::Ready(Ok(ids))
    }

    /// The next task whose state the client does not know.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<ResultBody> {
        loop {
            let Some((place, reading)) = &mut self.reading else {
                let place = ready!(self.poll_due(cx));
                let task = self.known.tasks[place].clone();
                let reading = read(self.owner.clone(), task, self.caller.clone());
                self.reading = Some((place, Box::pin(reading)));
                continue;
            };
            let place = *place;
            let read = ready!(reading.as_mut().poll(cx));
            self.reading = None;
            if let Some(body) = self.tell(place, read) {
                return Poll::Ready(body);
            }
        }
    }

    /// The index of the next due task.
    fn poll_due(&self, cx: &mut Context<'_>) -> Poll<usize> {
        let mut news = self.known.news.lock();
        match news.due.pop_front() {
            Some(place) => Poll::Ready(place),
            None => {
                news.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The notification for a task that was read.
    fn tell(&self, place: usize, read: Result<Task, TaskError>) -> Option<ResultBody> {
        let task = match read {
            Ok(task) => task,
            // The client does not know the latest revision, so the next poll makes it due again.
            Err(TaskError::Store(error)) => {
                tracing::warn!(%error, "a client that listens was not told of a task");
                return None;
            }
            // It is gone, or the caller lost access.
            Err(_) => {
                self.leave(place);
                return None;
            }
        };
        let (revision, seen) = (task.revision, seen(&task));
        let before = self.known.news.lock().told[place].replace(Told { revision, seen });
        if before.is_some_and(|told| told.seen == seen) {
            return None;
        }
        let over = task.status.is_terminal();
        let info = self.owner.task_info(task, &self.caller.principal);
        if over || info.is_none() {
            self.leave(place);
        }
        Some(info?.to_detailed())
    }

    /// Ends the subscription to a task.
    fn leave(&self, place: usize) {
        let watch = &self.owner.watch;
        watch.remove(&self.known, &self.known.tasks[place]);
    }
}

impl Drop for TaskNews {
    fn drop(&mut self) {
        for place in 0..self.known.tasks.len() {
            self.leave(place);
        }
    }
}

impl std::fmt::Debug for TaskNews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskNews")
            .field("tasks", &self.known.tasks)
            .finish_non_exhaustive()
    }
}

impl Tasks {
    fn watch(self: &Arc<Self>, known: &Arc<Known>) {
        if self.watch.add(known) {
            let (tasks, hints) = (Arc::downgrade(self), self.store.hints());
            tokio::spawn(watch(tasks, hints, self.options.look));
        }
    }
}

/// A hash of what clients see of a task, without the time of its last change.
fn seen(task: &Task) -> u64 {
    let mut hasher = DefaultHasher::new();
    task.status.hash(&mut hasher);
    task.status_message.hash(&mut hasher);
    (task.ttl, task.poll_interval).hash(&mut hasher);
    // The key of an ask is unique within a task.
    for (key, _) in &task.asks {
        key.hash(&mut hasher);
    }
    hasher.finish()
}

/// The tasks among these that belong to the caller.
async fn find(
    tasks: Arc<Tasks>,
    ids: Vec<TaskId>,
    caller: Caller,
) -> Result<Vec<TaskId>, TaskError> {
    let finding = async {
        let mut found = Vec::new();
        for id in ids {
            match tasks.task(&id, &caller).await {
                Ok(_) => found.push(id),
                Err(TaskError::Store(error)) => return Err(TaskError::Store(error)),
                Err(_) => {}
            }
        }
        Ok(found)
    };
    tasks.in_time(finding).await
}

async fn read(tasks: Arc<Tasks>, id: TaskId, caller: Caller) -> Result<Task, TaskError> {
    tasks.in_time(tasks.task(&id, &caller)).await
}
