//! Commits of a running task: progress, result or retry.

use super::Tasks;
use super::driver::{Driver, RunningTask};
use super::failures::too_many_attempts;
use super::leases::TaskSlot;
use super::sealing::TaskPart;
use crate::backoff::Backoff;
use crate::metrics::TaskEvent;
use crate::rounds::outcome_of;
use refrain_core::{End, ErrorKind, Principal, limited_event};
use refrain_store::{Commit, CommitResult, Next, StoreError, TaskId};
use refrain_wire::{CallKind, RpcError, stored_error, stored_result};
use std::future::Future;
use std::time::{Duration, Instant};

/// The task was cancelled, or another instance claimed it.
pub(super) struct LeaseLost;

/// A task that cannot be written is treated like a lost lease.
impl From<StoreError> for LeaseLost {
    fn from(_: StoreError) -> Self {
        Self
    }
}

/// A commit that changes only the state of the task.
pub(super) fn state_change(next: Next) -> Commit {
    Commit {
        next,
        ..Commit::default()
    }
}

impl Tasks {
    pub(super) fn count_event(&self, next: &Next) {
        let event = match next {
            Next::Keep => return,
            Next::Suspend(_) => TaskEvent::SetDown,
            Next::HandOn => TaskEvent::HandedOn,
            Next::Retry(..) => TaskEvent::Retried,
            Next::Complete(_) => TaskEvent::Completed,
            Next::Fail(_) => TaskEvent::Failed,
        };
        self.services.metrics.tasks.add(event);
        if let Next::Complete(_) | Next::Fail(_) = next {
            self.webhooks.task_ended();
        }
    }

    /// The commit that fails a task. The error becomes its status message.
    pub(super) fn fail(&self, owned: (&TaskId, &Principal), error: &RpcError) -> Commit {
        limited_event!(WARN, task = ?owned.0, error = %error.message, "task failed");
        let next = Next::Fail(self.seal(owned, TaskPart::Outcome, stored_error(error).as_bytes()));
        Commit {
            status_message: Some(error.message.to_string()),
            ..state_change(next)
        }
    }

    /// The wait after a failed attempt: exponential backoff with jitter.
    pub(super) fn backoff_after(&self, attempt: u32, max: Duration) -> Duration {
        let factor = 2_u32.saturating_pow(attempt.saturating_sub(1));
        let wait = self.options.retry_after.saturating_mul(factor).min(max);
        let random = u16::from_be_bytes(self.services.random());
        let jitter = f64::from(random) / f64::from(u16::MAX);
        wait.mul_f64(0.5 + jitter / 2.0)
    }
}

impl Driver {
    /// The commit for the end of an attempt: a result, an error or a retry.
    pub(super) fn final_commit(&self, running: &RunningTask, end: End) -> Commit {
        let (tasks, task) = (&self.tasks, &self.held.lease.task);
        let owned = (task, &self.owner);
        let retry_reason = match &end {
            _ if running.is_live => None,
            End::Failed(error) if matches!(error.kind(), ErrorKind::Retry) => {
                Some(error.to_string())
            }
            End::Panicked(message) => {
                limited_event!(ERROR, ?task, panic = %message, "handler panicked");
                Some("the handler panicked; see the server's log".to_owned())
            }
            _ => None,
        };
        if let Some(reason) = retry_reason {
            let attempt = running.attempt;
            if attempt >= tasks.options.attempts {
                return tasks.fail(owned, &too_many_attempts(attempt, Some(&reason)));
            }
            let wait = tasks.backoff_after(attempt, tasks.options.retry_at_most);
            limited_event!(WARN, ?task, attempt, %reason, "task attempt failed");
            return state_change(Next::Retry(wait, reason));
        }
        // The error becomes the status message, unless results are sealed: status messages are
        // stored unsealed.
        let is_sealed = tasks.options.seal;
        let has_failed = matches!(end, End::Failed(_));
        let error = match &end {
            End::Failed(error) if !is_sealed => Some(error.to_string()),
            _ => None,
        };
        match outcome_of(end, CallKind::Tool, running.tool.output.as_deref()) {
            Ok(body) => {
                let result = stored_result(&body);
                let outcome = tasks.seal(owned, TaskPart::Outcome, result.as_bytes());
                Commit {
                    status_message: error,
                    ..state_change(Next::Complete(outcome))
                }
            }
            Err(error) => {
                let mut commit = tasks.fail(owned, &error);
                if is_sealed && has_failed {
                    commit.status_message = None;
                }
                commit
            }
        }
    }

