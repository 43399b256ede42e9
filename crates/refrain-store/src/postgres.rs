//! A store in a database of Postgres.
//!
//! What always holds: times are those of the database's clock, as it was when a statement began.

/// The time, in microseconds since 1970.
macro_rules! now {
    () => {
        "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint"
    };
}

mod connections;
mod database;
mod log;
mod notes;
mod operators;
mod schema;
mod tasks;
mod telling;
mod text;

use crate::open::OpenError;
use crate::sql::{logged, within};
use crate::store::{NewNote, SessionStore, StoreError, StoreFuture, TaskStore};
use crate::task::{
    Claim, Claimed, Commit, Committed, Created, Hint, Lease, ListTasks, NewTask, Swept, Task,
    TaskId, TaskRow,
};
use database::Database;
use refrain_core::{Keep, LogFuture, LogKey, Principal, Recorded, ReplayLog};
use sqlx::postgres::PgConnectOptions;
use std::fmt;
use std::time::Duration;
use tokio::sync::broadcast;

/// A store in a database of Postgres, for a fleet.
///
/// Hints reach every instance, by `NOTIFY`. It holds at most ten connections, one that listens and one that tells.
pub struct PgStore {
    database: Database,
}

impl PgStore {
    /// Connects to the database of this URL, `postgres://user:password@host/database`. Its tables are made or brought
    /// up to date.
    ///
    /// The parameters of the URL are those of `psql`: with `sslmode=verify-full` the server has to have a certificate
    /// for its name, of an authority that browsers trust or that `sslrootcert` names.
    pub async fn open(url: &str) -> Result<Self, OpenError> {
        // What the parser says may repeat parts of the URL, and of its password.
        let options: PgConnectOptions = url.parse().map_err(|_| OpenError::Url(FORM.to_owned()))?;
        let opened = tokio::time::timeout(OPENING, Database::open(options)).await;
        let database = opened.map_err(|_| {
            let seconds = OPENING.as_secs();
            StoreError::Unavailable(format!("no answer for {seconds} seconds"))
        })??;
        Ok(Self { database })
    }
}

const FORM: &str = "it is of the form `postgres://user:password@host:5432/database?sslmode=require`, \
    with `%40` for an `@` in the password, `%2F` for `/`, `%3A` for `:`, `%3F` for `?` and `%23` for `#`";

/// How long opening may take, with others that do so at the same time.
const OPENING: Duration = Duration::from_secs(60);

impl fmt::Debug for PgStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgStore").finish_non_exhaustive()
    }
}

impl TaskStore for PgStore {
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
        self.database.hints.subscribe()
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

impl SessionStore for PgStore {
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
        self.database.noted.subscribe()
    }
}

impl ReplayLog for PgStore {
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
