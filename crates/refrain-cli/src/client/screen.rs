//! Standard error: where everything is said that is not the result, and where progress is drawn on a terminal.

use super::text::one_line;
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::{Mutex, MutexGuard};
use refrain_client::Progress;
use std::io::{self, IsTerminal, Write, stderr};

/// How fine the bar is.
const STEPS: u64 = 1000;

/// The most texts that are held back.
const MAX_HELD: usize = 1000;

/// There is one standard error, and all that is said shares it.
static SHOWN: Mutex<Shown> = Mutex::new(Shown {
    bar: None,
    holders: 0,
    held: Vec::new(),
});

/// Standard error.
#[derive(Clone)]
pub(super) struct Screen {
    draws: bool,
}

/// What is drawn, and what is held back while a person is asked.
struct Shown {
    bar: Option<ProgressBar>,
    holders: usize,
    held: Vec<String>,
}

/// Somebody who uses the terminal for something else, until it is dropped.
pub(super) struct Hold(());

/// Lines of the log: like all else, they are held back while a person is asked.
pub(crate) struct LogLines;

impl Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        say(text.strip_suffix('\n').unwrap_or(&text));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Screen {
    /// Progress is drawn on a terminal, unless a machine reads the result.
    pub(super) fn new(json: bool) -> Self {
        Self {
            draws: !json && stderr().is_terminal(),
        }
    }

    /// Whether progress is shown at all.
    pub(super) fn draws(&self) -> bool {
        self.draws
    }

    /// Writes lines. They may be coloured, which is for terminals only.
    pub(super) fn say(&self, text: &str) {
        say(text);
    }

    /// Leaves the terminal to somebody else. What is said until then is written afterwards.
    pub(super) fn hold(&self) -> Hold {
        self.clear();
        shown().holders += 1;
        Hold(())
    }

    /// Shows how far a call is.
    pub(super) fn progress(&self, progress: &Progress) {
        if !self.draws {
            return;
        }
        let mut shown = shown();
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
        if let Some(bar) = shown().bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn say(text: &str) {
    let mut shown = shown();
    match &shown.bar {
        _ if shown.holders > 0 => {
            if shown.held.len() < MAX_HELD {
                shown.held.push(text.to_owned());
            }
        }
        Some(bar) => bar.suspend(|| write(text)),
        None => write(text),
    }
}

/// Nobody is left to be told if it cannot be written.
fn write(text: &str) {
    let _ = writeln!(anstream::stderr(), "{text}");
}

fn shown() -> MutexGuard<'static, Shown> {
    SHOWN.lock()
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut shown = shown();
        shown.holders -= 1;
        if shown.holders == 0 {
            for text in shown.held.drain(..) {
                write(&text);
            }
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
