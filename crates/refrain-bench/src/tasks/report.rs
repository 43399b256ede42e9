//! The report of the task benchmark.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::TaskBenchOptions;
use super::idle::Idle;
use crate::machine;
use crate::stats::{Sample, Spread, median, ratio};
use crate::table::{BOLD, DIM, grid, number, verdict};

/// The target: Refrain completes at least this share of the floor's tasks per second.
const TARGET: f64 = 0.6;

/// The slices of the floor and of Refrain for the same work, in the same order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairs {
    pub(crate) floor: Vec<Sample>,
    pub(crate) refrain: Vec<Sample>,
}

impl Pairs {
    fn ratio(&self, value: fn(&Sample) -> f64) -> Option<Spread> {
        ratio(&self.refrain, &self.floor, value)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct PerTask {
    pub(crate) floor_commits: f64,
    pub(crate) refrain_commits: f64,
    /// Refrain's store calls, by operation.
    pub(crate) calls: BTreeMap<&'static str, f64>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct StoreResults {
    pub(crate) database: String,
    pub(crate) life: Pairs,
    pub(crate) get: Pairs,
    pub(crate) per_task: PerTask,
    pub(crate) idle: Vec<Idle>,
}

impl StoreResults {
    /// The ratio of tasks per second to the floor's.
    fn throughput(&self) -> Option<f64> {
        let ratio = self.life.ratio(Sample::per_second);
        ratio.map(|ratio| ratio.median)
    }
}

#[derive(Debug)]
pub(crate) struct TaskReport<'a> {
    pub(crate) options: &'a TaskBenchOptions,
    pub(crate) stores: Vec<StoreResults>,
}

impl TaskReport<'_> {
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String does not fail.
        for store in &self.stores {
            let _ = writeln!(out, "{BOLD}{}{BOLD:#}", store.database);
            pairs_lines(&mut out, store);
            per_task_lines(&mut out, &store.per_task);
            idle_lines(&mut out, &store.idle);
            out.push('\n');
        }
        let options = self.options;
        let _ = writeln!(
            out,
            "{DIM}Slices: {} of {} s, {} at a time. A ratio is the median of the ratios of adjacent slices, with their \
             interquartile range. CPU time is that of the process with the clients and the instance, without a database \
             server.{DIM:#}",
            options.slices, options.seconds_per_slice, options.concurrent,
        );
        let _ = writeln!(out, "{}.", machine::description());
        out
    }
}

fn pairs_lines(out: &mut String, store: &StoreResults) {
    if store.life.floor.is_empty() {
        return;
    }
    let headings = [
        "per second",
        "floor",
        "Refrain",
        "ratio",
        "CPU µs",
        "CPU µs",
        "ratio",
    ];
    let line = |(name, pairs): (&str, &Pairs)| {
        let mut line = vec![name.to_owned()];
        for value in [Sample::per_second, Sample::cpu_micros] {
            line.push(number(median(&pairs.floor, value), 0));
            line.push(number(median(&pairs.refrain, value), 0));
            line.push(spread(pairs.ratio(value)));
        }
        line
    };
    let [life, get] = [("complete tasks", &store.life), ("tasks/get", &store.get)].map(line);
    grid(out, 1, &[headings.map(str::to_owned).into(), life, get]);
    if let Some(ratio) = store.throughput() {
        let verdict = verdict(Some(ratio >= TARGET));
        let _ = writeln!(
            out,
            "complete tasks, relative to the floor  >= {TARGET}  {ratio:.2}  {verdict}"
        );
    }
}

fn per_task_lines(out: &mut String, per_task: &PerTask) {
    let calls: Vec<String> = per_task
        .calls
        .iter()
        .map(|(name, count)| format!("{name} {count:.2}"))
        .collect();
    let _ = writeln!(
        out,
        "commits per task: floor {:.2}, Refrain {:.2}; Refrain's store calls: {}",
        per_task.floor_commits,
        per_task.refrain_commits,
        calls.join(", "),
    );
}

fn idle_lines(out: &mut String, idle: &[Idle]) {
    if idle.is_empty() {
        return;
    }
    let headings = [
        "tasks waiting",
        "CPU ms/s",
        "resident KiB",
        "calls/s",
        "µs per call",
    ];
    let mut lines = vec![headings.map(str::to_owned).to_vec()];
    for idle in idle {
        lines.push(vec![
            format!("{:>13}", number(Some(idle.waiting as f64), 0)),
            number(Some(idle.cpu_millis), 2),
            number(Some(idle.resident_kib as f64), 0),
            number(Some(idle.calls), 2),
            number(Some(idle.call_micros), 0),
        ]);
    }
    grid(out, 1, &lines);
}

fn spread(spread: Option<Spread>) -> String {
    spread.map_or_else(
        || "-".to_owned(),
        |Spread { low, median, high }| format!("{median:.2} ({low:.2} - {high:.2})"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn options() -> TaskBenchOptions {
        match crate::Cli::parse_from(["refrain-bench", "tasks"]).command {
            crate::Command::Tasks(options) => options,
            other => panic!("{other:?}"),
        }
    }

    /// A report in which Refrain completes 0.8 times as many tasks as the floor.
    fn example(options: &TaskBenchOptions) -> TaskReport<'_> {
        let samples = |done: u64| {
            let sample = |slice: u32| Sample {
                done,
                seconds: f64::from(slice),
                cpu_seconds: 0.5,
            };
            (1..=12).map(sample).collect()
        };
        let pairs = || Pairs {
            floor: samples(1000),
            refrain: samples(800),
        };
        let idle = |waiting| Idle {
            waiting,
            cpu_millis: 0.25,
            resident_kib: 12_345,
            calls: 3.0,
            call_micros: 80.0,
        };
        let store = StoreResults {
            database: "Some SQL 1".to_owned(),
            life: pairs(),
            get: pairs(),
            per_task: PerTask {
                floor_commits: 4.5,
                refrain_commits: 4.25,
                calls: [("claim", 0.5), ("commit", 2.0)].into(),
            },
            idle: [0, 10, 100].map(idle).into(),
        };
        TaskReport {
            options,
            stores: vec![store],
        }
    }

    #[test]
    fn text_has_ratios_commits_and_idle_cost() {
        let options = options();
        let text = example(&options).text();
        let text = anstream::adapter::strip_str(&text).to_string();
        for expected in [
            "complete tasks",
            "0.80 (0.80 - 0.80)",
            ">= 0.6  0.80  met",
            "floor 4.50, Refrain 4.25",
            "claim 0.50, commit 2.00",
            "12,345",
            "Slices: 12 of 1 s, 32 at a time",
        ] {
            assert!(text.contains(expected), "{expected} is missing:\n{text}");
        }
    }

    #[test]
    fn ratio_below_the_target_is_missed() {
        let options = options();
        let mut report = example(&options);
        for sample in &mut report.stores[0].life.refrain {
            sample.done = 500;
        }
        assert!(report.text().contains("missed"));
    }
}
