//! The server that asks: its introduction, its quoted text, and menus.

use super::console::{Console, InputPrompt, PromptError, PromptSource};
use super::display_text::{StyledLine, one_line, sanitize, truncate, width, wrapped};
use crate::style::{BOLD, DIM};
use anstyle::Style;
use refrain_client::Asker;
use refrain_client::wire::CallKind;
use std::io;
use std::sync::Arc;

/// The start of every line of server text, so that it cannot pass for text of this program.
const BAR: &str = "  │ ";

const INDENT: &str = "      ";

/// The maximum width of a name that a server chose.
const MAX_NAME: usize = 60;

pub(super) fn introduce(console: &mut dyn Console, asker: &Asker, what: &str) -> io::Result<()> {
    let kind = match asker.kind {
        CallKind::Tool => "tool",
        CallKind::Prompt => "prompt",
        CallKind::Resource => "resource",
    };
    say_hanging(console, "The server at ", BOLD, &one_line(&asker.address))?;
    if let Some(name) = &asker.server {
        let name = truncate(&one_line(name), MAX_NAME);
        say_hanging(console, "  which calls itself ", DIM, &name)?;
    }
    let before = format!("{what}, for the {kind} ");
    let target = truncate(&one_line(&asker.target), MAX_NAME);
    say_hanging(console, &before, BOLD, &format!("{target}:"))
}

pub(super) fn quote(console: &mut dyn Console, text: &str) -> io::Result<()> {
    let columns = available_columns(console, BAR);
    for line in wrapped(&sanitize(text), columns) {
        console.say(&StyledLine::styled(DIM, BAR).then(Style::new(), line))?;
    }
    Ok(())
}

/// Prints a label and a text. Further lines are indented, so that they cannot pass for text of this program.
pub(super) fn say_hanging(
    console: &mut dyn Console,
    before: &str,
    style: Style,
    text: &str,
) -> io::Result<()> {
    let is_short = width(before) + width(text) < console.columns();
    let mut lines = if is_short {
        vec![text.to_owned()]
    } else {
        let mut lines = wrapped(text, available_columns(console, INDENT));
        lines.insert(0, String::new());
        lines
    };
    console.say(&StyledLine::plain(before).then(style, lines.remove(0)))?;
    for line in lines {
        console.say(&StyledLine::plain(INDENT).then(style, line))?;
    }
    Ok(())
}

fn available_columns(console: &dyn Console, before: &str) -> usize {
    console.columns().saturating_sub(width(before) + 1)
}

impl From<&Arc<Asker>> for PromptSource {
    fn from(asker: &Arc<Asker>) -> Self {
        Self::Server(one_line(&asker.address))
    }
}

pub(super) fn prompt(
    source: impl Into<PromptSource>,
    label: &str,
    hint: impl Into<String>,
) -> InputPrompt {
    InputPrompt {
        label: one_line(label),
        hint: hint.into(),
        source: source.into(),
        is_multiline: false,
    }
}

/// Shows a menu of these choices, plus those to leave the prompt. Returns the index of the choice; leaving is an error.
pub(super) fn decide(
    console: &mut dyn Console,
    source: impl Into<PromptSource>,
    label: &str,
    choices: &[&str],
    start: Option<usize>,
) -> Result<usize, PromptError> {
    let prompt = prompt(source, label, "");
    let leaving: &[&str] = match prompt.source {
        PromptSource::Server(_) => &[DECLINE, CANCEL],
        PromptSource::Arguments(_) => &[BACK],
        PromptSource::Menu => &[],
    };
    let all = [choices, leaving].concat();
    let labels: Vec<String> = all.iter().map(|&choice| choice.to_owned()).collect();
    match console.choose(&prompt, &labels, start)? {
        at if at < choices.len() => Ok(at),
        at if all[at] == DECLINE => Err(PromptError::Declined),
        _ => Err(PromptError::Cancelled),
    }
}

pub(super) const SEND: &str = "Send";
pub(super) const CHANGE: &str = "Change";
pub(super) const DECLINE: &str = "Decline: answer no";
pub(super) const CANCEL: &str = "Cancel: close without an answer";
const BACK: &str = "Back to the menu";
