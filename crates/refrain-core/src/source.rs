//! Time and randomness, as they are handed in.

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where a flow gets the time and random bytes from. Tests put a simulated one in its place.
pub trait Source: Send + Sync {
    /// The time now.
    fn now(&self) -> SystemTime;
    /// Fills `bytes` with randomness fit for keys.
    fn fill(&self, bytes: &mut [u8]);

    /// The time now in whole seconds since 1970.
    fn unix_seconds(&self) -> u64 {
        self.now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs())
    }
}

/// The operating system's clock and random source.
#[derive(Debug)]
pub struct SystemSource {
    random: SystemRandom,
}

impl SystemSource {
    /// A source that asks the operating system.
    pub fn new() -> Self {
        Self {
            random: SystemRandom::new(),
        }
    }
}

impl Default for SystemSource {
    fn default() -> Self {
        Self::new()
    }
}

impl Source for SystemSource {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn fill(&self, bytes: &mut [u8]) {
        // A machine whose random source fails cannot make keys or tokens: going on would be unsafe.
        self.random
            .fill(bytes)
            .expect("the operating system's random source failed");
    }
}
