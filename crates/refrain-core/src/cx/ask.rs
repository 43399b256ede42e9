//! Asks: operations that the client answers.

use super::Cx;
use crate::AskError;
use crate::flow::{FlowState, Phase, Poller, Shared, SlotGuard};
use crate::journal::{Entry, EntryKey, OperationKind, ParsedElicitation, StoredOutcome};
use crate::{Elicit, Form, span};
use refrain_wire::{
    Action, Ask, Capability, ElicitAnswer, Root, RootsAnswer, SamplingAnswer, SamplingParams,
    check_answer_shape, parse_value,
};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The outcome of a form; see [`Cx::ask`](crate::Cx::ask).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// The user filled in the form.
    Accepted(T),
    /// The user declined.
    Declined,
    /// The user closed the form without an answer.
    Cancelled,
}

/// The content of an ask.
pub(crate) enum Question {
    Form {
        message: Cow<'static, str>,
        form: Form,
    },
    Url {
        message: Cow<'static, str>,
        url: String,
    },
    Sampling(Box<SamplingParams>),
    Roots,
}

impl Question {
    pub(super) fn form(message: Cow<'static, str>, form: &Form) -> Self {
        let form = form.clone();
        Self::Form { message, form }
    }

    fn kind(&self) -> OperationKind {
        match self {
            Self::Form { .. } => OperationKind::Form,
            Self::Url { .. } => OperationKind::Url,
            Self::Sampling(_) => OperationKind::Sampling,
            Self::Roots => OperationKind::Roots,
        }
    }

    fn schema(&self) -> Option<&Form> {
        match self {
            Self::Form { form, .. } => Some(form),
            _ => None,
        }
    }

    /// The required capability, if the client does not support it.
    fn missing_capability(&self, shared: &Shared) -> Option<Capability> {
        let required = match self {
            Self::Form { .. } => Capability::Form,
            Self::Url { .. } => Capability::Url,
            Self::Sampling(params) => params.capability(),
            Self::Roots => Capability::Roots,
        };
        (!shared.env.capabilities.has(required)).then_some(required)
    }

    /// Builds the ask to send. `rejection` is the reason why the last answer was rejected.
    fn to_ask(&self, rejection: Option<&str>) -> Ask {
        let with_rejection = |message: &str| match rejection {
            Some(reason) => format!("{message}\n\nThe last answer was not accepted: {reason}."),
            None => message.to_owned(),
        };
        match self {
            Self::Form { message, form } => Ask::Form {
                message: with_rejection(message),
                schema: form.json().clone(),
            },
            Self::Url { message, url } => Ask::Url {
                message: with_rejection(message),
                url: url.clone(),
            },
            Self::Sampling(params) => Ask::Sampling(params.clone()),
            Self::Roots => Ask::Roots,
        }
    }
}

/// Why an answer has no value for the handler.
pub(super) enum DecodeError {
    /// The ask fails.
    Ask(AskError),
    /// The answer is rejected for this reason, and the client is asked again.
    Invalid(String),
}

impl<E: std::error::Error> From<E> for DecodeError {
    fn from(error: E) -> Self {
        Self::Invalid(error.to_string())
    }
}

type Decoded<T> = Result<T, DecodeError>;
type Decode<T> = fn(name: &str, form: Option<&Form>, answer: &RawAnswer) -> Decoded<T>;

/// An answer to decode.
pub(super) struct RawAnswer {
    json: Arc<str>,
    parsed: Option<ParsedElicitation>,
}

impl RawAnswer {
    /// The action and the content of an answer to a form or a URL.
    fn elicitation(&self) -> Decoded<(Action, Option<&str>)> {
        if let Some(ParsedElicitation { action, content }) = &self.parsed {
            return Ok((*action, content.clone().map(|content| &self.json[content])));
        }
        let answer: ElicitAnswer<'_> = serde_json::from_str(&self.json)?;
        Ok((answer.action, answer.content.map(RawValue::get)))
    }
}

/// The future of an ask. If it is dropped before its answer arrives, the ask is withdrawn.
#[must_use = "an ask does nothing until it is awaited"]
pub struct AskFuture<'a, T> {
    slot: SlotGuard<'a>,
    key: EntryKey,
    question: Question,
    fingerprint: u64,
    decode: Decode<T>,
    /// Whether to ignore answers to other schemas. Set after such an answer passed the schema check
    /// but did not decode.
    exact_schema: bool,
    /// Whether this poll opened the ask.
    just_opened: bool,
}

