//! A flow whose home is a store.
//!
//! Invariant: before a step starts, an ask is published, or the flow rests or ends, all that the handler has seen is
//! written. A crash between two writes loses only work without visible effects.
//!
//! Asks are published as soon as they are made, while other branches continue. A wire key is used for one ask in a
//! task's life: a repeated ask gets another key.

use super::driver::Flow;
use super::reply::{Then, Write};
use super::slot::{Phase, Slot, SlotId};
use super::state::{Shared, State, Wakers};
use crate::Source;
use crate::journal::{Asked, Entry, FlowId, Held, Key, Snapshot};
use refrain_wire::{Ask, check_answer_shape};
use serde_json::value::RawValue;
use std::task::Waker;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The least time between two writes of checkpoints.
const BETWEEN_CHECKPOINTS: Duration = Duration::from_secs(1);

/// The state of publishing and writing a flow whose home is a store or memory.
#[derive(Debug, Default)]
pub(crate) struct TaskState {
    /// The flow is not written; see [`memory`](super::memory).
    pub(super) in_memory: bool,
    /// The number of entries written or being written.
    pub(super) kept: usize,
    /// Published asks without an answer.
    pub(super) published: Vec<Asked>,
    /// Keys of answers that arrived and are not written yet.
    pub(super) taken: Vec<String>,
    /// A checkpoint was made and is not written yet.
    pub(super) checkpoint: bool,
    /// The time of the last write, in microseconds since 1970.
    pub(super) wrote_at: u64,
    /// The steps that wait for the write in progress, if any.
    pub(super) under_way: Option<Vec<SlotId>>,
    /// `moves` when rest was last reported, and whether other work was possible then.
    pub(super) rested_at: Option<(u64, bool)>,
}

/// Published asks that a write withdraws if they are not open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Withdraw {
    /// None: the next attempt makes them again.
    Nothing,
    /// Those that this run has made and dropped. Others may still be made again.
    Dropped,
    All,
}

/// The asks of a write.
#[derive(Default)]
struct AskChanges {
    published: Vec<Asked>,
    new: Vec<(String, Ask)>,
    withdrawn: Vec<String>,
}

impl TaskState {
    fn published(&self, wire_key: &str) -> Option<usize> {
        let mut published = self.published.iter();
        published.position(|asked| *asked.wire_key == *wire_key)
    }

    /// The key that an ask was published under, or will be: `plain`, or a numbered variant of it that is not taken.
    pub(super) fn wire_key(
        &mut self,
        key: &Key,
        fingerprint: u64,
        plain: String,
        taken: impl Fn(&str) -> bool,
    ) -> Box<str> {
        let same = |p: &&mut Asked| p.key == *key && p.fingerprint == fingerprint;
        if let Some(known) = self.published.iter_mut().find(same) {
            known.made_here = true;
            return known.wire_key.clone();
        }
        let numbered = (2..).map(|number| format!("{plain}.{number}"));
        std::iter::once(plain.clone())
            .chain(numbered)
            .find(|wire| !taken(wire))
            .unwrap_or(plain)
            .into()
    }
}

impl State {
    pub(crate) fn is_task(&self) -> bool {
        self.task.as_ref().is_some_and(|task| !task.in_memory)
    }

    /// Notes a checkpoint, and returns whether a task must write it now.
    pub(crate) fn keep_checkpoint(&mut self, source: &dyn Source) -> bool {
        let task = self.task.as_mut().filter(|task| !task.in_memory);
        task.is_some_and(|task| {
            task.checkpoint = true;
            let since = micros(source.now()).abs_diff(task.wrote_at);
            u128::from(since) >= BETWEEN_CHECKPOINTS.as_micros()
        })
    }

