//! What a flow has so far, and what of it travels in a token.
//!
//! An entry is kept under its [`Key`]: where it was made (scope), what made it (kind), its name, and how many uses
//! of that name came before it (ordinal). Entries stay in the order in which the handler saw them.

use crate::Form;
use refrain_wire::{Action, AskKind, ElicitAnswer, Traceparent};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use strum::IntoStaticStr;

/// The identity of a flow: the same in every round, on every instance.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FlowId(pub(crate) [u8; 16]);

impl FlowId {
    /// A flow id of these bytes. They must be unique across the fleet.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes of the id.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlowId({self})")
    }
}

/// What made an entry. Their order is part of the token's format: new ones go to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Kind {
    Form,
    Url,
    Sampling,
    Roots,
    Step,
    Once,
    Check,
    Now,
    Random,
    Sleep,
    Woke,
}

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        self.into()
    }

    pub(crate) const fn ask(self) -> Option<AskKind> {
        match self {
            Self::Form => Some(AskKind::Form),
            Self::Url => Some(AskKind::Url),
            Self::Sampling => Some(AskKind::Sampling),
            Self::Roots => Some(AskKind::Roots),
            _ => None,
        }
    }
}

impl From<AskKind> for Kind {
    fn from(kind: AskKind) -> Self {
        match kind {
            AskKind::Form => Self::Form,
            AskKind::Url => Self::Url,
            AskKind::Sampling => Self::Sampling,
            AskKind::Roots => Self::Roots,
        }
    }
}

/// Where an entry belongs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) scope: Option<Arc<str>>,
    pub(crate) kind: Kind,
    pub(crate) name: Cow<'static, str>,
    pub(crate) ordinal: u32,
}

impl Key {
    /// The same name in the same scope, whatever its ordinal.
    pub(crate) fn same_name(&self, other: &Self) -> bool {
        self.kind == other.kind && self.name == other.name && self.scope == other.scope
    }

    /// Never the same for two keys of one kind, whatever their scopes and names are made of.
    pub(crate) fn unique(&self) -> String {
        let (name, ordinal) = (&self.name, self.ordinal);
        match &self.scope {
            Some(scope) => format!("{}:{scope}/{name}#{ordinal}", scope.len()),
            // A scope with an empty name is not the same as none.
            None => format!(":{name}#{ordinal}"),
        }
    }

    /// `scope/name#ordinal`, for people to read; the first of a name has no number.
    pub(crate) fn full(&self) -> String {
        let mut full = match &self.scope {
            Some(scope) => format!("{scope}/{}", self.name),
            None => self.name.to_string(),
        };
        if self.ordinal > 1 {
            full.push_str(&format!("#{}", self.ordinal));
        }
        full
    }
}

/// What an entry holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Held {
    /// An answer as it came, or a step's value, as JSON.
    Value(Arc<str>),
    /// A step's error or an `AskError`, as JSON.
    Failure(Arc<str>),
}

impl Held {
    pub(crate) fn json(&self) -> &Arc<str> {
        match self {
            Self::Value(json) | Self::Failure(json) => json,
        }
    }
}

/// One thing a flow was told or did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    /// Which schema was asked for; 0 where there is none.
    pub(crate) fingerprint: u64,
    pub(crate) held: Held,
    /// Has the handler of this run seen it?
    #[serde(skip)]
    pub(crate) delivered: bool,
    /// An answer that did not fit: out of the journal, its place kept until the round ends.
    #[serde(skip)]
    pub(crate) void: bool,
    /// The parts of an answer that arrived in this round.
    #[serde(skip)]
    pub(crate) elicited: Option<Elicited>,
}

/// The action of an answer to a form or a URL, and where in its text the content is.
#[derive(Clone, Debug)]
pub(crate) struct Elicited {
    pub(crate) action: Action,
    pub(crate) content: Option<Range<usize>>,
}

impl Elicited {
    /// The parts of an answer that was read from this text.
    pub(crate) fn find(answer: &ElicitAnswer<'_>, text: &str) -> Self {
        let content = answer.content.map(|content| {
            let start = content.get().as_ptr().addr() - text.as_ptr().addr();
            start..start + content.get().len()
        });
        let action = answer.action;
        Self { action, content }
    }
}

impl Entry {
    pub(crate) fn new(key: Key, fingerprint: u64, held: Held) -> Self {
        Self {
            key,
            fingerprint,
            held,
            delivered: false,
            void: false,
            elicited: None,
        }
    }
}

/// An ask of the round that was cut: under which key the client will answer it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) wire_key: Box<str>,
    pub(crate) key: Key,
    pub(crate) fingerprint: u64,
}

/// An ask whose answers did not fit so far.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Retry {
    pub(crate) key: Key,
    pub(crate) fingerprint: u64,
    pub(crate) count: u32,
    pub(crate) reason: Box<str>,
}

/// The latest state of a computation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Saved {
    pub(crate) scope: Option<Arc<str>>,
    pub(crate) name: Cow<'static, str>,
    pub(crate) json: Box<str>,
}

/// A flow between two rounds: all that is needed to take it up again.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(crate) flow: FlowId,
    pub(crate) round: u32,
    pub(crate) sheds: u32,
    pub(crate) deadline: u64,
    pub(crate) asked: Vec<Asked>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) retries: Vec<Retry>,
    pub(crate) saved: Vec<Saved>,
    pub(crate) state: Option<Box<str>>,
    /// The trace context that the first round came with.
    pub(crate) trace: Option<Traceparent>,
    /// In a task, every key that was asked under.
    pub(crate) used: Vec<Box<str>>,
}

