//! Asks: operations that the client answers.

use super::Cx;
use crate::AskError;
use crate::flow::{Phase, Poller, Shared, SlotGuard, State};
use crate::journal::{Elicited, Entry, Held, Key, Kind, fingerprint};
use crate::{Elicit, Form};
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

/// The outcome of a form.
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

    fn schema(&self) -> Option<&Form> {
        match self {
            Self::Form { form, .. } => Some(form),
            _ => None,
        }
    }

    /// The required capability, if the client lacks it.
    fn lacks(&self, shared: &Shared) -> Option<Capability> {
        let needs = match self {
            Self::Form { .. } => Capability::Form,
            Self::Url { .. } => Capability::Url,
            Self::Sampling(params) => params.capability(),
            Self::Roots => Capability::Roots,
        };
        (!shared.env.capabilities.has(needs)).then_some(needs)
    }

    /// Builds the ask to send; `refusal` is the reason why the last answer was rejected.
    fn to_ask(&self, refusal: Option<&str>) -> Ask {
        let worded = |message: &str| match refusal {
            Some(reason) => format!("{message}\n\nThe last answer was not accepted: {reason}."),
            None => message.to_owned(),
        };
        match self {
            Self::Form { message, form } => Ask::Form {
                message: worded(message),
                schema: form.json().clone(),
            },
            Self::Url { message, url } => Ask::Url {
                message: worded(message),
                url: url.clone(),
            },
            Self::Sampling(params) => Ask::Sampling(params.clone()),
            Self::Roots => Ask::Roots,
        }
    }
}

/// Why an answer has no value for the handler.
pub(super) enum Unusable {
    Error(AskError),
    /// The client is asked again, for this reason.
    Invalid(String),
}

impl<E: std::error::Error> From<E> for Unusable {
    fn from(error: E) -> Self {
        Self::Invalid(error.to_string())
    }
}

type Decoded<T> = Result<T, Unusable>;
type Decode<T> = fn(name: &str, form: Option<&Form>, given: &Given) -> Decoded<T>;

/// An answer to decode.
pub(super) struct Given {
    json: Arc<str>,
    elicited: Option<Elicited>,
}

impl Given {
    /// The action and the content of an answer to a form or a URL.
    fn elicited(&self) -> Decoded<(Action, Option<&str>)> {
        if let Some(Elicited { action, content }) = &self.elicited {
            return Ok((*action, content.clone().map(|content| &self.json[content])));
        }
        let answer: ElicitAnswer<'_> = serde_json::from_str(&self.json)?;
        Ok((answer.action, answer.content.map(RawValue::get)))
    }
}

/// An ask that waits for its answer. Dropped unanswered, it is not asked.
#[must_use = "an ask does nothing until it is awaited"]
pub struct AskFuture<'a, T> {
    slot: SlotGuard<'a>,
    key: Key,
    question: Question,
    fingerprint: u64,
    decode: Decode<T>,
    /// Ignore answers to another version's schema: one passed the schema check and did not decode.
    only_own: bool,
}

impl<'a, T> AskFuture<'a, T> {
    #[track_caller]
    pub(super) fn new(
        cx: &'a Cx,
        kind: Kind,
        name: Cow<'static, str>,
        question: Question,
        decode: Decode<T>,
    ) -> Self {
        let (slot, key) = cx.shared.open_slot(cx.scope.as_ref(), kind, name);
        Self {
            slot,
            key,
            fingerprint: fingerprint(question.schema()),
            question,
            decode,
            only_own: false,
        }
    }

    /// Finds the answer, or opens the ask. `Ready` is an entry whose turn it is.
    fn look(
        &mut self,
        state: &mut State,
        poller: Poller<'_>,
    ) -> Poll<(usize, Held, Option<Elicited>)> {
        loop {
            let form = self.question.schema();
            let fits = |json: &str| !self.only_own && content_fits(form, json);
            if let Some(index) = state.find_answer(&self.key, self.fingerprint, fits) {
                if !state.take_turn(self.slot.id, index, poller) {
                    return Poll::Pending;
                }
                let entry = &mut state.journal.entries[index];
                return Poll::Ready((index, entry.held.clone(), entry.elicited.take()));
            }
            let Some(held) = self.without_asking(state) else {
                break;
            };
            let entry = Entry::new(self.key.clone(), self.fingerprint, held);
            let limit = self.slot.shared.env.limits.entries;
            if state.append(entry, limit).is_none() {
                return Poll::Pending;
            }
        }
        if !state.fault_is_set() {
            self.open(state, poller);
        }
        Poll::Pending
    }

    /// The outcome of an ask that is not sent: its answer came with the first request, or the client lacks a capability.
    fn without_asking(&self, state: &mut State) -> Option<Held> {
        let first = self.key.ordinal == 1;
        let loose = state
            .loose
            .iter()
            .position(|(key, _)| first && **key == *self.key.name);
        if let Some(at) = loose {
            let (key, json) = state.loose.swap_remove(at);
            let kind = self.key.kind.ask()?;
            let raw: &RawValue = serde_json::from_str(&json).ok()?;
            if let Err(error) = check_answer_shape(kind, raw) {
                state.set_fault(format!("inputResponses[{key:?}]: {error}"), true);
                return None;
            }
            return Some(Held::Value(json));
        }
        let capability = self.question.lacks(self.slot.shared)?;
        Some(failure(&AskError::Unsupported {
            name: self.key.name.to_string(),
            capability,
        }))
    }

