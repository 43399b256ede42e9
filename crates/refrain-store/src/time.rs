//! Lengths of time as whole microseconds.

use std::time::Duration;

/// About 30,000 years. Longer times are cut to this, so that sums do not overflow.
const LONGEST: i64 = 1_000_000_000_000_000_000;

/// A length of time, rounded up.
pub(crate) fn micros(length: Duration) -> i64 {
    let micros = length.as_nanos().div_ceil(1000);
    i64::try_from(micros).map_or(LONGEST, |micros| micros.min(LONGEST))
}

/// The length of these microseconds, zero if negative.
pub(crate) fn length(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
