//! The report of a run, as text and as JSON: medians, ratios to the floor, targets.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use crate::counts::Counts;
use crate::load::Workload;
use crate::machine::Machine;
use crate::run::Options;
use crate::stats::{Sample, median, ratio};
use crate::table::{BAD, BOLD, DIM, number, verdict};

/// Spaces between two columns, and between two groups of them.
const GAP: usize = 2;
const GROUP_GAP: usize = 4;
/// A server that used less of its core than this was not the bottleneck.
const BUSY: f64 = 0.9;

/// One workload on one server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measures {
    pub(crate) samples: Vec<Sample>,
    pub(crate) counts: Option<Counts>,
}

impl Measures {
    fn per_second(&self) -> Option<f64> {
        median(&self.samples, Sample::per_second)
    }

    fn cpu_micros(&self) -> Option<f64> {
        median(&self.samples, Sample::cpu_micros)
    }

    fn busy(&self) -> Option<f64> {
        median(&self.samples, Sample::busy)
    }

    fn instructions(&self) -> Option<f64> {
        self.counts.map(|counts| counts.instructions)
    }

    fn allocations(&self) -> Option<f64> {
        self.counts.map(|counts| counts.allocations)
    }

    fn json(&self) -> Value {
        json!({
            "requestsPerSecond": self.per_second(),
            "cpuMicros": self.cpu_micros(),
            "busy": self.busy(),
            "instructions": self.instructions(),
            "allocations": self.allocations(),
            "slices": self.samples,
        })
    }
}

/// One workload on all servers.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) workload: Workload,
    /// The floor, then Refrain unless the floor was measured alone.
    pub(crate) servers: Vec<Measures>,
}

impl Row {
    fn refrain(&self) -> Option<&Measures> {
        self.servers.get(1)
    }

    fn sample_ratio(&self, value: fn(&Sample) -> f64) -> Option<f64> {
        let ratio = ratio(&self.refrain()?.samples, &self.servers[0].samples, value);
        ratio.map(|ratio| ratio.median)
    }

    fn throughput_ratio(&self) -> Option<f64> {
        self.sample_ratio(Sample::per_second)
    }

    fn cpu_ratio(&self) -> Option<f64> {
        self.sample_ratio(Sample::cpu_micros)
    }

    fn instruction_ratio(&self) -> Option<f64> {
        Some(self.refrain()?.instructions()? / self.servers[0].instructions()?)
    }

    fn json(&self) -> Value {
        json!({
            "workload": self.workload,
            "floor": self.servers[0].json(),
            "refrain": self.refrain().map(Measures::json),
            "ratios": {
                "requestsPerSecond": self.throughput_ratio(),
                "cpu": self.cpu_ratio(),
                "instructions": self.instruction_ratio(),
            },
        })
    }
}

/// A group of columns: heading, digits, the value on one server, and the ratio.
type Metric = (
    &'static str,
    usize,
    fn(&Measures) -> Option<f64>,
    Option<fn(&Row) -> Option<f64>>,
);

const METRICS: [Metric; 4] = [
    (
        "requests/s",
        0,
        Measures::per_second,
        Some(Row::throughput_ratio),
    ),
    ("CPU µs", 2, Measures::cpu_micros, Some(Row::cpu_ratio)),
    (
        "instructions",
        0,
        Measures::instructions,
        Some(Row::instruction_ratio),
    ),
    ("allocations", 1, Measures::allocations, None),
];

/// The columns of a metric with their titles; none if the floor has no value.
fn columns((_, digits, value, ratio): Metric, rows: &[Row]) -> Vec<Vec<String>> {
    if rows.iter().all(|row| value(&row.servers[0]).is_none()) {
        return Vec::new();
    }
    let column = |title: &str, digits, cell: &dyn Fn(&Row) -> Option<f64>| {
        let cells = rows.iter().map(|row| number(cell(row), digits));
        std::iter::once(title.to_owned()).chain(cells).collect()
    };
    let mut columns = vec![column("floor", digits, &|row| value(&row.servers[0]))];
    if rows.iter().any(|row| row.refrain().is_some()) {
        columns.push(column("Refrain", digits, &|row| {
            row.refrain().and_then(value)
        }));
        columns.extend(ratio.map(|ratio| column("ratio", 2, &ratio)));
    }
    columns
}

/// A bound that a run should stay within.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Target {
    name: &'static str,
    limit: f64,
    measured: Option<f64>,
    held: Option<bool>,
}

/// Resident memory of Refrain while dialogues wait.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Memory {
    pub(crate) dialogues: u64,
    /// KiB at 0 %, 10 %, … 100 % of the dialogues.
    pub(crate) resident_kib: Vec<u64>,
    /// The last value over the one at 10 %; 1 is flat.
    pub(crate) growth: f64,
}

