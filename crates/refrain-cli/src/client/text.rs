//! Text of others, made fit for a terminal.

use std::borrow::Cow;

/// The same text, with whatever could steer a terminal or turn the direction of reading shown as its code. Lines and
/// tabs stay.
pub(super) fn harmless(text: &str) -> Cow<'_, str> {
    escaped(text, |c| steers(c) && !matches!(c, '\n' | '\t'))
}

/// The same for one line: line ends and tabs become spaces.
pub(super) fn one_line(text: &str) -> String {
    let spaced: String = text
        .trim_end()
        .chars()
        .map(|c| if c.is_whitespace() { ' ' } else { c })
        .collect();
    escaped(&spaced, steers).into_owned()
}

fn escaped(text: &str, is_bad: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_bad) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_bad(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

fn steers(c: char) -> bool {
    let turns = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    c.is_control() || turns
}

/// So many characters of a text, and how many there are if that is not all of them.
pub(super) fn shortened(text: &str, most: usize) -> (&str, Option<usize>) {
    match text.char_indices().nth(most) {
        None => (text, None),
        Some((at, _)) => (&text[..at], Some(text.chars().count())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_that_steers_a_terminal() {
        assert_eq!(harmless("two\nlines\tand ö"), "two\nlines\tand ö");
        assert_eq!(harmless("\x1b[2Jgone\r"), "\\u{1b}[2Jgone\\u{d}");
        assert_eq!(harmless("a\u{9b}1mb\u{202e}c"), "a\\u{9b}1mb\\u{202e}c");
        assert_eq!(one_line("two\r\nlines\u{7}\n"), "two  lines\\u{7}");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shortened("äöü", 3), ("äöü", None));
        assert_eq!(shortened("äöüß", 3), ("äöü", Some(4)));
    }
}
