//! Operations of a terminal: lists, boxes to tick and lines to write, in one of two ways.
//!
//! | console | when |
//! | --- | --- |
//! | live | the terminal can move its cursor: prompts are drawn and drawn again |
//! | plain | it cannot (`TERM=dumb`): everything is a line, printed or read |

use super::live::Live;
use super::plain::Plain;
use super::text::Line;
use crate::number::Inexact;
use refrain_client::wire::FieldError;
use rustix::termios::{QueueSelector, tcflush};
use std::io::{self, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a prompt checks whether its answer is still awaited.
pub(super) const POLL: Duration = Duration::from_millis(100);

/// Why a person gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Left {
    #[error("it was declined")]
    Declined,
    #[error("it was cancelled")]
    Cancelled,
    #[error("it was interrupted")]
    Interrupted,
    /// The answer is not awaited any more.
    #[error("nobody waits for the answer any more")]
    Withdrawn,
    #[error("the terminal cannot be used: {0}")]
    Failed(#[from] io::Error),
}

#[derive(Debug, Clone)]
pub(super) struct Question {
    pub(super) label: String,
    /// What can be answered.
    pub(super) hint: String,
    /// The address of the server.
    pub(super) asker: String,
    /// Whether a text may have several lines.
    pub(super) takes_lines: bool,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Invalid {
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error(transparent)]
    Inexact(#[from] Inexact),
    #[error("must be a whole number, as in 42")]
    NotWhole,
    #[error("must be a number, as in 1.5")]
    NotANumber,
    #[error("must be a number from 1 to {0}")]
    NotAChoice(usize),
    #[error("is empty")]
    Empty,
}

pub(super) type Check<'a, T> = &'a dyn Fn(&T) -> Result<(), Invalid>;

/// A terminal. Every prompt can be left.
pub(super) trait Console {
    fn columns(&self) -> usize;

    fn say(&mut self, line: &Line) -> io::Result<()>;

    /// One of several choices, the one at `start` proposed. Without it, the person must move to a choice first, so that
    /// one key too many does not agree to anything.
    fn choose(
        &mut self,
        question: &Question,
        choices: &[String],
        start: Option<usize>,
    ) -> Result<usize, Left>;

    /// Any number of several choices, those at `start` ticked.
    fn tick(
        &mut self,
        question: &Question,
        choices: &[String],
        start: &[bool],
        check: Check<'_, [bool]>,
    ) -> Result<Vec<bool>, Left>;

    /// A text that begins as `start`.
    fn write(
        &mut self,
        question: &Question,
        start: &str,
        check: Check<'_, str>,
    ) -> Result<String, Left>;
}

/// One label with a box for each choice.
pub(super) fn boxes(choices: &[String], ticked: &[bool]) -> Vec<String> {
    let boxed = |(choice, ticked): (&String, &bool)| {
        let cross = if *ticked { 'x' } else { ' ' };
        format!("[{cross}] {choice}")
    };
    choices.iter().zip(ticked).map(boxed).collect()
}

/// Drops what was typed and not read.
pub(super) fn forget_typed() -> io::Result<()> {
    Ok(tcflush(stdin(), QueueSelector::IFlush)?)
}

/// A flag that an answer is not awaited any more.
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

/// The console of this process. Input that was typed before it is opened is dropped.
pub(super) fn open(withdrawn: Withdrawn) -> Result<Box<dyn Console>, Left> {
    let can_draw = match std::env::var_os("TERM") {
        Some(term) => term != "dumb" && !term.is_empty(),
        None => cfg!(windows),
    };
    Ok(if can_draw {
        Box::new(Live::open(withdrawn)?)
    } else {
        Box::new(Plain::open(withdrawn)?)
    })
}
