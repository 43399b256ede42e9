//! Thread-local markers of the flow that the current thread polls.

use super::state::Shared;
use std::cell::Cell;
use std::sync::Arc;
use std::thread::LocalKey;

thread_local! {
    /// The address of the flow whose driver polls on this thread, or 0.
    static DRIVING: Cell<usize> = const { Cell::new(0) };
    /// The address of the flow whose step is polled on this thread, or 0.
    static IN_STEP: Cell<usize> = const { Cell::new(0) };
}

/// Marks the thread as polling a flow; restores the previous mark on drop.
pub(crate) struct ThreadContext(&'static LocalKey<Cell<usize>>, usize);

impl ThreadContext {
    fn enter(mark: &'static LocalKey<Cell<usize>>, shared: &Arc<Shared>) -> Self {
        Self(mark, mark.replace(address(shared)))
    }

    pub(crate) fn driving(shared: &Arc<Shared>) -> Self {
        Self::enter(&DRIVING, shared)
    }

    pub(crate) fn in_step(shared: &Arc<Shared>) -> Self {
        Self::enter(&IN_STEP, shared)
    }
}

impl Drop for ThreadContext {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

fn address(shared: &Arc<Shared>) -> usize {
    Arc::as_ptr(shared) as usize
}

/// Returns whether a step of this flow is being polled on this thread.
pub(crate) fn in_step(shared: &Arc<Shared>) -> bool {
    IN_STEP.get() == address(shared)
}

/// Returns whether the driver of this flow is polling on this thread.
pub(crate) fn is_driving(shared: &Arc<Shared>) -> bool {
    DRIVING.get() == address(shared)
}

/// Returns whether any driver is polling on this thread.
pub(super) fn is_driving_any() -> bool {
    DRIVING.get() != 0
}

/// Unwinds a Tokio task that a handler spawned and that outlived the flow, without a panic message, so that the code
/// after the task's await of a `Cx` operation does not run. Inside the driver this does nothing, since the handler is
/// about to be dropped.
pub(super) fn unwind_task(shared: &Arc<Shared>) {
    if !is_driving(shared) && cfg!(panic = "unwind") && !std::thread::panicking() {
        std::panic::resume_unwind(Box::new("the call of this task has ended"));
    }
}
