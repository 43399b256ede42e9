//! The record of a worker: its leases, its writes and the turns of its handlers.
//!
//! A line is written completely before the worker continues, so a killed worker loses no line.

use crate::clock::micros;
use crate::error::Error;
use crate::plan::Effect;
use refrain::auth::Principal;
use refrain::runtime::store::{
    Claim, Claimed, Commit, Committed, Created, Hint, Lease, ListTasks, NewTask, Next, Store,
    StoreError, StoreFuture, Swept, Task, TaskId, TaskRow, TaskStore,
};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;

/// A line of a record. Times are those of [`micros`]; a journal is given by the effects whose values are in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RecordEvent {
    /// A lease was taken, by a claim or by creating a task.
    Taken {
        hold: LeaseRef,
        asked: u64,
        done: u64,
        journal: Vec<Effect>,
    },
    /// Leases were extended.
    Extended { holds: Vec<LeaseRef>, asked: u64 },
    /// A task is about to be given up. A worker that is stopped or killed now may have done it.
    GivesUp { hold: LeaseRef, then: After },
    /// A commit succeeded.
    Wrote {
        hold: LeaseRef,
        then: After,
        asked: u64,
        done: u64,
        journal: Vec<Effect>,
    },
    /// A commit failed. `lost`: nothing was written, since the lease was lost; otherwise that is unknown.
    NotWritten { hold: LeaseRef, lost: bool },
    /// A handler was begun from the top.
    Turn { number: u32, turn: u64 },
}

/// A task, by its id, and a fence.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct LeaseRef {
    pub(crate) task: String,
    pub(crate) fence: u64,
}

impl From<&Lease> for LeaseRef {
    fn from(lease: &Lease) -> Self {
        Self {
            task: lease.task.to_string(),
            fence: lease.fence,
        }
    }
}

/// The state of a task after a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum After {
    /// The worker keeps it.
    Keep,
    /// It is suspended or handed over.
    SetDown,
    /// It is retried later.
    Retry,
    /// It has ended.
    Over,
}

impl From<&Next> for After {
    fn from(next: &Next) -> Self {
        match next {
            Next::Keep => Self::Keep,
            Next::SetDown(_) | Next::HandOn => Self::SetDown,
            Next::Retry(..) => Self::Retry,
            Next::Complete(_) | Next::Fail(_) => Self::Over,
        }
    }
}

fn path(dir: &Path, run: u32) -> PathBuf {
    dir.join(format!("run-{run}.jsonl"))
}

/// Reads the record of a run. A line that was cut when its worker was killed is left out.
pub(crate) fn read(dir: &Path, run: u32) -> Result<Vec<RecordEvent>, Error> {
    let path = path(dir, run);
    let failed = || Error::system(path.display().to_string());
    let text = match std::fs::read_to_string(&path) {
        // It was killed before it began.
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        read => read.map_err(failed())?,
    };
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let events: Result<_, _> = whole.lines().map(serde_json::from_str).collect();
    events.map_err(|error| failed()(error.into()))
}

/// The record of a run, to be written.
#[derive(Debug)]
pub(crate) struct RecordFile(File);

impl RecordFile {
    pub(crate) fn create(dir: &Path, run: u32) -> Result<Self, Error> {
        let path = path(dir, run);
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.map_err(Error::system(path.display().to_string()))?;
        Ok(Self(file))
    }

    /// Writes a line. Panics on failure, because the worker must not continue.
    pub(crate) fn write(&self, event: &RecordEvent) {
        let mut line = serde_json::to_vec(event).expect("an event can be written");
        line.push(b'\n');
        let written = (&self.0).write_all(&line);
        written.expect("the record can be written");
    }
}

/// A store whose calls are recorded.
pub(crate) struct RecordingStore {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) record: Arc<RecordFile>,
}

impl RecordingStore {
    fn taken(&self, lease: &Lease, asked: u64, journal: &[u8]) {
        self.record.write(&RecordEvent::Taken {
            hold: lease.into(),
            asked,
            done: micros(),
            journal: Effect::all_in(journal),
        });
    }
}

impl TaskStore for RecordingStore {
    fn create(&self, new: NewTask) -> StoreFuture<'_, Created> {
        Box::pin(async move {
            let asked = micros();
            let created = self.store.create(new).await?;
            if let Created::New(_, Some(lease)) = &created {
                self.taken(lease, asked, &[]);
            }
            Ok(created)
        })
    }

    fn get<'a>(&'a self, id: &'a TaskId, owner: &'a Principal) -> StoreFuture<'a, Option<Task>> {
        self.store.get(id, owner)
    }

    fn answer<'a>(
        &'a self,
        id: &'a TaskId,
        owner: &'a Principal,
        answers: Vec<(String, Vec<u8>)>,
    ) -> StoreFuture<'a, bool> {
        self.store.answer(id, owner, answers)
    }

    fn cancel<'a>(&'a self, id: &'a TaskId, owner: &'a Principal) -> StoreFuture<'a, bool> {
        self.store.cancel(id, owner)
    }

    fn claim<'a>(&'a self, claim: Claim<'a>) -> StoreFuture<'a, Vec<Claimed>> {
        Box::pin(async move {
            let asked = micros();
            let claimed = self.store.claim(claim).await?;
            for one in &claimed {
                self.taken(&one.lease, asked, &one.journal);
            }
            Ok(claimed)
        })
    }

    fn extend<'a>(&'a self, leases: &'a [Lease], lease: Duration) -> StoreFuture<'a, Vec<Lease>> {
        Box::pin(async move {
            let asked = micros();
            let held = self.store.extend(leases, lease).await?;
            let holds = held.iter().map(LeaseRef::from).collect();
            self.record.write(&RecordEvent::Extended { holds, asked });
            Ok(held)
        })
    }

    fn commit<'a>(&'a self, lease: &'a Lease, commit: Commit) -> StoreFuture<'a, Committed> {
        Box::pin(async move {
            let then = After::from(&commit.next);
            if then != After::Keep {
                let hold = lease.into();
                self.record.write(&RecordEvent::GivesUp { hold, then });
            }
            let (asked, journal) = (micros(), commit.journal.clone());
            let committed = self.store.commit(lease, commit).await;
            let (hold, done) = (lease.into(), micros());
            self.record.write(&match &committed {
                Ok(_) => RecordEvent::Wrote {
                    hold,
                    then,
                    asked,
                    done,
                    journal: Effect::all_in(journal.as_deref().unwrap_or_default()),
                },
                Err(error) => RecordEvent::NotWritten {
                    hold,
                    lost: matches!(error, StoreError::Lost),
                },
            });
            committed
        })
    }

    fn answers<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, Vec<(String, Vec<u8>)>> {
        self.store.answers(lease)
    }

    fn revisions<'a>(&'a self, tasks: &'a [TaskId]) -> StoreFuture<'a, Vec<(TaskId, u64)>> {
        self.store.revisions(tasks)
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.store.hints()
    }

    fn spill<'a>(&'a self, id: &'a str, token: Vec<u8>, keep: Duration) -> StoreFuture<'a, ()> {
        self.store.spill(id, token, keep)
    }

    fn spilled<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        self.store.spilled(id)
    }

    fn sweep(&self, keep: Duration, most: usize) -> StoreFuture<'_, Swept> {
        self.store.sweep(keep, most)
    }

    fn list(&self, list: ListTasks) -> StoreFuture<'_, Vec<TaskRow>> {
        self.store.list(list)
    }

    fn find<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
        self.store.find(id)
    }

    fn requeue<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
        self.store.requeue(id)
    }
}
