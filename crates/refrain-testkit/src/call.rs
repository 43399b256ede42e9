//! A call and its faults.

use crate::Closure;
use crate::crash::CrashReport;
use crate::dialogue::Dialogue;
use crate::fleet::Fleet;
use crate::outcome::{CallOutcome, CrashPoint};
use crate::script::Script;
use serde_json::Value;

/// Which response a client uses when its request was delivered twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepResponse {
    /// The response to the first delivery.
    First,
    /// The response to the second delivery.
    Second,
}

/// The faults of a call. Rounds are counted from 1.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lost_requests: Vec<usize>,
    pub(crate) lost_responses: Vec<usize>,
    pub(crate) loses_every_response: bool,
    pub(crate) draining: Vec<usize>,
    pub(crate) duplicated: Option<KeepResponse>,
    /// Whether the two deliveries of a duplicated request run at the same time.
    pub(crate) is_concurrent: bool,
    pub(crate) crash: Option<CrashPoint>,
}

type Inspect<'f> = Box<dyn FnMut(&CallOutcome) + 'f>;

/// A call: set the client's answers and the faults, then [`run`](TestCall::run) it.
#[derive(Debug)]
#[must_use = "a call is made when it is run"]
pub struct TestCall<'f> {
    pub(crate) fleet: &'f Fleet,
    pub(crate) method: &'static str,
    pub(crate) params: Value,
    pub(crate) script: Script,
    pub(crate) faults: Faults,
    pub(crate) first_version: usize,
    max_rounds: usize,
    inspect: Option<Closure<Inspect<'f>>>,
}

impl<'f> TestCall<'f> {
    pub(crate) fn new(fleet: &'f Fleet, method: &'static str, params: Value) -> Self {
        Self {
            fleet,
            method,
            params,
            script: Script::new(),
            faults: Faults::default(),
            first_version: 0,
            max_rounds: 64,
            inspect: None,
        }
    }

    /// Sets the client's answers, identity and capabilities.
    pub fn script(mut self, script: Script) -> Self {
        self.script = script;
        self
    }

    /// The number of rounds after which the test fails. Default 64.
    pub fn max_rounds(mut self, rounds: usize) -> Self {
        self.max_rounds = rounds;
        self
    }

    /// Which version of the server receives the first request: 0 is that of [`Fleet::new`](crate::Fleet::new). The
    /// versions take turns after it.
    pub fn first_version(mut self, version: usize) -> Self {
        self.first_version = version;
        self
    }

    /// Loses the requests of these rounds, counted from 1: the client sends them again, to the next instance.
    pub fn lose_requests(mut self, rounds: impl IntoIterator<Item = usize>) -> Self {
        self.faults.lost_requests = rounds.into_iter().collect();
        self
    }

    /// Loses the responses of these rounds, counted from 1: the client sends the same request again, to another instance.
    pub fn lose_responses(mut self, rounds: impl IntoIterator<Item = usize>) -> Self {
        self.faults.lost_responses = rounds.into_iter().collect();
        self
    }

    /// Loses the response of every round, once.
    pub fn lose_every_response(mut self) -> Self {
        self.faults.loses_every_response = true;
        self
    }

    /// Delivers every request to two instances, one after the other.
    pub fn duplicate_requests(mut self, keep: KeepResponse) -> Self {
        (self.faults.duplicated, self.faults.is_concurrent) = (Some(keep), false);
        self
    }

    /// Delivers every request to two instances at the same time.
    pub fn race_requests(mut self, keep: KeepResponse) -> Self {
        (self.faults.duplicated, self.faults.is_concurrent) = (Some(keep), true);
        self
    }

    /// Serves these rounds, counted from 1, by instances that are shutting down: they hand the flow on at its next step
    /// or checkpoint.
    pub fn draining(mut self, rounds: impl IntoIterator<Item = usize>) -> Self {
        self.faults.draining = rounds.into_iter().collect();
        self
    }

    /// Crashes the instance that serves this round, counted from 1, after this number of polls of asks, steps and
    /// checkpoints. The client sends the same request again, to another instance.
    pub fn crash(mut self, round: usize, operation: u32) -> Self {
        let operation = Some(operation);
        self.faults.crash = Some(CrashPoint { round, operation });
        self
    }

    /// Calls a function with the outcome of every run. [`crash_everywhere`](TestCall::crash_everywhere) makes many runs;
    /// [`CallOutcome::crash`] is `None` in those that ended before the crash point.
    pub fn inspect(mut self, inspect: impl FnMut(&CallOutcome) + 'f) -> Self {
        self.inspect = Some(Closure(Box::new(inspect)));
        self
    }

    /// Starts the call, to be made round by round.
    pub fn begin(self) -> Dialogue<'f> {
        Dialogue::new(&self, 0)
    }

    /// Makes the call.
    ///
    /// # Panics
    ///
    /// If the script has no answer to an ask, or the call exceeds [`max_rounds`](TestCall::max_rounds).
    pub async fn run(mut self) -> CallOutcome {
        self.run_once(0).await
    }

    /// Makes the call many times, each time with one crash: at every operation of every round, and after every round
    /// when the response was ready but not sent. After a crash the client sends the same request again, to another
    /// instance.
    ///
    /// ```
    /// use refrain::prelude::*;
    /// use refrain_testkit::{Effects, Fleet, Script};
    /// use serde_json::json;
    ///
    /// /// Pays.
    /// #[tool]
    /// async fn pay(cx: Cx, effects: State<Effects>) -> Result<&'static str> {
    ///     cx.step_with_key("pay", |key| async move { ok(effects.record(key)) }).await?;
    ///     Ok("paid")
    /// }
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let effects = Effects::new();
    /// let state = effects.clone();
    /// let fleet = Fleet::new(move || Server::builder("shop", "1.0").state(state.clone()).tool(pay()));
    /// let one_key = |_: &_| assert_eq!(effects.take().len(), 1);
    /// let call = fleet.call("pay", json!({})).script(Script::new().call_id("order 7"));
    /// let report = call.inspect(one_key).crash_everywhere().await;
    /// report.assert_same();
    /// assert!(report.points() >= 2);
    /// # });
    /// ```
    ///
    /// # Panics
    ///
    /// As [`run`](TestCall::run) does.
    pub async fn crash_everywhere(self) -> CrashReport {
        CrashReport::of(self).await
    }

    pub(crate) async fn run_once(&mut self, run: usize) -> CallOutcome {
        let mut dialogue = Dialogue::new(self, run);
        while dialogue.next().await.is_some() {
            let rounds = dialogue.rounds().len();
            assert!(
                dialogue.is_over() || rounds < self.max_rounds,
                "the call has not ended after {rounds} rounds; the last one asks {:?}",
                dialogue.rounds()[rounds - 1].keys()
            );
        }
        let outcome = dialogue.into_outcome();
        if let Some(Closure(inspect)) = &mut self.inspect {
            inspect(&outcome);
        }
        outcome
    }
}
