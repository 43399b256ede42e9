//! What a server counts, and the text in which it tells.
//!
//! Always true: what is counted by a request was looked up when its handler was registered, so that a request only adds
//! to numbers; and every label comes from what is registered or from a list in this crate, never from a request.

mod label;
mod target;

pub(crate) use label::{Counts, Label, LiveCount, Other, Outcome, Refusal, TaskEvent};
pub(crate) use target::TargetCounts;

use crate::limits::Limits;
use crate::listen::Hub;
use crate::server::Server;
use label::KINDS;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use refrain_core::{OpenError, Stats};
use refrain_wire::{AskKind, CallKind, Incomplete, PROTOCOL_VERSION};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use target::Targets;

/// The content type of [`Server::metrics_text`].
pub const METRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Bounds of a round's duration, in seconds. The time limit of a round is a minute unless it is set.
const SECONDS: [f64; 14] = [
    0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0,
];
/// Bounds of a token's size, in bytes. The limit is 64 KiB unless it is set.
const SIZES: [f64; 9] = [
    256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0,
];

impl Server {
    /// What the server has counted so far, as OpenMetrics text: Prometheus and its kin read it. For applications that
    /// serve it themselves, with [`METRICS_CONTENT_TYPE`]; [`serve_metrics`](crate::serve_metrics) does so on a port
    /// of its own.
    ///
    /// ```
    /// # use refrain_server::Server;
    /// let server = Server::builder("docs", "1.0").build()?;
    /// assert!(server.metrics_text().contains("refrain_calls_running 0"));
    /// # Ok::<(), refrain_server::BuildError>(())
    /// ```
    pub fn metrics_text(&self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.0.metrics.clone()));
        let mut text = String::new();
        encode(&mut text, &registry).expect("a string takes any text");
        text
    }
}

/// What a server has of what can be seen at any time.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) limits: Arc<Limits>,
    pub(crate) hub: Arc<Hub>,
}

