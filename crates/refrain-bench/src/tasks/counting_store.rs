//! A store that counts its calls and their time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use refrain_store::{Store, StoreFuture, StoreLayer, TaskStore};

/// The number of calls and their total time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StoreCalls {
    pub(crate) count: u64,
    pub(crate) time: Duration,
}

pub(crate) type CallCounts = BTreeMap<&'static str, StoreCalls>;

pub(crate) struct CountingStore {
    store: Arc<dyn Store>,
    counts: Mutex<CallCounts>,
}

impl CountingStore {
    pub(crate) fn new(store: Arc<dyn Store>) -> Arc<Self> {
        let counts = Mutex::default();
        Arc::new(Self { store, counts })
    }

    pub(crate) fn counts(&self) -> CallCounts {
        self.counts.lock().clone()
    }

    pub(crate) fn total(&self) -> StoreCalls {
        let counts = self.counts.lock();
        StoreCalls {
            count: counts.values().map(|calls| calls.count).sum(),
            time: counts.values().map(|calls| calls.time).sum(),
        }
    }

    fn update(&self, name: &'static str, change: impl FnOnce(&mut StoreCalls)) {
        change(self.counts.lock().entry(name).or_default());
    }
}

impl StoreLayer for CountingStore {
    fn store(&self) -> &dyn TaskStore {
        &*self.store
    }

    fn pass<'a, T: Send + 'a>(
        &'a self,
        name: &'static str,
        operation: StoreFuture<'a, T>,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            // Count at the start, because the effect of a call can be visible before it returns.
            self.update(name, |calls| calls.count += 1);
            let begun = Instant::now();
            let done = operation.await;
            self.update(name, |calls| calls.time += begun.elapsed());
            done
        })
    }
}
