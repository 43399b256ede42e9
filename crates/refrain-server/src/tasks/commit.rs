//! Commits of a running task: its journal, its end, or another attempt. Retried until the lease is lost.

use super::Tasks;
use super::driver::{Driver, Running};
use super::failures::too_often;
use super::sealing::Part;
use crate::metrics::TaskEvent;
use crate::retry::Backoff;
use crate::rounds::outcome_of;
use refrain_core::{ErrorKind, Event, Principal};
use refrain_store::{Commit, Committed, Next, StoreError, TaskId};
use refrain_wire::{CallKind, RpcError, error_at_rest, result_at_rest};
use std::future::Future;
use std::time::{Duration, Instant};

/// The lease is lost: another instance runs the task.
pub(super) struct Gone;

impl Tasks {
    /// Counts a commit.
    pub(super) fn count(&self, next: &Next) {
        let event = match next {
            Next::Keep => return,
            Next::SetDown(_) => TaskEvent::SetDown,
            Next::HandOn => TaskEvent::HandedOn,
            Next::Retry(..) => TaskEvent::Retried,
            Next::Complete(_) => TaskEvent::Completed,
            Next::Fail(_) => TaskEvent::Failed,
        };
        self.services.metrics.tasks.add(event);
    }

    /// The commit of a failed task. Its status message is the error.
    pub(super) fn fail(&self, whose: (&TaskId, &Principal), error: &RpcError) -> Commit {
        tracing::warn!(task = ?whose.0, error = %error.message, "a task failed");
        let next = Next::Fail(self.seal(whose, Part::Outcome, error_at_rest(error).as_bytes()));
        Commit {
            status_message: Some(error.message.to_string()),
            next,
            ..Commit::default()
        }
    }

    /// The wait before another attempt: exponential, with jitter.
    fn wait_before(&self, attempt: u32) -> Duration {
        let options = &self.options;
        let doubled = 1_u32
            .checked_shl(attempt.saturating_sub(1))
            .unwrap_or(u32::MAX);
        let wait = options.retry_after.saturating_mul(doubled);
        let wait = wait.min(options.retry_at_most);
        let random = u16::from_be_bytes(self.services.random());
        let jitter = f64::from(random) / f64::from(u16::MAX);
        wait.mul_f64(0.5 + jitter / 2.0)
    }
}

impl Driver {
    /// The commit for the last event: the end, or another attempt.
    pub(super) fn ended(&self, running: &Running, event: Event) -> Commit {
        let task = &self.hold.lease.task;
        let whose = (task, &self.owner);
        let again = match &event {
            Event::Done(Err(error)) if matches!(error.kind(), ErrorKind::Retry) => {
                Some(error.to_string())
            }
            Event::Panicked(message) => {
                tracing::error!(?task, panic = %message, "a handler panicked");
                Some("the handler panicked; the server's log says where".to_owned())
            }
            _ => None,
        };
        if let Some(reason) = again {
            let attempt = running.attempt;
            if attempt >= self.tasks.options.attempts {
                return self.tasks.fail(whose, &too_often(attempt, Some(&reason)));
            }
            let wait = self.tasks.wait_before(attempt);
            tracing::warn!(?task, attempt, %reason, "an attempt at a task failed");
            return Commit {
                next: Next::Retry(wait, reason),
                ..Commit::default()
            };
        }
        // The error replaces an earlier status message, but a sealed result is not repeated in plain text.
        let is_sealed = self.tasks.options.seal;
        let error = match &event {
            Event::Done(Err(_)) if is_sealed => None,
            Event::Done(Err(error)) => Some(error.to_string()),
            _ => None,
        };
        match outcome_of(event, CallKind::Tool, running.tool.output.as_deref()) {
            Ok(body) => {
                let result = result_at_rest(&body);
                let outcome = self.tasks.seal(whose, Part::Outcome, result.as_bytes());
                Commit {
                    status_message: error,
                    next: Next::Complete(outcome),
                    ..Commit::default()
                }
            }
            Err(error) => self.tasks.fail(whose, &error),
        }
    }

    pub(super) async fn take_answers(&self, running: &mut Running) -> Result<(), Gone> {
        let tasks = &self.tasks;
        let lease = &self.hold.lease;
        let answers = self.until_done(|| tasks.store.answers(lease)).await?;
        for (key, stored) in answers {
            let whose = (&lease.task, &self.owner);
            let opened = self.tasks.open(whose, Part::Answer(&key), stored);
            if let Some(json) = opened.and_then(|opened| String::from_utf8(opened).ok()) {
                running.flow.answer(&key, &json);
            }
        }
        Ok(())
    }

    /// Renews a lease that may have expired.
    pub(super) async fn make_sure(&self) -> Result<(), Gone> {
        let tasks = &self.tasks;
        let leases = std::slice::from_ref(&self.hold.lease);
        let time = tasks.options.lease;
        let asked = Instant::now();
        let held = self.until_done(|| tasks.store.extend(leases, time)).await?;
        if held.is_empty() {
            return Err(Gone);
        }
        self.hold.extended(asked, time);
        Ok(())
    }

    /// Ends the task with this error.
    pub(super) async fn end(&self, error: &RpcError) -> Result<(), Gone> {
        let whose = (&self.hold.lease.task, &self.owner);
        let commit = self.tasks.fail(whose, error);
        self.commit(&commit).await.map(|_| ())
    }

    pub(super) async fn commit(&self, commit: &Commit) -> Result<Committed, Gone> {
        let tasks = &self.tasks;
        let lease = &self.hold.lease;
        let done = self.until_done(|| tasks.store.commit(lease, commit.clone()));
        let committed = match done.await {
            Ok(committed) => committed,
            Err(Undone::Gone) => return Err(Gone),
            // The store rejects the commit: the task fails.
            Err(Undone::Refused) => {
                let whose = (&lease.task, &self.owner);
                let error = RpcError::internal("what the task came to could not be stored");
                let commit = self.tasks.fail(whose, &error);
                let failed = self.until_done(|| tasks.store.commit(lease, commit.clone()));
                if failed.await.is_ok() {
                    self.tasks.count(&commit.next);
                }
                return Err(Gone);
            }
        };
        self.hold.wrote(committed.revision);
        self.tasks.count(&commit.next);
        Ok(committed)
    }

    /// Runs an operation of the store, retried while the store is unavailable and the lease is held.
    async fn until_done<T, F>(&self, mut work: impl FnMut() -> F) -> Result<T, Undone>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        let mut told = false;
        loop {
            let error = match work().await {
                Ok(done) => return Ok(done),
                Err(StoreError::Lost) => return Err(Undone::Gone),
                Err(error) => error,
            };
            let task = &self.hold.lease.task;
            if !told {
                tracing::warn!(?task, %error, "the task store failed");
                told = true;
            }
            if self.hold.is_lost() {
                return Err(Undone::Gone);
            }
            if !matches!(error, StoreError::Unavailable(_)) {
                return Err(Undone::Refused);
            }
            backoff.wait().await;
        }
    }
}

/// Why an operation of the store failed.
enum Undone {
    /// The lease is lost.
    Gone,
    /// The store rejects it.
    Refused,
}

impl From<Undone> for Gone {
    fn from(_: Undone) -> Self {
        Self
    }
}
