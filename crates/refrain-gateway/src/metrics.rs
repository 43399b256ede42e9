//! Metrics of the backends, for Prometheus.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use refrain::client::RequestReport;
use std::sync::Arc;
use std::time::Duration;

/// The upper bounds of the histograms, in seconds.
const BUCKETS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BackendLabel {
    backend: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    backend: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AskLabels {
    backend: String,
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    mcp_method_name: &'static str,
    gen_ai_tool_name: Option<String>,
    error_type: Option<String>,
    backend: String,
}

/// The upper bounds of `mcp.client.operation.duration` in seconds, as OpenTelemetry's conventions define them.
const REQUEST_BUCKETS: [f64; 14] = [
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
];

type Histograms = Family<BackendLabel, Histogram, fn() -> Histogram>;
type RequestHistograms = Family<RequestLabels, Histogram, fn() -> Histogram>;

/// The metrics of all backends.
pub(crate) struct GatewayMetrics {
    calls: Family<OutcomeLabels, Counter>,
    call_seconds: Histograms,
    queue_seconds: Histograms,
    request_duration: RequestHistograms,
    starts: Family<OutcomeLabels, Counter>,
    asks: Family<AskLabels, Counter>,
    connections: Family<BackendLabel, Gauge>,
}

/// The metrics of one backend.
pub(crate) struct BackendMetrics {
    all: Arc<GatewayMetrics>,
    backend: String,
}

/// How a call to a backend ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackendOutcome {
    /// A result, also one with `isError`.
    Result,
    /// A JSON-RPC error of the backend.
    Error,
    /// No result: the connection was lost, the backend was silent, or its response is invalid.
    Lost,
    /// No connection was free, or none could be started.
    Unavailable,
    /// The caller cancelled the call, or its round ended at an ask.
    Abandoned,
}

impl BackendOutcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Result => "result",
            Self::Error => "error",
            Self::Lost => "lost",
            Self::Unavailable => "unavailable",
            Self::Abandoned => "abandoned",
        }
    }
}

impl GatewayMetrics {
    pub(crate) fn new() -> Arc<Self> {
        let histograms = || Histograms::new_with_constructor(|| Histogram::new(BUCKETS));
        Arc::new(Self {
            calls: Family::default(),
            call_seconds: histograms(),
            queue_seconds: histograms(),
            request_duration: Family::new_with_constructor(|| Histogram::new(REQUEST_BUCKETS)),
            starts: Family::default(),
            asks: Family::default(),
            connections: Family::default(),
        })
    }

    /// A registry with all metrics.
    pub(crate) fn registry(&self) -> Registry {
        let mut all = Registry::default();
        let help = "Time from a request to a backend to its response";
        let durations = self.request_duration.clone();
        let name = "mcp_client_operation_duration";
        all.register_with_unit(name, help, Unit::Seconds, durations);
        let registry = all.sub_registry_with_prefix("refrain_gateway");
        let calls = self.calls.clone();
        registry.register("calls", "Calls to backends by outcome", calls);
        let help = "Time of calls to backends, including the wait for a connection";
        registry.register("call_seconds", help, self.call_seconds.clone());
        let help = "Time that calls waited for a connection, including the time to start it";
        registry.register("queue_seconds", help, self.queue_seconds.clone());
        let starts = self.starts.clone();
        registry.register("starts", "Connections started, by outcome", starts);
        registry.register("asks", "Questions of backends", self.asks.clone());
        let connections = self.connections.clone();
        registry.register("connections", "Open processes and sessions", connections);
        all
    }

    pub(crate) fn set_connections(&self, backend: &str, count: usize) {
        let backend = backend.to_owned();
        let gauge = self.connections.get_or_create(&BackendLabel { backend });
        gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn backend(self: &Arc<Self>, name: &str) -> BackendMetrics {
        BackendMetrics {
            all: self.clone(),
            backend: name.to_owned(),
        }
    }
}

impl BackendMetrics {
    fn label(&self) -> BackendLabel {
        BackendLabel {
            backend: self.backend.clone(),
        }
    }

    fn outcome(&self, outcome: &'static str) -> OutcomeLabels {
        OutcomeLabels {
            backend: self.backend.clone(),
            outcome,
        }
    }

    pub(crate) fn called(&self, outcome: BackendOutcome, time: Duration) {
        let labels = self.outcome(outcome.as_str());
        self.all.calls.get_or_create(&labels).inc();
        let seconds = self.all.call_seconds.get_or_create(&self.label());
        seconds.observe(time.as_secs_f64());
    }

    /// Records a request to the backend, of any method.
    pub(crate) fn requested(&self, request: &RequestReport<'_>) {
        let tool = request.target.filter(|_| request.method == "tools/call");
        let labels = RequestLabels {
            mcp_method_name: request.method,
            gen_ai_tool_name: tool.map(str::to_owned),
            error_type: request.error_type.as_deref().map(str::to_owned),
            backend: self.backend.clone(),
        };
        let seconds = self.all.request_duration.get_or_create(&labels);
        seconds.observe(request.elapsed.as_secs_f64());
    }

    pub(crate) fn waited(&self, time: Duration) {
        let seconds = self.all.queue_seconds.get_or_create(&self.label());
        seconds.observe(time.as_secs_f64());
    }

    pub(crate) fn started(&self, is_ok: bool) {
        let labels = self.outcome(if is_ok { "started" } else { "failed" });
        self.all.starts.get_or_create(&labels).inc();
    }

    pub(crate) fn asked(&self, kind: &'static str) {
        let labels = AskLabels {
            backend: self.backend.clone(),
            kind,
        };
        self.all.asks.get_or_create(&labels).inc();
    }
}
