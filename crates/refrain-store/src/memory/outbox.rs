//! The outbox of the store in memory.
//!
//! A claim reads all deliveries to its endpoint, which takes about 5 ms with 100,000 of them.

use super::entry::{MemoryTask, after};
use crate::task::Delivery;
use refrain_core::Principal;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, SystemTime};

#[derive(Default)]
pub(super) struct Outbox {
    endpoints: BTreeMap<String, EndpointRows>,
}

/// The deliveries to one endpoint.
#[derive(Default)]
struct EndpointRows {
    /// By id.
    rows: BTreeMap<String, OutboxRow>,
    /// The turns of each caller's deliveries.
    turns: HashMap<Principal, BTreeSet<u64>>,
}

struct OutboxRow {
    due: SystemTime,
    turn: u64,
    account: Principal,
    delivery: Delivery,
}

impl OutboxRow {
    /// The place of a due delivery in the order of claims.
    fn order(&self) -> (u64, SystemTime, &str) {
        (self.turn, self.due, &self.delivery.id)
    }
}

impl Outbox {
    /// Adds the deliveries of a task if it has ended. The turn of a delivery is after the other deliveries of its caller. If
    /// the caller has none, it is the turn of the first waiting delivery to the endpoint.
    pub(super) fn add(&mut self, entry: &MemoryTask) {
        let Some(ended) = entry.ended else { return };
        let task = &entry.row.task;
        for endpoint in &entry.webhooks {
            let delivery = Delivery {
                endpoint: endpoint.clone(),
                id: format!("{}_{}", task.id, task.revision),
                task: task.id.clone(),
                tool: task.tool.clone(),
                status: task.status,
                created: task.created,
                ended,
                attempt: 0,
            };
            let EndpointRows { rows, turns } = self.endpoints.entry(endpoint.clone()).or_default();
            let last = turns.get(&entry.account).and_then(BTreeSet::last);
            let first = || turns.values().filter_map(BTreeSet::first).min().copied();
            let turn = last.map(|last| last + 1).or_else(first).unwrap_or(0);
            let account = entry.account.clone();
            turns.entry(account.clone()).or_default().insert(turn);
            let row = OutboxRow {
                due: ended,
                turn,
                account,
                delivery,
            };
            rows.insert(row.delivery.id.clone(), row);
        }
    }

    pub(super) fn claim(
        &mut self,
        endpoint: &str,
        now: SystemTime,
        lease: Duration,
        most: usize,
    ) -> Vec<Delivery> {
        let rows = self.endpoints.get_mut(endpoint).into_iter();
        let rows = rows.flat_map(|endpoint| endpoint.rows.values_mut());
        let mut due: Vec<_> = rows.filter(|row| row.due <= now).collect();
        if due.len() > most {
            // Sorting all of them would take longer.
            due.select_nth_unstable_by(most, |a, b| a.order().cmp(&b.order()));
            due.truncate(most);
        }
        due.sort_unstable_by(|a, b| a.order().cmp(&b.order()));
        let claim = |row: &mut OutboxRow| {
            row.due = after(now, lease);
            row.delivery.attempt = row.delivery.attempt.saturating_add(1);
            row.delivery.clone()
        };
        due.into_iter().map(claim).collect()
    }

    pub(super) fn finish(&mut self, delivery: &Delivery, retry: Option<SystemTime>) {
        let Some(EndpointRows { rows, turns }) = self.endpoints.get_mut(&delivery.endpoint) else {
            return;
        };
        if let Some(retry) = retry {
            if let Some(row) = rows.get_mut(&delivery.id)
                && row.delivery.attempt == delivery.attempt
            {
                row.due = retry;
            }
        } else if let Some(row) = rows.remove(&delivery.id)
            && let Some(of_caller) = turns.get_mut(&row.account)
        {
            of_caller.remove(&row.turn);
            if of_caller.is_empty() {
                turns.remove(&row.account);
            }
        }
    }

    /// Deletes old deliveries, and those over the limit of rows. The caller with the most rows loses its oldest ones first.
    pub(super) fn trim(&mut self, now: SystemTime, age: Duration, rows: usize, most: usize) -> u64 {
        let mut newest: Vec<_> = self
            .endpoints
            .values()
            .flat_map(|endpoint| endpoint.rows.values())
            .collect();
        newest.sort_by_key(|row| Reverse(row.delivery.ended));
        let mut counts: HashMap<&Principal, usize> = HashMap::new();
        let mut counted = Vec::with_capacity(newest.len());
        for row in newest {
            let newer = counts.entry(&row.account).or_default();
            *newer += 1;
            counted.push((*newer, &row.delivery));
        }
        counted.sort_by_key(|(newer, delivery)| (Reverse(*newer), delivery.ended));
        let excess = counted.len().saturating_sub(rows);
        let (over, kept) = counted.split_at(excess);
        let old = kept
            .iter()
            .filter(|(_, delivery)| after(delivery.ended, age) <= now);
        let dropped = over.iter().chain(old).take(most);
        let dropped: Vec<_> = dropped.map(|(_, delivery)| (*delivery).clone()).collect();
        for delivery in &dropped {
            self.finish(delivery, None);
        }
        dropped.len() as u64
    }
}
