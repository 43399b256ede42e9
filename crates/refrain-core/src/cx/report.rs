//! Progress, log messages and the status of a task.

use super::Cx;
use crate::flow::Note;
use refrain_wire::LogLevel;

impl Cx {
    /// Sets the status message of the call's task. Ignored during replay.
    ///
    /// The message stays until the next one. The result includes it only if no ask, step or sleep came after it. An error
    /// of the handler replaces it, and a cancelled task has no status message.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) -> Result<()> {
    /// cx.detach().await?;
    /// for part in 1..=3 {
    ///     cx.status(format!("copying part {part} of 3"));
    ///     cx.step(format!("copy {part}"), async { ok(()) }).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn status(&self, message: impl Into<String>) {
        {
            let mut state = self.shared.lock();
            if !state.replay_complete || state.ended {
                return;
            }
            let message = message.into();
            state.final_status = Some(message.clone());
            state.status = Some(message);
        }
        self.shared.wake_driver();
    }

    /// Reports progress to the client, if the client asked for it. `total` is the expected final value of `done`.
    ///
    /// Nothing is sent during replay, or in a task. Values that do not increase are skipped, as the protocol requires;
    /// so are NaN and infinities.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) -> Result<()> {
    /// for page in 1..=3 {
    ///     cx.step(format!("page {page}"), async { ok(()) }).await?;
    ///     cx.progress(f64::from(page), Some(3.0), "reading pages");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn progress(&self, done: f64, total: Option<f64>, message: &str) {
        if !self.shared.env.wants_progress || !done.is_finite() {
            return;
        }
        let increases = {
            let mut state = self.shared.lock();
            let increases = state.last_progress.is_none_or(|last| done > last);
            if increases && state.replay_complete {
                state.last_progress = Some(done);
            }
            increases
        };
        if increases {
            self.note(Note::Progress {
                done,
                total,
                message: (!message.is_empty()).then(|| message.to_owned()),
            });
        }
    }

    /// Sends a log message to the client, if the client asked for messages of this level.
    ///
    /// Nothing is sent during replay, or in a task.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) {
    /// cx.log(LogLevel::Info, "cache miss");
    /// # }
    /// ```
    pub fn log(&self, level: LogLevel, data: impl Into<serde_json::Value>) {
        let least = self.shared.env.log_level;
        if least.is_some_and(|least| level >= least) {
            let data = data.into();
            self.note(Note::Log { level, data });
        }
    }

    fn note(&self, note: Note) {
        {
            let mut state = self.shared.lock();
            // A task reports through its status message.
            if !state.replay_complete || state.ended || state.is_task() {
                return;
            }
            if state.notes.len() >= self.shared.env.limits.notes {
                state.notes.remove(0);
            }
            state.notes.push(note);
        }
        self.shared.wake_driver();
    }
}
