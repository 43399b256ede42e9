//! First requests that are about to start a live call on this instance.
//!
//! Two first requests of one call may arrive at once, and the replay log lets one of them start it. The other waits until
//! the call is parked, and then finds it.

use super::calls::LiveCalls;
use parking_lot::Mutex;
use refrain_core::FlowId;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::Notify;

/// The number of such requests by flow.
#[derive(Debug, Default)]
pub(super) struct FirstRequests {
    counts: Mutex<HashMap<FlowId, usize>>,
    /// Notified when a request leaves.
    left: Notify,
}

/// A first request, until its call is parked or it is known that another request starts the call.
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

    /// Leaves the call to the other first requests on this instance and waits for them. Were there any?
    pub(crate) async fn leave_to_others(self) -> bool {
        let (calls, flow) = (self.calls.clone(), self.flow);
        drop(self);
        let requests = &calls.first_requests;
        let mut any = false;
        loop {
            let mut left = pin!(requests.left.notified());
            // Registered before the check, so that no notification is missed.
            left.as_mut().enable();
            if !requests.counts.lock().contains_key(&flow) {
                return any;
            }
            any = true;
            left.await;
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
        requests.left.notify_waiters();
    }
}
