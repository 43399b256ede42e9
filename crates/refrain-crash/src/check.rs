//! The check of a run.
//!
//! - Every task ended as planned, and every effect is in the ledger exactly once.
//! - Every attempt at an effect, after the first, has an explanation.
//! - No attempt at an effect was made after its step's value was journaled, or before the previous step's value was.
//! - No worker wrote after it lost its lease, and no lease was taken over before it expired.
//! - The next holder of a lease found everything written under the previous one.

use crate::client::TaskEnd;
use crate::fleet::{Disruptions, WorkerKill, WorkerStop};
use crate::history::{History, LeaseHistory};
use crate::ledger::{AttemptRow, EffectRow};
use crate::plan::{Effect, TaskPlan};
use crate::record::{LeaseId, NextState, RecordEvent};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

#[derive(Debug)]
pub(crate) struct Evidence {
    pub(crate) ended: Vec<TaskEnd>,
    /// Sorted by start time.
    pub(crate) attempts: Vec<AttemptRow>,
    pub(crate) effects: Vec<EffectRow>,
    /// The records of the workers, by process.
    pub(crate) records: Vec<Vec<RecordEvent>>,
    pub(crate) disruptions: Disruptions,
    /// The length of a lease in microseconds.
    pub(crate) lease: u64,
    /// The number of tasks in the store.
    pub(crate) stored: usize,
    /// The number of tasks that the store should have.
    pub(crate) expected: usize,
}

/// Second and later attempts, by explanation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RetryCauses {
    /// The previous worker was killed.
    pub(crate) killed: u64,
    /// The previous worker was stopped for longer than its lease.
    pub(crate) stopped: u64,
    /// The previous worker lost its lease while the database was down.
    pub(crate) restarted: u64,
    /// The previous worker did not extend its lease in time.
    pub(crate) lease_lost: u64,
    /// A step asked for a retry.
    pub(crate) retried: u64,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Findings {
    pub(crate) effects: u64,
    pub(crate) attempts: u64,
    pub(crate) second_attempts: RetryCauses,
    /// Attempts of a worker that was stopped between the check of its lease and the attempt.
    pub(crate) interrupted_attempts: u64,
    /// Leases taken over from a worker that had not released them.
    pub(crate) takeovers: u64,
    /// Writes rejected because the lease was lost.
    pub(crate) writes_rejected: u64,
    pub(crate) faults: Vec<String>,
}

struct Attempt<'a> {
    row: &'a AttemptRow,
    lease: &'a LeaseId,
}

pub(crate) fn check(evidence: &Evidence) -> Findings {
    let ended = evidence.ended.iter();
    let ids = ended.map(|task| (task.plan.number, task.id.as_str()));
    let ids: HashMap<u32, &str> = ids.collect();
    let mut history = History::new(&evidence.records, &ids);
    let mut checker = Checker {
        evidence,
        findings: Findings {
            faults: std::mem::take(&mut history.faults),
            attempts: evidence.attempts.len() as u64,
            effects: evidence.effects.len() as u64,
            ..Findings::default()
        },
        late: BTreeMap::new(),
        history: &history,
    };
    checker.check_tasks();
    checker.check_ledger();
    checker.check_leases();
    let attempts = checker.attempts_by_effect();
    for (effect, attempts) in &attempts {
        checker.check_second_attempts(*effect, attempts);
        checker.check_after_journal(*effect, attempts);
    }
    for ended in &evidence.ended {
        checker.check_order(&ended.plan, &attempts);
    }
    checker.check_late_attempts();
    checker.findings
}

struct Checker<'a> {
    evidence: &'a Evidence,
    history: &'a History,
    findings: Findings,
    /// Attempts that came too late, with their faults, by id.
    late: BTreeMap<i64, (&'a AttemptRow, String)>,
}

impl<'a> Checker<'a> {
    fn fault(&mut self, fault: String) {
        self.findings.faults.push(fault);
    }

    /// Every task ended as planned, and the store has no others.
    fn check_tasks(&mut self) {
        let ended = &self.evidence.ended;
        for task in ended {
            let number = task.plan.number;
            let faults = task.faults.iter();
            let faults = faults.map(|fault| format!("task {number}: {fault}"));
            self.findings.faults.extend(faults);
            if task.status != "completed" || task.outcome != task.plan.result() {
                self.fault(format!(
                    "task {number} ended as {} with {:?} instead of {:?}",
                    task.status,
                    task.outcome,
                    task.plan.result()
                ));
            }
        }
        let (stored, expected) = (self.evidence.stored, self.evidence.expected);
        if stored != expected {
            let made = ended.len();
            self.fault(format!(
                "{made} calls were made, but the store has {stored} tasks instead of {expected}"
            ));
        }
    }

