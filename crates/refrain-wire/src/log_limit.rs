//! Log events with a limited rate, for events that a caller can cause.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// A line of code logs at most `EVENTS` events in each `INTERVAL`.
#[doc(hidden)]
pub const EVENTS: u32 = 100;
/// The interval of [`EVENTS`].
const INTERVAL: Duration = Duration::from_secs(10);

/// Logs an event like `tracing::event!`, at most 100 times in ten seconds from one line of code. After that, the next logged
/// event has the field `suppressed`: how many events were not logged.
///
/// ```ignore
/// limited_event!(WARN, %error, "relayed request rejected");
/// ```
#[macro_export]
#[doc(hidden)]
macro_rules! limited_event {
    ($level:ident, $($event:tt)+) => {
        // A disabled event does not count.
        if $crate::log_limit::enabled!($crate::log_limit::Level::$level) {
            static LIMIT: $crate::log_limit::LogLimit = $crate::log_limit::LogLimit::new($crate::log_limit::EVENTS);
            if let Some(suppressed) = LIMIT.admit() {
                let suppressed = (suppressed > 0).then_some(suppressed);
                $crate::log_limit::event!($crate::log_limit::Level::$level, suppressed, $($event)+);
            }
        }
    };
}

#[doc(hidden)]
pub use tracing::{Level, enabled, event};

/// Limits the rate of log events.
#[doc(hidden)]
#[derive(Debug)]
pub struct LogLimit {
    /// Events in each interval.
    events: u32,
    window: Mutex<Window>,
}

#[derive(Debug)]
struct Window {
    start: Option<Instant>,
    logged: u32,
    suppressed: u64,
}

impl LogLimit {
    /// Allows this many events in ten seconds.
    pub const fn new(events: u32) -> Self {
        Self {
            events,
            window: Mutex::new(Window {
                start: None,
                logged: 0,
                suppressed: 0,
            }),
        }
    }

    /// Counts an event. Returns the number of suppressed events if this one is to be logged.
    pub fn admit(&self) -> Option<u64> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&self, now: Instant) -> Option<u64> {
        let mut window = self.window.lock();
        let is_over = |start| now.saturating_duration_since(start) >= INTERVAL;
        if window.start.is_none_or(is_over) {
            window.start = Some(now);
            window.logged = 0;
        }
        if window.logged == self.events {
            window.suppressed += 1;
            return None;
        }
        window.logged += 1;
        Some(std::mem::take(&mut window.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_over_the_limit_are_counted_in_the_next_event() {
        let (limit, start) = (LogLimit::new(EVENTS), Instant::now());
        for _ in 0..EVENTS {
            assert_eq!(limit.admit_at(start), Some(0));
        }
        for _ in 0..1000 {
            assert_eq!(limit.admit_at(start + INTERVAL / 2), None);
        }
        assert_eq!(limit.admit_at(start + INTERVAL), Some(1000));
        assert_eq!(limit.admit_at(start + INTERVAL), Some(0));
    }
}
