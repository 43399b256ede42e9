//! Standard error: where everything is said that is not the result, and where progress is drawn on a terminal.

use super::text::one_line;
use indicatif::{ProgressBar, ProgressStyle};
use refrain_client::Progress;
use std::io::{IsTerminal, stderr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How fine the bar is.
const STEPS: u64 = 1000;

/// The most texts that are held back.
const MAX_HELD: usize = 1000;

/// Standard error. Cloning it is cheap, and the clones share the bar.
#[derive(Clone)]
pub(super) struct Screen {
    draws: bool,
    shown: Arc<Mutex<Shown>>,
}

/// What is drawn, and what is held back while a person is asked.
#[derive(Default)]
struct Shown {
    bar: Option<ProgressBar>,
    holders: usize,
    held: Vec<String>,
}

/// Somebody who uses the terminal for something else, until it is dropped.
pub(super) struct Hold(Screen);

impl Screen {
    /// Progress is drawn on a terminal, unless a machine reads the result.
    pub(super) fn new(json: bool) -> Self {
        Self {
            draws: !json && stderr().is_terminal(),
            shown: Arc::default(),
        }
    }

    /// Whether progress is shown at all.
    pub(super) fn draws(&self) -> bool {
        self.draws
    }

    /// Writes lines. They may be coloured, which is for terminals only.
    pub(super) fn say(&self, text: &str) {
        let mut shown = self.shown();
        match &shown.bar {
            _ if shown.holders > 0 => {
                if shown.held.len() < MAX_HELD {
                    shown.held.push(text.to_owned());
                }
            }
            Some(bar) => bar.suspend(|| anstream::eprintln!("{text}")),
            None => anstream::eprintln!("{text}"),
        }
    }

    /// Leaves the terminal to somebody else. What is said until then is written afterwards.
    pub(super) fn hold(&self) -> Hold {
        self.clear();
        self.shown().holders += 1;
        Hold(self.clone())
    }

    /// Shows how far a call is.
    pub(super) fn progress(&self, progress: &Progress) {
        if !self.draws {
            return;
        }
        let mut shown = self.shown();
        if shown.holders > 0 {
            return;
        }
        let bar = shown.bar.get_or_insert_with(|| ProgressBar::new(STEPS));
        let message = one_line(progress.message.as_deref().unwrap_or_default());
        let done = progress.progress;
        match progress.total.filter(|total| *total > 0.0) {
            Some(total) => {
                let part = (done / total).clamp(0.0, 1.0);
                bar.set_style(style("{bar:30.green} {msg}"));
                bar.set_message(format!("{done} of {total}  {message}"));
                // It is between 0 and 1, so nothing is cut off.
                bar.set_position((part * STEPS as f64) as u64);
            }
            None => {
                bar.set_style(style("{spinner:.green} {msg}"));
                bar.set_message(format!("{done}  {message}"));
                bar.tick();
            }
        }
    }

    /// Takes the bar away, until there is news.
    pub(super) fn clear(&self) {
        if let Some(bar) = self.shown().bar.take() {
            bar.finish_and_clear();
        }
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut shown = self.0.shown();
        shown.holders -= 1;
        if shown.holders == 0 {
            for text in shown.held.drain(..) {
                anstream::eprintln!("{text}");
            }
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
