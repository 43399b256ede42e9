//! The metrics of a server as OpenMetrics text.

use super::label::KINDS;
use super::{Counts, Label, Metrics, Seen};
use crate::server::Server;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;

/// The content type of [`Server::metrics_text`].
pub const METRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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
        registry.register_collector(Box::new(self.0.services.metrics.clone()));
        let mut text = String::new();
        encode(&mut text, &registry).expect("a string takes any text");
        text
    }
}

impl Metrics {
    /// A number of all servers together.
    fn sum(&self, of: impl Fn(&Seen) -> usize) -> i64 {
        let servers = self.servers.lock();
        i64::try_from(servers.iter().map(of).sum::<usize>()).unwrap_or(i64::MAX)
    }
}

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Families(encoder);
        let mut build = out.begin("refrain_build", "What is running.", None, MetricType::Info)?;
        build.encode_info(&self.build.each_ref().map(|(key, value)| (*key, value)))?;
        self.encode_rounds(&mut out)?;
        self.encode_counters(&mut out)?;
        self.encode_gauges(&mut out)
    }
}

impl Metrics {
    fn encode_rounds(&self, out: &mut Families<'_>) -> fmt::Result {
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
        Ok(())
    }

    fn encode_counters(&self, out: &mut Families<'_>) -> fmt::Result {
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
        Ok(())
    }

    fn encode_gauges(&self, out: &mut Families<'_>) -> fmt::Result {
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
        let listening = self.sum(|server| server.subscriptions.len());
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
