//! Standard error: messages, log lines and the progress bar. Standard output has only the result.

use super::sanitize::one_line;
use crate::style::{DIM, WARNING};
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use refrain_client::{Progress, Task};
use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The length of the progress bar.
const STEPS: u64 = 1000;
/// The time between two frames of the spinner.
const TICK: Duration = Duration::from_millis(100);
/// The maximum number of characters of a task's status message.
const MESSAGE_MAX: usize = 300;
/// After this many lines about a task, there is at most one per interval.
const LINES_MAX: u32 = 100;
const LINE_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of texts held back. Further ones are dropped.
const MAX_HELD: usize = 1000;
/// The number of lines of a server process that are kept for an error.
const MAX_SERVER_LINES: usize = 20;

static STDERR: Mutex<Stderr> = Mutex::new(Stderr {
    bar: None,
    task: None,
    holders: 0,
    held: Vec::new(),
});

/// Notified when a text is held back.
static HELD: Notify = Notify::const_new();

/// The last lines of the standard error of a server process.
static SERVER_LINES: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// The progress bar, and the texts held back while a prompt is shown.
struct Stderr {
    bar: Option<ProgressBar>,
    task: Option<ShownTask>,
    holders: usize,
    held: Vec<String>,
}

/// The task that the command waits for.
struct ShownTask {
    id: String,
    since: Instant,
    /// The last printed line about the task.
    line: String,
    /// The number of printed lines.
    lines: u32,
    /// The time of the last printed line.
    written: Instant,
}

/// Reserves the terminal until it is dropped. Texts are held back and printed afterwards.
pub(super) struct StderrHold(());

pub(crate) struct LogLines;

impl Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        print(text.strip_suffix('\n').unwrap_or(&text));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Prints lines; colours are removed unless they go to a terminal.
pub(crate) fn print(text: &str) {
    let mut state = STDERR.lock();
    match &state.bar {
        _ if state.holders > 0 => {
            if state.held.len() < MAX_HELD {
                state.held.push(text.to_owned());
            }
            HELD.notify_one();
        }
        Some(bar) => bar.suspend(|| write(text)),
        None => write(text),
    }
}

pub(super) fn warn(text: &str) {
    print(&format!("{WARNING}warning:{WARNING:#} {}", one_line(text)));
}

pub(super) fn note(text: &str) {
    print(&format!("{DIM}note:{DIM:#} {}", one_line(text)));
}

/// Keeps a line of the server's standard error, for the error of the command.
pub(super) fn record_server_line(line: &str) {
    let mut lines = SERVER_LINES.lock();
    if lines.len() == MAX_SERVER_LINES {
        lines.pop_front();
    }
    lines.push_back(line.to_owned());
}

/// The last lines of the server's standard error.
pub(super) fn server_lines() -> Vec<String> {
    SERVER_LINES.lock().iter().cloned().collect()
}

pub(super) fn progress(progress: &Progress) {
    let mut state = STDERR.lock();
    if state.holders > 0 {
        return;
    }
    let bar = state.bar.get_or_insert_with(|| ProgressBar::new(STEPS));
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

/// Shows the state of the task that the command waits for: on a terminal its id, then a spinner with its status and the time
/// so far; otherwise a line for each change, and after the first [`LINES_MAX`] at most one per [`LINE_INTERVAL`].
pub(super) fn task(task: &Task) {
    let state = &mut *STDERR.lock();
    if task.status.is_over() || state.holders > 0 {
        return;
    }
    let (id, status) = (one_line(&task.id), task.status.as_str());
    let message = one_line(task.message.as_deref().unwrap_or_default());
    let message: String = message.chars().take(MESSAGE_MAX).collect();
    let is_terminal = io::stderr().is_terminal();
    let separator = if message.is_empty() { "" } else { ": " };
    let line = match is_terminal {
        true => format!("{DIM}task {id}{DIM:#}"),
        false => format!("task {id} {status}{separator}{message}"),
    };
    if state.task.as_ref().is_some_and(|shown| shown.id != id) {
        state.task = None;
    }
    let shown = state.task.get_or_insert_with(|| ShownTask {
        id: id.clone(),
        since: Instant::now(),
        line: String::new(),
        lines: 0,
        written: Instant::now(),
    });
    let since = shown.since;
    let is_due = shown.lines < LINES_MAX || shown.written.elapsed() >= LINE_INTERVAL;
    if shown.line != line && is_due {
        match &state.bar {
            Some(bar) => bar.suspend(|| write(&line)),
            None => write(&line),
        }
        shown.line = line;
        shown.lines += 1;
        shown.written = Instant::now();
    }
    if !is_terminal {
        return;
    }
    let bar = state.bar.get_or_insert_with(|| {
        let bar = ProgressBar::new_spinner().with_elapsed(since.elapsed());
        bar.enable_steady_tick(TICK);
        bar
    });
    bar.set_style(style("{spinner:.green} {prefix}  {elapsed}  {wide_msg}"));
    bar.set_prefix(status);
    bar.set_message(message);
}

/// Removes the progress bar until the next progress.
pub(super) fn clear() {
    if let Some(bar) = STDERR.lock().bar.take() {
        bar.finish_and_clear();
    }
}

/// Waits until a text is held back.
pub(super) async fn held() {
    HELD.notified().await;
}

pub(super) fn hold() -> StderrHold {
    clear();
    STDERR.lock().holders += 1;
    StderrHold(())
}

impl Drop for StderrHold {
    fn drop(&mut self) {
        let mut state = STDERR.lock();
        state.holders -= 1;
        if state.holders == 0 {
            state.held.drain(..).for_each(|text| write(&text));
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
