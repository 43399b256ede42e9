//! A task store that fails on demand.

use super::until;
use parking_lot::Mutex;
use refrain_store::{Hint, MemoryStore, StoreError, StoreFuture, StoreLayer, TaskStore};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::broadcast;

/// A task store that fails or hangs on demand, in front of a [`MemoryStore`].
pub struct FaultyStore {
    store: MemoryStore,
    fault: Mutex<Option<StoreError>>,
    hanging: AtomicBool,
    hints: broadcast::Sender<Hint>,
}

impl FaultyStore {
    /// A store in front of `store` that passes on no hints.
    pub fn new(store: &MemoryStore) -> Arc<Self> {
        Arc::new(Self {
            store: store.clone(),
            fault: Mutex::default(),
            hanging: AtomicBool::new(false),
            hints: broadcast::Sender::new(1),
        })
    }

    /// Makes every operation fail with this error; `None` makes them succeed again.
    pub fn fail(&self, fault: Option<StoreError>) {
        *self.fault.lock() = fault;
    }

    pub fn hang(&self) {
        self.hanging.store(true, Ordering::SeqCst);
    }

    /// Waits until the hints have this number of receivers.
    pub async fn wait_for_watchers(&self, count: usize) {
        let reached = || self.hints.receiver_count() == count;
        until("the number of watchers", reached).await;
    }
}

impl StoreLayer for FaultyStore {
    fn store(&self) -> &dyn TaskStore {
        &self.store
    }

    fn pass<'a, T: Send + 'a>(
        &'a self,
        _: &'static str,
        operation: StoreFuture<'a, T>,
    ) -> StoreFuture<'a, T> {
        if self.hanging.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        let fault = match &*self.fault.lock() {
            Some(StoreError::Unavailable(source)) => {
                StoreError::Unavailable(source.to_string().into())
            }
            Some(StoreError::Failed(source)) => StoreError::Failed(source.to_string().into()),
            Some(fault) => StoreError::Failed(fault.to_string().into()),
            None => return operation,
        };
        Box::pin(std::future::ready(Err(fault)))
    }

    fn layer_hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }
}
