//! Who asks, and what they say.

use super::console::{Console, Question};
use super::style::{DIM, STRONG};
use super::text::{Line, clipped, harmless, one_line, width, wrapped};
use anstyle::Style;
use refrain_client::Asker;
use refrain_client::wire::CallKind;
use std::io;

/// What stands before every line that a server wrote, so that none can pass for one of ours.
const BAR: &str = "  │ ";

/// What stands before the rest of a text that takes more than one line.
const INDENT: &str = "      ";

/// The most columns of a name that a server chose.
const MAX_NAME: usize = 60;

/// Says who asks, and for which call.
pub(super) fn introduce(console: &mut dyn Console, asker: &Asker, what: &str) -> io::Result<()> {
    let kind = match asker.kind {
        CallKind::Tool => "tool",
        CallKind::Prompt => "prompt",
        CallKind::Resource => "resource",
    };
    hanging(console, "The server at ", STRONG, &address(asker))?;
    if let Some(name) = &asker.server {
        let name = clipped(&one_line(name), MAX_NAME);
        hanging(console, "  which calls itself ", DIM, &name)?;
    }
    let before = format!("{what}, for the {kind} ");
    let target = clipped(&one_line(&asker.target), MAX_NAME);
    hanging(console, &before, STRONG, &format!("{target}:"))
}

/// Says what a server says.
pub(super) fn quote(console: &mut dyn Console, text: &str) -> io::Result<()> {
    let columns = room(console, BAR);
    for line in wrapped(&harmless(text), columns) {
        console.say(&Line::styled(DIM, BAR).then(Style::new(), line))?;
    }
    Ok(())
}

/// Says something after words of ours. What has no room goes on further in, so that it cannot pass for a line of ours.
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

/// The columns that are left after these.
fn room(console: &dyn Console, before: &str) -> usize {
    console.columns().saturating_sub(width(before) + 1)
}

/// Where the server is.
pub(super) fn address(asker: &Asker) -> String {
    one_line(&asker.address)
}

/// A question on behalf of a server.
pub(super) fn question(asker: &Asker, label: &str, hint: impl Into<String>) -> Question {
    Question {
        label: one_line(label),
        hint: hint.into(),
        asker: address(asker),
        takes_lines: false,
    }
}

/// What a person can do with what they filled in.
pub(super) const SEND: &str = "Send";
pub(super) const CHANGE: &str = "Change";
pub(super) const DECLINE: &str = "Decline: say no";
pub(super) const CANCEL: &str = "Cancel: turn away without a yes or no";
