//! Limits of the data in a store, in total and for each account: an owner, or an anonymous caller's address.
//!
//! A task counts with the bytes of its call, journal, asks, answers and result, rounded up to the next KiB; a spilled token
//! likewise. Ended tasks count until they are deleted.

/// The limits of a store. The default is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The maximum number of an account's tasks that have not ended.
    pub tasks: u64,
    /// The maximum number of an account's bytes.
    pub bytes: u64,
    /// The maximum number of bytes of all accounts.
    pub total_bytes: u64,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            tasks: u64::MAX,
            bytes: u64::MAX,
            total_bytes: u64::MAX,
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
        "this caller is at its limit of {0} bytes in the store; try again when tasks have expired"
    )]
    Bytes(u64),
    /// [`Quota::total_bytes`].
    #[error("the store is at its limit of {0} bytes; try again later")]
    TotalBytes(u64),
}

/// The numbers that a [`Quota`] limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) tasks: u64,
    pub(crate) bytes: u64,
    pub(crate) total_bytes: u64,
}

impl Quota {
    /// Checks the usage after a write that adds tasks and bytes.
    pub(crate) fn check(self, used: Usage, tasks: u64, bytes: u64) -> Result<(), QuotaReached> {
        if tasks > 0 && used.tasks.saturating_add(tasks) > self.tasks {
            return Err(QuotaReached::Tasks(self.tasks));
        }
        if bytes > 0 && used.bytes.saturating_add(bytes) > self.bytes {
            return Err(QuotaReached::Bytes(self.bytes));
        }
        if bytes > 0 && used.total_bytes.saturating_add(bytes) > self.total_bytes {
            return Err(QuotaReached::TotalBytes(self.total_bytes));
        }
        Ok(())
    }
}