    /// Returns whether the handler has seen or done anything that is not written.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.task.as_ref().is_some_and(|task| {
            !task.in_memory && (self.has_progress(task) || task.under_way.is_some())
        })
    }

    fn has_progress(&self, task: &TaskState) -> bool {
        self.journal.entries.len() > task.kept || task.checkpoint || !task.taken.is_empty()
    }

    pub(super) fn has_new_asks(&self) -> bool {
        self.task.as_ref().is_some_and(|task| {
            let is_new = |wire: &str| task.published(wire).is_none();
            self.any(|phase| phase.open_key().is_some_and(is_new))
        })
    }

    /// Returns whether there is an ask to publish or to withdraw.
    pub(super) fn asks_changed(&self) -> bool {
        let is_open = |wire: &str| self.any(|phase| phase.open_key() == Some(wire));
        let dropped = |asked: &Asked| asked.made_here && !is_open(&asked.wire_key);
        let task = self.task.as_ref();
        self.has_new_asks() || task.is_some_and(|task| task.published.iter().any(dropped))
    }

    /// Records that only asks and sleeps are left, and returns whether that is news.
    pub(super) fn rests_anew(&mut self, then: Then) -> bool {
        let Then::Rest { perhaps_more, .. } = then else {
            return false;
        };
        let now = (self.moves, perhaps_more);
        let Some(task) = &mut self.task else {
            return false;
        };
        let before = task.rested_at.replace(now);
        before.is_none_or(|before| before.0 != now.0 || (before.1 && !perhaps_more))
    }

    /// Returns whether rest was reported and nothing has happened since.
    fn rests(&self) -> bool {
        let rested_at = self.task.as_ref().and_then(|task| task.rested_at);
        self.running == 0 && rested_at.is_some_and(|(moves, _)| moves == self.moves)
    }

    /// The open asks to write, and those that need no answer any more.
    fn ask_changes(&self, withdraw: Withdraw) -> AskChanges {
        let mut changes = AskChanges::default();
        let Some(task) = &self.task else {
            return changes;
        };
        for known in &task.published {
            let wire = &*known.wire_key;
            let stays = match withdraw {
                Withdraw::Nothing => true,
                Withdraw::Dropped => !known.made_here,
                Withdraw::All => false,
            };
            if stays || self.any(|phase| phase.open_key() == Some(wire)) {
                changes.published.push(known.clone());
            } else {
                changes.withdrawn.push(wire.to_owned());
            }
        }
        for slot in &self.slots {
            if let Phase::Open {
                ask,
                wire_key,
                fingerprint,
            } = &slot.phase
                && task.published(wire_key).is_none()
            {
                changes.new.push((wire_key.to_string(), ask.clone()));
                changes.published.push(Asked {
                    wire_key: wire_key.clone(),
                    key: slot.key.clone(),
                    fingerprint: *fingerprint,
                    made_here: true,
                });
            }
        }
        changes
    }

    /// Collects all that is to be written.
    fn write(&mut self, flow: FlowId, now: SystemTime, then: Then, changes: AskChanges) -> Write {
        let AskChanges {
            published,
            new: asks,
            withdrawn,
        } = changes;
        let new_keys = asks.iter().map(|(wire, _)| wire.as_str().into());
        self.journal.used.extend(new_keys);
        let asked = published.clone();
        let held = |slot: &&Slot| matches!(slot.phase, Phase::Held);
        let held = self.slots.iter().filter(held).map(|slot| slot.id).collect();
        let progress = (self.task.as_ref()).is_some_and(|task| self.has_progress(task));
        let mut taken = Vec::new();
        if let Some(task) = &mut self.task {
            // From here on they can be answered.
            task.published = published;
            taken = std::mem::take(&mut task.taken);
            task.kept = self.journal.entries.len();
            task.wrote_at = micros(now);
            task.checkpoint = false;
            task.under_way = Some(held);
        }
        Write {
            snapshot: self.snapshot(flow, asked),
            progress: progress || !asks.is_empty(),
            asks,
            taken,
            withdrawn,
            then,
        }
    }

    /// The write of an incomplete reply in the explicit style.
    pub(super) fn write_explicit(
        &mut self,
        flow: FlowId,
        now: SystemTime,
        asked: Vec<Asked>,
        asks: Vec<(String, Ask)>,
    ) -> Write {
        let mut changes = AskChanges::default();
        if let Some(task) = &mut self.task {
            let used = &self.journal.used;
            for (mut asked, (plain, ask)) in asked.into_iter().zip(asks) {
                let taken = |wire: &str| {
                    used.iter().any(|used| **used == *wire)
                        || changes.new.iter().any(|(new, _)| new == wire)
                };
                asked.wire_key = task.wire_key(&asked.key, asked.fingerprint, plain, taken);
                if task.published(&asked.wire_key).is_none() {
                    changes.new.push((asked.wire_key.to_string(), ask));
                }
                changes.published.push(asked);
            }
            let stays = |wire: &str| (changes.published.iter()).any(|p| *p.wire_key == *wire);
            let known = task.published.iter().map(|p| &*p.wire_key);
            let withdrawn = known.filter(|wire| !stays(wire)).map(str::to_owned);
            changes.withdrawn = withdrawn.collect();
        }
        let then = match changes.published.is_empty() {
            true => Then::HandOn,
            false => Then::Rest {
                wake: None,
                perhaps_more: false,
            },
        };
        self.journal.round += 1;
        self.write(flow, now, then, changes)
    }

    fn snapshot(&self, flow: FlowId, asked: Vec<Asked>) -> Snapshot {
        let mut journal = self.journal.clone();
        journal.asked = asked;
        Snapshot::without_void(flow, self.deadline, journal)
    }

    /// The end of the first sleep.
    pub(super) fn wake_at(&self) -> Option<SystemTime> {
        let until = self.slots.iter().filter_map(|slot| match slot.phase {
            Phase::Asleep(until) => Some(until),
            _ => None,
        });
        until.min().map(|at| UNIX_EPOCH + Duration::from_micros(at))
    }

    /// Wakes the sleeps that are over.
    pub(super) fn end_sleeps(&mut self, now: SystemTime) -> Wakers {
        let now = micros(now);
        self.release(|phase| matches!(phase, Phase::Asleep(until) if *until <= now))
    }

    /// Lets the given steps start if they still wait, since all that precedes them is written.
    fn free(&mut self, held: &[SlotId]) -> Wakers {
        let mut wakers = Wakers::new();
        for slot in &mut self.slots {
            if held.contains(&slot.id) && matches!(slot.phase, Phase::Held) {
                slot.phase = Phase::Free;
                wakers.extend(slot.waker.take());
                self.moves += 1;
            }
        }
        wakers
    }

    /// Settles a published ask. `held` returns the outcome for the journal, if it is valid.
    pub(super) fn take_in(
        &mut self,
        wire_key: &str,
        held: impl FnOnce(&Asked) -> Option<Held>,
    ) -> Wakers {
        let Some(task) = &mut self.task else {
            return Wakers::new();
        };
        let Some(at) = task.published(wire_key) else {
            return Wakers::new();
        };
        let asked = task.published.remove(at);
        task.taken.push(wire_key.to_owned());
        if let Some(held) = held(&asked) {
            let entry = Entry::new(asked.key, asked.fingerprint, held);
            self.journal.entries.push(entry);
        }
        self.moves += 1;
        self.release(|phase| phase.open_key() == Some(wire_key))
    }
}