    /// The ledger has each planned effect once, and no others.
    fn check_ledger(&mut self) {
        let evidence = self.evidence;
        let mut times: BTreeMap<Effect, u64> = BTreeMap::new();
        for row in &evidence.effects {
            *times.entry(row.effect).or_default() += 1;
        }
        let plans = evidence.ended.iter().map(|task| &task.plan);
        for effect in plans.flat_map(TaskPlan::effects) {
            match times.remove(&effect) {
                Some(1) => {}
                Some(times) => self.fault(format!("{effect} was done {times} times")),
                None => self.fault(format!("{effect} was not done")),
            }
        }
        for effect in times.keys() {
            self.fault(format!("{effect} was done but not planned"));
        }
        let attempts = evidence.attempts.iter().map(|row| (row.id, row));
        let attempts: HashMap<i64, &AttemptRow> = attempts.collect();
        for row in &evidence.effects {
            let is_attempt = |attempt: &&AttemptRow| {
                attempt.effect == row.effect && attempt.idempotency_key == row.idempotency_key
            };
            if !attempts.get(&row.attempt).is_some_and(is_attempt) {
                self.fault(format!("{} was done without an attempt at it", row.effect));
            }
        }
    }

    /// Leases were taken over only after expiry or release, and every write had a lease.
    fn check_leases(&mut self) {
        let history = self.history;
        // Leases expire by a clock that may be adjusted; the records have the monotonic clock.
        let tolerance = self.evidence.lease / 20;
        for (lease, previous) in &history.leases {
            let (LeaseId { task, fence }, process) = (lease, previous.process);
            let Some((next, successor)) = history.next(lease) else {
                continue;
            };
            let holder = format!(
                "process {} had it under fence {}",
                successor.process, next.fence
            );
            let is_stale = |at: &u64| successor.acquired < *at;
            if previous.write_times.iter().any(is_stale) {
                self.fault(format!(
                    "task {task}: process {process} wrote under fence {fence} when {holder}"
                ));
            }
            if successor.acquired < previous.renewed {
                self.fault(format!(
                    "task {task}: process {process} still renewed its lease (fence {fence}) when {holder}"
                ));
            }
            let is_missing = |effect: &&Effect| !successor.first_journal.contains(effect);
            for effect in previous.last_journal.iter().filter(is_missing) {
                self.fault(format!(
                    "{effect} was journaled by process {process} under fence {fence}, but was missing when {holder}"
                ));
            }
            if previous.released.is_some() || previous.maybe_released.is_some() {
                continue;
            }
            self.findings.takeovers += 1;
            let expiry = previous.renewed + self.evidence.lease;
            if successor.acquired + tolerance < expiry {
                let (successor, early) = (successor.process, (expiry - successor.acquired) / 1000);
                self.fault(format!(
                    "task {task}: process {successor} took it {early} ms before the lease of process {process} expired"
                ));
            }
        }
        let is_rejected =
            |event: &&RecordEvent| matches!(event, RecordEvent::NotWritten { lost: true, .. });
        let events = self.evidence.records.iter().flatten();
        self.findings.writes_rejected = events.filter(is_rejected).count() as u64;
    }

