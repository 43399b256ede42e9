//! A store in a file of SQLite.
//!
//! What always holds: one connection writes, in a single statement or under `BEGIN IMMEDIATE`; others read beside it (WAL).
//! What was written is on the disk when that is confirmed (`synchronous=FULL`).

mod file;
mod log;
mod operators;
mod schema;
mod tasks;

use crate::open::OpenError;
use crate::sql::{impl_store, within};
use crate::store::{StoreFuture, TaskStore};
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
}

impl SqliteStore {
    /// Opens this file, or makes it, for nobody but its owner to read. Its tables are made or brought up to date.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Ok(Self {
            file: File::open(path.as_ref()).await?,
            hints: broadcast::Sender::new(crate::HINTS),
        })
    }

    fn subscribe(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
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

impl_store!(SqliteStore);
