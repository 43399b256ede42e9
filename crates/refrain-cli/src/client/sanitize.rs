//! Sanitizes text of servers for output.

use refrain_app::sanitize::sanitized;

/// Replaces control and invisible characters by visible symbols. Line ends and tabs stay.
pub(super) fn harmless(text: &str) -> String {
    sanitized(text.chars(), &[('\n', "\n"), ('\t', "\t")])
}

/// The maximum number of characters of a [`paragraph`], and of [`one_line`].
const MAX_LENGTH: usize = 10_000;

/// A [`harmless`] text that is cut if it is too long to read.
pub(super) fn paragraph(text: &str) -> String {
    let (start, length) = shortened(text, MAX_LENGTH);
    let mut shown = harmless(start);
    if let Some(length) = length {
        shown += &format!("\n… ({length} characters; --json prints all)");
    }
    shown
}

/// A text for one line, which is cut if it is too long to read.
pub(super) fn one_line(text: &str) -> String {
    let (start, length) = shortened(text, MAX_LENGTH);
    let mut shown = refrain_app::sanitize::one_line(start);
    if let Some(length) = length {
        shown += &format!("… ({length} characters)");
    }
    shown
}

/// The parts of a large text, so that it need not be sanitized in one piece. A part has at most this many bytes.
pub(super) fn parts(mut text: &str) -> impl Iterator<Item = &str> {
    const MAX_PART: usize = 64 * 1024;
    std::iter::from_fn(move || {
        let (part, rest) = text.split_at(text.floor_char_boundary(MAX_PART));
        text = rest;
        (!part.is_empty()).then_some(part)
    })
}

/// At most `most` characters of a text, and its full length if it was cut.
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
    fn control_characters_are_replaced() {
        assert_eq!(harmless("two\nlines\tand ö"), "two\nlines\tand ö");
        assert_eq!(harmless("\x1b[2Jgone\r"), "␛[2Jgone␍");
        assert_eq!(harmless("a\u{9b}1mb\u{202e}c"), "a\\u{9b}1mb\\u{202e}c");
        assert_eq!(one_line("two\r\nlines\u{7}\n"), "two  lines␇");
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(shortened("äöü", 3), ("äöü", None));
        assert_eq!(shortened("äöüß", 3), ("äöü", Some(4)));
        let long = "\u{202e}".repeat(1_000_000);
        assert!(one_line(&long).ends_with("}… (1000000 characters)"));
        assert_eq!(parts(&long).collect::<String>(), long);
        assert_eq!(parts("").next(), None);
    }
}
