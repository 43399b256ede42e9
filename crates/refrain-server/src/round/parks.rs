//! A round whose handler is to be parked, and waits for it.

use super::single_use::Kept;
use super::{Round, Stage};
use crate::live::{Attached, Parking, Sealing, Wishes};
use refrain_core::FlowId;
use refrain_wire::{Reply, RpcError};
use std::future::ready;

/// What is known of a flow that is to be parked.
#[derive(Clone, Copy)]
pub(super) struct Parks {
    pub(super) flow: FlowId,
    pub(super) deadline: u64,
    pub(super) has_call_id: bool,
    pub(super) wishes: Wishes,
}

impl Round {
    /// The client no longer wants the call, whichever round this is of: a handler that is parked ends with the request.
    pub(crate) fn cancel_call(&mut self) {
        if let Stage::Attached(attached) = &mut self.stage {
            attached.cancel();
        }
    }

    /// Hands the flow over to be parked between two rounds, and waits for the reply of this one.
    pub(super) fn park(&mut self, parks: Parks) {
        let Some(live) = self.live.take() else { return };
        let parked = self.server.park(Parking {
            live: *live,
            sealing: Sealing {
                flow: parks.flow,
                binding: self.binding.live(),
                deadline: parks.deadline,
                kind: self.kind,
                output: self.output.clone(),
            },
            has_call_id: parks.has_call_id,
            // A client that goes away takes this round with it, but not the call.
            record: &mut self.single_use,
        });
        // What was not parked did nothing.
        let unused = self.single_use.take();
        let back = unused.and_then(|key| self.server.take_back(key));
        self.attach(parked, parks.wishes, back);
    }

    /// A first request that came before: waits for its reply if the call is held here.
    pub(super) fn attach_again(&mut self, parks: Parks) {
        let again = self.server.0.live.again(parks.flow);
        let attached = again.and_then(|attached| attached.ok_or_else(begun_before));
        self.live = None;
        self.single_use = None;
        self.attach(attached, parks.wishes, None);
    }

    /// Waits for the reply, or says why there is none, once what was begun is taken back.
    fn attach(&mut self, attached: Result<Attached, RpcError>, wishes: Wishes, back: Option<Kept>) {
        self.stage = match attached {
            Ok(attached) => Stage::Attached(Box::new(attached.with(wishes))),
            Err(error) => {
                let back = back.unwrap_or_else(|| Box::pin(ready(())));
                Stage::Keep(back, Some(Reply::Error(error)))
            }
        };
    }
}

fn begun_before() -> RpcError {
    RpcError::internal(
        "this call was begun before, is not held here, and has no reply yet: nothing was done by this request. Send it again \
         in a moment; if that goes on, the call was interrupted: look what it did before you call anew",
    )
}
