//! Metrics and the log event of a round, recorded once when it ends.

use super::{Round, RoundRejection};
use crate::metrics::{ErrorType, Label, Metrics, RoundLabel, TargetCounts};
use refrain_core::Principal;
use refrain_wire::{CallKind, Reply};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Level;

/// The data of a round for its metrics and log event.
pub(super) struct RoundMetrics {
    kind: CallKind,
    started: Instant,
    /// `None` until the target is resolved.
    counts: Option<Arc<TargetCounts>>,
    /// `None` if debug events are disabled.
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

    pub(super) fn set_target(&mut self, counts: Option<&Arc<TargetCounts>>) {
        self.counts = counts.cloned();
    }

    pub(super) fn reject(self, metrics: &Metrics, rejection: &RoundRejection) {
        let (outcome, error) = match rejection {
            RoundRejection::Reply(reply) => (label_of(reply), ErrorType::of(reply)),
            RoundRejection::Forbidden(_) => (RoundLabel::InsufficientScope, None),
            RoundRejection::Busy(_) => (RoundLabel::Busy, None),
            // `MessageResponse::from_dispatch` counts it.
            RoundRejection::Malformed(_) => return,
        };
        self.end(metrics, outcome, error, None);
    }

    fn end(
        &self,
        metrics: &Metrics,
        outcome: RoundLabel,
        error: Option<ErrorType>,
        round: Option<u32>,
    ) {
        let elapsed = self.started.elapsed();
        let (kind, counts) = (self.kind, self.counts.as_deref());
        metrics.round(kind, counts, outcome);
        // These rounds have no duration in the histogram: they did not run, or did not reach a result.
        if !matches!(
            outcome,
            RoundLabel::InsufficientScope | RoundLabel::Cancelled | RoundLabel::Busy
        ) {
            metrics.round_duration(kind, counts, elapsed, error);
        }
        self.log(outcome, round, elapsed);
    }

    fn log(&self, outcome: RoundLabel, round: Option<u32>, elapsed: Duration) {
        tracing::debug!(
            method = self.kind.method(),
            target = self.counts.as_ref().map_or("", |counts| &*counts.name),
            round,
            outcome = outcome.name(),
            seconds = elapsed.as_secs_f64(),
            principal = self.principal.as_ref().and_then(Principal::id),
            "round ended"
        );
    }
}

impl Round {
    /// Counts the round by its reply, unless it is already counted.
    pub(super) fn count(&mut self, reply: &Reply) {
        let Some(round) = self.metrics.take() else {
            return;
        };
        let metrics = &self.rounds.services.metrics;
        let outcome = match reply {
            Reply::Incomplete(_) if self.is_handed_on => RoundLabel::HandedOn,
            _ => label_of(reply),
        };
        if let Reply::Incomplete(incomplete) = reply {
            metrics.incomplete(incomplete);
        }
        metrics.work(self.stats());
        round.end(metrics, outcome, ErrorType::of(reply), Some(self.number()));
    }

    /// Counts a round without a reply, unless it is already counted.
    pub(super) fn count_cancelled(&mut self) {
        if let Some(round) = self.metrics.take() {
            let metrics = &self.rounds.services.metrics;
            metrics.work(self.stats());
            round.end(metrics, RoundLabel::Cancelled, None, Some(self.number()));
        }
    }
}

fn label_of(reply: &Reply) -> RoundLabel {
    match reply {
        Reply::Complete(body) if body.is_error() => RoundLabel::ToolError,
        Reply::Complete(_) => RoundLabel::Complete,
        Reply::Incomplete(_) => RoundLabel::InputRequired,
        Reply::Task(_) => RoundLabel::Task,
        Reply::Error(error) => RoundLabel::error(error.code),
        Reply::Busy { .. } => RoundLabel::Busy,
        Reply::Recorded(_) => RoundLabel::Repeated,
    }
}
