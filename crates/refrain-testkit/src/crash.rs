//! Crashes at every operation of `cx`: at every poll of an ask, step or checkpoint.

use crate::call::TestCall;
use crate::diff::difference;
use crate::outcome::{CallOutcome, CrashPoint};
use std::fmt::Debug;

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
            // Not reached if the round has fewer operations than the crash point, or the call fewer rounds.
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

    /// Compares the [end](CallOutcome::ends_like) of every run with that of the run without a crash. Idempotency keys, which
    /// differ between runs, are compared by their places.
    ///
    /// # Panics
    ///
    /// If one of them ended in another way. The message shows the difference.
    #[track_caller]
    pub fn assert_same(&self) {
        self.compare(CallOutcome::end, |end| format!("{end:#}"));
    }

    /// Compares what `view` returns for every run, for results that differ between runs in more than their idempotency keys.
    ///
    /// ```
    /// use refrain::prelude::*;
    /// use refrain_testkit::Fleet;
    /// use serde_json::json;
    ///
    /// /// Draws a number.
    /// #[tool]
    /// async fn draw(cx: Cx) -> Result<String> {
    ///     Ok(format!("number {}", cx.random()))
    /// }
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let fleet = Fleet::new(|| Server::builder("lottery", "1.0").tool(draw()));
    /// let report = fleet.call("draw", json!({})).crash_everywhere().await;
    /// report.assert_same_by(|outcome| outcome.text().starts_with("number "));
    /// # });
    /// ```
    ///
    /// # Panics
    ///
    /// If a value differs from that of the run without a crash. The message shows the difference.
    #[track_caller]
    pub fn assert_same_by<T: PartialEq + Debug>(&self, view: impl Fn(&CallOutcome) -> T) {
        self.compare(view, |value| format!("{value:#?}"));
    }

    #[track_caller]
    fn compare<T: PartialEq>(
        &self,
        view: impl Fn(&CallOutcome) -> T,
        print: impl Fn(&T) -> String,
    ) {
        let expected = view(&self.undisturbed);
        for outcome in &self.crashed {
            let Some(crash) = outcome.crash() else {
                continue;
            };
            let found = view(outcome);
            assert!(
                found == expected,
                "the call ends differently if the instance crashes {crash} (-: without the crash, +: with it)\n{}",
                difference(&print(&expected), &print(&found))
            );
        }
    }
}
