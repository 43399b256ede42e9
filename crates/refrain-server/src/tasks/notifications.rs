//! Subscriptions to the state of tasks.
//!
//! Invariant: at most one notification per task is pending for a slow client. The state is read when the client can take
//! it, so that it is the latest.
//!
//! Changes are known from the store's hints and from polling the revisions of all subscribed tasks: a hint may be lost, and
//! not every store has hints from other instances. One watcher does both while there are subscriptions.

use super::Tasks;
use super::request::TaskError;
use super::worker::next_hint;
use crate::auth::Caller;
use parking_lot::Mutex;
use refrain_store::{StoreError, StoredTask, TaskId};
use refrain_wire::{ResultBody, RpcError};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, timeout};

const BATCH: usize = 256;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

#[derive(Default)]
pub(super) struct Watch {
    watched: Mutex<Watched>,
    /// Notified when the last subscription ends.
    idle: Notify,
}

#[derive(Default)]
struct Watched {
    /// The subscribers of a task, and its index in their lists.
    tasks: HashMap<TaskId, Vec<(Arc<Known>, usize)>>,
    running: bool,
}

struct Known {
    tasks: Vec<TaskId>,
    news: Mutex<News>,
    /// Notified when a task becomes due.
    changed: Notify,
}

struct News {
    /// The state of each task that the client knows.
    known: Vec<Option<KnownState>>,
    /// Indexes of the tasks to read, each at most once.
    due: VecDeque<usize>,
}

#[derive(Clone, Copy)]
struct KnownState {
    revision: u64,
    /// Of what clients see of a task.
    hash: u64,
}

impl Known {
    /// All tasks are due: the client knows none of them.
    fn new(tasks: Vec<TaskId>) -> Arc<Self> {
        let news = News {
            known: vec![None; tasks.len()],
            due: (0..tasks.len()).collect(),
        };
        Arc::new(Self {
            tasks,
            news: Mutex::new(news),
            changed: Notify::new(),
        })
    }

    /// Makes a task due, unless the client knows this revision. `true` if it was not due.
    fn note(&self, place: usize, revision: Option<u64>) -> bool {
        let mut news = self.news.lock();
        let known = news.known[place].map(|known| known.revision);
        let is_known = revision.is_some() && known >= revision;
        let is_noted = !is_known && !news.due.contains(&place);
        if is_noted {
            news.due.push_back(place);
        }
        is_noted
    }

    /// The index of the next due task.
    async fn due(&self) -> usize {
        loop {
            let due = self.news.lock().due.pop_front();
            match due {
                Some(place) => return place,
                None => self.changed.notified().await,
            }
        }
    }
}

impl Watch {
    /// Adds a subscription. `true`: the watcher must be started.
    fn add(&self, known: &Arc<Known>) -> bool {
        let mut watched = self.watched.lock();
        for (place, task) in known.tasks.iter().enumerate() {
            let listeners = watched.tasks.entry(task.clone()).or_default();
            listeners.push((known.clone(), place));
        }
        !known.tasks.is_empty() && !std::mem::replace(&mut watched.running, true)
    }

    fn remove(&self, known: &Arc<Known>, task: &TaskId) {
        let mut watched = self.watched.lock();
        if let Some(listeners) = watched.tasks.get_mut(task) {
            listeners.retain(|(listener, _)| !Arc::ptr_eq(listener, known));
            if listeners.is_empty() {
                watched.tasks.remove(task);
            }
            if watched.tasks.is_empty() {
                self.idle.notify_one();
            }
        }
    }

    /// The subscribed tasks. `None`: there are none, and the watcher ends.
    fn tasks(&self) -> Option<Vec<TaskId>> {
        let mut watched = self.watched.lock();
        watched.running = !watched.tasks.is_empty();
        let all = || watched.tasks.keys().cloned().collect();
        watched.running.then(all)
    }

    /// Makes a task due for its subscribers, unless they know this revision.
    fn note(&self, task: &TaskId, revision: Option<u64>) {
        let noted: Vec<Arc<Known>> = {
            let watched = self.watched.lock();
            let listeners = watched.tasks.get(task).into_iter().flatten();
            let noted = listeners.filter(|(known, place)| known.note(*place, revision));
            noted.map(|(known, _)| known.clone()).collect()
        };
        // Outside of the lock: a waker is foreign code.
        noted.iter().for_each(|known| known.changed.notify_one());
    }
}

