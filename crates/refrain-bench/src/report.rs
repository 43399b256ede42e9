//! The report of a speed run: medians, ratios to the floor, targets.

use std::fmt::Write as _;

use crate::counts::RequestCounts;
use crate::load::Workload;
use crate::machine;
use crate::run::RunOptions;
use crate::stats::{Sample, median, ratio};
use crate::table::{BAD, BOLD, DIM, grid, number, verdict};

/// A server that used less than this share of its core was not the bottleneck.
const MIN_BUSY: f64 = 0.9;
/// The target for CPU time: at most this many times the floor's.
const CPU_LIMIT: f64 = 1.15;

/// The measurements of a workload on one server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measures {
    pub(crate) samples: Vec<Sample>,
    pub(crate) counts: Option<RequestCounts>,
}

/// A column of the table: a median of slices, or a count.
#[derive(Clone, Copy)]
enum Metric {
    Median(fn(&Sample) -> f64),
    Count(fn(&RequestCounts) -> f64),
}

const CPU: Metric = Metric::Median(Sample::cpu_micros);
const INSTRUCTIONS: Metric = Metric::Count(|counts| counts.instructions);
const ALLOCATIONS: Metric = Metric::Count(|counts| counts.allocations);
/// Heading, digits after the decimal point, value.
const METRICS: [(&str, usize, Metric); 4] = [
    ("requests/s", 0, Metric::Median(Sample::per_second)),
    ("CPU µs", 2, CPU),
    ("instructions", 0, INSTRUCTIONS),
    ("allocations", 1, ALLOCATIONS),
];

#[derive(Clone, Debug)]
pub(crate) struct WorkloadRow {
    pub(crate) workload: Workload,
    /// The floor, then Refrain.
    pub(crate) servers: [Measures; 2],
}

impl WorkloadRow {
    fn value(&self, server: usize, metric: Metric) -> Option<f64> {
        let Measures { samples, counts } = &self.servers[server];
        match metric {
            Metric::Median(value) => median(samples, value),
            Metric::Count(value) => counts.as_ref().map(value),
        }
    }

    /// Refrain's value over the floor's.
    fn ratio(&self, metric: Metric) -> Option<f64> {
        let [floor, refrain] = &self.servers;
        match metric {
            Metric::Median(value) => {
                ratio(&refrain.samples, &floor.samples, value).map(|ratio| ratio.median)
            }
            Metric::Count(_) => Some(self.value(1, metric)? / self.value(0, metric)?),
        }
    }
}

/// Refrain's resident memory while dialogues wait for answers.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) dialogues: u64,
    /// KiB at 0 %, 10 %, … 100 % of the dialogues.
    pub(crate) resident_kib: Vec<u64>,
    /// The ratio of the last value to the one at 10 %. 1 means no growth.
    pub(crate) growth: f64,
}

#[derive(Debug)]
pub(crate) struct SpeedReport<'a> {
    pub(crate) options: &'a RunOptions,
    pub(crate) rows: Vec<WorkloadRow>,
    /// Why counts are missing although `--allocations` is set.
    pub(crate) no_counts: Option<String>,
    pub(crate) memory: Option<Memory>,
}

