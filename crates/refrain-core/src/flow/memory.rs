//! A flow whose home is memory: it stays there, and continues when an answer arrives.
//!
//! It publishes its asks as a task does, but it is not written, handed on or retried, and it sends progress and logs.
//! Its asks count as rounds, so that a handler meets the same limit in every home.

use super::driver::Flow;
use super::start::Start;
use super::state::State;
use crate::AskError;
use crate::journal::{Asked, Held};

impl State {
    /// Returns whether the home of this flow is memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.task.as_ref().is_some_and(|task| task.in_memory)
    }

    /// Returns whether asks are published while the handler continues.
    pub(super) fn publishes(&self) -> bool {
        self.task.is_some()
    }
}

impl Start {
    /// Makes memory the home of the flow.
    pub fn in_memory(mut self) -> Self {
        self.task.get_or_insert_default().in_memory = true;
        self
    }
}

impl Flow {
    /// Returns whether the flow is over. A flow in memory that ended with an incomplete reply is run again with
    /// [`Start::task`], from the snapshot of its last write and with the answers to its asks.
    pub fn is_over(&self) -> bool {
        self.shared.lock().ended
    }

    /// Returns whether an ask is open.
    pub fn asks(&self) -> bool {
        self.shared.lock().open_asks() > 0
    }

    /// Reports that the client cannot answer the ask published under this key.
    pub fn fail(&mut self, wire_key: &str, reason: &str) {
        let held = |asked: &Asked| {
            let failed = AskError::Failed {
                name: asked.key.name.to_string(),
                reason: reason.to_owned(),
            };
            let json = serde_json::to_string(&failed).ok()?;
            Some(Held::Failure(json.into()))
        };
        self.change(|state| state.take_in(wire_key, held));
    }
}
