//! The environment of a flow.

use crate::{Principal, ReplayLog, Source};
use refrain_wire::{Capabilities, LogLevel};
use serde_json::value::RawValue;
use std::sync::Arc;

/// The environment of one round: the caller, the client's capabilities, and the limits.
#[derive(Clone)]
pub struct Env {
    /// The authenticated caller.
    pub principal: Principal,
    /// The URI to read, in the call of a resource.
    pub uri: Option<String>,
    /// The asks that the client supports.
    pub capabilities: Capabilities,
    /// The extensions that the client declared, as a JSON object with their settings.
    pub extensions: Option<Box<RawValue>>,
    /// The minimum level of log messages for the client, if it wants any.
    pub log_level: Option<LogLevel>,
    /// Whether the client wants progress reports.
    pub wants_progress: bool,
    /// Time and randomness.
    pub source: Arc<dyn Source>,
    /// The limits of the flow.
    pub limits: Limits,
    /// Decides whether flows are handed on to another instance.
    pub pressure: Option<Arc<dyn Pressure>>,
    /// The log of `once`. Without a log `once` is a fault.
    pub replay_log: Option<Arc<dyn ReplayLog>>,
    /// Whether the flow can become a task. If not, `detach` does nothing.
    pub can_detach: bool,
}

/// Decides whether an instance that is draining or overloaded hands work on.
pub trait Pressure: Send + Sync {
    /// Returns whether a flow should be handed on at its next checkpoint.
    fn hand_on(&self) -> bool;

    /// Returns whether a task should be handed on at its next checkpoint. Useless if this instance would resume it.
    fn hand_task_on(&self) -> bool {
        self.hand_on()
    }
}

/// The limits of one flow. Exceeding one ends the call with a message that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rounds of one flow. Default 32.
    pub rounds: u32,
    /// Asks in one round. Default 16.
    pub asks: usize,
    /// Entries of a journal. Default 1024.
    pub entries: usize,
    /// Rejected answers to one ask before it fails. Default 3.
    pub retries: u32,
    /// Rounds of one flow without asks, made to hand it on. Default 2.
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
