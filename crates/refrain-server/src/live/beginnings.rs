//! First requests that are about to begin a call here.
//!
//! Two of one call may come at once, and the replay log lets one of them begin it. The other is to find the call, and not to
//! look before it is parked.

use crate::server::Server;
use parking_lot::{Mutex, MutexGuard};
use refrain_core::FlowId;
use std::collections::HashMap;
use std::pin::pin;
use tokio::sync::Notify;

/// How many such requests there are, by their flow.
#[derive(Debug, Default)]
pub(crate) struct Beginnings {
    counts: Mutex<HashMap<FlowId, usize>>,
    /// Told when there is one less.
    left: Notify,
}

impl Beginnings {
    fn lock(&self) -> MutexGuard<'_, HashMap<FlowId, usize>> {
        self.counts.lock()
    }
}

/// A request that is about to begin a call, until the call is parked or it is known that this one does not begin it.
pub(crate) struct Beginning {
    server: Server,
    flow: FlowId,
}

impl Beginning {
    pub(crate) fn new(server: &Server, flow: FlowId) -> Self {
        let mut counts = server.0.live.beginnings().lock();
        *counts.entry(flow).or_default() += 1;
        drop(counts);
        Self {
            server: server.clone(),
            flow,
        }
    }

    /// This one does not begin the call: waits for the others here that may. Were there any?
    pub(crate) async fn leave_to_others(self) -> bool {
        let (server, flow) = (self.server.clone(), self.flow);
        drop(self);
        let beginnings = server.0.live.beginnings();
        let mut any = false;
        loop {
            let mut left = pin!(beginnings.left.notified());
            // One that leaves from now on is heard of.
            left.as_mut().enable();
            if !beginnings.lock().contains_key(&flow) {
                return any;
            }
            any = true;
            left.await;
        }
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        let beginnings = self.server.0.live.beginnings();
        let mut counts = beginnings.lock();
        if let Some(count) = counts.get_mut(&self.flow) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.flow);
            }
        }
        drop(counts);
        beginnings.left.notify_waiters();
    }
}
