//! The parked calls of one instance.

use super::errors::call_gone;
use super::first_requests::FirstRequests;
use super::flow::LiveFlow;
use super::parked::{
    AttachError, AttachedRequest, ParkedCall, REPLY_RETENTION, SealContext, internal_error,
};
use crate::limits::{CallPermits, LimitReached};
use crate::metrics::LiveCallEvent;
use crate::relay::Holder;
use crate::rounds::{Flows, ReplayRecord, counts_as_run};
use crate::server::Server;
use crate::services::Services;
use crate::tasks::TaskSeed;
use parking_lot::Mutex;
use refrain_core::FlowId;
use refrain_wire::ratified::write_reply;
use refrain_wire::{Answers, Reply, RpcError};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::pin::Pin;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// The live calls of this instance.
pub(crate) struct LiveCalls {
    /// This instance as the holder in tokens.
    pub(super) holder: String,
    parked: Mutex<HashMap<FlowId, Arc<ParkedCall>>>,
    pub(super) first_requests: FirstRequests,
    /// `true` after [`close`](Self::close) was called.
    closed: watch::Sender<bool>,
    /// The number of calls that may need answers.
    unanswered: watch::Sender<usize>,
    pub(super) flows: Arc<Flows>,
    pub(super) services: Services,
}

/// Completes when [`LiveCalls::close`] is called.
pub(super) type Closed = Pin<Box<dyn Future<Output = ()> + Send>>;

impl LiveCalls {
    pub(crate) fn new(holder: &Holder, flows: Arc<Flows>, services: Services) -> Arc<Self> {
        Arc::new(Self {
            holder: holder.to_string(),
            parked: Mutex::default(),
            first_requests: FirstRequests::default(),
            closed: watch::Sender::new(false),
            unanswered: watch::Sender::new(0),
            flows,
            services,
        })
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// The number of calls that may need answers: calls of live tools, and calls of legacy sessions that have asked.
    pub(crate) fn unanswered(&self) -> usize {
        *self.unanswered.borrow()
    }

    /// Waits until no call may need an answer.
    pub(crate) async fn all_answered(&self) {
        // Cannot fail, because `self` owns the sender.
        let _ = self
            .unanswered
            .subscribe()
            .wait_for(|count| *count == 0)
            .await;
    }

    pub(super) fn count_unanswered(self: &Arc<Self>) -> UnansweredCall {
        self.unanswered.send_modify(|count| *count += 1);
        UnansweredCall(self.clone())
    }

    pub(super) fn closed(&self) -> Closed {
        let mut closed = self.closed.subscribe();
        Box::pin(async move {
            // Fails if the server was dropped.
            let _ = closed.wait_for(|closed| *closed).await;
        })
    }

    /// Attaches a request of a later round, or a repeated one, to its call.
    pub(crate) fn attach(
        &self,
        flow: FlowId,
        round: u32,
        answers: Option<&Answers<'_>>,
        can_be_task: bool,
    ) -> Result<AttachedRequest, AttachError> {
        let parked = self.parked.lock().get(&flow).cloned();
        let parked = parked.ok_or_else(|| {
            self.services.metrics.live(LiveCallEvent::Gone);
            call_gone()
        });
        parked?.attach(round, answers, can_be_task)
    }

    /// Attaches a repeated first request to its call. `None` if the call is not parked on this instance.
    pub(crate) fn attach_repeated(
        &self,
        flow: FlowId,
    ) -> Result<Option<AttachedRequest>, RpcError> {
        let parked = self.parked.lock().get(&flow).cloned();
        parked.map(|parked| attach_repeated(&parked)).transpose()
    }

    /// Cancels each call as soon as it waits for an answer, and rejects new calls.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    fn remove(&self, flow: FlowId, parked: &Arc<ParkedCall>) {
        let mut calls = self.parked.lock();
        let current = calls.get(&flow);
        if current.is_some_and(|current| Arc::ptr_eq(current, parked)) {
            calls.remove(&flow);
        }
    }

    /// Acquires a permit to keep the last reply of a call for repeated requests.
    fn acquire_kept_reply(
        &self,
        parked: &ParkedCall,
        reply: &Reply,
    ) -> Result<CallPermits, LimitReached> {
        let mut json = Vec::new();
        write_reply(&mut json, None, reply, &self.services.info);
        let limits = &self.services.limits;
        limits.acquire_kept_reply(parked.caller().clone(), json.len())
    }

    /// Parks a new call and attaches its first request. If the call is already parked, drops the new flow and attaches the
    /// request to the parked one. Takes `record` only if it parks the new flow.
    pub(crate) fn park(
        self: &Arc<Self>,
        (mut live, seed): (LiveFlow, Option<Box<TaskSeed>>),
        context: SealContext,
        has_call_id: bool,
        record: &mut Option<ReplayRecord>,
    ) -> Result<AttachedRequest, RpcError> {
        let sender = live.open_answers();
        if self.is_closed() {
            return Err(RpcError::internal(
                "this instance is shutting down and accepts no live calls; this request had no effect; retry the call",
            ));
        }
        let parked = match self.parked.lock().entry(context.flow) {
            Entry::Occupied(existing) => Err(existing.get().clone()),
            Entry::Vacant(entry) => {
                Ok(entry.insert(ParkedCall::new(sender, record.take())).clone())
            }
        };
        let parked = match parked {
            Ok(parked) => parked,
            Err(existing) => return attach_repeated(&existing),
        };
        let mut attached = attach_repeated(&parked)?;
        attached.cancels_call_on_drop = !has_call_id;
        let guard = ParkedCallGuard {
            calls: self.clone(),
            flow: context.flow,
            parked,
            _server: self.flows.server(),
        };
        let driver = guard.drive(live, seed, context, has_call_id);
        tokio::spawn(driver);
        Ok(attached)
    }
}

