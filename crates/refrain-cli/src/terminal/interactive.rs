//! A console that redraws its prompts when a key is pressed or the terminal is resized.
//!
//! Dropping an `InteractiveConsole` restores the terminal.

mod frame;
mod line_editor;

use super::asker::{CANCEL, DECLINE};
use super::console::{
    Console, InputPrompt, POLL, PromptError, PromptSource, Validate, Withdrawal, check_boxes,
    flush_input,
};
use super::display_text::{StyledLine, truncate, wrapped};
use crate::style::{BOLD, DIM, INVALID, MARK};
use anstream::{AutoStream, ColorChoice};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::{cursor, execute, terminal};
use frame::Frame;
use line_editor::LineEditor;
use std::io::{self, Write, stderr};
use std::ops::Range;
use std::time::Duration;

/// The maximum number of events that are dropped when a console is opened.
const MAX_DROPPED_EVENTS: usize = 10_000;

/// The maximum number of lines of a prompt's label.
const MAX_LABEL_LINES: usize = 3;

/// The maximum number of lines of a server's address.
const MAX_ADDRESS_LINES: usize = 3;

pub(super) struct InteractiveConsole {
    frame: Frame,
    with_styles: bool,
    withdrawn: Withdrawal,
    _raw: RawMode,
}

struct RawMode;

impl RawMode {
    fn enter() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        // Dropping this restores the mode, also if the next step fails.
        let raw = Self;
        execute!(stderr(), event::EnableBracketedPaste)?;
        Ok(raw)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // The terminal may be closed.
        let _ = execute!(stderr(), event::DisableBracketedPaste, cursor::Show);
        let _ = terminal::disable_raw_mode();
    }
}

enum InputEvent {
    Key(KeyCode, KeyModifiers),
    Paste(String),
    Resize,
}

impl InteractiveConsole {
    pub(super) fn open(withdrawn: Withdrawal) -> Result<Self, PromptError> {
        let console = Self {
            frame: Frame::default(),
            with_styles: AutoStream::choice(&stderr()) != ColorChoice::Never,
            withdrawn,
            _raw: RawMode::enter()?,
        };
        flush_input()?;
        // Drop earlier keys, so that they answer nothing. Ctrl-C among them still interrupts.
        for _ in 0..MAX_DROPPED_EVENTS {
            if !event::poll(Duration::ZERO)? {
                break;
            }
            read()?;
        }
        Ok(console)
    }

    fn size() -> (usize, usize) {
        match terminal::size() {
            Ok((columns, rows)) if columns > 0 && rows > 0 => (columns.into(), rows.into()),
            _ => (80, 24),
        }
    }

    /// Draws a prompt: head, body and foot. The cursor is in the body, or hidden.
    fn draw(
        &mut self,
        prompt: &InputPrompt,
        keys: &str,
        error: Option<&str>,
        body: impl FnOnce(usize, usize) -> (Vec<StyledLine>, Option<(usize, usize)>),
    ) -> io::Result<()> {
        let (columns, rows) = Self::size();
        // A line that fills the last column may or may not wrap.
        let columns = columns.saturating_sub(1);
        let mut lines = label_lines(prompt, columns);
        let mut foot: Vec<StyledLine> = error
            .map(|why| wrapped(why, columns.saturating_sub(4)))
            .unwrap_or_default()
            .into_iter()
            .map(|line| StyledLine::styled(INVALID, format!("  ! {line}")))
            .collect();
        foot.extend(address_lines(prompt, columns));
        let escape = match prompt.source {
            PromptSource::Server(_) => "esc: decline or cancel · ",
            PromptSource::Arguments(_) => "esc: back to the menu · ",
            PromptSource::Menu => "",
        };
        let help = format!("  {escape}{keys}");
        foot.push(StyledLine::styled(DIM, truncate(&help, columns)));
        let room = rows.saturating_sub(lines.len() + foot.len()).max(1);
        let (body, cursor) = body(columns, room);
        let cursor = cursor.map(|(row, column)| (row + lines.len(), column));
        lines.extend(body);
        lines.extend(foot);
        let drawn = self
            .frame
            .draw((columns + 1, rows), &lines, cursor, self.with_styles);
        self.print(&drawn)
    }

