//! The report as text: aligned columns, coloured where the reader is a terminal.
//!
//! Styles are always written here; whoever prints the text strips them where they do not belong.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};

use crate::memory::Memory;
use crate::report::{Report, Row, Target};

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
/// Spaces between two columns, and between two groups of them.
const GAP: usize = 2;
const GROUP_GAP: usize = 4;

/// Columns under one heading.
struct Group {
    heading: &'static str,
    columns: Vec<Column>,
}

struct Column {
    title: &'static str,
    cells: Vec<String>,
}

impl Column {
    fn new(
        title: &'static str,
        report: &Report,
        cell: impl Fn(&Row) -> Option<f64>,
        digits: usize,
    ) -> Self {
        let cells = report.rows.iter().map(|row| number(cell(row), digits));
        Self {
            title,
            cells: cells.collect(),
        }
    }

    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|cell| cell.chars().count());
        cells.fold(self.title.chars().count(), usize::max)
    }
}

/// Renders the table, the targets, the memory and the machine.
pub(crate) fn render(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a String does not fail, here and below.
    let groups = groups(report);
    if !groups.is_empty() {
        grid(&mut out, report, &groups);
        notes(&mut out, report);
        for target in report.targets() {
            target_line(&mut out, &target);
        }
        out.push('\n');
    }
    if let Some(reason) = &report.no_counts {
        let _ = writeln!(
            out,
            "Instructions and allocations are left out: {reason}.\n"
        );
    }
    if let Some(memory) = &report.memory {
        memory_lines(&mut out, memory);
    }
    let machine = &report.machine;
    let _ = writeln!(
        out,
        "Machine: {}, {} cores, Linux {}; server on core {}, load on core {}.",
        machine.model,
        machine.cores,
        machine.kernel,
        report.settings.server_core,
        report.settings.load_core,
    );
    out
}

fn notes(out: &mut String, report: &Report) {
    /// A server that used less of its core than this was held up by something else.
    const BUSY: f64 = 0.9;

    let settings = &report.settings;
    if let Some(busy) = report.least_busy() {
        let compared = report.rows.iter().any(|row| row.refrain.is_some());
        let paired = match compared {
            true => "; a ratio is the median over slices side by side",
            false => "",
        };
        let _ = writeln!(
            out,
            "{DIM}Slices: {} of {} s on {} connections. Times are medians{paired}.{DIM:#}",
            settings.slices, settings.seconds_per_slice, settings.connections,
        );
        if busy < BUSY {
            let _ = writeln!(
                out,
                "{BAD}A server used only {:.0} % of its core: the machine had other work, or the load \
                 was the bottleneck.{BAD:#}",
                busy * 100.0,
            );
        }
    }
    let _ = writeln!(
        out,
        "{DIM}One full exchange is two requests, counted as one.{DIM:#}\n"
    );
}

fn groups(report: &Report) -> Vec<Group> {
    let any = |present: fn(&Row) -> bool| report.rows.iter().any(present);
    let timed = any(|row| !row.floor.samples.is_empty());
    let counted = any(|row| row.floor.counts.is_some());
    let compared = any(|row| row.refrain.is_some());

    let mut groups = Vec::new();
    let mut group = |heading, columns: Vec<Column>| {
        // The floor comes first, and alone when nothing is compared with it.
        let shown = if compared { columns.len() } else { 1 };
        let columns = columns.into_iter().take(shown).collect();
        groups.push(Group { heading, columns });
    };
    let column =
        |title, cell: fn(&Row) -> Option<f64>, digits| Column::new(title, report, cell, digits);
    if timed {
        group(
            "requests/s",
            vec![
                column("floor", |row| row.floor.per_second(), 0),
                column("Refrain", |row| row.refrain.as_ref()?.per_second(), 0),
                column("ratio", Row::throughput_ratio, 2),
            ],
        );
        group(
            "CPU µs",
            vec![
                column("floor", |row| row.floor.cpu_micros(), 2),
                column("Refrain", |row| row.refrain.as_ref()?.cpu_micros(), 2),
                column("ratio", Row::cpu_ratio, 2),
            ],
        );
    }
    if counted {
        group(
            "instructions",
            vec![
                column("floor", |row| row.floor.instructions(), 0),
                column("Refrain", |row| row.refrain.as_ref()?.instructions(), 0),
                column("ratio", Row::instruction_ratio, 2),
            ],
        );
        group(
            "allocations",
            vec![
                column("floor", |row| row.floor.allocations(), 1),
                column("Refrain", |row| row.refrain.as_ref()?.allocations(), 1),
            ],
        );
    }
    groups
}

