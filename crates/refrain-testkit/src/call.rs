//! A call to be made, and what is to go wrong with it.

use crate::crash::CrashReport;
use crate::dialogue::Dialogue;
use crate::fleet::Fleet;
use crate::outcome::{CrashPoint, Outcome};
use crate::script::Script;
use serde_json::Value;

/// Which reply a client goes on with when its request arrived twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The reply to the first arrival.
    First,
    /// The reply to the second arrival.
    Second,
}

/// What goes wrong on the way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lost_requests: Rounds,
    pub(crate) lost_responses: Rounds,
    pub(crate) draining: Rounds,
    pub(crate) doubled: Option<Doubled>,
    pub(crate) crash: Option<CrashPoint>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubled {
    pub(crate) keep: Keep,
    pub(crate) together: bool,
}

/// Some of a call's rounds, counted from 1.
#[derive(Clone, Debug, Default)]
pub(crate) enum Rounds {
    #[default]
    None,
    These(Vec<usize>),
    All,
}

impl Rounds {
    pub(crate) fn has(&self, round: usize) -> bool {
        match self {
            Self::None => false,
            Self::These(rounds) => rounds.contains(&round),
            Self::All => true,
        }
    }
}

type Look<'f> = Box<dyn FnMut(&Outcome) + 'f>;

/// A call to be made: say what the client answers and what goes wrong, then [`run`](Call::run) it.
#[must_use = "a call is made when it is run"]
pub struct Call<'f> {
    pub(crate) fleet: &'f Fleet,
    pub(crate) method: &'static str,
    pub(crate) params: Value,
    pub(crate) script: Script,
    pub(crate) faults: Faults,
    pub(crate) max_rounds: usize,
    pub(crate) first_version: usize,
    inspect: Option<Look<'f>>,
}

impl<'f> Call<'f> {
    pub(crate) fn new(fleet: &'f Fleet, method: &'static str, params: Value) -> Self {
        Self {
            fleet,
            method,
            params,
            script: Script::new(),
            faults: Faults::default(),
            max_rounds: 64,
            first_version: 0,
            inspect: None,
        }
    }

    /// What the client answers, who it is and what it can do.
    pub fn script(mut self, script: Script) -> Self {
        self.script = script;
        self
    }

    /// How many rounds a run may take before the test fails. Default 64.
    pub fn max_rounds(mut self, rounds: usize) -> Self {
        self.max_rounds = rounds;
        self
    }

    /// Which of the fleet's versions serves the first request, counted from 0. The others follow in turn.
    pub fn first_version(mut self, version: usize) -> Self {
        self.first_version = version;
        self
    }

    /// Loses the requests of these rounds, counted from 1, before they reach an instance: the client sends them once
    /// more, to the next one.
    pub fn lose_requests(mut self, rounds: impl IntoIterator<Item = usize>) -> Self {
        self.faults.lost_requests = Rounds::These(rounds.into_iter().collect());
        self
    }

    /// Loses the replies of these rounds, counted from 1: the work was done, and the client sends the same request
    /// once more, to another instance.
    pub fn lose_responses(mut self, rounds: impl IntoIterator<Item = usize>) -> Self {
        self.faults.lost_responses = Rounds::These(rounds.into_iter().collect());
        self
    }

    /// Loses the reply of every round, once.
    pub fn lose_every_response(mut self) -> Self {
        self.faults.lost_responses = Rounds::All;
        self
    }

    /// Delivers every request twice, to two instances, one after the other.
    pub fn double_requests(mut self, keep: Keep) -> Self {
        self.faults.doubled = Some(Doubled {
            keep,
            together: false,
        });
        self
    }

    /// Delivers every request to two instances at the same time.
    pub fn race_requests(mut self, keep: Keep) -> Self {
        self.faults.doubled = Some(Doubled {
            keep,
            together: true,
        });
        self
    }

    /// Has these rounds, counted from 1, served by instances that are shutting down: they hand the flow on at its
    /// next step or checkpoint.
    pub fn draining(mut self, rounds: impl IntoIterator<Item = usize>) -> Self {
        self.faults.draining = Rounds::These(rounds.into_iter().collect());
        self
    }

    /// Makes the instance that serves this round, counted from 1, crash after so many polls of asks, steps and
    /// checkpoints. The client sends the same request again, to another instance.
    pub fn crash(mut self, round: usize, operation: u32) -> Self {
        self.faults.crash = Some(CrashPoint {
            round,
            operation: Some(operation),
        });
        self
    }

    /// Has a look at the outcome of every run. [`crash_everywhere`](Call::crash_everywhere) makes many, and
    /// [`Outcome::crash`] tells where; in a few of them nothing crashed, since there was nothing left to crash at.
    pub fn inspect(mut self, look: impl FnMut(&Outcome) + 'f) -> Self {
        self.inspect = Some(Box::new(look));
        self
    }

    /// Makes the call round by round, by hand.
    pub fn begin(self) -> Dialogue<'f> {
        Dialogue::new(&self, 0)
    }

    /// Makes the call.
    ///
    /// # Panics
    ///
    /// If something is asked that the script has no answer to, or the call takes too many rounds.
    pub async fn run(mut self) -> Outcome {
        self.run_once(0).await
    }

    /// Makes the call again and again, each time with one crash: at every operation of every round, and after every
    /// round when the reply was ready and never left. After a crash the client sends the same request again, to
    /// another instance.
    ///
    /// ```
    /// use refrain::prelude::*;
    /// use refrain_testkit::{Effects, Fleet, Script};
    /// use serde_json::json;
    ///
    /// #[derive(Deserialize, Elicit)]
    /// struct Sure {
    ///     sure: bool,
    /// }
    ///
    /// /// Pays, if the user is sure.
    /// #[tool]
    /// async fn pay(cx: Cx, effects: State<Effects>) -> Result<String> {
    ///     let answer: Sure = cx.elicit("sure", "Pay now?").await?;
    ///     let pay = |key| async move { ok(effects.record(key)) };
    ///     cx.step_with_key("pay", pay).await?;
    ///     Ok(format!("paid: {}", answer.sure))
    /// }
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let effects = Effects::new();
    /// let state = effects.clone();
    /// let fleet = Fleet::new(move || Server::builder("shop", "1.0").state(state.clone()).tool(pay()));
    /// let report = fleet
    ///     .call("pay", json!({}))
    ///     .script(Script::new().answer("sure", json!({"sure": true})))
    ///     .inspect(|_| assert_eq!(effects.take().len(), 1, "one key, however often it was tried"))
    ///     .crash_everywhere()
    ///     .await;
    /// report.assert_same();
    /// assert!(report.points() >= 4);
    /// # });
    /// ```
    ///
    /// # Panics
    ///
    /// As [`run`](Call::run) does.
    pub async fn crash_everywhere(self) -> CrashReport {
        CrashReport::of(self).await
    }

    pub(crate) async fn run_once(&mut self, run: usize) -> Outcome {
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
        if let Some(look) = &mut self.inspect {
            look(&outcome);
        }
        outcome
    }
}

impl std::fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call")
            .field("method", &self.method)
            .field("params", &self.params)
            .field("script", &self.script)
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}