/// A call that may need answers, until this is dropped.
pub(super) struct UnansweredCall(Arc<LiveCalls>);

impl Drop for UnansweredCall {
    fn drop(&mut self) {
        self.0.unanswered.send_modify(|count| *count -= 1);
    }
}

/// Ends a parked call, and removes it from the map, when its driver ends or panics.
struct ParkedCallGuard {
    calls: Arc<LiveCalls>,
    flow: FlowId,
    parked: Arc<ParkedCall>,
    /// Kept alive for `State<Server>`.
    _server: Option<Server>,
}

impl ParkedCallGuard {
    /// Drives the handler to its end. Keeps the last reply for clients that can repeat their request.
    async fn drive(
        self,
        live: LiveFlow,
        seed: Option<Box<TaskSeed>>,
        context: SealContext,
        has_call_id: bool,
    ) {
        let (calls, parked) = (&self.calls, &self.parked);
        let (reply, stats) = parked.drive(calls, live, seed, &context).await;
        let can_be_repeated = parked.can_be_repeated(has_call_id) && counts_as_run(&reply);
        let permit = can_be_repeated.then(|| calls.acquire_kept_reply(parked, &reply));
        let permit = permit.and_then(Result::ok);
        if permit.is_none() {
            calls.remove(self.flow, parked);
        }
        parked.end(reply, stats);
        if permit.is_some() {
            tokio::time::sleep(REPLY_RETENTION).await;
        }
    }
}

impl Drop for ParkedCallGuard {
    fn drop(&mut self) {
        if let (Some(record), Ok(runtime)) = (self.parked.take_record(), Handle::try_current()) {
            let guard = Self {
                calls: self.calls.clone(),
                flow: self.flow,
                parked: self.parked.clone(),
                _server: None,
            };
            // The error is recorded first. Then `guard` is dropped, which delivers the error to
            // waiting requests.
            runtime.spawn(async move {
                let info = guard.calls.services.info.clone();
                record.write(&internal_error(), &info).await;
            });
            return;
        }
        self.parked.abandon();
        self.calls.remove(self.flow, &self.parked);
    }
}

/// Attaches a repeated first request, unless the call is in a later round.
fn attach_repeated(parked: &Arc<ParkedCall>) -> Result<AttachedRequest, RpcError> {
    parked.attach(1, None, false).map_err(|_| {
        RpcError::invalid_params(
            "a call with this call id already started and is in a later round; this request had no effect. Continue with the \
             requestState of its last reply, or use a new call id for a new call",
        )
    })
}

/// The error for calls that are idle when the instance shuts down.
pub(super) fn shutting_down() -> RpcError {
    RpcError::call_over(
        "the call was cancelled because its instance is shutting down; its effects so far remain; call the tool again",
    )
}

/// The error for an idle call that was cancelled to free its permit for another caller.
pub(super) fn evicted() -> RpcError {
    RpcError::call_over(
        "the call was cancelled to make room for other callers: its anonymous caller has the most calls, and this one waited \
         longest for an answer; its effects so far remain; call the tool again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tool;
    use refrain_core::{Cx, Principal};
    use serde_json::json;
    use tokio::task::coop;

    async fn return_done(_: Cx) -> refrain_core::Result<String> {
        Ok("done".into())
    }

    async fn report_progress(cx: Cx) -> refrain_core::Result<String> {
        cx.progress(1.0, None, "");
        Ok("done".into())
    }

    fn server(tool: Tool) -> Server {
        let server = Server::builder("live", "1").tool(tool.live()).build();
        server.expect("the server builds")
    }

    /// A call of the tool `work` with another member of `_meta`.
    fn call(member: Option<(&str, &str)>) -> String {
        let mut meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        if let Some((name, value)) = member {
            meta[name] = json!(value);
        }
        let params = json!({"name": "work", "arguments": {}, "_meta": meta});
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string()
    }

    /// Lets the driver finish.
    async fn finish() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn note_precedes_the_reply_when_the_poll_budget_is_exhausted() {
        let server = server(Tool::new("work", report_progress));
        let call = call(Some(("progressToken", "p-1")));
        let mut out = server.handle(call.as_bytes(), Principal::anonymous()).await;
        let mut next = Box::pin(out.next());
        assert!(futures_util::poll!(&mut next).is_pending());
        finish().await;
        while coop::has_budget_remaining() {
            coop::consume_budget().await;
        }
        let first = next.await.expect("the call has a note");
        let first = String::from_utf8(first).expect("notes are UTF-8");
        assert!(first.contains("notifications/progress"), "{first}");
    }

    #[tokio::test]
    async fn last_reply_is_kept_only_if_the_request_can_be_repeated() {
        let server = server(Tool::new("work", return_done));
        for (call_id, kept) in [(None, 0), (Some("c-1"), 1)] {
            let call = call(call_id.map(|id| ("refrain/callId", id)));
            let mut out = server.handle(call.as_bytes(), Principal::anonymous()).await;
            let reply = out.next().await.expect("the call has a reply");
            let reply = String::from_utf8(reply).expect("replies are UTF-8");
            assert!(reply.contains("done"), "{reply}");
            finish().await;
            assert_eq!(server.0.live.parked.lock().len(), kept, "{call_id:?}");
        }
    }
}
