//! A store in the memory of one process.

mod entry;

use crate::store::{StoreError, StoreFuture, TaskStore};
use crate::task::{
    Claim, Claimed, Commit, Committed, Created, Hint, Lease, ListTasks, NewTask, Next, Swept, Task,
    TaskId, TaskRow, TaskStatus,
};
use crate::time::{micros, since_1970};
use entry::Entry;
use parking_lot::{Mutex, MutexGuard};
use refrain_core::{
    FlowId, Keep, LogFuture, LogKey, Principal, Recorded, ReplayLog, Source, SystemSource,
};
use std::collections::HashMap;
use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;

/// A store in the memory of one process: for tests, and for a server whose tasks may end with it.
///
/// Its clones are the same store.
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<Mutex<Inner>>,
    source: Arc<dyn Source>,
    hints: broadcast::Sender<Hint>,
}

#[derive(Default)]
struct Inner {
    tasks: HashMap<TaskId, Entry>,
    flows: HashMap<(FlowId, Principal), TaskId>,
    /// Tasks made so far.
    made: u64,
    records: HashMap<LogKey, Record>,
    tokens: HashMap<String, Token>,
}

struct Record {
    /// In seconds.
    until: u64,
    value: Option<String>,
}

struct Token {
    bytes: Vec<u8>,
    until: i64,
}

impl MemoryStore {
    /// An empty store that goes by the operating system's clock.
    pub fn new() -> Self {
        Self::with_source(Arc::new(SystemSource::new()))
    }

    /// An empty store that goes by the clock of this source.
    pub fn with_source(source: Arc<dyn Source>) -> Self {
        Self {
            inner: Arc::default(),
            source,
            hints: broadcast::Sender::new(crate::HINTS),
        }
    }