/// The numbers of one server, or of some that count together.
#[derive(Debug)]
pub(crate) struct Metrics {
    build: [(&'static str, String); 4],
    servers: Mutex<Vec<Seen>>,
    targets: Targets,
    durations: [Histogram; KINDS.len()],
    others: Counts<Other>,
    asks: Counts<AskKind>,
    tokens_refused: Counts<OpenError>,
    requests_refused: Counts<Refusal>,
    tasks: Counts<TaskEvent>,
    live: Counts<LiveCount>,
    tasks_running: Gauge,
    token_sizes: Histogram,
    replayed: Counter,
    steps: Counter,
}

impl Metrics {
    /// Nothing counted yet, for the server of this name and version.
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

    /// Counts one more server.
    pub(crate) fn watch(&self, server: Seen) {
        let mut servers = self.servers.lock();
        servers.push(server);
    }

    /// A number of all servers together.
    fn sum(&self, of: impl Fn(&Seen) -> usize) -> i64 {
        let servers = self.servers.lock();
        i64::try_from(servers.iter().map(of).sum::<usize>()).unwrap_or(i64::MAX)
    }

    /// The numbers of one tool, prompt, resource or resource template, to be kept with it. What had this name before
    /// is counted on.
    pub(crate) fn target(&self, kind: CallKind, name: &str) -> Arc<TargetCounts> {
        self.targets.get(kind, name)
    }

    /// A call began.
    pub(crate) fn call(&self, kind: CallKind, target: Option<&TargetCounts>) {
        self.targets.or_other(kind, target).calls.inc();
    }

    /// A round ended, after so long if it was answered.
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

    /// What a round did, however it ended.
    pub(crate) fn work(&self, stats: Stats) {
        if stats.replayed > 0 {
            self.replayed.inc_by(stats.replayed.into());
        }
        if stats.steps > 0 {
            self.steps.inc_by(stats.steps.into());
        }
    }

    /// What goes out with a round that is not the last.
    pub(crate) fn incomplete(&self, reply: &Incomplete) {
        for (_, ask) in &reply.asks {
            self.asks.add(ask.kind());
        }
        if let Some(token) = &reply.state {
            self.token_sizes.observe(token.len() as f64);
        }
    }

    /// Something happened to a task.
    pub(crate) fn task(&self, event: TaskEvent) {
        self.tasks.add(event);
    }

    /// Something happened to a live call.
    pub(crate) fn live(&self, event: LiveCount) {
        self.live.add(event);
    }

    /// A task begins to run here, until the value is dropped.
    pub(crate) fn task_runs(self: &Arc<Self>) -> TaskRuns {
        self.tasks_running.inc();
        TaskRuns(self.clone())
    }

    /// A task or a live call asks something.
    pub(crate) fn asks(&self, kind: AskKind) {
        self.asks.add(kind);
    }

    /// Something else than a call was asked for.
    pub(crate) fn other(&self, method: Other) {
        self.others.add(method);
    }

    /// A token did not open.
    pub(crate) fn token_refused(&self, reason: OpenError) {
        self.tokens_refused.add(reason);
    }

    /// A request was refused before it was one of the above.
    pub(crate) fn request_refused(&self, reason: Refusal) {
        self.requests_refused.add(reason);
    }
}

/// A task that runs here, counted while it does.
pub(crate) struct TaskRuns(Arc<Metrics>);

impl Drop for TaskRuns {
    fn drop(&mut self) {
        self.0.tasks_running.dec();
    }
}

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Families(encoder);
        let mut build = out.begin("refrain_build", "What is running.", None, MetricType::Info)?;
        build.encode_info(&self.build.each_ref().map(|(key, value)| (*key, value)))?;
        let targets = self.targets.all();
        let mut calls = out.counter(
            "refrain_calls",
            "Calls begun, by method and target; the target is empty where nothing of that name is registered.",
        )?;
        for target in &targets {
            let labels = [("method", target.kind.method()), ("target", &target.name)];
            target.calls.encode(calls.encode_family(&labels)?)?;
        }
        let mut rounds = out.counter(
            "refrain_rounds",
            "Rounds ended, by method, target and outcome; the target is empty where nothing of that name is \
             registered, or the call was not looked at.",
        )?;
        for target in &targets {
            for (outcome, count) in target.rounds.each() {
                let labels = [
                    ("method", target.kind.method()),
                    ("target", &target.name),
                    ("outcome", outcome),
                ];
                count.encode(rounds.encode_family(&labels)?)?;
            }
        }
        let mut durations = out.begin(
            "refrain_round_duration",
            "Time from a request read to its reply, by method.",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for (kind, histogram) in KINDS.iter().zip(&self.durations) {
            histogram.encode(durations.encode_family(&[("method", kind.method())])?)?;
        }
        out.counts(
            "refrain_other_requests",
            "Requests that are no calls, by method.",
            "method",
            &self.others,
        )?;
        out.counts(
            "refrain_asks",
            "Asks sent to clients, by kind.",
            "kind",
            &self.asks,
        )?;
        out.counts(
            "refrain_tokens_refused",
            "Tokens that did not open, by reason.",
            "reason",
            &self.tokens_refused,
        )?;
        out.counts(
            "refrain_requests_refused",
            "Requests refused before a call began, by reason.",
            "reason",
            &self.requests_refused,
        )?;
        let sizes = out.begin(
            "refrain_token_size",
            "Size of the tokens sealed.",
            Some(&Unit::Bytes),
            MetricType::Histogram,
        )?;
        self.token_sizes.encode(sizes)?;
        let replayed = out.counter(
            "refrain_entries_replayed",
            "Entries of journals that were replayed or answered.",
        )?;
        self.replayed.encode(replayed)?;
        let steps = out.counter("refrain_steps_run", "Steps that ran.")?;
        self.steps.encode(steps)?;
        out.counts(
            "refrain_tasks",
            "What happened to tasks here, by event.",
            "event",
            &self.tasks,
        )?;
        out.counts(
            "refrain_live",
            "What happened to live calls here, by event.",
            "event",
            &self.live,
        )?;
        out.gauge(
            "refrain_tasks_running",
            "Tasks that run here.",
            self.tasks_running.get(),
        )?;
        let running = self.sum(|server| server.limits.calls.in_use());
        out.gauge("refrain_calls_running", "Calls that are running.", running)?;
        let live = self.sum(|server| server.limits.live.in_use());
        out.gauge(
            "refrain_live_calls",
            "Calls whose home is memory, at work or waiting for an answer.",
            live,
        )?;
        let listening = self.sum(|server| server.hub.len());
        out.gauge("refrain_subscriptions", "Clients that listen.", listening)?;
        out.gauge(
            "refrain_draining",
            "1 while the instance is on its way out and not ready, else 0.",
            self.sum(|server| server.limits.is_draining().into()).min(1),
        )
    }
}

/// Writes one family after the other.
struct Families<'a>(DescriptorEncoder<'a>);

impl Families<'_> {
    fn begin<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        unit: Option<&'s Unit>,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, unit, kind)
    }

    fn counter<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.begin(name, help, None, MetricType::Counter)
    }

    fn counts<L: Label>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        counts: &Counts<L>,
    ) -> fmt::Result {
        let mut family = self.counter(name, help)?;
        for (value, count) in counts.each() {
            count.encode(family.encode_family(&[(label, value)])?)?;
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, value: i64) -> fmt::Result {
        self.begin(name, help, None, MetricType::Gauge)?
            .encode_gauge(&value)
    }
}
