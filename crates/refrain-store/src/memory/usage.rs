//! The numbers of tasks and bytes of each account.

use super::entry::{MemoryTask, charged};
use crate::quota::{Quota, QuotaReached, Usage};
use refrain_core::{MemoryReplayLog, Principal};
use std::collections::HashMap;

#[derive(Default)]
pub(super) struct UsageTable {
    pub(super) quota: Quota,
    /// The replay log of the store, which counts its own bytes.
    pub(super) log: MemoryReplayLog,
    accounts: HashMap<Principal, Share>,
    total_bytes: u64,
}

/// Numbers of unfinished tasks and of bytes: of an account, or of one task or token.
type Share = (u64, u64);

pub(super) fn task_share(entry: &MemoryTask) -> Share {
    (u64::from(entry.ended.is_none()), entry.bytes())
}

pub(super) fn token_share(token: &[u8]) -> Share {
    (0, charged(token.len()))
}

impl UsageTable {
    pub(super) fn check(
        &self,
        account: &Principal,
        tasks: u64,
        bytes: u64,
    ) -> Result<(), QuotaReached> {
        let used = self.accounts.get(account).copied().unwrap_or_default();
        let (in_log, all_in_log) = self.log.usage(account);
        let used = Usage {
            tasks: used.0,
            bytes: used.1 + in_log as u64,
            total_bytes: self.total_bytes + all_in_log as u64,
        };
        self.quota.check(used, account, (tasks, bytes))
    }

    pub(super) fn add(&mut self, account: &Principal, (tasks, bytes): Share) {
        let used = self.accounts.entry(account.clone()).or_default();
        *used = (used.0 + tasks, used.1 + bytes);
        self.total_bytes += bytes;
    }

    pub(super) fn subtract(&mut self, account: &Principal, (tasks, bytes): Share) {
        if let Some(used) = self.accounts.get_mut(account) {
            *used = (used.0 - tasks, used.1 - bytes);
            if *used == (0, 0) {
                self.accounts.remove(account);
            }
        }
        self.total_bytes -= bytes;
    }
}
