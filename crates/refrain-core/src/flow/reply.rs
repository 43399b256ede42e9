//! The output of a flow: results, asks, notes and faults.

use crate::Form;
use crate::journal::Snapshot;
use refrain_wire::{Ask, LogLevel, ResultBody, SamplingParams};
use std::borrow::Cow;
use std::panic::Location;
use std::time::SystemTime;

/// A bug in the handler, an exceeded limit, or a malformed answer. It ends the call; the handler cannot catch it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong, and how to fix it. Clients read it.
    pub message: String,
    /// Where the handler caused it, for the log.
    pub location: Option<&'static Location<'static>>,
    /// Whether the client's answer is malformed and the handler is correct.
    pub bad_answer: bool,
}

impl Fault {
    /// The fault of a handler that took too long.
    pub fn round_time() -> Self {
        Self {
            message: "the handler took longer than the time limit of a round".into(),
            location: None,
            bad_answer: false,
        }
    }
}

/// A message from a running handler to the client.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// Progress of the work.
    Progress {
        /// The amount of work done.
        done: f64,
        /// The total amount of work, if known.
        total: Option<f64>,
        /// The current activity.
        message: Option<String>,
    },
    /// A log message.
    Log {
        /// The severity.
        level: LogLevel,
        /// The content.
        data: serde_json::Value,
    },
}

/// The reply of a handler.
#[derive(Debug)]
pub enum Outcome {
    /// The result of the call.
    Complete(ResultBody),
    /// Asks and a state, written in the explicit style.
    Incomplete(Incomplete),
}

/// An incomplete reply in the explicit style: asks and a state of the handler.
///
/// ```
/// use refrain::prelude::*;
///
/// async fn count(cx: Cx) -> Result<Reply<String>> {
///     let rounds = cx.state::<u32>()?.unwrap_or(0) + 1;
///     if cx.answer("where").is_none() {
///         let reply = Incomplete::new().roots("where").state(&rounds)?;
///         return Ok(Reply::Incomplete(reply));
///     }
///     Ok(Reply::Complete(format!("{rounds} rounds")))
/// }
/// ```
#[derive(Debug, Default)]
pub struct Incomplete {
    /// The key, the ask, and the fingerprint of its form or 0.
    pub(crate) asks: Vec<(Cow<'static, str>, Ask, u64)>,
    pub(crate) state: Option<Box<str>>,
}

impl Incomplete {
    /// Makes an empty reply. Add at least one ask or a state.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the user to fill in a form.
    pub fn form(
        self,
        key: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
        form: &Form,
    ) -> Self {
        let (message, schema) = (message.into(), form.json().clone());
        self.ask(key, Ask::Form { message, schema }, form.fingerprint())
    }

    /// Asks the user to open a URL.
    pub fn url(
        self,
        key: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
        url: impl Into<String>,
    ) -> Self {
        let (message, url) = (message.into(), url.into());
        self.ask(key, Ask::Url { message, url }, 0)
    }

    /// Asks the client's model.
    pub fn sample(self, key: impl Into<Cow<'static, str>>, params: SamplingParams) -> Self {
        self.ask(key, Ask::Sampling(Box::new(params)), 0)
    }

    /// Asks for the client's roots.
    pub fn roots(self, key: impl Into<Cow<'static, str>>) -> Self {
        self.ask(key, Ask::Roots, 0)
    }

    fn ask(mut self, key: impl Into<Cow<'static, str>>, ask: Ask, fingerprint: u64) -> Self {
        self.asks.push((key.into(), ask, fingerprint));
        self
    }

    /// Adds a state, which is sealed. Read it with `cx.state()`.
    pub fn state(mut self, state: &impl serde::Serialize) -> crate::Result<Self> {
        self.state = Some(serde_json::to_string(state)?.into());
        Ok(self)
    }
}

/// A suspended flow.
#[derive(Debug)]
#[must_use = "seal the snapshot and send the asks"]
pub struct Suspension {
    /// The asks to send, under their wire keys.
    pub asks: Vec<(String, Ask)>,
    /// The flow to resume.
    pub snapshot: Snapshot,
    /// Whether the flow has no asks and is handed on because of [`Pressure`](crate::Pressure).
    pub handed_on: bool,
}

/// A status message of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusMessage {
    /// The text.
    pub text: String,
    /// Whether it reports progress. Such messages are frequent, so a store need not write each of them.
    pub is_progress: bool,
}

/// The changes of a task since the last write, to be stored in one transaction. A flow in memory reports
/// its changed asks in the same way.
#[derive(Debug)]
#[must_use = "write it to the store, then call Flow::confirm_write"]
pub struct PendingWrite {
    /// The flow to resume.
    pub snapshot: Snapshot,
    /// New asks, under keys that were never used in this task.
    pub asks: Vec<(String, Ask)>,
    /// Keys of asks whose answers are in the snapshot.
    pub taken: Vec<String>,
    /// Keys of asks that no longer need an answer.
    pub withdrawn: Vec<String>,
    /// Whether the task made progress since the last write.
    pub progress: bool,
    /// How the task continues.
    pub then: AfterWrite,
}

/// How a task, or a flow in memory, continues after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterWrite {
    /// The handler has more to do: call [`Flow::confirm_write`](crate::Flow::confirm_write) and poll again.
    Continue,
    /// No step runs, and asks or sleeps are pending. Unless `may_progress`, drop the flow until an answer arrives
    /// or the first sleep ends.
    Rest {
        /// The end of the first sleep.
        wake: Option<SystemTime>,
        /// Whether the handler may also await a future that is no operation of `cx`, such as a timer or a channel.
        may_progress: bool,
    },
    /// The flow has ended here and must be resumed at once, on this instance or another one.
    HandOn,
}

/// The counters of one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Entries replayed from the journal or answered by this request.
    pub replayed: u32,
    /// Steps that ran.
    pub steps: u32,
}

/// Returns whether `text` is a scheme followed by characters that RFC 3986 allows in a URI.
pub(crate) fn is_url(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else {
        return false;
    };
    let in_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let in_rest = |byte: u8| byte.is_ascii_graphic() && !br#""<>\^`{|}"#.contains(&byte);
    scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(in_scheme)
        && !rest.is_empty()
        && rest.bytes().all(in_rest)
}

/// The message for a malformed URL. It leaves out the URL, which may contain secrets of the user.
pub(crate) fn malformed_url(name: &str) -> String {
    format!(
        "malformed URL for {name:?}: expected an absolute URL such as https://example.com/pay?order=1, with special characters percent-encoded"
    )
}
