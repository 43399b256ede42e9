//! How many calls an instance keeps in memory.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

/// The places for live calls of one instance.
#[derive(Debug)]
pub(crate) struct LivePlaces {
    taken: AtomicUsize,
    most: usize,
    /// Told when a place is given back.
    left: Notify,
}

impl LivePlaces {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            taken: AtomicUsize::new(0),
            most,
            left: Notify::new(),
        })
    }

    /// Takes a place, or none if all are taken.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<LivePlace> {
        let before = self.taken.fetch_add(1, Ordering::AcqRel);
        let place = LivePlace(self.clone());
        (before < self.most).then_some(place)
    }

    /// How many are taken.
    pub(crate) fn len(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }
}

impl LivePlaces {
    /// Waits until none is taken.
    pub(crate) async fn all_left(&self) {
        loop {
            let mut left = pin!(self.left.notified());
            // One that is given back from now on is heard of.
            left.as_mut().enable();
            if self.len() == 0 {
                return;
            }
            left.await;
        }
    }
}

/// The place of one live call, from its beginning to its end. Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct LivePlace(Arc<LivePlaces>);

impl Drop for LivePlace {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
        self.0.left.notify_waiters();
    }
}
