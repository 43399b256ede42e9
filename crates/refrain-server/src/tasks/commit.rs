//! Commits of a running task: its journal, its end, or another attempt.

use super::Tasks;
use super::driver::{Driver, Running};
use super::failures::too_often;
use super::sealing::Part;
use crate::metrics::TaskEvent;
use crate::retry::Backoff;
use crate::rounds::outcome_of;
use refrain_core::{End, ErrorKind, Principal};
use refrain_store::{Commit, CommitResult, Next, StoreError, TaskId};
use refrain_wire::{CallKind, RpcError, error_at_rest, result_at_rest};
use std::future::Future;
use std::time::{Duration, Instant};

/// The lease is lost: another instance runs the task.
pub(super) struct LeaseLost;

/// A store that does not work loses the lease.
impl From<StoreError> for LeaseLost {
    fn from(_: StoreError) -> Self {
        Self
    }
}

/// A commit that only changes the state of the task.
pub(super) fn only(next: Next) -> Commit {
    Commit {
        next,
        ..Commit::default()
    }
}

impl Tasks {
    pub(super) fn count(&self, next: &Next) {
        let event = match next {
            Next::Keep => return,
            Next::Suspend(_) => TaskEvent::SetDown,
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
            ..only(next)
        }
    }

    /// The wait before another attempt: exponential, with jitter.
    fn wait_before(&self, attempt: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(attempt.saturating_sub(1));
        let wait = self.options.retry_after.saturating_mul(doubled);
        let wait = wait.min(self.options.retry_at_most);
        let random = u16::from_be_bytes(self.services.random());
        let jitter = f64::from(random) / f64::from(u16::MAX);
        wait.mul_f64(0.5 + jitter / 2.0)
    }
}

impl Driver {
    /// The commit for the end of an attempt: the outcome, or another attempt.
    pub(super) fn ended(&self, running: &Running, end: End) -> Commit {
        let task = &self.hold.lease.task;
        let whose = (task, &self.owner);
        let again = match &end {
            End::Failed(error) if matches!(error.kind(), ErrorKind::Retry) => {
                Some(error.to_string())
            }
            End::Panicked(message) => {
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
            return only(Next::Retry(wait, reason));
        }
        // The error replaces an earlier status message, but a sealed result is not repeated in plain text.
        let error = match &end {
            End::Failed(error) if !self.tasks.options.seal => Some(error.to_string()),
            _ => None,
        };
        match outcome_of(end, CallKind::Tool, running.tool.output.as_deref()) {
            Ok(body) => {
                let result = result_at_rest(&body);
                let outcome = self.tasks.seal(whose, Part::Outcome, result.as_bytes());
                Commit {
                    status_message: error,
                    ..only(Next::Complete(outcome))
                }
            }
            Err(error) => self.tasks.fail(whose, &error),
        }
    }

    pub(super) async fn take_answers(&self, running: &mut Running) -> Result<(), LeaseLost> {
        let (tasks, lease) = (&self.tasks, &self.hold.lease);
        let answers = self.until_done(|| tasks.store.answers(lease)).await?;
        for (key, stored) in answers {
            let whose = (&lease.task, &self.owner);
            let opened = tasks.open(whose, Part::Answer(&key), stored);
            if let Some(json) = opened.and_then(|opened| String::from_utf8(opened).ok()) {
                running.flow.answer(&key, &json);
            }
        }
        Ok(())
    }

    /// Renews a lease that may have expired.
    pub(super) async fn make_sure(&self) -> Result<(), LeaseLost> {
        let tasks = &self.tasks;
        let leases = std::slice::from_ref(&self.hold.lease);
        let time = tasks.options.lease;
        let asked = Instant::now();
        let held = self.until_done(|| tasks.store.extend(leases, time)).await?;
        if held.is_empty() {
            return Err(LeaseLost);
        }
        self.hold.extended(asked, time);
        Ok(())
    }

    pub(super) async fn end(&self, error: &RpcError) -> Result<(), LeaseLost> {
        let whose = (&self.hold.lease.task, &self.owner);
        let commit = self.tasks.fail(whose, error);
        self.commit(&commit).await.map(drop)
    }

    pub(super) async fn commit(&self, commit: &Commit) -> Result<CommitResult, LeaseLost> {
        let (tasks, lease) = (&self.tasks, &self.hold.lease);
        let done = self.until_done(|| tasks.store.commit(lease, commit.clone()));
        let committed = match done.await {
            Ok(committed) => committed,
            Err(StoreError::Lost) => return Err(LeaseLost),
            // The store rejects the commit: the task fails.
            Err(_) => {
                let whose = (&lease.task, &self.owner);
                let error = RpcError::internal("what the task came to could not be stored");
                let commit = tasks.fail(whose, &error);
                let failed = self.until_done(|| tasks.store.commit(lease, commit.clone()));
                if failed.await.is_ok() {
                    tasks.count(&commit.next);
                }
                return Err(LeaseLost);
            }
        };
        self.hold.wrote(committed.revision);
        tasks.count(&commit.next);
        Ok(committed)
    }

    /// Runs an operation of the store, retried while the store is unavailable and the lease is held.
    async fn until_done<T, F>(&self, mut work: impl FnMut() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        let mut is_logged = false;
        loop {
            let error = match work().await {
                Err(error) if !matches!(error, StoreError::Lost) => error,
                done => return done,
            };
            if !std::mem::replace(&mut is_logged, true) {
                tracing::warn!(task = ?self.hold.lease.task, %error, "the task store failed");
            }
            if self.hold.is_lost() {
                return Err(StoreError::Lost);
            }
            if !matches!(error, StoreError::Unavailable(_)) {
                return Err(error);
            }
            backoff.wait().await;
        }
    }
}
