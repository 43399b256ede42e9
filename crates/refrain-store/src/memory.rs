//! A store in the memory of one process.

mod entry;
mod outbox;
mod queue;
mod usage;

use crate::quota::{Quota, RECORD_BYTES};
use crate::store::{StoreError, StoreFuture, TaskStore};
use crate::task::{
    Claim, ClaimedTask, Commit, CommitResult, Creation, Delivery, Hint, Lease, ListTasks, NewTask,
    Next, OpenAsks, StoredStatus, StoredTask, SweepCounts, TaskId, TaskRow,
};
use entry::{MemoryTask, after};
use outbox::Outbox;
use parking_lot::{Mutex, MutexGuard};
use queue::ClaimQueue;
use refrain_core::{
    FlowId, LogFuture, LogKey, MemoryReplayLog, Principal, RecordState, ReplayLog, Retention,
    Source, SystemSource,
};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::broadcast;
use usage::{UsageTable, task_share, token_share};

/// A store in the memory of one process, for tests and for servers whose tasks need not survive a restart.
///
/// Clones share their content.
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<Mutex<MemoryState>>,
    replay_log: MemoryReplayLog,
    source: Arc<dyn Source>,
    hints: broadcast::Sender<Hint>,
}

/// The content of the store.
#[derive(Default)]
struct MemoryState {
    tasks: HashMap<TaskId, MemoryTask>,
    flows: HashMap<(FlowId, Principal), TaskId>,
    queue: ClaimQueue,
    usage: UsageTable,
    /// The number of tasks created so far.
    created: u64,
    tokens: HashMap<String, MemoryToken>,
    outbox: Outbox,
}

struct MemoryToken {
    account: Principal,
    until: SystemTime,
    bytes: Vec<u8>,
}

impl MemoryStore {
    /// Makes an empty store with the operating system's clock.
    pub fn new() -> Self {
        Self::with_source(Arc::new(SystemSource::new()))
    }

    /// Makes an empty store with the clock of this source.
    pub fn with_source(source: Arc<dyn Source>) -> Self {
        let replay_log = MemoryReplayLog::new();
        let mut state = MemoryState::default();
        state.usage.log = replay_log.clone();
        Self {
            inner: Arc::new(Mutex::new(state)),
            replay_log,
            source,
            hints: broadcast::Sender::new(crate::HINT_CAPACITY),
        }
    }

    /// Returns the time and the locked content.
    fn lock(&self) -> (SystemTime, MutexGuard<'_, MemoryState>) {
        (self.source.now(), self.inner.lock())
    }

    fn hint(&self, task: &TaskId, due: bool, own: bool) {
        let task = task.clone();
        // Fails if there is no listener.
        let _ = self.hints.send(Hint { task, due, own });
    }
}

impl MemoryState {
    fn find_owned(&self, id: &TaskId, owner: &Principal) -> Option<&MemoryTask> {
        let entry = self.tasks.get(id)?;
        (entry.row.owner == *owner).then_some(entry)
    }

    fn find_held(&self, lease: &Lease) -> Result<&MemoryTask, StoreError> {
        let is_held = |entry: &&MemoryTask| entry.fence == lease.fence && entry.row.due.is_some();
        let entry = self.tasks.get(&lease.task).filter(is_held);
        entry.ok_or(StoreError::Lost)
    }

    /// Changes a task. `None`: there is no such task.
    fn update<T>(
        &mut self,
        id: &TaskId,
        now: SystemTime,
        change: impl FnOnce(&mut MemoryTask) -> T,
    ) -> Option<T> {
        let entry = self.tasks.get_mut(id)?;
        let before = task_share(entry);
        let was_ended = entry.ended.is_some();
        let changed = change(entry);
        if !was_ended {
            self.outbox.add(entry);
        }
        self.queue.update(entry, now);
        self.usage.add(&entry.account, task_share(entry));
        self.usage.subtract(&entry.account, before);
        Some(changed)
    }

