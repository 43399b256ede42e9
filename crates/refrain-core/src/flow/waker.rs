//! The waker a handler is polled with: it remembers that it was used, and forwards.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

/// Remembers whether the handler was woken since its last poll began.
#[derive(Default)]
pub(crate) struct FlowWaker {
    woken: AtomicBool,
    outer: Mutex<Option<Waker>>,
}

impl FlowWaker {
    /// Forwards later wakes to `outer`.
    pub(crate) fn forward_to(&self, outer: &Waker) {
        let mut held = self.outer.lock();
        match &mut *held {
            Some(waker) => waker.clone_from(outer),
            none => *none = Some(outer.clone()),
        }
    }

    /// Forgets earlier wakes: a poll begins.
    pub(crate) fn begin(&self) {
        self.woken.store(false, Ordering::Release);
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Acquire)
    }
}

impl Wake for FlowWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            let outer = self.outer.lock().clone();
            if let Some(outer) = outer {
                outer.wake();
            }
        }
    }
}
