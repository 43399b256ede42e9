//! Journaled time and randomness.

use super::Cx;
use crate::flow::{in_step, micros};
use crate::journal::{Entry, EntryKey, OperationKind, StoredOutcome};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

impl Cx {
    /// Returns a journaled time: every round reads the same time at this point of the handler.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) -> Result<bool> {
    /// let started = cx.now();
    /// cx.step("work", async { ok(()) }).await?;
    /// Ok(cx.now().duration_since(started)?.as_secs() < 60)
    /// # }
    /// ```
    pub fn now(&self) -> SystemTime {
        let source = &self.shared.env.source;
        let time = self.journaled_value(OperationKind::Now, || micros(source.now()));
        UNIX_EPOCH + Duration::from_micros(time)
    }

    /// Returns a journaled random number: every round reads the same number at this point of the handler.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) -> Result<u64> {
    /// let dice = cx.random() % 6 + 1;
    /// Ok(dice)
    /// # }
    /// ```
    pub fn random(&self) -> u64 {
        self.journaled_value(OperationKind::Random, || {
            let mut bytes = [0; 8];
            self.shared.env.source.fill(&mut bytes);
            u64::from_le_bytes(bytes)
        })
    }

    /// Draws a value, or reads it from the journal. Inside a step it is not journaled, since the step's value is.
    pub(super) fn journaled_value(&self, kind: OperationKind, draw: impl FnOnce() -> u64) -> u64 {
        let drawn = draw();
        if in_step(&self.shared) {
            return drawn;
        }
        let mut state = self.shared.lock();
        let key = state.assign_ordinal(EntryKey::new(self.scope.as_ref(), kind, "".into()));
        if let Some(index) = state.find(&key) {
            let number = state.journal.entries[index].outcome.json().parse();
            state.deliver(index);
            return number.unwrap_or(drawn);
        }
        let mut entry = Entry::new(key, 0, StoredOutcome::Value(drawn.to_string().into()));
        entry.delivered = true;
        let limit = self.shared.env.limits.entries;
        if !state.ended
            && let Some(index) = state.append(entry, limit)
        {
            state.deliver(index);
        }
        drawn
    }
}
