//! Durations in microseconds.

use std::time::Duration;

/// The maximum duration, about 30,000 years, so that sums do not overflow.
const MAX_MICROS: i64 = 1_000_000_000_000_000_000;

/// Converts a duration to microseconds, rounded up.
pub(crate) fn micros(duration: Duration) -> i64 {
    let micros = duration.as_nanos().div_ceil(1000);
    i64::try_from(micros).map_or(MAX_MICROS, |micros| micros.min(MAX_MICROS))
}

/// Converts microseconds to a duration; zero if negative.
pub(crate) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
