//! The state shared by a flow and the operations of its handler.
//!
//! Invariants:
//!
//! - Entries before `frontier` were delivered to the handler or skipped.
//! - The driver grants each entry to one operation, and only while no operation can make progress.
//! - After `ended` is set, the handler appends no entry, and asks, steps and sleeps take none.
//! - The handler's code (decoding, destructors, wakers) never runs while the lock is held.

use super::env::Env;
use super::reply::{Fault, Note, Stats};
use super::slot::{Phase, Poller, Slot, SlotGuard, SlotId};
use super::task::PublishState;
use super::thread_context::{in_step, is_driving, is_driving_any, unwind_task};
use super::waker::{FlowWaker, PollCounter};
use crate::journal::{Entry, EntryKey, FlowId, Journal, OperationKind, Rejections, StoredOutcome};
use crate::{Error, Trace};
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::panic::Location;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

/// Wakers to call once the lock is released.
pub(super) type Wakers = SmallVec<[Waker; 1]>;

/// The mutable part of a flow.
#[derive(Default)]
pub(crate) struct FlowState {
    pub(crate) journal: Journal,
    /// The number of entries at the start of the round.
    pub(crate) replayed: usize,
    /// Entries before this index were delivered or skipped.
    pub(crate) frontier: usize,
    /// Whether new steps may start, and progress and logs are sent.
    pub(crate) replay_complete: bool,
    pub(crate) slots: SmallVec<[Slot; 1]>,
    pub(super) next_slot: SlotId,
    /// The highest ordinal assigned to each name.
    pub(super) ordinals: SmallVec<[EntryKey; 1]>,
    /// Answers that came with the first request and match no ask yet.
    pub(crate) early_answers: Vec<(Box<str>, Arc<str>)>,
    pub(crate) notes: Vec<Note>,
    /// The last reported progress. A value that is not greater is skipped.
    pub(crate) last_progress: Option<f64>,
    pub(crate) fault: Option<Box<Fault>>,
    /// Whether the round has ended.
    pub(crate) ended: bool,
    /// Whether the call has ended, not just this round.
    pub(crate) call_ended: bool,
    /// The number of running steps.
    pub(crate) running: usize,
    /// Whether the flow is to be handed on. Once set, it stays set.
    pub(crate) handing_on: bool,
    /// Whether a checkpoint lets other Tokio tasks run.
    pub(crate) yielding: bool,
    pub(crate) stats: Stats,
    /// Changes whenever an operation makes progress.
    pub(crate) progress_count: u64,
    /// Wakers of Tokio tasks that await [`Cx::cancelled`](crate::Cx::cancelled).
    pub(crate) cancel_wakers: Vec<Waker>,
    /// Polls of operations left before the simulated crash of a test.
    pub(crate) polls_before_crash: Option<u32>,
    pub(crate) crashed: bool,
    /// The deadline of the flow, in seconds since 1970.
    pub(crate) deadline: u64,
    /// The status that the handler set and the driver has not taken yet.
    pub(crate) status: Option<String>,
    /// Whether that status reports progress.
    pub(crate) status_is_progress: bool,
    /// The last status that the handler set. Cleared when an awaited entry is delivered.
    pub(crate) final_status: Option<String>,
    /// Present if the flow's home is a store or memory.
    pub(super) publishing: Option<Box<PublishState>>,
    /// Why the flow could not become a task.
    pub(crate) detach_error: Option<String>,
    /// The error that makes the task retry this attempt.
    pub(crate) retry: Option<Box<Error>>,
}

/// A flow's state behind its lock, and its constants.
pub(crate) struct Shared {
    pub(crate) env: Env,
    pub(crate) flow: FlowId,
    /// Whether another request can run this round too.
    pub(crate) is_repeatable: bool,
    pub(crate) trace: Trace,
    pub(crate) waker: Arc<FlowWaker>,
    /// Created when the first step starts.
    pub(crate) handler_polls: OnceLock<Arc<PollCounter>>,
    state: Mutex<FlowState>,
}

// Allocated in every round.
const _: () = assert!(size_of::<Shared>() < 1000);

