//! The check of calls that are not tasks: results, losses and effects.
//!
//! | home | a call | an effect of a completed call | an attempt |
//! | --- | --- | --- | --- |
//! | client | completes | once | again only if an instance was killed during the call |
//! | live, legacy | completes, or is reported as lost after a kill | once; of a lost call at most once | once |

use crate::check::Evidence;
use crate::ledger::{AttemptRow, EffectRow};
use crate::plan::{Effect, TaskPlan};
use serde::Serialize;
use std::collections::BTreeMap;

/// The number of the first call. Tasks have smaller numbers.
pub(super) const FIRST_CALL: u32 = 1 << 30;
/// A call that starts less than this after a kill, in microseconds, may still find the killed instance.
pub(super) const KILL_GRACE: u64 = 2_000_000;

/// Where the state of a call is between its rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum CallHome {
    Client,
    Live,
    Legacy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallOutcome {
    /// The text of the result.
    Completed(String),
    /// The error says that the call was lost with its instance.
    Lost(String),
    Failed(String),
}

/// A call that has ended. `from` and `to` are the times of its start and end, in microseconds.
#[derive(Clone, Debug)]
pub(super) struct CallEnd {
    pub(super) number: u32,
    pub(super) home: CallHome,
    pub(super) outcome: CallOutcome,
    pub(super) from: u64,
    pub(super) to: u64,
}

/// The part of the evidence that is about calls.
pub(super) struct CallEvidence {
    pub(super) ended: Vec<CallEnd>,
    pub(super) attempts: Vec<AttemptRow>,
    pub(super) effects: Vec<EffectRow>,
    /// The times of the kills.
    pub(super) kills: Vec<u64>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct CallFindings {
    /// Completed calls by home.
    pub(super) completed: BTreeMap<CallHome, u64>,
    /// Lost calls by home.
    pub(super) lost: BTreeMap<CallHome, u64>,
    pub(super) effects: u64,
    /// Attempts after the first one at an effect.
    pub(super) second_attempts: u64,
    #[serde(skip)]
    pub(super) faults: Vec<String>,
}

impl CallEvidence {
    /// Takes the attempts and effects of calls out of the evidence.
    pub(super) fn take(evidence: &mut Evidence, ended: Vec<CallEnd>) -> Self {
        let is_call = |effect: Effect| effect.number >= FIRST_CALL;
        let attempts = evidence.attempts.extract_if(.., |row| is_call(row.effect));
        let effects = evidence.effects.extract_if(.., |row| is_call(row.effect));
        let kills = evidence.disruptions.kills.iter();
        Self {
            ended,
            attempts: attempts.collect(),
            effects: effects.collect(),
            kills: kills.map(|kill| kill.at).collect(),
        }
    }
}

pub(super) fn check(evidence: &CallEvidence) -> CallFindings {
    let mut findings = CallFindings {
        effects: evidence.effects.len() as u64,
        ..CallFindings::default()
    };
    let mut done = count(evidence.effects.iter().map(|row| row.effect));
    let mut tried = count(evidence.attempts.iter().map(|row| row.effect));
    for call in &evidence.ended {
        let is_in_call = |at: &u64| *at <= call.to && call.from <= *at + KILL_GRACE;
        let has_kill = evidence.kills.iter().any(is_in_call);
        findings.add_outcome(call, has_kill);
        for effect in TaskPlan::call(call.number).effects() {
            let counts = [&mut done, &mut tried].map(|all| all.remove(&effect).unwrap_or(0));
            findings.add_effect(call, effect, counts, has_kill);
        }
    }
    for effect in done.into_keys().chain(tried.into_keys()) {
        findings.faults.push(format!("{effect} was not planned"));
    }
    findings
}

fn count(effects: impl Iterator<Item = Effect>) -> BTreeMap<Effect, u64> {
    let mut counts = BTreeMap::new();
    for effect in effects {
        *counts.entry(effect).or_default() += 1;
    }
    counts
}

impl CallFindings {
    fn add_outcome(&mut self, call: &CallEnd, has_kill: bool) {
        let CallEnd { number, home, .. } = call;
        let expected = TaskPlan::call(*number).result();
        let fault = match &call.outcome {
            CallOutcome::Completed(text) if *text == expected => {
                *self.completed.entry(*home).or_default() += 1;
                return;
            }
            CallOutcome::Lost(_) if has_kill && *home != CallHome::Client => {
                *self.lost.entry(*home).or_default() += 1;
                return;
            }
            CallOutcome::Completed(text) => format!("returned {text:?} instead of {expected:?}"),
            CallOutcome::Lost(error) if !has_kill => {
                format!("was lost, but no instance was killed: {error}")
            }
            CallOutcome::Lost(error) | CallOutcome::Failed(error) => format!("failed: {error}"),
        };
        self.faults.push(format!("{home:?} call {number} {fault}"));
    }

    fn add_effect(&mut self, call: &CallEnd, effect: Effect, counts: [u64; 2], has_kill: bool) {
        let [done, tried] = counts;
        let home = call.home;
        let is_completed = matches!(call.outcome, CallOutcome::Completed(_));
        if done > 1 || (is_completed && done == 0) {
            let fault = format!("{effect} of a {home:?} call was done {done} times");
            self.faults.push(fault);
        }
        let again = tried.saturating_sub(1);
        self.second_attempts += again;
        if again > 0 && (home != CallHome::Client || !has_kill) {
            let fault = format!("{effect} of a {home:?} call was tried {tried} times");
            self.faults.push(fault);
        }
    }
}

#[cfg(test)]
mod tests;
