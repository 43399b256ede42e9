//! A task in memory, and what becomes of it.

use crate::task::{
    Claimed, Commit, Committed, Lease, NewTask, Next, Task, TaskId, TaskRow, TaskStatus,
};
use crate::time::{length, micros, moment};
use refrain_core::{FlowId, Principal};
use std::time::Duration;

/// A task. Times are microseconds since 1970.
pub(super) struct Entry {
    id: TaskId,
    /// The how manieth task it is.
    pub(super) number: u64,
    pub(super) flow: FlowId,
    pub(super) owner: Principal,
    pub(super) tool: String,
    call: Vec<u8>,
    journal: Vec<u8>,
    pub(super) status: TaskStatus,
    status_message: Option<String>,
    pub(super) created: i64,
    updated: i64,
    ttl: i64,
    poll_interval: Duration,
    pub(super) expires: i64,
    pub(super) ended: Option<i64>,
    /// `None`: it is over.
    pub(super) due: Option<i64>,
    pub(super) worker: Option<String>,
    pub(super) fence: u64,
    attempts: u32,
    last_error: Option<String>,
    pub(super) revision: u64,
    outcome: Option<Vec<u8>>,
    asks: Vec<Ask>,
}

/// One that was published, in the order of publishing.
struct Ask {
    key: String,
    ask: Vec<u8>,
    state: AskState,
}

#[derive(PartialEq)]
enum AskState {
    Open,
    Answered(Vec<u8>),
    /// The journal has its answer, or needs none.
    Closed,
}

impl Entry {
    pub(super) fn new(new: NewTask, number: u64, now: i64) -> Self {
        let ttl = micros(new.ttl);
        let (worker, due) = match new.claimed {
            Some((worker, lease)) => (Some(worker), now + micros(lease)),
            None => (None, now),
        };
        let taken = u32::from(worker.is_some());
        Self {
            id: new.id,
            number,
            flow: new.flow,
            owner: new.owner,
            tool: new.tool,
            call: new.call,
            journal: new.journal,
            status: TaskStatus::Working,
            status_message: new.status_message,
            created: now,
            updated: now,
            ttl,
            poll_interval: new.poll_interval,
            expires: now + ttl,
            ended: None,
            due: Some(due),
            worker,
            fence: u64::from(taken),
            attempts: taken,
            last_error: None,
            revision: 1,
            outcome: None,
            asks: Vec::new(),
        }
    }

    pub(super) fn lease(&self) -> Lease {
        Lease {
            task: self.id.clone(),
            fence: self.fence,
        }
    }

    pub(super) fn task(&self) -> Task {
        let open = |ask: &&Ask| ask.state == AskState::Open && !self.status.is_terminal();
        let asks = self.asks.iter().filter(open);
        Task {
            id: self.id.clone(),
            tool: self.tool.clone(),
            status: self.status,
            status_message: self.status_message.clone(),
            created: moment(self.created),
            updated: moment(self.updated),
            ttl: length(self.expires - self.created),
            poll_interval: self.poll_interval,
            revision: self.revision,
            asks: asks.map(|ask| (ask.key.clone(), ask.ask.clone())).collect(),
            outcome: self.outcome.clone(),
        }
    }

    pub(super) fn row(&self) -> TaskRow {
        TaskRow {
            task: self.task(),
            owner: self.owner.clone(),
            worker: self.worker.clone(),
            due: self.due.map(moment),
            attempts: self.attempts,
            last_error: self.last_error.clone(),
        }
    }

    /// The answers that no journal has yet.
    pub(super) fn answers(&self) -> Vec<(String, Vec<u8>)> {
        let answered = |ask: &Ask| match &ask.state {
            AskState::Answered(answer) => Some((ask.key.clone(), answer.clone())),
            AskState::Open | AskState::Closed => None,
        };
        self.asks.iter().filter_map(answered).collect()
    }

    fn is_unread(&self) -> bool {
        let answered = |ask: &Ask| matches!(ask.state, AskState::Answered(_));
        self.asks.iter().any(answered)
    }

    /// It has changed.
    fn touch(&mut self, now: i64) {
        self.revision += 1;
        self.updated = self.updated.max(now);
    }