    fn claim(&mut self, claim: Claim<'_>, now: SystemTime) -> Vec<ClaimedTask> {
        // The update makes an overdue task ready.
        for id in self.queue.overdue(now) {
            self.update(&id, now, |_| ());
        }
        let until = after(now, claim.lease);
        let found = self.queue.find(claim, &self.tasks, now);
        let claim = |id| self.update(id, now, |entry| entry.claim(claim.worker, now, until));
        found.iter().filter_map(claim).collect()
    }

    fn create(&mut self, new: NewTask, now: SystemTime) -> Result<Creation, StoreError> {
        let key = (new.flow, new.owner.clone());
        let existing = self.flows.get(&key).unwrap_or(&new.id);
        if let Some(entry) = self.tasks.get(existing) {
            return match entry.row.owner == new.owner {
                true => Ok(Creation::Existing(entry.task())),
                false => Err(StoreError::IdInUse),
            };
        }
        let bytes = new.call.len() + new.journal.len();
        self.usage.check(&new.account, 1, bytes as u64)?;
        self.created += 1;
        let id = new.id.clone();
        let mut entry = MemoryTask::new(new, self.created, now);
        self.queue.update(&mut entry, now);
        self.usage.add(&entry.account, task_share(&entry));
        let lease = entry.row.worker.is_some().then(|| entry.lease());
        let task = entry.task();
        self.flows.insert(key, id.clone());
        self.tasks.insert(id, entry);
        Ok(Creation::New(task, lease))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("tasks", &self.inner.lock().tasks.len())
            .finish_non_exhaustive()
    }
}

/// A ready future with this value.
fn ready_ok<'a, T: Send + 'a>(value: T) -> StoreFuture<'a, T> {
    Box::pin(ready(Ok(value)))
}

/// A ready future with this error.
fn ready_err<'a, T: Send + 'a>(error: impl Into<StoreError>) -> StoreFuture<'a, T> {
    Box::pin(ready(Err(error.into())))
}

impl TaskStore for MemoryStore {
    fn set_quota(&self, quota: Quota) {
        self.inner.lock().usage.quota = quota;
    }

