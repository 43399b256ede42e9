//! A flow whose home is memory: it is kept as it is, and goes on when an answer comes.
//!
//! It publishes its asks as a task does, and is none: nothing is written, it is not handed on, it says what it has to say
//! as it says it, and nothing of it is tried again. What it asks counts as a round, so that the same handler meets the
//! same limit in every home.

use super::driver::Flow;
use super::env::Limits;
use super::start::Start;
use super::state::State;
use super::task::TaskState;
use crate::AskError;
use crate::journal::{Asked, Held};

impl State {
    /// Is the home of this flow memory?
    pub(crate) fn is_in_memory(&self) -> bool {
        self.task.as_ref().is_some_and(|task| task.in_memory)
    }

    /// Are asks published as they are made, while the handler goes on?
    pub(super) fn publishes(&self) -> bool {
        self.task.is_some()
    }

    /// In memory: would what is about to be asked be one round too many? That is a fault.
    pub(super) fn passes_limit_in_memory(&mut self, limits: &Limits) -> bool {
        self.is_in_memory() && self.has_new_asks() && self.passes_limit(self.open_asks(), limits)
    }

    fn has_new_asks(&self) -> bool {
        let Some(task) = &self.task else {
            return false;
        };
        let known = |wire: &str| task.published.iter().any(|p| *p.asked.wire_key == *wire);
        let mut open = self.slots.iter().filter_map(|slot| slot.phase.open_key());
        open.any(|wire| !known(wire))
    }
}

impl Start {
    /// The same, for a flow whose home is memory.
    pub fn in_memory(mut self) -> Self {
        let task = self
            .task
            .get_or_insert_with(|| Box::new(TaskState::default()));
        task.in_memory = true;
        self
    }
}

impl Flow {
    /// Is the flow over? One in memory that ended with an incomplete reply is to be run again, from the snapshot of its last
    /// write and with the answers to what it asked: [`Start::task`].
    pub fn is_over(&self) -> bool {
        self.shared.lock().ended
    }

    /// Is something asked that has no answer yet?
    pub fn asks(&self) -> bool {
        self.shared.lock().open_asks() > 0
    }

    /// The client cannot answer what was published under this key, for this reason.
    pub fn fail(&mut self, wire_key: &str, reason: &str) {
        let held = |asked: &Asked| {
            let failed = AskError::Failed {
                name: asked.key.name.to_string(),
                reason: reason.to_owned(),
            };
            let json = serde_json::to_string(&failed).ok()?;
            Some(Held::Failure(json.into()))
        };
        let wake = self.shared.lock().take_in(wire_key, held);
        self.due = true;
        if let Some(wake) = wake {
            wake.wake();
        }
    }
}
