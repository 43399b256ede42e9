//! Time that stands still until it is moved, and randomness that is the same on every run.

use crate::lock;
use refrain::runtime::Source;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The clock and the random source of a [`Fleet`](crate::Fleet). Clones are the same clock.
///
/// Time moves only when a test moves it. The time limit of a round is not measured with this clock but with tokio's.
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
pub struct Clock(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    now: SystemTime,
    random: u64,
}

/// The beginning of 28 July 2026, in seconds since 1970.
const START: u64 = 1_785_196_800;

impl Clock {
    /// A clock whose random bytes follow from this seed.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            now: UNIX_EPOCH + Duration::from_secs(START),
            random: seed,
        })))
    }

    /// The time now.
    pub fn now(&self) -> SystemTime {
        lock(&self.0).now
    }

    /// Lets this much time pass.
    pub fn advance(&self, by: Duration) {
        lock(&self.0).now += by;
    }
}

impl Source for Clock {
    fn now(&self) -> SystemTime {
        Self::now(self)
    }

    fn fill(&self, bytes: &mut [u8]) {
        let mut state = lock(&self.0);
        for piece in bytes.chunks_mut(8) {
            let next = split_mix(&mut state.random).to_le_bytes();
            piece.copy_from_slice(&next[..piece.len()]);
        }
    }
}

/// SplitMix64: a different number for every state, and plenty for tests.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
