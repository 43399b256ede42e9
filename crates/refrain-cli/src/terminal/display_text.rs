//! Text for a terminal.
//!
//! Text of a server is sanitized: no characters that move the cursor, change colours or the writing direction, or are
//! invisible.

use anstyle::Style;
use refrain_app::sanitize::sanitized;
use unicode_width::UnicodeWidthChar;

const MAX_CHARACTERS: usize = 20_000;

const TAB: &str = "    ";

/// Sanitizes a server's text, which may have several lines.
pub(super) fn sanitize(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    let mut characters = text.chars();
    let first = characters.by_ref().take(MAX_CHARACTERS);
    let mut shown = sanitized(first, &[('\n', "\n"), ('\t', TAB)]);
    match characters.count() {
        0 => {}
        more => shown.push_str(&format!("\n[{more} more characters are not shown]")),
    }
    shown
}

/// Sanitizes a server's text for one line; line ends become visible symbols.
pub(super) fn one_line(text: &str) -> String {
    sanitized(text.chars().take(MAX_CHARACTERS), &[])
}

pub(super) fn width(text: &str) -> usize {
    text.chars().map(columns).sum()
}

pub(super) fn columns(c: char) -> usize {
    c.width().unwrap_or(0)
}

/// Wraps a text into lines of at most `columns`, at spaces if possible.
pub(crate) fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(8);
    let mut lines = Vec::new();
    for paragraph in text.split('\n') {
        let mut line = String::new();
        for word in paragraph.split(' ') {
            let room = columns.saturating_sub(width(&line) + 1);
            if !line.is_empty() && width(word) > room {
                lines.push(std::mem::take(&mut line));
            } else if !line.is_empty() {
                line.push(' ');
            }
            let mut pieces = split_at_width(word, columns);
            let last = pieces.pop().unwrap_or_default();
            lines.append(&mut pieces);
            line.push_str(&last);
        }
        lines.push(line);
    }
    lines
}

/// Splits a text into pieces of at most `columns`.
pub(super) fn split_at_width(text: &str, columns: usize) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut used = 0;
    for c in text.chars() {
        let wide = self::columns(c);
        if used + wide > columns.max(2) {
            pieces.push(String::new());
            used = 0;
        }
        used += wide;
        if let Some(piece) = pieces.last_mut() {
            piece.push(c);
        }
    }
    pieces
}

/// Cuts a text that is wider than `columns`, and adds an ellipsis.
pub(super) fn truncate(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut cut = split_at_width(text, columns.saturating_sub(1)).swap_remove(0);
    cut.push('…');
    cut
}

#[derive(Debug, Clone, Default)]
pub(super) struct StyledLine(Vec<(Style, String)>);

impl StyledLine {
    pub(super) fn plain(text: impl Into<String>) -> Self {
        Self::default().then(Style::new(), text)
    }

    pub(super) fn styled(style: Style, text: impl Into<String>) -> Self {
        Self::default().then(style, text)
    }

    pub(super) fn then(mut self, style: Style, text: impl Into<String>) -> Self {
        self.0.push((style, text.into()));
        self
    }

    pub(super) fn width(&self) -> usize {
        self.0.iter().map(|(_, text)| width(text)).sum()
    }

    /// The text of the line, with or without escape codes for styles.
    pub(super) fn paint(&self, with_styles: bool) -> String {
        let part = |(style, text): &(Style, String)| {
            if with_styles {
                format!("{style}{text}{style:#}")
            } else {
                text.clone()
            }
        };
        self.0.iter().map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced() {
        let hostile = "a\x1b[2J\x1b]0;title\x07b\rc\x08d\u{9b}31me\u{202e}f\u{200b}g\u{feff}h\x7f";
        assert_eq!(
            sanitize(hostile),
            "a␛[2J␛]0;title␇b␍c␈d\\u{9b}31me\\u{202e}f\\u{200b}g\\u{feff}h␡"
        );
        for c in (0..=0x10_ffff).filter_map(char::from_u32) {
            let shown = one_line(&c.to_string());
            assert!(!shown.contains(char::is_control), "{c:?}");
            assert!(c == '\n' || sanitize(&c.to_string()).trim() == shown.trim() || c == '\t');
        }
        assert_eq!(one_line("a\r\n\tb"), "a␍␊␉b");
        assert_eq!(sanitize("a\r\n\tb"), "a\n    b");
    }

    #[test]
    fn very_long_text_is_cut_with_a_note() {
        let flood = sanitize(&"x\n".repeat(MAX_CHARACTERS));
        assert!(flood.ends_with("[20000 more characters are not shown]"));
        assert!(flood.len() < 2 * MAX_CHARACTERS);
    }

    #[test]
    fn wrapped_lines_fit_the_width() {
        let text = "a quick brown fox 日本語日本語日本語 averyveryverylongwordindeed\n\nend";
        for columns in 8..40 {
            let lines = wrapped(text, columns);
            assert!(lines.iter().all(|line| width(line) <= columns), "{lines:?}");
            let letters = |text: &str| text.replace([' ', '\n'], "");
            assert_eq!(letters(&lines.concat()), letters(text));
        }
        assert_eq!(wrapped("one two  three", 9), ["one two ", "three"]);
        assert_eq!(wrapped("", 9), [""]);
        assert_eq!(truncate("日本語", 5), "日本…");
        assert_eq!(truncate("日本語", 6), "日本語");
        assert_eq!(truncate("日本語", 4), "日…");
    }

    #[test]
    fn width_of_a_line_ignores_styles() {
        let line = StyledLine::plain("ab").then(Style::new().bold(), "日");
        assert_eq!(line.width(), 4);
        assert_eq!(line.paint(false), "ab日");
        assert_eq!(line.paint(true), "ab\x1b[1m日\x1b[0m");
    }
}
