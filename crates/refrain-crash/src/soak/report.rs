//! The report of a soak test: JSON, or a table.

use super::SoakCounts;
use super::check::{CallFindings, CallHome};
use super::monitor::{Leftovers, Memory, Sample};
use crate::StoreKind;
use crate::check::Findings;
use crate::client::ClientCounts;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The number of faults that the table shows.
const MAX_SHOWN: usize = 20;

#[derive(Debug, Serialize)]
pub(crate) struct SoakReport {
    pub(super) store: StoreKind,
    pub(super) seed: u64,
    pub(super) seconds: u32,
    pub(super) kills: usize,
    pub(super) calls: CallFindings,
    pub(super) tasks_ended: usize,
    pub(super) tasks: Findings,
    pub(super) clients: ClientCounts,
    pub(super) counts: SoakCounts,
    pub(super) memory: Option<Memory>,
    /// The first instance before the load.
    pub(super) before: Sample,
    /// The first instance and the store after the load.
    pub(super) left: Leftovers,
    pub(crate) faults: Vec<String>,
}

impl SoakReport {
    /// Adds the faults of all checks.
    pub(super) fn collect_faults(&mut self) {
        self.faults.append(&mut self.calls.faults);
        self.faults.append(&mut self.tasks.faults);
        self.faults.append(&mut self.left.faults);
        match &self.memory {
            Some(memory) => self.faults.extend(memory.fault()),
            None => self.faults.push("too few samples of the memory".to_owned()),
        }
        let missing = |count: u64, what: &str| (count == 0).then(|| format!("no {what}"));
        let completed = |home| self.calls.completed.get(&home).copied().unwrap_or(0);
        let faults = [
            missing(
                completed(CallHome::Client),
                "call with its journal at the client completed",
            ),
            missing(completed(CallHome::Live), "live call completed"),
            missing(completed(CallHome::Legacy), "legacy call completed"),
            missing(self.tasks_ended as u64, "task ended"),
            missing(self.counts.updates, "update was received"),
            missing(self.counts.hostile.sum(), "hostile request was sent"),
            missing(self.kills as u64, "instance was killed"),
        ];
        self.faults.extend(faults.into_iter().flatten());
    }

    pub(crate) fn table(&self) -> String {
        let mut table = String::new();
        for (name, value) in self.rows() {
            let _ = writeln!(table, "{name:<31} {value}");
        }
        for fault in self.faults.iter().take(MAX_SHOWN) {
            let _ = writeln!(table, "fault: {fault}");
        }
        table
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let home = |home: CallHome| {
            let count = |counts: &BTreeMap<_, _>| counts.get(&home).copied().unwrap_or(0);
            let (completed, lost) = (count(&self.calls.completed), count(&self.calls.lost));
            format!("{completed} completed, {lost} lost")
        };
        let mib = |kib: u64| kib as f64 / 1024.0;
        let memory = self.memory.map_or_else(String::new, |memory| {
            let (warm, end) = (mib(memory.warm_kib), mib(memory.end_kib));
            let growth = memory.growth() * 100.0;
            format!("{warm:.1} MiB after the warm-up, {end:.1} MiB at the end ({growth:+.1} %)")
        });
        let (before, after) = (&self.before, &self.left.sample);
        let change =
            |before: u64, after: u64| format!("{before} before the load, {after} after it");
        let (effects, repeated) = (self.calls.effects, self.calls.second_attempts);
        let effects = format!("{effects}, {repeated} attempts repeated");
        let (ended, tasks) = (self.tasks_ended, &self.tasks);
        let tasks = format!(
            "{ended} ended, {} effects, {} attempts",
            tasks.effects, tasks.attempts
        );
        let counts = &self.counts;
        let subscriptions = format!("{}, {} updates", counts.subscriptions, counts.updates);
        vec![
            ("seed, store", format!("{}, {:?}", self.seed, self.store)),
            ("load", format!("{} s, {} kills", self.seconds, self.kills)),
            ("calls, journal at the client", home(CallHome::Client)),
            ("live calls", home(CallHome::Live)),
            ("legacy calls", home(CallHome::Legacy)),
            ("effects of calls", effects),
            ("tasks", tasks),
            ("subscriptions", subscriptions),
            ("hostile requests", self.counts.hostile.sum().to_string()),
            ("memory", memory),
            ("open files", change(before.files, after.files)),
            ("sockets", change(before.sockets, after.sockets)),
            ("tokio tasks", change(before.tokio_tasks, after.tokio_tasks)),
            (
                "live calls, subscriptions left",
                format!("{}, {}", after.live_calls, after.subscriptions),
            ),
            (
                "store",
                format!("{} after {:.0} s", self.left.rows, self.left.seconds),
            ),
            ("faults", self.faults.len().to_string()),
        ]
    }
}
