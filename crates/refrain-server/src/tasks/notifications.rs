//! Subscriptions to task states.
//!
//! Invariant: at most one notification per task is pending for a slow client. The state is read when the client is ready
//! for it, so that it is the latest. The subscriptions of a caller read one task at a time.
//!
//! While there are subscriptions, one watcher receives the store's hints that a task has changed. It also polls the
//! revisions (numbers of changes) of all subscribed tasks: hints may be lost, and not every store reports changes by other
//! instances.

use super::Tasks;
use super::request::TaskError;
use super::worker::next_hint;
use crate::auth::Caller;
use crate::timer::within;
use parking_lot::Mutex;
use refrain_core::limited_event;
use refrain_store::{StoreError, StoredTask, TaskId};
use refrain_wire::{ResultBody, RpcError};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio::time::MissedTickBehavior;

/// Maximum number of tasks whose revisions are read at once.
const REVISION_BATCH: usize = 256;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The subscriptions to tasks on this instance, which share one watcher.
#[derive(Default)]
pub(super) struct TaskWatch {
    watched: Mutex<WatchState>,
    /// Notified when the last subscription ends.
    idle: Notify,
}

#[derive(Default)]
struct WatchState {
    /// The subscribers of each task, with the task's index in their lists.
    tasks: HashMap<TaskId, Vec<(Arc<Subscriber>, usize)>>,
    is_watching: bool,
}

/// The subscribed tasks of one client.
struct Subscriber {
    tasks: Vec<TaskId>,
    state: Mutex<SubscriberState>,
    changed: Notify,
}

struct SubscriberState {
    /// The last reported state of each task.
    reported: Vec<Option<ReportedState>>,
    /// Indexes of the tasks to read, without duplicates.
    due: VecDeque<usize>,
}

#[derive(Clone, Copy)]
struct ReportedState {
    revision: u64,
    /// Hash of the public state.
    hash: u64,
}

impl Subscriber {
    /// At first all tasks are due.
    fn new(tasks: Vec<TaskId>) -> Arc<Self> {
        let state = SubscriberState {
            reported: vec![None; tasks.len()],
            due: (0..tasks.len()).collect(),
        };
        Arc::new(Self {
            tasks,
            state: Mutex::new(state),
            changed: Notify::new(),
        })
    }

    /// Makes a task due, unless this revision was reported. `true` if the task became due.
    fn mark_due(&self, index: usize, revision: Option<u64>) -> bool {
        let mut state = self.state.lock();
        let reported = state.reported[index].map(|reported| reported.revision);
        let is_reported = revision.is_some() && reported >= revision;
        let becomes_due = !is_reported && !state.due.contains(&index);
        if becomes_due {
            state.due.push_back(index);
        }
        becomes_due
    }

    /// Waits for a due task, and returns its index.
    async fn next_due(&self) -> usize {
        loop {
            let due = self.state.lock().due.pop_front();
            match due {
                Some(index) => return index,
                None => self.changed.notified().await,
            }
        }
    }
}

impl TaskWatch {
    /// Adds a subscription. `true`: the watcher must be started.
    fn add(&self, subscriber: &Arc<Subscriber>) -> bool {
        let mut watched = self.watched.lock();
        for (index, task) in subscriber.tasks.iter().enumerate() {
            let subscribers = watched.tasks.entry(task.clone()).or_default();
            subscribers.push((subscriber.clone(), index));
        }
        !subscriber.tasks.is_empty() && !std::mem::replace(&mut watched.is_watching, true)
    }

    fn remove(&self, subscriber: &Arc<Subscriber>, task: &TaskId) {
        let mut watched = self.watched.lock();
        if let Some(subscribers) = watched.tasks.get_mut(task) {
            subscribers.retain(|(other, _)| !Arc::ptr_eq(other, subscriber));
            if subscribers.is_empty() {
                watched.tasks.remove(task);
            }
            if watched.tasks.is_empty() {
                self.idle.notify_one();
            }
        }
    }

    /// The subscribed tasks. `None`: there are no subscriptions, and the watcher ends.
    fn tasks(&self) -> Option<Vec<TaskId>> {
        let mut watched = self.watched.lock();
        watched.is_watching = !watched.tasks.is_empty();
        let all = || watched.tasks.keys().cloned().collect();
        watched.is_watching.then(all)
    }