impl<'a, T> AskFuture<'a, T> {
    #[track_caller]
    pub(super) fn new(
        cx: &'a Cx,
        name: Cow<'static, str>,
        question: Question,
        decode: Decode<T>,
    ) -> Self {
        let (slot, key) = (cx.shared).open_slot(cx.scope.as_ref(), question.kind(), name);
        Self {
            slot,
            key,
            fingerprint: question.schema().map_or(0, Form::fingerprint),
            question,
            decode,
            exact_schema: false,
            just_opened: false,
        }
    }

    /// Finds the answer, or opens the ask. Returns the answer's entry when it is this ask's turn.
    fn find_or_open(
        &mut self,
        state: &mut FlowState,
        poller: Poller<'_>,
    ) -> Poll<(usize, StoredOutcome, Option<ParsedElicitation>)> {
        loop {
            let form = self.question.schema();
            let matches = |json: &str| !self.exact_schema && matches_schema(form, json);
            if let Some(index) = state.find_answer(&self.key, self.fingerprint, matches) {
                if !state.take_turn(self.slot.id, index, poller) {
                    return Poll::Pending;
                }
                let entry = &mut state.journal.entries[index];
                return Poll::Ready((index, entry.outcome.clone(), entry.parsed.take()));
            }
            let Some(outcome) = self.immediate_outcome(state) else {
                break;
            };
            let entry = Entry::new(self.key.clone(), self.fingerprint, outcome);
            let limit = self.slot.shared.env.limits.entries;
            if state.append(entry, limit).is_none() {
                return Poll::Pending;
            }
        }
        if !state.has_fault() {
            self.just_opened = self.open(state, poller);
        }
        Poll::Pending
    }

    /// The outcome of an ask that need not be sent: its answer came with the first request, or the client does not
    /// support the ask.
    fn immediate_outcome(&self, state: &mut FlowState) -> Option<StoredOutcome> {
        let is_first_use = self.key.ordinal == 1;
        let mut early = state.early_answers.iter();
        let early = early.position(|(key, _)| is_first_use && **key == *self.key.name);
        if let Some(index) = early {
            let (key, json) = state.early_answers.swap_remove(index);
            let kind = self.key.kind.ask()?;
            let raw: &RawValue = serde_json::from_str(&json).ok()?;
            if let Err(error) = check_answer_shape(kind, raw) {
                state.set_fault(format!("inputResponses[{key:?}]: {error}"), true);
                return None;
            }
            return Some(StoredOutcome::Value(json));
        }
        let unsupported = AskError::Unsupported {
            name: self.key.name.to_string(),
            capability: self.question.missing_capability(self.slot.shared)?,
        };
        Some((&unsupported).into())
    }

    /// Opens the ask. Returns whether it was not open yet.
    fn open(&self, state: &mut FlowState, poller: Poller<'_>) -> bool {
        let (id, fingerprint) = (self.slot.id, self.fingerprint);
        if let Some(slot) = state.slot(id)
            && matches!(slot.phase, Phase::Open { .. })
        {
            slot.set_poller(poller);
            return false;
        }
        let ask = self
            .question
            .to_ask(state.rejection(&self.key, fingerprint));
        let phase = Phase::Open {
            ask,
            wire_key: state.wire_key(id, &self.key, fingerprint),
            fingerprint,
        };
        state.wait_in(id, phase, poller);
        true
    }

    /// Rejects an answer. `Some`: the ask fails after too many rejected answers.
    fn reject(&mut self, state: &mut FlowState, index: usize, reason: String) -> Option<AskError> {
        if state.journal.entries[index].fingerprint != self.fingerprint {
            // The answer was given to another version of the handler, which may still need it.
            self.exact_schema = true;
            return None;
        }
        let count = state.reject(index, &reason);
        state.deliver(index);
        if count <= self.slot.shared.env.limits.retries {
            return None;
        }
        let error = AskError::Invalid {
            name: self.key.name.to_string(),
            reason,
        };
        let entry = &mut state.journal.entries[index];
        entry.outcome = (&error).into();
        entry.rejected = false;
        Some(error)
    }
}

