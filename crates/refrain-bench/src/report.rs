//! What a run found: medians, ratios to the floor, targets.
//!
//! The ratio of two times is the median of the ratios of slices that ran side by side, so that a
//! machine that slows down for a while slows both sides of a pair.

use serde::Serialize;
use serde_json::{Value, json};

use crate::counts::Counts;
use crate::load::{Sample, Workload};
use crate::machine::Machine;
use crate::memory::Memory;

/// How the run was set up.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Settings {
    pub(crate) slices: usize,
    pub(crate) seconds_per_slice: f64,
    pub(crate) connections: usize,
    pub(crate) server_core: usize,
    pub(crate) load_core: usize,
}

/// One workload on one server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measures {
    pub(crate) samples: Vec<Sample>,
    pub(crate) counts: Option<Counts>,
}

/// One workload on both servers.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) workload: Workload,
    pub(crate) floor: Measures,
    /// `None` when only the floor was measured.
    pub(crate) refrain: Option<Measures>,
}

/// Everything a run found.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) settings: Settings,
    pub(crate) rows: Vec<Row>,
    /// Why there are no counts, when they were asked for.
    pub(crate) no_counts: Option<String>,
    pub(crate) memory: Option<Memory>,
}

/// A bound that a run should stay within.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) limit: f64,
    /// `None` when the run did not measure it.
    pub(crate) measured: Option<f64>,
}

impl Target {
    pub(crate) fn held(&self) -> Option<bool> {
        self.measured.map(|measured| measured <= self.limit)
    }
}

/// The median of what is finite in `values`.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values
        .into_iter()
        .filter(|value| value.is_finite())
        .collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        length if length % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

impl Measures {
    pub(crate) fn per_second(&self) -> Option<f64> {
        median(self.samples.iter().map(Sample::per_second))
    }

    pub(crate) fn cpu_micros(&self) -> Option<f64> {
        median(self.samples.iter().map(Sample::cpu_micros))
    }

    /// The share of its core that the server used: well below 1, the load was the bottleneck.
    pub(crate) fn busy(&self) -> Option<f64> {
        median(
            self.samples
                .iter()
                .map(|sample| sample.cpu_seconds / sample.seconds),
        )
    }

    pub(crate) fn instructions(&self) -> Option<f64> {
        self.counts.map(|counts| counts.instructions)
    }

    pub(crate) fn allocations(&self) -> Option<f64> {
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

impl Row {
    pub(crate) fn new(workload: Workload, with_refrain: bool) -> Self {
        Self {
            workload,
            floor: Measures::default(),
            refrain: with_refrain.then(Measures::default),
        }
    }

    fn paired(&self, value: impl Fn(&Sample) -> f64) -> Option<f64> {
        let refrain = self.refrain.as_ref()?;
        let pairs = refrain.samples.iter().zip(&self.floor.samples);
        median(pairs.map(|(refrain, floor)| value(refrain) / value(floor)))
    }

    pub(crate) fn throughput_ratio(&self) -> Option<f64> {
        self.paired(Sample::per_second)
    }

    pub(crate) fn cpu_ratio(&self) -> Option<f64> {
        self.paired(Sample::cpu_micros)
    }

    pub(crate) fn instruction_ratio(&self) -> Option<f64> {
        Some(self.refrain.as_ref()?.instructions()? / self.floor.instructions()?)
    }

    fn json(&self) -> Value {
        json!({
            "workload": self.workload,
            "floor": self.floor.json(),
            "refrain": self.refrain.as_ref().map(Measures::json),
            "ratios": {
                "requestsPerSecond": self.throughput_ratio(),
                "cpu": self.cpu_ratio(),
                "instructions": self.instruction_ratio(),
            },
        })
    }
}

impl Report {
    fn row(&self, workload: Workload) -> Option<&Row> {
        self.rows.iter().find(|row| row.workload == workload)
    }

    /// The smallest share of its core that a server used in any workload.
    pub(crate) fn least_busy(&self) -> Option<f64> {
        self.rows
            .iter()
            .flat_map(|row| [Some(&row.floor), row.refrain.as_ref()])
            .filter_map(|measures| measures?.busy())
            .min_by(f64::total_cmp)
    }

    /// The bounds, with what was measured against each.
    pub(crate) fn targets(&self) -> [Target; 3] {
        let cpu = |workload| self.row(workload).and_then(Row::cpu_ratio);
        let requests = [Workload::Echo, Workload::Round1, Workload::Round2];
        let allocations = requests
            .into_iter()
            .map(|workload| self.row(workload)?.refrain.as_ref()?.allocations())
            .collect::<Option<Vec<f64>>>()
            .and_then(|all| all.into_iter().max_by(f64::total_cmp));
        [
            Target {
                name: "full exchange, CPU time over the floor's",
                limit: 1.3,
                measured: cpu(Workload::Exchange),
            },
            Target {
                name: "echo, CPU time over the floor's",
                limit: 1.25,
                measured: cpu(Workload::Echo),
            },
            Target {
                name: "heap allocations of any one request",
                limit: 40.0,
                measured: allocations,
            },
        ]
    }

    /// The whole report, every slice included.
    pub(crate) fn json(&self) -> Value {
        let targets: Vec<Value> = self
            .targets()
            .iter()
            .map(|target| {
                json!({
                    "name": target.name,
                    "limit": target.limit,
                    "measured": target.measured,
                    "held": target.held(),
                })
            })
            .collect();
        json!({
            "machine": self.machine,
            "settings": self.settings,
            "workloads": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
            "targets": targets,
            "countsLeftOut": self.no_counts,
            "memory": self.memory,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A report of four workloads, on which Refrain is a quarter slower than the floor.
    pub(crate) fn example() -> Report {
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
        Report {
            machine: Machine {
                model: "Some CPU".to_owned(),
                cores: 2,
                kernel: "6.0".to_owned(),
            },
            settings: Settings {
                slices: 3,
                seconds_per_slice: 1.0,
                connections: 32,
                server_core: 0,
                load_core: 1,
            },
            rows: Workload::ALL
                .into_iter()
                .map(|workload| Row {
                    workload,
                    floor: measures(1.0),
                    refrain: Some(measures(1.28)),
                })
                .collect(),
            no_counts: None,
            memory: Some(Memory {
                dialogues: 1000,
                resident_kib: (0..=10).map(|part| 4000 + part).collect(),
                growth: 1.002,
            }),
        }
    }

    #[test]
    fn medians_leave_out_what_is_no_number() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, f64::NAN, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([f64::INFINITY]), None);
    }

    #[test]
    fn ratios_and_targets_follow_from_the_samples() {
        let report = example();
        let ratio = report.rows[0].cpu_ratio().unwrap();
        assert!((ratio - 1.28).abs() < 1e-9);
        let held: Vec<_> = report.targets().iter().map(Target::held).collect();
        assert_eq!(held, [Some(true), Some(false), Some(true)]);
    }

    #[test]
    fn what_was_not_measured_is_neither_held_nor_broken() {
        let mut report = example();
        for row in &mut report.rows {
            row.refrain = None;
        }
        assert!(
            report
                .targets()
                .iter()
                .all(|target| target.held().is_none())
        );
        assert!(report.json()["workloads"][0]["refrain"].is_null());
    }

    #[test]
    fn the_json_names_workloads_and_keeps_every_slice() {
        let json = example().json();
        assert_eq!(json["workloads"][3]["workload"], "exchange");
        assert_eq!(json["workloads"][0]["floor"]["slices"][2]["done"], 20_000);
        assert_eq!(json["targets"][1]["held"], false);
    }
}
