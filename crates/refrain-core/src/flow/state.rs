//! What a flow and the operations of its handler share.
//!
//! Always true: entries before `frontier` were delivered to the handler or passed over; an entry is delivered only
//! to an operation that the driver gave it to, at rest; nothing is registered or delivered once `ended` is set. Author code (checks,
//! destructors, wakers) never runs while the lock is held.

use super::env::Env;
use super::mark::{end_quietly, in_step, is_driving, is_driving_any};
use super::reply::{Fault, Note, Stats};
use super::signal::{PassCounter, StepSignal};
use super::task::TaskState;
use super::waker::FlowWaker;
use crate::journal::{Entry, FlowId, Held, Key, Kind, Retry, Saved};
use crate::{Error, Trace};
use parking_lot::{Mutex, MutexGuard};
use refrain_wire::{Ask, Traceparent};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::panic::Location;
use std::sync::{Arc, OnceLock};
use std::task::{Wake, Waker};

/// Names one operation of a handler while it is alive.
pub(crate) type SlotId = u64;

/// What an operation is doing.
pub(crate) enum Phase {
    /// Made, or woken, and not polled since.
    Idle,
    /// Waits for its turn to be given this entry.
    Waiting(usize),
    /// May have the entry it waited for.
    Given,
    /// Asks, and has no answer yet.
    Open {
        ask: Ask,
        wire_key: Box<str>,
        fingerprint: u64,
    },
    /// A new step that may not start yet.
    Held,
    /// A new step that may start: all that it follows from is written.
    Free,
    /// A step at work.
    Running(Arc<StepSignal>),
    /// Reached a point where the flow can be handed on, and waits for that.
    Parked,
    /// A checkpoint of a task that waits to be written.
    Saving,
    /// Waits to become a task.
    Detaching,
    /// Sleeps until this time, in microseconds since 1970.
    Asleep(u64),
}

impl Phase {
    /// The key that an open ask goes out under.
    pub(super) fn open_key(&self) -> Option<&str> {
        match self {
            Self::Open { wire_key, .. } => Some(wire_key),
            _ => None,
        }
    }
}

pub(crate) struct Slot {
    pub(crate) id: SlotId,
    pub(crate) key: Key,
    pub(crate) phase: Phase,
    pub(crate) waker: Option<Waker>,
    /// Polled by another task than the driver's.
    pub(crate) outside: bool,
    /// That task has been polled to its end since this began to wait for its turn.
    pub(crate) ready: bool,
}

/// The mutable part of a flow.
pub(crate) struct State {
    pub(crate) entries: Vec<Entry>,
    /// How many entries were there when the round began.
    pub(crate) replayed: usize,
    pub(crate) frontier: usize,
    /// The journal is done with: new steps may start, progress and logs are heard.
    pub(crate) live: bool,
    pub(crate) slots: SmallVec<[Slot; 1]>,
    pub(super) next_slot: SlotId,
    /// The highest ordinal given out for each name.
    pub(super) ordinals: SmallVec<[Key; 1]>,
    pub(crate) retries: Vec<Retry>,
    pub(crate) saved: Vec<Saved>,
    pub(crate) own_state: Option<Box<str>>,
    pub(crate) loose: Vec<(Box<str>, Arc<str>)>,
    pub(crate) notes: Vec<Note>,
    pub(crate) last_progress: Option<f64>,
    pub(crate) fault: Option<Fault>,
    pub(crate) ended: bool,
    /// The call itself is over, and not only this round of it.
    pub(crate) over: bool,
    pub(crate) running: usize,
    pub(crate) shedding: bool,
    /// A checkpoint asked for other work to be let in.
    pub(crate) yielding: bool,
    pub(crate) stats: Stats,
    /// Grows whenever an operation gets on.
    pub(crate) moves: u64,
    pub(crate) cancelled: Vec<Waker>,
    /// Operations that may still be polled before the round is made to crash.
    pub(crate) fuse: Option<u32>,
    pub(crate) crashed: bool,
    pub(super) round: u32,
    pub(super) sheds: u32,
    pub(super) deadline: u64,
    pub(super) trace: Option<Traceparent>,
    /// What the handler says of how it stands, and nobody has taken yet.
    pub(crate) status: Option<String>,
    /// What it said of that last, until something it waited for has come in.
    pub(crate) parting: Option<String>,
    /// There in a flow whose home is a store, or memory.
    pub(super) task: Option<Box<TaskState>>,
    /// Why the flow could not be made a task.
    pub(crate) no_task: Option<String>,
    /// The attempt at the task failed of this, and is to be repeated.
    pub(crate) retry: Option<Box<Error>>,
}

