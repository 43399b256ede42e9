//! Clients that listen for what becomes of their tasks.
//!
//! What always holds: what waits for a slow client is a list of its tasks, each at most once. How a task stands is read
//! when the client can be told, so that it is told the latest.
//!
//! That a task changed is known by the store's hints, and by looking at the revisions of all tasks that somebody listens
//! for: a hint may be lost, and not every store has them of other instances. One watcher does both for a server, for as
//! long as there is such a task.

use super::Tasks;
use super::request::{NotDone, slow};
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

/// Revisions that are asked for at a time.
const BATCH: usize = 256;

type Doing<T> = Pin<Box<dyn Future<Output = Result<T, NotDone>> + Send>>;

/// The tasks that somebody listens for.
#[derive(Default)]
pub(super) struct Watch(Mutex<Watched>);

#[derive(Default)]
struct Watched {
    /// Who listens for a task, and where in their list it is.
    tasks: HashMap<TaskId, Vec<(Arc<Known>, usize)>>,
    /// Is there a watcher?
    running: bool,
}

/// What one client knows of its tasks.
struct Known {
    tasks: Vec<TaskId>,
    news: Mutex<News>,
}

struct News {
    /// What the client knows of each task.
    told: Vec<Option<Told>>,
    /// Places of the tasks to look at, each at most once.
    due: VecDeque<usize>,
    waker: Option<Waker>,
}

/// What a client was told of a task last.
#[derive(Clone, Copy)]
struct Told {
    revision: u64,
    seen: u64,
}

impl Known {
    /// Nothing yet, and all of it is to be found out.
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

    /// Notes that a task is to be looked at, unless the client knows this revision of it. Gives whom to wake.
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
    /// Begins to watch tasks. `true`: there is no watcher yet.
    fn add(&self, known: &Arc<Known>) -> bool {
        let mut watched = self.0.lock();
        for (place, task) in known.tasks.iter().enumerate() {
            let listeners = watched.tasks.entry(task.clone()).or_default();
            listeners.push((known.clone(), place));
        }
        !known.tasks.is_empty() && !std::mem::replace(&mut watched.running, true)
    }

    /// Watches a task for this client no more.
    fn remove(&self, known: &Arc<Known>, task: &TaskId) {
        let mut watched = self.0.lock();
        if let Some(listeners) = watched.tasks.get_mut(task) {
            listeners.retain(|(listener, _)| !Arc::ptr_eq(listener, known));
            if listeners.is_empty() {
                watched.tasks.remove(task);
            }
        }
    }

    /// The tasks that are watched. `None`: there are none, and the watcher is no more.
    fn tasks(&self) -> Option<Vec<TaskId>> {
        let mut watched = self.0.lock();
        watched.running = !watched.tasks.is_empty();
        let all = || watched.tasks.keys().cloned().collect();
        watched.running.then(all)
    }

    /// Has those who listen for a task look at it, unless they know this revision of it.
    fn note(&self, task: &TaskId, revision: Option<u64>) {
        let wakers: Vec<Waker> = {
            let watched = self.0.lock();
            let listeners = watched.tasks.get(task).into_iter().flatten();
            let wakers = listeners.filter_map(|(known, place)| known.note(*place, revision));
            wakers.collect()
        };
        // Outside of the locks: a waker is somebody else's code.
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Watches until nobody listens for a task any more, or the server is no more.
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
            // Once for as long as it lasts.
            if std::mem::take(&mut reached) {
                tracing::warn!(%reason, "what became of tasks could not be looked at");
            }
            break;
        }
    }
}

/// Listens to hints until it is time to look. `None`: the server is no more.
async fn hear(tasks: &Weak<Tasks>, hints: &mut Receiver<Hint>, look: Duration) -> Option<()> {
    let mut time = std::pin::pin!(sleep(look));
    loop {
        let hint = tokio::select! {
            () = &mut time => return Some(()),
            hint = hints.recv() => hint,
        };
        match hint {
            Ok(hint) => note(tasks, &hint.task, None)?,
            // Some were lost, and nobody knows of which tasks: the next look finds out.
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => {
                time.await;
                return Some(());
            }
        }
    }
}

/// Notes which of these tasks have another revision than is known, and which are gone.
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

/// What becomes of the tasks that one client listens for.
pub(crate) struct TaskNews {
    owner: Arc<Tasks>,
    caller: Caller,
    /// Which of the tasks that it named are there; until that is known.
    finding: Option<Doing<Vec<TaskId>>>,
    known: Arc<Known>,
    /// A task that is being read, and its place.
    reading: Option<(usize, Doing<Task>)>,
}

impl TaskNews {
    /// The news of the tasks of these ids, as far as they are the caller's.
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

    /// The ids of those tasks that are there and the caller's. From then on they are watched.
    pub(crate) fn poll_open(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Vec<String>, RpcError>> {
        let Some(finding) = &mut self.finding else {
            return Poll::Ready(Ok(Vec::new()));
        };
        let found = ready!(finding.as_mut().poll(cx));
        self.finding = None;
        let found = match found.map_err(NotDone::told) {
            Ok(found) => found,
            Err(told) => return Poll::Ready(Err(told.unwrap_or_else(RpcError::from))),
        };
        let ids = found.iter().map(ToString::to_string).collect();
        self.known = Known::new(found);
        self.owner.watch(&self.known);
        Poll::Ready(Ok(ids))
    }

    /// A task that the client does not know as it is now, in full.
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

    /// The place of the next task to look at.
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

    /// What the client is told of a task that was read.
    fn tell(&self, place: usize, read: Result<Task, NotDone>) -> Option<ResultBody> {
        let task = match read {
            Ok(task) => task,
            // What the client was told is not the latest, so that the next look leads here again.
            Err(NotDone::Store(error)) => {
                tracing::warn!(%error, "a client that listens was not told of a task");
                return None;
            }
            // It is gone, or no longer theirs to know.
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

    /// Nothing more will be said of a task.
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

/// What a client can see of a task, but for the time of its last change: it has a revision for more than that.
fn seen(task: &Task) -> u64 {
    let mut hasher = DefaultHasher::new();
    task.status.hash(&mut hasher);
    task.status_message.hash(&mut hasher);
    (task.ttl, task.poll_interval).hash(&mut hasher);
    // Of an ask the key will do: it is never used again.
    for (key, _) in &task.asks {
        key.hash(&mut hasher);
    }
    hasher.finish()
}

/// Those of these tasks that are the caller's.
async fn find(tasks: Arc<Tasks>, ids: Vec<TaskId>, caller: Caller) -> Result<Vec<TaskId>, NotDone> {
    let time = tasks.services.limits.round_time;
    let finding = async {
        let mut found = Vec::new();
        for id in ids {
            match tasks.task(&id, &caller).await {
                Ok(_) => found.push(id),
                Err(NotDone::Store(error)) => return Err(NotDone::Store(error)),
                Err(_) => {}
            }
        }
        Ok(found)
    };
    timeout(time, finding)
        .await
        .unwrap_or_else(|_| Err(slow(time)))
}

async fn read(tasks: Arc<Tasks>, id: TaskId, caller: Caller) -> Result<Task, NotDone> {
    let time = tasks.services.limits.round_time;
    let reading = tasks.task(&id, &caller);
    timeout(time, reading)
        .await
        .unwrap_or_else(|_| Err(slow(time)))
}
