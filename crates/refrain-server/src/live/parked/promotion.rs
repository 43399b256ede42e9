//! Turns a parked call, whose handler is kept in memory, into a task. The handler moves into the task and stays in memory.

use super::ParkedCall;
use crate::live::LiveFlow;
use crate::tasks::{CreatedTask, DetachReason, TaskSeed, creation_error};
use crate::timer::Timer;
use refrain_wire::RpcError;
use std::task::Context;
use std::time::Duration;
use tokio::time::Instant;

/// Decides when a call becomes a task.
pub(super) struct TaskPromotion {
    /// `None` if the call cannot become a task.
    seed: Option<Box<TaskSeed>>,
    /// How long a round may run before the call becomes a task.
    after: Option<Duration>,
    timer: Timer,
}

impl TaskPromotion {
    pub(super) fn new(seed: Option<Box<TaskSeed>>) -> Self {
        let policy = seed.as_ref().map(|seed| seed.tool.tool.task);
        Self {
            after: policy.and_then(|policy| policy.after),
            seed,
            timer: Timer::default(),
        }
    }

    /// Whether the call becomes a task before its handler runs.
    pub(super) fn is_immediate(&self) -> bool {
        let seed = self.seed.as_ref();
        seed.is_some_and(|seed| seed.tool.tool.task.always)
    }

    /// Whether a round that started at this time has run long enough. If not, wakes the current
    /// Tokio task at the time when it has.
    pub(super) fn is_due(&mut self, started: Option<Instant>, cx: &mut Context<'_>) -> bool {
        let due = started.zip(self.after);
        let Some(due) = due.and_then(|(started, after)| started.checked_add(after)) else {
            return false;
        };
        if due <= Instant::now() {
            return true;
        }
        self.timer.set([Some(due)], cx);
        false
    }
}

impl ParkedCall {
    /// Stores a task for the call. Returns `None` if the call continues without a task. An error ends the call.
    pub(super) async fn create_task(
        &self,
        live: &mut LiveFlow,
        promotion: &mut TaskPromotion,
        reason: DetachReason,
    ) -> Result<Option<CreatedTask>, RpcError> {
        let Some(seed) = promotion.seed.take() else {
            return Ok(None);
        };
        let (error, seed) = match live.create_task(*seed).await {
            Ok(task) => return Ok(Some(task)),
            Err((error, seed)) => (creation_error(&error), seed),
        };
        promotion.seed = Some(Box::new(seed));
        match reason {
            DetachReason::Tool => return Err(error),
            DetachReason::Handler => live.reject_detach(error.message.into_owned()),
            DetachReason::Time => promotion.after = None,
        }
        Ok(None)
    }
}
