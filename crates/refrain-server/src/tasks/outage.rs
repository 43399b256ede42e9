//! Log events about an outage of the store: limited while it lasts, and one at its end.

use std::time::{Duration, Instant};

/// The minimum time between two warnings about an outage.
const INTERVAL: Duration = Duration::from_secs(30);

/// The failures of a repeated operation.
#[derive(Debug, Default)]
pub(super) struct OutageLog {
    /// The current outage.
    outage: Option<Outage>,
}

#[derive(Clone, Copy, Debug)]
struct Outage {
    since: Instant,
    failures: u64,
    logged: Instant,
}

impl OutageLog {
    /// Counts a failure. Returns the number of failures of this outage if a warning is due.
    pub(super) fn add(&mut self, now: Instant) -> Option<u64> {
        let Some(outage) = &mut self.outage else {
            self.outage = Some(Outage {
                since: now,
                failures: 1,
                logged: now,
            });
            return Some(1);
        };
        outage.failures += 1;
        let is_due = now.duration_since(outage.logged) >= INTERVAL;
        is_due.then(|| {
            outage.logged = now;
            outage.failures
        })
    }

    /// Notes a success. Returns the duration and the number of failures of the outage that it ends.
    pub(super) fn end(&mut self, now: Instant) -> Option<(Duration, u64)> {
        let outage = self.outage.take()?;
        Some((now.duration_since(outage.since), outage.failures))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_an_outage_are_limited() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut failures = OutageLog::default();
        assert_eq!(failures.end(at(0)), None);
        let warnings: Vec<_> = (0..=65)
            .filter_map(|second| failures.add(at(second)))
            .collect();
        assert_eq!(warnings, [1, 31, 61]);
        assert_eq!(failures.end(at(66)), Some((Duration::from_secs(66), 66)));
        assert_eq!(failures.end(at(67)), None);
        assert_eq!(failures.add(at(68)), Some(1));
    }
}