    /// Writes everything at once, to avoid flicker.
    fn print(&self, text: &str) -> io::Result<()> {
        let mut out = stderr().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    fn next_event(&self) -> Result<InputEvent, PromptError> {
        loop {
            self.withdrawn.check()?;
            if event::poll(POLL)?
                && let Some(event) = read()?
            {
                return Ok(event);
            }
        }
    }

    /// Draws a list until a key is pressed, and returns the key.
    fn list(
        &mut self,
        prompt: &InputPrompt,
        keys: &str,
        error: Option<&str>,
        labels: &[String],
        at: Option<usize>,
    ) -> Result<KeyCode, PromptError> {
        loop {
            self.draw(prompt, keys, error, |columns, room| {
                let line = |i: usize| {
                    let text = truncate(&labels[i], columns.saturating_sub(4));
                    if Some(i) == at {
                        StyledLine::styled(MARK, format!("  > {text}"))
                    } else {
                        StyledLine::plain(format!("    {text}"))
                    }
                };
                (
                    list_lines(labels.len(), at.unwrap_or_default(), room, line),
                    None,
                )
            })?;
            if let InputEvent::Key(code, _) = self.next_event()? {
                return Ok(code);
            }
        }
    }

    /// Lets the user select a choice. `None` if the escape key was pressed.
    fn select(
        &mut self,
        prompt: &InputPrompt,
        choices: &[String],
        at: &mut Option<usize>,
    ) -> Result<Option<usize>, PromptError> {
        let mut typed = String::new();
        loop {
            let keys = match at {
                Some(_) => "enter: choose",
                None => "up, down: move to a choice",
            };
            match (self.list(prompt, keys, None, choices, *at)?, *at) {
                (KeyCode::Enter, Some(chosen)) => return Ok(Some(chosen)),
                (KeyCode::Esc, _) => return Ok(None),
                (code, _) => move_selection(code, at, choices, &mut typed),
            }
        }
    }

    /// Leaves a prompt of this program, or asks whether to decline or cancel. Returns if the user continues.
    fn leave(&mut self, prompt: &InputPrompt) -> Result<(), PromptError> {
        match prompt.source {
            PromptSource::Server(_) => {}
            PromptSource::Arguments(_) => return Err(PromptError::Cancelled),
            PromptSource::Menu => return Ok(()),
        }
        let menu = InputPrompt {
            label: format!("Leave this question? ({})", prompt.label),
            hint: String::new(),
            ..prompt.clone()
        };
        let choices = ["Continue answering", DECLINE, CANCEL].map(str::to_owned);
        match self.select(&menu, &choices, &mut Some(0))? {
            Some(1) => Err(PromptError::Declined),
            Some(2) => Err(PromptError::Cancelled),
            _ => Ok(()),
        }
    }
}

impl Console for InteractiveConsole {
    fn columns(&self) -> usize {
        Self::size().0
    }

    fn say(&mut self, line: &StyledLine) -> io::Result<()> {
        if self.frame.is_drawn() {
            let erased = self.frame.erase(Self::size().0);
            self.print(&erased)?;
        }
        self.print(&format!("{}\r\n", line.paint(self.with_styles)))
    }

    fn choose(
        &mut self,
        prompt: &InputPrompt,
        choices: &[String],
        start: Option<usize>,
    ) -> Result<usize, PromptError> {
        let mut at = start.map(|start| start.min(choices.len().saturating_sub(1)));
        loop {
            match self.select(prompt, choices, &mut at)? {
                Some(chosen) => return Ok(chosen),
                None => self.leave(prompt)?,
            }
        }
    }

