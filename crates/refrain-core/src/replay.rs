//! The replay log of `once` and of single-use tokens.
//!
//! A token can be copied, so work that must not be repeated is recorded before it starts, in a log that the whole fleet
//! shares.

use crate::Principal;
use crate::journal::FlowId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// The key of a record: a flow, and the name of the work.
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

    /// Makes the key of one round, for single-use tokens.
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

/// The state of a record when its work is about to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordState {
    /// There was no record. The work is now recorded as started.
    Fresh,
    /// The work was started and has no recorded outcome: it is running, or was interrupted.
    Begun,
    /// The work is done, with this recorded outcome.
    Done(String),
}

/// Why an operation of the replay log failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The log is unreachable or overloaded. A retry may help.
    #[error("replay log unavailable: {0}")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
    /// The log has no capacity for another record.
    #[error("replay log full: it holds {capacity} records")]
    Full {
        /// The maximum number of records.
        capacity: usize,
    },
    /// A limit of stored records or bytes is reached, of the account or of all accounts. Nothing was recorded. For a store, the source is
    /// the `QuotaReached` of `refrain-store`.
    #[error("{0}")]
    Quota(#[source] Box<dyn Error + Send + Sync>),
    /// The log has no memory for an outcome.
    #[error(
        "replay log in memory has no room for an outcome of {bytes} bytes, only for {room} bytes"
    )]
    NoMemory {
        /// The size of the outcome.
        bytes: usize,
        /// The size of the largest outcome that has room.
        room: usize,
    },
    /// The recorded outcome does not open, or is not sealed. The work is not repeated.
    #[error("replay log record cannot be opened: {source}; check that the keys have not changed")]
    Unreadable {
        /// Why it does not open.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The log rejected the operation. A retry does not help.
    #[error("replay log failed: {0}")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
}

/// The future of an operation of the replay log.
pub type LogFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, LogError>> + Send + 'a>>;

/// The time span for which a record is retained, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The current time.
    pub now: u64,
    /// The time after which no instance accepts a token of the flow.
    pub until: u64,
}

impl Retention {
    /// The maximum of [`SealerOptions::skew`](crate::SealerOptions::skew): records outlive all tokens of their flow.
    pub const MAX_SKEW: Duration = Duration::from_secs(3600);

    /// The retention for a flow with this deadline.
    pub fn for_flow(now: u64, deadline: u64) -> Self {
        let until = deadline.saturating_add(Self::MAX_SKEW.as_secs());
        Self { now, until }
    }
}

/// A log of work that must not be repeated. All instances that accept the same tokens must share it.
pub trait ReplayLog: Send + Sync {
    /// Records the start of the work, unless it was recorded before. The record counts as data of the account. A new record
    /// over a quota fails with [`LogError::Quota`].
    fn begin<'a>(
        &'a self,
        key: &'a LogKey,
        account: &'a Principal,
        retention: Retention,
    ) -> LogFuture<'a, RecordState>;
    /// Records the outcome, also over a quota.
    fn finish<'a>(&'a self, key: &'a LogKey, value: &'a str) -> LogFuture<'a, ()>;
    /// Deletes the record. The work may then start again.
    fn forget<'a>(&'a self, key: &'a LogKey) -> LogFuture<'a, ()>;
}

/// A replay log in the memory of one process, for a single instance and for tests.
///
/// When it is full, no new work may start until old records expire. Evicting a record earlier
/// would let its work repeat. All outcomes share 512 MiB. An outcome of more than a 16th of the
/// free part is not kept: the work then counts as interrupted if it is repeated. So large outcomes
/// leave room for small ones. An account may start work while it has fewer records and bytes than
/// are free, so one account uses at most half of the records and of the bytes.
#[derive(Clone, Default)]
pub struct MemoryReplayLog {
    inner: Arc<Mutex<Records>>,
    capacity: Option<usize>,
}

#[derive(Default)]
struct Records {
    by_key: HashMap<LogKey, Record>,
    by_expiry: BTreeMap<Expiry, LogKey>,
    count: u64,
    /// The bytes of all outcomes.
    bytes: usize,
    by_account: HashMap<Principal, AccountUsage>,
}

#[derive(Clone, Copy, Default)]
struct AccountUsage {
    records: usize,
    /// The bytes of the outcomes.
    value_bytes: usize,
}

impl AccountUsage {
    fn bytes(self) -> usize {
        self.records * MemoryReplayLog::RECORD_BYTES + self.value_bytes
    }
}

/// The expiry of a record, and a unique number.
type Expiry = (u64, u64);

struct Record {
    account: Principal,
    expiry: Expiry,
    value: Option<String>,
}

impl Record {
    fn value_bytes(&self) -> usize {
        self.value.as_ref().map_or(0, String::len)
    }
}

impl Records {
    fn find(&self, key: &LogKey, now: u64) -> Option<&Record> {
        let record = self.by_key.get(key)?;
        (record.expiry.0 >= now).then_some(record)
    }

