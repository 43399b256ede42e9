//! Mistakes in a configuration file, with their positions.

use crate::store::masked;
use anstyle::{AnsiColor, Style};
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

const MESSAGE: Style = Style::new().bold();
const MARKER: Style = AnsiColor::Red.on_default().bold();

/// One mistake.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    /// Its position in the file, if it comes from there.
    pub(super) span: Option<Range<usize>>,
    pub(super) message: String,
}

/// All mistakes in a file.
#[derive(Debug)]
pub(crate) struct Mistakes {
    file: PathBuf,
    text: String,
    list: Vec<Mistake>,
}

/// A position, counted from 1.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place<'a> {
    pub(super) line: usize,
    pub(super) column: usize,
    /// The whole line.
    shown: &'a str,
    /// How many characters of it are marked.
    width: usize,
}

impl std::error::Error for Mistakes {}

impl Mistakes {
    /// In the order of the file.
    pub(super) fn new(file: PathBuf, text: String, mut list: Vec<Mistake>) -> Self {
        list.sort_by_key(|mistake| mistake.span.as_ref().map(|span| span.start));
        Self { file, text, list }
    }

    /// Each mistake with its position.
    pub(super) fn each(&self) -> impl Iterator<Item = (Option<Place<'_>>, &str)> {
        self.list.iter().map(|mistake| {
            let span = mistake.span.clone();
            (
                span.map(|span| place(&self.text, span)),
                mistake.message.as_str(),
            )
        })
    }
}

/// The position of a span.
pub(super) fn place(text: &str, span: Range<usize>) -> Place<'_> {
    let before = &text.as_bytes()[..span.start.min(text.len())];
    let ends = before
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n');
    let begin = ends.clone().next_back().map_or(0, |(at, _)| at + 1);
    let shown = text[begin..].lines().next().unwrap_or_default();
    let characters = || shown.char_indices().map(|(at, _)| begin + at);
    Place {
        line: ends.count() + 1,
        column: characters().take_while(|at| *at < span.start).count() + 1,
        shown,
        width: characters().filter(|at| span.contains(at)).count().max(1),
    }
}

/// `FILE:LINE:COLUMN: MESSAGE`, the line, and a marker under the place. With colours: print it through `anstream`.
impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (place, message) in self.each() {
            if !std::mem::take(&mut first) {
                writeln!(f)?;
            }
            let Some(place) = place else {
                write!(f, "{message}")?;
                continue;
            };
            let Place { line, column, .. } = place;
            let file = self.file.display();
            writeln!(f, "{file}:{line}:{column}: {MESSAGE}{message}{MESSAGE:#}")?;
            // One column for each character, so that the marker is in the right place.
            let plain = |c: char| if c.is_control() { ' ' } else { c };
            writeln!(
                f,
                "  {}",
                masked(place.shown).chars().map(plain).collect::<String>()
            )?;
            let (before, marker) = (" ".repeat(column - 1), "^".repeat(place.width));
            write!(f, "  {before}{MARKER}{marker}{MARKER:#}")?;
        }
        Ok(())
    }
}
