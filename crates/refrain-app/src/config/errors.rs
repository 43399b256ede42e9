//! Errors in a configuration file, with their positions.

use crate::store::mask_password;
use anstyle::{AnsiColor, Style};
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

const MESSAGE: Style = Style::new().bold();
const MARKER: Style = AnsiColor::Red.on_default().bold();

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConfigError {
    /// The position in the file; `None` for the value of a flag.
    pub(super) span: Option<Range<usize>>,
    pub(super) message: String,
}

/// All errors in a file, in the order of the file.
#[derive(Debug)]
pub(crate) struct ConfigErrors {
    file: PathBuf,
    text: String,
    list: Vec<ConfigError>,
    /// Whether lines of the file are printed. They may contain secrets if the file is not a configuration.
    has_excerpts: bool,
    hint: Option<&'static str>,
}

/// A position in a text. Lines and columns are counted from 1.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TextPosition<'a> {
    pub(super) line: usize,
    pub(super) column: usize,
    line_text: &'a str,
    width: usize,
}

impl std::error::Error for ConfigErrors {}

impl ConfigErrors {
    pub(super) fn new(
        file: PathBuf,
        text: String,
        mut list: Vec<ConfigError>,
        has_excerpts: bool,
    ) -> Self {
        list.sort_by_key(|error| error.span.as_ref().map(|span| span.start));
        Self {
            file,
            text,
            list,
            has_excerpts,
            hint: None,
        }
    }

    pub(super) fn with_hint(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Option<TextPosition<'_>>, &str)> {
        self.list.iter().map(|error| {
            let span = error.span.clone();
            let position = span.map(|span| position(&self.text, span));
            (position, error.message.as_str())
        })
    }
}

pub(super) fn position(text: &str, span: Range<usize>) -> TextPosition<'_> {
    let before = &text.as_bytes()[..span.start.min(text.len())];
    let ends = before
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n');
    let begin = ends.clone().next_back().map_or(0, |(at, _)| at + 1);
    let line_text = text[begin..].lines().next().unwrap_or_default();
    let characters = || line_text.char_indices().map(|(at, _)| begin + at);
    TextPosition {
        line: ends.count() + 1,
        column: characters().take_while(|at| *at < span.start).count() + 1,
        line_text,
        width: characters().filter(|at| span.contains(at)).count().max(1),
    }
}

/// For each error: `FILE:LINE:COLUMN: MESSAGE`, the line, and a marker under it. All but the first begin with `error: `,
/// which printing adds to the first one. Contains colours: print it through `anstream`.
impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (position, message) in self.iter() {
            if !std::mem::take(&mut first) {
                write!(f, "\nerror: ")?;
            }
            let Some(position) = position else {
                write!(f, "{message}")?;
                continue;
            };
            let TextPosition { line, column, .. } = position;
            let file = self.file.display();
            write!(f, "{file}:{line}:{column}: {MESSAGE}{message}{MESSAGE:#}")?;
            if !self.has_excerpts {
                continue;
            }
            // Each character takes one column, so that the marker lines up.
            let plain = |c: char| if c.is_control() { ' ' } else { c };
            writeln!(
                f,
                "\n  {}",
                mask_password(position.line_text)
                    .chars()
                    .map(plain)
                    .collect::<String>()
            )?;
            let (before, marker) = (" ".repeat(column - 1), "^".repeat(position.width));
            write!(f, "  {before}{MARKER}{marker}{MARKER:#}")?;
        }
        match self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}