    fn now(&self) -> i64 {
        since_1970(self.source.now())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    fn hint(&self, task: &TaskId, due: bool, own: bool) {
        let task = task.clone();
        // An error means that nobody listens.
        let _ = self.hints.send(Hint { task, due, own });
    }

    fn create_now(&self, new: NewTask) -> Result<Created, StoreError> {
        let now = self.now();
        let mut inner = self.lock();
        let key = (new.flow, new.owner.clone());
        let before = inner.flows.get(&key).unwrap_or(&new.id);
        if let Some(entry) = inner.tasks.get(before) {
            return match entry.owner == new.owner {
                true => Ok(Created::Before(entry.task())),
                false => Err(StoreError::IdInUse),
            };
        }
        inner.made += 1;
        let id = new.id.clone();
        let entry = Entry::new(new, inner.made, now);
        let lease = entry.worker.is_some().then(|| entry.lease());
        let task = entry.task();
        inner.flows.insert(key, id.clone());
        inner.tasks.insert(id.clone(), entry);
        if lease.is_none() {
            self.hint(&id, true, true);
        }
        Ok(Created::New(task, lease))
    }

    fn answer_now(&self, id: &TaskId, owner: &Principal, answers: Vec<(String, Vec<u8>)>) -> bool {
        let now = self.now();
        let mut inner = self.lock();
        let Some(entry) = inner.owned(id, owner) else {
            return false;
        };
        if entry.answer(answers, now) {
            self.hint(id, entry.worker.is_none(), false);
        }
        true
    }

    fn cancel_now(&self, id: &TaskId, owner: &Principal) -> bool {
        let now = self.now();
        let mut inner = self.lock();
        let Some(entry) = inner.owned(id, owner) else {
            return false;
        };
        if entry.due.is_some() {
            entry.cancel(now);
            self.hint(id, false, false);
        }
        true
    }

    fn claim_now(&self, claim: Claim<'_>) -> Vec<Claimed> {
        let now = self.now();
        let mut inner = self.lock();
        let wanted = |entry: &&mut Entry| {
            let mine = entry.expires <= now || claim.tools.contains(&entry.tool);
            mine && entry.due.is_some_and(|due| due <= now)
        };
        let mut due: Vec<&mut Entry> = inner.tasks.values_mut().filter(wanted).collect();
        due.sort_by_key(|entry| (entry.due, entry.number));
        let taken = due.into_iter().take(claim.most);
        let until = now + micros(claim.lease);
        taken
            .map(|entry| entry.claim(claim.worker, now, until))
            .collect()
    }

    fn commit_now(&self, lease: &Lease, commit: Commit) -> Result<Committed, StoreError> {
        let now = self.now();
        let mut inner = self.lock();
        let entry = inner.held(lease)?;
        let seen = commit.is_seen();
        let handed_on = matches!(commit.next, Next::HandOn | Next::SetDown(_));
        let committed = entry.commit(commit, now);
        let due = handed_on && entry.due.is_some_and(|due| due <= now);
        if seen || due {
            self.hint(&lease.task, due, true);
        }
        Ok(committed)
    }

    fn extend_now(&self, leases: &[Lease], lease: Duration) -> Vec<Lease> {
        let until = self.now() + micros(lease);
        let mut inner = self.lock();
        let mut extend = |lease: &Lease| {
            inner.held(lease).is_ok_and(|entry| {
                let held = entry.worker.is_some();
                if held {
                    entry.due = Some(until);
                }
                held
            })
        };
        let held = leases.iter().filter(|lease| extend(lease));
        held.cloned().collect()
    }

    fn sweep_now(&self, keep: Duration, most: usize) -> Swept {
        let now = self.now();
        let ended_by = now - micros(keep);
        let mut inner = self.lock();
        let Inner {
            tasks,
            flows,
            records,
            tokens,
            ..
        } = &mut *inner;
        let over = |_: &TaskId, entry: &mut Entry| {
            entry.expires <= now && entry.ended.is_some_and(|ended| ended <= ended_by)
        };
        let tasks = tasks.extract_if(over).take(most);
        let tasks = tasks.inspect(|(_, entry)| {
            flows.remove(&(entry.flow, entry.owner.clone()));
        });
        let seconds = self.source.unix_seconds();
        let records = records.extract_if(|_, record| record.until < seconds);
        let tokens = tokens.extract_if(|_, token| token.until <= now);
        Swept {
            tasks: tasks.count() as u64,
            records: records.take(most).count() as u64,
            tokens: tokens.take(most).count() as u64,
        }
    }

    fn list_now(&self, list: &ListTasks) -> Vec<TaskRow> {
        let inner = self.lock();
        let wanted = |entry: &&Entry| {
            list.status.is_none_or(|status| status == entry.status)
                && list.tool.as_ref().is_none_or(|tool| *tool == entry.tool)
        };
        let mut entries: Vec<&Entry> = inner.tasks.values().filter(wanted).collect();
        entries.sort_by_key(|entry| std::cmp::Reverse((entry.created, entry.number)));
        let entries = entries.into_iter().take(list.most);
        entries.map(Entry::row).collect()
    }

    fn requeue_now(&self, id: &TaskId) -> Option<TaskRow> {
        let now = self.now();
        let mut inner = self.lock();
        let entry = inner.tasks.get_mut(id)?;
        if !matches!(entry.status, TaskStatus::Completed | TaskStatus::Cancelled) {
            entry.requeue(now);
            self.hint(id, true, false);
        }
        Some(entry.row())
    }
}

impl Inner {
    fn owned(&mut self, id: &TaskId, owner: &Principal) -> Option<&mut Entry> {
        let entry = self.tasks.get_mut(id)?;
        (entry.owner == *owner).then_some(entry)
    }

    fn held(&mut self, lease: &Lease) -> Result<&mut Entry, StoreError> {
        let entry = self.tasks.get_mut(&lease.task).ok_or(StoreError::Lost)?;
        let held = entry.fence == lease.fence && entry.due.is_some();
        if held {
            Ok(entry)
        } else {
            Err(StoreError::Lost)
        }
    }

