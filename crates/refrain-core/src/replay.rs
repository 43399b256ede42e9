//! The log that makes `once` and single-use tokens possible.
//!
//! A token by itself cannot be told from its copy. Where work must not be done twice, what is about to be done is
//! written down first, under a key that the whole fleet sees.

use crate::journal::{FlowId, Key, Kind};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

/// What is recorded: a piece of work of one flow.
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

    /// The key of one round of a flow, for tokens that may be used once.
    pub fn round(flow: FlowId, round: u32) -> Self {
        let name = format!("round {round}");
        Self { flow, name }
    }

    /// The flow this belongs to.
    pub fn flow(&self) -> FlowId {
        self.flow
    }

    /// What of the flow it is.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn as_journal_key(&self) -> Key {
        Key {
            scope: None,
            kind: Kind::Once,
            name: Cow::Owned(self.name.clone()),
            ordinal: 1,
        }
    }
}

/// What the log knows of a piece of work that is about to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Nothing: it is now recorded as begun, and may be done.
    Fresh,
    /// It was begun, and no end was recorded: it is running elsewhere, or was interrupted.
    Begun,
    /// It was done, and this was recorded of it.
    Done(String),
}

/// Why an operation of the replay log failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The log cannot be reached or is overloaded. Repeating the operation may help.
    #[error("replay log unavailable: {0}")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
    /// The log has no room for another record.
    #[error("replay log full: it holds {capacity} records")]
    Full {
        /// The number of records that it can hold.
        capacity: usize,
    },
    /// The log rejected the operation. Repeating it does not help.
    #[error("replay log failed: {0}")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
}

/// A future of the replay log.
pub type LogFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, LogError>> + Send + 'a>>;

/// How long a record is needed, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The time now.
    pub now: u64,
    /// The time after which no token of the flow is accepted any more, by any clock of the fleet.
    pub until: u64,
}

impl Keep {
    /// A generous allowance for clocks of a fleet that differ.
    const CLOCKS: u64 = 3600;

    /// As long as a flow with this deadline can go on.
    pub fn for_flow(now: u64, deadline: u64) -> Self {
        let until = deadline.saturating_add(Self::CLOCKS);
        Self { now, until }
    }
}

/// Where work that must not be done twice is recorded. It must be shared by all instances that accept the same
/// tokens, and keep a record for as long as a flow can live.
pub trait ReplayLog: Send + Sync {
    /// Records that this is about to be done, unless it was recorded before. The record is kept for the time given.
    fn begin<'a>(&'a self, key: &'a LogKey, keep: Keep) -> LogFuture<'a, Recorded>;
    /// Records what came of it.
    fn finish<'a>(&'a self, key: &'a LogKey, value: &'a str) -> LogFuture<'a, ()>;
    /// Takes a beginning back: it may be tried again.
    fn forget<'a>(&'a self, key: &'a LogKey) -> LogFuture<'a, ()>;
}

/// A replay log in the memory of one process: for a server that runs as a single instance, and for tests.
///
/// It holds a bounded number of records. When it is full, nothing new may begin until the time of old ones is over: to
/// drop a record before that would let its work be done twice.
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

/// The time a record is kept until, and a number that tells records of one second apart.
type Until = (u64, u64);

struct Record {
    until: Until,
    value: Option<String>,
}

impl Records {
    fn forget_before(&mut self, now: u64) {
        while let Some(first) = self.by_time.first_entry()
            && first.key().0 < now
        {
            let key = first.remove();
            self.by_key.remove(&key);
        }
    }
}

impl MemoryReplayLog {
    /// Records held when nothing else is said.
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

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.inner.lock().by_key.len()
    }

    /// Is nothing recorded?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn begin_now(&self, key: &LogKey, keep: Keep) -> Result<Recorded, LogError> {
        let mut records = self.inner.lock();
        records.forget_before(keep.now);
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

    /// Records an end, where the beginning is still known.
    fn finish_now(&self, key: &LogKey, value: &str) {
        if let Some(record) = self.inner.lock().by_key.get_mut(key) {
            record.value = Some(value.to_owned());
        }
    }

    fn forget_now(&self, key: &LogKey) {
        let mut records = self.inner.lock();
        if let Some(record) = records.by_key.remove(key) {
            records.by_time.remove(&record.until);
        }
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
        self.finish_now(key, value);
        Box::pin(ready(Ok(())))
    }

    fn forget<'a>(&'a self, key: &'a LogKey) -> LogFuture<'a, ()> {
        self.forget_now(key);
        Box::pin(ready(Ok(())))
    }
}
