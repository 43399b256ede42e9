//! A flow whose home is a store.
//!
//! What always holds: before anything leaves the flow (a new step starts, an ask is published, the flow rests or ends),
//! all that the handler has seen is written. A crash between two writes loses only what nobody else has seen.
//!
//! Asks are published as soon as they are made, and other branches go on. A key is used for one ask in a task's life:
//! one that is asked again gets another key.

use super::driver::Flow;
use super::reply::{Then, Write};
use super::state::{Phase, Shared, Slot, SlotId, State};
use crate::Source;
use crate::journal::{Asked, Entry, FlowId, Held, Key, Snapshot};
use refrain_wire::{Ask, check_answer_shape};
use serde_json::value::RawValue;
use std::task::Waker;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a computation goes on between two checkpoints that are written.
const BETWEEN_CHECKPOINTS: Duration = Duration::from_secs(1);

/// What a flow knows of its store, or of the memory that is its home instead.
#[derive(Debug, Default)]
pub(crate) struct TaskState {
    /// Nothing is written: the flow stays where it is. See [`memory`](super::memory).
    pub(super) in_memory: bool,
    /// Entries that are written, or are being written.
    kept: usize,
    /// Asks that are published and have no answer.
    pub(super) published: Vec<Published>,
    /// Keys whose answers came in and are not written yet.
    taken: Vec<String>,
    /// Every key that an ask was published under.
    used: Vec<Box<str>>,
    /// A checkpoint was made and is not written yet.
    checkpoint: bool,
    /// When the last write was made, in microseconds since 1970.
    wrote_at: u64,
    /// The steps that wait for the write that is under way, if one is.
    under_way: Option<Vec<SlotId>>,
    /// When rest was last reported: how much had happened, and whether there was perhaps more.
    rested_at: Option<(u64, bool)>,
}

#[derive(Debug)]
pub(super) struct Published {
    pub(super) asked: Asked,
    /// Was it made by this run of the handler, and not only by an earlier one?
    made_here: bool,
}

/// Which of the asks that are published and not open are withdrawn by a write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Withdraw {
    /// None: the next attempt asks them again.
    Nothing,
    /// Those that this run has made and dropped. What only an earlier run has made may still be made again.
    Dropped,
    All,
}

impl TaskState {
    /// A task that goes on from what was written. Those of its asks that are answered are not among `open`.
    pub(super) fn resumed(
        kept: usize,
        open: Vec<Asked>,
        taken: Vec<String>,
        used: Vec<Box<str>>,
    ) -> Self {
        let published = open.into_iter().map(|asked| Published {
            asked,
            made_here: false,
        });
        Self {
            kept,
            published: published.collect(),
            taken,
            used,
            ..Self::default()
        }
    }

    /// The key that an ask is or will be published under; `plain` is the one it would have elsewhere. `open` says which
    /// are taken by asks that wait to be published.
    pub(super) fn wire_key(
        &mut self,
        key: &Key,
        fingerprint: u64,
        plain: String,
        open: impl Fn(&str) -> bool,
    ) -> Box<str> {
        let same = |p: &&mut Published| p.asked.key == *key && p.asked.fingerprint == fingerprint;
        if let Some(known) = self.published.iter_mut().find(same) {
            known.made_here = true;
            return known.asked.wire_key.clone();
        }
        let free = |wire: &str| !open(wire) && self.used.iter().all(|used| **used != *wire);
        let numbered = (2..).map(|number| format!("{plain}.{number}"));
        std::iter::once(plain.clone())
            .chain(numbered)
            .find(|wire| free(wire))
            .unwrap_or(plain)
            .into()
    }

    pub(super) fn keep_checkpoint(&mut self) {
        self.checkpoint = true;
    }

    /// Was the last write so long ago that a checkpoint is worth another?
    pub(super) fn wants_checkpoint(&self, source: &dyn Source) -> bool {
        let since = micros(source.now()).abs_diff(self.wrote_at);
        u128::from(since) >= BETWEEN_CHECKPOINTS.as_micros()
    }
}

impl State {
    pub(crate) fn is_task(&self) -> bool {
        self.task.as_ref().is_some_and(|task| !task.in_memory)
    }