impl Snapshot {
    /// A flow that has not run yet. `deadline` is in seconds since 1970: no round is served after it.
    pub fn first(flow: FlowId, deadline: u64) -> Self {
        Self {
            flow,
            round: 1,
            sheds: 0,
            deadline,
            asked: Vec::new(),
            entries: Vec::new(),
            retries: Vec::new(),
            saved: Vec::new(),
            state: None,
            trace: None,
            used: Vec::new(),
        }
    }

    /// The same flow, as its round of this number begins.
    pub fn at_round(mut self, round: u32) -> Self {
        self.round = round;
        self
    }

    /// The flow's id.
    pub fn flow(&self) -> FlowId {
        self.flow
    }

    /// The number of the round that this snapshot starts, counted from 1.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// The keys of the asks that have no answer.
    pub fn asked(&self) -> impl Iterator<Item = &str> {
        self.asked.iter().map(|asked| &*asked.wire_key)
    }

    /// How many entries the journal has.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Is the journal empty?
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The largest part of the journal: its name and its size in bytes.
    pub fn largest(&self) -> Option<(String, usize)> {
        let entries = self
            .entries
            .iter()
            .map(|e| (e.key.full(), e.held.json().len()));
        let saved = self
            .saved
            .iter()
            .map(|s| (format!("checkpoint {}", s.name), s.json.len()));
        let state = self
            .state
            .iter()
            .map(|s| ("the handler's own state".to_owned(), s.len()));
        entries
            .chain(saved)
            .chain(state)
            .max_by_key(|(_, size)| *size)
    }

    /// The journal in its binary form, with the claims of a token before it, written after `prefix`. `spare` bytes
    /// are kept free for what will be added.
    pub fn encode(&self, claims: &Claims<'_>, prefix: &[u8], spare: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(prefix.len() + self.size_hint() + spare);
        bytes.extend_from_slice(prefix);
        postcard::to_extend(&self.wire(claims), bytes).expect("a vector takes any number of bytes")
    }

    /// Writes what [`encode`](Self::encode) does, without the prefix, to a buffer. `None` if it does not fit.
    pub(crate) fn encode_to_slice(&self, claims: &Claims<'_>, out: &mut [u8]) -> Option<usize> {
        if self.size_hint() > out.len() {
            return None;
        }
        let written = postcard::to_slice(&self.wire(claims), out).ok()?;
        Some(written.len())
    }

    /// About how many bytes the binary form has.
    fn size_hint(&self) -> usize {
        let held = self.entries.iter().map(|e| e.held.json().len() + 32);
        128 + held.sum::<usize>()
    }

    fn wire<'a>(&'a self, claims: &Claims<'a>) -> impl Serialize + use<'a> {
        Wire {
            flow: self.flow,
            issued: claims.issued,
            expires: claims.expires,
            deadline: self.deadline,
            version: claims.version,
            round: self.round,
            sheds: self.sheds,
            asked: &self.asked,
            entries: &self.entries,
            retries: &self.retries,
            saved: &self.saved,
            state: &self.state,
            trace: self.trace,
            used: &self.used,
        }
    }

    /// Reads what [`Snapshot::encode`] wrote. `None` if it is anything else, bytes left over included.
    pub fn decode(bytes: &[u8]) -> Option<(Claims<'_>, Self)> {
        let (wire, rest): (OwnedWire<'_>, &[u8]) = postcard::take_from_bytes(bytes).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let claims = Claims {
            issued: wire.issued,
            expires: wire.expires,
            version: wire.version,
        };
        let snapshot = Self {
            flow: wire.flow,
            round: wire.round,
            sheds: wire.sheds,
            deadline: wire.deadline,
            asked: wire.asked,
            entries: wire.entries,
            retries: wire.retries,
            saved: wire.saved,
            state: wire.state,
            trace: wire.trace,
            used: wire.used,
        };
        Some((claims, snapshot))
    }
}

/// What a token says about itself, beside the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims<'a> {
    /// When it was sealed, in seconds since 1970.
    pub issued: u64,
    /// When it stops being accepted, in seconds since 1970.
    pub expires: u64,
    /// The version of the tool that sealed it.
    pub version: &'a str,
}

/// The binary form. The order of the fields is the token's format.
#[derive(Serialize, Deserialize)]
struct Wire<'a, Asks, Entries, Retries, States, Own, Used> {
    flow: FlowId,
    issued: u64,
    expires: u64,
    deadline: u64,
    version: &'a str,
    round: u32,
    sheds: u32,
    asked: Asks,
    entries: Entries,
    retries: Retries,
    saved: States,
    state: Own,
    trace: Option<Traceparent>,
    used: Used,
}

/// As it is read.
type OwnedWire<'a> =
    Wire<'a, Vec<Asked>, Vec<Entry>, Vec<Retry>, Vec<Saved>, Option<Box<str>>, Vec<Box<str>>>;

/// The fingerprint under which the answer to an ask is kept.
pub(crate) fn fingerprint(form: Option<&Form>) -> u64 {
    form.map_or(0, Form::fingerprint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_keep_their_numbers_in_tokens() {
        let kinds = [
            Kind::Form,
            Kind::Url,
            Kind::Sampling,
            Kind::Roots,
            Kind::Step,
            Kind::Once,
            Kind::Check,
            Kind::Now,
            Kind::Random,
            Kind::Sleep,
            Kind::Woke,
        ];
        for (number, kind) in (0u8..).zip(kinds) {
            assert_eq!(postcard::to_allocvec(&kind).unwrap(), [number]);
            assert_eq!(postcard::from_bytes::<Kind>(&[number]).unwrap(), kind);
        }
        assert!(postcard::from_bytes::<Kind>(&[11]).is_err());
    }
}