impl Shared {
    #[inline]
    pub(crate) fn new(env: Env, mut start: super::Start, waker: Arc<FlowWaker>) -> Arc<Self> {
        // All runs of a task belong to the call that created it.
        start.snapshot.journal.trace = match start.is_task() {
            true => start.trace.origin,
            false => start.trace.next_origin(),
        };
        let replayed = start.snapshot.journal.entries.len();
        Arc::new(Self {
            flow: start.snapshot.flow,
            is_repeatable: start.is_repeatable,
            waker,
            trace: start.trace,
            handler_polls: OnceLock::new(),
            env,
            state: Mutex::new(FlowState {
                journal: start.snapshot.journal,
                replayed,
                replay_complete: replayed == 0,
                early_answers: start.early_answers,
                deadline: start.snapshot.deadline,
                publishing: start.publishing,
                ..FlowState::default()
            }),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, FlowState> {
        self.state.lock()
    }

    /// Locks the state for one poll of an operation. `None`: it must stop, see [`stopped`](Self::stopped).
    pub(crate) fn enter(&self) -> Option<MutexGuard<'_, FlowState>> {
        let mut state = self.lock();
        state.count_poll().then_some(state)
    }

    pub(crate) fn poller<'a>(self: &Arc<Self>, task: &'a Context<'_>) -> Poller<'a> {
        Poller {
            waker: task.waker(),
            in_spawned_task: !is_driving(self),
        }
    }

    /// The result of an operation that must stop: an error if its call has ended.
    pub(crate) fn stopped<T, E>(self: &Arc<Self>, error: impl FnOnce() -> E) -> Poll<Result<T, E>> {
        match self.stop_operation() {
            true => Poll::Ready(Err(error())),
            false => Poll::Pending,
        }
    }

    /// Stops an operation of an ended round. Returns `true` if the operation must fail with an error; otherwise it stays
    /// pending. If only the round has ended, the spawned Tokio task is unwound, since another round repeats its work.
    fn stop_operation(self: &Arc<Self>) -> bool {
        self.wake_driver();
        let (ended, call_ended) = {
            let state = self.lock();
            (state.ended, state.call_ended)
        };
        if !ended || is_driving(self) {
            return false;
        }
        // The handler of another call must not be unwound.
        if call_ended || is_driving_any() {
            return true;
        }
        unwind_task(self);
        false
    }

    /// Like [`stop_operation`](Self::stop_operation), for an operation that cannot return an
    /// error. If that function returns `true`, the spawned Tokio task is unwound. Returns `true`
    /// only inside the handler of another call, which must not be unwound: the operation then
    /// completes.
    pub(crate) fn stop_without_error(self: &Arc<Self>) -> bool {
        if !self.stop_operation() {
            return false;
        }
        if !is_driving_any() {
            unwind_task(self);
        }
        is_driving_any()
    }

    /// Wakes the driver after a change made by a spawned Tokio task.
    pub(crate) fn wake_driver(self: &Arc<Self>) {
        if !is_driving(self) {
            Wake::wake_by_ref(&self.waker);
        }
    }

    /// Records a fault at the caller's location and wakes the driver. Later faults are ignored.
    #[track_caller]
    pub(crate) fn fault(self: &Arc<Self>, message: impl Into<String>) {
        let fault = Fault {
            message: message.into(),
            location: Some(Location::caller()),
            bad_answer: false,
        };
        self.lock().fault.get_or_insert(Box::new(fault));
        self.wake_driver();
    }

    /// Registers an operation. Its ordinal is assigned now, not at its first poll.
    #[track_caller]
    pub(crate) fn open_slot(
        self: &Arc<Self>,
        scope: Option<&Arc<str>>,
        kind: OperationKind,
        name: Cow<'static, str>,
    ) -> (SlotGuard<'_>, EntryKey) {
        let (id, key, is_in_use) = {
            let mut state = self.lock();
            let key = state.assign_ordinal(EntryKey::new(scope, kind, name));
            let is_in_use = state.slots.iter().any(|slot| slot.key.same_name(&key));
            (state.push_slot(key.clone()), key, is_in_use)
        };
        let (kind, name) = (kind.as_str(), &key.name);
        if in_step(self) {
            self.fault(format!(
                "{kind} {name:?} was called inside a step; move it out of the step: a step cannot ask or contain other steps"
            ));
        } else if is_in_use {
            self.fault(format!(
                "the {kind} {name:?} is used twice at the same time; give each use another name or another cx.scope(..)"
            ));
        }
        (self.guard(id), key)
    }

    /// Opens a slot for an operation without a journal entry.
    pub(crate) fn open_unnamed_slot(self: &Arc<Self>, state: &mut FlowState) -> SlotGuard<'_> {
        // No other slot has this kind: `Sleep` is a kind of journal entries, and a sleeping operation has a slot `Woke`.
        self.guard(state.push_slot(EntryKey::new(None, OperationKind::Sleep, "".into())))
    }

    pub(crate) fn guard(self: &Arc<Self>, id: SlotId) -> SlotGuard<'_> {
        SlotGuard { shared: self, id }
    }
}

