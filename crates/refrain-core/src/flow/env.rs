//! The environment of a flow.

use crate::{Principal, ReplayLog, Source};
use refrain_wire::{Capabilities, LogLevel};
use std::net::IpAddr;
use std::sync::Arc;

/// The environment of one round: the caller, the client's capabilities, and the limits.
#[derive(Clone)]
pub struct Env {
    /// The authenticated caller.
    pub principal: Principal,
    /// The client's address, if it is known.
    pub address: Option<IpAddr>,
    /// The URI to read, if the call reads a resource.
    pub uri: Option<String>,
    /// The kinds of asks that the client supports.
    pub capabilities: Capabilities,
    /// The extensions that the client declared, as a JSON object with their settings.
    pub extensions: Option<Arc<str>>,
    /// The members of the request's `_meta` that are not reserved, as a JSON object.
    pub meta: Option<Arc<str>>,
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
    /// The replay log of `once`. Without it, `once` is a fault.
    pub replay_log: Option<Arc<dyn ReplayLog>>,
    /// Whether the flow can become a task. Otherwise `detach` does nothing.
    pub can_detach: bool,
}

/// Decides whether a draining or overloaded instance hands work on.
pub trait Pressure: Send + Sync {
    /// Returns whether a flow should be handed on at its next checkpoint or step.
    fn should_hand_on(&self) -> bool;

    /// Returns whether a task should be handed on at its next checkpoint or step. Handing it on is pointless if the
    /// same instance would resume it.
    fn should_hand_task_on(&self) -> bool {
        self.should_hand_on()
    }
}

/// The limits of one flow. Unless a field says otherwise, a call that exceeds one ends with an error that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of rounds of one flow. Default 32.
    pub rounds: u32,
    /// Maximum number of open asks. Default 16.
    pub asks: usize,
    /// Maximum number of entries of a journal. Default 1024.
    pub entries: usize,
    /// How often one ask is repeated after an invalid answer. Default 3; then the ask fails.
    pub retries: u32,
    /// How often one flow is handed on. Default 2; then it runs to its end.
    pub sheds: u32,
    /// Maximum number of queued progress and log messages. Default 256; when the queue is full, the oldest are dropped.
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
