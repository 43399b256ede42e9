//! A console that draws its prompts, and draws them again when a key is pressed or the size changes.
//!
//! The terminal is restored when a `Live` is dropped.

mod edit;
mod frame;

use super::asker::{CANCEL, DECLINE};
use super::console::{Check, Console, Left, POLL, Question, Withdrawn, boxes, forget_typed};
use super::text::{Line, clipped, wrapped};
use crate::style::{BOLD, DIM, MARK, WRONG};
use anstream::{AutoStream, ColorChoice};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::{cursor, execute, terminal};
use edit::Edit;
use frame::Frame;
use std::io::{self, Write, stderr};
use std::ops::Range;
use std::time::Duration;

/// The most keys that are dropped when a console is opened.
const MAX_FORGOTTEN: usize = 10_000;

/// The most lines that the label of a prompt takes.
const MAX_LABEL: usize = 3;

/// The most lines that the address of the server takes.
const MAX_ASKER: usize = 3;

pub(super) struct Live {
    frame: Frame,
    with_styles: bool,
    withdrawn: Withdrawn,
    _raw: Raw,
}

struct Raw;

impl Raw {
    fn enter() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        // Dropping this leaves the mode, also if the next step fails.
        let raw = Self;
        execute!(stderr(), event::EnableBracketedPaste)?;
        Ok(raw)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = execute!(stderr(), event::DisableBracketedPaste, cursor::Show);
        let _ = terminal::disable_raw_mode();
    }
}

enum Pressed {
    Key(KeyCode, KeyModifiers),
    Pasted(String),
    Resized,
}

impl Live {
    pub(super) fn open(withdrawn: Withdrawn) -> Result<Self, Left> {
        let live = Self {
            frame: Frame::default(),
            with_styles: AutoStream::choice(&stderr()) != ColorChoice::Never,
            withdrawn,
            _raw: Raw::enter()?,
        };
        forget_typed()?;
        // Drop the events that were read already. An interrupt stays one.
        for _ in 0..MAX_FORGOTTEN {
            if !event::poll(Duration::ZERO)? {
                break;
            }
            read()?;
        }
        Ok(live)
    }

    fn size() -> (usize, usize) {
        match terminal::size() {
            Ok((columns, rows)) if columns > 0 && rows > 0 => (columns.into(), rows.into()),
            _ => (80, 24),
        }
    }

    /// Draws a prompt: its head, body and foot. The cursor is in the body, or hidden.
    fn draw(
        &mut self,
        question: &Question,
        keys: &str,
        error: Option<&str>,
        body: impl FnOnce(usize, usize) -> (Vec<Line>, Option<(usize, usize)>),
    ) -> io::Result<()> {
        let (columns, rows) = Self::size();
        // A line that fills the last column may or may not take the next one, too.
        let columns = columns.saturating_sub(1);
        let mut lines = head(question, columns);
        let mut foot: Vec<Line> = error
            .map(|why| wrapped(why, columns.saturating_sub(4)))
            .unwrap_or_default()
            .into_iter()
            .map(|line| Line::styled(WRONG, format!("  ! {line}")))
            .collect();
        foot.extend(signed(question, columns));
        let help = format!("  esc: decline or cancel · {keys}");
        foot.push(Line::styled(DIM, clipped(&help, columns)));
        let room = rows.saturating_sub(lines.len() + foot.len()).max(1);
        let (body, cursor) = body(columns, room);
        let cursor = cursor.map(|(row, column)| (row + lines.len(), column));
        lines.extend(body);
        lines.extend(foot);
        let drawn = self
            .frame
            .draw((columns + 1, rows), &lines, cursor, self.with_styles);
        self.put(&drawn)
    }