impl<T> Future for AskFuture<'_, T> {
    type Output = Result<T, AskError>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let shared = this.slot.shared;
        let poller = shared.poller(task);
        loop {
            let found = match shared.enter() {
                Some(mut state) => this.find_or_open(&mut state, poller),
                None => {
                    let name = &this.key.name;
                    return shared.stopped(|| AskError::Ended {
                        name: name.to_string(),
                    });
                }
            };
            let Poll::Ready((index, outcome, parsed)) = found else {
                if std::mem::take(&mut this.just_opened) {
                    span::record_ask(shared, &this.key);
                }
                shared.wake_driver();
                return Poll::Pending;
            };
            // The handler's decoding runs without the lock.
            let decoded = match outcome {
                StoredOutcome::Value(json) => {
                    let answer = RawAnswer { json, parsed };
                    (this.decode)(&this.key.name, this.question.schema(), &answer)
                }
                StoredOutcome::Failure(json) => {
                    Err(DecodeError::Ask(read_failure(&this.key, &json)))
                }
            };
            let mut state = shared.lock();
            // The round has ended meanwhile: the next `enter` fails.
            if state.ended {
                continue;
            }
            let result = match decoded {
                Ok(value) => Ok(value),
                Err(DecodeError::Ask(error)) => Err(error),
                Err(DecodeError::Invalid(reason)) => match this.reject(&mut state, index, reason) {
                    Some(error) => Err(error),
                    None => continue,
                },
            };
            state.deliver(index);
            drop(state);
            this.slot.close();
            return Poll::Ready(result);
        }
    }
}

fn read_failure(key: &EntryKey, json: &str) -> AskError {
    serde_json::from_str(json).unwrap_or_else(|_| AskError::Invalid {
        name: key.name.to_string(),
        reason: "its journal entry was written by an incompatible version".into(),
    })
}

/// Returns whether an answer that was given to another schema is valid for this form.
fn matches_schema(form: Option<&Form>, json: &str) -> bool {
    let Some(form) = form else { return true };
    match serde_json::from_str::<ElicitAnswer<'_>>(json) {
        Ok(answer) if answer.action == Action::Accept => answer
            .content
            .and_then(|content| parse_value(content.get()).ok())
            .is_some_and(|content| form.check(&content).is_ok()),
        // A decline or a cancel matches every schema.
        Ok(_) => true,
        Err(_) => false,
    }
}

pub(super) fn decode_outcome<T: DeserializeOwned>(
    _name: &str,
    form: Option<&Form>,
    answer: &RawAnswer,
) -> Decoded<Answer<T>> {
    let (action, content) = answer.elicitation()?;
    match action {
        Action::Decline => return Ok(Answer::Declined),
        Action::Cancel => return Ok(Answer::Cancelled),
        Action::Accept => {}
    }
    let Some(content) = content else {
        return Err(DecodeError::Invalid(
            "the accepted form has no content".into(),
        ));
    };
    let content = parse_value(content)?;
    if let Some(form) = form {
        form.check(&content)?;
    }
    Ok(Answer::Accepted(serde_json::from_value(content)?))
}

pub(super) fn decode_accepted<T: Elicit>(
    name: &str,
    form: Option<&Form>,
    answer: &RawAnswer,
) -> Decoded<T> {
    match decode_outcome(name, form, answer)? {
        Answer::Accepted(value) => Ok(value),
        Answer::Declined => Err(declined(name)),
        Answer::Cancelled => Err(cancelled(name)),
    }
}

pub(super) fn decode_consent(name: &str, _: Option<&Form>, answer: &RawAnswer) -> Decoded<()> {
    match answer.elicitation()?.0 {
        Action::Accept => Ok(()),
        Action::Decline => Err(declined(name)),
        Action::Cancel => Err(cancelled(name)),
    }
}

pub(super) fn decode_sampling(
    _: &str,
    _: Option<&Form>,
    answer: &RawAnswer,
) -> Decoded<SamplingAnswer> {
    Ok(serde_json::from_str(&answer.json)?)
}

pub(super) fn decode_roots(_: &str, _: Option<&Form>, answer: &RawAnswer) -> Decoded<Vec<Root>> {
    Ok(serde_json::from_str::<RootsAnswer>(&answer.json)?.roots)
}

fn declined(name: &str) -> DecodeError {
    DecodeError::Ask(AskError::Declined { name: name.into() })
}

fn cancelled(name: &str) -> DecodeError {
    DecodeError::Ask(AskError::Cancelled { name: name.into() })
}
