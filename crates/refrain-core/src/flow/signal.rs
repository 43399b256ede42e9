//! Tells a step that is waiting from one that was forgotten.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};

/// Tells a step that was woken and never polled again from one that is waiting.
pub(crate) struct StepSignal {
    passes: Arc<PassCounter>,
    woken_in: AtomicU64,
    inner: Mutex<Option<Waker>>,
}

/// Counts the polls of the handler.
#[derive(Default)]
pub(crate) struct PassCounter(AtomicU64);

impl PassCounter {
    pub(crate) fn next(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

impl StepSignal {
    /// `u64::MAX` while the step has not been woken since its last poll.
    const ASLEEP: u64 = u64::MAX;

    pub(crate) fn new(passes: Arc<PassCounter>) -> Arc<Self> {
        Arc::new(Self {
            passes,
            woken_in: AtomicU64::new(Self::ASLEEP),
            inner: Mutex::new(None),
        })
    }

    pub(crate) fn begin_poll(&self, waker: &Waker) {
        self.woken_in.store(Self::ASLEEP, Ordering::Release);
        let old = self.inner.lock().replace(waker.clone());
        drop(old);
    }

    /// In which poll of the handler it was woken, if it was.
    pub(crate) fn woken_in(&self) -> Option<u64> {
        let pass = self.woken_in.load(Ordering::Acquire);
        (pass != Self::ASLEEP).then_some(pass)
    }
}

impl Wake for StepSignal {
    fn wake(self: Arc<Self>) {
        self.woken_in.store(self.passes.get(), Ordering::Release);
        let inner = self.inner.lock().clone();
        if let Some(inner) = inner {
            inner.wake();
        }
    }
}
