//! A crash at every operation of `cx`.

use crate::call::TestCall;
use crate::outcome::{CallOutcome, CrashPoint};

/// The number of runs after which the test fails, for a handler that does not end.
const MAX_RUNS: usize = 10_000;

/// The outcomes of a call with a crash at every operation of `cx`.
#[derive(Clone, Debug)]
pub struct CrashReport {
    undisturbed: CallOutcome,
    crashed: Vec<CallOutcome>,
}

impl CrashReport {
    pub(crate) async fn of(mut call: TestCall<'_>) -> Self {
        call.faults.crash = None;
        let undisturbed = call.run_once(0).await;
        let mut crashed = Vec::new();
        let mut round = 1;
        let mut operation = Some(0);
        loop {
            assert!(
                crashed.len() < MAX_RUNS,
                "more than {MAX_RUNS} crash points"
            );
            call.faults.crash = Some(CrashPoint { round, operation });
            let outcome = call.run_once(crashed.len() + 1).await;
            // A round may have fewer operations, and a call fewer rounds.
            let reached = outcome.crash().is_some();
            let rounds = outcome.rounds().len();
            if reached {
                crashed.push(outcome);
            }
            operation = match operation {
                Some(operation) if reached => Some(operation + 1),
                Some(_) => None,
                None => {
                    round += 1;
                    Some(0)
                }
            };
            if round > rounds {
                return Self {
                    undisturbed,
                    crashed,
                };
            }
        }
    }

    /// The outcome without a crash.
    pub fn undisturbed(&self) -> &CallOutcome {
        &self.undisturbed
    }

    /// The outcomes with a crash; each says [where](CallOutcome::crash).
    pub fn crashed(&self) -> &[CallOutcome] {
        &self.crashed
    }

    /// The number of crash points.
    pub fn points(&self) -> usize {
        self.crashed.len()
    }

    /// Compares every run with the one without a crash.
    ///
    /// # Panics
    ///
    /// If one of them [ended](CallOutcome::ends_like) in another way.
    #[track_caller]
    pub fn assert_same(&self) {
        for outcome in &self.crashed {
            assert!(
                outcome.ends_like(&self.undisturbed),
                "after a crash at {:?} the call ended with\n{:#}\nand without one with\n{:#}",
                outcome.crash(),
                outcome.reply,
                self.undisturbed.reply
            );
        }
    }
}
