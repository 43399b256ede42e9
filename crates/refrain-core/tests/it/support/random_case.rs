//! The common part of the random tests: a program, its failures, and the client that answers its asks.

use super::dice::{Dice, RandomPressure};
use super::program::{Node, Position, Trace, answer_at, run};
use super::{World, handler, message, num};
use refrain_core::{Cx, HandlerFuture};
use refrain_wire::Ask;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The amount of injected failures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Trouble {
    /// Every ask is answered, without crashes.
    None,
    /// Missing or invalid answers, crashes, lost responses, instances that hand flows on.
    Much,
}

/// What each strand of a handler saw: see [`Trace`].
pub(crate) type History = BTreeMap<String, Vec<String>>;

pub(crate) struct RandomCase {
    pub(crate) program: Node,
    pub(crate) dice: Arc<Dice>,
    pub(crate) world: World,
    pub(crate) trouble: Trouble,
    /// Whether each branch of a join has a separate history.
    strands: bool,
    /// The history that the next run must repeat.
    pub(crate) before: History,
    /// Asks that got a valid answer.
    pub(crate) answered: BTreeSet<String>,
    /// Asks that got an invalid answer.
    pub(crate) answered_wrongly: BTreeSet<String>,
    /// Steps that finished in any run.
    pub(crate) effects: BTreeSet<String>,
}

impl RandomCase {
    pub(crate) fn new(program: &Node, seed: u64, trouble: Trouble) -> Self {
        let dice = Arc::new(Dice::new(seed));
        let mut world = World::new();
        world.limits.rounds = 10_000;
        world.limits.sheds = 10_000;
        if trouble == Trouble::Much {
            world.pressure = Some(Arc::new(RandomPressure(dice.clone())));
        }
        Self {
            strands: program.is_foreign(),
            program: program.clone(),
            dice,
            world,
            trouble,
            before: History::new(),
            answered: BTreeSet::new(),
            answered_wrongly: BTreeSet::new(),
            effects: BTreeSet::new(),
        }
    }

    pub(crate) fn one_in(&self, sides: u64) -> bool {
        self.trouble == Trouble::Much && self.dice.throw(sides) == 0
    }

    pub(crate) fn handler(&self, trace: &Arc<Trace>) -> impl Fn(Cx) -> HandlerFuture + use<> {
        let (program, trace, strands) = (self.program.clone(), trace.clone(), self.strands);
        let turn = self.dice.throw(60) as usize;
        let turn = if program.depends_on_polls() { 0 } else { turn };
        handler(move |cx| {
            let position = Position::new(cx, trace.clone(), strands, turn);
            let work = run(program.clone(), position);
            async move { Ok(work.await) }
        })
    }

    /// The client's answer to the ask at this path, sometimes an invalid one.
    pub(crate) fn answer(&mut self, path: String) -> Option<Value> {
        if self.one_in(5) {
            return None;
        }
        if self.one_in(8) && self.answered_wrongly.insert(path.clone()) {
            return Some(num(-1));
        }
        let answer = answer_at(&path).map_or(json!({"action": "decline"}), num);
        self.answered.insert(path);
        Some(answer)
    }

    /// Adds the history of a run to the history that later runs must repeat.
    pub(crate) fn record_history(&mut self, trace: &Trace) {
        for (strand, seen) in trace.seen.lock().unwrap().iter() {
            let before = self.before.entry(strand.clone()).or_default();
            before.extend(seen.iter().skip(before.len()).cloned());
        }
    }
}

/// Checks that a run repeated this history. A run that ended early may have repeated a part of it.
pub(crate) fn check_history(
    before: &History,
    trace: &Trace,
    ended_early: bool,
) -> Result<(), String> {
    let seen = trace.seen.lock().unwrap();
    for (strand, before) in before {
        let now = seen.get(strand).map_or(&[][..], Vec::as_slice);
        let both = before.len().min(now.len());
        if now[..both] != before[..both] || (now.len() < before.len() && !ended_early) {
            return Err(format!("strand {strand:?} saw {before:?} and then {now:?}"));
        }
    }
    Ok(())
}

/// The position of an ask in the program: the first line of its message.
pub(crate) fn path(ask: &Ask) -> String {
    let message = message(ask);
    message.split('\n').next().unwrap_or_default().to_owned()
}
