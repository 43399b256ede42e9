//! The metrics of a server as OpenMetrics text.

use super::label::KINDS;
use super::{Counts, Gauged, Label, Metrics};
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
    /// The metrics as OpenMetrics text, which Prometheus reads. For applications that serve it themselves, with
    /// [`METRICS_CONTENT_TYPE`]; [`serve_metrics`](crate::serve_metrics) serves it on a separate port.
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
    fn sum(&self, of: impl Fn(&Gauged) -> usize) -> i64 {
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
            let (method, name) = (("method", target.kind.method()), ("target", &*target.name));
            for (outcome, count) in target.rounds.each() {
                let labels = [method, name, ("outcome", outcome)];
                count.encode(rounds.encode_family(&labels)?)?;
            }
        }
        let help = "Time from a request read to its reply, by method.";
        let unit = Some(&Unit::Seconds);
        let mut durations =
            out.begin("refrain_round_duration", help, unit, MetricType::Histogram)?;
        for (kind, histogram) in KINDS.iter().zip(&self.durations) {
            histogram.encode(durations.encode_family(&[("method", kind.method())])?)?;
        }
        Ok(())
    }

    fn encode_counters(&self, out: &mut Families<'_>) -> fmt::Result {
        let help = "Requests that are no calls, by method.";
        out.counts("refrain_other_requests", help, "method", &self.others)?;
        let help = "Asks sent to clients, by kind.";
        out.counts("refrain_asks", help, "kind", &self.asks)?;
        let help = "Tokens that did not open, by reason.";
        out.counts(
            "refrain_tokens_refused",
            help,
            "reason",
            &self.tokens_refused,
        )?;
        let help = "Requests refused before a call began, by reason.";
        out.counts(
            "refrain_requests_refused",
            help,
            "reason",
            &self.requests_refused,
        )?;
        let (help, unit) = ("Size of the tokens sealed.", Some(&Unit::Bytes));
        let sizes = out.begin("refrain_token_size", help, unit, MetricType::Histogram)?;
        self.token_sizes.encode(sizes)?;
        let help = "Entries of journals that were replayed or answered.";
        let replayed = out.counter("refrain_entries_replayed", help)?;
        self.replayed.encode(replayed)?;
        let steps = out.counter("refrain_steps_run", "Steps that ran.")?;
        self.steps.encode(steps)?;
        let help = "What happened to tasks here, by event.";
        out.counts("refrain_tasks", help, "event", &self.tasks)?;
        let help = "What happened to live calls here, by event.";
        out.counts("refrain_live", help, "event", &self.live)
    }

    fn encode_gauges(&self, out: &mut Families<'_>) -> fmt::Result {
        let running = self.tasks_running.get();
        out.gauge("refrain_tasks_running", "Tasks that run here.", running)?;
        let running = self.sum(|server| server.limits.calls.in_use());
        out.gauge("refrain_calls_running", "Calls that are running.", running)?;
        let live = self.sum(|server| server.limits.live.in_use());
        let help = "Calls whose home is memory, at work or waiting for an answer.";
        out.gauge("refrain_live_calls", help, live)?;
        let listening = self.sum(|server| server.subscriptions.len());
        out.gauge("refrain_subscriptions", "Clients that listen.", listening)?;
        let draining = self.sum(|server| server.limits.is_draining().into()).min(1);
        let help = "1 while the instance is on its way out and not ready, else 0.";
        out.gauge("refrain_draining", help, draining)
    }
}

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
