//! Asks on the session stream, which do not name their call.
//!
//! They are rejected. One server of the official conformance suite requires them; for it, a cargo feature passes them to
//! the newest call.

use crate::transport::IncomingMessage;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

type ActiveCalls = Arc<Mutex<Vec<UnboundedSender<IncomingMessage>>>>;

/// The calls in flight, if the feature is enabled and the host allows such asks.
#[derive(Clone, Default)]
pub(crate) struct UnassociatedAsks(Option<ActiveCalls>);

impl UnassociatedAsks {
    #[cfg(feature = "suite-unassociated-asks")]
    pub(crate) fn allowed() -> Self {
        Self(Some(Arc::default()))
    }

    /// Passes an ask to the newest call. Returns it if no call is in flight.
    pub(super) fn offer(&self, ask: IncomingMessage) -> Result<(), IncomingMessage> {
        let newest = self
            .0
            .as_ref()
            .and_then(|calls| calls.lock().last().cloned());
        match newest {
            Some(call) => call.send(ask).map_err(|unsent| unsent.0),
            None => Err(ask),
        }
    }

    /// Registers a call until the result is dropped.
    pub(crate) fn register(&self) -> CallRegistration {
        let (sender, asks) = unbounded_channel();
        if let Some(calls) = &self.0 {
            calls.lock().push(sender.clone());
        }
        let calls = self.0.clone();
        CallRegistration {
            calls,
            sender,
            asks,
        }
    }
}

pub(crate) struct CallRegistration {
    calls: Option<ActiveCalls>,
    sender: UnboundedSender<IncomingMessage>,
    pub(super) asks: UnboundedReceiver<IncomingMessage>,
}

impl Drop for CallRegistration {
    fn drop(&mut self) {
        if let Some(calls) = &self.calls {
            calls.lock().retain(|call| !call.same_channel(&self.sender));
        }
    }
}
