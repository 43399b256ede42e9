//! The first round of a live call: the handler is parked, and the request waits for its reply.

use super::running::{FlowHome, Round, State};
use super::single_use::Record;
use crate::limits::Permit;
use crate::live::{Attached, LiveFlow, Sealing, Subscribed};
use refrain_wire::{Reply, RpcError};
use std::future::ready;

/// A flow that is about to be parked.
pub(super) struct LiveStart {
    pub(super) live: LiveFlow,
    pub(super) sealing: Sealing,
    pub(super) has_call_id: bool,
    pub(super) notes: Subscribed,
    pub(super) permit: Permit,
}

impl Round {
    /// Cancels the call, not only this round: a parked handler ends with the request.
    pub(crate) fn cancel_call(&mut self) {
        if let State::Running(FlowHome::Parked { attached, .. }) = &mut self.state {
            attached.cancel();
        }
    }

    /// Parks the flow and waits for the reply of this round.
    pub(super) fn park(&mut self, start: LiveStart) {
        // The parked call records its first reply, because this round may be dropped before.
        let (calls, record) = (&self.rounds.live, &mut self.record);
        let parked = calls.park(start.live, start.sealing, start.has_call_id, record);
        // A record that the parked call did not take was claimed for nothing: no handler ran under it.
        let forgotten = self.record.take().map(Record::forget);
        match (parked, forgotten) {
            (Ok(attached), _) => self.attach(attached, start.notes, start.permit),
            (Err(error), None) => self.reply_with(Reply::Error(error)),
            (Err(error), Some(forgotten)) => {
                self.state = State::Recording(Box::pin(async move {
                    // An error is a panic of the log, which is reported where it happens.
                    let _ = forgotten.await;
                    Reply::Error(error)
                }));
            }
        }
    }

    /// The first request came before: waits for its reply if the call is parked here.
    pub(super) fn park_again(&mut self, start: LiveStart) {
        let again = self.rounds.live.again(start.sealing.flow);
        self.record = None;
        match again.and_then(|attached| attached.ok_or_else(begun_before)) {
            Ok(attached) => self.attach(attached, start.notes, start.permit),
            Err(error) => self.reply_with(Reply::Error(error)),
        }
    }

    fn reply_with(&mut self, reply: Reply) {
        self.state = State::Recording(Box::pin(ready(reply)));
    }

    fn attach(&mut self, attached: Attached, notes: Subscribed, permit: Permit) {
        self.state = State::Running(FlowHome::Parked {
            attached: Box::new(attached.with(notes)),
            _permit: permit,
        });
    }
}

fn begun_before() -> RpcError {
    RpcError::internal(
        "this call was begun before, is not held here, and has no reply yet: nothing was done by this request. Send it again \
         in a moment; if that goes on, the call was interrupted: look what it did before you call anew",
    )
}
