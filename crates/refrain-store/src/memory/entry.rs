//! Tasks of the store in memory.

use super::queue::QueueKey;
use crate::task::{
    ClaimedTask, Commit, CommitResult, Lease, NewTask, Next, OpenAsks, StoredStatus, StoredTask,
    TaskRow,
};
use crate::time::{duration, micros};
use bytes::Bytes;
use refrain_core::{FlowId, Principal};
use std::collections::HashSet;
use std::time::{Duration, SystemTime};

pub(super) struct MemoryTask {
    /// The task, without its open asks.
    pub(super) row: TaskRow,
    /// The sequence number of its creation.
    pub(super) number: u64,
    /// `None`: it has ended.
    pub(super) queue_key: Option<QueueKey>,
    pub(super) account: Principal,
    pub(super) flow: FlowId,
    call: Vec<u8>,
    journal: Vec<u8>,
    /// The time to live that it was created with.
    ttl: Duration,
    pub(super) ended: Option<SystemTime>,
    pub(super) fence: u64,
    pub(super) webhooks: Vec<String>,
    /// In the order of their publication.
    asks: Vec<MemoryAsk>,
}

struct MemoryAsk {
    key: String,
    /// Shared with readers, since copying a large ask under the store's lock would delay all callers.
    ask: Bytes,
    state: AskState,
}

#[derive(PartialEq)]
enum AskState {
    Open,
    Answered(Vec<u8>),
    /// Its answer is in the journal, or it was withdrawn.
    Closed,
}

impl MemoryAsk {
    /// Its key and its content.
    fn to_pair(&self) -> (String, Bytes) {
        (self.key.clone(), self.ask.clone())
    }
}

/// The bytes that count towards a quota: the next multiple of 1 KiB above the size of the content.
pub(super) fn charged(bytes: usize) -> u64 {
    (bytes as u64 / 1024 + 1) * 1024
}

/// Limits a duration, so that it can be added to any time.
fn bounded(time: Duration) -> Duration {
    duration(micros(time))
}

/// Adds a wait to a time, without overflow.
pub(super) fn after(time: SystemTime, wait: Duration) -> SystemTime {
    time + bounded(wait)
}

impl MemoryTask {
    pub(super) fn new(new: NewTask, number: u64, now: SystemTime) -> Self {
        let (worker, lease) = new.claimed.unzip();
        let claims = u32::from(worker.is_some());
        let task = StoredTask {
            id: new.id,
            tool: new.tool,
            status: StoredStatus::Working,
            status_message: new.status_message,
            created: now,
            updated: now,
            ttl: bounded(new.ttl),
            poll_interval: new.poll_interval,
            revision: 1,
            asks: Vec::new(),
            outcome: None,
        };
        let row = TaskRow {
            task,
            owner: new.owner,
            worker,
            due: Some(after(now, lease.unwrap_or_default())),
            attempts: claims,
            last_error: None,
        };
        Self {
            row,
            number,
            queue_key: None,
            account: new.account,
            flow: new.flow,
            call: new.call,
            journal: new.journal,
            ttl: bounded(new.ttl),
            ended: None,
            fence: u64::from(claims),
            webhooks: new.webhooks,
            asks: Vec::new(),
        }
    }

    pub(super) fn lease(&self) -> Lease {
        Lease {
            task: self.row.task.id.clone(),
            fence: self.fence,
        }
    }

    pub(super) fn task(&self) -> StoredTask {
        self.row().task
    }

    pub(super) fn row(&self) -> TaskRow {
        let mut row = self.row.clone();
        row.task.asks = self.open().map(MemoryAsk::to_pair).collect();
        row
    }

    /// The open asks with these keys.
    pub(super) fn open_asks(&self, keys: &HashSet<&str>) -> OpenAsks {
        let asks = self.open().filter(|ask| keys.contains(ask.key.as_str()));
        OpenAsks {
            tool: self.row.task.tool.clone(),
            asks: asks.map(MemoryAsk::to_pair).collect(),
        }
    }

    /// The open asks. An ended task has none.
    fn open(&self) -> impl Iterator<Item = &MemoryAsk> {
        let has_ended = self.row.task.status.is_terminal();
        let is_open = move |ask: &&MemoryAsk| !has_ended && ask.state == AskState::Open;
        self.asks.iter().filter(is_open)
    }

    pub(super) fn expires(&self) -> SystemTime {
        self.row.task.created + self.row.task.ttl
    }

    /// The bytes that count for its account.
    pub(super) fn bytes(&self) -> u64 {
        let asks = self.asks.iter().map(|ask| match &ask.state {
            AskState::Answered(answer) => ask.ask.len() + answer.len(),
            AskState::Open | AskState::Closed => ask.ask.len(),
        });
        let outcome = self.row.task.outcome.as_ref().map_or(0, Bytes::len);
        charged(self.call.len() + self.journal.len() + outcome + asks.sum::<usize>())
    }

    /// The bytes that a commit adds.
    pub(super) fn growth(&self, commit: &Commit) -> u64 {
        let journal = commit.journal.as_ref().map_or(0, Vec::len);
        let freed = match (&commit.next, &commit.journal) {
            (Next::Fail(_), _) => return 0,
            (Next::Complete(_), _) => self.call.len() + self.journal.len() + journal,
            (_, Some(_)) => self.journal.len(),
            (_, None) => 0,
        };
        (commit.new_bytes() + journal).saturating_sub(freed) as u64
    }

    /// The answers that are not in the journal.
    pub(super) fn answers(&self) -> Vec<(String, Vec<u8>)> {
        let answered = |ask: &MemoryAsk| match &ask.state {
            AskState::Answered(answer) => Some((ask.key.clone(), answer.clone())),
            AskState::Open | AskState::Closed => None,
        };
        self.asks.iter().filter_map(answered).collect()
    }

