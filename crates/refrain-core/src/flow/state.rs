//! The state that a flow and the operations of its handler share.
//!
//! Invariants: entries before `frontier` were delivered to the handler or skipped; the driver gives each entry to one
//! operation, at rest; nothing is registered or delivered after `ended` is set; author code (checks, destructors,
//! wakers) never runs while the lock is held.

use super::env::Env;
use super::reply::{Fault, Note, Stats};
use super::slot::{Phase, Poller, Slot, SlotGuard, SlotId};
use super::task::TaskState;
use super::thread_context::{end_quietly, in_step, is_driving, is_driving_any};
use super::waker::{FlowWaker, PassCounter};
use crate::journal::{Entry, FlowId, Held, Journal, Key, Kind, Retry};
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
pub(crate) struct State {
    pub(crate) journal: Journal,
    /// The number of entries at the start of the round.
    pub(crate) replayed: usize,
    pub(crate) frontier: usize,
    /// The replay is over: new steps may start, progress and logs are sent.
    pub(crate) live: bool,
    pub(crate) slots: SmallVec<[Slot; 1]>,
    pub(super) next_slot: SlotId,
    /// The highest ordinal assigned to each name.
    pub(super) ordinals: SmallVec<[Key; 1]>,
    pub(crate) loose: Vec<(Box<str>, Arc<str>)>,
    pub(crate) notes: Vec<Note>,
    pub(crate) last_progress: Option<f64>,
    pub(crate) fault: Option<Fault>,
    pub(crate) ended: bool,
    /// The whole call is over, not just this round.
    pub(crate) over: bool,
    pub(crate) running: usize,
    pub(crate) shedding: bool,
    /// A checkpoint wants other tasks of the thread to run.
    pub(crate) yielding: bool,
    pub(crate) stats: Stats,
    /// Increases whenever an operation makes progress.
    pub(crate) moves: u64,
    pub(crate) cancelled: Vec<Waker>,
    /// Polls of operations left before the simulated crash of a test.
    pub(crate) fuse: Option<u32>,
    pub(crate) crashed: bool,
    /// The end of the flow's life, in seconds since 1970.
    pub(crate) deadline: u64,
    /// The status that the handler set and the driver has not taken yet.
    pub(crate) status: Option<String>,
    /// The last status, until an awaited outcome is delivered.
    pub(crate) parting: Option<String>,
    /// Set if the flow's home is a store or memory.
    pub(super) task: Option<Box<TaskState>>,
    /// Why the flow could not become a task.
    pub(crate) no_task: Option<String>,
    /// The error that makes the task retry this attempt.
    pub(crate) retry: Option<Box<Error>>,
}

/// A flow's state behind its lock, and its constants.
pub(crate) struct Shared {
    pub(crate) env: Env,
    pub(crate) flow: FlowId,
    pub(crate) trace: Trace,
    pub(crate) waker: Arc<FlowWaker>,
    /// Created when the first step starts.
    pub(crate) passes: OnceLock<Arc<PassCounter>>,
    state: Mutex<State>,
}

// Allocated in every round.
const _: () = assert!(size_of::<Shared>() < 1000);

