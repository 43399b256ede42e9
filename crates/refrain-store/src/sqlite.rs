//! A store in a file of SQLite.
//!
//! What always holds: one connection writes, in a single statement or under `BEGIN IMMEDIATE`; others read beside it (WAL).
//! What was written is on the disk when that is confirmed (`synchronous=FULL`).

mod file;
mod log;
mod notes;
mod operators;
mod schema;
mod tasks;

use crate::open::OpenError;
use crate::sql::{logged, within};
use crate::store::{NewNote, SessionStore, StoreFuture, TaskStore};
use crate::task::{
    Claim, Claimed, Commit, Committed, Created, Hint, Lease, ListTasks, NewTask, Swept, Task,
    TaskId, TaskRow,
};
use crate::time::since_1970;
use file::File;
use refrain_core::{Keep, LogFuture, LogKey, Principal, Recorded, ReplayLog};
use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tokio::sync::broadcast;

/// A store in a file of SQLite, for one instance or for several processes of one machine.
///
/// Times are those of the machine's clock. Hints reach those who listen to this very store; other processes look by
/// themselves.
pub struct SqliteStore {
    file: File,
    hints: broadcast::Sender<Hint>,
    noted: broadcast::Sender<String>,
}

impl SqliteStore {
    /// Opens this file, or makes it, for nobody but its owner to read. Its tables are made or brought up to date.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Ok(Self {
            file: File::open(path.as_ref()).await?,
            hints: broadcast::Sender::new(crate::HINTS),
            noted: broadcast::Sender::new(crate::HINTS),
        })
    }

    fn hint(&self, task: &TaskId, due: bool, own: bool) {
        let task = task.clone();
        // An error means that nobody listens.
        let _ = self.hints.send(Hint { task, due, own });
    }
}

fn now() -> i64 {
    since_1970(SystemTime::now())
}

/// SQLite takes any text as it is.
fn text(text: String) -> String {
    text
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").finish_non_exhaustive()
    }
}

impl TaskStore for SqliteStore {
    fn create(&self, new: NewTask) -> StoreFuture<'_, Created> {
        Box::pin(within(self.create_task(new)))
    }

    fn get<'a>(&'a self, id: &'a TaskId, owner: &'a Principal) -> StoreFuture<'a, Option<Task>> {
        Box::pin(within(self.get_task(id, owner)))
    }

    fn answer<'a>(
        &'a self,
        id: &'a TaskId,
        owner: &'a Principal,
        answers: Vec<(String, Vec<u8>)>,
    ) -> StoreFuture<'a, bool> {
        Box::pin(within(self.answer_task(id, owner, answers)))
    }

    fn cancel<'a>(&'a self, id: &'a TaskId, owner: &'a Principal) -> StoreFuture<'a, bool> {
        Box::pin(within(self.cancel_task(id, owner)))
    }

    fn claim<'a>(&'a self, claim: Claim<'a>) -> StoreFuture<'a, Vec<Claimed>> {
        Box::pin(within(self.claim_tasks(claim)))
    }

    fn extend<'a>(&'a self, leases: &'a [Lease], lease: Duration) -> StoreFuture<'a, Vec<Lease>> {
        Box::pin(within(self.extend_leases(leases, lease)))
    }

    fn commit<'a>(&'a self, lease: &'a Lease, commit: Commit) -> StoreFuture<'a, Committed> {
        Box::pin(within(self.commit_task(lease, commit)))
    }

    fn answers<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, Vec<(String, Vec<u8>)>> {
        Box::pin(within(self.unread_answers(lease)))
    }

    fn revisions<'a>(&'a self, tasks: &'a [TaskId]) -> StoreFuture<'a, Vec<(TaskId, u64)>> {
        Box::pin(within(self.revisions_of(tasks)))
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    fn spill<'a>(&'a self, id: &'a str, token: Vec<u8>, keep: Duration) -> StoreFuture<'a, ()> {
        Box::pin(within(self.spill_token(id, token, keep)))
    }

    fn spilled<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(within(self.spilled_token(id)))
    }

    fn sweep(&self, keep: Duration, most: usize) -> StoreFuture<'_, Swept> {
        Box::pin(within(self.sweep_all(keep, most)))
    }

    fn list(&self, list: ListTasks) -> StoreFuture<'_, Vec<TaskRow>> {
        Box::pin(within(self.list_tasks(list)))
    }

    fn find<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
        Box::pin(within(self.find_task(id)))
    }

    fn requeue<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
        Box::pin(within(self.requeue_task(id)))
    }
}

impl SessionStore for SqliteStore {
    fn note<'a>(&'a self, note: NewNote<'a>) -> StoreFuture<'a, bool> {
        Box::pin(within(self.keep_note(note)))
    }

    fn take_note<'a>(&'a self, place: &'a str, name: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(within(self.remove_note(place, name)))
    }

    fn notes<'a>(&'a self, place: &'a str) -> StoreFuture<'a, Vec<(String, Vec<u8>)>> {
        Box::pin(within(self.notes_of(place)))
    }

    fn note_names<'a>(&'a self, places: &'a [String]) -> StoreFuture<'a, Vec<(String, String)>> {
        Box::pin(within(self.names_of_notes(places)))
    }

    fn note_value<'a>(&'a self, place: &'a str, name: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(within(self.value_of_note(place, name)))
    }

    fn noted(&self) -> broadcast::Receiver<String> {
        self.noted.subscribe()
    }
}

impl ReplayLog for SqliteStore {
    fn begin<'a>(&'a self, key: &'a LogKey, keep: Keep) -> LogFuture<'a, Recorded> {
        Box::pin(logged(self.begin_record(key, keep)))
    }

    fn finish<'a>(&'a self, key: &'a LogKey, value: &'a str) -> LogFuture<'a, ()> {
        Box::pin(logged(self.finish_record(key, value)))
    }

    fn forget<'a>(&'a self, key: &'a LogKey) -> LogFuture<'a, ()> {
        Box::pin(logged(self.forget_record(key)))
    }
}