    /// Makes a task due for its subscribers, unless this revision was reported.
    fn mark_due(&self, task: &TaskId, revision: Option<u64>) {
        let subscribers: Vec<Arc<Subscriber>> = {
            let watched = self.watched.lock();
            let all = watched.tasks.get(task).into_iter().flatten();
            let due = all.filter(|(subscriber, index)| subscriber.mark_due(*index, revision));
            due.map(|(subscriber, _)| subscriber.clone()).collect()
        };
        // Outside the lock, because a waker may run arbitrary code.
        for subscriber in subscribers {
            subscriber.changed.notify_one();
        }
    }
}

/// The watcher, which runs while there are subscriptions.
async fn watch(tasks: Arc<Tasks>) {
    let period = tasks.options.store_poll;
    let mut hints = Some(tasks.store.hints());
    let mut polls = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
    polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_available = true;
    loop {
        tokio::select! {
            // Changes whose hints were lost are found by the next poll.
            hint = next_hint(&mut hints) => {
                if let Some(hint) = hint {
                    tasks.watch.mark_due(&hint.task, None);
                }
                continue;
            }
            () = tasks.watch.idle.notified() => {}
            _ = polls.tick() => {}
        }
        let Some(watched) = tasks.watch.tasks() else {
            return;
        };
        match tasks.mark_changed(&watched).await {
            Ok(()) => is_available = true,
            // Logged once per outage.
            Err(error) => {
                if std::mem::take(&mut is_available) {
                    limited_event!(WARN, %error, "failed to poll subscribed tasks");
                }
            }
        }
    }
}

/// A client's subscription to tasks.
pub(crate) struct TaskSubscription {
    tasks: Arc<Tasks>,
    caller: Caller,
    subscriber: Arc<Subscriber>,
    /// Looks up which of the requested tasks belong to the caller.
    lookup: Option<BoxFuture<Result<Vec<TaskId>, TaskError>>>,
    next: Option<BoxFuture<ResultBody>>,
}

impl TaskSubscription {
    /// Subscribes to the tasks with these ids that belong to the caller.
    pub(crate) fn new(tasks: &Arc<Tasks>, ids: &[String], caller: &Caller) -> Self {
        let ids: Vec<TaskId> = ids.iter().filter_map(|id| TaskId::parse(id)).collect();
        let lookup = find_owned(tasks.clone(), ids, caller.clone());
        Self {
            tasks: tasks.clone(),
            caller: caller.clone(),
            subscriber: Subscriber::new(Vec::new()),
            lookup: Some(Box::pin(lookup)),
            next: None,
        }
    }

