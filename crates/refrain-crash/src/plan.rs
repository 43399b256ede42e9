//! The plans of the tasks and their expected results, derived from the seed.

use crate::random::Random;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Separates the random numbers of plans from others of the same seed.
const PURPOSE: u64 = 0x70_6c_61_6e;

/// The plan of one task: its parts, one after another. These are the arguments of the call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct TaskPlan {
    /// The task's number in the run.
    pub(crate) number: u32,
    pub(crate) parts: Vec<PlanPart>,
}

/// One part of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PlanPart {
    /// Steps one after another.
    Steps(u8),
    /// Concurrent steps.
    Together(u8),
    /// A step that asks so many times to be tried again.
    Flaky(u8),
    /// An ask.
    Ask,
    /// Two concurrent asks.
    Asks,
    /// An ask, and so many steps one after another while it waits.
    AskBeside(u8),
    /// A sleep of so many milliseconds.
    Sleep(u32),
    /// A sleep of so many milliseconds, and as many steps one after another meanwhile.
    SleepBeside(u32, u8),
}

/// A step of a task. Its text is the value of the step, so that it can be found in a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Effect {
    /// The number of the task.
    pub(crate) number: u32,
    /// The part of its plan, from 0.
    pub(crate) part: u8,
    /// The step of the part, from 0.
    pub(crate) step: u8,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, part, step } = self;
        write!(f, "<{number}:{part}.{step}>")
    }
}

impl Effect {
    /// Reads what [`fmt::Display`] wrote.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let inner = text.strip_prefix('<')?.strip_suffix('>')?;
        let (number, place) = inner.split_once(':')?;
        let (part, step) = place.split_once('.')?;
        Some(Self {
            number: number.parse().ok()?,
            part: part.parse().ok()?,
            step: step.parse().ok()?,
        })
    }

    /// The effects whose values are in this journal.
    pub(crate) fn all_in(journal: &[u8]) -> Vec<Self> {
        let mut found = Vec::new();
        let mut rest = journal;
        while let Some(begin) = rest.iter().position(|byte| *byte == b'<') {
            rest = &rest[begin..];
            let end = rest.iter().position(|byte| *byte == b'>');
            let text = end.and_then(|end| std::str::from_utf8(&rest[..=end]).ok());
            found.extend(text.and_then(Self::parse));
            rest = &rest[1..];
        }
        found
    }
}

impl PlanPart {
    fn random(random: &mut Random) -> Self {
        // Short sleeps stay in memory; long ones suspend the task.
        let nap = |random: &mut Random| random.between(100, 2500) as u32;
        let few = |random: &mut Random| random.between(1, 3) as u8;
        match random.below(100) {
            0..25 => Self::Steps(few(random)),
            25..37 => Self::Together(random.between(2, 4) as u8),
            37..47 => Self::Flaky(random.between(1, 2) as u8),
            47..62 => Self::Ask,
            62..70 => Self::Asks,
            70..80 => Self::AskBeside(few(random)),
            80..92 => Self::Sleep(nap(random)),
            _ => Self::SleepBeside(nap(random), few(random)),
        }
    }

    pub(crate) fn steps(self) -> u8 {
        match self {
            Self::Steps(steps) | Self::Together(steps) => steps,
            Self::AskBeside(steps) | Self::SleepBeside(_, steps) => steps,
            Self::Flaky(_) => 1,
            Self::Ask | Self::Asks | Self::Sleep(_) => 0,
        }
    }

    fn sleeps(self) -> bool {
        matches!(self, Self::Sleep(_) | Self::SleepBeside(..))
    }

    pub(crate) fn asks(self) -> u8 {
        match self {
            Self::Ask | Self::AskBeside(_) => 1,
            Self::Asks => 2,
            _ => 0,
        }
    }
}

impl TaskPlan {
    pub(crate) fn new(seed: u64, number: u32) -> Self {
        let mut random = Random::new(seed, PURPOSE ^ (u64::from(number) << 32));
        let count = random.between(3, 6);
        let mut parts: Vec<PlanPart> = (0..count).map(|_| PlanPart::random(&mut random)).collect();
        // Every task asks, steps and sleeps.
        let missing = [
            (
                parts.iter().all(|part| part.steps() == 0),
                PlanPart::Steps(2),
            ),
            (parts.iter().all(|part| part.asks() == 0), PlanPart::Ask),
            (
                !parts.iter().any(|part| part.sleeps()),
                PlanPart::Sleep(1500),
            ),
        ];
        for (missing, part) in missing {
            if missing {
                let at = random.below(parts.len() as u64 + 1) as usize;
                parts.insert(at, part);
            }
        }
        Self { number, parts }
    }

    /// The parts with their numbers.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u8, PlanPart)> + '_ {
        (0..).zip(self.parts.iter().copied())
    }

    pub(crate) fn effect(&self, part: u8, step: u8) -> Effect {
        let number = self.number;
        Effect { number, part, step }
    }

    /// All steps of the plan.
    pub(crate) fn effects(&self) -> Vec<Effect> {
        let steps = |(at, part): (u8, PlanPart)| (0..part.steps()).map(move |step| (at, step));
        let all = self.numbered().flat_map(steps);
        all.map(|(part, step)| self.effect(part, step)).collect()
    }

    /// Whether the value of the first must be in the journal before the second may begin.
    pub(crate) fn is_before(&self, first: Effect, second: Effect) -> bool {
        if first.part != second.part {
            return first.part < second.part;
        }
        let part = self.parts.get(usize::from(first.part));
        !matches!(part, Some(PlanPart::Together(_))) && first.step < second.step
    }

    /// The number that this ask is answered with.
    pub(crate) fn answer(&self, part: u8, ask: u8) -> i64 {
        i64::from(self.number) * 1000 + i64::from(part) * 10 + i64::from(ask)
    }

    /// The expected result of the call.
    pub(crate) fn result(&self) -> String {
        let mut words = Vec::new();
        for (at, part) in self.numbered() {
            words.extend((0..part.asks()).map(|ask| self.answer(at, ask).to_string()));
            words.extend((0..part.steps()).map(|step| self.effect(at, step).to_string()));
        }
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_asks_steps_and_sleeps() {
        for number in 0..500 {
            let plan = TaskPlan::new(3, number);
            assert_eq!(plan, TaskPlan::new(3, number));
            assert!(!plan.effects().is_empty());
            assert!(plan.parts.iter().any(|part| part.asks() > 0));
            assert!(plan.parts.iter().any(|part| part.sleeps()));
        }
        assert_ne!(TaskPlan::new(3, 1).parts, TaskPlan::new(4, 1).parts);
    }

    #[test]
    fn effects_are_found_in_a_journal() {
        let effects = TaskPlan::new(1, 12).effects();
        let mut journal = b"\x00<<12:x>\xff<".to_vec();
        for effect in &effects {
            journal.extend_from_slice(format!("\"{effect}\"\x07").as_bytes());
        }
        assert_eq!(Effect::all_in(&journal), effects);
    }

    #[test]
    fn concurrent_steps_have_no_order() {
        let plan = TaskPlan {
            number: 1,
            parts: vec![PlanPart::Together(2), PlanPart::AskBeside(2)],
        };
        let is_before = |one: (u8, u8), other: (u8, u8)| {
            plan.is_before(plan.effect(one.0, one.1), plan.effect(other.0, other.1))
        };
        assert!(!is_before((0, 0), (0, 1)));
        assert!(is_before((0, 1), (1, 0)));
        assert!(is_before((1, 0), (1, 1)));
        assert!(!is_before((1, 1), (1, 0)));
    }
}