/// Watches until there are no subscriptions.
async fn watch(tasks: Arc<Tasks>) {
    let look = tasks.options.look;
    let mut hints = Some(tasks.store.hints());
    let mut looks = tokio::time::interval_at(tokio::time::Instant::now() + look, look);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_reached = true;
    loop {
        tokio::select! {
            // Changes of lost hints are found by the next poll.
            hint = next_hint(&mut hints) => {
                if let Some(hint) = hint {
                    tasks.watch.note(&hint.task, None);
                }
                continue;
            }
            () = tasks.watch.idle.notified() => {}
            _ = looks.tick() => {}
        }
        let Some(watched) = tasks.watch.tasks() else {
            return;
        };
        match tasks.look_at(&watched).await {
            Ok(()) => is_reached = true,
            // Logged once for each outage.
            Err(error) => {
                if std::mem::take(&mut is_reached) {
                    tracing::warn!(%error, "failed to read the revisions of subscribed tasks");
                }
            }
        }
    }
}

/// The stream of one subscription to tasks.
pub(crate) struct TaskNews {
    owner: Arc<Tasks>,
    caller: Caller,
    known: Arc<Known>,
    /// Finds the tasks of the caller among the requested ones.
    finding: Option<Boxed<Result<Vec<TaskId>, TaskError>>>,
    /// Waits for the next notification.
    next: Option<Boxed<ResultBody>>,
}

impl TaskNews {
    /// Subscribes to the tasks with these ids that belong to the caller.
    pub(crate) fn new(tasks: &Arc<Tasks>, ids: &[String], caller: &Caller) -> Self {
        let ids: Vec<TaskId> = ids.iter().filter_map(|id| TaskId::parse(id)).collect();
        let finding = find(tasks.clone(), ids, caller.clone());
        Self {
            owner: tasks.clone(),
            caller: caller.clone(),
            known: Known::new(Vec::new()),
            finding: Some(Box::pin(finding)),
            next: None,
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
            Err(error) => return Poll::Ready(Err(error.unwrap_or_else(RpcError::from))),
        };
        let ids = found.iter().map(ToString::to_string).collect();
        self.known = Known::new(found);
        if self.owner.watch.add(&self.known) {
            tokio::spawn(watch(self.owner.clone()));
        }
        Poll::Ready(Ok(ids))
    }

    /// The next task whose state the client does not know.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<ResultBody> {
        let next = self.next.get_or_insert_with(|| {
            let (owner, known) = (self.owner.clone(), self.known.clone());
            Box::pin(next(owner, known, self.caller.clone()))
        });
        let body = ready!(next.as_mut().poll(cx));
        self.next = None;
        Poll::Ready(body)
    }
}

/// The next notification of a subscription.
async fn next(tasks: Arc<Tasks>, known: Arc<Known>, caller: Caller) -> ResultBody {
    loop {
        let place = known.due().await;
        let id = &known.tasks[place];
        let task = match tasks.in_time(tasks.task(id, &caller)).await {
            Ok(task) => task,
            // The client does not know the latest revision, so the next poll makes it due again.
            Err(TaskError::Store(error)) => {
                tracing::warn!(%error, "failed to read a subscribed task");
                continue;
            }
            // It is gone, or the caller lost access.
            Err(_) => {
                tasks.watch.remove(&known, id);
                continue;
            }
        };
        let (revision, hash) = (task.revision, hash(&task));
        let state = KnownState { revision, hash };
        let before = known.news.lock().known[place].replace(state);
        if before.is_some_and(|known| known.hash == hash) {
            continue;
        }
        let is_over = task.status.is_terminal();
        let info = tasks.task_info(task, &caller.principal);
        if is_over || info.is_none() {
            tasks.watch.remove(&known, id);
        }
        if let Some(info) = info {
            return info.to_detailed();
        }
    }
}

impl Drop for TaskNews {
    fn drop(&mut self) {
        for task in &self.known.tasks {
            self.owner.watch.remove(&self.known, task);
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
    /// Makes the tasks due whose revision changed or that are gone.
    async fn look_at(&self, watched: &[TaskId]) -> Result<(), StoreError> {
        let time = self.services.limits.round_time;
        for batch in watched.chunks(BATCH) {
            let revisions = timeout(time, self.store.revisions(batch)).await;
            let revisions = revisions.unwrap_or_else(|_| Err(StoreError::timed_out(time)))?;
            let revisions: HashMap<TaskId, u64> = revisions.into_iter().collect();
            for task in batch {
                self.watch.note(task, revisions.get(task).copied());
            }
        }
        Ok(())
    }
}

/// A hash of what clients see of a task, without the time of its last change.
fn hash(task: &StoredTask) -> u64 {
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
