//! The plans of the tasks and their expected results, both derived from the seed.

use crate::random::random_stream;
use fastrand::Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The random stream of the plans.
const RANDOM_STREAM: u64 = 0x70_6c_61_6e;

/// The plan of one task: a sequence of parts. It is the arguments of the call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct TaskPlan {
    /// The task's number in the run.
    pub(crate) number: u32,
    pub(crate) parts: Vec<PlanPart>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PlanPart {
    /// Sequential steps.
    Steps(u8),
    /// Concurrent steps.
    Together(u8),
    /// A step that asks for this many retries.
    Flaky(u8),
    Ask,
    /// Two concurrent asks.
    Asks,
    /// An ask, and this many sequential steps while it waits.
    AskBeside(u8),
    /// A sleep in milliseconds.
    Sleep(u32),
    /// A sleep in milliseconds, and this many sequential steps meanwhile.
    SleepBeside(u32, u8),
}

/// A step of a task. Its text is the step's value, which identifies it in a journal. The message of
/// an ask has the same form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Effect {
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
    /// Parses the [`fmt::Display`] form.
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

    /// The effects whose values this journal contains.
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
    fn random(random: &mut Rng) -> Self {
        // For a long sleep the task is suspended; a short one stays in memory.
        let sleep_millis = |random: &mut Rng| random.u32(100..=2500);
        let few_steps = |random: &mut Rng| random.u8(1..=3);
        match random.u8(..100) {
            0..25 => Self::Steps(few_steps(random)),
            25..37 => Self::Together(random.u8(2..=4)),
            37..47 => Self::Flaky(random.u8(1..=2)),
            47..62 => Self::Ask,
            62..70 => Self::Asks,
            70..80 => Self::AskBeside(few_steps(random)),
            80..92 => Self::Sleep(sleep_millis(random)),
            _ => Self::SleepBeside(sleep_millis(random), few_steps(random)),
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
        let mut random = random_stream(seed, RANDOM_STREAM ^ (u64::from(number) << 32));
        let count = random.u8(3..=6);
        let mut parts: Vec<PlanPart> = (0..count).map(|_| PlanPart::random(&mut random)).collect();
        // Every task has an ask, a step and a sleep.
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
                let index = random.usize(..=parts.len());
                parts.insert(index, part);
            }
        }
        Self { number, parts }
    }

    /// The plan of a call that is not a task.
    pub(crate) fn call(number: u32) -> Self {
        let parts = vec![PlanPart::Ask, PlanPart::Steps(2), PlanPart::Ask];
        Self { number, parts }
    }

    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u8, PlanPart)> + '_ {
        (0..).zip(self.parts.iter().copied())
    }

    pub(crate) fn effect(&self, part: u8, step: u8) -> Effect {
        let number = self.number;
        Effect { number, part, step }
    }

    pub(crate) fn effects(&self) -> Vec<Effect> {
        let steps =
            |(index, part): (u8, PlanPart)| (0..part.steps()).map(move |step| (index, step));
        let all = self.numbered().flat_map(steps);
        all.map(|(part, step)| self.effect(part, step)).collect()
    }

    /// Whether the first value must be journaled before the second step may start.
    pub(crate) fn is_before(&self, first: Effect, second: Effect) -> bool {
        if first.part != second.part {
            return first.part < second.part;
        }
        let part = self.parts.get(usize::from(first.part));
        !matches!(part, Some(PlanPart::Together(_))) && first.step < second.step
    }

    pub(crate) fn answer(&self, part: u8, ask: u8) -> i64 {
        i64::from(self.number) * 1000 + i64::from(part) * 10 + i64::from(ask)
    }

    /// The expected result of the call.
    pub(crate) fn result(&self) -> String {
        let mut words = Vec::new();
        for (index, part) in self.numbered() {
            words.extend((0..part.asks()).map(|ask| self.answer(index, ask).to_string()));
            words.extend((0..part.steps()).map(|step| self.effect(index, step).to_string()));
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
    fn steps_side_by_side_have_no_order() {
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
