//! A round counted and logged, once, when it ends.

use super::Round;
use crate::dispatch::Begin;
use crate::metrics::{Label, Metrics, Outcome, TargetCounts};
use refrain_core::Principal;
use refrain_wire::{CallKind, Reply};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Level;

/// What is known of a round before its end.
pub(super) struct Tally {
    kind: CallKind,
    begun: Instant,
    /// What the call is aimed at, once it was found.
    pub(super) counts: Option<Arc<TargetCounts>>,
    /// Who calls. Kept for debugging only.
    principal: Option<Principal>,
}

impl Tally {
    pub(super) fn begin(kind: CallKind, principal: &Principal) -> Self {
        Self {
            kind,
            begun: Instant::now(),
            counts: None,
            principal: tracing::enabled!(Level::DEBUG).then(|| principal.clone()),
        }
    }

    /// The name of what was found.
    pub(super) fn target(&self) -> &str {
        self.counts.as_ref().map_or("", |counts| counts.name())
    }

    /// A call was let in.
    pub(super) fn call(&self, metrics: &Metrics) {
        metrics.call(self.kind, self.counts.as_deref());
    }

    /// The round was over before a handler ran.
    pub(super) fn end_early(self, metrics: &Metrics, begin: &Begin) {
        match begin {
            Begin::Reply(reply) => self.end(metrics, outcome(reply), None),
            Begin::Forbidden(_) => self.end(metrics, Outcome::InsufficientScope, None),
            Begin::Busy(_) => self.end(metrics, Outcome::Busy, None),
            // Counted by the transport that refuses, by the peer that holds the call, or no end at all.
            Begin::Refused(_)
            | Begin::Round(_)
            | Begin::Later(_)
            | Begin::Listen(_)
            | Begin::Relay(_) => {}
        }
    }

    fn end(&self, metrics: &Metrics, outcome: Outcome, round: Option<u32>) {
        let elapsed = self.begun.elapsed();
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
            target = self.target(),
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
        let Some(tally) = self.tally.take() else {
            return;
        };
        let metrics = &self.server.0.metrics;
        let outcome = match reply {
            Reply::Incomplete(_) if self.handed_on => Outcome::HandedOn,
            _ => outcome(reply),
        };
        if let Reply::Incomplete(incomplete) = reply {
            metrics.incomplete(incomplete);
        }
        metrics.work(self.stats());
        tally.end(metrics, outcome, Some(self.number));
    }

    /// Counts a round that ends without a reply, unless it was counted before.
    pub(super) fn count_cancelled(&mut self) {
        if let Some(tally) = self.tally.take() {
            let metrics = &self.server.0.metrics;
            metrics.work(self.stats());
            tally.end(metrics, Outcome::Cancelled, Some(self.number));
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
