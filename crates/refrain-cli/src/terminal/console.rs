//! The operations of a terminal: lists, check boxes and text input.
//!
//! | console | terminal |
//! | --- | --- |
//! | interactive | can move its cursor: prompts are redrawn |
//! | plain | cannot (`TERM=dumb`): everything is a line, printed or read |

use super::display_text::StyledLine;
use super::interactive::InteractiveConsole;
use super::plain::PlainConsole;
use crate::exact_number::InexactNumber;
use refrain_client::wire::FieldError;
use rustix::termios::{QueueSelector, tcflush};
use std::io::{self, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a prompt checks whether its answer is still needed.
pub(super) const POLL: Duration = Duration::from_millis(100);

/// Why a prompt has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum PromptError {
    #[error("declined")]
    Declined,
    #[error("cancelled")]
    Cancelled,
    #[error("interrupted")]
    Interrupted,
    #[error("the answer is no longer needed")]
    Withdrawn,
    #[error("cannot use the terminal: {0}")]
    Failed(#[from] io::Error),
}

#[derive(Debug, Clone)]
pub(super) struct InputPrompt {
    pub(super) label: String,
    pub(super) hint: String,
    pub(super) source: PromptSource,
    pub(super) is_multiline: bool,
}

/// Who asks, which determines how the user can leave the prompt.
#[derive(Debug, Clone)]
pub(super) enum PromptSource {
    /// The server at this address: its ask can be declined or cancelled.
    Server(String),
    /// This program, for the arguments of a call to the server at this address: the user can go back to the menu.
    Arguments(String),
    /// This program, for its menu.
    Menu,
}

impl PromptSource {
    pub(super) fn address(&self) -> &str {
        match self {
            Self::Server(address) | Self::Arguments(address) => address,
            Self::Menu => "",
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidInput {
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error(transparent)]
    InexactNumber(#[from] InexactNumber),
    #[error("must be a whole number, as in 42")]
    NotWhole,
    #[error("must be a number, as in 1.5")]
    NotANumber,
    #[error("must be a number from 1 to {0}")]
    NotAChoice(usize),
    #[error("must not be empty")]
    Empty,
    #[error("is required; type \"\" to send an empty text")]
    EmptyText,
    #[error("must be a JSON object: {0}")]
    NotAnObject(serde_json::Error),
}

pub(super) type Validate<'a, T> = &'a dyn Fn(&T) -> Result<(), InvalidInput>;

/// A terminal. [`PromptSource`] says how each prompt can be left.
pub(super) trait Console {
    fn columns(&self) -> usize;

    fn say(&mut self, line: &StyledLine) -> io::Result<()>;

    /// Selects one of several choices, with `start` preselected. Without `start`, the user must move to a choice first, so
    /// that a stray key cannot agree.
    fn choose(
        &mut self,
        prompt: &InputPrompt,
        choices: &[String],
        start: Option<usize>,
    ) -> Result<usize, PromptError>;

    /// Selects any number of choices, with those in `start` preselected.
    fn choose_many(
        &mut self,
        prompt: &InputPrompt,
        choices: &[String],
        start: &[bool],
        validate: Validate<'_, [bool]>,
    ) -> Result<Vec<bool>, PromptError>;

    /// Reads a text, with `start` as its initial value.
    fn read_text(
        &mut self,
        prompt: &InputPrompt,
        start: &str,
        validate: Validate<'_, str>,
    ) -> Result<String, PromptError>;
}

pub(super) fn check_boxes(choices: &[String], ticked: &[bool]) -> Vec<String> {
    let boxed = |(choice, ticked): (&String, &bool)| {
        let cross = if *ticked { 'x' } else { ' ' };
        format!("[{cross}] {choice}")
    };
    choices.iter().zip(ticked).map(boxed).collect()
}

pub(super) fn flush_input() -> io::Result<()> {
    Ok(tcflush(stdin(), QueueSelector::IFlush)?)
}

/// A flag that is set when the answer to a prompt is no longer needed.
#[derive(Debug, Clone, Default)]
pub(super) struct Withdrawal(Arc<AtomicBool>);

impl Withdrawal {
    pub(super) fn withdraw(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(super) fn check(&self) -> Result<(), PromptError> {
        match self.0.load(Ordering::Acquire) {
            true => Err(PromptError::Withdrawn),
            false => Ok(()),
        }
    }
}

/// Opens the console of this process, and discards earlier input.
pub(super) fn open(withdrawn: Withdrawal) -> Result<Box<dyn Console>, PromptError> {
    let can_draw = match std::env::var_os("TERM") {
        Some(term) => term != "dumb" && !term.is_empty(),
        None => cfg!(windows),
    };
    Ok(if can_draw {
        Box::new(InteractiveConsole::open(withdrawn)?)
    } else {
        Box::new(PlainConsole::open(withdrawn)?)
    })
}
