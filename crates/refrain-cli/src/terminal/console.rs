//! Where a person is asked: lists, boxes to tick and lines to write, in one of two ways.
//!
//! | console | when |
//! | --- | --- |
//! | live | the terminal can move its cursor: prompts are drawn and drawn again |
//! | plain | it cannot (`TERM=dumb`): everything is a line, printed or read |

use super::live::Live;
use super::plain::Plain;
use super::text::Line;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a person gave no answer.
#[derive(Debug)]
pub(super) enum Left {
    /// They said no.
    Declined,
    /// They turned away from what was asked.
    Cancelled,
    /// They interrupted the whole call.
    Interrupted,
    /// Nobody waits for the answer any more.
    Withdrawn,
    /// The terminal failed.
    Failed(io::Error),
}

impl From<io::Error> for Left {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// What stands above and below a prompt.
#[derive(Debug, Clone)]
pub(super) struct Question {
    /// What is asked for.
    pub(super) label: String,
    /// What can be answered.
    pub(super) hint: String,
    /// Who asks.
    pub(super) asker: String,
    /// Whether a text may have several lines.
    pub(super) takes_lines: bool,
}

/// What is wrong with what was written or ticked.
pub(super) type Check<'a, T> = &'a dyn Fn(&T) -> Result<(), String>;

/// A terminal with a person at it. Every prompt can be left.
pub(super) trait Console {
    /// The columns there are.
    fn columns(&self) -> usize;

    /// Prints a line that stays.
    fn say(&mut self, line: &Line) -> io::Result<()>;

    /// One of several choices, the one at `start` proposed.
    fn choose(
        &mut self,
        question: &Question,
        choices: &[String],
        start: usize,
    ) -> Result<usize, Left>;

    /// Any number of several choices, some of them ticked beforehand.
    fn tick(
        &mut self,
        question: &Question,
        choices: &[String],
        start: &[bool],
        check: Check<'_, [bool]>,
    ) -> Result<Vec<bool>, Left>;

    /// A text, with something there beforehand.
    fn write(
        &mut self,
        question: &Question,
        start: &str,
        check: Check<'_, str>,
    ) -> Result<String, Left>;
}

/// Tells the one who prompts that nobody waits any more.
#[derive(Debug, Clone, Default)]
pub(super) struct Withdrawn(Arc<AtomicBool>);

impl Withdrawn {
    pub(super) fn withdraw(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(super) fn check(&self) -> Result<(), Left> {
        match self.0.load(Ordering::Acquire) {
            true => Err(Left::Withdrawn),
            false => Ok(()),
        }
    }
}

/// The console of this process.
pub(super) fn open(withdrawn: Withdrawn) -> io::Result<Box<dyn Console>> {
    let can_draw = match std::env::var_os("TERM") {
        Some(term) => term != "dumb" && !term.is_empty(),
        None => cfg!(windows),
    };
    Ok(if can_draw {
        Box::new(Live::open(withdrawn)?)
    } else {
        Box::new(Plain::open(withdrawn))
    })
}