    /// How it stands while it is not over.
    fn running(&self) -> TaskStatus {
        match self.asks.iter().any(|ask| ask.state == AskState::Open) {
            true => TaskStatus::InputRequired,
            false => TaskStatus::Working,
        }
    }

    fn end(&mut self, status: TaskStatus, now: i64) {
        self.status = status;
        self.ended = Some(now);
        self.due = None;
        self.worker = None;
    }

    pub(super) fn claim(&mut self, worker: &str, now: i64, until: i64) -> Claimed {
        self.worker = Some(worker.to_owned());
        self.due = Some(until);
        self.fence += 1;
        self.attempts = self.attempts.saturating_add(1);
        self.revision += 1;
        Claimed {
            lease: self.lease(),
            owner: self.owner.clone(),
            flow: self.flow,
            tool: self.tool.clone(),
            call: self.call.clone(),
            journal: self.journal.clone(),
            answers: self.answers(),
            attempt: self.attempts,
            last_error: self.last_error.clone(),
            left: length(self.expires - now),
            ttl: length(self.ttl),
            revision: self.revision,
        }
    }

    /// Were there new ones?
    pub(super) fn answer(&mut self, answers: Vec<(String, Vec<u8>)>, now: i64) -> bool {
        let Some(due) = self.due else {
            return false;
        };
        let mut new = false;
        for (key, answer) in answers {
            if let Some(ask) = self.ask_mut(&key)
                && ask.state == AskState::Open
            {
                ask.state = AskState::Answered(answer);
                new = true;
            }
        }
        if new {
            self.touch(now);
            self.status = self.running();
            if self.worker.is_none() {
                self.due = Some(due.min(now));
            }
        }
        new
    }

    pub(super) fn cancel(&mut self, now: i64) {
        self.touch(now);
        self.fence += 1;
        self.status_message = None;
        self.end(TaskStatus::Cancelled, now);
    }

    pub(super) fn requeue(&mut self, now: i64) {
        self.touch(now);
        if self.due.is_none() {
            self.expires = now + self.ttl;
            self.ended = None;
            self.outcome = None;
            self.status_message = None;
        }
        self.status = self.running();
        self.due = Some(now);
        self.worker = None;
        self.fence += 1;
        self.attempts = 0;
    }

    pub(super) fn commit(&mut self, commit: Commit, now: i64) -> Committed {
        self.touch(now);
        if let Some(journal) = commit.journal {
            self.journal = journal;
        }
        if commit.progress {
            self.attempts = 0;
            self.last_error = None;
        } else if matches!(commit.next, Next::SetDown(_) | Next::HandOn) {
            self.attempts = self.attempts.saturating_sub(1);
        }
        if commit.status_message.is_some() || matches!(commit.next, Next::Complete(_)) {
            self.status_message = commit.status_message;
        }
        for (key, ask) in commit.publish {
            self.publish(key, ask);
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
        self.status = self.running();
        self.go_on(commit.next, now);
        Committed {
            revision: self.revision,
            answers: self.is_unread(),
        }
    }

    fn go_on(&mut self, next: Next, now: i64) {
        let after = |wait| self.expires.min(now + micros(wait));
        let due = match next {
            Next::Keep => return,
            Next::SetDown(_) if self.is_unread() => now,
            Next::SetDown(wait) => after(wait.unwrap_or(Duration::MAX)),
            Next::HandOn => now,
            Next::Retry(wait, error) => {
                self.last_error = Some(error);
                self.expires.min(now + micros(wait))
            }
            Next::Complete(outcome) => {
                self.outcome = Some(outcome);
                return self.end(TaskStatus::Completed, now);
            }
            Next::Fail(outcome) => {
                self.outcome = Some(outcome);
                return self.end(TaskStatus::Failed, now);
            }
        };
        self.due = Some(due);
        self.worker = None;
    }

    fn publish(&mut self, key: String, ask: Vec<u8>) {
        if self.ask_mut(&key).is_none() {
            let state = AskState::Open;
            self.asks.push(Ask { key, ask, state });
        }
    }

    fn ask_mut(&mut self, key: &str) -> Option<&mut Ask> {
        self.asks.iter_mut().find(|ask| ask.key == key)
    }
}
