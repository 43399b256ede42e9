//! Sanitizes text of servers and clients for output: replaces characters that move the cursor, change colours or the
//! writing direction, or are invisible.

/// Appends a character, or a visible symbol for it.
pub fn push(shown: &mut String, c: char) {
    match c {
        '\0'..='\x1f' => shown.extend(char::from_u32(0x2400 + u32::from(c))),
        '\x7f' => shown.push('\u{2421}'),
        c if is_hidden(c) => shown.extend(c.escape_unicode()),
        c => shown.push(c),
    }
}

/// Whether a character is invisible but affects the terminal or adjacent characters.
pub fn is_hidden(c: char) -> bool {
    matches!(c,
        '\u{80}'..='\u{9f}'
        | '\u{ad}'
        | '\u{61c}'
        | '\u{115f}'..='\u{1160}'
        | '\u{180e}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Sanitizes a text. Each character in `replaced` becomes the text that is paired with it.
pub fn sanitized(text: impl Iterator<Item = char>, replaced: &[(char, &str)]) -> String {
    let mut shown = String::new();
    for c in text {
        match replaced.iter().find(|(from, _)| *from == c) {
            Some((_, to)) => shown.push_str(to),
            None => push(&mut shown, c),
        }
    }
    shown
}

/// Sanitizes a text for one line.
pub fn one_line(text: &str) -> String {
    let spaces = [('\n', " "), ('\r', " "), ('\t', " ")];
    sanitized(text.trim_end().chars(), &spaces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_reverses_the_line_is_escaped() {
        assert_eq!(one_line("a\u{202e}b\tc\x1b"), "a\\u{202e}b c\u{241b}");
    }
}
