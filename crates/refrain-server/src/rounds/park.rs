//! The first round of a live call: parks the handler and attaches the request.

use super::round::{FlowHome, Round, RoundState};
use super::single_use::ReplayRecord;
use crate::limits::Permit;
use crate::live::{AttachedRequest, LiveFlow, SealContext, Subscribed};
use crate::tasks::TaskSeed;
use refrain_wire::{Reply, RpcError};
use std::future::ready;

/// A flow that is about to be parked.
pub(super) struct LiveStart {
    pub(super) live: LiveFlow,
    pub(super) context: SealContext,
    pub(super) has_call_id: bool,
    pub(super) notes: Subscribed,
    /// `Some` if the call can become a task.
    pub(super) seed: Option<Box<TaskSeed>>,
    pub(super) permit: Permit,
}

impl Round {
    /// Cancels the whole call: when this round is dropped, a parked handler is dropped, too.
    pub(crate) fn cancel_call(&mut self) {
        if let RoundState::Running(FlowHome::Parked { attached, .. }) = &mut self.state {
            attached.cancels_call_on_drop = true;
        }
    }

    pub(super) fn park(&mut self, start: LiveStart) {
        // The parked call records its first reply itself, because this round may be dropped earlier.
        let (calls, record) = (&self.rounds.live, &mut self.record);
        let live = (start.live, start.seed);
        let parked = calls.park(live, start.context, start.has_call_id, record);
        // If the parked call did not take the record, no handler ran: the client may repeat the call.
        let deleted = self.record.take().map(ReplayRecord::spawn_delete);
        match (parked, deleted) {
            (Ok(attached), _) => self.attach(attached, start.notes, start.permit),
            (Err(error), None) => self.reply_with(Reply::Error(error)),
            (Err(error), Some(deleted)) => {
                self.state = RoundState::Recording(Box::pin(async move {
                    // Fails only if the replay log panicked, which the panic hook has reported.
                    let _ = deleted.await;
                    Reply::Error(error)
                }));
            }
        }
    }

    /// Attaches a repeated first request to its call, if that is parked on this instance.
    pub(super) fn attach_repeated(&mut self, start: LiveStart) {
        let repeated = self.rounds.live.attach_repeated(start.context.flow);
        self.record = None;
        match repeated.and_then(|attached| attached.ok_or_else(already_started)) {
            Ok(attached) => self.attach(attached, start.notes, start.permit),
            Err(error) => self.reply_with(Reply::Error(error)),
        }
    }

    fn reply_with(&mut self, reply: Reply) {
        self.state = RoundState::Recording(Box::pin(ready(reply)));
    }

    /// Attaches the request of this round to a parked call.
    pub(super) fn attach(&mut self, attached: AttachedRequest, notes: Subscribed, permit: Permit) {
        self.state = RoundState::Running(FlowHome::Parked {
            attached: Box::new(attached.with_subscribed(notes)),
            _permit: permit,
        });
    }
}

fn already_started() -> RpcError {
    RpcError::internal(
        "a call with this call id already started, but is not held by this instance and has no recorded reply; this request \
         had no effect. Retry in a moment. If the error persists, the call was interrupted: check its effects before you \
         start a new call",
    )
}