impl SpeedReport<'_> {
    /// The targets, their upper bounds and the measured values.
    fn targets(&self) -> [(&'static str, f64, Option<f64>); 3] {
        let row = |workload| self.rows.iter().find(|row| row.workload == workload);
        let cpu = |workload| row(workload)?.ratio(CPU);
        let requests = [Workload::Echo, Workload::Round1, Workload::Round2];
        let allocations = requests.map(|workload| row(workload)?.value(1, ALLOCATIONS));
        let allocations: Option<Vec<f64>> = allocations.into_iter().collect();
        let max_allocations = allocations.and_then(|all| all.into_iter().max_by(f64::total_cmp));
        let (exchange, echo) = (cpu(Workload::Exchange), cpu(Workload::Echo));
        [
            (
                "full exchange, CPU time relative to the floor",
                CPU_LIMIT,
                exchange,
            ),
            ("echo, CPU time relative to the floor", CPU_LIMIT, echo),
            ("heap allocations of any request", 40.0, max_allocations),
        ]
    }

    /// The table, the targets, the memory and the machine.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String does not fail.
        let lines = self.lines();
        if lines[0].len() > 1 {
            grid(&mut out, 2, &lines);
            self.write_notes(&mut out);
            for (name, limit, measured) in self.targets() {
                let verdict = verdict(measured.map(|measured| measured <= limit));
                let measured = measured.map(|value| format!("{value:.2}"));
                let measured = measured.unwrap_or_default();
                let _ = writeln!(out, "{name:<45}  <= {limit:<5}  {measured:>6}  {verdict}");
            }
            out.push('\n');
        }
        if let Some(reason) = &self.no_counts {
            let _ = writeln!(
                out,
                "Instructions and allocations were not counted: {reason}.\n"
            );
        }
        if let Some(memory) = &self.memory {
            memory.write(&mut out);
        }
        let (server, load) = (self.options.server_core, self.options.load_core);
        let machine = machine::description();
        let _ = writeln!(
            out,
            "{machine}; server on core {server}, load on core {load}."
        );
        out
    }

    /// The rows of the table. The first two are headings.
    fn lines(&self) -> Vec<Vec<String>> {
        let rows = &self.rows;
        let mut lines = vec![vec![String::new()], vec!["workload".to_owned()]];
        lines.extend(rows.iter().map(|row| vec![row.workload.to_string()]));
        let mut column = |titles: [&str; 2], digits, cell: &dyn Fn(&WorkloadRow) -> Option<f64>| {
            let cells = rows.iter().map(|row| number(cell(row), digits));
            let titles = titles.map(str::to_owned).into_iter();
            for (line, cell) in lines.iter_mut().zip(titles.chain(cells)) {
                line.push(cell);
            }
        };
        for (heading, digits, metric) in METRICS {
            if rows.iter().all(|row| row.value(0, metric).is_none()) {
                continue;
            }
            column([heading, "floor"], digits, &|row| row.value(0, metric));
            column(["", "Refrain"], digits, &|row| row.value(1, metric));
            column(["", "ratio"], 2, &|row| row.ratio(metric));
        }
        lines
    }

    fn write_notes(&self, out: &mut String) {
        let servers = self.rows.iter().flat_map(|row| &row.servers);
        let busy = servers.filter_map(|server| median(&server.samples, Sample::busy));
        if let Some(busy) = busy.min_by(f64::total_cmp) {
            let options = self.options;
            let _ = writeln!(
                out,
                "{DIM}Slices: {} of {} s on {} connections. Times are medians; ratios are medians of the ratios of \
                 adjacent slices.{DIM:#}",
                options.slices, options.seconds_per_slice, options.connections,
            );
            if busy < MIN_BUSY {
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

    fn options() -> RunOptions {
        match crate::Cli::parse_from(["refrain-bench", "run", "--slices", "3"]).command {
            crate::Command::Run(options) => options,
            other => panic!("{other:?}"),
        }
    }

    /// A report of four workloads in which Refrain needs 1.28 times the floor's CPU time.
    fn example(options: &RunOptions) -> SpeedReport<'_> {
        let measures = |cost: f64| Measures {
            samples: (1..=3)
                .map(|slice| Sample {
                    done: 20_000,
                    seconds: cost * f64::from(slice),
                    cpu_seconds: cost * f64::from(slice),
                })
                .collect(),
            counts: Some(RequestCounts {
                instructions: 20_000.0 * cost,
                allocations: 20.0 * cost,
            }),
        };
        let row = |workload| WorkloadRow {
            workload,
            servers: [measures(1.0), measures(1.28)],
        };
        SpeedReport {
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

    fn plain(report: &SpeedReport<'_>) -> String {
        anstream::adapter::strip_str(&report.text()).to_string()
    }

    #[test]
    fn ratios_and_targets_are_computed_from_samples() {
        let options = options();
        let report = example(&options);
        let ratio = report.rows[0].ratio(CPU).unwrap();
        assert!((ratio - 1.28).abs() < 1e-9);
        let is_met = report
            .targets()
            .map(|(_, limit, measured)| measured.map(|value| value <= limit));
        assert_eq!(is_met, [Some(false), Some(false), Some(true)]);
    }

    #[test]
    fn columns_are_aligned() {
        let options = options();
        let text = plain(&example(&options));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("requests/s") && lines[0].contains("allocations"));
        let width = lines[1].chars().count();
        let equal = lines[..6].iter().all(|line| line.chars().count() == width);
        assert!(equal, "{text}");
        assert!(lines[5].starts_with("full exchange"));
        assert!(text.contains("missed"));
        assert!(text.contains("100 % over 10 %: 1.002"));
        assert!(text.contains("Machine: "));
    }

    #[test]
    fn empty_columns_are_omitted() {
        let options = options();
        let mut report = example(&options);
        for server in report.rows.iter_mut().flat_map(|row| &mut row.servers) {
            server.counts = None;
        }
        report.no_counts = Some("valgrind is missing".to_owned());
        let text = plain(&report);
        assert!(!text.contains("instructions  "));
        assert!(text.contains("not counted: valgrind is missing"));
        assert!(text.contains("not measured"));
    }
}
