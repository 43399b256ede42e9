//! A clock for all processes of a run, and retries.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// The maximum time for retries of an operation.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Microseconds of the system's monotonic clock, which continues while a process is stopped.
pub(crate) fn micros() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
    seconds * 1_000_000 + nanos / 1000
}

/// Retries temporary errors, because connections are cut and the database is restarted.
pub(crate) async fn retry<T, E, F: Future<Output = Result<T, E>>>(
    is_temporary: fn(&E) -> bool,
    work: impl Fn() -> F,
) -> Result<T, E> {
    let begun = Instant::now();
    loop {
        match work().await {
            Err(error) if begun.elapsed() < PATIENCE && is_temporary(&error) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            done => return done,
        }
    }
}