    fn open(&self, state: &mut State, poller: Poller<'_>) {
        let (id, fingerprint) = (self.slot.id, self.fingerprint);
        if let Some(slot) = state.slot(id)
            && matches!(slot.phase, Phase::Open { .. })
        {
            slot.wait_for(poller);
            return;
        }
        let ask = self.question.to_ask(state.refusal(&self.key, fingerprint));
        let phase = Phase::Open {
            ask,
            wire_key: state.wire_key(id, &self.key, fingerprint),
            fingerprint,
        };
        state.park(id, phase, poller);
    }

    /// Rejects an answer. `Some` after too many of them.
    fn refuse(&mut self, state: &mut State, index: usize, reason: String) -> Option<AskError> {
        if state.journal.entries[index].fingerprint != self.fingerprint {
            // It answers another version's question: keep it for that version.
            self.only_own = true;
            return None;
        }
        let count = state.refuse(index, &reason);
        state.deliver(index);
        if count <= self.slot.shared.env.limits.retries {
            return None;
        }
        let error = AskError::Invalid {
            name: self.key.name.to_string(),
            reason,
        };
        let entry = &mut state.journal.entries[index];
        entry.held = failure(&error);
        entry.void = false;
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
                Some(mut state) => this.look(&mut state, poller),
                None => {
                    let name = &this.key.name;
                    return shared.stopped(|| AskError::Over {
                        name: name.to_string(),
                    });
                }
            };
            let Poll::Ready((index, held, elicited)) = found else {
                shared.kick();
                return Poll::Pending;
            };
            // The author's decoding runs without the lock.
            let decoded = match held {
                Held::Value(json) => {
                    let given = Given { json, elicited };
                    (this.decode)(&this.key.name, this.question.schema(), &given)
                }
                Held::Failure(json) => Err(Unusable::Error(read_failure(&this.key, &json))),
            };
            let mut state = shared.lock();
            if state.ended {
                continue;
            }
            let result = match decoded {
                Ok(value) => Ok(value),
                Err(Unusable::Error(error)) => Err(error),
                Err(Unusable::Invalid(reason)) => match this.refuse(&mut state, index, reason) {
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

fn failure(error: &AskError) -> Held {
    let json = serde_json::to_string(error).expect("an ask's error is plain strings");
    Held::Failure(json.into())
}

fn read_failure(key: &Key, json: &str) -> AskError {
    serde_json::from_str(json).unwrap_or_else(|_| AskError::Invalid {
        name: key.name.to_string(),
        reason: "its journal entry was written by a version that kept errors differently".into(),
    })
}

/// Returns whether an answer to another schema fits this one.
fn content_fits(form: Option<&Form>, json: &str) -> bool {
    let Some(form) = form else { return true };
    match serde_json::from_str::<ElicitAnswer<'_>>(json) {
        Ok(answer) if answer.action == Action::Accept => answer
            .content
            .and_then(|content| parse_value(content.get()).ok())
            .is_some_and(|content| form.check(&content).is_ok()),
        // A decline or cancel holds for every schema.
        Ok(_) => true,
        Err(_) => false,
    }
}

pub(super) fn outcome<T: DeserializeOwned>(
    _name: &str,
    form: Option<&Form>,
    given: &Given,
) -> Decoded<Answer<T>> {
    let (action, content) = given.elicited()?;
    match action {
        Action::Decline => return Ok(Answer::Declined),
        Action::Cancel => return Ok(Answer::Cancelled),
        Action::Accept => {}
    }
    let Some(content) = content else {
        return Err(Unusable::Invalid(
            "the form came back without content".into(),
        ));
    };
    let content = parse_value(content)?;
    if let Some(form) = form {
        form.check(&content)?;
    }
    Ok(Answer::Accepted(serde_json::from_value(content)?))
}

pub(super) fn accepted<T: Elicit>(name: &str, form: Option<&Form>, given: &Given) -> Decoded<T> {
    match outcome(name, form, given)? {
        Answer::Accepted(value) => Ok(value),
        Answer::Declined => Err(declined(name)),
        Answer::Cancelled => Err(cancelled(name)),
    }
}

pub(super) fn consent(name: &str, _: Option<&Form>, given: &Given) -> Decoded<()> {
    match given.elicited()?.0 {
        Action::Accept => Ok(()),
        Action::Decline => Err(declined(name)),
        Action::Cancel => Err(cancelled(name)),
    }
}

pub(super) fn sampled(_: &str, _: Option<&Form>, given: &Given) -> Decoded<SamplingAnswer> {
    Ok(serde_json::from_str(&given.json)?)
}

pub(super) fn roots(_: &str, _: Option<&Form>, given: &Given) -> Decoded<Vec<Root>> {
    Ok(serde_json::from_str::<RootsAnswer>(&given.json)?.roots)
}

fn declined(name: &str) -> Unusable {
    Unusable::Error(AskError::Declined { name: name.into() })
}

fn cancelled(name: &str) -> Unusable {
    Unusable::Error(AskError::Cancelled { name: name.into() })
}
