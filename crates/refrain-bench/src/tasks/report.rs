//! What a run on tasks found, and how it is shown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use super::idle::Idle;
use crate::load::Sample;
use crate::machine::Machine;
use crate::report::median;
use crate::table::{BAD, BOLD, DIM, GOOD, number};

/// Tasks per second over the floor's, to reach.
const TARGET: f64 = 0.6;

/// How the run was set up.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Settings {
    pub(crate) slices: usize,
    pub(crate) seconds_per_slice: f64,
    pub(crate) concurrent: usize,
    pub(crate) idle: u64,
    pub(crate) idle_seconds: f64,
}

/// The same work by both sides, slice by slice.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairs {
    pub(crate) floor: Vec<Sample>,
    pub(crate) refrain: Vec<Sample>,
}

/// The middle of several values, and the range that half of them are in.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Spread {
    fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|it| it.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        Some(Self {
            low: values[last / 4],
            median: median(values.iter().copied())?,
            high: values[last - last / 4],
        })
    }
}

impl Pairs {
    /// Refrain's over the floor's, of slices side by side.
    fn ratio(&self, value: impl Fn(&Sample) -> f64) -> Option<Spread> {
        let pairs = self.refrain.iter().zip(&self.floor);
        Spread::of(pairs.map(|(refrain, floor)| value(refrain) / value(floor)))
    }

    pub(crate) fn throughput(&self) -> Option<Spread> {
        self.ratio(Sample::per_second)
    }

    fn cpu(&self) -> Option<Spread> {
        self.ratio(Sample::cpu_micros)
    }

    fn json(&self) -> Value {
        json!({
            "floor": self.floor,
            "refrain": self.refrain,
            "perSecond": {
                "floor": median(self.floor.iter().map(Sample::per_second)),
                "refrain": median(self.refrain.iter().map(Sample::per_second)),
                "ratio": self.throughput(),
            },
            "cpuMicros": {
                "floor": median(self.floor.iter().map(Sample::cpu_micros)),
                "refrain": median(self.refrain.iter().map(Sample::cpu_micros)),
                "ratio": self.cpu(),
            },
        })
    }
}

/// What one life of a task takes, counted and not timed.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PerTask {
    /// Commits of the floor, by the database's own count.
    pub(crate) floor_commits: f64,
    /// Those of Refrain.
    pub(crate) refrain_commits: f64,
    /// What Refrain asks of its store.
    pub(crate) calls: BTreeMap<&'static str, f64>,
}

/// What was found on one store.
#[derive(Clone, Debug, Default)]
pub(crate) struct OnStore {
    pub(crate) database: String,
    pub(crate) life: Pairs,
    pub(crate) get: Pairs,
    pub(crate) per_task: PerTask,
    pub(crate) idle: Vec<Idle>,
}

impl OnStore {
    fn json(&self) -> Value {
        let ratio = self.life.throughput().map(|ratio| ratio.median);
        json!({
            "database": self.database,
            "life": self.life.json(),
            "get": self.get.json(),
            "perTask": self.per_task,
            "idle": self.idle,
            "target": { "limit": TARGET, "measured": ratio, "held": ratio.map(|it| it >= TARGET) },
        })
    }
}

/// Everything a run found.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) settings: Settings,
    pub(crate) stores: Vec<OnStore>,
}

impl Report {
    /// The whole report, every slice included.
    pub(crate) fn json(&self) -> Value {
        json!({
            "machine": self.machine,
            "settings": self.settings,
            "stores": self.stores.iter().map(OnStore::json).collect::<Vec<_>>(),
        })
    }

    /// The report as text.
    pub(crate) fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a String does not fail, here and below.
        for store in &self.stores {
            let _ = writeln!(out, "{BOLD}{}{BOLD:#}", store.database);
            pairs_lines(&mut out, store);
            per_task_lines(&mut out, &store.per_task);
            idle_lines(&mut out, &store.idle);
            out.push('\n');
        }
        let settings = &self.settings;
        let _ = writeln!(
            out,
            "{DIM}Slices: {} of {} s, {} at a time. A ratio is the median over slices side by side; half of them lie in \
             the range behind it. CPU time is that of the client's and the instance's process, not of a database \
             server's.{DIM:#}",
            settings.slices, settings.seconds_per_slice, settings.concurrent,
        );
        let machine = &self.machine;
        let _ = writeln!(
            out,
            "Machine: {}, {} cores, Linux {}.",
            machine.model, machine.cores, machine.kernel
        );
        out
    }
}

