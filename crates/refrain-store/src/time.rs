//! Times as tables have them: whole microseconds since 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Some 30,000 years: what is longer lasts no longer than this, so that sums of times have room.
const LONGEST: i64 = 1_000_000_000_000_000_000;

/// A length of time, rounded up.
pub(crate) fn micros(length: Duration) -> i64 {
    let micros = length.as_nanos().div_ceil(1000);
    i64::try_from(micros).map_or(LONGEST, |micros| micros.min(LONGEST))
}

/// A moment.
pub(crate) fn since_1970(moment: SystemTime) -> i64 {
    micros(moment.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// The moment of these microseconds since 1970.
pub(crate) fn moment(micros: i64) -> SystemTime {
    UNIX_EPOCH + length(micros)
}

/// The length of these microseconds; of what is below zero, none.
pub(crate) fn length(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
