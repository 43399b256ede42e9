//! The core of Refrain, without I/O: journal, driver, [`Cx`] and sealed tokens.
//!
//! This crate opens no sockets and spawns no Tokio tasks. [`Flow::poll`] runs the handler and
//! reports an [`Event`] to the owner of the flow; time and randomness come from a [`Source`].
//! Servers and tools depend on the crate `refrain`, which re-exports what they need.
//!
//! | module | content |
//! | --- | --- |
//! | `cx` | the context of a handler: asks, steps, checkpoints, sleeps |
//! | `flow` | one run of a handler: its driver and its shared state |
//! | `journal` | the journal of a flow and its binary form |
//! | `form` | types that have a form |
//! | `seal` | tokens: key ring, binding, sealing and opening |
//! | `trace`, `span` | the trace of a flow; spans of steps and asks |
//! | `replay` | the replay log of `once` and of single-use tokens |

mod cx;
mod error;
mod flow;
mod form;
mod journal;
mod principal;
mod replay;
mod seal;
mod source;
mod span;
mod trace;

pub use cx::{
    Answer, AskFuture, CancelledFuture, CheckpointFuture, Cx, DetachFuture, SleepFuture, StepFuture,
};
pub use error::{AskError, Error, ErrorKind, IntoError, Result, ok};
pub use flow::{
    AfterWrite, Detachment, End, Env, Event, Fault, Flow, HandlerFuture, Incomplete, Limits, Note,
    Outcome, PendingWrite, Pressure, Start, StartError, Stats, StatusMessage, Suspension,
};
pub use form::{Elicit, ElicitEnum, is_choice};
pub use journal::{Claims, FlowId, Snapshot};
pub use principal::{Principal, client_network};
#[doc(hidden)]
pub use refrain_wire::limited_event;
pub use replay::{LogError, LogFuture, LogKey, MemoryReplayLog, RecordState, ReplayLog, Retention};
pub use seal::{
    Binding, KeyId, KeyRing, KeyRingError, KeyState, LiveBinding, LiveToken, OpenError, SealError,
    Sealer, SealerOptions,
};
pub use source::{Source, SystemSource};
pub use trace::Trace;

pub use refrain_wire::{Choice, Field, Form};
