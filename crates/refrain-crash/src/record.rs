//! What a worker writes down of itself: which leases it was given, what it wrote, when its handlers ran.
//!
//! A line is in the file, whole, before what it tells of goes on; whoever is killed loses nothing that it wrote.

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
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;

/// A line of a record. Times are those of [`micros`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// A lease was taken, by a claim or by making a task.
    Taken {
        hold: Hold,
        asked: u64,
        done: u64,
        /// The effects whose values are in the journal that came with it.
        journal: Vec<String>,
    },
    /// Leases were held for longer.
    Extended { holds: Vec<Hold>, asked: u64 },
    /// A task is about to be given up. Whoever is stopped or killed now may have done it.
    GivesUp { hold: Hold, then: After },
    /// Something was written of a task.
    Wrote {
        hold: Hold,
        then: After,
        asked: u64,
        done: u64,
        /// The effects whose values are in the journal that was written.
        journal: Vec<String>,
    },
    /// Something was not written, or nobody knows.
    NotWritten {
        hold: Hold,
        /// It was not: the lease was lost.
        lost: bool,
    },
    /// A handler was begun from the top.
    Turn { number: u32, turn: u64 },
}

/// A task, by its id, and a fence.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Hold {
    pub(crate) task: String,
    pub(crate) fence: u64,
}

impl From<&Lease> for Hold {
    fn from(lease: &Lease) -> Self {
        Self {
            task: lease.task.to_string(),
            fence: lease.fence,
        }
    }
}

/// How a task goes on after something was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum After {
    /// The worker keeps it.
    Keep,
    /// It was set down, or handed on.
    SetDown,
    /// It is tried again later.
    Retry,
    /// It is over.
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

/// Where the record of a run is.
pub(crate) fn path(dir: &Path, run: u32) -> PathBuf {
    dir.join(format!("run-{run}.jsonl"))
}

/// Reads the record of a run. A line that its worker was killed over is left out.
pub(crate) fn read(dir: &Path, run: u32) -> Result<Vec<Event>, Error> {
    let path = path(dir, run);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        // It was killed before it had begun.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(Error::system(path.display().to_string())(error)),
    };
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let lines = whole.lines().map(serde_json::from_str);
    let events: Result<_, _> = lines.collect();
    events.map_err(|source| Error::Record { run, source })
}

/// The record of a run, to be written.
#[derive(Debug)]
pub(crate) struct Record(File);

impl Record {
    pub(crate) fn create(dir: &Path, run: u32) -> Result<Self, Error> {
        let path = path(dir, run);
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.map_err(Error::system(path.display().to_string()))?;
        Ok(Self(file))
    }

    /// Writes a line. A worker that cannot must not go on.
    pub(crate) fn write(&self, event: &Event) {
        let mut line = serde_json::to_vec(event).expect("an event can be written");
        line.push(b'\n');
        (&self.0)
            .write_all(&line)
            .expect("the record can be written");
    }
}

/// A store whose use is written down.
pub(crate) struct RecordedStore {
    store: Arc<dyn Store>,
    record: Arc<Record>,
}

impl RecordedStore {
    pub(crate) fn new(store: Arc<dyn Store>, record: Arc<Record>) -> Self {
        Self { store, record }
    }

    fn taken(&self, lease: &Lease, asked: u64, journal: &[u8]) {
        self.record.write(&Event::Taken {
            hold: lease.into(),
            asked,
            done: micros(),
            journal: effects_in(journal),
        });
    }

    fn committed(
        &self,
        lease: &Lease,
        then: After,
        asked: u64,
        journal: Option<&[u8]>,
        committed: &Result<Committed, StoreError>,
    ) {
        let (hold, done) = (lease.into(), micros());
        let event = match committed {
            Ok(_) => Event::Wrote {
                hold,
                then,
                asked,
                done,
                journal: journal.map_or_else(Vec::new, effects_in),
            },
            Err(error) => Event::NotWritten {
                hold,
                lost: matches!(error, StoreError::Lost),
            },
        };
        self.record.write(&event);
    }
}

fn effects_in(journal: &[u8]) -> Vec<String> {
    let effects = Effect::all_in(journal).into_iter();
    effects.map(|effect| effect.to_string()).collect()
}

impl TaskStore for RecordedStore {
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
            let holds = held.iter().map(Hold::from).collect();
            self.record.write(&Event::Extended { holds, asked });
            Ok(held)
        })
    }

    fn commit<'a>(&'a self, lease: &'a Lease, commit: Commit) -> StoreFuture<'a, Committed> {
        Box::pin(async move {
            let then = After::from(&commit.next);
            if then != After::Keep {
                let hold = lease.into();
                self.record.write(&Event::GivesUp { hold, then });
            }
            let (asked, journal) = (micros(), commit.journal.clone());
            let committed = self.store.commit(lease, commit).await;
            self.committed(lease, then, asked, journal.as_deref(), &committed);
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
