//! The history of all leases, reconstructed from the workers' records.

use crate::plan::Effect;
use crate::record::{LeaseId, NextState, RecordEvent};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseHistory {
    pub(crate) process: u32,
    /// The time of the claim.
    pub(crate) acquired: u64,
    /// The time of the last successful claim or extension, from which the lease counts.
    pub(crate) renewed: u64,
    /// How the worker released the lease, if it did.
    pub(crate) released: Option<NextState>,
    /// How the worker was about to release the lease.
    pub(crate) maybe_released: Option<NextState>,
    /// The effects in the journal at the claim.
    pub(crate) first_journal: Vec<Effect>,
    /// The effects in the last journal written under this lease.
    pub(crate) last_journal: Vec<Effect>,
    /// The times of successful writes.
    pub(crate) write_times: Vec<u64>,
}

/// The value of an effect was journaled under this fence and at this time, or earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Journaled {
    pub(crate) fence: u64,
    pub(crate) at: u64,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) leases: BTreeMap<LeaseId, LeaseHistory>,
    pub(crate) journaled: HashMap<Effect, Journaled>,
    /// The lease of each start of a task's handler, by process and by the number of the start in that process.
    pub(crate) starts: HashMap<(u32, u64), LeaseId>,
    /// Contradictions between the records.
    pub(crate) faults: Vec<String>,
}

impl History {
    /// Reads one record per process. `ids` maps task numbers to task ids.
    pub(crate) fn new(records: &[Vec<RecordEvent>], ids: &HashMap<u32, &str>) -> Self {
        let mut history = Self::default();
        for (process, record) in (0..).zip(records) {
            let mut latest: HashMap<&str, &LeaseId> = HashMap::new();
            for event in record {
                if let RecordEvent::Acquired { lease, .. } = event {
                    latest.insert(&lease.task, lease);
                }
                if let RecordEvent::Started { number, start } = event {
                    match ids.get(number).and_then(|id| latest.get(id)) {
                        Some(lease) => {
                            history.starts.insert((process, *start), (*lease).clone());
                        }
                        None => history.faults.push(format!(
                            "process {process} ran the handler of task {number} without a lease"
                        )),
                    }
                }
                history.add(process, event);
            }
        }
        history
    }

    /// Adds an event other than a start.
    fn add(&mut self, process: u32, event: &RecordEvent) {
        match event {
            RecordEvent::Acquired {
                lease,
                started,
                finished,
                journal,
            } => {
                // The journal was written under an earlier fence.
                self.add_journal(lease.fence.saturating_sub(1), *finished, journal);
                let entry = LeaseHistory {
                    process,
                    acquired: *finished,
                    renewed: *started,
                    released: None,
                    maybe_released: None,
                    first_journal: journal.clone(),
                    last_journal: journal.clone(),
                    write_times: Vec::new(),
                };
                if let Some(other) = self.leases.insert(lease.clone(), entry) {
                    let (LeaseId { task, fence }, other) = (lease, other.process);
                    self.faults.push(format!(
                        "task {task}: fence {fence} was assigned to process {other} and to process {process}"
                    ));
                }
            }
            RecordEvent::Extended { leases, started } => {
                for lease in leases {
                    if let Some(entry) = self.leases.get_mut(lease) {
                        entry.renewed = entry.renewed.max(*started);
                    }
                }
            }
            RecordEvent::Wrote {
                lease,
                next,
                started,
                finished,
                journal,
            } => {
                self.add_journal(lease.fence, *finished, journal);
                self.add_write(process, lease, *next, *started, journal);
            }
            RecordEvent::Releasing { lease, next } => {
                if let Some(entry) = self.leases.get_mut(lease) {
                    entry.maybe_released = Some(*next);
                }
            }
            RecordEvent::NotWritten { .. }
            | RecordEvent::Started { .. }
            | RecordEvent::Attempt(_) => {}
        }
    }

    fn add_write(
        &mut self,
        process: u32,
        lease: &LeaseId,
        next: NextState,
        started: u64,
        journal: &[Effect],
    ) {
        let Some(entry) = self
            .leases
            .get_mut(lease)
            .filter(|entry| entry.process == process)
        else {
            let LeaseId { task, fence } = lease;
            self.faults.push(format!(
                "task {task}: process {process} wrote under fence {fence}, without a lease for it"
            ));
            return;
        };
        entry.write_times.push(started);
        if next != NextState::Keep {
            entry.released = Some(next);
        }
        // The final commit has no journal.
        if !journal.is_empty() {
            entry.last_journal = journal.to_vec();
        }
    }

    fn add_journal(&mut self, fence: u64, at: u64, journal: &[Effect]) {
        for effect in journal {
            let first = self.journaled.entry(*effect);
            let first = first.or_insert(Journaled { fence, at });
            first.fence = first.fence.min(fence);
            first.at = first.at.min(at);
        }
    }

    /// The next known lease of the same task.
    pub(crate) fn next(&self, lease: &LeaseId) -> Option<(&LeaseId, &LeaseHistory)> {
        let last = LeaseId {
            task: lease.task.clone(),
            fence: u64::MAX,
        };
        let after = (Bound::Excluded(lease), Bound::Included(&last));
        self.leases.range::<LeaseId, _>(after).next()
    }
}