    fn create(&self, new: NewTask) -> StoreFuture<'_, Creation> {
        let (now, mut inner) = self.lock();
        let created = inner.create(new, now);
        if let Ok(Creation::New(task, None)) = &created {
            self.hint(&task.id, true, true);
        }
        Box::pin(ready(created))
    }

    fn get<'a>(
        &'a self,
        id: &'a TaskId,
        owner: &'a Principal,
    ) -> StoreFuture<'a, Option<StoredTask>> {
        let (_, inner) = self.lock();
        ready_ok(inner.find_owned(id, owner).map(|entry| entry.task()))
    }

    fn open_asks<'a>(
        &'a self,
        id: &'a TaskId,
        owner: &'a Principal,
        keys: &'a [&'a str],
    ) -> StoreFuture<'a, Option<OpenAsks>> {
        let keys: HashSet<&str> = keys.iter().copied().collect();
        let (_, inner) = self.lock();
        let entry = inner.find_owned(id, owner);
        ready_ok(entry.map(|entry| entry.open_asks(&keys)))
    }

    fn answer<'a>(
        &'a self,
        id: &'a TaskId,
        owner: &'a Principal,
        answers: Vec<(String, Vec<u8>)>,
    ) -> StoreFuture<'a, bool> {
        let (now, mut inner) = self.lock();
        let Some(entry) = inner.find_owned(id, owner) else {
            return ready_ok(false);
        };
        let bytes = answers.iter().map(|(_, answer)| answer.len() as u64).sum();
        if entry.row.due.is_some()
            && let Err(reached) = inner.usage.check(&entry.account, 0, bytes)
        {
            return ready_err(reached);
        }
        let answer = |entry: &mut MemoryTask| {
            let new = entry.answer(answers, now);
            new.then_some(entry.row.worker.is_none())
        };
        if let Some(Some(due)) = inner.update(id, now, answer) {
            self.hint(id, due, false);
        }
        ready_ok(true)
    }

    fn cancel<'a>(&'a self, id: &'a TaskId, owner: &'a Principal) -> StoreFuture<'a, bool> {
        let (now, mut inner) = self.lock();
        let Some(entry) = inner.find_owned(id, owner) else {
            return ready_ok(false);
        };
        if entry.row.due.is_some() {
            inner.update(id, now, |entry| entry.cancel(now));
            self.hint(id, false, false);
        }
        ready_ok(true)
    }

    fn claim<'a>(&'a self, claim: Claim<'a>) -> StoreFuture<'a, Vec<ClaimedTask>> {
        let (now, mut inner) = self.lock();
        ready_ok(inner.claim(claim, now))
    }

    fn extend<'a>(&'a self, leases: &'a [Lease], lease: Duration) -> StoreFuture<'a, Vec<Lease>> {
        let (now, mut inner) = self.lock();
        let mut extended = Vec::new();
        for held in leases {
            if inner
                .find_held(held)
                .is_ok_and(|entry| entry.row.worker.is_some())
            {
                let until = Some(after(now, lease));
                inner.update(&held.task, now, |entry| entry.row.due = until);
                extended.push(held.clone());
            }
        }
        ready_ok(extended)
    }

    fn commit<'a>(&'a self, lease: &'a Lease, commit: Commit) -> StoreFuture<'a, CommitResult> {
        let (now, mut inner) = self.lock();
        let checked = inner.find_held(lease).and_then(|entry| {
            let growth = entry.growth(&commit);
            Ok(inner.usage.check(&entry.account, 0, growth)?)
        });
        if let Err(error) = checked {
            return ready_err(error);
        }
        let visible = commit.is_visible();
        let released = matches!(commit.next, Next::HandOn | Next::Suspend(_));
        let commit = |entry: &mut MemoryTask| {
            let committed = entry.commit(commit, now);
            let due = released && entry.row.due.is_some_and(|due| due <= now);
            (committed, due)
        };
        let committed = inner.update(&lease.task, now, commit);
        let committed = committed.ok_or(StoreError::Lost).map(|(committed, due)| {
            if visible || due {
                self.hint(&lease.task, due, true);
            }
            committed
        });
        Box::pin(ready(committed))
    }

    fn answers<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, Vec<(String, Vec<u8>)>> {
        let answers = self.lock().1.find_held(lease).map(|entry| entry.answers());
        Box::pin(ready(answers))
    }

    fn revisions<'a>(&'a self, tasks: &'a [TaskId]) -> StoreFuture<'a, Vec<(TaskId, u64)>> {
        let (_, inner) = self.lock();
        let revision = |id: &TaskId| Some((id.clone(), inner.tasks.get(id)?.row.task.revision));
        ready_ok(tasks.iter().filter_map(revision).collect())
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    fn check_quota<'a>(&'a self, account: &'a Principal, bytes: usize) -> StoreFuture<'a, ()> {
        let (_, inner) = self.lock();
        match inner.usage.check(account, 0, bytes as u64) {
            Ok(()) => ready_ok(()),
            Err(reached) => ready_err(reached),
        }
    }

    fn spill<'a>(
        &'a self,
        id: &'a str,
        account: &'a Principal,
        bytes: Vec<u8>,
        keep: Duration,
    ) -> StoreFuture<'a, ()> {
        let (now, mut inner) = self.lock();
        if let Err(reached) = inner.usage.check(account, 0, bytes.len() as u64) {
            return ready_err(reached);
        }
        inner.usage.add(account, token_share(&bytes));
        let token = MemoryToken {
            account: account.clone(),
            until: after(now, keep),
            bytes,
        };
        if let Some(old) = inner.tokens.insert(id.to_owned(), token) {
            inner.usage.subtract(&old.account, token_share(&old.bytes));
        }
        ready_ok(())
    }

    fn spilled<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        let (now, inner) = self.lock();
        let token = inner.tokens.get(id).filter(|token| token.until > now);
        ready_ok(token.map(|token| token.bytes.clone()))
    }

    fn sweep(&self, keep: Duration, most: usize) -> StoreFuture<'_, SweepCounts> {
        let (now, mut inner) = self.lock();
        let MemoryState {
            tasks,
            flows,
            tokens,
            usage,
            ..
        } = &mut *inner;
        let tasks = tasks.extract_if(|_, entry| {
            entry.expires() <= now && entry.ended.is_some_and(|ended| after(ended, keep) <= now)
        });
        let tasks = tasks.take(most).inspect(|(_, entry)| {
            flows.remove(&(entry.flow, entry.row.owner.clone()));
            usage.subtract(&entry.account, task_share(entry));
        });
        let tasks = tasks.count() as u64;
        let records = self.replay_log.sweep(self.source.unix_seconds(), most);
        let tokens = tokens.extract_if(|_, token| token.until <= now);
        let tokens = tokens.take(most).inspect(|(_, token)| {
            usage.subtract(&token.account, token_share(&token.bytes));
        });
        ready_ok(SweepCounts {
            tasks,
            records: records as u64,
            tokens: tokens.count() as u64,
        })
    }

    fn claim_deliveries<'a>(
        &'a self,
        endpoint: &'a str,
        lease: Duration,
        most: usize,
    ) -> StoreFuture<'a, Vec<Delivery>> {
        let (now, mut inner) = self.lock();
        ready_ok(inner.outbox.claim(endpoint, now, lease, most))
    }

    fn finish_delivery<'a>(
        &'a self,
        delivery: &'a Delivery,
        retry: Option<Duration>,
    ) -> StoreFuture<'a, ()> {
        let (now, mut inner) = self.lock();
        inner
            .outbox
            .finish(delivery, retry.map(|wait| after(now, wait)));
        ready_ok(())
    }

    fn trim_outbox(&self, age: Duration, rows: usize, most: usize) -> StoreFuture<'_, u64> {
        let (now, mut inner) = self.lock();
        ready_ok(inner.outbox.trim(now, age, rows, most))
    }

    fn list(&self, list: ListTasks) -> StoreFuture<'_, Vec<TaskRow>> {
        let (_, inner) = self.lock();
        let matches = |entry: &&MemoryTask| {
            let task = &entry.row.task;
            list.status.is_none_or(|status| status == task.status)
                && list.tool.as_ref().is_none_or(|tool| *tool == task.tool)
        };
        let mut entries: Vec<&MemoryTask> = inner.tasks.values().filter(matches).collect();
        entries.sort_by_key(|entry| std::cmp::Reverse((entry.row.task.created, entry.number)));
        let entries = entries.into_iter().take(list.most);
        ready_ok(entries.map(MemoryTask::row).collect())
    }

    fn find<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
        ready_ok(self.lock().1.tasks.get(id).map(MemoryTask::row))
    }

    fn requeue<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
        let (now, mut inner) = self.lock();
        let Some(entry) = inner.tasks.get(id) else {
            return ready_ok(None);
        };
        let status = entry.row.task.status;
        if !matches!(status, StoredStatus::Completed | StoredStatus::Cancelled) {
            inner.update(id, now, |entry| entry.requeue(now));
            self.hint(id, true, false);
        }
        ready_ok(inner.tasks.get(id).map(MemoryTask::row))
    }
}

impl ReplayLog for MemoryStore {
    fn begin<'a>(
        &'a self,
        key: &'a LogKey,
        account: &'a Principal,
        retention: Retention,
    ) -> LogFuture<'a, RecordState> {
        let (_, inner) = self.lock();
        if !self.replay_log.contains(key, retention.now)
            && let Err(reached) = inner.usage.check(account, 0, RECORD_BYTES as u64)
        {
            return Box::pin(ready(Err(reached.into())));
        }
        self.replay_log.begin(key, account, retention)
    }

    fn finish<'a>(&'a self, key: &'a LogKey, value: &'a str) -> LogFuture<'a, ()> {
        self.replay_log.finish(key, value)
    }

    fn forget<'a>(&'a self, key: &'a LogKey) -> LogFuture<'a, ()> {
        self.replay_log.forget(key)
    }
}
