//! Deterministic randomness.

use super::mix;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use refrain_core::Pressure;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A seeded random number generator.
pub(crate) struct Dice(AtomicU64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(mix(seed)))
    }

    pub(crate) fn throw(&self, sides: u64) -> u64 {
        mix(self.0.fetch_add(1, Ordering::SeqCst)) % sides
    }
}

/// Hands a flow on with a probability of one quarter.
pub(crate) struct RandomPressure(pub(crate) Arc<Dice>);

impl Pressure for RandomPressure {
    fn should_hand_on(&self) -> bool {
        self.0.throw(4) == 0
    }
}

/// A deterministic generator of cases.
pub(crate) fn runner(cases: u32) -> TestRunner {
    let config = Config::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() {
        config.cases
    } else {
        cases
    };
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 4096,
        ..config
    };
    let seed = std::env::var("RANDOM_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&u64::to_le_bytes(seed.unwrap_or(2026)));
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}