    fn insert(&mut self, key: &LogKey, account: &Principal, until: u64) {
        self.count += 1;
        let expiry = (until, self.count);
        self.by_expiry.insert(expiry, key.clone());
        let record = Record {
            account: account.clone(),
            expiry,
            value: None,
        };
        self.by_key.insert(key.clone(), record);
        self.by_account.entry(account.clone()).or_default().records += 1;
    }

    fn set_value(&mut self, key: &LogKey, value: &str) {
        let Some(record) = self.by_key.get_mut(key) else {
            return;
        };
        let before = record.value_bytes();
        record.value = Some(value.to_owned());
        self.bytes = self.bytes - before + value.len();
        if let Some(used) = self.by_account.get_mut(&record.account) {
            used.value_bytes = used.value_bytes - before + value.len();
        }
    }

    fn remove(&mut self, key: &LogKey) {
        let Some(record) = self.by_key.remove(key) else {
            return;
        };
        self.by_expiry.remove(&record.expiry);
        self.bytes -= record.value_bytes();
        if let Some(used) = self.by_account.get_mut(&record.account) {
            used.records -= 1;
            used.value_bytes -= record.value_bytes();
            if used.records == 0 {
                self.by_account.remove(&record.account);
            }
        }
    }

    fn usage_of(&self, account: &Principal) -> AccountUsage {
        self.by_account.get(account).copied().unwrap_or_default()
    }
}

impl MemoryReplayLog {
    /// The default capacity in records.
    pub const CAPACITY: usize = 1_000_000;
    /// The maximum number of bytes of all outcomes.
    const BYTES: usize = 512 << 20;
    /// The maximum number of expired records that the start of one piece of work deletes.
    const SWEPT: usize = 1000;
    /// The bytes that a record counts in addition to its outcome.
    pub const RECORD_BYTES: usize = 100;

    /// Makes an empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes an empty log for at most this many records.
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

    /// Returns whether there is a record that has not expired.
    pub fn contains(&self, key: &LogKey, now: u64) -> bool {
        self.inner.lock().find(key, now).is_some()
    }

    /// Returns the bytes of the records of this account, and of all accounts.
    pub fn usage(&self, account: &Principal) -> (usize, usize) {
        let records = self.inner.lock();
        let all = records.bytes + records.by_key.len() * Self::RECORD_BYTES;
        (records.usage_of(account).bytes(), all)
    }

    /// Deletes expired records, at most `most`. Returns their number.
    pub fn sweep(&self, now: u64, most: usize) -> usize {
        let mut records = self.inner.lock();
        let is_expired = |records: &Records| {
            let first = records.by_expiry.first_key_value();
            first
                .filter(|(expiry, _)| expiry.0 < now)
                .map(|(_, key)| key.clone())
        };
        (0..most)
            .map_while(|_| is_expired(&records).map(|key| records.remove(&key)))
            .count()
    }

    fn begin_now(
        &self,
        key: &LogKey,
        account: &Principal,
        retention: Retention,
    ) -> Result<RecordState, LogError> {
        self.sweep(retention.now, Self::SWEPT);
        let mut records = self.inner.lock();
        if let Some(record) = records.find(key, retention.now) {
            let value = record.value.clone();
            return Ok(value.map_or(RecordState::Begun, RecordState::Done));
        }
        records.remove(key);
        let capacity = self.capacity.unwrap_or(Self::CAPACITY);
        let free = capacity.saturating_sub(records.by_key.len());
        let used = records.usage_of(account);
        let (count, bytes) = (used.records, used.bytes());
        let reached = if free == 0 {
            return Err(LogError::Full { capacity });
        } else if count >= free {
            format!("{count} records of this caller, and no more room than that for others")
        } else if bytes > Self::BYTES - records.bytes {
            format!("{bytes} bytes of this caller, and less memory than that for others")
        } else {
            records.insert(key, account, retention.until);
            return Ok(RecordState::Fresh);
        };
        let reached = format!("the replay log has {reached}; try again when some have expired");
        Err(LogError::Quota(reached.into()))
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
    fn begin<'a>(
        &'a self,
        key: &'a LogKey,
        account: &'a Principal,
        retention: Retention,
    ) -> LogFuture<'a, RecordState> {
        Box::pin(ready(self.begin_now(key, account, retention)))
    }

    fn finish<'a>(&'a self, key: &'a LogKey, value: &'a str) -> LogFuture<'a, ()> {
        let mut records = self.inner.lock();
        let (bytes, room) = (value.len(), (Self::BYTES - records.bytes) / 16);
        let finished = match records.by_key.contains_key(key) && bytes > room {
            true => Err(LogError::NoMemory { bytes, room }),
            false => Ok(()),
        };
        if finished.is_ok() {
            // An expired record is not created again.
            records.set_value(key, value);
        }
        Box::pin(ready(finished))
    }

    fn forget<'a>(&'a self, key: &'a LogKey) -> LogFuture<'a, ()> {
        self.inner.lock().remove(key);
        Box::pin(ready(Ok(())))
    }
}
