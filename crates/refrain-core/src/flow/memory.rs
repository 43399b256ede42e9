//! Live flows: they stay in memory and continue when an answer arrives.
//!
//! A live flow publishes its asks as a task does. It is never stored, handed on or retried, and it sends progress and
//! logs. New asks count as rounds, so that a handler has the same limits in every home.
//!
//! A live flow can become a task. It still stays in memory and is neither handed on nor retried, but its asks and its end
//! are written.

use super::driver::Flow;
use super::start::Start;
use super::state::FlowState;
use super::task::PublishHome;
use crate::AskError;
use crate::journal::{PendingAsk, StoredOutcome};

impl FlowState {
    /// Returns whether the home of this flow is memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        let home = self.publish_home();
        matches!(home, Some(PublishHome::Memory | PublishHome::MemoryTask))
    }

    /// Returns whether asks are published while the handler continues.
    pub(super) fn publishes(&self) -> bool {
        self.publishing.is_some()
    }
}

impl Start {
    /// Makes memory the home of the flow.
    pub fn in_memory(mut self) -> Self {
        self.publishing.get_or_insert_default().home = PublishHome::Memory;
        self
    }

    /// Whether the round is a run of a stored task.
    pub(super) fn is_task(&self) -> bool {
        let home = self.publishing.as_ref().map(|publishing| publishing.home);
        matches!(home, Some(PublishHome::Store))
    }
}

impl Flow {
    /// Returns whether the flow has ended. If a flow in memory ended with an incomplete reply in the explicit style,
    /// start it again with [`Start::task`], the snapshot of its last [`Event::Write`](super::Event::Write) and the
    /// answers.
    pub fn has_ended(&self) -> bool {
        self.shared.lock().ended
    }

    /// Returns whether an ask is open.
    pub fn has_open_asks(&self) -> bool {
        self.shared.lock().open_asks() > 0
    }

    /// Reports that the client cannot answer the ask published under this key.
    pub fn fail_ask(&mut self, wire_key: &str, reason: &str) {
        let outcome = |ask: &PendingAsk| {
            let error = AskError::Failed {
                name: ask.key.name.to_string(),
                reason: reason.to_owned(),
            };
            Some(StoredOutcome::from(&error))
        };
        self.change(|state| state.resolve_ask(wire_key, outcome));
    }
}