impl Shared {
    pub(crate) fn new(env: Env, start: super::Start, waker: Arc<FlowWaker>) -> Arc<Self> {
        let mut journal = start.snapshot.journal;
        journal.trace = start.trace.origin;
        let replayed = journal.entries.len();
        Arc::new(Self {
            flow: start.snapshot.flow,
            waker,
            trace: start.trace,
            passes: OnceLock::new(),
            env,
            state: Mutex::new(State {
                journal,
                replayed,
                live: replayed == 0,
                loose: start.loose,
                deadline: start.snapshot.deadline,
                task: start.task,
                ..State::default()
            }),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Locks the state for one poll of an operation. `None`: it may not go on, see [`stopped`](Self::stopped).
    pub(crate) fn enter(&self) -> Option<MutexGuard<'_, State>> {
        let mut state = self.lock();
        state.may_go_on().then_some(state)
    }

    pub(crate) fn poller<'a>(self: &Arc<Self>, task: &'a Context<'_>) -> Poller<'a> {
        Poller {
            waker: task.waker(),
            outside: !is_driving(self),
        }
    }

    /// The result of an operation that may not go on: an error if its call is over.
    pub(crate) fn stopped<T, E>(self: &Arc<Self>, over: impl FnOnce() -> E) -> Poll<Result<T, E>> {
        match self.is_over() {
            true => Poll::Ready(Err(over())),
            false => Poll::Pending,
        }
    }

    /// Returns whether a stopped operation reports that its call is over. Otherwise it waits to be dropped with its
    /// handler or, if only the round has ended, its task is unwound: another round repeats its work.
    fn is_over(self: &Arc<Self>) -> bool {
        self.kick();
        let (ended, over) = {
            let state = self.lock();
            (state.ended, state.over)
        };
        if !ended || is_driving(self) {
            return false;
        }
        // The handler of another call must not be unwound.
        if over || is_driving_any() {
            return true;
        }
        end_quietly(self);
        false
    }

    /// Like [`is_over`](Self::is_over) for an operation without an error type: its task is unwound in that case too,
    /// unless it is the handler of another call (`true`).
    pub(crate) fn is_over_in_another_call(self: &Arc<Self>) -> bool {
        if !self.is_over() {
            return false;
        }
        if !is_driving_any() {
            end_quietly(self);
        }
        is_driving_any()
    }

    /// Wakes the driver after a change made by another task.
    pub(crate) fn kick(self: &Arc<Self>) {
        if !is_driving(self) {
            Wake::wake_by_ref(&self.waker);
        }
    }

    /// Records a fault at the caller's location and wakes the driver. The first fault wins.
    #[track_caller]
    pub(crate) fn fault(self: &Arc<Self>, message: &str) {
        let at = Location::caller();
        let message = format!("{message} (at {}:{})", at.file(), at.line());
        self.lock().set_fault(message, false);
        self.kick();
    }

    /// Registers an operation: its ordinal is assigned now, not at its first poll.
    #[track_caller]
    pub(crate) fn open_slot(
        self: &Arc<Self>,
        scope: Option<&Arc<str>>,
        kind: Kind,
        name: Cow<'static, str>,
    ) -> (SlotGuard<'_>, Key) {
        let (id, key, twice) = {
            let mut state = self.lock();
            let key = state.number(Key::new(scope, kind, name));
            let twice = state.slots.iter().any(|slot| slot.key.same_name(&key));
            (state.push_slot(key.clone()), key, twice)
        };
        let (kind, name) = (kind.as_str(), &key.name);
        if in_step(self) {
            self.fault(&format!(
                "{kind} {name:?} was made inside a step; a step is run once and cannot ask or hold other steps"
            ));
        } else if twice {
            self.fault(&format!(
                "the {kind} {name:?} is used twice at once; give each its own name or its own cx.scope(..)"
            ));
        }
        (self.guard(id), key)
    }

    /// A slot without an entry and without a name that could collide.
    pub(crate) fn open_unnamed_slot(self: &Arc<Self>, state: &mut State) -> SlotGuard<'_> {
        // The author cannot name operations of this kind.
        self.guard(state.push_slot(Key::new(None, Kind::Sleep, "".into())))
    }

    pub(crate) fn guard(self: &Arc<Self>, id: SlotId) -> SlotGuard<'_> {
        SlotGuard { shared: self, id }
    }
}

impl State {
    pub(crate) fn set_fault(&mut self, message: String, bad_answer: bool) {
        self.fault.get_or_insert(Fault {
            message,
            bad_answer,
        });
    }

    pub(crate) fn fault_is_set(&self) -> bool {
        self.fault.is_some()
    }

    /// Returns whether an operation is in such a phase.
    pub(super) fn any(&self, phase: impl Fn(&Phase) -> bool) -> bool {
        self.slots.iter().any(|slot| phase(&slot.phase))
    }

    /// Makes all operations in such a phase idle, to be polled again.
    pub(super) fn release(&mut self, phase: impl Fn(&Phase) -> bool) -> Wakers {
        let mut wakers = Wakers::new();
        for slot in self.slots.iter_mut().filter(|slot| phase(&slot.phase)) {
            slot.phase = Phase::Idle;
            wakers.extend(slot.waker.take());
        }
        wakers
    }

    pub(crate) fn push_slot(&mut self, key: Key) -> SlotId {
        let id = self.next_slot;
        self.next_slot += 1;
        self.slots.push(Slot {
            id,
            key,
            phase: Phase::Idle,
            waker: None,
            outside: false,
            ready: false,
        });
        id
    }

    /// Assigns the next ordinal of its name to a key.
    pub(crate) fn number(&mut self, mut key: Key) -> Key {
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
        let at = self.slots.iter().position(|slot| slot.id == id)?;
        let slot = self.slots.remove(at);
        if matches!(slot.phase, Phase::Running(_)) {
            self.running -= 1;
        }
        self.moves += 1;
        Some(slot)
    }

    /// Counts one poll of an operation, and returns whether it may go on.
    fn may_go_on(&mut self) -> bool {
        if let Some(fuse) = &mut self.fuse {
            match fuse.checked_sub(1) {
                Some(left) => *fuse = left,
                None => self.crashed = true,
            }
        }
        !self.ended && !self.crashed && self.fault.is_none() && self.retry.is_none()
    }