    pub(super) async fn take_answers(&self, running: &mut RunningTask) -> Result<(), LeaseLost> {
        let (tasks, lease) = (&self.tasks, &self.held.lease);
        let answers = self.retry_store(|| tasks.store.answers(lease)).await?;
        if !answers.is_empty() {
            running.slot.as_mut().map(TaskSlot::take_again);
        }
        for (key, stored) in answers {
            let owned = (&lease.task, &self.owner);
            let opened = tasks.open(owned, TaskPart::Answer(&key), stored);
            if let Some(json) = opened.and_then(|opened| String::from_utf8(opened).ok()) {
                running.flow.answer(&key, &json);
            }
        }
        Ok(())
    }

    pub(super) async fn renew_lease(&self) -> Result<(), LeaseLost> {
        let tasks = &self.tasks;
        let leases = std::slice::from_ref(&self.held.lease);
        let time = tasks.options.lease;
        let requested_at = Instant::now();
        let renewed = self
            .retry_store(|| tasks.store.extend(leases, time))
            .await?;
        if renewed.is_empty() {
            return Err(LeaseLost);
        }
        self.held.renewed(requested_at, time);
        Ok(())
    }

    pub(super) async fn fail_task(&self, error: &RpcError) -> Result<(), LeaseLost> {
        let owned = (&self.held.lease.task, &self.owner);
        let commit = self.tasks.fail(owned, error);
        self.commit(&commit).await.map(drop)
    }

    pub(super) async fn commit(&self, commit: &Commit) -> Result<CommitResult, LeaseLost> {
        let (tasks, lease) = (&self.tasks, &self.held.lease);
        let done = self.retry_store(|| tasks.store.commit(lease, commit.clone()));
        let committed = match done.await {
            Ok(committed) => committed,
            Err(StoreError::Lost) => return Err(LeaseLost),
            // The store rejected the commit, so the task fails.
            Err(error) => {
                let owned = (&lease.task, &self.owner);
                let error = match error {
                    StoreError::Quota(reached) => RpcError::internal(format!(
                        "the task's progress or result could not be stored: {reached}"
                    )),
                    _ => {
                        RpcError::internal("the task store rejected the task's progress or result")
                    }
                };
                let commit = tasks.fail(owned, &error);
                let failed = self.retry_store(|| tasks.store.commit(lease, commit.clone()));
                if failed.await.is_ok() {
                    tasks.count_event(&commit.next);
                }
                return Err(LeaseLost);
            }
        };
        self.held.committed(committed.revision);
        tasks.count_event(&commit.next);
        Ok(committed)
    }

    /// Runs a store operation. Retries while the store is unavailable and the lease is held.
    async fn retry_store<T, F>(&self, mut operation: impl FnMut() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        let mut is_logged = false;
        loop {
            let error = match operation().await {
                Err(error) if !matches!(error, StoreError::Lost) => error,
                done => return done,
            };
            if !std::mem::replace(&mut is_logged, true) {
                limited_event!(WARN, task = ?self.held.lease.task, %error, "task store failed");
            }
            if self.held.is_lost() {
                return Err(StoreError::Lost);
            }
            if !matches!(error, StoreError::Unavailable(_)) {
                return Err(error);
            }
            backoff.wait().await;
        }
    }
}
