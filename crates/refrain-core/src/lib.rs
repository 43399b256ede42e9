//! The part of Refrain that decides: journal, driver, [`Cx`] and seal.
//!
//! Nothing in this crate opens a socket, spawns a task or reads a clock by itself. A flow is driven by whoever
//! owns it: [`Flow::poll`] runs the handler and reports an [`Event`]; time and randomness come from a [`Source`].
//!
//! | module | what it holds |
//! | --- | --- |
//! | `cx` | what a handler is given: asks, steps, checkpoints |
//! | `flow` | one run of a handler: the state it shares with its operations, and the driver |
//! | `journal` | what a flow has so far, and what of it travels |
//! | `form` | the types a handler can ask to have filled in |
//! | `seal` | the token: key ring, binding, seal and open |
//! | `trace` | the trace that a flow belongs to |
//! | `replay` | the log that makes `once` and single-use tokens possible |

mod cx;
mod error;
mod flow;
mod form;
mod journal;
mod principal;
mod replay;
mod seal;
mod source;
mod trace;

pub use cx::{
    Answer, AskFuture, Cancelled, CheckpointFuture, Cx, DetachFuture, SleepFuture, StepFuture,
};
pub use error::{AskError, Error, ErrorKind, Result, ok};
pub use flow::{
    Cut, Detachment, Env, Event, Fault, Flow, HandlerFuture, Incomplete, Limits, Note, Outcome,
    Pressure, Start, StartError, Stats, Then, Write,
};
pub use form::{Elicit, ElicitEnum};
pub use journal::{Claims, FlowId, Snapshot};
pub use principal::Principal;
pub use replay::{Keep, LogError, LogFuture, LogKey, MemoryReplayLog, Recorded, ReplayLog};
pub use seal::{
    Binding, KeyId, KeyRing, KeyRingError, KeyState, LiveBinding, LiveToken, OpenError, SealError,
    Sealer, SealerOptions,
};
pub use source::{Source, SystemSource};
pub use trace::Trace;

pub use refrain_wire::{Choice, Field, Form};
