//! Wakers of handlers and steps, which record a wake and forward it.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Wake, Waker};

/// The outer waker, to which wakes are forwarded.
#[derive(Default)]
struct OuterWaker(Mutex<Option<Waker>>);

impl OuterWaker {
    fn set(&self, outer: &Waker) {
        let old = {
            let mut current = self.0.lock();
            if current.as_ref().is_some_and(|waker| waker.will_wake(outer)) {
                return;
            }
            current.replace(outer.clone())
        };
        // The waker's destructor is foreign code and runs without the lock.
        drop(old);
    }

    fn wake(&self) {
        let outer = self.0.lock().clone();
        if let Some(outer) = outer {
            outer.wake();
        }
    }
}

/// Records whether the handler was woken since its last poll began.
#[derive(Default)]
pub(crate) struct FlowWaker {
    woken: AtomicBool,
    outer: OuterWaker,
}

impl FlowWaker {
    /// Forwards later wakes to `outer`.
    pub(crate) fn forward_to(&self, outer: &Waker) {
        self.outer.set(outer);
    }

    /// Clears earlier wakes, since a poll begins.
    pub(crate) fn begin_poll(&self) {
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
            self.outer.wake();
        }
    }
}

/// Counts the polls of the handler.
#[derive(Default)]
pub(crate) struct PollCounter(AtomicU64);

impl PollCounter {
    pub(crate) fn next(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// The waker of a step. It detects a step that was woken and never polled again.
pub(crate) struct StepSignal {
    polls: Arc<PollCounter>,
    woken_in: AtomicU64,
    outer: OuterWaker,
}

impl StepSignal {
    /// The value of `woken_in` if the step was not woken since its last poll.
    const NOT_WOKEN: u64 = u64::MAX;

    pub(crate) fn new(polls: Arc<PollCounter>) -> Arc<Self> {
        Arc::new(Self {
            polls,
            woken_in: AtomicU64::new(Self::NOT_WOKEN),
            outer: OuterWaker::default(),
        })
    }

    pub(crate) fn begin_poll(&self, waker: &Waker) {
        self.woken_in.store(Self::NOT_WOKEN, Ordering::Release);
        self.outer.set(waker);
    }

    /// The poll of the handler in which the step was woken, if it was.
    pub(crate) fn woken_in(&self) -> Option<u64> {
        let poll = self.woken_in.load(Ordering::Acquire);
        (poll != Self::NOT_WOKEN).then_some(poll)
    }
}

impl Wake for StepSignal {
    fn wake(self: Arc<Self>) {
        self.woken_in.store(self.polls.get(), Ordering::Release);
        self.outer.wake();
    }
}