    fn choose_many(
        &mut self,
        prompt: &InputPrompt,
        choices: &[String],
        start: &[bool],
        validate: Validate<'_, [bool]>,
    ) -> Result<Vec<bool>, PromptError> {
        let (mut at, mut typed, mut error) = (Some(0), String::new(), None);
        let mut ticked = start.to_vec();
        loop {
            let keys = "space: tick · enter: done";
            let labels = check_boxes(choices, &ticked);
            match self.list(prompt, keys, error.as_deref(), &labels, at)? {
                KeyCode::Enter => match validate(&ticked) {
                    Ok(()) => return Ok(ticked),
                    Err(why) => error = Some(why.to_string()),
                },
                KeyCode::Esc => self.leave(prompt)?,
                KeyCode::Char(' ') => {
                    let at = at.unwrap_or_default();
                    ticked[at] = !ticked[at];
                    error = None;
                }
                code => move_selection(code, &mut at, choices, &mut typed),
            }
        }
    }

    fn read_text(
        &mut self,
        prompt: &InputPrompt,
        start: &str,
        validate: Validate<'_, str>,
    ) -> Result<String, PromptError> {
        let mut edit = LineEditor::new(start, prompt.is_multiline);
        let mut error = None;
        let keys = match prompt.is_multiline {
            true => "enter: done · alt-enter: new line",
            false => "enter: done",
        };
        loop {
            self.draw(prompt, keys, error.as_deref(), |columns, room| {
                let (rows, (row, column)) = edit.rows(columns.saturating_sub(4));
                let shown = window(rows.len(), row, room);
                let cursor = (row - shown.start, column + 4);
                let line = |i: usize| {
                    let mark = if i == 0 { "  > " } else { "    " };
                    StyledLine::styled(MARK, mark).then(BOLD, rows[i].clone())
                };
                (shown.map(line).collect(), Some(cursor))
            })?;
            match self.next_event()? {
                InputEvent::Key(KeyCode::Enter, KeyModifiers::NONE) => {
                    let text = edit.text();
                    match validate(&text) {
                        Ok(()) => return Ok(text),
                        Err(why) => error = Some(why.to_string()),
                    }
                }
                InputEvent::Key(KeyCode::Esc, _) => self.leave(prompt)?,
                InputEvent::Key(code, modifiers) => {
                    if edit.press(code, modifiers) {
                        error = None;
                    }
                }
                InputEvent::Paste(text) => edit.paste(&text),
                InputEvent::Resize => {}
            }
        }
    }
}

fn label_lines(prompt: &InputPrompt, columns: usize) -> Vec<StyledLine> {
    let label = wrapped(&prompt.label, columns.saturating_sub(2));
    let mut lines: Vec<StyledLine> = label
        .into_iter()
        .take(MAX_LABEL_LINES)
        .enumerate()
        .map(|(i, line)| {
            let mark = if i == 0 { "? " } else { "  " };
            StyledLine::styled(MARK, mark).then(BOLD, line)
        })
        .collect();
    if !prompt.hint.is_empty() {
        let hint = truncate(&prompt.hint, columns.saturating_sub(2));
        lines.push(StyledLine::styled(DIM, format!("  {hint}")));
    }
    lines
}

/// The address of the server, shortened if it takes many lines.
fn address_lines(prompt: &InputPrompt, columns: usize) -> Vec<StyledLine> {
    let PromptSource::Server(address) = &prompt.source else {
        return Vec::new();
    };
    let columns = columns.saturating_sub(4);
    let mut lines = wrapped(&format!("asked by {address}"), columns);
    if lines.len() > MAX_ADDRESS_LINES {
        let rest = lines.split_off(MAX_ADDRESS_LINES - 1).concat();
        lines.push(truncate(&rest, columns));
    }
    let line = |(i, line): (usize, String)| {
        let indent = if i == 0 { "  " } else { "    " };
        StyledLine::styled(DIM, format!("{indent}{line}"))
    };
    lines.into_iter().enumerate().map(line).collect()
}

/// The lines of the visible part of a list, and a line with its position.
fn list_lines(
    count: usize,
    at: usize,
    room: usize,
    line: impl Fn(usize) -> StyledLine,
) -> Vec<StyledLine> {
    if count <= room {
        return (0..count).map(line).collect();
    }
    let shown = window(count, at, room.saturating_sub(1).max(1));
    let position = format!("    {} to {} of {count}", shown.start + 1, shown.end);
    let mut lines: Vec<StyledLine> = shown.map(line).collect();
    lines.push(StyledLine::styled(DIM, position));
    lines
}

/// The visible range of indices around `at`.
fn window(count: usize, at: usize, room: usize) -> Range<usize> {
    let start = (at + 1).saturating_sub(room.div_ceil(2).max(1));
    let start = start.min(count.saturating_sub(room));
    start..(start + room).min(count)
}

/// Reads an event; `None` if it is irrelevant.
fn read() -> Result<Option<InputEvent>, PromptError> {
    Ok(match event::read()? {
        Event::Key(KeyEvent {
            code,
            modifiers,
            kind,
            ..
        }) if kind != KeyEventKind::Release => {
            let with_control = modifiers.contains(KeyModifiers::CONTROL);
            if with_control && code == KeyCode::Char('c') {
                return Err(PromptError::Interrupted);
            }
            Some(InputEvent::Key(code, modifiers))
        }
        Event::Paste(text) => Some(InputEvent::Paste(text)),
        Event::Resize(..) => Some(InputEvent::Resize),
        _ => None,
    })
}

/// Moves in a list: by arrows, by pages, or to the first choice that starts with the typed letters.
fn move_selection(code: KeyCode, at: &mut Option<usize>, choices: &[String], typed: &mut String) {
    const PAGE: usize = 10;
    let last = choices.len().saturating_sub(1);
    let to = match code {
        KeyCode::Up => at.and_then(|at| at.checked_sub(1)).unwrap_or(last),
        KeyCode::Down | KeyCode::Tab => at.map_or(0, |at| if at == last { 0 } else { at + 1 }),
        KeyCode::PageUp => at.map_or(last, |at| at.saturating_sub(PAGE)),
        KeyCode::PageDown => at.map_or(0, |at| (at + PAGE).min(last)),
        KeyCode::Home => 0,
        KeyCode::End => last,
        KeyCode::Char(c) => {
            typed.extend(c.to_lowercase());
            let begins = |choice: &String| choice.to_lowercase().starts_with(typed.as_str());
            match choices.iter().position(begins) {
                Some(found) => *at = Some(found),
                None => typed.clear(),
            }
            return;
        }
        _ => return,
    };
    typed.clear();
    *at = Some(to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_contains_the_position_and_fills_the_room() {
        for count in 1..20 {
            for at in 0..count {
                for room in 1..25 {
                    let window = window(count, at, room);
                    assert!(window.contains(&at), "{count} {at} {room}: {window:?}");
                    assert_eq!(window.len(), room.min(count));
                    assert!(window.end <= count);
                }
            }
        }
    }

    #[test]
    fn typed_letters_select_a_choice() {
        let choices = ["Red", "Green", "Grey"].map(str::to_owned);
        let (mut at, mut typed) = (None, String::new());
        for (c, found) in [('g', 1), ('r', 1), ('e', 1), ('y', 2), ('x', 2), ('r', 0)] {
            move_selection(KeyCode::Char(c), &mut at, &choices, &mut typed);
            assert_eq!(at, Some(found), "{c}");
        }
    }

    #[test]
    fn first_move_selects_the_first_or_last_choice() {
        let choices = ["Red", "Green", "Grey"].map(str::to_owned);
        for (code, to) in [
            (KeyCode::Down, Some(0)),
            (KeyCode::Up, Some(2)),
            (KeyCode::Char('x'), None),
            (KeyCode::Char(' '), None),
        ] {
            let mut at = None;
            move_selection(code, &mut at, &choices, &mut String::new());
            assert_eq!(at, to, "{code:?}");
        }
    }
}
