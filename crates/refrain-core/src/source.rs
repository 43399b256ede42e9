//! Injected time and randomness.

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use std::time::{SystemTime, UNIX_EPOCH};

/// A source of time and random bytes. Tests simulate it.
pub trait Source: Send + Sync {
    /// Returns the current time.
    fn now(&self) -> SystemTime;
    /// Fills `bytes` with cryptographically secure randomness.
    fn fill(&self, bytes: &mut [u8]);

    /// Returns the current time in whole seconds since 1970.
    fn unix_seconds(&self) -> u64 {
        self.now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs())
    }
}

/// The operating system's clock and random source.
#[derive(Debug, Default)]
pub struct SystemSource {
    random: SystemRandom,
}

impl SystemSource {
    /// Makes a source.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Source for SystemSource {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn fill(&self, bytes: &mut [u8]) {
        self.random
            .fill(bytes)
            .expect("the operating system provides random bytes");
    }
}
