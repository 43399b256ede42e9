//! Slots: the driver's view of a handler's pending operations.

use super::state::Shared;
use super::waker::StepSignal;
use crate::journal::{EntryKey, PendingAsk};
use refrain_wire::Ask;
use std::sync::Arc;
use std::task::Waker;

/// The id of a pending operation.
pub(crate) type SlotId = u64;

/// The phase of an operation.
pub(crate) enum Phase {
    /// Created or woken, and not yet polled.
    Idle,
    /// Waits for its turn to take this entry.
    Waiting(usize),
    /// May take the entry it waited for.
    Granted,
    /// An ask without an answer.
    Open {
        ask: Ask,
        wire_key: Box<str>,
        fingerprint: u64,
    },
    /// A new step that must not start yet.
    Blocked,
    /// A new step that may start, since all progress before it is written.
    Cleared,
    /// A running step.
    Running(Arc<StepSignal>),
    /// Waits for the flow to be handed on.
    HandingOn,
    /// Waits until the checkpoint of a task is written.
    Saving,
    /// Waits to become a task.
    Detaching,
    /// Sleeps until this time, in microseconds since 1970.
    Asleep(u64),
}

impl Phase {
    /// The wire key of an open ask.
    pub(super) fn open_key(&self) -> Option<&str> {
        match self {
            Self::Open { wire_key, .. } => Some(wire_key),
            _ => None,
        }
    }
}

/// A pending operation of a handler.
pub(crate) struct Slot {
    pub(crate) id: SlotId,
    pub(crate) key: EntryKey,
    pub(crate) phase: Phase,
    pub(crate) waker: Option<Waker>,
    /// Whether a spawned Tokio task polls the operation, not the driver.
    pub(crate) in_spawned_task: bool,
    /// Whether that Tokio task completed a poll since the slot began to wait for its turn.
    pub(crate) ready: bool,
}

impl Slot {
    /// Sets the Tokio task that polls the operation.
    pub(crate) fn set_poller(&mut self, poller: Poller<'_>) {
        self.in_spawned_task = poller.in_spawned_task;
        match &mut self.waker {
            Some(old) => old.clone_from(poller.waker),
            empty => *empty = Some(poller.waker.clone()),
        }
    }

    /// Takes the ask out of an open slot.
    pub(super) fn take_ask(&mut self) -> Option<((String, Ask), PendingAsk)> {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Open {
                ask,
                wire_key,
                fingerprint,
            } => {
                let sent = (wire_key.to_string(), ask);
                let pending = PendingAsk {
                    wire_key,
                    key: self.key.clone(),
                    fingerprint,
                    current_run: true,
                };
                Some((sent, pending))
            }
            phase => {
                self.phase = phase;
                None
            }
        }
    }
}

/// The Tokio task that polls an operation: the driver's or a spawned one.
#[derive(Clone, Copy)]
pub(crate) struct Poller<'a> {
    pub(super) waker: &'a Waker,
    /// Whether it is a spawned one.
    pub(crate) in_spawned_task: bool,
}

/// The slot of an operation; closed on drop.
pub(crate) struct SlotGuard<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) id: SlotId,
}

impl SlotGuard<'_> {
    /// Closes the slot before the drop.
    pub(crate) fn close(&self) {
        let closed = self.shared.lock().close(self.id);
        if closed.is_some_and(|slot| slot.in_spawned_task) {
            self.shared.wake_driver();
        }
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        self.close();
    }
}
