//! Lines that are redrawn in place.

use crate::terminal::display_text::StyledLine;
use crossterm::Command;
use crossterm::cursor::{Hide, MoveToColumn, MoveUp, Show};
use crossterm::terminal::{Clear, ClearType};

/// The widths of the drawn lines, and the position of the cursor in them.
#[derive(Debug, Default)]
pub(super) struct Frame {
    widths: Vec<usize>,
    cursor: (usize, usize),
}

impl Frame {
    pub(super) fn is_drawn(&self) -> bool {
        !self.widths.is_empty()
    }

    /// The output that replaces the drawn lines. `lines` must be narrower than the terminal. Without a position, the cursor
    /// is hidden.
    pub(super) fn draw(
        &mut self,
        (columns, rows): (usize, usize),
        lines: &[StyledLine],
        cursor: Option<(usize, usize)>,
        with_styles: bool,
    ) -> String {
        let mut out = self.erase(columns);
        // Lines that scroll off the top could not be erased.
        let hidden = lines.len().saturating_sub(rows);
        let lines = &lines[hidden..];
        let painted: Vec<String> = lines.iter().map(|line| line.paint(with_styles)).collect();
        out.push_str(&painted.join("\r\n"));
        let last = lines.len().saturating_sub(1);
        self.widths = lines.iter().map(StyledLine::width).collect();
        self.cursor = match cursor {
            Some((row, column)) => (row.saturating_sub(hidden).min(last), column),
            None => (last, 0),
        };
        move_up(&mut out, last - self.cursor.0);
        push_command(&mut out, MoveToColumn(to_u16(self.cursor.1)));
        if cursor.is_some() {
            push_command(&mut out, Show);
        }
        out
    }

    /// The output that erases the drawn lines and moves the cursor to the start of the first one.
    pub(super) fn erase(&mut self, columns: usize) -> String {
        let mut out = String::new();
        push_command(&mut out, Hide);
        move_up(&mut out, self.rows_above_cursor(columns));
        push_command(&mut out, MoveToColumn(0));
        push_command(&mut out, Clear(ClearType::FromCursorDown));
        *self = Self::default();
        out
    }

    /// The rows above the cursor. A terminal that became narrower has wrapped wide lines.
    fn rows_above_cursor(&self, columns: usize) -> usize {
        let columns = columns.max(1);
        let rows_of_lines_above: usize = self
            .widths
            .iter()
            .take(self.cursor.0)
            .map(|width| width.div_ceil(columns).max(1))
            .sum();
        rows_of_lines_above + self.cursor.1 / columns
    }
}

fn move_up(out: &mut String, rows: usize) {
    if rows > 0 {
        push_command(out, MoveUp(to_u16(rows)));
    }
}

fn push_command(out: &mut String, command: impl Command) {
    // Writing to a string does not fail.
    let _ = command.write_ansi(out);
}

fn to_u16(n: usize) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}
