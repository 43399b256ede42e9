//! The start of a round: a snapshot, and the answers the client sent.

use super::task::{TaskState, fits};
use crate::Trace;
use crate::journal::{Elicited, Entry, FlowId, Held, Snapshot};
use refrain_wire::{AnswerError, Answers, TraceContext, read_answer};
use std::sync::Arc;

/// The start of a round.
#[derive(Debug)]
pub struct Start {
    pub(crate) snapshot: Snapshot,
    /// Answers that came with a first request, used when an ask of that name is made.
    pub(crate) loose: Vec<(Box<str>, Arc<str>)>,
    pub(crate) trace: Trace,
    /// Set if the flow's home is a store or memory.
    pub(crate) task: Option<Box<TaskState>>,
}

/// Why a round cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// An answer does not have the shape that its ask requires.
    #[error("inputResponses[{key:?}]: {source}")]
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

    /// Returns the end of the flow's life, in seconds since 1970.
    pub fn deadline(&self) -> u64 {
        self.snapshot.deadline
    }

    /// Returns the number of the round, counted from 1.
    pub fn round(&self) -> u32 {
        self.snapshot.round()
    }

    fn new(snapshot: Snapshot) -> Self {
        let (round, origin) = (snapshot.journal.round, snapshot.journal.trace);
        Self {
            trace: Trace::new(snapshot.flow, round, origin),
            snapshot,
            loose: Vec::new(),
            task: None,
        }
    }

    /// The first round of a flow. Its answers are used when the handler asks under their keys.
    pub fn first(snapshot: Snapshot, answers: Option<&Answers<'_>>) -> Self {
        let mut start = Self::new(snapshot);
        if let Some(answers) = answers {
            let answers = answers.0.iter();
            let loose = answers.map(|(key, raw)| (key.as_ref().into(), raw.get().into()));
            start.loose = loose.collect();
        }
        start
    }

    /// A resumed task, with the answers that are not in its journal yet. They enter in the order of their asks; unknown
    /// keys are ignored.
    pub fn task(mut snapshot: Snapshot, answers: &[(String, String)]) -> Self {
        let journal = &mut snapshot.journal;
        let kept = journal.entries.len();
        let (mut open, mut taken) = (Vec::new(), Vec::new());
        for mut asked in std::mem::take(&mut journal.asked) {
            let answered = answers.iter().find(|(key, _)| **key == *asked.wire_key);
            let Some((key, json)) = answered else {
                asked.made_here = false;
                open.push(asked);
                continue;
            };
            taken.push(key.clone());
            if fits(&asked, json) {
                let held = Held::Value(json.as_str().into());
                let entry = Entry::new(asked.key, asked.fingerprint, held);
                journal.entries.push(entry);
            }
        }
        let mut start = Self::new(snapshot);
        let task = TaskState {
            kept,
            published: open,
            taken,
            ..TaskState::default()
        };
        start.task = Some(task.into());
        start
    }

    /// A later round. Answers enter the journal in the order of their asks; unknown keys are ignored, and missing
    /// answers are asked for again.
    pub fn resumed(
        mut snapshot: Snapshot,
        answers: Option<&Answers<'_>>,
    ) -> Result<Self, StartError> {
        for asked in std::mem::take(&mut snapshot.journal.asked) {
            let Some(raw) = answers.and_then(|answers| answers.get(&asked.wire_key)) else {
                continue;
            };
            let answer = match asked.key.kind.ask() {
                Some(kind) => read_answer(kind, raw).map_err(|source| StartError::Shape {
                    key: asked.wire_key.to_string(),
                    source,
                })?,
                None => None,
            };
            let held = Held::Value(raw.get().into());
            let mut entry = Entry::new(asked.key, asked.fingerprint, held);
            entry.elicited = answer.map(|answer| Elicited::find(&answer, raw.get()));
            snapshot.journal.entries.push(entry);
        }
        Ok(Self::new(snapshot))
    }

    /// Extends the flow's life to at least this time, in seconds since 1970.
    pub fn live_until(&mut self, deadline: u64) {
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
