//! One clock for all processes of a run.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Microseconds of the machine's clock that is never set back. It goes on while a process is stopped.
pub(crate) fn micros() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
    seconds * 1_000_000 + nanos / 1000
}

/// A length of time as this clock counts it.
pub(crate) fn length(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
