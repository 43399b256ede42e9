//! Requests that wait for the reply of a parked call.

use super::{Parked, used_up};
use refrain_core::{Note, Stats};
use refrain_wire::{Call, LogLevel, Reply, RpcError};
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// A request that waits for the reply of its round.
pub(crate) struct Attached {
    pub(super) parked: Arc<Parked>,
    pub(super) number: u64,
    pub(super) round: u32,
    pub(super) notes: mpsc::Receiver<Vec<Note>>,
    pub(super) subscribed: Subscribed,
    /// Does the call end when this request is dropped? The reply cannot be asked for again.
    pub(in crate::live) ends_call: bool,
}

/// The notes that a request subscribes to. Each round of a call may subscribe to others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Subscribed {
    pub(crate) progress: bool,
    /// The least severe log message.
    pub(crate) log: Option<LogLevel>,
}

impl Subscribed {
    pub(crate) fn by(call: &Call<'_>) -> Self {
        Self {
            progress: call.meta.progress_token.is_some(),
            log: call.meta.log_level,
        }
    }

    fn include(self, note: &Note) -> bool {
        match note {
            Note::Progress { .. } => self.progress,
            Note::Log { level, .. } => self.log.is_some_and(|least| *level >= least),
        }
    }
}

/// An event for an attached request.
pub(crate) enum AttachedEvent {
    Notes(Vec<Note>),
    Reply(Reply, Stats),
}

impl Attached {
    /// Makes the call end with this request.
    pub(crate) fn cancel(&mut self) {
        self.ends_call = true;
    }

    /// Sends these notes to the client.
    pub(crate) fn with(mut self, subscribed: Subscribed) -> Self {
        self.subscribed = subscribed;
        self
    }

    /// Waits for notes and the reply.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<AttachedEvent> {
        while let Poll::Ready(Some(mut notes)) = self.notes.poll_recv(cx) {
            notes.retain(|note| self.subscribed.include(note));
            if !notes.is_empty() {
                return Poll::Ready(AttachedEvent::Notes(notes));
            }
        }
        let mut state = self.parked.state.lock();
        let last = state.last.as_ref();
        if let Some(last) = last.filter(|last| last.round == self.round).cloned() {
            state.read = true;
            self.ends_call = false;
            return Poll::Ready(AttachedEvent::Reply(last.reply, last.stats));
        }
        if state.round != self.round {
            return Poll::Ready(AttachedEvent::Reply(
                Reply::Error(used_up()),
                Stats::default(),
            ));
        }
        state.waiting.retain(|(number, _)| *number != self.number);
        state.waiting.push((self.number, cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut state = self.parked.state.lock();
        state.waiting.retain(|(number, _)| *number != self.number);
        drop(state);
        if self.ends_call {
            let gone = "the call was cancelled, or its client went away before the first reply";
            self.parked.give_up(RpcError::internal(gone));
        }
    }
}