/// A flow that is about to become a task.
///
/// Store its snapshot. Then call [`Flow::become_task`], or [`Flow::stay`] if the store fails.
#[derive(Debug)]
#[must_use = "store the snapshot, then call Flow::become_task, or Flow::stay if the store fails"]
pub struct Detachment {
    snapshot: Snapshot,
    /// The number of journal entries, including rejected answers.
    kept: usize,
}

impl Detachment {
    /// Returns the snapshot to store.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }
}

impl Shared {
    pub(super) fn write(&self, then: Then, withdraw: Withdraw) -> Write {
        let now = self.env.source.now();
        let mut state = self.lock();
        let changes = state.ask_changes(withdraw);
        // Asks of a flow in memory count as a round, as they would elsewhere.
        state.journal.round += u32::from(state.is_in_memory() && !changes.new.is_empty());
        state.write(self.flow, now, then, changes)
    }
}

/// Returns whether an answer has the shape that its ask requires. Otherwise it is asked for again.
pub(super) fn fits(asked: &Asked, json: &str) -> bool {
    let raw: Option<&RawValue> = serde_json::from_str(json).ok();
    let checked = raw.zip(asked.key.kind.ask());
    checked.is_some_and(|(raw, kind)| check_answer_shape(kind, raw).is_ok())
}