impl FlowState {
    pub(crate) fn set_fault(&mut self, message: String, bad_answer: bool) {
        let fault = Fault {
            message,
            location: None,
            bad_answer,
        };
        self.fault.get_or_insert(Box::new(fault));
    }

    pub(crate) fn has_fault(&self) -> bool {
        self.fault.is_some()
    }

    /// Returns whether the phase of any operation matches.
    pub(super) fn any(&self, phase: impl Fn(&Phase) -> bool) -> bool {
        self.slots.iter().any(|slot| phase(&slot.phase))
    }

    /// Makes the operations whose phase matches idle, to be polled again.
    pub(super) fn release(&mut self, phase: impl Fn(&Phase) -> bool) -> Wakers {
        let mut wakers = Wakers::new();
        for slot in self.slots.iter_mut().filter(|slot| phase(&slot.phase)) {
            slot.phase = Phase::Idle;
            wakers.extend(slot.waker.take());
        }
        wakers
    }

    pub(crate) fn push_slot(&mut self, key: EntryKey) -> SlotId {
        let id = self.next_slot;
        self.next_slot += 1;
        self.slots.push(Slot {
            id,
            key,
            phase: Phase::Idle,
            waker: None,
            in_spawned_task: false,
            ready: false,
        });
        id
    }

    /// Assigns the next ordinal of its name to a key.
    pub(crate) fn assign_ordinal(&mut self, mut key: EntryKey) -> EntryKey {
        if let Some(last) = self.ordinals.iter_mut().find(|last| last.same_name(&key)) {
            last.ordinal += 1;
            key.ordinal = last.ordinal;
        } else {
            key.ordinal = 1;
            self.ordinals.push(key.clone());
        }
        key
    }

