//! Standard error: everything but the result, and the progress bar of a terminal.

use super::text::one_line;
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use refrain_client::Progress;
use std::io::{self, Write};

const STEPS: u64 = 1000;

const MAX_HELD: usize = 1000;

static SCREEN: Mutex<Screen> = Mutex::new(Screen {
    bar: None,
    holders: 0,
    held: Vec::new(),
});

/// The progress bar, and the texts that are held back while a person is asked.
struct Screen {
    bar: Option<ProgressBar>,
    holders: usize,
    held: Vec<String>,
}

/// Reserves the terminal until it is dropped. Texts are written afterwards.
pub(super) struct Hold(());

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

/// Writes lines. Their colours are for terminals only.
pub(super) fn say(text: &str) {
    let mut screen = SCREEN.lock();
    match &screen.bar {
        _ if screen.holders > 0 => {
            if screen.held.len() < MAX_HELD {
                screen.held.push(text.to_owned());
            }
        }
        Some(bar) => bar.suspend(|| write(text)),
        None => write(text),
    }
}

/// Writes a warning on one line.
pub(super) fn warn(text: &str) {
    say(&format!("refrain: {}", one_line(text)));
}

pub(super) fn progress(progress: &Progress) {
    let mut screen = SCREEN.lock();
    if screen.holders > 0 {
        return;
    }
    let bar = screen.bar.get_or_insert_with(|| ProgressBar::new(STEPS));
    let message = one_line(progress.message.as_deref().unwrap_or_default());
    let done = progress.progress;
    match progress.total.filter(|total| *total > 0.0) {
        Some(total) => {
            let part = (done / total).clamp(0.0, 1.0);
            bar.set_style(style("{bar:30.green} {msg}"));
            bar.set_message(format!("{done} of {total}  {message}"));
            bar.set_position((part * STEPS as f64) as u64);
        }
        None => {
            bar.set_style(style("{spinner:.green} {msg}"));
            bar.set_message(format!("{done}  {message}"));
            bar.tick();
        }
    }
}

/// Removes the bar until the next progress.
pub(super) fn clear() {
    if let Some(bar) = SCREEN.lock().bar.take() {
        bar.finish_and_clear();
    }
}

pub(super) fn hold() -> Hold {
    clear();
    SCREEN.lock().holders += 1;
    Hold(())
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut screen = SCREEN.lock();
        screen.holders -= 1;
        if screen.holders == 0 {
            screen.held.drain(..).for_each(|text| write(&text));
        }
    }
}

fn write(text: &str) {
    // Standard error may be closed.
    let _ = writeln!(anstream::stderr(), "{text}");
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
