//! Detection of idle connections.
//!
//! One periodic check of all connections costs less than a timer per request.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// The client's address.
    pub(crate) address: Option<IpAddr>,
    requests: AtomicU64,
    busy: AtomicBool,
    closing: AtomicBool,
    waker: OnceLock<Waker>,
}

impl Activity {
    pub(crate) fn new(address: IpAddr) -> Self {
        Self {
            address: Some(address),
            ..Self::default()
        }
    }

    pub(crate) fn request_received(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Closes the connection after the current request.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// Registers the waker, then returns whether [`close`](Self::close) was called. The first waker is kept: one Tokio task
    /// polls a connection.
    pub(crate) fn is_closing(&self, waker: &Waker) -> bool {
        self.waker.get_or_init(|| waker.clone());
        self.closing.load(Ordering::Acquire)
    }

    /// Whether no request is running and none was received since the request count was `seen`. Updates `seen`.
    pub(crate) fn is_idle_since(&self, seen: &mut u64) -> bool {
        let requests = self.requests.load(Ordering::Relaxed);
        let idle = requests == *seen && !self.busy.load(Ordering::Relaxed);
        *seen = requests;
        idle
    }
}

/// A request in flight: the connection is busy until this is dropped.
#[derive(Debug)]
pub(crate) struct ActiveRequest(Option<Arc<Activity>>);

impl ActiveRequest {
    pub(crate) fn new(activity: Option<&Arc<Activity>>) -> Self {
        let activity = activity.cloned();
        if let Some(activity) = &activity {
            activity.busy.store(true, Ordering::Relaxed);
        }
        Self(activity)
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        if let Some(activity) = &self.0 {
            activity.busy.store(false, Ordering::Relaxed);
        }
    }
}