    fn begin(&mut self, key: &LogKey, keep: Keep) -> Recorded {
        if let Some(record) = self.records.get(key)
            && record.until >= keep.now
        {
            let value = record.value.clone();
            return value.map_or(Recorded::Begun, Recorded::Done);
        }
        let record = Record {
            until: keep.until,
            value: None,
        };
        self.records.insert(key.clone(), record);
        Recorded::Fresh
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
            .field("tasks", &self.lock().tasks.len())
            .finish_non_exhaustive()
    }
}

/// What is already known, as a future.
fn done<'a, T: Send + 'a>(value: Result<T, StoreError>) -> StoreFuture<'a, T> {
    Box::pin(ready(value))
}

impl TaskStore for MemoryStore {
    fn create(&self, new: NewTask) -> StoreFuture<'_, Created> {
        done(self.create_now(new))
    }

    fn get<'a>(&'a self, id: &'a TaskId, owner: &'a Principal) -> StoreFuture<'a, Option<Task>> {
        done(Ok(self.lock().owned(id, owner).map(|entry| entry.task())))
    }

    fn answer<'a>(
        &'a self,
        id: &'a TaskId,
        owner: &'a Principal,
        answers: Vec<(String, Vec<u8>)>,
    ) -> StoreFuture<'a, bool> {
        done(Ok(self.answer_now(id, owner, answers)))
    }

    fn cancel<'a>(&'a self, id: &'a TaskId, owner: &'a Principal) -> StoreFuture<'a, bool> {
        done(Ok(self.cancel_now(id, owner)))
    }

    fn claim<'a>(&'a self, claim: Claim<'a>) -> StoreFuture<'a, Vec<Claimed>> {
        done(Ok(self.claim_now(claim)))
    }

    fn extend<'a>(&'a self, leases: &'a [Lease], lease: Duration) -> StoreFuture<'a, Vec<Lease>> {
        done(Ok(self.extend_now(leases, lease)))
    }

    fn commit<'a>(&'a self, lease: &'a Lease, commit: Commit) -> StoreFuture<'a, Committed> {
        done(self.commit_now(lease, commit))
    }

    fn answers<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, Vec<(String, Vec<u8>)>> {
        done(self.lock().held(lease).map(|entry| entry.answers()))
    }

    fn revisions<'a>(&'a self, tasks: &'a [TaskId]) -> StoreFuture<'a, Vec<(TaskId, u64)>> {
        let inner = self.lock();
        let known = |id: &TaskId| Some((id.clone(), inner.tasks.get(id)?.revision));
        done(Ok(tasks.iter().filter_map(known).collect()))
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    fn spill<'a>(&'a self, id: &'a str, token: Vec<u8>, keep: Duration) -> StoreFuture<'a, ()> {
        let until = self.now() + micros(keep);
        let token = Token {
            bytes: token,
            until,
        };
        self.lock().tokens.insert(id.to_owned(), token);
        done(Ok(()))
    }

    fn spilled<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        let now = self.now();
        let inner = self.lock();
        let token = inner.tokens.get(id).filter(|token| token.until > now);
        done(Ok(token.map(|token| token.bytes.clone())))
    }

    fn sweep(&self, keep: Duration, most: usize) -> StoreFuture<'_, Swept> {
        done(Ok(self.sweep_now(keep, most)))
    }

    fn list(&self, list: ListTasks) -> StoreFuture<'_, Vec<TaskRow>> {
        done(Ok(self.list_now(&list)))
    }

    fn find<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
        done(Ok(self.lock().tasks.get(id).map(Entry::row)))
    }

    fn requeue<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
        done(Ok(self.requeue_now(id)))
    }
}

impl ReplayLog for MemoryStore {
    fn begin<'a>(&'a self, key: &'a LogKey, keep: Keep) -> LogFuture<'a, Recorded> {
        let recorded = self.lock().begin(key, keep);
        Box::pin(ready(Ok(recorded)))
    }

    fn finish<'a>(&'a self, key: &'a LogKey, value: &'a str) -> LogFuture<'a, ()> {
        if let Some(record) = self.lock().records.get_mut(key) {
            record.value = Some(value.to_owned());
        }
        Box::pin(ready(Ok(())))
    }

    fn forget<'a>(&'a self, key: &'a LogKey) -> LogFuture<'a, ()> {
        self.lock().records.remove(key);
        Box::pin(ready(Ok(())))
    }
}
