//! The journal of a flow, and its binary form in a token.
//!
//! The key of an entry consists of scope, kind and name, and an ordinal that counts the uses of that name. Entries are in
//! the order in which they are delivered to the handler, in every run.

use crate::AskError;
use postcard::ser_flavors::Size;
use refrain_wire::{Action, AskKind, ElicitAnswer, Traceparent};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use strum::IntoStaticStr;

/// The id of a flow, the same in every round and on every instance.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FlowId(pub(crate) [u8; 16]);

impl FlowId {
    /// Makes a flow id from bytes that are unique across the fleet.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Makes a flow id from the first 16 bytes of a digest.
    pub(crate) fn from_digest(digest: &[u8]) -> Self {
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        Self(id)
    }

    /// Returns the bytes of the id.
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

/// The kind of an operation. The order is part of the token format: add new kinds at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum OperationKind {
    Form,
    Url,
    Sampling,
    Roots,
    Step,
    Once,
    /// The check of a URL ask.
    Check,
    Now,
    Random,
    /// The time at which a sleep ends.
    Sleep,
    /// The end of a sleep.
    Woke,
}

impl OperationKind {
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

impl From<AskKind> for OperationKind {
    fn from(kind: AskKind) -> Self {
        match kind {
            AskKind::Form => Self::Form,
            AskKind::Url => Self::Url,
            AskKind::Sampling => Self::Sampling,
            AskKind::Roots => Self::Roots,
        }
    }
}

/// The key of an entry within its flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntryKey {
    pub(crate) scope: Option<Arc<str>>,
    pub(crate) kind: OperationKind,
    pub(crate) name: Cow<'static, str>,
    pub(crate) ordinal: u32,
}

impl EntryKey {
    /// Makes a key without an ordinal.
    pub(crate) fn new(
        scope: Option<&Arc<str>>,
        kind: OperationKind,
        name: Cow<'static, str>,
    ) -> Self {
        Self {
            scope: scope.cloned(),
            kind,
            name,
            ordinal: 0,
        }
    }

    /// Compares kind, name and scope, but not the ordinal.
    pub(crate) fn same_name(&self, other: &Self) -> bool {
        self.kind == other.kind && self.name == other.name && self.scope == other.scope
    }

    /// A string that is unique among the keys of one kind.
    pub(crate) fn unique_name(&self) -> String {
        let (name, ordinal) = (&self.name, self.ordinal);
        match &self.scope {
            Some(scope) => format!("{}:{scope}/{name}#{ordinal}", scope.len()),
            // Distinct from a scope with an empty name.
            None => format!(":{name}#{ordinal}"),
        }
    }

    /// The key as `scope/name#ordinal`, for messages and the wire. The ordinal 1 is omitted.
    pub(crate) fn qualified_name(&self) -> String {
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

/// The outcome stored in an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StoredOutcome {
    /// The client's answer or a step's value, as JSON.
    Value(Arc<str>),
    /// A step's error or an `AskError`, as JSON.
    Failure(Arc<str>),
}

impl StoredOutcome {
    pub(crate) fn json(&self) -> &Arc<str> {
        match self {
            Self::Value(json) | Self::Failure(json) => json,
        }
    }
}

impl From<&AskError> for StoredOutcome {
    fn from(error: &AskError) -> Self {
        let json = serde_json::to_string(error).expect("an AskError serializes to JSON");
        Self::Failure(json.into())
    }
}

/// The journal entry of an operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) key: EntryKey,
    /// The fingerprint of the ask's schema, or 0.
    pub(crate) fingerprint: u64,
    pub(crate) outcome: StoredOutcome,
    /// Whether the handler received it in this round.
    #[serde(skip)]
    pub(crate) delivered: bool,
    /// Whether the answer was rejected. The entry stays until the round ends, to keep the indices valid.
    #[serde(skip)]
    pub(crate) rejected: bool,
    /// The parsed answer, if it arrived in this round.
    #[serde(skip)]
    pub(crate) parsed: Option<ParsedElicitation>,
}

