//! What a round begins with: a snapshot, and the answers the client sent.

use super::task::{TaskState, fits};
use crate::Trace;
use crate::journal::{Elicited, Entry, FlowId, Held, Snapshot};
use refrain_wire::{AnswerError, Answers, TraceContext, read_answer};
use std::sync::Arc;

/// Where a round begins.
#[derive(Debug)]
pub struct Start {
    pub(crate) snapshot: Snapshot,
    /// Answers to a first request, which no token speaks of: used where an ask of that name is made.
    pub(crate) loose: Vec<(Box<str>, Arc<str>)>,
    pub(crate) trace: Trace,
    /// There if the flow's home is a store.
    pub(crate) task: Option<Box<TaskState>>,
}

/// Why a round cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// An answer has not the shape that its ask calls for.
    #[error("inputResponses[{key:?}]: {source}")]
    Shape {
        /// The key of the answer.
        key: String,
        /// What is wrong with it.
        source: AnswerError,
    },
}

impl Start {
    /// The flow that goes on.
    pub fn flow(&self) -> FlowId {
        self.snapshot.flow()
    }

    /// When the flow must be over, in seconds since 1970.
    pub fn deadline(&self) -> u64 {
        self.snapshot.deadline
    }

    /// The number of the round that begins, counted from 1.
    pub fn round(&self) -> u32 {
        self.snapshot.round()
    }

    /// The first round of a flow. Answers that came with it are used where the handler asks under their keys.
    pub fn first(snapshot: Snapshot, answers: Option<&Answers<'_>>) -> Self {
        let loose = answers.map_or_else(Vec::new, |answers| {
            answers
                .0
                .iter()
                .map(|(key, raw)| (key.as_ref().into(), raw.get().into()))
                .collect()
        });
        let trace = Trace::new(snapshot.flow, snapshot.round, snapshot.trace);
        Self {
            snapshot,
            loose,
            trace,
            task: None,
        }
    }

    /// A task taken up again, with the answers that are not in its journal yet, in the order in which they were asked for.
    /// Keys that were not asked are ignored.
    pub fn task(mut snapshot: Snapshot, answers: &[(String, String)]) -> Self {
        let kept = snapshot.entries.len();
        let (mut open, mut taken) = (Vec::new(), Vec::new());
        for asked in std::mem::take(&mut snapshot.asked) {
            let answered = answers.iter().find(|(key, _)| **key == *asked.wire_key);
            let Some((key, json)) = answered else {
                open.push(asked);
                continue;
            };
            taken.push(key.clone());
            if fits(&asked, json) {
                let held = Held::Value(json.as_str().into());
                let entry = Entry::new(asked.key, asked.fingerprint, held);
                snapshot.entries.push(entry);
            }
        }
        let used = std::mem::take(&mut snapshot.used);
        let trace = Trace::new(snapshot.flow, snapshot.round, snapshot.trace);
        Self {
            snapshot,
            loose: Vec::new(),
            trace,
            task: Some(Box::new(TaskState::resumed(kept, open, taken, used))),
        }
    }

    /// A later round: the answers to what was asked enter the journal in the order they were asked.
    /// Keys that were not asked are ignored; what is missing will be asked again.
    pub fn resumed(
        mut snapshot: Snapshot,
        answers: Option<&Answers<'_>>,
    ) -> Result<Self, StartError> {
        for asked in std::mem::take(&mut snapshot.asked) {
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
            snapshot.entries.push(entry);
        }
        let trace = Trace::new(snapshot.flow, snapshot.round, snapshot.trace);
        Ok(Self {
            snapshot,
            loose: Vec::new(),
            trace,
            task: None,
        })
    }

    /// Has the flow live until this time at least, in seconds since 1970.
    pub fn live_until(&mut self, deadline: u64) {
        self.snapshot.deadline = self.snapshot.deadline.max(deadline);
    }

    /// Takes in what the round's request says about the trace it belongs to.
    pub fn receive_trace(&mut self, context: &TraceContext<'_>) {
        self.trace.receive(context);
    }

    /// The trace the round belongs to.
    pub fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }
}
