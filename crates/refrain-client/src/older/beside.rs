//! What an older server asks on the stream of the session, while a call is under way.
//!
//! Which call it belongs to is not said there, so it is refused. Only for the official suite, one of whose servers asks like
//! that, it can be allowed by a feature of this crate; then it is taken for the call that began last.

use crate::transport::Incoming;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Whether such asks are answered, and the calls that are under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Beside(Option<Arc<Mutex<Calls>>>);

type Calls = Vec<UnboundedSender<Incoming>>;

impl Beside {
    /// They are answered.
    #[cfg(feature = "suite-asks-beside-calls")]
    pub(crate) fn allowed() -> Self {
        Self(Some(Arc::default()))
    }

    /// Hands a message to the call that began last. Gives it back if there is none, or it is not allowed.
    pub(crate) fn offer(&self, message: Incoming) -> Result<(), Incoming> {
        let Some(calls) = &self.0 else {
            return Err(message);
        };
        let last = calls.lock().last().cloned();
        match last {
            Some(call) => call.send(message).map_err(|unsent| unsent.0),
            None => Err(message),
        }
    }

    /// A call begins.
    pub(super) fn join(&self) -> Joined {
        let (sender, asks) = unbounded_channel();
        if let Some(calls) = &self.0 {
            calls.lock().push(sender.clone());
        }
        Joined {
            calls: self.0.clone(),
            sender,
            asks,
        }
    }
}

/// A call that is under way, for as long as this is kept.
pub(super) struct Joined {
    calls: Option<Arc<Mutex<Calls>>>,
    sender: UnboundedSender<Incoming>,
    asks: UnboundedReceiver<Incoming>,
}

impl Joined {
    /// The next ask that is taken for this call's.
    pub(super) async fn next(&mut self) -> Option<Incoming> {
        self.asks.recv().await
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(calls) = &self.calls {
            calls.lock().retain(|call| !call.same_channel(&self.sender));
        }
    }
}