fn pairs_lines(out: &mut String, store: &OnStore) {
    if store.life.floor.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "{BOLD}{:<16}{:>10}{:>10}  {:<20}{:>10}{:>10}  ratio{BOLD:#}",
        "per second", "floor", "Refrain", "ratio", "CPU µs", "CPU µs"
    );
    for (name, pairs) in [("lives of a task", &store.life), ("tasks/get", &store.get)] {
        let middle = |samples: &[Sample], value: fn(&Sample) -> f64| {
            number(median(samples.iter().map(value)), 0)
        };
        let _ = writeln!(
            out,
            "{name:<16}{:>10}{:>10}  {:<20}{:>10}{:>10}  {}",
            middle(&pairs.floor, Sample::per_second),
            middle(&pairs.refrain, Sample::per_second),
            spread(pairs.throughput()),
            middle(&pairs.floor, Sample::cpu_micros),
            middle(&pairs.refrain, Sample::cpu_micros),
            spread(pairs.cpu()),
        );
    }
    if let Some(ratio) = store.life.throughput() {
        let (style, verdict) = match ratio.median >= TARGET {
            true => (GOOD, "held"),
            false => (BAD, "not held"),
        };
        let _ = writeln!(
            out,
            "lives of a task, Refrain's over the floor's  >= {TARGET}  {:.2}  {style}{verdict}{style:#}",
            ratio.median
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
        "commits of a life: floor {:.2}, Refrain {:.2}; Refrain's calls of its store: {}",
        per_task.floor_commits,
        per_task.refrain_commits,
        calls.join(", "),
    );
}

fn idle_lines(out: &mut String, idle: &[Idle]) {
    if idle.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "{BOLD}{:>13}{:>14}{:>16}{:>15}{:>14}{BOLD:#}",
        "tasks waiting", "CPU ms/s", "resident KiB", "calls/s", "µs a call"
    );
    for idle in idle {
        let _ = writeln!(
            out,
            "{:>13}{:>14}{:>16}{:>15}{:>14}",
            number(Some(idle.waiting as f64), 0),
            number(Some(idle.cpu_millis), 2),
            number(Some(idle.resident_kib as f64), 0),
            number(Some(idle.calls), 2),
            number(Some(idle.call_micros), 0),
        );
    }
}

fn spread(spread: Option<Spread>) -> String {
    spread.map_or_else(
        || "-".to_owned(),
        |it| format!("{:.2} ({:.2} - {:.2})", it.median, it.low, it.high),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On one store, on which Refrain does 0.8 times what the floor does.
    fn example() -> Report {
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
            seconds: 10.0,
            cpu_millis: 0.25,
            resident_kib: 12_345,
            calls: 3.0,
            call_micros: 80.0,
        };
        let store = OnStore {
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
        Report {
            machine: Machine::look(),
            settings: Settings {
                slices: 12,
                seconds_per_slice: 1.0,
                concurrent: 32,
                idle: 100,
                idle_seconds: 10.0,
            },
            stores: vec![store],
        }
    }

    #[test]
    fn half_of_the_values_are_in_the_range() {
        let spread = Spread::of([5.0, 1.0, 4.0, f64::NAN, 2.0, 3.0]).unwrap();
        assert_eq!((spread.low, spread.median, spread.high), (2.0, 3.0, 4.0));
        assert_eq!(Spread::of([f64::INFINITY]), None);
    }

    #[test]
    fn the_text_has_ratios_commits_and_what_waiting_costs() {
        let text = anstream::adapter::strip_str(&example().render()).to_string();
        for expected in [
            "lives of a task",
            "0.80 (0.80 - 0.80)",
            ">= 0.6  0.80  held",
            "floor 4.50, Refrain 4.25",
            "claim 0.50, commit 2.00",
            "12,345",
            "Slices: 12 of 1 s, 32 at a time",
        ] {
            assert!(text.contains(expected), "{expected} is missing:\n{text}");
        }
    }

    #[test]
    fn a_ratio_below_the_target_is_shown_as_such() {
        let mut report = example();
        for sample in &mut report.stores[0].life.refrain {
            sample.done = 500;
        }
        assert!(report.render().contains("not held"));
        assert_eq!(report.json()["stores"][0]["target"]["held"], false);
    }

    #[test]
    fn the_json_keeps_every_slice() {
        let json = example().json();
        let store = &json["stores"][0];
        assert_eq!(store["life"]["refrain"][11]["done"], 800);
        assert_eq!(store["perTask"]["calls"]["commit"], 2.0);
        assert_eq!(store["idle"][2]["waiting"], 100);
        assert_eq!(store["target"]["held"], true);
    }
}
