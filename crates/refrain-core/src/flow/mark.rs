//! Marks on the thread: which flow is being driven here, and which has a step at work here.

use super::state::Shared;
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    /// The flow whose driver is polling on this thread.
    static DRIVING: Cell<usize> = const { Cell::new(0) };
    /// The flow whose step is being polled on this thread.
    static IN_STEP: Cell<usize> = const { Cell::new(0) };
}

/// Sets a thread-local mark, and puts back what was there.
pub(crate) struct Mark(&'static std::thread::LocalKey<Cell<usize>>, usize);

impl Mark {
    pub(crate) fn driving(shared: &Arc<Shared>) -> Self {
        let before = DRIVING.with(|cell| cell.replace(Arc::as_ptr(shared) as usize));
        Self(&DRIVING, before)
    }

    pub(crate) fn in_step(shared: &Arc<Shared>) -> Self {
        let before = IN_STEP.with(|cell| cell.replace(Arc::as_ptr(shared) as usize));
        Self(&IN_STEP, before)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.with(|cell| cell.set(self.1));
    }
}

/// Is a step of this flow being polled on this thread?
pub(crate) fn in_step(shared: &Arc<Shared>) -> bool {
    IN_STEP.with(Cell::get) == Arc::as_ptr(shared) as usize
}

/// Ends a task that outlived its flow, without a panic message: what it would do next must not happen.
/// Inside the driver there is nothing to end: the handler is about to be dropped.
pub(super) fn end_quietly(shared: &Arc<Shared>) {
    if !is_driving(shared) && cfg!(panic = "unwind") && !std::thread::panicking() {
        std::panic::resume_unwind(Box::new("the call this task belonged to is over"));
    }
}

/// Is this thread inside a driver's poll of any flow?
pub(super) fn is_driving_any() -> bool {
    DRIVING.with(Cell::get) != 0
}

/// Is this thread inside the driver's poll of this flow?
pub(crate) fn is_driving(shared: &Arc<Shared>) -> bool {
    DRIVING.with(Cell::get) == Arc::as_ptr(shared) as usize
}
