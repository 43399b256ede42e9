//! Requests that are attached to a parked call.

use super::{ParkedCall, token_already_used};
use refrain_core::{Note, Stats};
use refrain_wire::{Call, LogLevel, Reply, RpcError};
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// A request that waits for the reply of its round.
pub(crate) struct AttachedRequest {
    pub(super) parked: Arc<ParkedCall>,
    /// The number of the request, unique within the call.
    pub(super) number: u64,
    pub(super) round: u32,
    pub(super) notes: mpsc::Receiver<Vec<Note>>,
    pub(super) subscribed: Subscribed,
    /// Whether dropping this request cancels the call.
    pub(crate) cancels_call_on_drop: bool,
}

/// The notes that a request subscribes to: progress and log messages. Each round of a call may subscribe to others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Subscribed {
    pub(crate) progress: bool,
    /// The minimum severity of log messages.
    pub(crate) log: Option<LogLevel>,
}

impl Subscribed {
    pub(crate) fn by(call: &Call<'_>) -> Self {
        Self {
            progress: call.meta.progress_token.is_some(),
            log: call.meta.log_level,
        }
    }

    fn includes(self, note: &Note) -> bool {
        match note {
            Note::Progress { .. } => self.progress,
            Note::Log { level, .. } => self.log.is_some_and(|minimum| *level >= minimum),
        }
    }
}

/// An event for an attached request.
pub(crate) enum AttachedEvent {
    Notes(Vec<Note>),
    Reply(Reply, Stats),
}

impl AttachedRequest {
    pub(crate) fn with_subscribed(mut self, subscribed: Subscribed) -> Self {
        self.subscribed = subscribed;
        self
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<AttachedEvent> {
        while let Poll::Ready(Some(notes)) = self.notes.poll_recv(cx) {
            if let Some(event) = self.event_of(notes) {
                return Poll::Ready(event);
            }
        }
        let mut state = self.parked.state.lock();
        if let Some(last) = &state.last_reply
            && last.round == self.round
        {
            let event = AttachedEvent::Reply(last.reply.clone(), last.stats);
            // Notes are sent before the reply. They may have arrived since they were polled above.
            while let Ok(notes) = self.notes.try_recv() {
                if let Some(event) = self.event_of(notes) {
                    return Poll::Ready(event);
                }
            }
            state.is_delivered = true;
            self.cancels_call_on_drop = false;
            return Poll::Ready(event);
        }
        if state.round != self.round {
            let error = Reply::Error(token_already_used());
            return Poll::Ready(AttachedEvent::Reply(error, Stats::default()));
        }
        state.waiting.retain(|(number, _)| *number != self.number);
        state.waiting.push((self.number, cx.waker().clone()));
        Poll::Pending
    }

    /// The event with those notes that the request subscribed to, if any.
    fn event_of(&self, mut notes: Vec<Note>) -> Option<AttachedEvent> {
        notes.retain(|note| self.subscribed.includes(note));
        (!notes.is_empty()).then_some(AttachedEvent::Notes(notes))
    }
}

impl Drop for AttachedRequest {
    fn drop(&mut self) {
        let mut state = self.parked.state.lock();
        state.waiting.retain(|(number, _)| *number != self.number);
        drop(state);
        if self.cancels_call_on_drop {
            let reason =
                "the call was cancelled, or the client disconnected before the first reply";
            self.parked.cancel(RpcError::internal(reason));
        }
    }
}
