//! First requests that are starting a live call on this instance.
//!
//! If two first requests of one call arrive at the same time, the replay log lets one of them start it. The other waits
//! until the call is parked and then attaches to it.

use super::calls::LiveCalls;
use parking_lot::Mutex;
use refrain_core::FlowId;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::Notify;

/// The number of first requests in progress, by flow.
#[derive(Debug, Default)]
pub(super) struct FirstRequests {
    counts: Mutex<HashMap<FlowId, usize>>,
    /// Notified when a request is done.
    done: Notify,
}

/// A first request in progress. Dropped when its call is parked, or when another request starts the call.
pub(crate) struct FirstRequest {
    calls: Arc<LiveCalls>,
    flow: FlowId,
}

impl FirstRequest {
    pub(crate) fn new(calls: &Arc<LiveCalls>, flow: FlowId) -> Self {
        let mut counts = calls.first_requests.counts.lock();
        *counts.entry(flow).or_default() += 1;
        drop(counts);
        Self {
            calls: calls.clone(),
            flow,
        }
    }

    /// Waits for the other first requests of the call on this instance. Returns whether there were any.
    pub(crate) async fn wait_for_others(self) -> bool {
        let (calls, flow) = (self.calls.clone(), self.flow);
        drop(self);
        let requests = &calls.first_requests;
        let mut has_waited = false;
        loop {
            let mut done = pin!(requests.done.notified());
            // Enabled before the check, so that no notification is missed.
            done.as_mut().enable();
            if !requests.counts.lock().contains_key(&flow) {
                return has_waited;
            }
            has_waited = true;
            done.await;
        }
    }
}

impl Drop for FirstRequest {
    fn drop(&mut self) {
        let requests = &self.calls.first_requests;
        let mut counts = requests.counts.lock();
        if let Some(count) = counts.get_mut(&self.flow) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.flow);
            }
        }
        drop(counts);
        requests.done.notify_waiters();
    }
}
