//! The outbox of the store in memory.

use super::entry::{MemoryTask, after};
use crate::task::Delivery;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

#[derive(Default)]
pub(super) struct Outbox {
    /// By endpoint and id, each with its due time.
    deliveries: BTreeMap<(String, String), (SystemTime, Delivery)>,
    /// Endpoint, due time and id of every delivery.
    due: BTreeSet<(String, SystemTime, String)>,
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
            self.insert(ended, delivery);
        }
    }

    fn insert(&mut self, due: SystemTime, delivery: Delivery) {
        let (endpoint, id) = (delivery.endpoint.clone(), delivery.id.clone());
        self.due.insert((endpoint.clone(), due, id.clone()));
        self.deliveries.insert((endpoint, id), (due, delivery));
    }

    fn remove(&mut self, key: &(String, String)) -> Option<Delivery> {
        let (due, delivery) = self.deliveries.remove(key)?;
        let (endpoint, id) = key.clone();
        self.due.remove(&(endpoint, due, id));
        Some(delivery)
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
            let mut delivery = self.remove(&(endpoint, id))?;
            delivery.attempt = delivery.attempt.saturating_add(1);
            self.insert(after(now, lease), delivery.clone());
            Some(delivery)
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
        if stored.is_some_and(|(_, stored)| stored.attempt == delivery.attempt)
            && let Some(delivery) = self.remove(&key)
        {
            self.insert(retry, delivery);
        }
    }

    pub(super) fn trim(&mut self, now: SystemTime, age: Duration, rows: usize, most: usize) -> u64 {
        let deliveries = self.deliveries.iter();
        let mut oldest: Vec<_> = deliveries.map(|(key, row)| (row.1.ended, key)).collect();
        oldest.sort();
        let excess = oldest.len().saturating_sub(rows);
        let is_old = |(ended, _): &&(SystemTime, _)| after(*ended, age) <= now;
        let old = oldest.iter().take_while(is_old).count();
        let dropped = oldest.into_iter().take(excess.max(old).min(most));
        let dropped: Vec<_> = dropped.map(|(_, key)| key.clone()).collect();
        for key in &dropped {
            self.remove(key);
        }
        dropped.len() as u64
    }
}
