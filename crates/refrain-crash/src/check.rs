//! What must hold when all is over.
//!
//! Every task ended as its plan says. Every effect is in the ledger, once. Every attempt after the first is explained. None
//! was made after the value was journaled, or before that of the step before it was. Nothing was written by a worker that
//! had lost its lease, no lease was taken from a worker before it had run out, and what was written is found by whoever
//! has the lease after it.

use crate::client::Ended;
use crate::fleet::{Harm, Stop};
use crate::history::{History, Lived};
use crate::ledger::{AttemptRow, EffectRow};
use crate::plan::{Effect, Plan};
use crate::record::{After, Event, Hold};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};

/// All that is known of a run.
#[derive(Debug)]
pub(crate) struct Evidence {
    pub(crate) ended: Vec<Ended>,
    /// In the order in which they began.
    pub(crate) attempts: Vec<AttemptRow>,
    pub(crate) effects: Vec<EffectRow>,
    /// The records of the workers, by their runs.
    pub(crate) records: Vec<Vec<Event>>,
    pub(crate) harm: Harm,
    /// When the database was restarted: from, to.
    pub(crate) restarts: Vec<(u64, u64)>,
    /// How long a lease is.
    pub(crate) lease: u64,
    /// How many tasks the store has.
    pub(crate) stored: usize,
}

/// Attempts after the first, by what explains them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Explained {
    /// The worker of the one before was killed.
    pub(crate) killed: u64,
    /// The worker of the one before was stopped for longer than its lease.
    pub(crate) stopped: u64,
    /// The worker of the one before lost its lease while the database was away.
    pub(crate) restarted: u64,
    /// The worker of the one before lost its lease in another way: it could not hold it in time.
    pub(crate) lease_lost: u64,
    /// A step of the task asked to be tried again.
    pub(crate) retried: u64,
}

impl Explained {
    pub(crate) fn total(&self) -> u64 {
        self.killed + self.stopped + self.restarted + self.lease_lost + self.retried
    }
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) faults: Vec<String>,
    pub(crate) attempts: u64,
    pub(crate) effects: u64,
    pub(crate) explained: Explained,
    /// Leases that were taken from a worker that had not given them up.
    pub(crate) takeovers: u64,
    /// Attempts of a worker that was stopped between looking at its lease and the attempt.
    pub(crate) caught_unawares: u64,
    /// Writes that were refused since the lease was lost.
    pub(crate) refused: u64,
}

/// An attempt and the lease that it was made under.
struct Attempt<'a> {
    row: &'a AttemptRow,
    run: u32,
    at: u64,
    hold: &'a Hold,
}

/// Looks at everything.
pub(crate) fn check(evidence: &Evidence) -> Findings {
    let ids = evidence.ended.iter();
    let ids: HashMap<u32, String> = ids.map(|it| (it.plan.number, it.id.clone())).collect();
    let mut history = History::new(&evidence.records, &ids);
    let mut check = Check {
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
    check.tasks();
    check.ledger();
    check.leases();
    let attempts = check.by_effect();
    for (effect, attempts) in &attempts {
        check.second_attempts(*effect, attempts);
        check.after_the_journal(*effect, attempts);
    }
    for ended in &evidence.ended {
        check.order(&ended.plan, &attempts);
    }
    check.late_attempts();
    check.findings
}

struct Check<'a> {
    evidence: &'a Evidence,
    history: &'a History,
    findings: Findings,
    /// Attempts that came too late, by number.
    late: BTreeMap<i64, Late>,
}

/// An attempt that came too late.
struct Late {
    run: u32,
    turn: i64,
    at: u64,
    fault: String,
}

impl<'a> Check<'a> {
    fn fault(&mut self, fault: String) {
        self.findings.faults.push(fault);
    }

    /// Every task ended as its plan says, and there are no others.
    fn tasks(&mut self) {
        let ended = &self.evidence.ended;
        for it in ended {
            let number = it.plan.number;
            let complaints = it.complaints.iter();
            let complaints = complaints.map(|complaint| format!("task {number}: {complaint}"));
            self.findings.faults.extend(complaints);
            if it.status != "completed" || it.outcome != it.plan.result() {
                self.fault(format!(
                    "task {number} ended as {} with {:?} instead of {:?}",
                    it.status,
                    it.outcome,
                    it.plan.result()
                ));
            }
        }
        let stored = self.evidence.stored;
        if stored != ended.len() {
            let made = ended.len();
            self.fault(format!(
                "{made} calls were made, and the store has {stored} tasks"
            ));
        }
    }

