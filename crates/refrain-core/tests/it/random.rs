//! Random handlers that are suspended, crashed and handed on at random points.
//!
//! Invariants: the history of a round starts with the history of the round before; no journaled operation runs or
//! asks again; and without races, the result is the same as without suspensions.
//!
//! The cases are deterministic. `PROPTEST_CASES` sets their number, `RANDOM_SEED` selects others.

use crate::support::dice::runner;
use crate::support::program::{Node, Trace, answer_at, expected_result, programs};
use crate::support::random_case::{RandomCase, Trouble, check_history, path};
use crate::support::{Round, RoundEnd, answers_to, many_threads, num, one_thread};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

struct Case {
    base: RandomCase,
    /// Whether spawned tasks run on other threads: a round may be suspended before they reach the point of the round
    /// before.
    behind: bool,
    /// Steps whose values are in the presented journal.
    journaled: BTreeSet<String>,
}

impl Case {
    fn new(program: &Node, seed: u64, trouble: Trouble, threads: bool) -> Self {
        Self {
            base: RandomCase::new(program, seed, trouble),
            behind: threads && program.any(|node| matches!(node, Node::Spawn { .. })),
            journaled: BTreeSet::new(),
        }
    }

    /// Plays the call to its end and returns the result.
    async fn play(&mut self) -> Result<Value, String> {
        let mut token: Option<String> = None;
        let mut answers = json!({});
        for _ in 0..1000 {
            let trace = Arc::new(Trace::default());
            let crash = self.base.one_in(4).then(|| self.base.dice.throw(20) as u32);
            let handler = self.base.handler(&trace);
            let round = self
                .base
                .world
                .request(&handler, token.as_deref(), &answers, crash)
                .await;
            println!("crash {crash:?}, end {:?}, {trace:?}", round.end);
            self.check(&round, &trace)?;
            match round.end {
                RoundEnd::Crashed => {}
                // The response is lost, and the client repeats the request.
                RoundEnd::Asked { .. } | RoundEnd::Done(_) if self.base.one_in(6) => {}
                RoundEnd::Asked {
                    asks, token: next, ..
                } => {
                    self.base.record_history(&trace);
                    self.journaled
                        .extend(trace.finished.lock().unwrap().iter().cloned());
                    answers = answers_to(&asks, |_, ask| self.base.answer(path(ask)));
                    token = Some(next);
                }
                RoundEnd::Done(result) => {
                    return result.map_err(|error| format!("ended with {error:?}"));
                }
                other => return Err(format!("ended with {other:?}")),
            }
        }
        Err("the call does not end".into())
    }

    fn check(&mut self, round: &Round, trace: &Trace) -> Result<(), String> {
        let ended_early = self.behind || matches!(round.end, RoundEnd::Crashed);
        check_history(&self.base.before, trace, ended_early)?;
        for step in trace.started.lock().unwrap().iter() {
            if self.journaled.contains(step) {
                return Err(format!("step {step} was in the journal and ran again"));
            }
        }
        self.base
            .effects
            .extend(trace.finished.lock().unwrap().iter().cloned());
        if let RoundEnd::Asked { asks, shed, .. } = &round.end {
            if asks.is_empty() != *shed {
                return Err(format!(
                    "a round with {} asks and shed = {shed}",
                    asks.len()
                ));
            }
            let mut keys = BTreeSet::new();
            for (key, ask) in asks {
                let path = path(ask);
                if self.base.answered.contains(&path) {
                    return Err(format!("{path} was answered and asked again"));
                }
                if !keys.insert(key) {
                    return Err(format!("the wire key {key} was used twice in a round"));
                }
            }
        }
        Ok(())
    }
}

async fn check_program(program: &Node, seed: u64, threads: bool) -> Result<(), String> {
    let mut expected = BTreeSet::new();
    let value = (!program.is_racing()).then(|| expected_result(program, "p", &mut expected));
    for trouble in [Trouble::None, Trouble::Much] {
        let mut case = Case::new(program, seed, trouble, threads);
        let result = case
            .play()
            .await
            .map_err(|why| format!("{trouble:?}: {why}"))?;
        if let Some(value) = value {
            if result != json!(value) {
                return Err(format!("{trouble:?}: the result is {result}, not {value}"));
            }
            if case.base.effects != expected {
                return Err(format!(
                    "{trouble:?}: did {:?}, not {expected:?}",
                    case.base.effects
                ));
            }
        }
    }
    if program.is_plain() {
        check_early_answers(program, value).await?;
    }
    Ok(())
}

/// If the first request contains all answers, there is one round.
async fn check_early_answers(program: &Node, value: Option<i64>) -> Result<(), String> {
    let case = Case::new(program, 0, Trouble::None, false);
    let answers = program.asks("p").into_iter().map(|(name, path)| {
        let answer = answer_at(&path).map_or(json!({"action": "decline"}), num);
        (name, answer)
    });
    let answers = Value::Object(answers.collect());
    let handler = case.base.handler(&Arc::new(Trace::default()));
    match case.base.world.first_with(&handler, &answers).await.end {
        RoundEnd::Done(Ok(result)) if value.is_none_or(|value| result == json!(value)) => Ok(()),
        other => Err(format!("answered beforehand: {other:?}, not {value:?}")),
    }
}

fn random_handlers(cases: u32, runtime: &tokio::runtime::Runtime, threads: bool) {
    let outcome = runner(cases).run(&(programs(), any::<u64>()), |(program, seed)| {
        let checked = runtime.block_on(check_program(&program, seed, threads));
        checked.map_err(TestCaseError::fail)
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn random_handlers_on_one_thread() {
    random_handlers(3000, &one_thread(), false);
}

#[test]
fn random_handlers_on_many_threads() {
    random_handlers(1000, &many_threads(), true);
}

/// Checks that the invariants can fail: a program whose history depends on a race is detected.
#[test]
fn race_with_a_foreign_future_is_detected() {
    let step = |name: &str| Node::Step {
        name: name.into(),
        yields: 3,
        fails: false,
    };
    let slow = Node::Seq(vec![step("a"), step("b"), step("c")]);
    let race = Node::Select(vec![slow, Node::Foreign(6)]);
    let program = Node::Seq(vec![race, Node::Ask { name: "q".into() }, step("d")]);
    let found = (0..200).any(|seed| {
        one_thread()
            .block_on(check_program(&program, seed, false))
            .is_err()
    });
    assert!(found, "none of 200 runs saw two histories");
}
