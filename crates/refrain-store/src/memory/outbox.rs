//! The outbox of the store in memory.

use super::entry::{MemoryTask, after};
use crate::task::Delivery;
use refrain_core::Principal;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, SystemTime};

#[derive(Default)]
pub(super) struct Outbox {
    /// By endpoint and id.
    deliveries: BTreeMap<(String, String), OutboxRow>,
    /// Endpoint, due time and id of every delivery.
    due: BTreeSet<(String, SystemTime, String)>,
}

#[derive(Clone)]
struct OutboxRow {
    due: SystemTime,
    account: Principal,
    delivery: Delivery,
}

impl Outbox {
    /// Adds the deliveries of a task if it has ended.
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
            let account = entry.account.clone();
            self.insert(OutboxRow {
                due: ended,
                account,
                delivery,
            });
        }
    }

    fn insert(&mut self, row: OutboxRow) {
        let (endpoint, id) = (row.delivery.endpoint.clone(), row.delivery.id.clone());
        self.due.insert((endpoint.clone(), row.due, id.clone()));
        self.deliveries.insert((endpoint, id), row);
    }

    fn remove(&mut self, key: &(String, String)) -> Option<OutboxRow> {
        let row = self.deliveries.remove(key)?;
        let (endpoint, id) = key.clone();
        self.due.remove(&(endpoint, row.due, id));
        Some(row)
    }

    pub(super) fn claim(
        &mut self,
        endpoint: &str,
        now: SystemTime,
        lease: Duration,
        most: usize,
    ) -> Vec<Delivery> {
        let first = (endpoint.to_owned(), SystemTime::UNIX_EPOCH, String::new());
        let found = self.due.range(first..);
        let found = found.take_while(|(name, due, _)| name == endpoint && *due <= now);
        let found: Vec<_> = found.take(most).cloned().collect();
        let claim = |(endpoint, _, id)| {
            let mut row = self.remove(&(endpoint, id))?;
            row.due = after(now, lease);
            row.delivery.attempt = row.delivery.attempt.saturating_add(1);
            self.insert(row.clone());
            Some(row.delivery)
        };
        found.into_iter().filter_map(claim).collect()
    }

    pub(super) fn finish(&mut self, delivery: &Delivery, retry: Option<SystemTime>) {
        let key = (delivery.endpoint.clone(), delivery.id.clone());
        let Some(retry) = retry else {
            self.remove(&key);
            return;
        };
        let stored = self.deliveries.get(&key);
        if stored.is_some_and(|stored| stored.delivery.attempt == delivery.attempt)
            && let Some(row) = self.remove(&key)
        {
            self.insert(OutboxRow { due: retry, ..row });
        }
    }

    /// Deletes old deliveries, and those over the limit of rows. The caller with the most rows loses its oldest ones first.
    pub(super) fn trim(&mut self, now: SystemTime, age: Duration, rows: usize, most: usize) -> u64 {
        let mut newest: Vec<_> = self.deliveries.iter().collect();
        newest.sort_by_key(|(_, row)| Reverse(row.delivery.ended));
        let mut counts: HashMap<&Principal, usize> = HashMap::new();
        let mut counted = Vec::with_capacity(newest.len());
        for (key, row) in newest {
            let newer = counts.entry(&row.account).or_default();
            *newer += 1;
            counted.push((*newer, key, row.delivery.ended));
        }
        counted.sort_by_key(|(newer, _, ended)| (Reverse(*newer), *ended));
        let excess = counted.len().saturating_sub(rows);
        let (over, kept) = counted.split_at(excess);
        let old = kept.iter().filter(|(.., ended)| after(*ended, age) <= now);
        let dropped = over.iter().chain(old).take(most);
        let dropped: Vec<_> = dropped.map(|(_, key, _)| (*key).clone()).collect();
        for key in &dropped {
            self.remove(key);
        }
        dropped.len() as u64
    }
}