impl Flow {
    /// Changes the state and has the handler polled. Wakers run without the lock.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut State) -> Wakers) {
        let wakers = change(&mut self.shared.lock());
        self.due = true;
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns the flow as it is now, to be stored as a task.
    pub fn detachment(&self) -> Detachment {
        let state = self.shared.lock();
        Detachment {
            snapshot: state.snapshot(self.shared.flow, Vec::new()),
            kept: state.journal.entries.len(),
        }
    }

    /// Makes the flow a task whose snapshot is stored: from here on it reports [`Event::Write`](super::Event::Write).
    /// `deadline` is the end of the task's life, in seconds since 1970.
    pub fn become_task(&mut self, stored: &Detachment, deadline: u64) {
        let task = TaskState {
            kept: stored.kept,
            wrote_at: micros(self.shared.env.source.now()),
            ..TaskState::default()
        };
        self.change(|state| {
            state.deadline = state.deadline.max(deadline);
            state.task = Some(Box::new(task));
            state.notes.clear();
            state.release(|phase| matches!(phase, Phase::Detaching))
        });
    }

    /// Makes `detach` fail with this reason.
    pub fn stay(&mut self, reason: String) {
        self.change(|state| {
            state.no_task = Some(reason);
            state.release(|phase| matches!(phase, Phase::Detaching))
        });
    }

    /// Confirms that the last [`Event::Write`](super::Event::Write) is written.
    pub fn written(&mut self) {
        let (saved, freed) = {
            let mut state = self.shared.lock();
            let saved = state.release(|phase| matches!(phase, Phase::Saving));
            let under_way = state.task.as_mut().and_then(|task| task.under_way.take());
            (saved, state.free(&under_way.unwrap_or_default()))
        };
        saved.into_iter().chain(freed).for_each(Waker::wake);
    }

    /// Takes the answer to the ask published under this key, which is settled even if the answer is malformed.
    pub fn answer(&mut self, wire_key: &str, json: &str) {
        let held = |asked: &Asked| fits(asked, json).then(|| Held::Value(json.into()));
        self.change(|state| state.take_in(wire_key, held));
    }

    /// Suspends the task and drops running work. It rests if it was at rest; otherwise it is to be resumed at once.
    /// The flow is over.
    pub fn set_down(&mut self) -> Write {
        let (rests, wake) = {
            let state = self.shared.lock();
            (state.rests(), state.wake_at())
        };
        let rest = Then::Rest {
            wake,
            perhaps_more: false,
        };
        let write = match rests {
            true => self.shared.write(rest, Withdraw::All),
            false => self.shared.write(Then::HandOn, Withdraw::Dropped),
        };
        self.end();
        write
    }

    /// Returns whether rest was reported and nothing has happened since.
    pub fn rests(&self) -> bool {
        self.shared.lock().rests()
    }

    /// Returns the end of the handler's first sleep: it must be polled again then.
    pub fn wake_at(&self) -> Option<SystemTime> {
        self.shared.lock().wake_at()
    }

    /// Takes the status that the handler set since the last call.
    pub fn take_status(&mut self) -> Option<String> {
        self.shared.lock().status.take()
    }

    /// Takes the last status for the result, unless an awaited outcome was delivered after it.
    pub fn parting_status(&mut self) -> Option<String> {
        self.shared.lock().parting.take()
    }
}

pub(crate) fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
