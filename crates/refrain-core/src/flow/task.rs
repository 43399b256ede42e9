//! Tasks: flows whose home is a store.
//!
//! Invariant: all delivered entries are written before a step starts, an ask is published, or the flow is suspended or
//! ends. So a crash between two writes loses only work without visible effects.
//!
//! An ask is published as soon as it is made, while other branches of the handler continue. Each ask of a task has a
//! unique wire key; a repeated ask gets another key.

use super::driver::Flow;
use super::reply::{AfterWrite, PendingWrite, StatusMessage};
use super::slot::{Phase, Slot, SlotId};
use super::state::{FlowState, Shared, Wakers};
use crate::Source;
use crate::journal::{Entry, EntryKey, FlowId, PendingAsk, Snapshot, StoredOutcome};
use refrain_wire::{Ask, check_answer_shape};
use serde_json::value::RawValue;
use std::task::Waker;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The minimum time between two writes of checkpoints.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);

/// The published asks and the written progress of a flow whose home is a store or memory.
#[derive(Debug, Default)]
pub(crate) struct PublishState {
    pub(super) home: PublishHome,
    /// The number of entries that are written or being written.
    pub(super) written: usize,
    /// Published asks without an answer.
    pub(super) published: Vec<PendingAsk>,
    /// Keys of answers that arrived and are not written yet.
    pub(super) taken: Vec<String>,
    /// Whether a checkpoint is not written yet.
    pub(super) new_checkpoint: bool,
    /// The time of the last write, in microseconds since 1970.
    pub(super) written_at: u64,
    /// The steps that wait for the write in progress, if there is one.
    pub(super) writing: Option<Vec<SlotId>>,
    /// `progress_count` when [`AfterWrite::Rest`] was last reported, and its `may_progress`.
    pub(super) rested_at: Option<(u64, bool)>,
}

/// The home of a flow that publishes its asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PublishHome {
    /// A store: the flow is a task.
    #[default]
    Store,
    /// Memory: the flow is not written, see [`memory`](super::memory).
    Memory,
    /// Memory, although the flow is a task: only its asks and its end are written.
    MemoryTask,
}

/// The published asks that a write withdraws unless they are open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Withdraw {
    /// No asks, since the next attempt makes them again.
    Nothing,
    /// Asks that this run has made and dropped. It may still make the others again.
    Dropped,
    /// All asks.
    All,
}

/// The asks of a write.
#[derive(Default)]
struct AskChanges {
    published: Vec<PendingAsk>,
    new: Vec<(String, Ask)>,
    withdrawn: Vec<String>,
}

impl PublishState {
    fn find_published(&self, wire_key: &str) -> Option<usize> {
        let mut published = self.published.iter();
        published.position(|ask| *ask.wire_key == *wire_key)
    }

    /// The wire key of a published ask. For a new ask, `plain` or a numbered variant of it that is not used.
    pub(super) fn wire_key(
        &mut self,
        key: &EntryKey,
        fingerprint: u64,
        plain: String,
        is_used: impl Fn(&str) -> bool,
    ) -> Box<str> {
        let is_same_ask = |p: &&mut PendingAsk| p.key == *key && p.fingerprint == fingerprint;
        if let Some(published) = self.published.iter_mut().find(is_same_ask) {
            published.current_run = true;
            return published.wire_key.clone();
        }
        let numbered = (2..).map(|number| format!("{plain}.{number}"));
        std::iter::once(plain.clone())
            .chain(numbered)
            .find(|wire| !is_used(wire))
            .unwrap_or(plain)
            .into()
    }
}

impl FlowState {
    pub(super) fn publish_home(&self) -> Option<PublishHome> {
        self.publishing.as_ref().map(|publishing| publishing.home)
    }

    pub(crate) fn is_task(&self) -> bool {
        let home = self.publish_home();
        matches!(home, Some(PublishHome::Store | PublishHome::MemoryTask))
    }

    /// Returns whether a failed attempt can be repeated, since the flow is written.
    pub(crate) fn can_retry(&self) -> bool {
        self.publish_home() == Some(PublishHome::Store)
    }

    /// Records a checkpoint, and returns whether a task must write it now.
    pub(crate) fn record_checkpoint(&mut self, source: &dyn Source) -> bool {
        let publishing = self
            .publishing
            .as_mut()
            .filter(|publishing| publishing.home == PublishHome::Store);
        publishing.is_some_and(|publishing| {
            publishing.new_checkpoint = true;
            let since = micros(source.now()).abs_diff(publishing.written_at);
            u128::from(since) >= CHECKPOINT_INTERVAL.as_micros()
        })
    }