    pub(crate) fn slot(&mut self, id: SlotId) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.id == id)
    }

    pub(super) fn close(&mut self, id: SlotId) -> Option<Slot> {
        let index = self.slots.iter().position(|slot| slot.id == id)?;
        let slot = self.slots.remove(index);
        if matches!(slot.phase, Phase::Running(_)) {
            self.running -= 1;
        }
        self.progress_count += 1;
        Some(slot)
    }

    /// Counts one poll of an operation, and returns whether the operation may continue.
    fn count_poll(&mut self) -> bool {
        if let Some(polls) = &mut self.polls_before_crash {
            match polls.checked_sub(1) {
                Some(left) => *polls = left,
                None => self.crashed = true,
            }
        }
        !self.ended && !self.crashed && self.fault.is_none() && self.retry.is_none()
    }

    /// Puts an operation into a phase in which it waits.
    pub(crate) fn wait_in(&mut self, id: SlotId, phase: Phase, poller: Poller<'_>) {
        if let Some(slot) = self.slot(id) {
            slot.phase = phase;
            slot.set_poller(poller);
        }
        self.progress_count += 1;
    }

    /// The entry of an operation without a schema.
    pub(crate) fn find(&self, key: &EntryKey) -> Option<usize> {
        let mut entries = self.journal.entries.iter();
        entries.position(|e| !e.rejected && e.key == *key)
    }

    /// The entry that answers an ask: one with the same schema, or else the latest that matches the ask's schema.
    pub(crate) fn find_answer(
        &self,
        key: &EntryKey,
        fingerprint: u64,
        matches_schema: impl Fn(&str) -> bool,
    ) -> Option<usize> {
        let entries = &self.journal.entries;
        let has_key = |e: &Entry| !e.rejected && e.key == *key;
        let matches =
            |e: &Entry| matches!(&e.outcome, StoredOutcome::Value(json) if matches_schema(json));
        entries
            .iter()
            .position(|e| has_key(e) && e.fingerprint == fingerprint)
            .or_else(|| entries.iter().rposition(|e| has_key(e) && matches(e)))
    }

    /// Appends an entry to the journal. A full journal is a fault.
    pub(crate) fn append(&mut self, entry: Entry, limit: usize) -> Option<usize> {
        if self.journal.entries.len() >= limit {
            let name = entry.key.qualified_name();
            let message =
                format!("journal full: the limit of {limit} entries leaves no room for {name:?}");
            self.set_fault(message, false);
            return None;
        }
        self.journal.entries.push(entry);
        self.progress_count += 1;
        Some(self.journal.entries.len() - 1)
    }

    /// Returns whether an operation may take its entry. If not, it waits for its turn.
    pub(crate) fn take_turn(&mut self, id: SlotId, index: usize, poller: Poller<'_>) -> bool {
        let polled_again = match self.slot(id) {
            Some(slot) => match slot.phase {
                Phase::Granted => return true,
                // The flow is about to be handed on, and the next instance delivers this value.
                Phase::HandingOn => return false,
                // The driver woke this Tokio task and it polled again, so all its operations are
                // registered.
                Phase::Waiting(_) => slot.waker.is_none(),
                _ => false,
            },
            None => false,
        };
        self.wait_in(id, Phase::Waiting(index), poller);
        if let Some(slot) = self.slot(id) {
            slot.ready |= polled_again;
        }
        false
    }

    /// The first entry that the next instance delivers, if the flow is handed on. That instance
    /// also delivers all later entries.
    pub(super) fn first_handed_on(&self) -> Option<usize> {
        if !self.handing_on {
            return None;
        }
        let is_handing_on = |slot: &&Slot| matches!(slot.phase, Phase::HandingOn);
        let slots = self.slots.iter().filter(is_handing_on);
        slots.filter_map(|slot| self.find(&slot.key)).min()
    }

    /// Marks an entry as delivered to the handler.
    pub(crate) fn deliver(&mut self, index: usize) {
        if let Some(entry) = self.journal.entries.get_mut(index) {
            if !entry.delivered && index < self.replayed && !entry.rejected {
                self.stats.replayed += 1;
            }
            entry.delivered = true;
            // The handler does not await time and randomness.
            if !matches!(entry.key.kind, OperationKind::Now | OperationKind::Random) {
                self.final_status = None;
            }
        }
        self.progress_count += 1;
        while self
            .journal
            .entries
            .get(self.frontier)
            .is_some_and(|e| e.delivered)
        {
            self.frontier += 1;
        }
        if self.frontier >= self.replayed {
            self.replay_complete = true;
        }
    }

    /// Marks an answer as rejected, and returns how many answers to this ask were rejected.
    pub(crate) fn reject(&mut self, index: usize, reason: &str) -> u32 {
        let rejections = &mut self.journal.rejections;
        let entry = &mut self.journal.entries[index];
        entry.rejected = true;
        let is_same_ask = |r: &Rejections| r.key == entry.key && r.fingerprint == entry.fingerprint;
        let index = rejections.iter().position(is_same_ask).unwrap_or_else(|| {
            rejections.push(Rejections {
                key: entry.key.clone(),
                fingerprint: entry.fingerprint,
                count: 0,
                reason: "".into(),
            });
            rejections.len() - 1
        });
        let rejected = &mut rejections[index];
        rejected.count = rejected.count.saturating_add(1);
        rejected.reason = reason.into();
        rejected.count
    }

    /// Why the last answer to this ask was rejected.
    pub(crate) fn rejection(&self, key: &EntryKey, fingerprint: u64) -> Option<&str> {
        let mut rejections = self.journal.rejections.iter();
        let rejected = rejections.find(|r| r.key == *key && r.fingerprint == fingerprint);
        rejected.map(|r| &*r.reason)
    }
}
