//! The history of all leases, from the records of all workers: their holders, and the writes under each fence.

use crate::plan::Effect;
use crate::record::{After, LeaseRef, RecordEvent};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

/// The history of one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseHistory {
    /// The run of its worker.
    pub(crate) run: u32,
    /// The time by which it was taken.
    pub(crate) taken: u64,
    /// When the last successful request to take or extend it was sent: it is held for the time of a lease from then on.
    pub(crate) held: u64,
    /// How it was released, if known.
    pub(crate) given_up: Option<After>,
    /// How its worker was about to give it up.
    pub(crate) perhaps_given_up: Option<After>,
    /// The effects in the journal that came with it.
    pub(crate) came: Vec<Effect>,
    /// The effects in the last journal that was written under it.
    pub(crate) left: Vec<Effect>,
    /// When each successful write was sent.
    pub(crate) wrote: Vec<u64>,
}

/// When the value of an effect was journaled, at the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Journaled {
    pub(crate) fence: u64,
    pub(crate) at: u64,
}

/// All leases of a run.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) leases: BTreeMap<LeaseRef, LeaseHistory>,
    pub(crate) journaled: HashMap<Effect, Journaled>,
    /// The lease under which each turn of a handler ran, by run and turn.
    pub(crate) turns: HashMap<(u32, u64), LeaseRef>,
    /// Contradictions between the records.
    pub(crate) faults: Vec<String>,
}

impl History {
    /// Reads one record for each run. `ids` are the tasks' ids by their numbers.
    pub(crate) fn new(records: &[Vec<RecordEvent>], ids: &HashMap<u32, &str>) -> Self {
        let mut history = Self::default();
        for (run, record) in (0..).zip(records) {
            let mut latest: HashMap<&str, &LeaseRef> = HashMap::new();
            for event in record {
                if let RecordEvent::Taken { hold, .. } = event {
                    latest.insert(&hold.task, hold);
                }
                if let RecordEvent::Turn { number, turn } = event {
                    match ids.get(number).and_then(|id| latest.get(id)) {
                        Some(hold) => {
                            history.turns.insert((run, *turn), (*hold).clone());
                        }
                        None => history.faults.push(format!(
                            "run {run} ran the handler of task {number} without a lease"
                        )),
                    }
                }
                history.add(run, event);
            }
        }
        history
    }

    /// Adds an event, unless it is a turn.
    fn add(&mut self, run: u32, event: &RecordEvent) {
        match event {
            RecordEvent::Taken {
                hold,
                asked,
                done,
                journal,
            } => {
                // It was written under an earlier fence.
                self.journal(hold.fence.saturating_sub(1), *done, journal);
                let lived = LeaseHistory {
                    run,
                    taken: *done,
                    held: *asked,
                    given_up: None,
                    perhaps_given_up: None,
                    came: journal.clone(),
                    left: journal.clone(),
                    wrote: Vec::new(),
                };
                if let Some(other) = self.leases.insert(hold.clone(), lived) {
                    let (LeaseRef { task, fence }, other) = (hold, other.run);
                    self.faults.push(format!(
                        "task {task}: fence {fence} was given to run {other} and to run {run}"
                    ));
                }
            }
            RecordEvent::Extended { holds, asked } => {
                for hold in holds {
                    if let Some(lived) = self.leases.get_mut(hold) {
                        lived.held = lived.held.max(*asked);
                    }
                }
            }
            RecordEvent::Wrote {
                hold,
                then,
                asked,
                done,
                journal,
            } => {
                self.journal(hold.fence, *done, journal);
                self.write(run, hold, *then, *asked, journal);
            }
            RecordEvent::GivesUp { hold, then } => {
                if let Some(lived) = self.leases.get_mut(hold) {
                    lived.perhaps_given_up = Some(*then);
                }
            }
            RecordEvent::NotWritten { .. } | RecordEvent::Turn { .. } => {}
        }
    }

    fn write(&mut self, run: u32, hold: &LeaseRef, then: After, asked: u64, journal: &[Effect]) {
        let Some(lived) = self.leases.get_mut(hold).filter(|lived| lived.run == run) else {
            let LeaseRef { task, fence } = hold;
            self.faults.push(format!(
                "task {task}: run {run} wrote under fence {fence}, which it was never given"
            ));
            return;
        };
        lived.wrote.push(asked);
        if then != After::Keep {
            lived.given_up = Some(then);
        }
        // The commit of an end has no journal.
        if !journal.is_empty() {
            lived.left = journal.to_vec();
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

    /// The lease that was taken after this one, as far as is known.
    pub(crate) fn next(&self, hold: &LeaseRef) -> Option<(&LeaseRef, &LeaseHistory)> {
        let last = LeaseRef {
            task: hold.task.clone(),
            fence: u64::MAX,
        };
        let after = (Bound::Excluded(hold), Bound::Included(&last));
        self.leases.range::<LeaseRef, _>(after).next()
    }
}
