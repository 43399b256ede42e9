//! OpenMetrics text of a server's metrics.

use super::duration::Durations;
use super::{Counts, GaugeSource, Label, Metrics, NonCall};
use crate::server::Server;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use refrain_core::limited_event;
use refrain_wire::CallKind;
use std::fmt;

/// The content type of [`Server::metrics_text`].
pub const METRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

impl Server {
    /// The metrics in OpenMetrics format, which Prometheus reads. Serve the text with [`METRICS_CONTENT_TYPE`], or let
    /// [`serve_metrics`](crate::serve_metrics) serve it on a separate port.
    ///
    /// ```
    /// # use refrain::server::Server;
    /// let server = Server::builder("docs", "1.0").build()?;
    /// assert!(server.metrics_text().contains("refrain_calls_running 0"));
    /// # Ok::<(), refrain::server::BuildError>(())
    /// ```
    pub fn metrics_text(&self) -> String {
        let services = &self.0.services;
        let mut registry = Registry::default();
        registry.register_collector(Box::new(services.metrics.clone()));
        let mut text = String::new();
        encode_registry(&mut text, &registry).expect("writing to a string cannot fail");
        for registry in &services.registries {
            let length = text.len();
            // A collector that the program registered may fail.
            if encode_registry(&mut text, registry).is_err() {
                text.truncate(length);
                limited_event!(ERROR, "failed to encode the metrics of the program");
            }
        }
        encode_eof(&mut text).expect("writing to a string cannot fail");
        text
    }
}

impl Metrics {
    fn sum(&self, of: impl Fn(&GaugeSource) -> usize) -> i64 {
        let servers = self.servers.lock();
        i64::try_from(servers.iter().map(of).sum::<usize>()).unwrap_or(i64::MAX)
    }
}

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Families(encoder);
        let help = "Versions of the server and of Refrain.";
        let mut build = out.begin("refrain_build", help, None, MetricType::Info)?;
        build.encode_info(&self.build.each_ref().map(|(key, value)| (*key, value)))?;
        self.encode_rounds(&mut out)?;
        self.encode_durations(&mut out)?;
        self.encode_counters(&mut out)?;
        self.encode_gauges(&mut out)
    }
}

impl Metrics {
    fn encode_rounds(&self, out: &mut Families<'_>) -> fmt::Result {
        let targets = self.targets.all();
        let mut calls = out.counter(
            "refrain_calls",
            "Started calls, by method and target. The target is empty beyond the limit of 1000 names.",
        )?;
        for target in &targets {
            let labels = [("method", target.kind.method()), ("target", &target.name)];
            target.calls.encode(calls.encode_family(&labels)?)?;
        }
        let mut rounds = out.counter(
            "refrain_rounds",
            "Ended rounds, by method, target and outcome. The target is empty for unregistered names, for calls rejected \
             before their target was resolved, and beyond the limit of 1000 names.",
        )?;
        for target in &targets {
            let (method, name) = (("method", target.kind.method()), ("target", &*target.name));
            for (outcome, count) in target.rounds.each() {
                let labels = [method, name, ("outcome", outcome)];
                count.encode(rounds.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    /// `mcp.server.operation.duration` of OpenTelemetry's conventions, with the names that Prometheus gives it.
    fn encode_durations(&self, out: &mut Families<'_>) -> fmt::Result {
        let (name, help) = (
            "mcp_server_operation_duration",
            "Time from a request to its reply, by method, tool or prompt, and type of error.",
        );
        let unit = Some(&Unit::Seconds);
        let mut family = out.begin(name, help, unit, MetricType::Histogram)?;
        let mut encode = |method: &str, target: Option<(&str, &str)>, durations: &Durations| {
            durations.each(|error, histogram| {
                let error = error.map(|error| ("error_type", error.to_string()));
                let error = error.as_ref().map(|(name, value)| (*name, &**value));
                let labels = [Some(("mcp_method_name", method)), target, error];
                let labels: Vec<_> = labels.into_iter().flatten().collect();
                histogram.encode(family.encode_family(&labels)?)
            })
        };
        for target in self.targets.all() {
            let label = match target.kind {
                CallKind::Tool => "gen_ai_tool_name",
                CallKind::Prompt => "gen_ai_prompt_name",
                CallKind::Resource => "",
            };
            let name = (label, &*target.name);
            let name = Some(name).filter(|(label, name)| !label.is_empty() && !name.is_empty());
            encode(target.kind.method(), name, &target.durations)?;
        }
        for (method, durations) in NonCall::ALL.iter().zip(&self.durations) {
            encode(method.name(), None, durations)?;
        }
        Ok(())
    }

    fn encode_counters(&self, out: &mut Families<'_>) -> fmt::Result {
        let help = "Requests other than calls, by method.";
        out.counts("refrain_other_requests", help, "method", &self.non_calls)?;
        let help = "Asks sent to clients, by kind.";
        out.counts("refrain_asks", help, "kind", &self.asks)?;
        let (help, counts) = ("Rejected tokens, by reason.", &self.tokens_rejected);
        out.counts("refrain_tokens_refused", help, "reason", counts)?;
        let help = "Requests rejected before a call started, by reason.";
        let counts = &self.requests_rejected;
        out.counts("refrain_requests_refused", help, "reason", counts)?;
        let (help, unit) = ("Size of issued tokens.", Some(&Unit::Bytes));
        let sizes = out.begin("refrain_token_size", help, unit, MetricType::Histogram)?;
        self.token_sizes.encode(sizes)?;
        let help = "Journal entries replayed, plus answers that arrived with a request.";
        let replayed = out.counter("refrain_entries_replayed", help)?;
        self.replayed.encode(replayed)?;
        let steps = out.counter("refrain_steps_run", "Steps executed.")?;
        self.steps.encode(steps)?;
        let help = "Events of tasks on this instance, by event.";
        out.counts("refrain_tasks", help, "event", &self.tasks)?;
        let help = "Deliveries to webhooks by this instance, by event.";
        out.counts("refrain_webhooks", help, "event", &self.webhooks)?;
        let help = "Events of live calls on this instance, by event.";
        out.counts("refrain_live", help, "event", &self.live)
    }

    fn encode_gauges(&self, out: &mut Families<'_>) -> fmt::Result {
        let running = self.tasks_running.get();
        let help = "Tasks running on this instance.";
        out.gauge("refrain_tasks_running", help, running)?;
        let running = self.sum(|server| server.limits.calls.in_use());
        out.gauge("refrain_calls_running", "Calls in flight.", running)?;
        let live = self.sum(|server| server.limits.live.in_use());
        let help = "Live calls in memory, running or waiting for an answer.";
        out.gauge("refrain_live_calls", help, live)?;
        let listening = self.sum(|server| server.subscriptions.len());
        out.gauge("refrain_subscriptions", "Open subscriptions.", listening)?;
        let draining = self.sum(|server| server.limits.is_draining().into()).min(1);
        let help = "1 while the instance is draining and not ready, otherwise 0.";
        out.gauge("refrain_draining", help, draining)
    }
}

/// Writes metric families: each has a name, a help text and its samples.
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