    /// The ledger has what the plans say, each once.
    fn ledger(&mut self) {
        let plans = self.evidence.ended.iter().map(|it| &it.plan);
        let expected: HashSet<String> = plans
            .flat_map(Plan::effects)
            .map(|effect| effect.to_string())
            .collect();
        let mut times: HashMap<&str, u64> = HashMap::new();
        for row in &self.evidence.effects {
            *times.entry(&row.effect).or_default() += 1;
        }
        let evidence = self.evidence;
        for effect in &expected {
            match times.remove(effect.as_str()) {
                Some(1) => {}
                Some(times) => self.fault(format!("{effect} was done {times} times")),
                None => self.fault(format!("{effect} was not done")),
            }
        }
        for effect in times.keys() {
            self.fault(format!("{effect} was done, and is in no plan"));
        }
        let tried: HashMap<i64, &AttemptRow> =
            evidence.attempts.iter().map(|row| (row.id, row)).collect();
        for row in &evidence.effects {
            let made_by = tried.get(&row.attempt);
            let same = |attempt: &&AttemptRow| {
                attempt.effect == row.effect && attempt.idempotency_key == row.idempotency_key
            };
            if !made_by.is_some_and(same) {
                self.fault(format!("{} was done without an attempt at it", row.effect));
            }
        }
    }

    /// Leases were taken when they had run out or were given up, and nothing was written without one.
    fn leases(&mut self) {
        let history = self.history;
        // Clocks may be set to the right time in small steps, so a little is left to them.
        let leeway = self.evidence.lease / 20;
        for (hold, lived) in &history.leases {
            let Hold { task, fence } = hold;
            let Some((next, taker)) = history.next(hold) else {
                continue;
            };
            let holder = format!("run {} had it under fence {}", taker.run, next.fence);
            if lived.wrote.iter().any(|asked| taker.taken < *asked) {
                self.fault(format!(
                    "task {task}: run {} wrote under fence {fence} when {holder}",
                    lived.run
                ));
            }
            if taker.taken < lived.held {
                self.fault(format!(
                    "task {task}: run {} held fence {fence} for longer when {holder}",
                    lived.run
                ));
            }
            for effect in lived.left.iter().filter(|it| !taker.came.contains(it)) {
                self.fault(format!(
                    "{effect} was journaled by run {} under fence {fence}, and not there when {holder}",
                    lived.run
                ));
            }
            if lived.given_up.is_some() || lived.perhaps_given_up.is_some() {
                continue;
            }
            self.findings.takeovers += 1;
            let sure = lived.held + self.evidence.lease;
            if taker.taken + leeway < sure {
                self.fault(format!(
                    "task {task}: run {} took it {} ms before the lease of run {} had run out",
                    taker.run,
                    (sure - taker.taken) / 1000,
                    lived.run
                ));
            }
        }
        let refused = |event: &&Event| matches!(event, Event::NotWritten { lost: true, .. });
        let events = self.evidence.records.iter().flatten();
        self.findings.refused = events.filter(refused).count() as u64;
    }