/// The report of a run.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    pub(crate) machine: Machine,
    pub(crate) options: &'a Options,
    pub(crate) rows: Vec<Row>,
    /// Why there are no counts, if they were asked for.
    pub(crate) no_counts: Option<String>,
    pub(crate) memory: Option<Memory>,
}

impl Report<'_> {
    fn targets(&self) -> [Target; 3] {
        let target = |name, limit, measured: Option<f64>| Target {
            name,
            limit,
            measured,
            held: measured.map(|measured| measured <= limit),
        };
        let row = |workload| self.rows.iter().find(|row| row.workload == workload);
        let cpu = |workload| row(workload).and_then(Row::cpu_ratio);
        let allocations: Option<Vec<f64>> = [Workload::Echo, Workload::Round1, Workload::Round2]
            .into_iter()
            .map(|workload| row(workload)?.refrain()?.allocations())
            .collect();
        let most = allocations.and_then(|all| all.into_iter().max_by(f64::total_cmp));
        [
            target(
                "full exchange, CPU time over the floor's",
                1.3,
                cpu(Workload::Exchange),
            ),
            target("echo, CPU time over the floor's", 1.25, cpu(Workload::Echo)),
            target("heap allocations of any one request", 40.0, most),
        ]
    }

    /// The whole report, every slice included.
    pub(crate) fn json(&self) -> Value {
        json!({
            "machine": self.machine,
            "settings": self.options,
            "workloads": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
            "targets": self.targets(),
            "countsLeftOut": self.no_counts,
            "memory": self.memory,
        })
    }

    /// The table, the targets, the memory and the machine.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String does not fail, here and below.
        if self.grid(&mut out) {
            self.notes(&mut out);
            for Target {
                name,
                limit,
                measured,
                held,
            } in self.targets()
            {
                let measured = measured.map_or_else(String::new, |value| format!("{value:.2}"));
                let verdict = verdict(held);
                let _ = writeln!(out, "{name:<42}  <= {limit:<5}  {measured:>6}  {verdict}");
            }
            out.push('\n');
        }
        if let Some(reason) = &self.no_counts {
            let _ = writeln!(
                out,
                "Instructions and allocations are left out: {reason}.\n"
            );
        }
        if let Some(memory) = &self.memory {
            memory.write(&mut out);
        }
        let (machine, options) = (&self.machine, self.options);
        let _ = writeln!(
            out,
            "Machine: {}, {} cores, Linux {}; server on core {}, load on core {}.",
            machine.model, machine.cores, machine.kernel, options.server_core, options.load_core,
        );
        out
    }

    /// Writes the table. `false`: there are no columns.
    fn grid(&self, out: &mut String) -> bool {
        let length = |cell: &String| cell.chars().count();
        let width = |column: &Vec<String>| column.iter().map(length).max().unwrap_or_default();
        let names = self.rows.iter().map(|row| row.workload.name());
        let first: Vec<String> = ["", "workload"]
            .into_iter()
            .chain(names)
            .map(Into::into)
            .collect();
        let first_width = width(&first);
        let pad = |cell: &String| format!("{cell:<first_width$}");
        let mut lines: Vec<String> = first.iter().map(pad).collect();
        for metric in METRICS {
            let columns = columns(metric, &self.rows);
            let widths: Vec<usize> = columns.iter().map(width).collect();
            let natural = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
            let all = natural.max(metric.0.chars().count());
            for (index, column) in columns.iter().enumerate() {
                // A heading wider than its columns widens the first of them.
                let (gap, width) = match index {
                    0 => (GROUP_GAP, widths[0] + all - natural),
                    _ => (GAP, widths[index]),
                };
                if index == 0 {
                    let _ = write!(lines[0], "{:gap$}{:>all$}", "", metric.0);
                }
                for (line, cell) in lines[1..].iter_mut().zip(column) {
                    let _ = write!(line, "{:gap$}{cell:>width$}", "");
                }
            }
        }
        if lines[0].trim().is_empty() {
            return false;
        }
        let _ = writeln!(
            out,
            "{BOLD}{}{BOLD:#}\n{BOLD}{}{BOLD:#}",
            lines[0], lines[1]
        );
        for line in &lines[2..] {
            let _ = writeln!(out, "{line}");
        }
        true
    }

    fn notes(&self, out: &mut String) {
        let servers = self.rows.iter().flat_map(|row| &row.servers);
        if let Some(busy) = servers.filter_map(Measures::busy).min_by(f64::total_cmp) {
            let paired = match self.rows.iter().any(|row| row.refrain().is_some()) {
                true => "; a ratio is the median over slices side by side",
                false => "",
            };
            let options = self.options;
            let _ = writeln!(
                out,
                "{DIM}Slices: {} of {} s on {} connections. Times are medians{paired}.{DIM:#}",
                options.slices, options.seconds_per_slice, options.connections,
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
}

impl Memory {
    fn write(&self, out: &mut String) {
        let dialogues = number(Some(self.dialogues as f64), 0);
        let heading = format!("Refrain's resident memory while {dialogues} dialogues wait");
        let _ = writeln!(out, "{BOLD}{heading}{BOLD:#}");
        for (percent, kib) in (0..).step_by(10).zip(&self.resident_kib) {
            let kib = number(Some(*kib as f64), 0);
            let _ = writeln!(out, "{percent:>4} %  {kib:>9} KiB");
        }
        let _ = writeln!(out, "100 % over 10 %: {:.3}\n", self.growth);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn options() -> Options {
        match crate::Cli::parse_from(["refrain-bench", "run", "--slices", "3"]).command {
            crate::Command::Run(options) => options,
            other => panic!("{other:?}"),
        }
    }

    /// A report of four workloads, on which Refrain is a quarter slower than the floor.
    fn example(options: &Options) -> Report<'_> {
        let measures = |cost: f64| Measures {
            samples: (1..=3)
                .map(|slice| Sample {
                    done: 20_000,
                    seconds: cost * f64::from(slice),
                    cpu_seconds: cost * f64::from(slice),
                })
                .collect(),
            counts: Some(Counts {
                instructions: 20_000.0 * cost,
                allocations: 20.0 * cost,
            }),
        };
        let row = |workload| Row {
            workload,
            servers: vec![measures(1.0), measures(1.28)],
        };
        Report {
            machine: Machine {
                model: "Some CPU".to_owned(),
                cores: 2,
                kernel: "6.0".to_owned(),
            },
            options,
            rows: Workload::ALL.map(row).into(),
            no_counts: None,
            memory: Some(Memory {
                dialogues: 1000,
                resident_kib: (0..=10).map(|part| 4000 + part).collect(),
                growth: 1.002,
            }),
        }
    }

    fn plain(report: &Report<'_>) -> String {
        anstream::adapter::strip_str(&report.text()).to_string()
    }

    #[test]
    fn ratios_and_targets_follow_from_the_samples() {
        let options = options();
        let report = example(&options);
        let ratio = report.rows[0].cpu_ratio().unwrap();
        assert!((ratio - 1.28).abs() < 1e-9);
        let held = report.targets().map(|target| target.held);
        assert_eq!(held, [Some(true), Some(false), Some(true)]);
    }

    #[test]
    fn unmeasured_target_is_neither_held_nor_missed() {
        let options = options();
        let mut report = example(&options);
        for row in &mut report.rows {
            row.servers.truncate(1);
        }
        assert_eq!(report.targets().map(|target| target.held), [None; 3]);
        assert!(report.json()["workloads"][0]["refrain"].is_null());
    }

    #[test]
    fn json_names_workloads_and_keeps_every_slice() {
        let options = options();
        let json = example(&options).json();
        assert_eq!(json["settings"]["secondsPerSlice"], 1.0);
        assert_eq!(json["workloads"][3]["workload"], "exchange");
        assert_eq!(json["workloads"][0]["floor"]["slices"][2]["done"], 20_000);
        assert_eq!(json["targets"][1]["held"], false);
    }

    #[test]
    fn rows_end_where_the_titles_end() {
        let options = options();
        let text = plain(&example(&options));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("requests/s") && lines[0].contains("allocations"));
        let width = lines[1].chars().count();
        let equal = lines[..6].iter().all(|line| line.chars().count() == width);
        assert!(equal, "{text}");
        assert!(lines[5].starts_with("full exchange"));
        assert!(text.contains("not held"));
        assert!(text.contains("100 % over 10 %: 1.002"));
        assert!(text.contains("Machine: Some CPU, 2 cores"));
    }

    #[test]
    fn columns_without_numbers_are_left_out() {
        let options = options();
        let mut report = example(&options);
        for row in &mut report.rows {
            row.servers.truncate(1);
            row.servers[0].counts = None;
        }
        report.no_counts = Some("valgrind cannot be run".to_owned());
        let text = plain(&report);
        assert!(!text.contains("instructions  ") && !text.contains("ratio"));
        assert!(text.contains("left out: valgrind cannot be run"));
        assert!(text.contains("not measured"));
    }
}