/// The action of an answer to a form or a URL, and the range of the content in its text.
#[derive(Clone, Debug)]
pub(crate) struct ParsedElicitation {
    pub(crate) action: Action,
    pub(crate) content: Option<Range<usize>>,
}

impl ParsedElicitation {
    /// Locates the content of an answer that was parsed from `text`.
    pub(crate) fn locate(answer: &ElicitAnswer<'_>, text: &str) -> Self {
        let content = answer.content.map(|content| {
            let start = content.get().as_ptr().addr() - text.as_ptr().addr();
            start..start + content.get().len()
        });
        let action = answer.action;
        Self { action, content }
    }
}

impl Entry {
    pub(crate) fn new(key: EntryKey, fingerprint: u64, outcome: StoredOutcome) -> Self {
        Self {
            key,
            fingerprint,
            outcome,
            delivered: false,
            rejected: false,
            parsed: None,
        }
    }
}

/// An open ask, and its key on the wire.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PendingAsk {
    pub(crate) wire_key: Box<str>,
    pub(crate) key: EntryKey,
    pub(crate) fingerprint: u64,
    /// Whether this run of the handler made the ask. Otherwise only an earlier run did.
    #[serde(skip)]
    pub(crate) current_run: bool,
}

/// The rejected answers to one ask.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Rejections {
    pub(crate) key: EntryKey,
    pub(crate) fingerprint: u64,
    pub(crate) count: u32,
    pub(crate) reason: Box<str>,
}

/// The latest state of a checkpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    pub(crate) scope: Option<Arc<str>>,
    pub(crate) name: Cow<'static, str>,
    pub(crate) json: Box<str>,
}

/// The journaled state of a flow. The order of the fields is the token format.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Journal {
    pub(crate) round: u32,
    /// How often the flow was handed on.
    pub(crate) sheds: u32,
    /// Empty while the flow runs.
    pub(crate) open_asks: Vec<PendingAsk>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) rejections: Vec<Rejections>,
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// The state of an incomplete reply in the explicit style.
    pub(crate) state: Option<Box<str>>,
    /// The trace context of the first round.
    pub(crate) trace: Option<Traceparent>,
    /// In a task, all wire keys used so far.
    pub(crate) used_wire_keys: Vec<Box<str>>,
}

/// The state of a flow between two rounds, from which it can be resumed.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(crate) flow: FlowId,
    pub(crate) deadline: u64,
    pub(crate) journal: Journal,
}

impl Snapshot {
    /// Makes the snapshot of a new flow. After `deadline`, in seconds since 1970, no round is served.
    pub fn first(flow: FlowId, deadline: u64) -> Self {
        let journal = Journal {
            round: 1,
            ..Journal::default()
        };
        Self::without_rejected(flow, deadline, journal)
    }

    /// Makes the snapshot of a running flow, without rejected answers.
    pub(crate) fn without_rejected(flow: FlowId, deadline: u64, mut journal: Journal) -> Self {
        journal.entries.retain(|entry| !entry.rejected);
        Self {
            flow,
            deadline,
            journal,
        }
    }

    /// Sets the number of the round.
    pub fn at_round(mut self, round: u32) -> Self {
        self.journal.round = round;
        self
    }

    /// Returns the flow's id.
    pub fn flow(&self) -> FlowId {
        self.flow
    }

    /// Returns the number of the next round, counted from 1.
    pub fn round(&self) -> u32 {
        self.journal.round
    }

    /// Returns the wire keys of the open asks.
    pub fn open_keys(&self) -> impl Iterator<Item = &str> {
        self.journal.open_asks.iter().map(|ask| &*ask.wire_key)
    }

    /// Returns the number of journal entries.
    pub fn entry_count(&self) -> usize {
        self.journal.entries.len()
    }

