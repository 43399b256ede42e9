//! Services shared by all subsystems.

use crate::limits::InstanceLimits;
use crate::metrics::Metrics;
use refrain_core::{ReplayLog, Sealer, Source};
use serde_json::value::RawValue;
use std::sync::Arc;

#[derive(Clone)]
pub(crate) struct Services {
    /// The server's name and version, included in replies.
    pub(crate) info: Arc<RawValue>,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) sealer: Arc<Sealer>,
    pub(crate) metrics: Arc<Metrics>,
    /// The program's metrics.
    #[cfg(feature = "metrics")]
    pub(crate) registries: Vec<Arc<prometheus_client::registry::Registry>>,
    pub(crate) limits: Arc<InstanceLimits>,
    pub(crate) replay_log: Option<Arc<dyn ReplayLog>>,
}

impl Services {
    pub(crate) fn random<const N: usize>(&self) -> [u8; N] {
        let mut random = [0; N];
        self.source.fill(&mut random);
        random
    }
}