    /// Suspends an operation in this phase.
    pub(crate) fn park(&mut self, id: SlotId, phase: Phase, poller: Poller<'_>) {
        if let Some(slot) = self.slot(id) {
            slot.phase = phase;
            slot.wait_for(poller);
        }
        self.moves += 1;
    }

    /// The entry of an operation that has no schema.
    pub(crate) fn find(&self, key: &Key) -> Option<usize> {
        let mut entries = self.journal.entries.iter();
        entries.position(|e| !e.void && e.key == *key)
    }

    /// The entry that answers an ask: with the same schema, else the latest whose answer fits.
    pub(crate) fn find_answer(
        &self,
        key: &Key,
        fingerprint: u64,
        fits: impl Fn(&str) -> bool,
    ) -> Option<usize> {
        let entries = &self.journal.entries;
        let mine = |e: &Entry| !e.void && e.key == *key;
        let other = |e: &Entry| matches!(&e.held, Held::Value(json) if fits(json));
        entries
            .iter()
            .position(|e| mine(e) && e.fingerprint == fingerprint)
            .or_else(|| entries.iter().rposition(|e| mine(e) && other(e)))
    }

    /// Appends an entry to the journal. A full journal is a fault.
    pub(crate) fn append(&mut self, entry: Entry, limit: usize) -> Option<usize> {
        if self.journal.entries.len() >= limit {
            let name = entry.key.full();
            let message = format!("the journal is full: {limit} entries; {name:?} does not fit");
            self.set_fault(message, false);
            return None;
        }
        self.journal.entries.push(entry);
        self.moves += 1;
        Some(self.journal.entries.len() - 1)
    }

    /// Returns whether an operation may take its entry. If not, it waits for its turn.
    pub(crate) fn take_turn(&mut self, id: SlotId, index: usize, poller: Poller<'_>) -> bool {
        let called = match self.slot(id) {
            Some(slot) => match slot.phase {
                Phase::Given => return true,
                // The flow is about to be handed on with this value.
                Phase::Parked => return false,
                // The driver woke this task and it polled again: all it awaits is registered by now.
                Phase::Waiting(_) => slot.waker.is_none(),
                _ => false,
            },
            None => false,
        };
        self.park(id, Phase::Waiting(index), poller);
        if let Some(slot) = self.slot(id) {
            slot.ready |= called;
        }
        false
    }

    /// The first entry that is handed on without being delivered here.
    pub(super) fn first_parked(&self) -> Option<usize> {
        if !self.shedding {
            return None;
        }
        let parked = |slot: &&Slot| matches!(slot.phase, Phase::Parked);
        let parked = self.slots.iter().filter(parked);
        parked.filter_map(|slot| self.find(&slot.key)).min()
    }

    /// Marks an entry as seen by the handler.
    pub(crate) fn deliver(&mut self, index: usize) {
        if let Some(entry) = self.journal.entries.get_mut(index) {
            if !entry.delivered && index < self.replayed && !entry.void {
                self.stats.replayed += 1;
            }
            entry.delivered = true;
            // Time and randomness are not awaited.
            if !matches!(entry.key.kind, Kind::Now | Kind::Random) {
                self.parting = None;
            }
        }
        self.moves += 1;
        while self
            .journal
            .entries
            .get(self.frontier)
            .is_some_and(|e| e.delivered)
        {
            self.frontier += 1;
        }
        if self.frontier >= self.replayed {
            self.live = true;
        }
    }

    /// Takes a rejected answer out of the journal, and returns how often that has happened to this ask.
    pub(crate) fn refuse(&mut self, index: usize, reason: &str) -> u32 {
        let Journal {
            entries, retries, ..
        } = &mut self.journal;
        let entry = &mut entries[index];
        entry.void = true;
        let same = |r: &Retry| r.key == entry.key && r.fingerprint == entry.fingerprint;
        let at = retries.iter().position(same).unwrap_or_else(|| {
            retries.push(Retry {
                key: entry.key.clone(),
                fingerprint: entry.fingerprint,
                count: 0,
                reason: "".into(),
            });
            retries.len() - 1
        });
        let retry = &mut retries[at];
        retry.count = retry.count.saturating_add(1);
        retry.reason = reason.into();
        retry.count
    }

    /// Why the last answer to this ask was refused.
    pub(crate) fn refusal(&self, key: &Key, fingerprint: u64) -> Option<&str> {
        let mut retries = self.journal.retries.iter();
        let retry = retries.find(|r| r.key == *key && r.fingerprint == fingerprint);
        retry.map(|r| &*r.reason)
    }
}
