//! The order in which tasks are claimed.
//!
//! Each account has one task in each turn, so an account with many tasks does not delay the first tasks of others.

use super::entry::MemoryTask;
use crate::quota::is_anonymous_account;
use crate::task::{Claim, TaskId};
use refrain_core::Principal;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::SystemTime;

/// The key of a task in the queue. The number of its creation makes it unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum QueueKey {
    /// It may be claimed.
    Ready {
        turn: u64,
        due: SystemTime,
        number: u64,
    },
    /// Its wait or its lease ends at this time.
    Waiting { due: SystemTime, number: u64 },
}

#[derive(Default)]
pub(super) struct ClaimQueue {
    /// All tasks that have not ended. Ready tasks come first, in the order of their claims.
    tasks: BTreeMap<QueueKey, TaskId>,
    /// The turns of an account's ready tasks.
    turns: HashMap<Principal, BTreeSet<u64>>,
    /// The last claimed turn.
    last: u64,
}

impl ClaimQueue {
    /// Updates the position of a new or changed task.
    pub(super) fn update(&mut self, entry: &mut MemoryTask, now: SystemTime) {
        let (account, number) = (&entry.account, entry.number);
        let key = match (entry.row.due, entry.queue_key) {
            (None, _) => None,
            (Some(due), _) if due > now => Some(QueueKey::Waiting { due, number }),
            (Some(_), ready @ Some(QueueKey::Ready { .. })) => ready,
            (Some(due), _) => {
                let turns = self.turns.get(account);
                let turn = turns.and_then(BTreeSet::last).max(Some(&self.last));
                let turn = turn.map_or(1, |turn| turn + 1);
                Some(QueueKey::Ready { turn, due, number })
            }
        };
        if key != entry.queue_key {
            self.remove(entry);
            if let Some(QueueKey::Ready { turn, .. }) = key {
                self.turns.entry(account.clone()).or_default().insert(turn);
            }
            if let Some(key) = key {
                self.tasks.insert(key, entry.row.task.id.clone());
            }
            entry.queue_key = key;
        }
    }

    fn remove(&mut self, entry: &MemoryTask) {
        let Some(key) = entry.queue_key else { return };
        self.tasks.remove(&key);
        if let QueueKey::Ready { turn, .. } = key
            && let Some(turns) = self.turns.get_mut(&entry.account)
        {
            turns.remove(&turn);
            if turns.is_empty() {
                self.turns.remove(&entry.account);
            }
        }
    }

    /// The tasks whose wait or lease has ended by now.
    pub(super) fn overdue(&self, now: SystemTime) -> Vec<TaskId> {
        let due = SystemTime::UNIX_EPOCH;
        let waiting = self.tasks.range(QueueKey::Waiting { due, number: 0 }..);
        let overdue = waiting
            .take_while(|(key, _)| matches!(key, QueueKey::Waiting { due, .. } if *due <= now));
        overdue.map(|(_, id)| id.clone()).collect()
    }

    /// The next tasks that this worker may claim, in the order of their turns. Advances the last claimed turn.
    pub(super) fn find(
        &mut self,
        claim: Claim<'_>,
        tasks: &HashMap<TaskId, MemoryTask>,
        now: SystemTime,
    ) -> Vec<TaskId> {
        let ready = self.tasks.iter().map_while(|(key, id)| match key {
            QueueKey::Ready { turn, .. } => Some((*turn, id)),
            QueueKey::Waiting { .. } => None,
        });
        let is_claimable = |(_, id): &(u64, &TaskId)| {
            tasks.get(id).is_some_and(|entry| {
                let can_run = claim.tools.contains(&entry.row.task.tool);
                (can_run || entry.expires() <= now)
                    && !claim.except.contains(&entry.account)
                    && (claim.anonymous || !is_anonymous_account(&entry.account))
            })
        };
        let found: Vec<(u64, &TaskId)> = ready.filter(is_claimable).take(claim.most).collect();
        let last = found.last().map_or(0, |(turn, _)| *turn);
        let found = found.into_iter().map(|(_, id)| id.clone()).collect();
        self.last = self.last.max(last);
        found
    }
}