/// A flow's state, and what never changes while it runs.
pub(crate) struct Shared {
    pub(crate) env: Env,
    pub(crate) flow: FlowId,
    pub(crate) trace: Trace,
    pub(crate) waker: Arc<FlowWaker>,
    /// Made when the first step starts.
    pub(crate) passes: OnceLock<Arc<PassCounter>>,
    state: Mutex<State>,
}

impl Shared {
    pub(crate) fn new(env: Env, start: super::Start, waker: Arc<FlowWaker>) -> Arc<Self> {
        let snapshot = start.snapshot;
        let replayed = snapshot.entries.len();
        let origin = start.trace.origin;
        Arc::new(Self {
            flow: snapshot.flow,
            waker,
            trace: start.trace,
            passes: OnceLock::new(),
            env,
            state: Mutex::new(State {
                entries: snapshot.entries,
                replayed,
                frontier: 0,
                live: replayed == 0,
                slots: SmallVec::new(),
                next_slot: 0,
                ordinals: SmallVec::new(),
                retries: snapshot.retries,
                saved: snapshot.saved,
                own_state: snapshot.state,
                loose: start.loose,
                notes: Vec::new(),
                last_progress: None,
                fault: None,
                ended: false,
                over: false,
                running: 0,
                shedding: false,
                yielding: false,
                stats: Stats::default(),
                moves: 0,
                cancelled: Vec::new(),
                fuse: None,
                crashed: false,
                round: snapshot.round,
                sheds: snapshot.sheds,
                deadline: snapshot.deadline,
                trace: origin,
                status: None,
                parting: None,
                task: start.task,
                no_task: None,
                retry: None,
            }),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// When the flow must be over, in seconds since 1970.
    pub(crate) fn deadline(&self) -> u64 {
        self.lock().deadline
    }

    /// An operation may not go on. Is it to be told that its call is over? If not, it waits to be dropped with its handler;
    /// or, where its round was only set down, its task is ended: what it would do next is done in another round.
    pub(crate) fn is_over(self: &Arc<Self>) -> bool {
        self.kick();
        let (ended, over) = {
            let state = self.lock();
            (state.ended, state.over)
        };
        if !ended || is_driving(self) {
            return false;
        }
        // The handler of another call is not ended for it.
        if over || is_driving_any() {
            return true;
        }
        end_quietly(self);
        false
    }

    /// The same for an operation that has no way to say that its call is over: its task is ended for that too. `true`: it is
    /// in the handler of another call, which is not.
    pub(crate) fn is_over_in_another_call(self: &Arc<Self>) -> bool {
        if !self.is_over() {
            return false;
        }
        if !is_driving_any() {
            end_quietly(self);
            return false;
        }
        true
    }

    /// Has the driver look again, after a change made from another task.
    pub(crate) fn kick(self: &Arc<Self>) {
        if !is_driving(self) {
            Wake::wake_by_ref(&self.waker);
        }
    }

    /// Records a fault and has the driver look. The first one wins.
    pub(crate) fn fault(self: &Arc<Self>, message: String, at: Option<&Location<'_>>) {
        let message = match at {
            Some(at) => format!("{message} (at {}:{})", at.file(), at.line()),
            None => message,
        };
        self.lock().set_fault(message, false);
        self.kick();
    }

    /// Registers an operation: its ordinal is given now, not at its first poll.
    pub(crate) fn open_slot(
        self: &Arc<Self>,
        scope: Option<&Arc<str>>,
        kind: Kind,
        name: Cow<'static, str>,
        at: &Location<'_>,
    ) -> (SlotId, Key) {
        let inside_step = in_step(self);
        let mut key = Key {
            scope: scope.cloned(),
            kind,
            name,
            ordinal: 0,
        };
        let fault = {
            let mut state = self.lock();
            key.ordinal = state.next_ordinal(&key);
            let twice = state.slots.iter().any(|slot| slot.key.same_name(&key));
            let id = state.push_slot(key.clone());
            if inside_step {
                format!(
                    "{} {:?} was made inside a step; a step is run once and cannot ask or hold other steps",
                    kind.as_str(),
                    key.name
                )
            } else if twice {
                format!(
                    "the {} {:?} is used twice at once; give each its own name or its own cx.scope(..)",
                    kind.as_str(),
                    key.name
                )
            } else {
                return (id, key);
            }
        };
        self.fault(fault, Some(at));
        (SlotId::MAX, key)
    }

    /// Forgets an operation that is done or was dropped.
    pub(crate) fn close_slot(self: &Arc<Self>, id: SlotId) {
        let closed = {
            let mut state = self.lock();
            state.close(id)
        };
        if closed.is_some_and(|slot| slot.outside) {
            self.kick();
        }
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

    /// A slot for what only waits. It has no entry, and no name that could collide.
    pub(crate) fn new_slot_for_wait(&mut self) -> SlotId {
        // Of a kind that the author cannot name.
        self.push_slot(Key {
            scope: None,
            kind: Kind::Sleep,
            name: Cow::Borrowed(""),
            ordinal: 0,
        })
    }

    /// Has whatever is in such a phase polled again.
    pub(super) fn take_all(&mut self, phase: impl Fn(&Phase) -> bool) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for slot in self.slots.iter_mut().filter(|slot| phase(&slot.phase)) {
            slot.phase = Phase::Idle;
            wakers.extend(slot.waker.take());
        }
        wakers
    }

    /// Notes a checkpoint. In a task: is it to be written now?
    pub(crate) fn keep_checkpoint(&mut self, env: &Env) -> bool {
        match &mut self.task {
            Some(task) if !task.in_memory => {
                task.keep_checkpoint();
                task.wants_checkpoint(&*env.source)
            }
            _ => false,
        }
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

    fn next_ordinal(&mut self, key: &Key) -> u32 {
        if let Some(last) = self.ordinals.iter_mut().find(|last| last.same_name(key)) {
            last.ordinal += 1;
            return last.ordinal;
        }
        let mut first = key.clone();
        first.ordinal = 1;
        self.ordinals.push(first);
        1
    }

    /// The key of the next use of a name, for values that need no operation.
    pub(crate) fn take_key(&mut self, scope: Option<&Arc<str>>, kind: Kind) -> Key {
        let mut key = Key {
            scope: scope.cloned(),
            kind,
            name: Cow::Borrowed(""),
            ordinal: 0,
        };
        key.ordinal = self.next_ordinal(&key);
        key
    }

    pub(crate) fn slot(&mut self, id: SlotId) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.id == id)
    }

    fn close(&mut self, id: SlotId) -> Option<Slot> {
        let at = self.slots.iter().position(|slot| slot.id == id)?;
        let slot = self.slots.remove(at);
        if matches!(slot.phase, Phase::Running(_)) {
            self.running -= 1;
        }
        self.moves += 1;
        Some(slot)
    }

    /// Counts one poll of an operation. `false`: the flow is ended, at fault or made to crash, and nothing may happen.
    pub(crate) fn may_go_on(&mut self) -> bool {
        if let Some(fuse) = &mut self.fuse {
            match fuse.checked_sub(1) {
                Some(left) => *fuse = left,
                None => self.crashed = true,
            }
        }
        !self.ended && !self.crashed && self.fault.is_none() && self.retry.is_none()
    }

    /// Puts an operation to sleep in this phase.
    pub(crate) fn park(&mut self, id: SlotId, phase: Phase, waker: &Waker, outside: bool) {
        if let Some(slot) = self.slot(id) {
            slot.phase = phase;
            slot.outside = outside;
            match &mut slot.waker {
                Some(old) => old.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
        }
        self.moves += 1;
    }

    /// The entry of an operation that has no schema.
    pub(crate) fn find(&self, key: &Key) -> Option<usize> {
        self.entries.iter().position(|e| !e.void && e.key == *key)
    }

    /// The entry that answers an ask: the one asked with the same schema, else the latest whose answer fits.
    pub(crate) fn find_answer(
        &self,
        key: &Key,
        fingerprint: u64,
        fits: impl Fn(&str) -> bool,
    ) -> Option<usize> {
        let mine = |e: &Entry| !e.void && e.key == *key;
        self.entries
            .iter()
            .position(|e| mine(e) && e.fingerprint == fingerprint)
            .or_else(|| {
                self.entries
                    .iter()
                    .rposition(|e| mine(e) && matches!(&e.held, Held::Value(json) if fits(json)))
            })
    }

    /// Adds an entry at the end of the journal. `None` if the journal is full: that is a fault.
    pub(crate) fn append(&mut self, entry: Entry, limit: usize) -> Option<usize> {
        if self.entries.len() >= limit {
            self.set_fault(
                format!(
                    "the journal is full: {limit} entries; {:?} does not fit",
                    entry.key.full()
                ),
                false,
            );
            return None;
        }
        self.entries.push(entry);
        self.moves += 1;
        Some(self.entries.len() - 1)
    }

    /// May this operation have its entry? If not, it waits for its turn.
    pub(crate) fn take_turn(
        &mut self,
        id: SlotId,
        index: usize,
        waker: &Waker,
        outside: bool,
    ) -> bool {
        match self.slot(id).map(|slot| &slot.phase) {
            Some(Phase::Given) => true,
            // The flow is about to be handed on, and the value goes with it.
            Some(Phase::Parked) => false,
            phase => {
                // The driver woke this task and it came round again: all it awaits is registered by now.
                let called = matches!(phase, Some(Phase::Waiting(_)));
                let called = called && self.slot(id).is_some_and(|slot| slot.waker.is_none());
                self.park(id, Phase::Waiting(index), waker, outside);
                if let Some(slot) = self.slot(id) {
                    slot.ready |= called;
                }
                false
            }
        }
    }

    /// The first entry whose value is handed on, unseen here.
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
        if let Some(entry) = self.entries.get_mut(index) {
            if !entry.delivered && index < self.replayed && !entry.void {
                self.stats.replayed += 1;
            }
            entry.delivered = true;
            // Time and randomness are drawn, not waited for.
            if !matches!(entry.key.kind, Kind::Now | Kind::Random) {
                self.parting = None;
            }
        }
        self.moves += 1;
        while self.entries.get(self.frontier).is_some_and(|e| e.delivered) {
            self.frontier += 1;
        }
        if self.frontier >= self.replayed {
            self.live = true;
        }
    }

    /// Takes an answer that does not fit out of the journal. Returns how often that has happened to this ask.
    pub(crate) fn refuse(&mut self, index: usize, reason: &str) -> u32 {
        let entry = &mut self.entries[index];
        entry.void = true;
        let (key, fingerprint) = (entry.key.clone(), entry.fingerprint);
        let known = self
            .retries
            .iter_mut()
            .find(|r| r.key == key && r.fingerprint == fingerprint);
        match known {
            Some(retry) => {
                retry.count = retry.count.saturating_add(1);
                retry.reason = reason.into();
                retry.count
            }
            None => {
                self.retries.push(Retry {
                    key,
                    fingerprint,
                    count: 1,
                    reason: reason.into(),
                });
                1
            }
        }
    }

    /// Why the last answer to this ask was refused.
    pub(crate) fn refusal(&self, key: &Key, fingerprint: u64) -> Option<&str> {
        self.retries
            .iter()
            .find(|r| r.key == *key && r.fingerprint == fingerprint)
            .map(|r| &*r.reason)
    }
}
