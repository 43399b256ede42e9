//! One run of a handler.
//!
//! A flow and the operations of its handler (asks, steps, checkpoints) share one [`state::FlowState`] behind one lock.
//! The driver decides only when the handler is at rest: pending, and not woken since its poll began.
//!
//! | condition at rest | decision |
//! | --- | --- |
//! | a journal entry is awaited | deliver the earliest such entry |
//! | a new step waits to start | the replay is complete: start the step |
//! | a step is running | wait |
//! | the flow should be handed on, and is at a checkpoint or a step boundary | suspend without asks |
//! | an ask is open | let other Tokio tasks run, then suspend with all open asks |
//! | none of these | wait: the handler awaits a *foreign* future, which is no operation of `cx` |
//!
//! A [`task`] is not suspended. It writes its progress and publishes its asks before it waits; when only asks and sleeps
//! are pending, it can leave memory. A flow in [`memory`] also publishes its asks, and stays in memory.

mod decide;
mod driver;
mod env;
mod memory;
mod reply;
mod slot;
mod start;
mod state;
mod suspend;
mod task;
mod thread_context;
mod waker;

pub use driver::{End, Event, Flow, HandlerFuture};
pub use env::{Env, Limits, Pressure};
pub use reply::{
    AfterWrite, Fault, Incomplete, Note, Outcome, PendingWrite, Stats, StatusMessage, Suspension,
};
pub use start::{Start, StartError};
pub use task::Detachment;

pub(crate) use reply::{is_url, malformed_url};
pub(crate) use slot::{Phase, Poller, SlotGuard};
pub(crate) use state::{FlowState, Shared};
pub(crate) use task::micros;
pub(crate) use thread_context::{ThreadContext, in_step};
pub(crate) use waker::StepSignal;
