//! What comes out of a flow: results, asks, notes and faults.

use crate::Form;
use crate::journal::Snapshot;
use refrain_wire::{Ask, LogLevel, ResultBody, SamplingParams};
use std::borrow::Cow;
use std::time::SystemTime;

/// A mistake of the author, or a limit passed: it ends the call, and the handler cannot swallow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What was wrong, where, and what to do.
    pub message: String,
    /// Is the client's answer at fault, rather than the handler?
    pub bad_answer: bool,
}

/// Something a handler wants the client to hear while it works.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// How far the work is.
    Progress {
        /// How much is done.
        done: f64,
        /// How much there is to do, if known.
        total: Option<f64>,
        /// What is being done.
        message: Option<String>,
    },
    /// A log message.
    Log {
        /// How severe it is.
        level: LogLevel,
        /// What it says.
        data: serde_json::Value,
    },
}

/// What a handler returned.
#[derive(Debug)]
pub enum Outcome {
    /// The result of the call.
    Complete(ResultBody),
    /// More is needed first, in the explicit style.
    Incomplete(Incomplete),
}

/// An incomplete reply in the explicit style: asks and a state of the handler's own.
///
/// ```
/// # use refrain_core::Incomplete;
/// let reply = Incomplete::new().roots("where").state(&7)?;
/// # let _ = reply;
/// # Ok::<(), refrain_core::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Incomplete {
    pub(crate) asks: Vec<(Cow<'static, str>, Ask, u64)>,
    pub(crate) state: Option<Box<str>>,
}

impl Incomplete {
    /// A reply without asks and without state; add at least one of them.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for a form to be filled in.
    pub fn form(
        self,
        key: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
        form: &Form,
    ) -> Self {
        let ask = Ask::Form {
            message: message.into(),
            schema: form.json().clone(),
        };
        self.ask(key, ask, form.fingerprint())
    }

    /// Asks for a URL to be opened.
    pub fn url(
        self,
        key: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
        url: impl Into<String>,
    ) -> Self {
        let ask = Ask::Url {
            message: message.into(),
            url: url.into(),
        };
        self.ask(key, ask, 0)
    }

    /// Asks for a message from a model.
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

    /// Sends a state of the handler's own along, sealed; read it back with `cx.state()`.
    pub fn state(mut self, state: &impl serde::Serialize) -> crate::Result<Self> {
        self.state = Some(serde_json::to_string(state)?.into());
        Ok(self)
    }
}

/// A flow set down: what to ask, and what to seal.
#[derive(Debug)]
#[must_use = "seal the snapshot and send the asks"]
pub struct Cut {
    /// The asks that go out, under their wire keys.
    pub asks: Vec<(String, Ask)>,
    /// The flow as it is to be taken up again.
    pub snapshot: Snapshot,
    /// Was the flow handed on because the instance wanted to be rid of it?
    pub shed: bool,
}

/// What a task has come to, to be written into its store. All of it or nothing is to be written.
#[derive(Debug)]
#[must_use = "write it to the store, then call Flow::written"]
pub struct Write {
    /// The flow as it is to be taken up again.
    pub snapshot: Snapshot,
    /// Asks that are new, under keys that were never used in this task.
    pub asks: Vec<(String, Ask)>,
    /// Keys whose answers are in the snapshot.
    pub taken: Vec<String>,
    /// Keys that need no answer any more.
    pub withdrawn: Vec<String>,
    /// Is there anything in it that was not written before? If not, the task has not got on.
    pub progress: bool,
    /// How the task goes on.
    pub then: Then,
}

/// How a task goes on after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The handler has more to do: call [`Flow::written`](crate::Flow::written) and poll again.
    GoOn,
    /// Nothing but asks and sleeps is left. The flow can be dropped, until an answer comes or the time of the first sleep.
    Rest {
        /// When the first sleep ends.
        wake: Option<SystemTime>,
        /// May something else still be at work, that cannot be seen from here?
        perhaps_more: bool,
    },
    /// The flow was set down to be handed on, and is over here.
    HandOn,
}

/// What one round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Entries that were replayed from the journal or answered by this request.
    pub replayed: u32,
    /// Steps that ran.
    pub steps: u32,
}

/// Is this a URI of RFC 3986: a scheme, and after it only characters that a URI may have?
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

/// What is said of an ask whose URL is none. Not the URL itself: it may be meant for the user only.
pub(crate) fn no_url(name: &str) -> String {
    format!(
        "the URL of {name:?} is not a whole URL, such as https://example.com/pay?order=1; encode what cannot stand in one"
    )
}
