//! What handlers did to the world, counted.

use crate::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Counts what handlers do, by idempotency key or any other name. Clones count together.
///
/// Hand a clone to the server with `.state(..)`, record from within steps, and look at the counts afterwards.
///
/// ```
/// use refrain_testkit::Effects;
///
/// let effects = Effects::new();
/// effects.record("charge 1");
/// effects.record("charge 1");
/// assert_eq!(effects.of("charge 1"), 2);
/// assert_eq!(effects.keys(), ["charge 1"]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Effects(Arc<Mutex<BTreeMap<String, usize>>>);

impl Effects {
    /// Nothing done yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes that this was done, and says how often it was, this time included.
    pub fn record(&self, key: impl Into<String>) -> usize {
        let mut counts = lock(&self.0);
        let count = counts.entry(key.into()).or_default();
        *count += 1;
        *count
    }

    /// How often this was done.
    pub fn of(&self, key: &str) -> usize {
        lock(&self.0).get(key).copied().unwrap_or_default()
    }

    /// What was done at all: what a service that honours idempotency keys would have done once each.
    pub fn keys(&self) -> Vec<String> {
        lock(&self.0).keys().cloned().collect()
    }

    /// How often anything was done, repetitions included.
    pub fn total(&self) -> usize {
        lock(&self.0).values().sum()
    }

    /// The counts so far; counting begins anew.
    pub fn take(&self) -> BTreeMap<String, usize> {
        std::mem::take(&mut *lock(&self.0))
    }
}