    /// The ids of the caller's tasks, which are watched from now on.
    pub(crate) fn poll_open(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Vec<String>, RpcError>> {
        let Some(lookup) = &mut self.lookup else {
            return Poll::Ready(Ok(Vec::new()));
        };
        let found = ready!(lookup.as_mut().poll(cx));
        self.lookup = None;
        let found = match found.map_err(TaskError::into_rpc) {
            Ok(found) => found,
            Err(error) => return Poll::Ready(Err(error.unwrap_or_else(RpcError::from))),
        };
        let ids = found.iter().map(ToString::to_string).collect();
        self.subscriber = Subscriber::new(found);
        if self.tasks.watch.add(&self.subscriber) {
            tokio::spawn(watch(self.tasks.clone()));
        }
        Poll::Ready(Ok(ids))
    }

    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<ResultBody> {
        let next = self.next.get_or_insert_with(|| {
            let (tasks, subscriber) = (self.tasks.clone(), self.subscriber.clone());
            Box::pin(next_state(tasks, subscriber, self.caller.clone()))
        });
        let body = ready!(next.as_mut().poll(cx));
        self.next = None;
        Poll::Ready(body)
    }
}

/// Waits for a state that differs from the last reported one.
async fn next_state(tasks: Arc<Tasks>, subscriber: Arc<Subscriber>, caller: Caller) -> ResultBody {
    loop {
        let index = subscriber.next_due().await;
        // A separate task waits for the caller's turn. The turn would otherwise be assigned to a future that is not polled while
        // its client does not read, and the caller's other subscriptions would wait. Dropping the set aborts the task.
        let mut reading = JoinSet::new();
        reading.spawn(read_state(
            tasks.clone(),
            subscriber.clone(),
            caller.clone(),
            index,
        ));
        let read = reading.join_next().await.and_then(Result::transpose);
        match read.map(|read| read.map_err(JoinError::try_into_panic)) {
            Some(Ok(body)) => return body,
            Some(Err(Ok(panic))) => resume_unwind(panic),
            // The runtime is shutting down, so this task ends too.
            Some(Err(Err(_))) => std::future::pending().await,
            None => {}
        }
    }
}

/// Reads a task when it is the caller's turn. `None` if there is nothing new to report.
async fn read_state(
    tasks: Arc<Tasks>,
    subscriber: Arc<Subscriber>,
    caller: Caller,
    index: usize,
) -> Option<ResultBody> {
    let id = &subscriber.tasks[index];
    // Held until the notification is made, so that few tasks are in memory.
    let _turn = tasks.state_turns.acquire(caller.limit_key()).await;
    let read = async {
        let permit = tasks.queue.acquire(caller.limit_key()).await;
        Ok((permit, tasks.task(id, &caller).await?))
    };
    let (_permit, task) = match tasks.in_time(read).await {
        Ok(read) => read,
        // The revision stays unreported, so the next poll makes the task due again.
        Err(TaskError::Store(error)) => {
            limited_event!(WARN, %error, "failed to read subscribed task");
            return None;
        }
        // The task expired, or the caller lost access.
        Err(_) => {
            tasks.watch.remove(&subscriber, id);
            return None;
        }
    };
    let (revision, hash) = (task.revision, hash(&task));
    let state = ReportedState { revision, hash };
    let previous = subscriber.state.lock().reported[index].replace(state);
    if previous.is_some_and(|previous| previous.hash == hash) {
        return None;
    }
    let is_terminal = task.status.is_terminal();
    let body = tasks.detailed(task, &caller).await;
    if is_terminal || body.is_none() {
        tasks.watch.remove(&subscriber, id);
    }
    body
}

impl Drop for TaskSubscription {
    fn drop(&mut self) {
        for task in &self.subscriber.tasks {
            self.tasks.watch.remove(&self.subscriber, task);
        }
    }
}

impl std::fmt::Debug for TaskSubscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskSubscription")
            .field("tasks", &self.subscriber.tasks)
            .finish_non_exhaustive()
    }
}

impl Tasks {
    /// Makes changed and deleted tasks due.
    async fn mark_changed(&self, watched: &[TaskId]) -> Result<(), StoreError> {
        let time = self.services.limits.round_time;
        for batch in watched.chunks(REVISION_BATCH) {
            let revisions = within(time, self.store.revisions(batch)).await;
            let revisions = revisions.unwrap_or_else(|| Err(StoreError::timed_out(time)))?;
            let revisions: HashMap<TaskId, u64> = revisions.into_iter().collect();
            for task in batch {
                self.watch.mark_due(task, revisions.get(task).copied());
            }
        }
        Ok(())
    }
}

/// A hash of a task's public state, without the time of its last change.
fn hash(task: &StoredTask) -> u64 {
    let mut hasher = DefaultHasher::new();
    task.status.hash(&mut hasher);
    task.status_message.hash(&mut hasher);
    (task.ttl, task.poll_interval).hash(&mut hasher);
    // The keys suffice, because each key belongs to one ask of a task.
    for (key, _) in &task.asks {
        key.hash(&mut hasher);
    }
    hasher.finish()
}

/// The tasks with these ids that belong to the caller.
async fn find_owned(
    tasks: Arc<Tasks>,
    ids: Vec<TaskId>,
    caller: Caller,
) -> Result<Vec<TaskId>, TaskError> {
    let lookup = async {
        let mut found = Vec::new();
        for id in ids {
            let _permit = tasks.queue.acquire(caller.limit_key()).await;
            match tasks.open_asks(&id, &caller, &[]).await {
                Ok(_) => found.push(id),
                Err(TaskError::Store(error)) => return Err(TaskError::Store(error)),
                Err(_) => {}
            }
        }
        Ok(found)
    };
    tasks.in_time(lookup).await
}
