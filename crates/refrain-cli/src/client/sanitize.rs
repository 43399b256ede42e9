//! Sanitizes text of servers for output.

use refrain_app::sanitize::sanitized;

/// Replaces control and invisible characters with visible symbols. Line ends and tabs stay.
pub(super) fn sanitize(text: &str) -> String {
    sanitized(text.chars(), &[('\n', "\n"), ('\t', "\t")])
}

/// The maximum number of characters of a [`paragraph`], and of [`one_line`].
const MAX_LENGTH: usize = 10_000;

/// A sanitized text that is truncated if it is too long to read.
pub(super) fn paragraph(text: &str) -> String {
    paragraph_of([text])
}

/// Like [`paragraph`], for a text in pieces.
pub(super) fn paragraph_of<'a>(pieces: impl IntoIterator<Item = &'a str>) -> String {
    let (mut start, mut length) = (String::new(), 0);
    for piece in pieces {
        start.push_str(truncated(piece, MAX_LENGTH.saturating_sub(length)).0);
        length += piece.chars().count();
    }
    let mut shown = sanitize(&start);
    if length > MAX_LENGTH {
        shown += &format!("\n… ({length} characters; --json prints all)");
    }
    shown
}

/// A sanitized text on one line, truncated if it is too long to read.
pub(super) fn one_line(text: &str) -> String {
    let (start, length) = truncated(text, MAX_LENGTH);
    let mut shown = refrain_app::sanitize::one_line(start);
    if let Some(length) = length {
        shown += &format!("… ({length} characters)");
    }
    shown
}

/// Splits a large text, so that it need not be sanitized in one piece.
pub(super) fn chunks(mut text: &str) -> impl Iterator<Item = &str> {
    const MAX_CHUNK: usize = 64 * 1024;
    std::iter::from_fn(move || {
        let (chunk, rest) = text.split_at(text.floor_char_boundary(MAX_CHUNK));
        text = rest;
        (!chunk.is_empty()).then_some(chunk)
    })
}

/// The first `max` characters of a text, and its full length if it was truncated.
pub(super) fn truncated(text: &str, max: usize) -> (&str, Option<usize>) {
    match text.char_indices().nth(max) {
        None => (text, None),
        Some((at, _)) => (&text[..at], Some(text.chars().count())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(sanitize("two\nlines\tand ö"), "two\nlines\tand ö");
        assert_eq!(sanitize("\x1b[2Jgone\r"), "␛[2Jgone␍");
        assert_eq!(sanitize("a\u{9b}1mb\u{202e}c"), "a\\u{9b}1mb\\u{202e}c");
        assert_eq!(one_line("two\r\nlines\u{7}\n"), "two  lines␇");
    }

    #[test]
    fn long_text_is_truncated_between_characters() {
        assert_eq!(truncated("äöü", 3), ("äöü", None));
        assert_eq!(truncated("äöüß", 3), ("äöü", Some(4)));
        let long = "\u{202e}".repeat(1_000_000);
        assert!(one_line(&long).ends_with("}… (1000000 characters)"));
        assert_eq!(chunks(&long).collect::<String>(), long);
        assert_eq!(chunks("").next(), None);
    }
}
