//! The editor of a text input.

use crate::terminal::display_text::{columns, width};
use crossterm::event::{KeyCode, KeyModifiers};
use refrain_app::sanitize::push;

#[derive(Debug)]
pub(super) struct LineEditor {
    text: Vec<char>,
    at: usize,
    is_multiline: bool,
}

impl LineEditor {
    pub(super) fn new(text: &str, is_multiline: bool) -> Self {
        let text: Vec<char> = text.chars().collect();
        Self {
            at: text.len(),
            text,
            is_multiline,
        }
    }

    pub(super) fn text(&self) -> String {
        self.text.iter().collect()
    }

    /// Handles a key. Returns true if it changed the text.
    pub(super) fn press(&mut self, code: KeyCode, modifiers: KeyModifiers) -> bool {
        let before = self.text.len();
        if modifiers.contains(KeyModifiers::CONTROL) {
            match code {
                KeyCode::Char('j') => self.insert('\n'),
                KeyCode::Char('a') => self.at = self.line_start(),
                KeyCode::Char('e') => self.at = self.line_end(),
                KeyCode::Char('u') => self.cut(self.line_start(), self.at),
                KeyCode::Char('k') => self.cut(self.at, self.line_end()),
                KeyCode::Char('w') => self.cut(self.word_start(), self.at),
                KeyCode::Char('h') => self.cut(self.at.saturating_sub(1), self.at),
                _ => {}
            }
            return self.text.len() != before;
        }
        match code {
            KeyCode::Enter => self.insert('\n'),
            KeyCode::Char(c) if !modifiers.contains(KeyModifiers::ALT) => self.insert(c),
            KeyCode::Backspace => self.cut(self.at.saturating_sub(1), self.at),
            KeyCode::Delete => self.cut(self.at, (self.at + 1).min(self.text.len())),
            KeyCode::Left => self.at = self.at.saturating_sub(1),
            KeyCode::Right => self.at = (self.at + 1).min(self.text.len()),
            KeyCode::Home => self.at = self.line_start(),
            KeyCode::End => self.at = self.line_end(),
            KeyCode::Up => self.line_up(),
            KeyCode::Down => self.line_down(),
            _ => {}
        }
        self.text.len() != before
    }

    /// Inserts pasted text without its last line end.
    pub(super) fn paste(&mut self, text: &str) {
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        for c in text.trim_end_matches('\n').chars() {
            self.insert(c);
        }
    }

    /// The text in rows of at most `limit` columns, and the position of the cursor. Invisible characters become symbols.
    pub(super) fn rows(&self, limit: usize) -> (Vec<String>, (usize, usize)) {
        let limit = limit.max(10);
        let mut rows = vec![String::new()];
        let mut used = 0;
        let mut cursor = (0, 0);
        for i in 0..=self.text.len() {
            let mut shown = String::new();
            match self.text.get(i) {
                Some('\n') | None => {}
                Some(c) => push(&mut shown, *c),
            }
            if used + width(&shown) > limit || (i == self.at && used == limit) {
                rows.push(String::new());
                used = 0;
            }
            if i == self.at {
                cursor = (rows.len() - 1, used);
            }
            if self.text.get(i) == Some(&'\n') {
                rows.push(String::new());
                used = 0;
            } else if let Some(row) = rows.last_mut() {
                used += shown.chars().map(columns).sum::<usize>();
                row.push_str(&shown);
            }
        }
        (rows, cursor)
    }

    /// Inserts a character; a line end only if several lines are allowed.
    fn insert(&mut self, c: char) {
        if c != '\n' || self.is_multiline {
            self.text.insert(self.at, c);
            self.at += 1;
        }
    }

    fn cut(&mut self, from: usize, to: usize) {
        self.text.drain(from..to);
        self.at = from;
    }

    fn line_start(&self) -> usize {
        let before = &self.text[..self.at];
        before.iter().rposition(|c| *c == '\n').map_or(0, |i| i + 1)
    }

    fn line_end(&self) -> usize {
        let after = &self.text[self.at..];
        let next = after.iter().position(|c| *c == '\n');
        next.map_or(self.text.len(), |i| self.at + i)
    }

    fn word_start(&self) -> usize {
        let before = &self.text[..self.at];
        let end = before.iter().rposition(|c| !c.is_whitespace());
        let end = end.unwrap_or(0);
        before[..end]
            .iter()
            .rposition(|c| c.is_whitespace())
            .map_or(0, |i| i + 1)
    }

    fn line_up(&mut self) {
        let start = self.line_start();
        if start > 0 {
            let column = self.at - start;
            self.at = start - 1;
            let (above, end) = (self.line_start(), self.at);
            self.at = (above + column).min(end);
        }
    }

    fn line_down(&mut self) {
        let column = self.at - self.line_start();
        let end = self.line_end();
        if end < self.text.len() {
            self.at = end + 1;
            self.at = (end + 1 + column).min(self.line_end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(edit: &mut LineEditor, keys: &[KeyCode]) {
        for key in keys {
            edit.press(*key, KeyModifiers::NONE);
        }
    }

    fn control(edit: &mut LineEditor, key: char) {
        edit.press(KeyCode::Char(key), KeyModifiers::CONTROL);
    }

    #[test]
    fn editing_keys_work() {
        use KeyCode::{Backspace, Char, Delete, Down, End, Home, Left, Right, Up};
        let mut edit = LineEditor::new("one two", true);
        press(&mut edit, &[Left, Backspace, Delete, Char('l'), Char('d')]);
        assert_eq!(edit.text(), "one tld");
        press(&mut edit, &[Home, Char('a'), End, Char('z'), Right]);
        assert_eq!(edit.text(), "aone tldz");
        control(&mut edit, 'w');
        assert_eq!(edit.text(), "aone ");
        control(&mut edit, 'w');
        assert_eq!(edit.text(), "");
        press(&mut edit, &[Backspace, Delete, Left, Up, Down]);
        edit.paste("ab\r\ncdef\r\n");
        assert_eq!(edit.text(), "ab\ncdef");
        press(&mut edit, &[Up, Char('!')]);
        assert_eq!(edit.text(), "ab!\ncdef");
        press(&mut edit, &[Home, Right, Down, Char('?')]);
        assert_eq!(edit.text(), "ab!\nc?def");
        control(&mut edit, 'k');
        control(&mut edit, 'j');
        assert_eq!(edit.text(), "ab!\nc?\n");
        press(&mut edit, &[Left]);
        control(&mut edit, 'u');
        assert_eq!(edit.text(), "ab!\n\n");

        let mut edit = LineEditor::new("", false);
        edit.paste("a\nb");
        control(&mut edit, 'j');
        assert_eq!(edit.text(), "ab");
    }

    #[test]
    fn rows_fit_the_width_and_contain_the_cursor() {
        let text = "0123456789日本語日本語\x1b[2J\nx\n";
        for limit in 10..30 {
            let mut edit = LineEditor::new(text, true);
            for at in 0..=edit.text.len() {
                edit.at = at;
                let (rows, (row, column)) = edit.rows(limit);
                assert!(rows.iter().all(|row| width(row) <= limit), "{rows:?}");
                assert!(row < rows.len() && column <= limit, "{row} {column}");
                assert_eq!(rows.concat(), "0123456789日本語日本語␛[2Jx", "{limit} {at}");
            }
        }
        let (rows, cursor) = LineEditor::new("ab\ncd", true).rows(10);
        assert_eq!((rows.len(), cursor), (2, (1, 2)));
        assert_eq!(LineEditor::new("0123456789", true).rows(10).1, (1, 0));
    }
}
