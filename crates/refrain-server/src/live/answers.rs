//! Answers on their way to a flow in memory. Their bytes count as those of the call.

use crate::limits::{InstanceLimits, LimitKey, LimitReached, Permit};
use refrain_wire::AnswerError;
use std::sync::Arc;
use tokio::sync::mpsc;

/// A client's answer to an ask of a flow in memory.
pub(crate) struct LiveAnswer {
    /// The key of the ask.
    pub(crate) key: String,
    /// The JSON text of the client's result.
    pub(crate) answer: Result<String, LiveAnswerError>,
    /// The permit for the bytes of the answer.
    pub(crate) permit: Permit,
}

/// The reason why an ask has no valid answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum LiveAnswerError {
    #[error(transparent)]
    Malformed(#[from] AnswerError),
    /// The client responded with an error.
    #[error("{0}")]
    Client(String),
}

/// Sends answers to a flow in memory.
#[derive(Clone)]
pub(crate) struct AnswerSender {
    sender: mpsc::Sender<LiveAnswer>,
    limits: Arc<InstanceLimits>,
    /// The caller that started the call.
    caller: LimitKey,
}

impl AnswerSender {
    pub(super) fn new(
        limits: &Arc<InstanceLimits>,
        caller: &LimitKey,
    ) -> (Self, mpsc::Receiver<LiveAnswer>) {
        let (sender, answers) = mpsc::channel(limits.flow.asks.max(1));
        let sender = Self {
            sender,
            limits: limits.clone(),
            caller: caller.clone(),
        };
        (sender, answers)
    }

    pub(crate) fn caller(&self) -> &LimitKey {
        &self.caller
    }

    /// Acquires a permit for the bytes of an answer.
    pub(crate) fn acquire(&self, bytes: usize) -> Result<Permit, LimitReached> {
        self.limits.acquire_live_bytes(&self.caller, bytes)
    }

    /// Sends an answer. Returns false if the call has ended.
    pub(crate) fn send(&self, answer: LiveAnswer) -> bool {
        // The channel has capacity for all asks of a round.
        self.sender.try_send(answer).is_ok()
    }
}
