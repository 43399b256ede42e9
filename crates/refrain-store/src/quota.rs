//! Limits of the data in a store, in total and for each account: an owner, or an anonymous caller's address.
//!
//! A task counts with the bytes of its call, journal, asks, answers and result, rounded up to the next KiB; a stored token
//! likewise. Ended tasks count until they are deleted. A record of the replay log counts with its outcome and
//! [`RECORD_BYTES`].
//!
//! The last quarter of the total (for anonymous callers: of theirs) is for small accounts, so that others cannot fill the store.

use refrain_core::{MemoryReplayLog, Principal};

/// A small account uses at most its limit divided by this number.
const SMALL_DIVISOR: u64 = 16;

/// The bytes of a record without an outcome.
pub(crate) const RECORD_BYTES: usize = MemoryReplayLog::RECORD_BYTES;

/// The limits of a store. The default is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The maximum number of an account's tasks that have not ended.
    pub tasks: u64,
    /// The maximum number of an account's bytes.
    pub bytes: u64,
    /// The maximum number of bytes of all accounts.
    pub total_bytes: u64,
    /// The number of bytes of all accounts above which anonymous callers store nothing more.
    pub anonymous_bytes: u64,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            tasks: u64::MAX,
            bytes: u64::MAX,
            total_bytes: u64::MAX,
            anonymous_bytes: u64::MAX,
        }
    }
}

/// The limit that rejected a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaReached {
    /// [`Quota::tasks`].
    #[error("this caller is at its limit of {0} unfinished tasks; try again when some have ended")]
    Tasks(u64),
    /// [`Quota::bytes`].
    #[error(
        "this caller is at its limit of {0} bytes in the store; try again when some have expired"
    )]
    Bytes(u64),
    /// [`Quota::total_bytes`].
    #[error("the store is at its limit of {0} bytes; try again later")]
    TotalBytes(u64),
    /// [`Quota::anonymous_bytes`].
    #[error("the store is at its limit of {0} bytes for anonymous callers; try again later")]
    AnonymousBytes(u64),
    /// The last quarter of the total limit is reserved for accounts with at most this many bytes.
    #[error(
        "the store is almost full, and the rest is for callers with at most {0} bytes; try again when some have expired"
    )]
    Share(u64),
}

/// Returns whether the account belongs to an anonymous caller: its id is missing, empty, or made of an address.
pub fn is_anonymous_account(account: &Principal) -> bool {
    account.id().is_none_or(str::is_empty) || account.account_address().is_some()
}

/// The usage of one account, and the bytes of all accounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) tasks: u64,
    pub(crate) bytes: u64,
    pub(crate) total_bytes: u64,
}

impl Quota {
    /// The limit of all accounts' bytes that applies to a write of an anonymous or authenticated caller.
    pub(crate) fn total_for(self, is_anonymous: bool) -> u64 {
        match is_anonymous {
            true => self.total_bytes.min(self.anonymous_bytes),
            false => self.total_bytes,
        }
    }

    /// Checks a write of an account that adds tasks and bytes. The SQL statements make the same checks.
    pub(crate) fn check(
        self,
        used: Usage,
        account: &Principal,
        (tasks, bytes): (u64, u64),
    ) -> Result<(), QuotaReached> {
        if tasks > 0 && used.tasks.saturating_add(tasks) > self.tasks {
            return Err(QuotaReached::Tasks(self.tasks));
        }
        if bytes == 0 {
            return Ok(());
        }
        let own = used.bytes.saturating_add(bytes);
        if own > self.bytes {
            return Err(QuotaReached::Bytes(self.bytes));
        }
        let total = used.total_bytes.saturating_add(bytes);
        if total > self.total_bytes {
            return Err(QuotaReached::TotalBytes(self.total_bytes));
        }
        let limit = self.total_for(is_anonymous_account(account));
        if total > limit {
            return Err(QuotaReached::AnonymousBytes(limit));
        }
        let small = self.bytes / SMALL_DIVISOR;
        if total > limit - limit / 4 && own > small {
            return Err(QuotaReached::Share(small));
        }
        Ok(())
    }
}