    /// Has the handler seen or done anything that is not written?
    pub(crate) fn is_unwritten(&self) -> bool {
        self.task.as_ref().is_some_and(|task| {
            !task.in_memory
                && (self.entries.len() > task.kept
                    || task.checkpoint
                    || !task.taken.is_empty()
                    || task.under_way.is_some())
        })
    }

    /// Is there an ask to publish, or one to withdraw?
    pub(super) fn asks_changed(&self) -> bool {
        let Some(task) = &self.task else {
            return false;
        };
        let open = || self.slots.iter().filter_map(|slot| slot.phase.open_key());
        let known = |wire: &str| task.published.iter().any(|p| *p.asked.wire_key == *wire);
        let is_open = |wire: &str| open().any(|key| key == wire);
        open().any(|wire| !known(wire))
            || task
                .published
                .iter()
                .any(|p| p.made_here && !is_open(&p.asked.wire_key))
    }

    /// Nothing but asks and sleeps is left. Is that news?
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

    /// Was rest reported, and has nothing happened since?
    fn rests(&self) -> bool {
        let rested_at = self.task.as_ref().and_then(|task| task.rested_at);
        self.running == 0 && rested_at.is_some_and(|(moves, _)| moves == self.moves)
    }

    /// The asks that are open, to be written, and those that need no answer any more.
    fn asks_to_write(
        &self,
        withdraw: Withdraw,
    ) -> (Vec<Published>, Vec<(String, Ask)>, Vec<String>) {
        let (mut published, mut new, mut withdrawn) = (Vec::new(), Vec::new(), Vec::new());
        let Some(task) = &self.task else {
            return (published, new, withdrawn);
        };
        for known in &task.published {
            let wire = &*known.asked.wire_key;
            let open = self.slots.iter().any(|s| s.phase.open_key() == Some(wire));
            let stays = match withdraw {
                Withdraw::Nothing => true,
                Withdraw::Dropped => !known.made_here,
                Withdraw::All => false,
            };
            if open || stays {
                published.push(Published {
                    asked: known.asked.clone(),
                    made_here: known.made_here,
                });
            } else {
                withdrawn.push(wire.to_owned());
            }
        }
        for slot in &self.slots {
            let Phase::Open {
                ask,
                wire_key,
                fingerprint,
            } = &slot.phase
            else {
                continue;
            };
            if task.published.iter().all(|p| p.asked.wire_key != *wire_key) {
                new.push((wire_key.to_string(), ask.clone()));
                published.push(Published {
                    asked: Asked {
                        wire_key: wire_key.clone(),
                        key: slot.key.clone(),
                        fingerprint: *fingerprint,
                    },
                    made_here: true,
                });
            }
        }
        (published, new, withdrawn)
    }

    /// All that is to be written.
    pub(super) fn write(
        &mut self,
        flow: FlowId,
        now: SystemTime,
        then: Then,
        withdraw: Withdraw,
    ) -> Write {
        let (published, asks, withdrawn) = self.asks_to_write(withdraw);
        let asked = published.iter().map(|p| p.asked.clone()).collect();
        let held = |slot: &&Slot| matches!(slot.phase, Phase::Held);
        let held = self.slots.iter().filter(held).map(|slot| slot.id).collect();
        let mut taken = Vec::new();
        let mut progress = !asks.is_empty();
        if let Some(task) = &mut self.task {
            progress |= self.entries.len() > task.kept || task.checkpoint || !task.taken.is_empty();
            let new = asks.iter().map(|(wire, _)| wire.as_str().into());
            task.used.extend(new);
            // From here on they can be answered.
            task.published = published;
            taken = std::mem::take(&mut task.taken);
            task.kept = self.entries.len();
            task.wrote_at = micros(now);
            task.checkpoint = false;
            task.under_way = Some(held);
            // What is asked in memory counts as a round, as it would elsewhere.
            self.round += u32::from(task.in_memory && !asks.is_empty());
        }
        Write {
            snapshot: self.snapshot(flow, asked),
            asks,
            taken,
            withdrawn,
            progress,
            then,
        }
    }

