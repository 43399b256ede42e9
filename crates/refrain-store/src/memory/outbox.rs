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
    /// Endpoint, turn, due time and id of every delivery.
    turns: BTreeSet<(String, u64, SystemTime, String)>,
    /// Endpoint, due time and id of every delivery.
    due: BTreeSet<(String, SystemTime, String)>,
    /// Endpoint, caller, turn and id of every delivery.
    accounts: BTreeSet<(String, Option<String>, u64, String)>,
}

#[derive(Clone)]
struct OutboxRow {
    due: SystemTime,
    turn: u64,
    account: Principal,
    delivery: Delivery,
}

impl OutboxRow {
    fn turn_key(&self) -> (String, u64, SystemTime, String) {
        let Delivery { endpoint, id, .. } = &self.delivery;
        (endpoint.clone(), self.turn, self.due, id.clone())
    }

    fn due_key(&self) -> (String, SystemTime, String) {
        let Delivery { endpoint, id, .. } = &self.delivery;
        (endpoint.clone(), self.due, id.clone())
    }

    fn account_key(&self) -> (String, Option<String>, u64, String) {
        let Delivery { endpoint, id, .. } = &self.delivery;
        let account = self.account.id().map(str::to_owned);
        (endpoint.clone(), account, self.turn, id.clone())
    }
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
            self.insert(OutboxRow {
                due: ended,
                turn: self.next_turn(endpoint, &entry.account),
                account: entry.account.clone(),
                delivery,
            });
        }
    }

    /// The turn of a new delivery: after the other deliveries of its caller. If the caller has
    /// none, the turn of the first waiting delivery to the endpoint.
    fn next_turn(&self, endpoint: &str, account: &Principal) -> u64 {
        let account = account.id().map(str::to_owned);
        let last = (
            endpoint.to_owned(),
            account.clone(),
            u64::MAX,
            String::new(),
        );
        let last = self.accounts.range(..last).next_back();
        let last = last.filter(|(name, of, ..)| name == endpoint && *of == account);
        if let Some((_, _, last, _)) = last {
            return last + 1;
        }
        let first = (
            endpoint.to_owned(),
            0,
            SystemTime::UNIX_EPOCH,
            String::new(),
        );
        let first = self.turns.range(first..).next();
        let first = first.filter(|(name, ..)| name == endpoint);
        first.map_or(0, |(_, turn, ..)| *turn)
    }

    fn insert(&mut self, row: OutboxRow) {
        self.turns.insert(row.turn_key());
        self.due.insert(row.due_key());
        self.accounts.insert(row.account_key());
        let key = (row.delivery.endpoint.clone(), row.delivery.id.clone());
        self.deliveries.insert(key, row);
    }

    fn remove(&mut self, key: &(String, String)) -> Option<OutboxRow> {
        let row = self.deliveries.remove(key)?;
        self.turns.remove(&row.turn_key());
        self.due.remove(&row.due_key());
        self.accounts.remove(&row.account_key());
        Some(row)
    }

    /// When the next delivery to the endpoint is due.
    fn next_due(&self, endpoint: &str) -> Option<SystemTime> {
        let first = (endpoint.to_owned(), SystemTime::UNIX_EPOCH, String::new());
        let (name, due, _) = self.due.range(first..).next()?;
        (name == endpoint).then_some(*due)
    }

    pub(super) fn claim(
        &mut self,
        endpoint: &str,
        now: SystemTime,
        lease: Duration,
        most: usize,
    ) -> Vec<Delivery> {
        if self.next_due(endpoint).is_none_or(|due| due > now) {
            return Vec::new();
        }
        let first = (
            endpoint.to_owned(),
            0,
            SystemTime::UNIX_EPOCH,
            String::new(),
        );
        let found = self.turns.range(first..);
        let found = found.take_while(|(name, ..)| name == endpoint);
        let found = found.filter(|(_, _, due, _)| *due <= now);
        let found: Vec<_> = found.take(most).cloned().collect();
        let claim = |(endpoint, _, _, id)| {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{StoredStatus, TaskId};

    const LEASE: Duration = Duration::from_secs(60);

    #[test]
    fn next_due_time_follows_every_change() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let mut outbox = Outbox::default();
        for (number, endpoint) in [(1, "a"), (2, "b"), (3, "b"), (4, "c")] {
            let delivery = Delivery {
                endpoint: endpoint.to_owned(),
                id: number.to_string(),
                task: TaskId::new([number; 24]),
                tool: "tool".to_owned(),
                status: StoredStatus::Completed,
                created: at(0),
                ended: at(number.into()),
                attempt: 0,
            };
            outbox.insert(OutboxRow {
                due: delivery.ended,
                turn: 0,
                account: Principal::anonymous(),
                delivery,
            });
        }
        assert_eq!(outbox.next_due("b"), Some(at(2)));
        assert_eq!(outbox.claim("b", at(1), LEASE, 9), []);
        let first = outbox.claim("b", at(5), LEASE, 1).remove(0);
        assert_eq!((&*first.id, outbox.next_due("b")), ("2", Some(at(3))));
        let second = outbox.claim("b", at(6), LEASE, 9).remove(0);
        assert_eq!((&*second.id, outbox.next_due("b")), ("3", Some(at(65))));
        outbox.finish(&second, Some(at(7)));
        assert_eq!(outbox.next_due("b"), Some(at(7)));
        outbox.finish(&first, None);
        outbox.finish(&second, None);
        assert_eq!(outbox.next_due("b"), None);
        assert_eq!(outbox.trim(at(9), Duration::ZERO, 0, 9), 2);
        assert!(outbox.due.is_empty() && outbox.next_due("a").is_none());
    }
}
