//! Counts of side effects.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Counts the side effects of handlers, by idempotency key or any other name. Clones share their counts.
///
/// Give a clone to the server with `.state(..)` and record in steps.
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
    /// No effects yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records an effect, and returns its count.
    pub fn record(&self, key: impl Into<String>) -> usize {
        let mut counts = self.0.lock();
        let count = counts.entry(key.into()).or_default();
        *count += 1;
        *count
    }

    /// The count of an effect.
    pub fn of(&self, key: &str) -> usize {
        self.0.lock().get(key).copied().unwrap_or_default()
    }

    /// The effects of a service that honours idempotency keys: each key once.
    pub fn keys(&self) -> Vec<String> {
        self.0.lock().keys().cloned().collect()
    }

    /// The sum of all counts.
    pub fn total(&self) -> usize {
        self.0.lock().values().sum()
    }

    /// Returns the counts and resets them.
    pub fn take(&self) -> BTreeMap<String, usize> {
        std::mem::take(&mut *self.0.lock())
    }
}