    /// All attempts with their leases, by effect.
    fn attempts_by_effect(&mut self) -> BTreeMap<Effect, Vec<Attempt<'a>>> {
        let mut all: BTreeMap<Effect, Vec<Attempt<'a>>> = BTreeMap::new();
        let mut keys: HashMap<&str, Effect> = HashMap::new();
        let (evidence, history) = (self.evidence, self.history);
        for row in &evidence.attempts {
            let (effect, process) = (row.effect, row.process);
            if *keys.entry(&row.idempotency_key).or_insert(effect) != effect {
                self.fault(format!("{effect} has the idempotency key of another step"));
            }
            match history.starts.get(&(process, row.start)) {
                Some(lease) => all.entry(effect).or_default().push(Attempt { row, lease }),
                None => self.fault(format!(
                    "{effect} was tried by process {process} without a lease"
                )),
            }
        }
        for attempts in all.values_mut() {
            attempts.sort_by_key(|attempt| (attempt.lease.fence, attempt.row.at));
        }
        all
    }

    /// Every attempt after the first is explained by the end of the previous lease.
    fn check_second_attempts(&mut self, effect: Effect, attempts: &[Attempt<'a>]) {
        for pair in attempts.windows(2) {
            let [first, second] = pair else { continue };
            if first.row.idempotency_key != second.row.idempotency_key {
                self.fault(format!("{effect} had two idempotency keys"));
            }
            let LeaseId { fence, .. } = first.lease;
            if first.lease == second.lease {
                self.fault(format!("{effect} was tried twice under fence {fence}"));
                continue;
            }
            let Some(previous) = self.history.leases.get(first.lease) else {
                continue;
            };
            match self.explain(first, previous) {
                Some(count) => *count += 1,
                None => self.fault(format!(
                    "{effect} was tried by process {} under fence {fence} and again by process {} under fence {}, \
                     but the first released the task ({:?}) without asking for a retry",
                    first.row.process,
                    second.row.process,
                    second.lease.fence,
                    previous.released.or(previous.maybe_released)
                )),
            }
        }
    }

    /// The counter for the cause of the attempt after `first`. `None` if nothing explains that attempt.
    fn explain(&mut self, first: &Attempt<'a>, previous: &LeaseHistory) -> Option<&mut u64> {
        let process = first.row.process;
        let acquired = self.history.next(first.lease);
        let acquired = acquired.map_or(u64::MAX, |(_, successor)| successor.acquired);
        let while_held = |from: u64, to: u64| from <= acquired && to >= previous.renewed;
        let disruptions = &self.evidence.disruptions;
        let killed = |kill: &WorkerKill| kill.process == process && kill.at <= acquired;
        let stopped = |stop: &WorkerStop| stop.process == process && while_held(stop.from, stop.to);
        let restarted = |(from, to): &(u64, u64)| while_held(*from, *to);
        let causes = &mut self.findings.second_attempts;
        Some(match previous.released {
            Some(NextState::Retry) => &mut causes.retried,
            Some(_) => return None,
            None if disruptions.kills.iter().any(killed) => &mut causes.killed,
            None if previous.maybe_released == Some(NextState::Retry) => &mut causes.retried,
            None if disruptions.stops.iter().any(stopped) => &mut causes.stopped,
            None if disruptions.restarts.iter().any(restarted) => &mut causes.restarted,
            None => &mut causes.lease_lost,
        })
    }

    /// No attempt was made after the value was in a journal.
    fn check_after_journal(&mut self, effect: Effect, attempts: &[Attempt<'a>]) {
        let Some(journaled) = self.history.journaled.get(&effect) else {
            return;
        };
        for Attempt { row, lease } in attempts {
            let (process, fence) = (row.process, lease.fence);
            if fence > journaled.fence {
                self.fault(format!(
                    "{effect} was tried by process {process} under fence {fence}, but was in the journal since fence {}",
                    journaled.fence
                ));
            } else if row.at > journaled.at {
                let fault =
                    format!("{effect} was tried by process {process} when it was in the journal");
                self.late.entry(row.id).or_insert((row, fault));
            }
        }
    }

    /// No step started before the values of earlier steps were journaled, and none was tried after a later one started.
    fn check_order(&mut self, plan: &TaskPlan, attempts: &BTreeMap<Effect, Vec<Attempt<'a>>>) {
        let effects = plan.effects();
        for first in &effects {
            let later = effects
                .iter()
                .filter(|second| plan.is_before(*first, **second));
            let later = later.filter_map(|second| attempts.get(second)).flatten();
            let Some(Attempt { row: begun, .. }) = later.min_by_key(|attempt| attempt.row.at)
            else {
                continue;
            };
            let journaled = self.history.journaled.get(first);
            if journaled.is_none_or(|journaled| journaled.at > begun.at) {
                self.fault(format!(
                    "{first} was not in the journal yet when process {} tried {}",
                    begun.process, begun.effect
                ));
            }
            for Attempt { row, .. } in attempts.get(first).into_iter().flatten() {
                if row.at > begun.at {
                    let (process, later) = (row.process, begun.effect);
                    let fault = format!("{first} was tried by process {process} after {later} was");
                    self.late.entry(row.id).or_insert((row, fault));
                }
            }
        }
    }

    /// Reports late attempts, except one handler's for each stop of a worker. A worker checks its lease and then polls the
    /// handler. If it is stopped between the two, it makes its attempt when it continues; nothing can prevent that. It has
    /// one thread, so each stop can affect at most one handler.
    fn check_late_attempts(&mut self) {
        let mut affected: HashMap<(u32, u64), u64> = HashMap::new();
        for (row, fault) in std::mem::take(&mut self.late).into_values() {
            let stops = self.evidence.disruptions.stops.iter();
            let stop = stops
                .filter(|stop| stop.process == row.process && stop.from <= row.at)
                .max_by_key(|stop| stop.from);
            let allowed = stop.is_some_and(|stop| {
                *affected
                    .entry((stop.process, stop.from))
                    .or_insert(row.start)
                    == row.start
            });
            match allowed {
                true => self.findings.interrupted_attempts += 1,
                false => self.fault(fault),
            }
        }
    }
}

#[cfg(test)]
mod tests;
