//! Durations of operations: OpenTelemetry's metric `mcp.server.operation.duration`.

use super::number::Histogram;
use parking_lot::Mutex;
use refrain_wire::Reply;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

/// The upper bounds of the buckets in seconds, as the conventions define them.
const BUCKETS: [f64; 14] = [
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
];
/// Maximum number of error types of one operation, since handlers can return any code.
const MAX_ERROR_TYPES: usize = 16;

/// OpenTelemetry's attribute `error.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ErrorType {
    /// A result with `isError`.
    Tool,
    /// A JSON-RPC error.
    Code(i32),
    Other,
}

impl ErrorType {
    /// `None` if the operation succeeded.
    pub(crate) fn of(reply: &Reply) -> Option<Self> {
        match reply {
            Reply::Error(error) | Reply::Busy { error, .. } => {
                Some(Self::Code(error.code.as_i32()))
            }
            Reply::Complete(body) if body.is_error() => Some(Self::Tool),
            Reply::Complete(_) | Reply::Incomplete(_) | Reply::Task(_) | Reply::Recorded(_) => None,
        }
    }
}

impl fmt::Display for ErrorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tool => f.write_str("tool_error"),
            Self::Code(code) => code.fmt(f),
            Self::Other => f.write_str("_OTHER"),
        }
    }
}

/// The durations of one operation by error type. A histogram exists after the first observation.
#[derive(Debug, Default)]
pub(crate) struct Durations {
    succeeded: OnceLock<Histogram>,
    failed: Mutex<BTreeMap<ErrorType, Histogram>>,
}

impl Durations {
    pub(crate) fn observe(&self, duration: Duration, error: Option<ErrorType>) {
        let seconds = duration.as_secs_f64();
        let Some(mut error) = error else {
            let histogram = self.succeeded.get_or_init(|| Histogram::new(BUCKETS));
            return histogram.observe(seconds);
        };
        let mut failed = self.failed.lock();
        if failed.len() >= MAX_ERROR_TYPES && !failed.contains_key(&error) {
            error = ErrorType::Other;
        }
        let histogram = failed.entry(error);
        histogram
            .or_insert_with(|| Histogram::new(BUCKETS))
            .observe(seconds);
    }

    /// Calls `encode` with each histogram and its error type.
    #[cfg(feature = "metrics")]
    pub(super) fn each(
        &self,
        mut encode: impl FnMut(Option<ErrorType>, &Histogram) -> fmt::Result,
    ) -> fmt::Result {
        if let Some(histogram) = self.succeeded.get() {
            encode(None, histogram)?;
        }
        let failed = self.failed.lock();
        failed
            .iter()
            .try_for_each(|(error, histogram)| encode(Some(*error), histogram))
    }
}
