//! The calls in flight of a legacy session, for messages on the session stream.
//!
//! | message | recipient |
//! | --- | --- |
//! | progress | the call that it names |
//! | log message | the calls in flight if they all belong to one scoped client, otherwise the client that connected |
//! | ask | none: it does not name its call. With `allow_unassociated_asks`, the newest call |

use crate::builder::ClientBuilder;
use crate::notifications::{Notifications, PROGRESS, related_request};
use crate::transport::IncomingMessage;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

pub(crate) struct ActiveCalls {
    /// By request id, so the newest is the last.
    by_id: Mutex<BTreeMap<u64, ActiveCall>>,
    /// The handlers of the client that connected.
    notifications: Notifications,
    allows_asks: bool,
}

struct ActiveCall {
    scope: u64,
    notifications: Notifications,
    asks: UnboundedSender<IncomingMessage>,
}

impl ActiveCalls {
    pub(super) fn new(setup: &ClientBuilder) -> Arc<Self> {
        Arc::new(Self {
            by_id: Mutex::default(),
            notifications: setup.notifications.clone(),
            allows_asks: setup.allows_unassociated_asks,
        })
    }

    /// Registers a call until the returned registration is dropped.
    pub(crate) fn register(
        self: &Arc<Self>,
        id: u64,
        scope: u64,
        notifications: Notifications,
    ) -> CallRegistration {
        let (sender, asks) = unbounded_channel();
        let call = ActiveCall {
            scope,
            notifications,
            asks: sender,
        };
        self.by_id.lock().insert(id, call);
        CallRegistration {
            calls: Arc::clone(self),
            id,
            asks,
        }
    }

    /// Passes an ask to the newest call. Returns the ask if that is not allowed, or if no call is in flight.
    pub(super) fn offer(&self, ask: IncomingMessage) -> Result<(), IncomingMessage> {
        let by_id = self.by_id.lock();
        match by_id.values().next_back().filter(|_| self.allows_asks) {
            Some(call) => call.asks.send(ask).map_err(|unsent| unsent.0),
            None => Err(ask),
        }
    }

    /// Ends all subscriptions to changes, because the session stream is lost.
    pub(super) fn end_subscriptions(&self) {
        self.notifications.changes.end_all();
    }

    /// The handlers for a notification, if there are any.
    pub(super) fn handlers_for(
        &self,
        method: &str,
        params: Option<&RawValue>,
    ) -> Option<Notifications> {
        let by_id = self.by_id.lock();
        if method == PROGRESS {
            let call = by_id.get(&related_request(params)?);
            return call.map(|call| call.notifications.clone());
        }
        let mut calls = by_id.values();
        let newest = calls.next_back();
        let newest = newest.filter(|newest| calls.all(|call| call.scope == newest.scope));
        let handlers = newest.map_or(&self.notifications, |call| &call.notifications);
        Some(handlers.clone())
    }
}

pub(crate) struct CallRegistration {
    calls: Arc<ActiveCalls>,
    id: u64,
    pub(super) asks: UnboundedReceiver<IncomingMessage>,
}

impl Drop for CallRegistration {
    fn drop(&mut self) {
        self.calls.by_id.lock().remove(&self.id);
    }
}
