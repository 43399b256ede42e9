//! The parked handlers of one instance.

use super::errors::gone;
use super::first_requests::FirstRequests;
use super::flow::LiveFlow;
use super::parked::{Attached, KEPT, Parked, Sealing, broken};
use crate::metrics::LiveCount;
use crate::relay::Holder;
use crate::rounds::{Flows, Record, lacks_capability};
use crate::server::Server;
use crate::services::Services;
use parking_lot::Mutex;
use refrain_core::FlowId;
use refrain_wire::{Answers, RpcError};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::pin::Pin;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tracing::Instrument;

/// The calls that are parked on this instance, by flow.
pub(crate) struct LiveCalls {
    /// This instance, as tokens name it.
    pub(super) holder: String,
    parked: Mutex<HashMap<FlowId, Arc<Parked>>>,
    pub(super) first_requests: FirstRequests,
    /// Set when the instance stops.
    closed: watch::Sender<bool>,
    pub(super) flows: Arc<Flows>,
    pub(super) services: Services,
}

/// Completes when the instance stops.
pub(super) type Closed = Pin<Box<dyn Future<Output = ()> + Send>>;

impl LiveCalls {
    /// The live calls of this holder.
    pub(crate) fn new(holder: &Holder, flows: Arc<Flows>, services: Services) -> Arc<Self> {
        Arc::new(Self {
            holder: holder.to_string(),
            parked: Mutex::default(),
            first_requests: FirstRequests::default(),
            closed: watch::Sender::new(false),
            flows,
            services,
        })
    }

    /// Does the instance reject new live calls?
    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Waits until the instance stops.
    pub(super) fn closed(&self) -> Closed {
        let mut closed = self.closed.subscribe();
        Box::pin(async move {
            // An error means that the server was dropped.
            let _ = closed.wait_for(|closed| *closed).await;
        })
    }

    /// Attaches a request that waits for the reply of its round.
    pub(crate) fn attach(
        &self,
        flow: FlowId,
        round: u32,
        answers: Option<&Answers<'_>>,
    ) -> Result<Attached, RpcError> {
        let parked = self.parked.lock().get(&flow).cloned();
        let parked = parked.ok_or_else(|| {
            self.services.metrics.live(LiveCount::Gone);
            gone()
        });
        parked?.attach(round, answers)
    }

    /// Attaches a repeated first request, known by its call id, to the first reply. `None`: the call is not parked here.
    pub(crate) fn again(&self, flow: FlowId) -> Result<Option<Attached>, RpcError> {
        let parked = self.parked.lock().get(&flow).cloned();
        parked.map(|parked| attach_again(&parked)).transpose()
    }

    /// Ends all calls at rest, now or as soon as they rest, and rejects new ones.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    fn forget(&self, flow: FlowId, parked: &Arc<Parked>) {
        let mut held = self.parked.lock();
        if held
            .get(&flow)
            .is_some_and(|held| Arc::ptr_eq(held, parked))
        {
            held.remove(&flow);
        }
    }

    /// Parks a call in its first round, and attaches its request. If the same call is parked already, the request waits for
    /// that one, and this flow is dropped before it ran. The record of the first reply is taken only if the call is parked.
    /// With a call id the client can repeat the first request.
    pub(crate) fn park(
        self: &Arc<Self>,
        mut live: LiveFlow,
        sealing: Sealing,
        has_call_id: bool,
        record: &mut Option<Record>,
    ) -> Result<Attached, RpcError> {
        let (sender, answers) = mpsc::channel(self.services.limits.flow.asks.max(1));
        live.answers_from(answers);
        if self.is_closed() {
            return Err(RpcError::internal(
                "this instance is stopping, and takes no live calls on; nothing was done by this request; call again",
            ));
        }
        let parked = match self.parked.lock().entry(sealing.flow) {
            Entry::Occupied(other) => Err(other.get().clone()),
            Entry::Vacant(entry) => Ok(entry.insert(Parked::new(sender, record.take())).clone()),
        };
        let parked = match parked {
            Ok(parked) => parked,
            Err(other) => return attach_again(&other),
        };
        let mut attached = parked.attach(1, None)?;
        attached.ends_call = !has_call_id;
        let span = tracing::debug_span!("live", flow = %sealing.flow);
        let held = Held {
            calls: self.clone(),
            flow: sealing.flow,
            parked,
            _server: self.flows.server(),
        };
        tokio::spawn(held.drive(live, sealing, has_call_id).instrument(span));
        Ok(attached)
    }
}

