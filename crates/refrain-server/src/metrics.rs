//! Metrics of a server.
//!
//! Invariants: the counters of a handler are looked up at registration, so that a request only increments numbers. Label
//! values come from registrations or from enums in this crate, never from requests.
//!
//! Without the feature `metrics`, nothing is counted.

#![cfg_attr(
    not(feature = "metrics"),
    allow(
        dead_code,
        reason = "the values are read only by the feature `metrics`"
    )
)]

mod duration;
mod label;
mod number;
mod target;
#[cfg(feature = "metrics")]
mod text;

pub(crate) use duration::ErrorType;
pub(crate) use label::{
    Counts, Label, LiveCallEvent, NonCall, Refusal, RoundLabel, TaskEvent, WebhookEvent,
};
pub(crate) use target::TargetCounts;
#[cfg(feature = "metrics")]
pub use text::METRICS_CONTENT_TYPE;

use crate::limits::InstanceLimits;
use crate::subscriptions::Registry;
use duration::Durations;
use number::{Counter, Gauge, Histogram};
use parking_lot::Mutex;
use refrain_core::{OpenError, Stats};
use refrain_wire::{AskKind, CallKind, Incomplete, PROTOCOL_VERSION};
use std::sync::Arc;
use std::time::Duration;
use target::Targets;

/// Histogram buckets for the size of a token, in bytes. The default limit is 64 KiB.
const SIZE_BUCKETS: [f64; 9] = [
    256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0,
];

/// The parts of a server that its gauges read.
#[derive(Debug)]
pub(crate) struct GaugeSource {
    pub(crate) limits: Arc<InstanceLimits>,
    pub(crate) subscriptions: Arc<Registry>,
}

/// The metrics of one server, or of several servers that share them.
#[derive(Debug)]
pub(crate) struct Metrics {
    build: [(&'static str, String); 4],
    servers: Mutex<Vec<GaugeSource>>,
    targets: Targets,
    /// The durations of requests that are not calls, by the index of their label.
    durations: Box<[Durations]>,
    non_calls: Counts<NonCall>,
    pub(crate) asks: Counts<AskKind>,
    tokens_rejected: Counts<OpenError>,
    requests_rejected: Counts<Refusal>,
    pub(crate) tasks: Counts<TaskEvent>,
    pub(crate) webhooks: Counts<WebhookEvent>,
    live: Counts<LiveCallEvent>,
    tasks_running: Gauge,
    token_sizes: Histogram,
    replayed: Counter,
    steps: Counter,
}

impl Metrics {
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
            durations: NonCall::ALL.iter().map(|_| Durations::default()).collect(),
            non_calls: Counts::default(),
            asks: Counts::default(),
            tokens_rejected: Counts::default(),
            requests_rejected: Counts::default(),
            tasks: Counts::default(),
            webhooks: Counts::default(),
            live: Counts::default(),
            tasks_running: Gauge::default(),
            token_sizes: Histogram::new(SIZE_BUCKETS),
            replayed: Counter::default(),
            steps: Counter::default(),
        })
    }

    /// Adds a server to the gauges.
    pub(crate) fn add_server(&self, server: GaugeSource) {
        self.servers.lock().push(server);
    }

    /// The counters of a tool, prompt, resource or resource template. An entry that replaces another has the same counters.
    pub(crate) fn target(&self, kind: CallKind, name: &str) -> Arc<TargetCounts> {
        self.targets.get(kind, name)
    }

    pub(crate) fn call(&self, kind: CallKind, target: Option<&TargetCounts>) {
        self.targets.or_shared(kind, target).calls.inc();
    }

    /// Counts a round.
    pub(crate) fn round(&self, kind: CallKind, target: Option<&TargetCounts>, outcome: RoundLabel) {
        self.targets.or_shared(kind, target).rounds.add(outcome);
    }

    /// Records the duration of a round with a reply. Resources have no label, because there may be any number of URIs.
    pub(crate) fn round_duration(
        &self,
        kind: CallKind,
        target: Option<&TargetCounts>,
        duration: Duration,
        error: Option<ErrorType>,
    ) {
        let target = target.filter(|_| kind != CallKind::Resource);
        let target = self.targets.or_shared(kind, target);
        target.durations.observe(duration, error);
    }

    /// Records the duration of a request that is not a call.
    pub(crate) fn duration(&self, method: NonCall, duration: Duration, error: Option<ErrorType>) {
        self.durations[method.index()].observe(duration, error);
    }

    /// Counts replayed entries and steps.
    pub(crate) fn work(&self, stats: Stats) {
        for (counter, count) in [(&self.replayed, stats.replayed), (&self.steps, stats.steps)] {
            if count > 0 {
                counter.inc_by(count.into());
            }
        }
    }

    /// Counts the asks and the token of an incomplete reply.
    pub(crate) fn incomplete(&self, reply: &Incomplete) {
        for (_, ask) in &reply.asks {
            self.asks.add(ask.kind());
        }
        if let Some(token) = &reply.state {
            self.token_sizes.observe(token.len() as f64);
        }
    }

    pub(crate) fn live(&self, event: LiveCallEvent) {
        self.live.add(event);
    }

    /// Counts a running task until the guard is dropped.
    pub(crate) fn task_started(self: &Arc<Self>) -> RunningTaskGuard {
        self.tasks_running.inc();
        RunningTaskGuard(self.clone())
    }

    pub(crate) fn non_call(&self, method: NonCall) {
        self.non_calls.add(method);
    }

    pub(crate) fn token_rejected(&self, reason: OpenError) {
        self.tokens_rejected.add(reason);
    }

    pub(crate) fn request_refused(&self, reason: Refusal) {
        self.requests_rejected.add(reason);
    }
}

pub(crate) struct RunningTaskGuard(Arc<Metrics>);

impl Drop for RunningTaskGuard {
    fn drop(&mut self) {
        self.0.tasks_running.dec();
    }
}