    /// The write of an incomplete reply in the explicit style: its asks under keys of their own.
    pub(super) fn write_explicit(
        &mut self,
        flow: FlowId,
        now: SystemTime,
        asked: Vec<Asked>,
        asks: Vec<(String, Ask)>,
    ) -> Write {
        let mut new = Vec::new();
        let mut open = Vec::new();
        for (mut asked, (plain, ask)) in asked.into_iter().zip(asks) {
            let Some(task) = &mut self.task else { break };
            let known = |p: &Published| {
                p.asked.key == asked.key && p.asked.fingerprint == asked.fingerprint
            };
            let is_new = !task.published.iter().any(known);
            asked.wire_key = task.wire_key(&asked.key, asked.fingerprint, plain, |_| false);
            if is_new {
                task.used.push(asked.wire_key.clone());
                new.push((asked.wire_key.to_string(), ask));
            }
            open.push(asked);
        }
        let then = if open.is_empty() {
            Then::HandOn
        } else {
            Then::Rest {
                wake: None,
                perhaps_more: false,
            }
        };
        let is_open = |wire: &str| open.iter().any(|asked| *asked.wire_key == *wire);
        let before = self.task.iter().flat_map(|task| &task.published);
        let withdrawn = before
            .map(|p| p.asked.wire_key.to_string())
            .filter(|wire| !is_open(wire))
            .collect();
        let mut write = self.write(flow, now, then, Withdraw::All);
        write.withdrawn = withdrawn;
        write.progress |= !new.is_empty();
        write.asks = new;
        write.snapshot.asked = open;
        write.snapshot.round += 1;
        write
    }

    /// The flow as it is, for whoever takes it up again.
    fn snapshot(&self, flow: FlowId, asked: Vec<Asked>) -> Snapshot {
        let entries = self.entries.iter().filter(|entry| !entry.void);
        Snapshot {
            flow,
            round: self.round,
            sheds: self.sheds,
            deadline: self.deadline,
            asked,
            entries: entries.cloned().collect(),
            retries: self.retries.clone(),
            saved: self.saved.clone(),
            state: self.own_state.clone(),
            trace: self.trace,
            used: self.task.as_ref().map_or_else(Vec::new, |t| t.used.clone()),
        }
    }

    /// When the first sleep ends.
    pub(super) fn wake_at(&self) -> Option<SystemTime> {
        let until = self.slots.iter().filter_map(|slot| match slot.phase {
            Phase::Asleep(until) => Some(until),
            _ => None,
        });
        until.min().map(|at| UNIX_EPOCH + Duration::from_micros(at))
    }

    /// Has those who have slept long enough woken.
    pub(super) fn take_risen(&mut self, now: SystemTime) -> Vec<Option<Waker>> {
        let now = micros(now);
        let risen = |phase: &Phase| matches!(phase, Phase::Asleep(until) if *until <= now);
        let mut wakers = Vec::new();
        for slot in self.slots.iter_mut().filter(|slot| risen(&slot.phase)) {
            slot.phase = Phase::Idle;
            wakers.push(slot.waker.take());
        }
        wakers
    }

    /// Lets these steps start, if they still wait for it: what they follow from is written.
    fn free(&mut self, held: &[SlotId]) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for slot in &mut self.slots {
            if held.contains(&slot.id) && matches!(slot.phase, Phase::Held) {
                slot.phase = Phase::Free;
                wakers.extend(slot.waker.take());
                self.moves += 1;
            }
        }
        wakers
    }

    /// What has come for an ask that is published. `held` says what of it enters the journal.
    pub(super) fn take_in(
        &mut self,
        wire_key: &str,
        held: impl FnOnce(&Asked) -> Option<Held>,
    ) -> Option<Waker> {
        let task = self.task.as_mut()?;
        let known = |p: &Published| *p.asked.wire_key == *wire_key;
        let at = task.published.iter().position(known)?;
        let asked = task.published.remove(at).asked;
        task.taken.push(wire_key.to_owned());
        if let Some(held) = held(&asked) {
            self.entries
                .push(Entry::new(asked.key, asked.fingerprint, held));
        }
        self.moves += 1;
        let open = |phase: &Phase| phase.open_key() == Some(wire_key);
        let slot = self.slots.iter_mut().find(|slot| open(&slot.phase))?;
        slot.phase = Phase::Idle;
        slot.waker.take()
    }
}

/// A flow that is to become a task.
///
/// Store its snapshot. Then call [`Flow::become_task`], or [`Flow::stay`] if the store fails.
#[derive(Debug)]
#[must_use = "store the snapshot, then call Flow::become_task, or Flow::stay if the store fails"]
pub struct Detachment {
    snapshot: Snapshot,
    /// Entries of the journal in the snapshot.
    kept: usize,
}