/// A parked call in the map, removed when it ends.
struct Held {
    calls: Arc<LiveCalls>,
    flow: FlowId,
    parked: Arc<Parked>,
    /// Handlers may take the server as a state.
    _server: Option<Server>,
}

impl Held {
    /// Drives the handler to its end, and keeps the last reply for a client that lost it.
    async fn drive(self, live: LiveFlow, sealing: Sealing, has_call_id: bool) {
        let (calls, parked) = (&self.calls, &self.parked);
        let (reply, stats) = parked.drive(calls, live, &sealing).await;
        let most = calls.services.limits.live_calls.saturating_mul(2);
        let keeps = parked.can_be_asked_again(has_call_id)
            && !lacks_capability(&reply)
            && calls.parked.lock().len() <= most;
        if !keeps {
            calls.forget(self.flow, parked);
        }
        parked.end(reply, stats);
        if keeps {
            tokio::time::sleep(KEPT).await;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let (Some(record), Ok(runtime)) = (self.parked.unrecorded(), Handle::try_current()) {
            let held = Self {
                calls: self.calls.clone(),
                flow: self.flow,
                parked: self.parked.clone(),
                _server: None,
            };
            // The end is recorded before any request gets it.
            runtime.spawn(async move {
                let info = held.calls.services.info.clone();
                record.write(&broken(), &info).await;
            });
            return;
        }
        self.parked.let_go();
        self.calls.forget(self.flow, &self.parked);
    }
}

/// Attaches a repeated first request, unless the call has gone on since.
fn attach_again(parked: &Arc<Parked>) -> Result<Attached, RpcError> {
    parked.attach(1, None).map_err(|_| {
        RpcError::invalid_params(
            "the call of this call id was begun before, and has gone on since: nothing was done by this request. Go on with the \
             requestState of its last reply; another call needs another id",
        )
    })
}

/// The error for calls at rest when the instance stops.
pub(super) fn stopping() -> RpcError {
    RpcError::call_over(
        "the call was given up, because the instance that held it is stopping; what it did so far is done; call again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tool;
    use refrain_core::{Cx, Principal};
    use serde_json::json;

    async fn at_once(_: Cx) -> refrain_core::Result<String> {
        Ok("done".into())
    }

    #[tokio::test]
    async fn the_last_reply_is_kept_only_for_those_who_can_come_back_for_it() {
        let tool = Tool::new("at_once", at_once).live();
        let server = Server::builder("live", "1").tool(tool).build();
        let server = server.expect("a server");
        let call = |call_id: Option<&str>| {
            let mut meta = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            });
            if let Some(call_id) = call_id {
                meta["refrain/callId"] = json!(call_id);
            }
            let params = json!({"name": "at_once", "arguments": {}, "_meta": meta});
            let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
            call.to_string()
        };
        for (call_id, kept) in [(None, 0), (Some("c-1"), 1)] {
            let call = call(call_id);
            let mut out = server.handle(call.as_bytes(), Principal::anonymous()).await;
            let reply = out.next().await.expect("a reply");
            let reply = String::from_utf8(reply).expect("text");
            assert!(reply.contains("done"), "{reply}");
            // The driver runs to its end.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            assert_eq!(server.0.live.parked.lock().len(), kept, "{call_id:?}");
        }
    }
}
