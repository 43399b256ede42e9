//! How much is running, and when flows are handed on.

use refrain_core::Pressure;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The load of one instance.
#[derive(Debug)]
pub(crate) struct Load {
    running: AtomicUsize,
    draining: AtomicBool,
    most: usize,
    shed_above: usize,
}

impl Load {
    pub(crate) fn new(most: usize, shed_above: usize) -> Arc<Self> {
        Arc::new(Self {
            running: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            most,
            shed_above,
        })
    }

    /// Takes a place for a call, or none if all are taken.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Place> {
        let before = self.running.fetch_add(1, Ordering::AcqRel);
        let place = Place(self.clone());
        (before < self.most).then_some(place)
    }

    /// Takes a place for a call that was let in before and goes on, whether there is one or not.
    pub(crate) fn enter_again(self: &Arc<Self>) -> Place {
        self.running.fetch_add(1, Ordering::AcqRel);
        Place(self.clone())
    }

    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::Acquire)
    }

    pub(crate) fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }
}

impl Pressure for Load {
    fn hand_on(&self) -> bool {
        self.is_draining() || self.running() > self.shed_above
    }

    fn hand_task_on(&self) -> bool {
        self.is_draining()
    }
}

/// The place of one running call, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<Load>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}
