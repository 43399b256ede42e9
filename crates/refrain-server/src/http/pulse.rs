//! Tells busy connections from idle ones.
//!
//! One clock for all connections costs less than one for every request.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

/// The activity of a connection.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    beats: AtomicU64,
    busy: AtomicBool,
    finishing: AtomicBool,
    waker: OnceLock<Waker>,
}

impl Pulse {
    /// A request began to come in.
    pub(crate) fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes the connection end after its present request.
    pub(crate) fn finish(&self) {
        self.finishing.store(true, Ordering::Release);
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// Is the connection to end? If not yet, its task is woken then: a task has one waker for life.
    pub(crate) fn is_finishing(&self, waker: &Waker) -> bool {
        self.waker.get_or_init(|| waker.clone());
        self.finishing.load(Ordering::Acquire)
    }

    /// Has no request begun since `seen`, and is none at work? Updates `seen`.
    pub(crate) fn is_idle_since(&self, seen: &mut u64) -> bool {
        let beats = self.beats.load(Ordering::Relaxed);
        let idle = beats == *seen && !self.busy.load(Ordering::Relaxed);
        *seen = beats;
        idle
    }
}

/// A request at work: the connection is busy until this is dropped.
#[derive(Debug)]
pub(crate) struct Busy(Option<Arc<Pulse>>);

impl Busy {
    pub(crate) fn new(pulse: Option<&Arc<Pulse>>) -> Self {
        let pulse = pulse.cloned();
        if let Some(pulse) = &pulse {
            pulse.busy.store(true, Ordering::Relaxed);
        }
        Self(pulse)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(pulse) = &self.0 {
            pulse.busy.store(false, Ordering::Relaxed);
        }
    }
}
