//! Simulated time, and random bytes that are the same in every run.

use parking_lot::Mutex;
use refrain::runtime::Source;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The clock and the random source of a [`Fleet`](crate::Fleet). Clones are the same clock.
///
/// Time passes only in [`Clock::advance`]. The time limit of a round uses tokio's clock instead.
///
/// ```
/// use refrain_testkit::Clock;
/// use std::time::Duration;
///
/// let clock = Clock::new(7);
/// let before = clock.now();
/// clock.advance(Duration::from_secs(60));
/// assert_eq!(clock.now(), before + Duration::from_secs(60));
/// ```
#[derive(Clone, Debug)]
pub struct Clock(Arc<Mutex<ClockState>>);

#[derive(Debug)]
struct ClockState {
    now: SystemTime,
    random: u64,
}

/// 2026-07-28T00:00:00Z, in seconds since 1970.
const START: u64 = 1_785_196_800;

impl Clock {
    /// A clock whose random bytes follow from this seed.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(ClockState {
            now: UNIX_EPOCH + Duration::from_secs(START),
            random: seed,
        })))
    }

    /// The current time.
    pub fn now(&self) -> SystemTime {
        self.0.lock().now
    }

    /// Lets this much time pass.
    pub fn advance(&self, by: Duration) {
        self.0.lock().now += by;
    }

    /// Lets time pass until `at`. Does nothing if `at` is in the past.
    pub(crate) fn advance_to(&self, at: SystemTime) {
        let mut state = self.0.lock();
        state.now = state.now.max(at);
    }
}

impl Source for Clock {
    fn now(&self) -> SystemTime {
        Self::now(self)
    }

    fn fill(&self, bytes: &mut [u8]) {
        let mut state = self.0.lock();
        for piece in bytes.chunks_mut(8) {
            let next = split_mix(&mut state.random).to_le_bytes();
            piece.copy_from_slice(&next[..piece.len()]);
        }
    }
}

/// SplitMix64.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
