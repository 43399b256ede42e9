//! Asks on the session stream, which name no call.
//!
//! They are refused. One server of the official suite sends such asks; for it, a feature of this crate hands them to the
//! newest call.

use crate::transport::Incoming;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

type Calls = Arc<Mutex<Vec<UnboundedSender<Incoming>>>>;

/// The calls in flight, if such asks are answered.
#[derive(Clone, Default)]
pub(crate) struct UnassociatedAsks(Option<Calls>);

impl UnassociatedAsks {
    #[cfg(feature = "suite-asks-beside-calls")]
    pub(crate) fn allowed() -> Self {
        Self(Some(Arc::default()))
    }

    /// Hands an ask to the newest call. Returns it if there is none.
    pub(super) fn offer(&self, ask: Incoming) -> Result<(), Incoming> {
        let newest = self
            .0
            .as_ref()
            .and_then(|calls| calls.lock().last().cloned());
        match newest {
            Some(call) => call.send(ask).map_err(|unsent| unsent.0),
            None => Err(ask),
        }
    }

    /// Registers a call for as long as the result lives.
    pub(super) fn join(&self) -> Joined {
        let (sender, asks) = unbounded_channel();
        if let Some(calls) = &self.0 {
            calls.lock().push(sender.clone());
        }
        let calls = self.0.clone();
        Joined {
            calls,
            sender,
            asks,
        }
    }
}

pub(super) struct Joined {
    calls: Option<Calls>,
    sender: UnboundedSender<Incoming>,
    pub(super) asks: UnboundedReceiver<Incoming>,
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(calls) = &self.calls {
            calls.lock().retain(|call| !call.same_channel(&self.sender));
        }
    }
}
