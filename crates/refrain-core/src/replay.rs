//! The replay log behind `once` and single-use tokens.
//!
//! A token cannot be told from its copy, so work that must not be repeated is recorded first, under a key that the
//! whole fleet sees.

use crate::journal::FlowId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

/// The key of a record: a piece of work of one flow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogKey {
    flow: FlowId,
    name: String,
}

impl LogKey {
    pub(crate) fn once(flow: FlowId, name: &str) -> Self {
        let name = format!("once {name}");
        Self { flow, name }
    }

    /// The key of one round of a flow, for single-use tokens.
    pub fn round(flow: FlowId, round: u32) -> Self {
        let name = format!("round {round}");
        Self { flow, name }
    }

    /// Returns the flow.
    pub fn flow(&self) -> FlowId {
        self.flow
    }

    /// Returns the name of the work within the flow.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The record of a piece of work that is about to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// There was no record: the work is now recorded as begun.
    Fresh,
    /// The work was begun without a recorded end: it runs elsewhere, or was interrupted.
    Begun,
    /// The work is done, with this recorded value.
    Done(String),
}

/// Why an operation of the replay log failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The log is unreachable or overloaded. A retry may help.
    #[error("replay log unavailable: {0}")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
    /// The log has no room for another record.
    #[error("replay log full: it holds {capacity} records")]
    Full {
        /// The maximum number of records.
        capacity: usize,
    },
    /// The log rejected the operation. A retry does not help.
    #[error("replay log failed: {0}")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
}

/// A future of the replay log.
pub type LogFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, LogError>> + Send + 'a>>;

/// The lifetime of a record, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The current time.
    pub now: u64,
    /// The time after which no instance accepts a token of the flow.
    pub until: u64,
}

impl Keep {
    /// A generous allowance for clock skew in a fleet.
    const SKEW: u64 = 3600;

    /// The lifetime for a flow with this deadline.
    pub fn for_flow(now: u64, deadline: u64) -> Self {
        let until = deadline.saturating_add(Self::SKEW);
        Self { now, until }
    }
}

/// Records work that must not be repeated. All instances that accept the same tokens must share it.
pub trait ReplayLog: Send + Sync {
    /// Records the start of the work, unless it was recorded before.
    fn begin<'a>(&'a self, key: &'a LogKey, keep: Keep) -> LogFuture<'a, Recorded>;
    /// Records the outcome.
    fn finish<'a>(&'a self, key: &'a LogKey, value: &'a str) -> LogFuture<'a, ()>;
    /// Deletes the record, so that the work may start again.
    fn forget<'a>(&'a self, key: &'a LogKey) -> LogFuture<'a, ()>;
}

/// A replay log in the memory of one process, for a single instance and for tests.
///
/// When it is full, no new work may begin until old records expire: to evict one earlier would let its work repeat.
#[derive(Clone, Default)]
pub struct MemoryReplayLog {
    inner: Arc<Mutex<Records>>,
    capacity: Option<usize>,
}

#[derive(Default)]
struct Records {
    by_key: HashMap<LogKey, Record>,
    by_time: BTreeMap<Until, LogKey>,
    count: u64,
}

/// The expiry of a record, and a number that makes it unique.
type Until = (u64, u64);

struct Record {
    until: Until,
    value: Option<String>,
}

impl MemoryReplayLog {
    /// The default number of records.
    pub const CAPACITY: usize = 1_000_000;

    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty log that holds at most this many records.
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            inner: Arc::default(),
            capacity: Some(capacity),
        }
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.inner.lock().by_key.len()
    }

    /// Returns whether the log is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn begin_now(&self, key: &LogKey, keep: Keep) -> Result<Recorded, LogError> {
        let mut records = self.inner.lock();
        while let Some(first) = records.by_time.first_entry()
            && first.key().0 < keep.now
        {
            let expired = first.remove();
            records.by_key.remove(&expired);
        }
        if let Some(known) = records.by_key.get(key) {
            let value = known.value.clone();
            return Ok(value.map_or(Recorded::Begun, Recorded::Done));
        }
        let capacity = self.capacity.unwrap_or(Self::CAPACITY);
        if records.by_key.len() >= capacity {
            return Err(LogError::Full { capacity });
        }
        records.count += 1;
        let until = (keep.until, records.count);
        records.by_time.insert(until, key.clone());
        let record = Record { until, value: None };
        records.by_key.insert(key.clone(), record);
        Ok(Recorded::Fresh)
    }
}

impl std::fmt::Debug for MemoryReplayLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryReplayLog")
            .field("records", &self.len())
            .finish()
    }
}

impl ReplayLog for MemoryReplayLog {
    fn begin<'a>(&'a self, key: &'a LogKey, keep: Keep) -> LogFuture<'a, Recorded> {
        Box::pin(ready(self.begin_now(key, keep)))
    }

    fn finish<'a>(&'a self, key: &'a LogKey, value: &'a str) -> LogFuture<'a, ()> {
        // An expired record is not written again.
        if let Some(record) = self.inner.lock().by_key.get_mut(key) {
            record.value = Some(value.to_owned());
        }
        Box::pin(ready(Ok(())))
    }

    fn forget<'a>(&'a self, key: &'a LogKey) -> LogFuture<'a, ()> {
        let mut records = self.inner.lock();
        if let Some(record) = records.by_key.remove(key) {
            records.by_time.remove(&record.until);
        }
        Box::pin(ready(Ok(())))
    }
}
