//! What a flow is run with.

use crate::{Principal, ReplayLog, Source};
use refrain_wire::{Capabilities, LogLevel};
use serde_json::value::RawValue;
use std::sync::Arc;

/// What surrounds one round of a flow: who calls, what the client can do, and how far the handler may go.
#[derive(Clone)]
pub struct Env {
    /// Who is calling.
    pub principal: Principal,
    /// The URI that is read, in the call of a resource.
    pub uri: Option<String>,
    /// What the client declared it can answer.
    pub capabilities: Capabilities,
    /// The extensions the client declared, with their settings: the text of an object.
    pub extensions: Option<Box<RawValue>>,
    /// The least severe log message the client wants, if any.
    pub log_level: Option<LogLevel>,
    /// Does the client want progress reports?
    pub wants_progress: bool,
    /// Time and randomness.
    pub source: Arc<dyn Source>,
    /// The limits of the flow.
    pub limits: Limits,
    /// Says whether flows should be handed on to another instance.
    pub pressure: Option<Arc<dyn Pressure>>,
    /// Where `once` records what it is about to do. Without one `once` is a fault.
    pub replay_log: Option<Arc<dyn ReplayLog>>,
    /// Can the flow become a task? Where it cannot, `detach` changes nothing.
    pub can_detach: bool,
}

/// Says whether an instance wants to be rid of work: it is draining, or has too much of it.
pub trait Pressure: Send + Sync {
    /// Should a flow be handed on at its next checkpoint?
    fn hand_on(&self) -> bool;

    /// Should a task be handed on at its next checkpoint? Where it would be taken up again at once, that is of no use.
    fn hand_task_on(&self) -> bool {
        self.hand_on()
    }
}

/// How far one flow may go. Every limit can be set; passing one ends the call with a message that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rounds of one flow. Default 32.
    pub rounds: u32,
    /// Asks that go out in one round. Default 16.
    pub asks: usize,
    /// Entries of a journal. Default 1024.
    pub entries: usize,
    /// Answers to one ask that do not fit, before the handler is told so. Default 3.
    pub retries: u32,
    /// State-only rounds of one flow, made to hand it on. Default 2.
    pub sheds: u32,
    /// Progress and log messages waiting to be sent. Default 256; the oldest are dropped.
    pub notes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rounds: 32,
            asks: 16,
            entries: 1024,
            retries: 3,
            sheds: 2,
            notes: 256,
        }
    }
}
