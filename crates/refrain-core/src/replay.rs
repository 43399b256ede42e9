//! The log that makes `once` and single-use tokens possible.
//!
//! A token by itself cannot be told from its copy. Where work must not be done twice, what is about to be done is
//! written down first, under a key that the whole fleet sees.

use crate::journal::{FlowId, Key, Kind};
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

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

/// The log could not be reached, or has no room.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the replay log failed: {0}")]
pub struct LogError(pub String);

/// A future of the replay log.
pub type LogFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, LogError>> + Send + 'a>>;

/// Where work that must not be done twice is recorded. It must be shared by all instances that accept the same
/// tokens, and keep a record for as long as a flow can live.
pub trait ReplayLog: Send + Sync {
    /// Records that this is about to be done, unless it was recorded before.
    fn begin<'a>(&'a self, key: &'a LogKey) -> LogFuture<'a, Recorded>;
    /// Records what came of it.
    fn finish<'a>(&'a self, key: &'a LogKey, value: &'a str) -> LogFuture<'a, ()>;
}

/// A replay log in the memory of one process: for a server that runs as a single instance, and for tests.
///
/// It holds a bounded number of records. When it is full, nothing new may begin until old flows have been
/// forgotten with [`MemoryReplayLog::forget_before`]: to drop a record unasked would let its work be done twice.
#[derive(Clone, Default)]
pub struct MemoryReplayLog {
    inner: Arc<Mutex<Records>>,
    capacity: Option<usize>,
}

#[derive(Default)]
struct Records {
    by_key: HashMap<LogKey, Option<String>>,
    /// In the order they were begun, with a time in seconds since 1970 that is not before that.
    order: VecDeque<(u64, LogKey)>,
    /// How many of the last ones have no time yet.
    undated: usize,
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

    /// Tells the log the time, in seconds since 1970, and forgets what was begun before `oldest`. What was begun
    /// since the last time it was told counts as begun now.
    pub fn forget_before(&self, now: u64, oldest: u64) {
        let mut records = crate::lock(&self.inner);
        let undated = std::mem::take(&mut records.undated);
        for (at, _) in records.order.iter_mut().rev().take(undated) {
            *at = now;
        }
        while records.order.front().is_some_and(|(at, _)| *at < oldest) {
            if let Some((_, key)) = records.order.pop_front() {
                records.by_key.remove(&key);
            }
        }
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        crate::lock(&self.inner).by_key.len()
    }

    /// Is nothing recorded?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn begin_now(&self, key: &LogKey) -> Result<Recorded, LogError> {
        let mut records = crate::lock(&self.inner);
        if let Some(known) = records.by_key.get(key) {
            return Ok(known.clone().map_or(Recorded::Begun, Recorded::Done));
        }
        let capacity = self.capacity.unwrap_or(Self::CAPACITY);
        if records.by_key.len() >= capacity {
            return Err(LogError(format!("it holds {capacity} records and is full")));
        }
        records.order.push_back((0, key.clone()));
        records.undated += 1;
        records.by_key.insert(key.clone(), None);
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
    fn begin<'a>(&'a self, key: &'a LogKey) -> LogFuture<'a, Recorded> {
        Box::pin(std::future::ready(self.begin_now(key)))
    }

    fn finish<'a>(&'a self, key: &'a LogKey, value: &'a str) -> LogFuture<'a, ()> {
        crate::lock(&self.inner)
            .by_key
            .insert(key.clone(), Some(value.to_owned()));
        Box::pin(std::future::ready(Ok(())))
    }
}
