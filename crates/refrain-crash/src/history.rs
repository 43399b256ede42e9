//! What the records of all workers say together: who held which task when, and what was written under which fence.

use crate::plan::Effect;
use crate::record::{After, Event, Hold};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

/// The life of one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lived {
    /// The run of a worker that had it.
    pub(crate) run: u32,
    /// When it had been taken.
    pub(crate) taken: u64,
    /// When it was last asked to be held, successfully: it is sure to be held for the time of a lease from then on.
    pub(crate) held: u64,
    /// How it was given up, as far as is known.
    pub(crate) given_up: Option<After>,
    /// How its worker was about to give it up.
    pub(crate) perhaps_given_up: Option<After>,
    /// The effects in the journal that came with it.
    pub(crate) came: Vec<Effect>,
    /// The effects in the last journal that was written under it.
    pub(crate) left: Vec<Effect>,
    /// When something was asked to be written, successfully.
    pub(crate) wrote: Vec<u64>,
}

/// When the value of an effect was journaled, at the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Journaled {
    pub(crate) fence: u64,
    pub(crate) at: u64,
}

/// All leases, and what came of them.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) leases: BTreeMap<Hold, Lived>,
    /// When the value of each effect was journaled.
    pub(crate) journaled: HashMap<Effect, Journaled>,
    /// The lease under which a turn of a handler ran.
    turns: HashMap<(u32, u64), Hold>,
    /// What cannot be.
    pub(crate) faults: Vec<String>,
}

impl History {
    /// Puts records together, one for each run. `ids` are the tasks' ids by their numbers.
    pub(crate) fn new(records: &[Vec<Event>], ids: &HashMap<u32, String>) -> Self {
        let mut history = Self::default();
        for (run, record) in (0..).zip(records) {
            history.read(run, record, ids);
        }
        history
    }

    fn read(&mut self, run: u32, record: &[Event], ids: &HashMap<u32, String>) {
        let mut latest: HashMap<&str, &Hold> = HashMap::new();
        for event in record {
            match event {
                Event::Taken {
                    hold,
                    asked,
                    done,
                    journal,
                } => {
                    latest.insert(&hold.task, hold);
                    let came = effects(journal);
                    // It was written under an earlier one.
                    self.journal(hold.fence.saturating_sub(1), *done, &came);
                    self.take(run, hold, *asked, *done, came);
                }
                Event::Extended { holds, asked } => {
                    for hold in holds {
                        if let Some(lived) = self.leases.get_mut(hold) {
                            lived.held = lived.held.max(*asked);
                        }
                    }
                }
                Event::Wrote {
                    hold,
                    then,
                    asked,
                    done,
                    journal,
                } => {
                    let journal = effects(journal);
                    self.journal(hold.fence, *done, &journal);
                    self.write(run, hold, *then, *asked, journal);
                }
                Event::GivesUp { hold, then } => {
                    if let Some(lived) = self.leases.get_mut(hold) {
                        lived.perhaps_given_up = Some(*then);
                    }
                }
                Event::NotWritten { .. } => {}
                Event::Turn { number, turn } => {
                    let id = ids.get(number).map(String::as_str);
                    match id.and_then(|id| latest.get(id)) {
                        Some(hold) => {
                            self.turns.insert((run, *turn), (*hold).clone());
                        }
                        None => self.faults.push(format!(
                            "run {run} ran the handler of task {number} without a lease"
                        )),
                    }
                }
            }
        }
    }

    fn take(&mut self, run: u32, hold: &Hold, asked: u64, done: u64, came: Vec<Effect>) {
        let lived = Lived {
            run,
            taken: done,
            held: asked,
            given_up: None,
            perhaps_given_up: None,
            left: came.clone(),
            came,
            wrote: Vec::new(),
        };
        if let Some(other) = self.leases.insert(hold.clone(), lived) {
            let Hold { task, fence } = hold;
            self.faults.push(format!(
                "task {task}: fence {fence} was given to run {} and to run {run}",
                other.run
            ));
        }
    }

    fn write(&mut self, run: u32, hold: &Hold, then: After, asked: u64, journal: Vec<Effect>) {
        let Hold { task, fence } = hold;
        let Some(lived) = self.leases.get_mut(hold).filter(|lived| lived.run == run) else {
            self.faults.push(format!(
                "task {task}: run {run} wrote under fence {fence}, which it was never given"
            ));
            return;
        };
        lived.wrote.push(asked);
        if then != After::Keep {
            lived.given_up = Some(then);
        }
        // What is written of an end has no journal.
        if !journal.is_empty() {
            lived.left = journal;
        }
    }

    fn journal(&mut self, fence: u64, at: u64, journal: &[Effect]) {
        for effect in journal {
            let first = self.journaled.entry(*effect);
            let first = first.or_insert(Journaled { fence, at });
            first.fence = first.fence.min(fence);
            first.at = first.at.min(at);
        }
    }

    /// The lease under which a turn ran.
    pub(crate) fn lease_of(&self, run: u32, turn: u64) -> Option<&Hold> {
        self.turns.get(&(run, turn))
    }

    /// The lease that was taken after this one, as far as is known.
    pub(crate) fn next(&self, hold: &Hold) -> Option<(&Hold, &Lived)> {
        let last = Hold {
            task: hold.task.clone(),
            fence: u64::MAX,
        };
        let after = (Bound::Excluded(hold), Bound::Included(&last));
        self.leases.range::<Hold, _>(after).next()
    }
}

fn effects(journal: &[String]) -> Vec<Effect> {
    let effects = journal.iter().filter_map(|text| Effect::parse(text));
    effects.collect()
}
