//! The record of a worker: its leases, its writes and the starts of its handlers.
//!
//! Each line is written before the worker continues, so a killed worker loses no line.

use crate::clock::micros;
use crate::error::{CrashError, failed};
use crate::ledger::AttemptRow;
use crate::plan::Effect;
use refrain::runtime::store::{
    Claim, ClaimedTask, Commit, CommitResult, Creation, Lease, NewTask, Next, Store, StoreError,
    StoreFuture, StoreLayer, TaskStore,
};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A line of a record. `started` and `finished` are the times before and after the operation, from
/// [`micros`]. A journal is listed as the effects whose values it contains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RecordEvent {
    /// A lease was acquired by a claim or by creating a task.
    Acquired {
        lease: LeaseId,
        started: u64,
        finished: u64,
        journal: Vec<Effect>,
    },
    Extended {
        leases: Vec<LeaseId>,
        started: u64,
    },
    /// A lease is about to be released. If the worker dies now, the release may be written or not.
    Releasing {
        lease: LeaseId,
        next: NextState,
    },
    Wrote {
        lease: LeaseId,
        next: NextState,
        started: u64,
        finished: u64,
        journal: Vec<Effect>,
    },
    /// A commit failed. With `lost` the lease was lost and nothing was written; otherwise that is unknown.
    NotWritten {
        lease: LeaseId,
        lost: bool,
    },
    /// A handler was started from the top.
    Started {
        number: u32,
        start: u64,
    },
    /// An effect is about to be tried.
    Attempt(AttemptRow),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct LeaseId {
    pub(crate) task: String,
    pub(crate) fence: u64,
}

impl From<&Lease> for LeaseId {
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
pub(crate) enum NextState {
    Keep,
    /// The task is suspended or handed on.
    Suspended,
    Retry,
    Ended,
}

impl From<&Next> for NextState {
    fn from(next: &Next) -> Self {
        match next {
            Next::Keep => Self::Keep,
            Next::Suspend(_) | Next::HandOn => Self::Suspended,
            Next::Retry(..) => Self::Retry,
            Next::Complete(_) | Next::Fail(_) => Self::Ended,
        }
    }
}

fn path(dir: &Path, process: u32) -> PathBuf {
    dir.join(format!("process-{process}.jsonl"))
}

/// Reads the record of a process, without an incomplete last line.
pub(crate) fn read(dir: &Path, process: u32) -> Result<Vec<RecordEvent>, CrashError> {
    let path = path(dir, process);
    let text = match std::fs::read_to_string(&path) {
        // The worker was killed before it started.
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        read => read.map_err(failed(format!("read {}", path.display())))?,
    };
    let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
    let events: Result<_, _> = complete.lines().map(serde_json::from_str).collect();
    Ok(events?)
}

#[derive(Debug)]
pub(crate) struct RecordFile(File);

impl RecordFile {
    pub(crate) fn create(dir: &Path, process: u32) -> Result<Self, CrashError> {
        let path = path(dir, process);
        let file = OpenOptions::new().create(true).append(true).open(&path);
        Ok(Self(file?))
    }

    /// Writes a line, or panics: a worker must not continue without its record.
    pub(crate) fn write(&self, event: &RecordEvent) {
        let mut line = serde_json::to_vec(event).expect("events serialize to JSON");
        line.push(b'\n');
        let written = (&self.0).write_all(&line);
        written.expect("the record file is writable");
    }
}

pub(crate) struct RecordingStore {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) record: Arc<RecordFile>,
}

impl RecordingStore {
    fn record_acquired(&self, lease: &Lease, started: u64, journal: &[u8]) {
        self.record.write(&RecordEvent::Acquired {
            lease: lease.into(),
            started,
            finished: micros(),
            journal: Effect::all_in(journal),
        });
    }
}

impl StoreLayer for RecordingStore {
    fn store(&self) -> &dyn TaskStore {
        &*self.store
    }

    fn layer_create(&self, new: NewTask) -> StoreFuture<'_, Creation> {
        Box::pin(async move {
            let started = micros();
            let created = self.store.create(new).await?;
            if let Creation::New(_, Some(lease)) = &created {
                self.record_acquired(lease, started, &[]);
            }
            Ok(created)
        })
    }

    fn layer_claim<'a>(&'a self, claim: Claim<'a>) -> StoreFuture<'a, Vec<ClaimedTask>> {
        Box::pin(async move {
            let started = micros();
            let claimed = self.store.claim(claim).await?;
            for task in &claimed {
                self.record_acquired(&task.lease, started, &task.journal);
            }
            Ok(claimed)
        })
    }

    fn layer_extend<'a>(
        &'a self,
        leases: &'a [Lease],
        lease: Duration,
    ) -> StoreFuture<'a, Vec<Lease>> {
        Box::pin(async move {
            let started = micros();
            let renewed = self.store.extend(leases, lease).await?;
            let leases = renewed.iter().map(LeaseId::from).collect();
            self.record
                .write(&RecordEvent::Extended { leases, started });
            Ok(renewed)
        })
    }

    fn layer_commit<'a>(
        &'a self,
        lease: &'a Lease,
        commit: Commit,
    ) -> StoreFuture<'a, CommitResult> {
        Box::pin(async move {
            let next = NextState::from(&commit.next);
            if next != NextState::Keep {
                let lease = lease.into();
                self.record.write(&RecordEvent::Releasing { lease, next });
            }
            let (started, journal) = (micros(), commit.journal.clone());
            let committed = self.store.commit(lease, commit).await;
            let (lease, finished) = (lease.into(), micros());
            self.record.write(&match &committed {
                Ok(_) => RecordEvent::Wrote {
                    lease,
                    next,
                    started,
                    finished,
                    journal: Effect::all_in(journal.as_deref().unwrap_or_default()),
                },
                Err(error) => RecordEvent::NotWritten {
                    lease,
                    lost: matches!(error, StoreError::Lost),
                },
            });
            committed
        })
    }
}