    /// All at once, so that nothing flickers.
    fn put(&self, text: &str) -> io::Result<()> {
        let mut out = stderr().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    fn pressed(&self) -> Result<Pressed, Left> {
        loop {
            self.withdrawn.check()?;
            if event::poll(POLL)?
                && let Some(pressed) = read()?
            {
                return Ok(pressed);
            }
        }
    }

    /// Draws a list, and returns the next key.
    fn list(
        &mut self,
        question: &Question,
        keys: &str,
        error: Option<&str>,
        labels: &[String],
        at: Option<usize>,
    ) -> Result<KeyCode, Left> {
        loop {
            self.draw(question, keys, error, |columns, room| {
                let line = |i: usize| {
                    let text = clipped(&labels[i], columns.saturating_sub(4));
                    if Some(i) == at {
                        Line::styled(MARK, format!("  > {text}"))
                    } else {
                        Line::plain(format!("    {text}"))
                    }
                };
                (
                    listed(labels.len(), at.unwrap_or_default(), room, line),
                    None,
                )
            })?;
            if let Pressed::Key(code, _) = self.pressed()? {
                return Ok(code);
            }
        }
    }

    /// The chosen place in a list; none if it was left by the escape key.
    fn pick(
        &mut self,
        question: &Question,
        choices: &[String],
        at: &mut Option<usize>,
    ) -> Result<Option<usize>, Left> {
        let mut typed = String::new();
        loop {
            let keys = match at {
                Some(_) => "enter: choose",
                None => "up, down: go to a choice",
            };
            match (self.list(question, keys, None, choices, *at)?, *at) {
                (KeyCode::Enter, Some(chosen)) => return Ok(Some(chosen)),
                (KeyCode::Esc, _) => return Ok(None),
                (code, _) => go(code, at, choices, &mut typed),
            }
        }
    }

    /// Asks whether to decline or cancel; returns if the person goes on.
    fn leave(&mut self, question: &Question) -> Result<(), Left> {
        let menu = Question {
            label: format!("Leave this question? ({})", question.label),
            hint: String::new(),
            ..question.clone()
        };
        let choices = ["Go on with it", DECLINE, CANCEL].map(str::to_owned);
        match self.pick(&menu, &choices, &mut Some(0))? {
            Some(1) => Err(Left::Declined),
            Some(2) => Err(Left::Cancelled),
            _ => Ok(()),
        }
    }
}

impl Console for Live {
    fn columns(&self) -> usize {
        Self::size().0
    }

    fn say(&mut self, line: &Line) -> io::Result<()> {
        if self.frame.is_drawn() {
            let erased = self.frame.erase(Self::size().0);
            self.put(&erased)?;
        }
        self.put(&format!("{}\r\n", line.paint(self.with_styles)))
    }

    fn choose(
        &mut self,
        question: &Question,
        choices: &[String],
        start: Option<usize>,
    ) -> Result<usize, Left> {
        let mut at = start.map(|start| start.min(choices.len().saturating_sub(1)));
        loop {
            match self.pick(question, choices, &mut at)? {
                Some(chosen) => return Ok(chosen),
                None => self.leave(question)?,
            }
        }
    }

    fn tick(
        &mut self,
        question: &Question,
        choices: &[String],
        start: &[bool],
        check: Check<'_, [bool]>,
    ) -> Result<Vec<bool>, Left> {
        let (mut at, mut typed, mut error) = (Some(0), String::new(), None);
        let mut ticked = start.to_vec();
        loop {
            let keys = "space: tick · enter: done";
            let labels = boxes(choices, &ticked);
            match self.list(question, keys, error.as_deref(), &labels, at)? {
                KeyCode::Enter => match check(&ticked) {
                    Ok(()) => return Ok(ticked),
                    Err(why) => error = Some(why.to_string()),
                },
                KeyCode::Esc => self.leave(question)?,
                KeyCode::Char(' ') => {
                    let at = at.unwrap_or_default();
                    ticked[at] = !ticked[at];
                    error = None;
                }
                code => go(code, &mut at, choices, &mut typed),
            }
        }
    }

