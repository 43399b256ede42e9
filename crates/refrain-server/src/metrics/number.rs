//! Counters, gauges and histograms of prometheus-client, or no-op types without the feature `metrics`.

#[cfg(feature = "metrics")]
pub(super) use prometheus_client::metrics::{counter::Counter, gauge::Gauge, histogram::Histogram};

#[cfg(not(feature = "metrics"))]
pub(super) use disabled::{Counter, Gauge, Histogram};

#[cfg(not(feature = "metrics"))]
mod disabled {
    #[derive(Debug, Default)]
    pub(in super::super) struct Counter {}

    impl Counter {
        pub(in super::super) fn inc(&self) {}
        pub(in super::super) fn inc_by(&self, _: u64) {}
    }

    #[derive(Debug, Default)]
    pub(in super::super) struct Gauge {}

    impl Gauge {
        pub(in super::super) fn inc(&self) {}
        pub(in super::super) fn dec(&self) {}
    }

    #[derive(Debug)]
    pub(in super::super) struct Histogram;

    impl Histogram {
        pub(in super::super) fn new<const N: usize>(_: [f64; N]) -> Self {
            Self
        }
        pub(in super::super) fn observe(&self, _: f64) {}
    }
}
