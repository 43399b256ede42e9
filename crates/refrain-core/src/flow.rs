//! One run of a handler.
//!
//! A flow and the operations of its handler (asks, steps, checkpoints) share one [`state::State`] behind one lock.
//! The driver polls the handler and decides only when it is at rest: pending, and not woken since the poll began.
//!
//! | at rest, and … | then |
//! | --- | --- |
//! | an entry of the journal is awaited | deliver the earliest such entry |
//! | a new step waits to start | the replay is over: let it start |
//! | a step is running | wait for it |
//! | the flow is to be handed on, and a checkpoint or a step boundary is reached | cut, without asks |
//! | an ask is open | let other tasks settle, then cut with all open asks |
//! | otherwise | wait: the handler awaits a foreign future |
//!
//! A [`task`] instead writes its progress and publishes its asks before it waits; when only asks and sleeps are left, it
//! rests until it is resumed. A flow in [`memory`] publishes its asks in the same way, and stays.

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
pub use reply::{Cut, Fault, Incomplete, Note, Outcome, Stats, Then, Write};
pub use start::{Start, StartError};
pub use task::Detachment;

pub(crate) use reply::{is_url, no_url};
pub(crate) use slot::{Phase, Poller, SlotGuard};
pub(crate) use state::{Shared, State};
pub(crate) use task::micros;
pub(crate) use thread_context::{ThreadContext, in_step};
pub(crate) use waker::StepSignal;