    /// Returns whether a task has progress that is not written.
    pub(crate) fn has_unwritten_progress(&self) -> bool {
        self.publishing.as_ref().is_some_and(|publishing| {
            let has_progress = match publishing.home {
                PublishHome::Store => self.has_progress(publishing),
                PublishHome::Memory => return false,
                PublishHome::MemoryTask => !publishing.taken.is_empty(),
            };
            has_progress || publishing.writing.is_some()
        })
    }

    fn has_progress(&self, publishing: &PublishState) -> bool {
        self.journal.entries.len() > publishing.written
            || publishing.new_checkpoint
            || !publishing.taken.is_empty()
    }

    pub(super) fn has_new_asks(&self) -> bool {
        self.publishing.as_ref().is_some_and(|publishing| {
            let is_new = |wire: &str| publishing.find_published(wire).is_none();
            self.any(|phase| phase.open_key().is_some_and(is_new))
        })
    }

    /// Returns whether there is an ask to publish or to withdraw.
    pub(super) fn asks_changed(&self) -> bool {
        let is_open = |wire: &str| self.any(|phase| phase.open_key() == Some(wire));
        let dropped = |ask: &PendingAsk| ask.current_run && !is_open(&ask.wire_key);
        let publishing = self.publishing.as_ref();
        self.has_new_asks()
            || publishing.is_some_and(|publishing| publishing.published.iter().any(dropped))
    }

    /// Records that only asks and sleeps are pending, and returns whether this must be reported.
    pub(super) fn record_rest(&mut self, then: AfterWrite) -> bool {
        let AfterWrite::Rest { may_progress, .. } = then else {
            return false;
        };
        let now = (self.progress_count, may_progress);
        let Some(publishing) = &mut self.publishing else {
            return false;
        };
        let before = publishing.rested_at.replace(now);
        before.is_none_or(|before| before.0 != now.0 || (before.1 && !may_progress))
    }

    /// Returns whether [`AfterWrite::Rest`] was reported and the flow has made no progress since.
    fn is_at_rest(&self) -> bool {
        let rested_at = self
            .publishing
            .as_ref()
            .and_then(|publishing| publishing.rested_at);
        self.running == 0 && rested_at.is_some_and(|(count, _)| count == self.progress_count)
    }

