//! The outbox of the store in memory.

use super::entry::{MemoryTask, after};
use crate::task::Delivery;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// The deliveries by endpoint and id, each with the time at which it is due.
#[derive(Default)]
pub(super) struct Outbox(BTreeMap<(String, String), (SystemTime, Delivery)>);

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
            let key = (endpoint.clone(), delivery.id.clone());
            self.0.insert(key, (ended, delivery));
        }
    }

    pub(super) fn claim(
        &mut self,
        endpoint: &str,
        now: SystemTime,
        lease: Duration,
        most: usize,
    ) -> Vec<Delivery> {
        let is_due = |(due, delivery): &&mut (SystemTime, Delivery)| {
            *due <= now && delivery.endpoint == endpoint
        };
        let mut found: Vec<_> = self.0.values_mut().filter(is_due).collect();
        found.sort_by_key(|(due, _)| *due);
        let claim = |(due, delivery): &mut (SystemTime, Delivery)| {
            *due = after(now, lease);
            delivery.attempt = delivery.attempt.saturating_add(1);
            delivery.clone()
        };
        found.into_iter().take(most).map(claim).collect()
    }

    pub(super) fn finish(&mut self, delivery: &Delivery, retry: Option<SystemTime>) {
        let key = (delivery.endpoint.clone(), delivery.id.clone());
        let Some(retry) = retry else {
            self.0.remove(&key);
            return;
        };
        if let Some((due, stored)) = self.0.get_mut(&key)
            && stored.attempt == delivery.attempt
        {
            *due = retry;
        }
    }

    pub(super) fn trim(&mut self, now: SystemTime, age: Duration, rows: usize, most: usize) -> u64 {
        let before = self.0.len();
        let mut oldest: Vec<_> = self.0.iter().map(|(key, row)| (row.1.ended, key)).collect();
        oldest.sort();
        let over = oldest.len().saturating_sub(rows).min(most);
        let is_old = |(ended, _): &&(SystemTime, _)| after(*ended, age) <= now;
        let old = oldest.iter().take_while(is_old).count().min(most);
        let dropped: Vec<_> = oldest.into_iter().take(over.max(old)).collect();
        let dropped: Vec<_> = dropped.into_iter().map(|(_, key)| key.clone()).collect();
        for key in dropped {
            self.0.remove(&key);
        }
        (before - self.0.len()) as u64
    }
}