    fn has_unread_answers(&self) -> bool {
        let answered = |ask: &MemoryAsk| matches!(ask.state, AskState::Answered(_));
        self.asks.iter().any(answered)
    }

    /// Updates the revision and the time of the last change.
    fn touch(&mut self, now: SystemTime) {
        let task = &mut self.row.task;
        task.revision += 1;
        task.updated = task.updated.max(now);
    }

    /// Sets the status of a task that has not ended.
    fn update_status(&mut self) {
        let has_open = self.asks.iter().any(|ask| ask.state == AskState::Open);
        self.row.task.status = match has_open {
            true => StoredStatus::InputRequired,
            false => StoredStatus::Working,
        };
    }

    fn end(&mut self, status: StoredStatus, now: SystemTime) {
        self.row.task.status = status;
        self.ended = Some(now);
        self.row.due = None;
        self.row.worker = None;
    }

    /// Drops the data that is only needed to run the task.
    fn drop_inputs(&mut self) {
        self.call = Vec::new();
        self.journal = Vec::new();
    }

    pub(super) fn claim(
        &mut self,
        worker: &str,
        now: SystemTime,
        until: SystemTime,
    ) -> ClaimedTask {
        let row = &mut self.row;
        row.worker = Some(worker.to_owned());
        row.due = Some(until);
        row.attempts = row.attempts.saturating_add(1);
        row.task.revision += 1;
        self.fence += 1;
        let row = &self.row;
        ClaimedTask {
            account: self.account.clone(),
            lease: self.lease(),
            owner: row.owner.clone(),
            flow: self.flow,
            tool: row.task.tool.clone(),
            call: self.call.clone(),
            journal: self.journal.clone(),
            answers: self.answers(),
            attempt: row.attempts,
            last_error: row.last_error.clone(),
            left: self.expires().duration_since(now).unwrap_or_default(),
            ttl: self.ttl,
            revision: row.task.revision,
        }
    }

    /// Stores answers, and returns whether one of them was new.
    pub(super) fn answer(&mut self, answers: Vec<(String, Vec<u8>)>, now: SystemTime) -> bool {
        let Some(due) = self.row.due else {
            return false;
        };
        let mut has_new = false;
        for (key, answer) in answers {
            if let Some(ask) = self.ask_mut(&key)
                && ask.state == AskState::Open
            {
                ask.state = AskState::Answered(answer);
                has_new = true;
            }
        }
        if has_new {
            self.touch(now);
            self.update_status();
            if self.row.worker.is_none() {
                self.row.due = Some(due.min(now));
            }
        }
        has_new
    }

    pub(super) fn cancel(&mut self, now: SystemTime) {
        self.touch(now);
        self.fence += 1;
        self.row.task.status_message = None;
        self.drop_inputs();
        self.end(StoredStatus::Cancelled, now);
    }

    pub(super) fn requeue(&mut self, now: SystemTime) {
        self.touch(now);
        let task = &mut self.row.task;
        if self.ended.take().is_some() {
            let lived = now.duration_since(task.created).unwrap_or_default();
            task.ttl = lived + self.ttl;
            task.outcome = None;
            task.status_message = None;
        }
        self.update_status();
        self.row.due = Some(now);
        self.row.worker = None;
        self.row.attempts = 0;
        self.fence += 1;
    }

    pub(super) fn commit(&mut self, commit: Commit, now: SystemTime) -> CommitResult {
        self.touch(now);
        if let Some(journal) = commit.journal {
            self.journal = journal;
        }
        let row = &mut self.row;
        if commit.progress {
            row.attempts = 0;
            row.last_error = None;
        } else if matches!(commit.next, Next::Suspend(_) | Next::HandOn) {
            row.attempts = row.attempts.saturating_sub(1);
        }
        if commit.status_message.is_some() || matches!(commit.next, Next::Complete(_)) {
            row.task.status_message = commit.status_message;
        }
        for (key, ask) in commit.publish {
            if self.ask_mut(&key).is_none() {
                let state = AskState::Open;
                let ask = ask.into();
                self.asks.push(MemoryAsk { key, ask, state });
            }
        }
        for key in commit.taken {
            if let Some(ask) = self.ask_mut(&key)
                && ask.state != AskState::Open
            {
                ask.state = AskState::Closed;
            }
        }
        for key in commit.withdrawn {
            if let Some(ask) = self.ask_mut(&key) {
                ask.state = AskState::Closed;
            }
        }
        self.update_status();
        self.apply_next(commit.next, now);
        CommitResult {
            revision: self.row.task.revision,
            answers: self.has_unread_answers(),
        }
    }

    fn apply_next(&mut self, next: Next, now: SystemTime) {
        let expires = self.expires();
        let due = match next {
            Next::Keep => return,
            Next::HandOn => now,
            Next::Suspend(_) if self.has_unread_answers() => now,
            Next::Suspend(None) => expires,
            Next::Suspend(Some(wait)) => expires.min(after(now, wait)),
            Next::Retry(wait, error) => {
                self.row.last_error = Some(error);
                expires.min(after(now, wait))
            }
            Next::Complete(outcome) => {
                self.drop_inputs();
                self.row.task.outcome = Some(outcome.into());
                return self.end(StoredStatus::Completed, now);
            }
            Next::Fail(outcome) => {
                self.row.task.outcome = Some(outcome.into());
                return self.end(StoredStatus::Failed, now);
            }
        };
        self.row.due = Some(due);
        self.row.worker = None;
    }

    fn ask_mut(&mut self, key: &str) -> Option<&mut MemoryAsk> {
        self.asks.iter_mut().find(|ask| ask.key == key)
    }
}
