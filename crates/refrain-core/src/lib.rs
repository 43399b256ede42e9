//! The deciding part of Refrain: journal, driver, [`Cx`] and seal.
//!
//! Nothing in this crate opens a socket, spawns a task or reads a clock by itself. [`Flow::poll`] runs the handler and
//! reports an [`Event`] to the owner of the flow; time and randomness come from a [`Source`].
//!
//! | module | content |
//! | --- | --- |
//! | `cx` | the context of a handler: asks, steps, checkpoints |
//! | `flow` | one run of a handler: its driver, and the state that its operations share |
//! | `journal` | the journal of a flow and its binary form |
//! | `form` | types that a handler can ask for |
//! | `seal` | the token: key ring, binding, seal and open |
//! | `trace` | the trace of a flow |
//! | `replay` | the log behind `once` and single-use tokens |

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
    Cut, Detachment, End, Env, Event, Fault, Flow, HandlerFuture, Incomplete, Limits, Note,
    Outcome, Pressure, Start, StartError, Stats, Then, Write,
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
