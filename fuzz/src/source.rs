//! A fixed clock and deterministic random bytes.

use refrain_core::Source;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The initial time of the clock, in seconds since the epoch.
pub const NOW: u64 = 1_800_000_000;

/// A source with a fixed clock and bytes that depend only on the seed.
pub struct FixedSource {
    seconds: AtomicU64,
    drawn: AtomicU64,
}

impl FixedSource {
    /// A source at [`NOW`].
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            seconds: AtomicU64::new(NOW),
            drawn: AtomicU64::new(seed << 32),
        })
    }

    /// Sets the clock.
    pub fn set(&self, seconds: u64) {
        self.seconds.store(seconds, Ordering::Relaxed);
    }
}

impl Source for FixedSource {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.seconds.load(Ordering::Relaxed))
    }

    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = mix(self.drawn.fetch_add(1, Ordering::Relaxed));
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }
}

/// The next pseudo-random number (splitmix64).
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
