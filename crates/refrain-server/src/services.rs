//! Services shared by all subsystems.

use crate::limits::InstanceLimits;
use crate::metrics::Metrics;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use refrain_core::{OpenError, ReplayLog, Sealer, Source};
use serde_json::value::RawValue;
use std::sync::Arc;

#[derive(Clone)]
pub(crate) struct Services {
    /// The server's name and version, included in replies.
    pub(crate) info: Arc<RawValue>,
    /// Time and randomness.
    pub(crate) source: Arc<dyn Source>,
    pub(crate) sealer: Arc<Sealer>,
    pub(crate) metrics: Arc<Metrics>,
    /// Metrics that the program registered.
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

/// Seals content as base64url. It opens only with the same binding.
pub(crate) fn seal_text(sealer: &Sealer, binding: &[u8], content: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(sealer.seal_bytes(binding, content))
}

/// Opens the output of [`seal_text`].
pub(crate) fn open_text(
    sealer: &Sealer,
    binding: &[u8],
    text: impl AsRef<[u8]>,
) -> Result<Vec<u8>, OpenError> {
    let sealed = URL_SAFE_NO_PAD.decode(text);
    sealer.open_bytes(binding, sealed.map_err(|_| OpenError::Encoding)?)
}