    /// The asks to publish, and those to withdraw.
    fn ask_changes(&self, withdraw: Withdraw) -> AskChanges {
        let mut changes = AskChanges::default();
        let Some(publishing) = &self.publishing else {
            return changes;
        };
        for ask in &publishing.published {
            let wire = &*ask.wire_key;
            let stays = match withdraw {
                Withdraw::Nothing => true,
                Withdraw::Dropped => !ask.current_run,
                Withdraw::All => false,
            };
            if stays || self.any(|phase| phase.open_key() == Some(wire)) {
                changes.published.push(ask.clone());
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
                && publishing.find_published(wire_key).is_none()
            {
                changes.new.push((wire_key.to_string(), ask.clone()));
                changes.published.push(PendingAsk {
                    wire_key: wire_key.clone(),
                    key: slot.key.clone(),
                    fingerprint: *fingerprint,
                    current_run: true,
                });
            }
        }
        changes
    }

    /// Collects the unwritten progress.
    fn write(
        &mut self,
        flow: FlowId,
        now: SystemTime,
        then: AfterWrite,
        changes: AskChanges,
    ) -> PendingWrite {
        let AskChanges {
            published,
            new: asks,
            withdrawn,
        } = changes;
        let new_keys = asks.iter().map(|(wire, _)| wire.as_str().into());
        self.journal.used_wire_keys.extend(new_keys);
        let open = published.clone();
        let blocked = |slot: &&Slot| matches!(slot.phase, Phase::Blocked);
        let blocked = self.slots.iter().filter(blocked).map(|slot| slot.id);
        let blocked = blocked.collect();
        let progress =
            (self.publishing.as_ref()).is_some_and(|publishing| self.has_progress(publishing));
        let mut taken = Vec::new();
        if let Some(publishing) = &mut self.publishing {
            // The client can answer the new asks from now on.
            publishing.published = published;
            taken = std::mem::take(&mut publishing.taken);
            publishing.written = self.journal.entries.len();
            publishing.written_at = micros(now);
            publishing.new_checkpoint = false;
            publishing.writing = Some(blocked);
        }
        PendingWrite {
            snapshot: self.snapshot(flow, open),
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
        open: Vec<PendingAsk>,
        asks: Vec<(String, Ask)>,
    ) -> PendingWrite {
        let mut changes = AskChanges::default();
        if let Some(publishing) = &mut self.publishing {
            let used = &self.journal.used_wire_keys;
            for (mut open, (plain, ask)) in open.into_iter().zip(asks) {
                let is_used = |wire: &str| {
                    used.iter().any(|used| **used == *wire)
                        || changes.new.iter().any(|(new, _)| new == wire)
                };
                open.wire_key = publishing.wire_key(&open.key, open.fingerprint, plain, is_used);
                if publishing.find_published(&open.wire_key).is_none() {
                    changes.new.push((open.wire_key.to_string(), ask));
                }
                changes.published.push(open);
            }
            let stays = |wire: &str| (changes.published.iter()).any(|p| *p.wire_key == *wire);
            let published = publishing.published.iter().map(|p| &*p.wire_key);
            let withdrawn = published.filter(|wire| !stays(wire)).map(str::to_owned);
            changes.withdrawn = withdrawn.collect();
        }
        let then = match changes.published.is_empty() {
            true => AfterWrite::HandOn,
            false => AfterWrite::Rest {
                wake: None,
                may_progress: false,
            },
        };
        self.journal.round += 1;
        self.write(flow, now, then, changes)
    }

    fn snapshot(&self, flow: FlowId, open: Vec<PendingAsk>) -> Snapshot {
        let mut journal = self.journal.clone();
        journal.open_asks = open;
        Snapshot::without_rejected(flow, self.deadline, journal)
    }

    /// The end of the first sleep.
    pub(super) fn wake_at(&self) -> Option<SystemTime> {
        let until = self.slots.iter().filter_map(|slot| match slot.phase {
            Phase::Asleep(until) => Some(until),
            _ => None,
        });
        until.min().map(|at| UNIX_EPOCH + Duration::from_micros(at))
    }

    /// Ends the expired sleeps.
    pub(super) fn end_sleeps(&mut self, now: SystemTime) -> Wakers {
        let now = micros(now);
        self.release(|phase| matches!(phase, Phase::Asleep(until) if *until <= now))
    }

    /// Lets these steps start if they still wait, since all progress before them is written.
    fn clear_blocked(&mut self, blocked: &[SlotId]) -> Wakers {
        let mut wakers = Wakers::new();
        for slot in &mut self.slots {
            if blocked.contains(&slot.id) && matches!(slot.phase, Phase::Blocked) {
                slot.phase = Phase::Cleared;
                wakers.extend(slot.waker.take());
                self.progress_count += 1;
            }
        }
        wakers
    }

    /// Resolves a published ask. `outcome` returns the value for the journal, or `None` if the answer is malformed.
    pub(super) fn resolve_ask(
        &mut self,
        wire_key: &str,
        outcome: impl FnOnce(&PendingAsk) -> Option<StoredOutcome>,
    ) -> Wakers {
        let Some(publishing) = &mut self.publishing else {
            return Wakers::new();
        };
        let Some(index) = publishing.find_published(wire_key) else {
            return Wakers::new();
        };
        let ask = publishing.published.remove(index);
        publishing.taken.push(wire_key.to_owned());
        if let Some(outcome) = outcome(&ask) {
            let entry = Entry::new(ask.key, ask.fingerprint, outcome);
            self.journal.entries.push(entry);
        }
        self.progress_count += 1;
        self.release(|phase| phase.open_key() == Some(wire_key))
    }
}

/// A flow that is about to become a task.
///
/// Store its snapshot. Then call [`Flow::become_task`], or [`Flow::reject_detach`] if the store fails.
#[derive(Debug)]
#[must_use = "store the snapshot, then call Flow::become_task, or Flow::reject_detach if the store fails"]
pub struct Detachment {
    snapshot: Snapshot,
    /// The number of journal entries, including rejected answers.
    written: usize,
}

impl Detachment {
    /// Returns the snapshot to store.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }
}

impl Shared {
    pub(super) fn write(&self, then: AfterWrite, withdraw: Withdraw) -> PendingWrite {
        let now = self.env.source.now();
        let mut state = self.lock();
        let changes = state.ask_changes(withdraw);
        // New asks of a flow in memory count as a round, as they do in other homes.
        let counts_rounds = state.publish_home() == Some(PublishHome::Memory);
        state.journal.round += u32::from(counts_rounds && !changes.new.is_empty());
        state.write(self.flow, now, then, changes)
    }
}

/// Returns whether an answer has the shape that its ask requires. A malformed answer is asked for again.
pub(super) fn has_valid_shape(ask: &PendingAsk, json: &str) -> bool {
    let raw: Option<&RawValue> = serde_json::from_str(json).ok();
    let checked = raw.zip(ask.key.kind.ask());
    checked.is_some_and(|(raw, kind)| check_answer_shape(kind, raw).is_ok())
}

impl Flow {
    /// Changes the state and schedules a poll of the handler. Wakers run without the lock.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut FlowState) -> Wakers) {
        let wakers = change(&mut self.shared.lock());
        self.must_poll = true;
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns the current state of the flow, to be stored as a task.
    pub fn detachment(&self) -> Detachment {
        let state = self.shared.lock();
        Detachment {
            snapshot: state.snapshot(self.shared.flow, Vec::new()),
            written: state.journal.entries.len(),
        }
    }

    /// Makes the flow a task whose snapshot is stored. From now on it reports [`Event::Write`](super::Event::Write).
    /// `deadline` is the expiry of the task, in seconds since 1970. A flow in memory stays there: it is never handed on or
    /// retried, and its open asks are published again.
    pub fn become_task(&mut self, stored: &Detachment, deadline: u64) {
        let mut publishing = PublishState {
            written: stored.written,
            written_at: micros(self.shared.env.source.now()),
            ..PublishState::default()
        };
        self.change(|state| {
            if state.is_in_memory() {
                publishing.home = PublishHome::MemoryTask;
            }
            state.deadline = state.deadline.max(deadline);
            state.publishing = Some(Box::new(publishing));
            state.notes.clear();
            state.release(|phase| matches!(phase, Phase::Detaching))
        });
    }

    /// Fails the handler's `detach` with this reason.
    pub fn reject_detach(&mut self, reason: String) {
        self.change(|state| {
            state.detach_error = Some(reason);
            state.release(|phase| matches!(phase, Phase::Detaching))
        });
    }

    /// Confirms that the last [`Event::Write`](super::Event::Write) is written.
    pub fn confirm_write(&mut self) {
        let (saved, cleared) = {
            let mut state = self.shared.lock();
            let saved = state.release(|phase| matches!(phase, Phase::Saving));
            let writing = state
                .publishing
                .as_mut()
                .and_then(|publishing| publishing.writing.take());
            (saved, state.clear_blocked(&writing.unwrap_or_default()))
        };
        saved.into_iter().chain(cleared).for_each(Waker::wake);
    }

    /// Adds the answer to the ask published under this key. The ask is resolved even if the answer is malformed.
    pub fn answer(&mut self, wire_key: &str, json: &str) {
        let outcome = |ask: &PendingAsk| {
            has_valid_shape(ask, json).then(|| StoredOutcome::Value(json.into()))
        };
        self.change(|state| state.resolve_ask(wire_key, outcome));
    }

    /// Suspends the task, drops running work and ends the flow. A task that was not at rest must be resumed at once.
    pub fn suspend(&mut self) -> PendingWrite {
        let (is_at_rest, wake) = {
            let state = self.shared.lock();
            (state.is_at_rest(), state.wake_at())
        };
        let rest = AfterWrite::Rest {
            wake,
            may_progress: false,
        };
        let write = match is_at_rest {
            true => self.shared.write(rest, Withdraw::All),
            false => self.shared.write(AfterWrite::HandOn, Withdraw::Dropped),
        };
        self.end();
        write
    }

    /// Returns whether [`AfterWrite::Rest`] was reported and the flow has made no progress since.
    pub fn is_at_rest(&self) -> bool {
        self.shared.lock().is_at_rest()
    }

    /// Returns the end of the handler's first sleep, when the flow must be polled again.
    pub fn wake_at(&self) -> Option<SystemTime> {
        self.shared.lock().wake_at()
    }

    /// Takes the status that the handler set since the last call.
    pub fn take_status(&mut self) -> Option<StatusMessage> {
        let mut state = self.shared.lock();
        let is_progress = state.status_is_progress;
        let text = state.status.take()?;
        Some(StatusMessage { text, is_progress })
    }

    /// Takes the last status, for the result. `None` if an awaited entry was delivered after it.
    pub fn final_status(&mut self) -> Option<String> {
        self.shared.lock().final_status.take()
    }
}

pub(crate) fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
