//! Formatting of printed tables: numbers, colours, verdicts.
//!
//! Styles are always written; the output stream removes them if it is not a terminal.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();

/// Whether a target was reached, if it was measured.
pub(crate) fn verdict(is_met: Option<bool>) -> String {
    let (style, verdict) = match is_met {
        Some(true) => (GOOD, "met"),
        Some(false) => (BAD, "missed"),
        None => (DIM, "not measured"),
    };
    format!("{style}{verdict}{style:#}")
}

/// Writes rows with the same number of cells, the first `heading_rows` of them in bold. The first column is left-aligned, the others
/// are right-aligned.
pub(crate) fn grid(out: &mut String, heading_rows: usize, rows: &[Vec<String>]) {
    let length = |cell: &String| cell.chars().count();
    let width = |column| rows.iter().map(|row| length(&row[column])).max();
    let columns = 0..rows[0].len();
    let widths: Vec<usize> = columns.filter_map(width).collect();
    for (index, row) in rows.iter().enumerate() {
        let mut text = format!("{:<width$}", row[0], width = widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            // Writing to a String does not fail.
            let _ = write!(text, "  {cell:>width$}");
        }
        let style = if index < heading_rows {
            BOLD
        } else {
            Style::new()
        };
        let _ = writeln!(out, "{style}{text}{style:#}");
    }
}

/// A number with thousands separators, or a dash.
pub(crate) fn number(value: Option<f64>, digits: usize) -> String {
    let Some(value) = value else {
        return "-".to_owned();
    };
    let plain = format!("{value:.digits$}");
    let whole_end = plain.find('.').unwrap_or(plain.len());
    let start = usize::from(plain.starts_with('-'));
    let mut out = String::with_capacity(plain.len() + 4);
    for (index, character) in plain.chars().enumerate() {
        if index > start && index < whole_end && (whole_end - index) % 3 == 0 {
            out.push(',');
        }
        out.push(character);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_marked() {
        assert_eq!(number(Some(1_234_567.0), 0), "1,234,567");
        assert_eq!(number(Some(123.456), 1), "123.5");
        assert_eq!(number(Some(-1234.5), 2), "-1,234.50");
        assert_eq!(number(None, 0), "-");
    }
}
