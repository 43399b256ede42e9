//! Excerpts of caller data in error messages.

use std::fmt::{self, Debug, Display, Formatter, Write};

/// The longest excerpt, in bytes.
const LIMIT: usize = 300;

/// The start of a text, up to 300 bytes, for error messages about caller data of any size. Formatting stops at the limit.
///
/// ```
/// use refrain_wire::Excerpt;
///
/// assert_eq!(Excerpt("short").to_string(), "short");
/// assert_eq!(Excerpt("long".repeat(1_000_000)).to_string().len(), 300 + "…".len());
/// ```
pub struct Excerpt<T>(pub T);

impl<T: Display> Display for Excerpt<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_excerpt(f, format_args!("{}", self.0))
    }
}

impl<T: Debug> Debug for Excerpt<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_excerpt(f, format_args!("{:?}", self.0))
    }
}

fn write_excerpt(f: &mut Formatter<'_>, text: fmt::Arguments<'_>) -> fmt::Result {
    let mut out = LimitedWriter {
        out: f,
        left: LIMIT,
        is_cut: false,
    };
    match out.write_fmt(text) {
        Err(_) if out.is_cut => f.write_str("…"),
        written => written,
    }
}

/// Fails at the limit, to stop the formatting of the rest.
struct LimitedWriter<'a, 'f> {
    out: &'a mut Formatter<'f>,
    left: usize,
    is_cut: bool,
}

impl Write for LimitedWriter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let fitting = &text[..text.floor_char_boundary(self.left)];
        self.out.write_str(fitting)?;
        self.left -= fitting.len();
        if fitting.len() < text.len() {
            self.is_cut = true;
            return Err(fmt::Error);
        }
        Ok(())
    }
}