    fn write(
        &mut self,
        question: &Question,
        start: &str,
        check: Check<'_, str>,
    ) -> Result<String, Left> {
        let mut edit = Edit::new(start, question.takes_lines);
        let mut error = None;
        let keys = match question.takes_lines {
            true => "enter: done · alt-enter: new line",
            false => "enter: done",
        };
        loop {
            self.draw(question, keys, error.as_deref(), |columns, room| {
                let (rows, (row, column)) = edit.rows(columns.saturating_sub(4));
                let shown = window(rows.len(), row, room);
                let cursor = (row - shown.start, column + 4);
                let line = |i: usize| {
                    let mark = if i == 0 { "  > " } else { "    " };
                    Line::styled(MARK, mark).then(BOLD, rows[i].clone())
                };
                (shown.map(line).collect(), Some(cursor))
            })?;
            match self.pressed()? {
                Pressed::Key(KeyCode::Enter, KeyModifiers::NONE) => {
                    let text = edit.text();
                    match check(&text) {
                        Ok(()) => return Ok(text),
                        Err(why) => error = Some(why.to_string()),
                    }
                }
                Pressed::Key(KeyCode::Esc, _) => self.leave(question)?,
                Pressed::Key(code, modifiers) => {
                    if edit.press(code, modifiers) {
                        error = None;
                    }
                }
                Pressed::Pasted(text) => edit.paste(&text),
                Pressed::Resized => {}
            }
        }
    }
}

fn head(question: &Question, columns: usize) -> Vec<Line> {
    let label = wrapped(&question.label, columns.saturating_sub(2));
    let mut lines: Vec<Line> = label
        .into_iter()
        .take(MAX_LABEL)
        .enumerate()
        .map(|(i, line)| {
            let mark = if i == 0 { "? " } else { "  " };
            Line::styled(MARK, mark).then(BOLD, line)
        })
        .collect();
    if !question.hint.is_empty() {
        let hint = clipped(&question.hint, columns.saturating_sub(2));
        lines.push(Line::styled(DIM, format!("  {hint}")));
    }
    lines
}

/// The address of the server that asks, whole unless it takes many lines.
fn signed(question: &Question, columns: usize) -> Vec<Line> {
    let columns = columns.saturating_sub(4);
    let mut lines = wrapped(&format!("asked by {}", question.asker), columns);
    if lines.len() > MAX_ASKER {
        let rest = lines.split_off(MAX_ASKER - 1).concat();
        lines.push(clipped(&rest, columns));
    }
    let line = |(i, line): (usize, String)| {
        let indent = if i == 0 { "  " } else { "    " };
        Line::styled(DIM, format!("{indent}{line}"))
    };
    lines.into_iter().enumerate().map(line).collect()
}

/// The visible part of a list, with a line about its position.
fn listed(count: usize, at: usize, room: usize, line: impl Fn(usize) -> Line) -> Vec<Line> {
    if count <= room {
        return (0..count).map(line).collect();
    }
    let shown = window(count, at, room.saturating_sub(1).max(1));
    let place = format!("    {} to {} of {count}", shown.start + 1, shown.end);
    let mut lines: Vec<Line> = shown.map(line).collect();
    lines.push(Line::styled(DIM, place));
    lines
}

/// As many places around `at` as there is room for.
fn window(count: usize, at: usize, room: usize) -> Range<usize> {
    let start = (at + 1).saturating_sub(room.div_ceil(2).max(1));
    let start = start.min(count.saturating_sub(room));
    start..(start + room).min(count)
}

/// Reads an event; none if it means nothing here.
fn read() -> Result<Option<Pressed>, Left> {
    Ok(match event::read()? {
        Event::Key(KeyEvent {
            code,
            modifiers,
            kind,
            ..
        }) if kind != KeyEventKind::Release => {
            let with_control = modifiers.contains(KeyModifiers::CONTROL);
            if with_control && code == KeyCode::Char('c') {
                return Err(Left::Interrupted);
            }
            Some(Pressed::Key(code, modifiers))
        }
        Event::Paste(text) => Some(Pressed::Pasted(text)),
        Event::Resize(..) => Some(Pressed::Resized),
        _ => None,
    })
}

/// Moves in a list: by arrows, by pages, or to the first choice that begins with the letters typed.
fn go(code: KeyCode, at: &mut Option<usize>, choices: &[String], typed: &mut String) {
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
    fn a_window_holds_the_place_and_is_as_large_as_it_can_be() {
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
    fn letters_find_a_choice() {
        let choices = ["Red", "Green", "Grey"].map(str::to_owned);
        let (mut at, mut typed) = (None, String::new());
        for (c, found) in [('g', 1), ('r', 1), ('e', 1), ('y', 2), ('x', 2), ('r', 0)] {
            go(KeyCode::Char(c), &mut at, &choices, &mut typed);
            assert_eq!(at, Some(found), "{c}");
        }
    }

    #[test]
    fn one_comes_from_nowhere_at_either_end() {
        let choices = ["Red", "Green", "Grey"].map(str::to_owned);
        for (code, to) in [
            (KeyCode::Down, Some(0)),
            (KeyCode::Up, Some(2)),
            (KeyCode::Char('x'), None),
            (KeyCode::Char(' '), None),
        ] {
            let mut at = None;
            go(code, &mut at, &choices, &mut String::new());
            assert_eq!(at, to, "{code:?}");
        }
    }
}
