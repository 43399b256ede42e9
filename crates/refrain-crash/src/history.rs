//! The history of all leases, reconstructed from the workers' records.

use crate::plan::Effect;
use crate::record::{LeaseId, NextState, RecordEvent};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseHistory {
    pub(crate) run: u32,
    /// The time of the claim.
    pub(crate) taken: u64,
    /// The time of the last successful claim or extension, from which the lease counts.
    pub(crate) held: u64,
    /// How the worker released the lease, if it did.
    pub(crate) released: Option<NextState>,
    /// How the worker was about to release the lease.
    pub(crate) maybe_released: Option<NextState>,
    /// The effects in the journal at the claim.
    pub(crate) came: Vec<Effect>,
    /// The effects in the last journal written under this lease.
    pub(crate) left: Vec<Effect>,
    /// The times of successful writes.
    pub(crate) wrote: Vec<u64>,
}

/// The latest possible time at which the value of an effect was journaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Journaled {
    pub(crate) fence: u64,
    pub(crate) at: u64,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) leases: BTreeMap<LeaseId, LeaseHistory>,
    pub(crate) journaled: HashMap<Effect, Journaled>,
    /// The lease under which each turn of a handler ran, by run and turn.
    pub(crate) turns: HashMap<(u32, u64), LeaseId>,
    /// Contradictions between the records.
    pub(crate) faults: Vec<String>,
}

impl History {
    /// Reads one record per run. `ids` maps task numbers to task ids.
    pub(crate) fn new(records: &[Vec<RecordEvent>], ids: &HashMap<u32, &str>) -> Self {
        let mut history = Self::default();
        for (run, record) in (0..).zip(records) {
            let mut latest: HashMap<&str, &LeaseId> = HashMap::new();
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

    /// Adds an event other than a turn.
    fn add(&mut self, run: u32, event: &RecordEvent) {
        match event {
            RecordEvent::Taken {
                hold,
                asked,
                done,
                journal,
            } => {
                // The journal was written under an earlier fence.
                self.journal(hold.fence.saturating_sub(1), *done, journal);
                let lived = LeaseHistory {
                    run,
                    taken: *done,
                    held: *asked,
                    released: None,
                    maybe_released: None,
                    came: journal.clone(),
                    left: journal.clone(),
                    wrote: Vec::new(),
                };
                if let Some(other) = self.leases.insert(hold.clone(), lived) {
                    let (LeaseId { task, fence }, other) = (hold, other.run);
                    self.faults.push(format!(
                        "task {task}: fence {fence} was assigned to run {other} and to run {run}"
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
                    lived.maybe_released = Some(*then);
                }
            }
            RecordEvent::NotWritten { .. } | RecordEvent::Turn { .. } | RecordEvent::Attempt(_) => {
            }
        }
    }

    fn write(&mut self, run: u32, hold: &LeaseId, then: NextState, asked: u64, journal: &[Effect]) {
        let Some(lived) = self.leases.get_mut(hold).filter(|lived| lived.run == run) else {
            let LeaseId { task, fence } = hold;
            self.faults.push(format!(
                "task {task}: run {run} wrote under fence {fence}, without a lease for it"
            ));
            return;
        };
        lived.wrote.push(asked);
        if then != NextState::Keep {
            lived.released = Some(then);
        }
        // The final commit has no journal.
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

    /// The next known lease of the same task.
    pub(crate) fn next(&self, hold: &LeaseId) -> Option<(&LeaseId, &LeaseHistory)> {
        let last = LeaseId {
            task: hold.task.clone(),
            fence: u64::MAX,
        };
        let after = (Bound::Excluded(hold), Bound::Included(&last));
        self.leases.range::<LeaseId, _>(after).next()
    }
}