    /// All attempts by what they were at, under the leases that they were made under.
    fn by_effect(&mut self) -> BTreeMap<Effect, Vec<Attempt<'a>>> {
        let mut all: BTreeMap<Effect, Vec<Attempt<'a>>> = BTreeMap::new();
        let mut keys: HashMap<&str, &str> = HashMap::new();
        let (evidence, history) = (self.evidence, self.history);
        for row in &evidence.attempts {
            let effect = &row.effect;
            if *keys.entry(&row.idempotency_key).or_insert(effect) != effect {
                self.fault(format!("{effect} has the idempotency key of another step"));
            }
            let run = u32::try_from(row.run).unwrap_or(u32::MAX);
            let turn = row.turn.unsigned_abs();
            let (Some(known), Some(hold)) = (Effect::parse(effect), history.lease_of(run, turn))
            else {
                self.fault(format!("{effect} was tried by run {run} without a lease"));
                continue;
            };
            all.entry(known).or_default().push(Attempt {
                row,
                run,
                at: row.at.unsigned_abs(),
                hold,
            });
        }
        for attempts in all.values_mut() {
            attempts.sort_by_key(|attempt| (attempt.hold.fence, attempt.at));
        }
        all
    }

    /// Every attempt after the first is explained by how the lease of the one before ended.
    fn second_attempts(&mut self, effect: Effect, attempts: &[Attempt<'a>]) {
        for pair in attempts.windows(2) {
            let [one, other] = pair else { continue };
            if one.row.idempotency_key != other.row.idempotency_key {
                self.fault(format!("{effect} had two idempotency keys"));
            }
            let Hold { fence, .. } = one.hold;
            if one.hold == other.hold {
                self.fault(format!("{effect} was tried twice under fence {fence}"));
                continue;
            }
            let Some(lived) = self.history.leases.get(one.hold) else {
                continue;
            };
            match self.explain(one, lived) {
                Some(explained) => *explained += 1,
                None => self.fault(format!(
                    "{effect} was tried by run {} under fence {fence} and again by run {} under fence {}, \
                     and the first had given the task up ({:?}) without asking for another attempt",
                    one.run,
                    other.run,
                    other.hold.fence,
                    lived.given_up.or(lived.perhaps_given_up)
                )),
            }
        }
    }

    fn explain(&mut self, one: &Attempt<'a>, lived: &Lived) -> Option<&mut u64> {
        let taken = self.history.next(one.hold);
        let taken = taken.map_or(u64::MAX, |(_, taker)| taker.taken);
        let while_held = |from: u64, to: u64| from <= taken && to >= lived.held;
        let harm = &self.evidence.harm;
        let stopped = |stop: &Stop| stop.run == one.run && while_held(stop.from, stop.to);
        let explained = &mut self.findings.explained;
        match lived.given_up {
            Some(After::Retry) => return Some(&mut explained.retried),
            Some(_) => return None,
            None => {}
        }
        Some(
            if harm
                .kills
                .iter()
                .any(|kill| kill.run == one.run && kill.at <= taken)
            {
                &mut explained.killed
            } else if lived.perhaps_given_up == Some(After::Retry) {
                &mut explained.retried
            } else if harm.stops.iter().any(stopped) {
                &mut explained.stopped
            } else if self
                .evidence
                .restarts
                .iter()
                .any(|it| while_held(it.0, it.1))
            {
                &mut explained.restarted
            } else {
                &mut explained.lease_lost
            },
        )
    }

    /// No attempt was made after a journal had the value.
    fn after_the_journal(&mut self, effect: Effect, attempts: &[Attempt<'a>]) {
        let Some(journaled) = self.history.journaled.get(&effect) else {
            return;
        };
        for attempt in attempts {
            let Attempt { run, at, .. } = *attempt;
            if attempt.hold.fence > journaled.fence {
                self.fault(format!(
                    "{effect} was tried by run {run} under fence {}, and was in the journal since fence {}",
                    attempt.hold.fence, journaled.fence
                ));
            } else if at > journaled.at {
                let fault = format!("{effect} was tried by run {run} when it was in the journal");
                self.note_late(attempt, fault);
            }
        }
    }

    /// No step was begun before the values of those before it were journaled; and none was tried after a later one had
    /// begun, whatever the records say of journals.
    fn order(&mut self, plan: &Plan, attempts: &BTreeMap<Effect, Vec<Attempt<'a>>>) {
        let effects = plan.effects();
        for first in &effects {
            let later = effects
                .iter()
                .filter(|second| plan.is_before(first.place, second.place));
            let later = later.filter_map(|second| attempts.get(second));
            let begun = later.flatten().min_by_key(|attempt| attempt.at);
            let Some(begun) = begun else { continue };
            let journaled = self.history.journaled.get(first);
            if journaled.is_none_or(|journaled| journaled.at > begun.at) {
                self.fault(format!(
                    "{first} was not in the journal yet when run {} tried {}",
                    begun.run, begun.row.effect
                ));
            }
            for attempt in attempts.get(first).into_iter().flatten() {
                if attempt.at > begun.at {
                    let fault = format!(
                        "{first} was tried by run {} after {} was",
                        attempt.run, begun.row.effect
                    );
                    self.note_late(attempt, fault);
                }
            }
        }
    }

    fn note_late(&mut self, attempt: &Attempt<'a>, fault: String) {
        let late = Late {
            run: attempt.run,
            turn: attempt.row.turn,
            at: attempt.at,
            fault,
        };
        self.late.entry(attempt.row.id).or_insert(late);
    }

    /// A worker looks at its lease and then lets the handler go on. One that is stopped between the two makes its attempt
    /// when it goes on, and nobody can keep it from that. It has one thread, so each stop can catch one handler at most.
    fn late_attempts(&mut self) {
        let mut caught: HashMap<(u32, u64), i64> = HashMap::new();
        for late in std::mem::take(&mut self.late).into_values() {
            let stops = self.evidence.harm.stops.iter();
            let stop = stops
                .filter(|stop| stop.run == late.run && stop.from <= late.at)
                .max_by_key(|stop| stop.from);
            let allowed = stop.is_some_and(|stop| {
                *caught.entry((stop.run, stop.from)).or_insert(late.turn) == late.turn
            });
            if allowed {
                self.findings.caught_unawares += 1;
            } else {
                self.fault(late.fault);
            }
        }
    }
}

#[cfg(test)]
mod tests;
