//! Metrics of a server.
//!
//! Invariants: the counters of a request were looked up when its handler was registered, so that a request only
//! increments numbers; every label value comes from a registration or from a list in this crate, never from a request.
//! Without the feature `metrics` nothing is counted.

#![cfg_attr(
    not(feature = "metrics"),
    allow(dead_code, reason = "only the text reads what is counted")
)]

mod label;
mod number;
mod target;
#[cfg(feature = "metrics")]
mod text;

pub(crate) use label::{Counts, Label, LiveCount, Other, Outcome, Refusal, TaskEvent};
pub(crate) use target::TargetCounts;
#[cfg(feature = "metrics")]
pub use text::METRICS_CONTENT_TYPE;

use crate::limits::Limits;
use crate::subscriptions::Registry;
use label::KINDS;
use number::{Counter, Gauge, Histogram};
use parking_lot::Mutex;
use refrain_core::{OpenError, Stats};
use refrain_wire::{AskKind, CallKind, Incomplete, PROTOCOL_VERSION};
use std::sync::Arc;
use std::time::Duration;
use target::Targets;

/// Bounds of a round's duration, in seconds. The time limit of a round is a minute unless it is set.
const SECONDS: [f64; 14] = [
    0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0,
];
/// Bounds of a token's size, in bytes. The limit is 64 KiB unless it is set.
const SIZES: [f64; 9] = [
    256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0,
];

/// The sources of a server's gauges.
#[derive(Debug)]
pub(crate) struct Gauged {
    pub(crate) limits: Arc<Limits>,
    pub(crate) subscriptions: Arc<Registry>,
}

/// The metrics of one server, or of several that count together.
#[derive(Debug)]
pub(crate) struct Metrics {
    build: [(&'static str, String); 4],
    servers: Mutex<Vec<Gauged>>,
    targets: Targets,
    durations: [Histogram; KINDS.len()],
    others: Counts<Other>,
    pub(crate) asks: Counts<AskKind>,
    tokens_refused: Counts<OpenError>,
    requests_refused: Counts<Refusal>,
    pub(crate) tasks: Counts<TaskEvent>,
    live: Counts<LiveCount>,
    tasks_running: Gauge,
    token_sizes: Histogram,
    replayed: Counter,
    steps: Counter,
}

impl Metrics {
    /// The metrics of the server with this name and version.
    pub(crate) fn new(name: &str, version: &str) -> Arc<Self> {
        Arc::new(Self {
            build: [
                ("version", env!("CARGO_PKG_VERSION").to_owned()),
                ("protocol", PROTOCOL_VERSION.to_owned()),
                ("server", name.to_owned()),
                ("server_version", version.to_owned()),
            ],
            servers: Mutex::default(),
            targets: Targets::default(),
            durations: std::array::from_fn(|_| Histogram::new(SECONDS)),
            others: Counts::default(),
            asks: Counts::default(),
            tokens_refused: Counts::default(),
            requests_refused: Counts::default(),
            tasks: Counts::default(),
            live: Counts::default(),
            tasks_running: Gauge::default(),
            token_sizes: Histogram::new(SIZES),
            replayed: Counter::default(),
            steps: Counter::default(),
        })
    }

    /// Adds a server to the gauges.
    pub(crate) fn watch(&self, server: Gauged) {
        self.servers.lock().push(server);
    }

    /// The counters of one tool, prompt, resource or resource template; those of an earlier one with this name if any.
    pub(crate) fn target(&self, kind: CallKind, name: &str) -> Arc<TargetCounts> {
        self.targets.get(kind, name)
    }

    pub(crate) fn call(&self, kind: CallKind, target: Option<&TargetCounts>) {
        self.targets.or_other(kind, target).calls.inc();
    }

    /// Counts a round, with its duration if it was answered.
    pub(crate) fn round(
        &self,
        kind: CallKind,
        target: Option<&TargetCounts>,
        outcome: Outcome,
        duration: Option<Duration>,
    ) {
        self.targets.or_other(kind, target).rounds.add(outcome);
        if let Some(duration) = duration {
            self.durations[kind.index()].observe(duration.as_secs_f64());
        }
    }

    /// Counts the work of a round, however it ended.
    pub(crate) fn work(&self, stats: Stats) {
        for (counter, count) in [(&self.replayed, stats.replayed), (&self.steps, stats.steps)] {
            if count > 0 {
                counter.inc_by(count.into());
            }
        }
    }

    /// Counts the asks and the token of an incomplete round.
    pub(crate) fn incomplete(&self, reply: &Incomplete) {
        for (_, ask) in &reply.asks {
            self.asks.add(ask.kind());
        }
        if let Some(token) = &reply.state {
            self.token_sizes.observe(token.len() as f64);
        }
    }

    pub(crate) fn live(&self, event: LiveCount) {
        self.live.add(event);
    }

    /// Counts a task as running until the value is dropped.
    pub(crate) fn task_runs(self: &Arc<Self>) -> TaskRuns {
        self.tasks_running.inc();
        TaskRuns(self.clone())
    }

    pub(crate) fn other(&self, method: Other) {
        self.others.add(method);
    }

    pub(crate) fn token_refused(&self, reason: OpenError) {
        self.tokens_refused.add(reason);
    }

    pub(crate) fn request_refused(&self, reason: Refusal) {
        self.requests_refused.add(reason);
    }
}

pub(crate) struct TaskRuns(Arc<Metrics>);

impl Drop for TaskRuns {
    fn drop(&mut self) {
        self.0.tasks_running.dec();
    }
}
