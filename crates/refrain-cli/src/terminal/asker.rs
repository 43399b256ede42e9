//! The server that asks: its introduction, its quoted text, and the menus with its name.

use super::console::{Console, Left, Question};
use super::text::{Line, clipped, harmless, one_line, width, wrapped};
use crate::style::{BOLD, DIM};
use anstyle::Style;
use refrain_client::Asker;
use refrain_client::wire::CallKind;
use std::io;

/// The start of every line that a server wrote, so that none can pass for one of ours.
const BAR: &str = "  │ ";

const INDENT: &str = "      ";

/// The most columns of a name that a server chose.
const MAX_NAME: usize = 60;

/// Introduces the server, and the call that it asks for.
pub(super) fn introduce(console: &mut dyn Console, asker: &Asker, what: &str) -> io::Result<()> {
    let kind = match asker.kind {
        CallKind::Tool => "tool",
        CallKind::Prompt => "prompt",
        CallKind::Resource => "resource",
    };
    hanging(console, "The server at ", BOLD, &address(asker))?;
    if let Some(name) = &asker.server {
        let name = clipped(&one_line(name), MAX_NAME);
        hanging(console, "  which calls itself ", DIM, &name)?;
    }
    let before = format!("{what}, for the {kind} ");
    let target = clipped(&one_line(&asker.target), MAX_NAME);
    hanging(console, &before, BOLD, &format!("{target}:"))
}

pub(super) fn quote(console: &mut dyn Console, text: &str) -> io::Result<()> {
    let columns = room(console, BAR);
    for line in wrapped(&harmless(text), columns) {
        console.say(&Line::styled(DIM, BAR).then(Style::new(), line))?;
    }
    Ok(())
}

/// Prints text after words of ours. Further lines are indented, so that they cannot pass for lines of ours.
pub(super) fn hanging(
    console: &mut dyn Console,
    before: &str,
    style: Style,
    text: &str,
) -> io::Result<()> {
    let is_short = width(before) + width(text) < console.columns();
    let mut lines = if is_short {
        vec![text.to_owned()]
    } else {
        let mut lines = wrapped(text, room(console, INDENT));
        lines.insert(0, String::new());
        lines
    };
    console.say(&Line::plain(before).then(style, lines.remove(0)))?;
    for line in lines {
        console.say(&Line::plain(INDENT).then(style, line))?;
    }
    Ok(())
}

fn room(console: &dyn Console, before: &str) -> usize {
    console.columns().saturating_sub(width(before) + 1)
}

pub(super) fn address(asker: &Asker) -> String {
    one_line(&asker.address)
}

pub(super) fn question(asker: &Asker, label: &str, hint: impl Into<String>) -> Question {
    Question {
        label: one_line(label),
        hint: hint.into(),
        asker: address(asker),
        takes_lines: false,
    }
}

/// A menu of these choices, and of declining and cancelling. Returns the place of the choice.
pub(super) fn decide(
    console: &mut dyn Console,
    asker: &Asker,
    label: &str,
    choices: &[&str],
    start: Option<usize>,
) -> Result<usize, Left> {
    let all: Vec<String> = [choices, &[DECLINE, CANCEL]]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .collect();
    match console.choose(&question(asker, label, ""), &all, start)? {
        at if at < choices.len() => Ok(at),
        at if at == choices.len() => Err(Left::Declined),
        _ => Err(Left::Cancelled),
    }
}

pub(super) const SEND: &str = "Send";
pub(super) const CHANGE: &str = "Change";
pub(super) const DECLINE: &str = "Decline: say no";
pub(super) const CANCEL: &str = "Cancel: turn away without a yes or no";
