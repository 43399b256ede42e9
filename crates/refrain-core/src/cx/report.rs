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
            state.status_is_progress = false;
        }
        self.shared.wake_driver();
    }

    /// Reports progress to the client, if the client asked for it. `total` is the expected final value of `done`.
    ///
    /// In a task, the progress becomes its status message, such as `reading pages (2 of 3)`; the store is written at most
    /// once a second. Nothing is reported during replay. Values that do not increase are skipped, as the protocol requires;
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
        let is_task = {
            let mut state = self.shared.lock();
            let increases = state.last_progress.is_none_or(|last| done > last);
            if !increases || !done.is_finite() || !state.replay_complete || state.ended {
                return;
            }
            state.last_progress = Some(done);
            state.is_task()
        };
        if is_task {
            let text = progress_text(done, total, message);
            let mut state = self.shared.lock();
            state.status = Some(text);
            state.status_is_progress = true;
            drop(state);
            self.shared.wake_driver();
        } else if self.shared.env.wants_progress {
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

/// Progress as the status message of a task.
fn progress_text(done: f64, total: Option<f64>, message: &str) -> String {
    let rounded = |value: f64| (value * 100.0).round() / 100.0;
    let count = match total {
        Some(total) => format!("{} of {}", rounded(done), rounded(total)),
        None => rounded(done).to_string(),
    };
    match message {
        "" => count,
        message => format!("{message} ({count})"),
    }
}

#[cfg(test)]
mod tests {
    use super::progress_text;

    #[test]
    fn progress_is_a_short_text() {
        assert_eq!(
            progress_text(2.0, Some(3.0), "reading pages"),
            "reading pages (2 of 3)"
        );
        assert_eq!(progress_text(100.0 / 3.0, Some(100.0), ""), "33.33 of 100");
        assert_eq!(progress_text(7.0, None, ""), "7");
    }
}
