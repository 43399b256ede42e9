//! Rate limits for the messages of a server. Above the limit, the client reads more slowly; no message is lost.

use std::time::Duration;
use tokio::time::Instant;

const MIB: f64 = 1_048_576.0;

/// A rate limit with a burst (token bucket).
#[derive(Debug)]
pub(crate) struct Pace {
    burst: f64,
    per_second: f64,
    left: f64,
    refilled: Instant,
}

impl Pace {
    /// The pace of messages on a stream: 16 MiB at once, then 4 MiB per second. Each message costs 1 KiB besides its bytes.
    /// Over a pipe, responses that a request waits for are not counted.
    pub(crate) fn of_messages() -> Self {
        Self::new(16.0 * MIB, 4.0 * MIB)
    }

    /// The pace of lines on standard error: 8 MiB at once, then 4 MiB per second. Each line costs 1 KiB besides its bytes.
    pub(crate) fn of_log_lines() -> Self {
        Self::new(8.0 * MIB, 4.0 * MIB)
    }

    /// The pace of polls of a task that its notifications trigger: 10 at once, then 5 per second.
    pub(crate) fn of_polls() -> Self {
        Self::new(10.0, 5.0)
    }

    fn new(burst: f64, per_second: f64) -> Self {
        Self {
            burst,
            per_second,
            left: burst,
            refilled: Instant::now(),
        }
    }

    pub(crate) fn count_messages(&mut self, bytes: usize, messages: usize) {
        self.left -= (bytes + 1024 * messages) as f64;
    }

    pub(crate) fn count_poll(&mut self) {
        self.left -= 1.0;
    }

    /// Waits while the rate is exceeded.
    pub(crate) async fn wait(&mut self) {
        if self.left >= 0.0 {
            return;
        }
        let earned = self.refilled.elapsed().as_secs_f64() * self.per_second;
        self.refilled = Instant::now();
        self.left = (self.left + earned).min(self.burst);
        if self.left < 0.0 {
            let pause = Duration::from_secs_f64(-self.left / self.per_second);
            tokio::time::sleep(pause).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn burst_passes_and_the_rest_waits() {
        let began = Instant::now();
        let mut pace = Pace::of_messages();
        for _ in 0..14_000 {
            pace.wait().await;
            pace.count_messages(100, 1);
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        for _ in 0..61_000 {
            pace.wait().await;
            pace.count_messages(100, 1);
        }
        // 75,000 messages of 100 bytes, each plus 1 KiB, count as 80 MiB: 16 MiB at once, the rest at 4 MiB per second.
        let elapsed = began.elapsed().as_secs();
        assert!((15..18).contains(&elapsed), "{elapsed} s");
        tokio::time::sleep(Duration::from_secs(60)).await;
        let began = Instant::now();
        for _ in 0..14_000 {
            pace.wait().await;
            pace.count_messages(100, 1);
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
