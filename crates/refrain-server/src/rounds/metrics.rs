//! Counts and logs a round once, when it ends.

use super::{Rejection, Round};
use crate::metrics::{Label, Metrics, Outcome, TargetCounts};
use refrain_core::Principal;
use refrain_wire::{CallKind, Reply};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Level;

/// What is known of a round before it ends.
pub(super) struct RoundMetrics {
    kind: CallKind,
    started: Instant,
    /// The counters of the target, once it is found.
    counts: Option<Arc<TargetCounts>>,
    /// The caller, only if the level debug is logged.
    principal: Option<Principal>,
}

impl RoundMetrics {
    pub(super) fn start(kind: CallKind, principal: &Principal) -> Self {
        Self {
            kind,
            started: Instant::now(),
            counts: None,
            principal: tracing::enabled!(Level::DEBUG).then(|| principal.clone()),
        }
    }

    /// The target of the call is found.
    pub(super) fn found(&mut self, counts: Option<&Arc<TargetCounts>>) {
        self.counts = counts.cloned();
    }

    /// The round ends before its handler runs.
    pub(super) fn reject(self, metrics: &Metrics, rejection: &Rejection) {
        match rejection {
            Rejection::Reply(reply) => self.end(metrics, outcome(reply), None),
            Rejection::Forbidden(_) => self.end(metrics, Outcome::InsufficientScope, None),
            Rejection::Busy(_) => self.end(metrics, Outcome::Busy, None),
            // Counted by the transport.
            Rejection::Malformed(_) => {}
        }
    }

    fn end(&self, metrics: &Metrics, outcome: Outcome, round: Option<u32>) {
        let elapsed = self.started.elapsed();
        let answered = !matches!(
            outcome,
            Outcome::InsufficientScope | Outcome::Cancelled | Outcome::Busy
        );
        let duration = answered.then_some(elapsed);
        metrics.round(self.kind, self.counts.as_deref(), outcome, duration);
        self.log(outcome, round, elapsed);
    }

    fn log(&self, outcome: Outcome, round: Option<u32>, elapsed: Duration) {
        tracing::debug!(
            method = self.kind.method(),
            target = self.counts.as_ref().map_or("", |counts| &*counts.name),
            round,
            outcome = outcome.name(),
            seconds = elapsed.as_secs_f64(),
            principal = self.principal.as_ref().and_then(Principal::id),
            "a round ended"
        );
    }
}

impl Round {
    /// Counts the round by its reply, unless it was counted before.
    pub(super) fn count(&mut self, reply: &Reply) {
        let Some(round) = self.metrics.take() else {
            return;
        };
        let metrics = &self.rounds.services.metrics;
        let outcome = match reply {
            Reply::Incomplete(_) if self.handed_on => Outcome::HandedOn,
            _ => outcome(reply),
        };
        if let Reply::Incomplete(incomplete) = reply {
            metrics.incomplete(incomplete);
        }
        metrics.work(self.stats());
        round.end(metrics, outcome, Some(self.number()));
    }

    /// Counts a round that ends without a reply, unless it was counted before.
    pub(super) fn count_cancelled(&mut self) {
        if let Some(round) = self.metrics.take() {
            let metrics = &self.rounds.services.metrics;
            metrics.work(self.stats());
            round.end(metrics, Outcome::Cancelled, Some(self.number()));
        }
    }
}

fn outcome(reply: &Reply) -> Outcome {
    match reply {
        Reply::Complete(body) if body.is_error() => Outcome::ToolError,
        Reply::Complete(_) => Outcome::Complete,
        Reply::Incomplete(_) => Outcome::InputRequired,
        Reply::Task(_) => Outcome::Task,
        Reply::Error(error) => Outcome::error(error.code),
        Reply::Recorded(_) => Outcome::Repeated,
    }
}