impl Detachment {
    /// What is to be stored.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }
}

impl Shared {
    pub(super) fn write(&self, then: Then, withdraw: Withdraw) -> Write {
        let now = self.env.source.now();
        self.lock().write(self.flow, now, then, withdraw)
    }
}

/// Has the answer the shape that its ask calls for? One that has not is asked for again.
pub(super) fn fits(asked: &Asked, json: &str) -> bool {
    let raw: Option<&RawValue> = serde_json::from_str(json).ok();
    let kind = asked.key.kind.ask();
    let checked = raw
        .zip(kind)
        .map(|(raw, kind)| check_answer_shape(kind, raw));
    checked.is_some_and(|checked| checked.is_ok())
}

impl Flow {
    /// The flow as it is now, to be stored as a task.
    pub fn detachment(&self) -> Detachment {
        let state = self.shared.lock();
        Detachment {
            snapshot: state.snapshot(self.shared.flow, Vec::new()),
            kept: state.entries.len(),
        }
    }

    /// Makes the flow a task whose snapshot is stored: from here on it reports [`Event::Write`](super::Event::Write).
    /// `deadline` is the end of the task's life, in seconds since 1970.
    pub fn become_task(&mut self, stored: &Detachment, deadline: u64) {
        let wake = {
            let mut state = self.shared.lock();
            state.deadline = state.deadline.max(deadline);
            let wrote_at = micros(self.shared.env.source.now());
            state.task = Some(Box::new(TaskState {
                kept: stored.kept,
                wrote_at,
                ..TaskState::default()
            }));
            state.notes.clear();
            state.take_all(|phase| matches!(phase, Phase::Detaching))
        };
        self.due = true;
        wake.into_iter().for_each(Waker::wake);
    }

    /// The flow could not be made a task: `detach` fails with this.
    pub fn stay(&mut self, reason: String) {
        let wake = {
            let mut state = self.shared.lock();
            state.no_task = Some(reason);
            state.take_all(|phase| matches!(phase, Phase::Detaching))
        };
        self.due = true;
        wake.into_iter().for_each(Waker::wake);
    }

    /// What was reported as [`Event::Write`](super::Event::Write) is written.
    pub fn written(&mut self) {
        let wake = {
            let mut state = self.shared.lock();
            let mut wake = state.take_all(|phase| matches!(phase, Phase::Saving));
            if let Some(task) = &mut state.task
                && let Some(held) = task.under_way.take()
            {
                wake.extend(state.free(&held));
            }
            wake
        };
        wake.into_iter().for_each(Waker::wake);
    }

    /// An answer came for what was published, under this key. It is not asked for any more, whatever it says.
    pub fn answer(&mut self, wire_key: &str, json: &str) {
        let held = |asked: &Asked| fits(asked, json).then(|| Held::Value(json.into()));
        let wake = self.shared.lock().take_in(wire_key, held);
        self.due = true;
        wake.into_iter().for_each(Waker::wake);
    }

    /// Sets the task down as it is: whatever is at work is dropped. It rests if it was at rest, and is to be taken up
    /// again at once if not. The flow is over.
    pub fn set_down(&mut self) -> Write {
        let (rests, wake) = {
            let state = self.shared.lock();
            (state.rests(), state.wake_at())
        };
        let rest = Then::Rest {
            wake,
            perhaps_more: false,
        };
        let (then, withdraw) = if rests {
            (rest, Withdraw::All)
        } else {
            (Then::HandOn, Withdraw::Dropped)
        };
        let write = self.shared.write(then, withdraw);
        self.end();
        write
    }

    /// Was rest reported, and has nothing happened since?
    pub fn rests(&self) -> bool {
        self.shared.lock().rests()
    }

    /// When the handler wants to be polled again because of the time.
    pub fn wake_at(&self) -> Option<SystemTime> {
        self.shared.lock().wake_at()
    }

    /// What the handler has said of how it stands, since this was last called.
    pub fn take_status(&mut self) -> Option<String> {
        self.shared.lock().status.take()
    }

    /// What the handler has said last of how it stands, if nothing that it waited for has come in since: then it goes with
    /// the result.
    pub fn parting_status(&mut self) -> Option<String> {
        self.shared.lock().parting.take()
    }
}

pub(crate) fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