    /// Returns the name and size in bytes of the largest part of the journal.
    pub fn largest_part(&self) -> Option<(String, usize)> {
        let journal = &self.journal;
        let entries = journal.entries.iter();
        let entries = entries.map(|e| (e.key.qualified_name(), e.outcome.json().len()));
        let checkpoints = journal.checkpoints.iter();
        let checkpoints = checkpoints.map(|c| (format!("checkpoint {}", c.name), c.json.len()));
        let state = journal.state.iter();
        let state = state.map(|state| ("the handler's state".to_owned(), state.len()));
        let parts = entries.chain(checkpoints).chain(state);
        parts.max_by_key(|(_, size)| *size)
    }

    /// Encodes the claims and the journal after `prefix`, with capacity for `spare` more bytes.
    pub fn encode(&self, claims: &Claims<'_>, prefix: &[u8], spare: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(prefix.len() + self.encoded_len(claims) + spare);
        bytes.extend_from_slice(prefix);
        postcard::to_extend(&self.to_wire(claims), bytes)
            .expect("a journal can be encoded into a vector")
    }

    /// Like [`encode`](Self::encode) without a prefix, into a buffer. `None`: it does not fit.
    pub(crate) fn encode_to_slice(&self, claims: &Claims<'_>, out: &mut [u8]) -> Option<usize> {
        if self.size_hint() > out.len() {
            return None;
        }
        let written = postcard::to_slice(&self.to_wire(claims), out).ok()?;
        Some(written.len())
    }

    /// The size of the output of [`encode`](Self::encode) without a prefix.
    pub(crate) fn encoded_len(&self, claims: &Claims<'_>) -> usize {
        postcard::serialize_with_flavor(&self.to_wire(claims), Size::default())
            .expect("a journal can be encoded")
    }

    /// The estimated size of the binary form.
    fn size_hint(&self) -> usize {
        let entries = self.journal.entries.iter();
        let sizes = entries.map(|e| e.outcome.json().len() + 32);
        128 + sizes.sum::<usize>()
    }

    fn to_wire<'a>(&'a self, claims: &Claims<'a>) -> (Header<'a>, &'a Journal) {
        let (issued, expires) = (claims.issued, claims.expires);
        let header = (self.flow, issued, expires, self.deadline, claims.version);
        (header, &self.journal)
    }

    /// Decodes the output of [`Snapshot::encode`]. `None`: it is malformed or has trailing bytes.
    pub fn decode(bytes: &[u8]) -> Option<(Claims<'_>, Self)> {
        let ((header, journal), rest): ((Header<'_>, Journal), _) =
            postcard::take_from_bytes(bytes).ok()?;
        let (flow, issued, expires, deadline, version) = header;
        let claims = Claims {
            issued,
            expires,
            version,
        };
        let snapshot = Self {
            flow,
            deadline,
            journal,
        };
        rest.is_empty().then_some((claims, snapshot))
    }
}

/// The token's content before the journal: flow, issued, expires, deadline and tool version.
type Header<'a> = (FlowId, u64, u64, u64, &'a str);

/// The fields of a token, apart from the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims<'a> {
    /// The time of sealing, in seconds since 1970.
    pub issued: u64,
    /// The time of expiry, in seconds since 1970.
    pub expires: u64,
    /// The version of the tool that sealed the token.
    pub version: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_kinds_keep_their_token_numbers() {
        let kinds = [
            OperationKind::Form,
            OperationKind::Url,
            OperationKind::Sampling,
            OperationKind::Roots,
            OperationKind::Step,
            OperationKind::Once,
            OperationKind::Check,
            OperationKind::Now,
            OperationKind::Random,
            OperationKind::Sleep,
            OperationKind::Woke,
        ];
        for (number, kind) in (0u8..).zip(kinds) {
            assert_eq!(postcard::to_allocvec(&kind).unwrap(), [number]);
            assert_eq!(
                postcard::from_bytes::<OperationKind>(&[number]).unwrap(),
                kind
            );
        }
        assert!(postcard::from_bytes::<OperationKind>(&[11]).is_err());
    }
}
