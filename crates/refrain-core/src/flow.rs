//! One run of a handler.
//!
//! A flow and the operations of its handler (asks, steps, checkpoints) share one [`state::State`] behind one lock.
//! The driver polls the handler and decides only when it is at rest: pending, and not woken since the poll began.
//!
//! | at rest, and … | then |
//! | --- | --- |
//! | an entry of the journal is awaited | go on to the earliest such entry |
//! | a new step waits to start | the journal is done with: let it start |
//! | a step is running | wait for it |
//! | the flow is to be handed on, and a checkpoint or a step boundary is reached | cut, without asks |
//! | an ask is open | let others settle, then cut with all open asks |
//! | nothing of the above | wait: the handler awaits something of its own |
//!
//! In a task the last rows are others: what is new is written, and asks are published, before it waits; it rests, to be
//! taken up again later, when nothing but asks and sleeps is left. See [`task`]. A flow whose home is memory publishes its
//! asks in the same way, and stays. See [`memory`].

mod cut;
mod driver;
mod env;
mod mark;
mod memory;
mod reply;
mod rest;
mod signal;
mod start;
mod state;
mod task;
mod waker;

pub use driver::{Event, Flow, HandlerFuture};
pub use env::{Env, Limits, Pressure};
pub use reply::{Cut, Fault, Incomplete, Note, Outcome, Stats, Then, Write};
pub use start::{Start, StartError};
pub use task::Detachment;

pub(crate) use mark::{Mark, in_step, is_driving};
pub(crate) use reply::{is_url, no_url};
pub(crate) use signal::StepSignal;
pub(crate) use state::{Phase, Shared, SlotId, State};
pub(crate) use task::micros;
