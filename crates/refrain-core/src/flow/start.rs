//! The start of a round: a snapshot and the client's answers.

use super::task::{PublishState, has_valid_shape};
use crate::Trace;
use crate::journal::{Entry, FlowId, ParsedElicitation, Snapshot, StoredOutcome};
use refrain_wire::{AnswerError, Answers, Excerpt, TraceContext, read_answer};
use std::sync::Arc;

/// The start of a round.
#[derive(Debug)]
pub struct Start {
    pub(crate) snapshot: Snapshot,
    /// Answers that came with a first request. Each is used when the handler makes an ask with its key.
    pub(crate) early_answers: Vec<(Box<str>, Arc<str>)>,
    pub(crate) trace: Trace,
    /// Whether another request can run this round too: with the same token, or with the same call id.
    pub(crate) is_repeatable: bool,
    /// Present if the flow's home is a store or memory.
    pub(crate) publishing: Option<Box<PublishState>>,
}

/// Why a round cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// An answer does not have the shape that its ask requires.
    #[error("inputResponses[{:?}]: {source}", Excerpt(key))]
    Shape {
        /// The key of the answer.
        key: String,
        /// The mismatch.
        source: AnswerError,
    },
}

impl Start {
    /// Returns the id of the flow.
    pub fn flow(&self) -> FlowId {
        self.snapshot.flow()
    }

    /// Returns the deadline of the flow, in seconds since 1970.
    pub fn deadline(&self) -> u64 {
        self.snapshot.deadline
    }

    /// Returns the number of the round, counted from 1.
    pub fn round(&self) -> u32 {
        self.snapshot.round()
    }

    #[inline]
    fn new(snapshot: Snapshot) -> Self {
        let (round, origin) = (snapshot.journal.round, snapshot.journal.trace);
        Self {
            trace: Trace::new(snapshot.flow, round, origin),
            snapshot,
            early_answers: Vec::new(),
            is_repeatable: true,
            publishing: None,
        }
    }

    /// The first round of a flow. An answer is used when the handler makes an ask with its key.
    #[inline]
    pub fn first(snapshot: Snapshot, answers: Option<&Answers<'_>>) -> Self {
        let mut start = Self::new(snapshot);
        if let Some(answers) = answers {
            let answers = answers.iter();
            let early = answers.map(|(key, raw)| (key.as_ref().into(), raw.get().into()));
            start.early_answers = early.collect();
        }
        start
    }

    /// Marks a first round without a call id: no other request can run it. Every later round gets the outcomes of `once`
    /// from its token, so the replay log keeps them only if the call can become a task.
    #[inline]
    pub fn unrepeatable(mut self) -> Self {
        self.is_repeatable = false;
        self
    }

    /// A resumed task, with the answers that are not in its journal yet. Answers are added in the order of their asks.
    /// Unknown keys are ignored. A malformed answer is dropped, and its ask is made again.
    pub fn task(mut snapshot: Snapshot, answers: &[(String, String)]) -> Self {
        let journal = &mut snapshot.journal;
        let written = journal.entries.len();
        let (mut open, mut taken) = (Vec::new(), Vec::new());
        for mut ask in std::mem::take(&mut journal.open_asks) {
            let answered = answers.iter().find(|(key, _)| **key == *ask.wire_key);
            let Some((key, json)) = answered else {
                ask.current_run = false;
                open.push(ask);
                continue;
            };
            taken.push(key.clone());
            if has_valid_shape(&ask, json) {
                let value = StoredOutcome::Value(json.as_str().into());
                let entry = Entry::new(ask.key, ask.fingerprint, value);
                journal.entries.push(entry);
            }
        }
        let mut start = Self::new(snapshot);
        let publishing = PublishState {
            written,
            published: open,
            taken,
            ..PublishState::default()
        };
        start.publishing = Some(publishing.into());
        start
    }

    /// A later round. Answers are added to the journal in the order of their asks; unknown keys are ignored, and asks
    /// without an answer are sent again.
    pub fn resumed(
        mut snapshot: Snapshot,
        answers: Option<&Answers<'_>>,
    ) -> Result<Self, StartError> {
        for ask in std::mem::take(&mut snapshot.journal.open_asks) {
            let Some(raw) = answers.and_then(|answers| answers.get(&ask.wire_key)) else {
                continue;
            };
            let answer = match ask.key.kind.ask() {
                Some(kind) => read_answer(kind, raw).map_err(|source| StartError::Shape {
                    key: ask.wire_key.to_string(),
                    source,
                })?,
                None => None,
            };
            let value = StoredOutcome::Value(raw.get().into());
            let mut entry = Entry::new(ask.key, ask.fingerprint, value);
            entry.parsed = answer.map(|answer| ParsedElicitation::locate(&answer, raw.get()));
            snapshot.journal.entries.push(entry);
        }
        Ok(Self::new(snapshot))
    }

    /// Moves the deadline of the flow to this time, in seconds since 1970, if that is later.
    pub fn extend_deadline(&mut self, deadline: u64) {
        self.snapshot.deadline = self.snapshot.deadline.max(deadline);
    }

    /// Takes the trace context of the round's request.
    pub fn receive_trace(&mut self, context: &TraceContext<'_>) {
        self.trace.receive(context);
    }

    /// Returns the trace of the round.
    pub fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }
}