fn grid(out: &mut String, report: &Report, groups: &[Group]) {
    let names: Vec<&str> = report.rows.iter().map(|row| row.workload.name()).collect();
    let first = "workload";
    let name_width = names
        .iter()
        .map(|name| name.len())
        .fold(first.len(), usize::max);

    let mut headings = " ".repeat(name_width);
    let mut titles = format!("{first:<name_width$}");
    let mut lines: Vec<String> = names
        .iter()
        .map(|name| format!("{name:<name_width$}"))
        .collect();
    for group in groups {
        let inner: usize = group.columns.iter().map(Column::width).sum();
        let natural = inner + GAP * group.columns.len().saturating_sub(1);
        let width = natural.max(group.heading.chars().count());
        let _ = write!(headings, "{:GROUP_GAP$}{:>width$}", "", group.heading);
        for (index, column) in group.columns.iter().enumerate() {
            // A heading wider than its columns widens the first of them.
            let (gap, column_width) = match index {
                0 => (GROUP_GAP, column.width() + width - natural),
                _ => (GAP, column.width()),
            };
            let _ = write!(titles, "{:gap$}{:>column_width$}", "", column.title);
            for (line, cell) in lines.iter_mut().zip(&column.cells) {
                let _ = write!(line, "{:gap$}{cell:>column_width$}", "");
            }
        }
    }
    let _ = writeln!(out, "{BOLD}{headings}{BOLD:#}\n{BOLD}{titles}{BOLD:#}");
    for line in lines {
        let _ = writeln!(out, "{line}");
    }
}

fn target_line(out: &mut String, target: &Target) {
    let (style, verdict) = match target.held() {
        Some(true) => (GOOD, "held"),
        Some(false) => (BAD, "not held"),
        None => (DIM, "not measured"),
    };
    let measured = target
        .measured
        .map_or_else(String::new, |value| format!("{value:.2}"));
    let _ = writeln!(
        out,
        "{:<42}  <= {:<5}  {measured:>6}  {style}{verdict}{style:#}",
        target.name, target.limit,
    );
}

fn memory_lines(out: &mut String, memory: &Memory) {
    let dialogues = number(Some(memory.dialogues as f64), 0);
    let _ = writeln!(
        out,
        "{BOLD}Refrain's resident memory while {dialogues} dialogues wait{BOLD:#}"
    );
    let parts = memory.resident_kib.len().saturating_sub(1).max(1);
    for (index, kib) in memory.resident_kib.iter().enumerate() {
        let percent = index * 100 / parts;
        let _ = writeln!(
            out,
            "{percent:>4} %  {:>9} KiB",
            number(Some(*kib as f64), 0)
        );
    }
    let _ = writeln!(out, "100 % over 10 %: {:.3}\n", memory.growth);
}

/// A number with its thousands marked, or a dash.
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
    use crate::report::tests::example;

    fn plain(report: &Report) -> String {
        anstream::adapter::strip_str(&render(report)).to_string()
    }

    #[test]
    fn thousands_are_marked() {
        assert_eq!(number(Some(1_234_567.0), 0), "1,234,567");
        assert_eq!(number(Some(123.456), 1), "123.5");
        assert_eq!(number(Some(-1234.5), 2), "-1,234.50");
        assert_eq!(number(None, 0), "-");
    }

    #[test]
    fn every_row_ends_where_the_titles_end() {
        let text = plain(&example());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("requests/s") && lines[0].contains("allocations"));
        let width = lines[1].chars().count();
        assert!(
            lines[..6].iter().all(|line| line.chars().count() == width),
            "{text}"
        );
        assert!(lines[5].starts_with("full exchange"));
        assert!(text.contains("not held"));
        assert!(text.contains("100 % over 10 %: 1.002"));
        assert!(text.contains("Machine: Some CPU, 2 cores"));
    }

    #[test]
    fn columns_without_numbers_are_left_out() {
        let mut report = example();
        for row in &mut report.rows {
            row.refrain = None;
            row.floor.counts = None;
        }
        report.no_counts = Some("valgrind cannot be run".to_owned());
        let text = plain(&report);
        assert!(!text.contains("instructions  ") && !text.contains("ratio"));
        assert!(text.contains("left out: valgrind cannot be run"));
        assert!(text.contains("not measured"));
    }
}
