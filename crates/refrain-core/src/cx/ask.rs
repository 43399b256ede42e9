//! Asks: operations that the client answers.

use super::Cx;
use crate::AskError;
use crate::flow::{Phase, Shared, SlotId, State, is_driving};
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
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// How a person dealt with a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// It was filled in.
    Accepted(T),
    /// The person said no.
    Declined,
    /// The person closed it without answering.
    Cancelled,
}

/// What is asked.
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

    /// What the client must support, and does not.
    fn lacks(&self, shared: &Shared) -> Option<Capability> {
        let needs = match self {
            Self::Form { .. } => Capability::Form,
            Self::Url { .. } => Capability::Url,
            Self::Sampling(params) => params.capability(),
            Self::Roots => Capability::Roots,
        };
        (!shared.env.capabilities.has(needs)).then_some(needs)
    }

    /// The ask as it is sent; `refusal` says why the last answer did not do.
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

/// What an answer's JSON turned out to be.
pub(super) enum Decoded<T> {
    Value(T),
    Error(AskError),
    Invalid(String),
}

type Decode<T> = fn(name: &str, form: Option<&Form>, given: &Given) -> Decoded<T>;

/// An answer to decode.
pub(super) struct Given {
    json: Arc<str>,
    elicited: Option<Elicited>,
}

impl Given {
    /// The action and the content of an answer to a form or a URL.
    fn elicited(&self) -> Result<(Action, Option<&str>), serde_json::Error> {
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
    cx: &'a Cx,
    id: SlotId,
    key: Key,
    question: Question,
    fingerprint: u64,
    decode: Decode<T>,
    /// An answer given to another version's schema looked as if it fitted, and did not decode.
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
        let (id, key) = cx
            .shared
            .open_slot(cx.scope.as_ref(), kind, name, Location::caller());
        Self {
            cx,
            id,
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
        waker: &Waker,
        outside: bool,
    ) -> Poll<(usize, Held, Option<Elicited>)> {
        loop {
            let form = self.question.schema();
            let fits = |json: &str| !self.only_own && content_fits(form, json);
            if let Some(index) = state.find_answer(&self.key, self.fingerprint, fits) {
                if !state.take_turn(self.id, index, waker, outside) {
                    return Poll::Pending;
                }
                let entry = &mut state.entries[index];
                return Poll::Ready((index, entry.held.clone(), entry.elicited.take()));
            }
            let Some(held) = self.without_asking(state) else {
                break;
            };
            let entry = Entry::new(self.key.clone(), self.fingerprint, held);
            if state
                .append(entry, self.cx.shared.env.limits.entries)
                .is_none()
            {
                return Poll::Pending;
            }
        }
        if !state.fault_is_set() {
            self.open(state, waker, outside);
        }
        Poll::Pending
    }

    /// An answer that needs no asking: one that came with a first request, or that the client cannot give any.
    fn without_asking(&self, state: &mut State) -> Option<Held> {
        let first = self.key.ordinal == 1;
        let loose = state
            .loose
            .iter()
            .position(|(key, _)| first && **key == *self.key.name);
        if let Some(at) = loose {
            let (key, json) = state.loose.swap_remove(at);
            let kind = self.key.kind.ask()?;
            // The text comes from a raw value.
            let raw: &RawValue = serde_json::from_str(&json).ok()?;
            if let Err(error) = check_answer_shape(kind, raw) {
                state.set_fault(format!("inputResponses[{key:?}]: {error}"), true);
                return None;
            }
            return Some(Held::Value(json));
        }
        let capability = self.question.lacks(&self.cx.shared)?;
        Some(failure(&AskError::Unsupported {
            name: self.key.name.to_string(),
            capability,
        }))
    }

    fn open(&self, state: &mut State, waker: &Waker, outside: bool) {
        if let Some(slot) = state.slot(self.id)
            && matches!(slot.phase, Phase::Open { .. })
        {
            slot.outside = outside;
            slot.waker = Some(waker.clone());
            return;
        }
        let ask = self
            .question
            .to_ask(state.refusal(&self.key, self.fingerprint));
        let fingerprint = self.fingerprint;
        let wire_key = state.wire_key(self.id, &self.key, fingerprint);
        let phase = Phase::Open {
            ask,
            wire_key,
            fingerprint,
        };
        state.park(self.id, phase, waker, outside);
    }

    /// Takes back an answer that does not fit. `Some` after too many of them.
    fn refuse(&mut self, state: &mut State, index: usize, reason: String) -> Option<AskError> {
        if state.entries[index].fingerprint != self.fingerprint {
            // It answered another version's question: leave it for that one, and ask our own.
            self.only_own = true;
            return None;
        }
        let count = state.refuse(index, &reason);
        state.deliver(index);
        if count <= self.cx.shared.env.limits.retries {
            return None;
        }
        let error = AskError::Invalid {
            name: self.key.name.to_string(),
            reason,
        };
        let entry = &mut state.entries[index];
        entry.held = failure(&error);
        entry.void = false;
        Some(error)
    }
}

impl<T> Future for AskFuture<'_, T> {
    type Output = Result<T, AskError>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let shared: &Arc<Shared> = &this.cx.shared;
        let outside = !is_driving(shared);
        loop {
            let found = {
                let mut state = shared.lock();
                if state.may_go_on() {
                    this.look(&mut state, task.waker(), outside)
                } else {
                    drop(state);
                    return match shared.is_over() {
                        true => Poll::Ready(Err(over(&this.key.name))),
                        false => Poll::Pending,
                    };
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
                Held::Failure(json) => Decoded::Error(read_failure(&this.key, &json)),
            };
            let mut state = shared.lock();
            if state.ended {
                continue;
            }
            let result = match decoded {
                Decoded::Value(value) => Ok(value),
                Decoded::Error(error) => Err(error),
                Decoded::Invalid(reason) => match this.refuse(&mut state, index, reason) {
                    Some(error) => Err(error),
                    None => continue,
                },
            };
            state.deliver(index);
            drop(state);
            shared.close_slot(this.id);
            return Poll::Ready(result);
        }
    }
}

impl<T> Drop for AskFuture<'_, T> {
    fn drop(&mut self) {
        self.cx.shared.close_slot(self.id);
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

/// Would this answer, given to another schema, do for this one?
fn content_fits(form: Option<&Form>, json: &str) -> bool {
    let Some(form) = form else { return true };
    match serde_json::from_str::<ElicitAnswer<'_>>(json) {
        Ok(answer) if answer.action == Action::Accept => answer
            .content
            .and_then(|content| parse_value(content.get()).ok())
            .is_some_and(|content| form.check(&content).is_ok()),
        // A no stays a no, however the question is put.
        Ok(_) => true,
        Err(_) => false,
    }
}

pub(super) fn outcome<T: DeserializeOwned>(
    _name: &str,
    form: Option<&Form>,
    given: &Given,
) -> Decoded<Answer<T>> {
    let (action, content) = match given.elicited() {
        Ok(parts) => parts,
        Err(error) => return Decoded::Invalid(error.to_string()),
    };
    match action {
        Action::Decline => return Decoded::Value(Answer::Declined),
        Action::Cancel => return Decoded::Value(Answer::Cancelled),
        Action::Accept => {}
    }
    let Some(content) = content else {
        return Decoded::Invalid("the form came back without content".into());
    };
    let content = match parse_value(content) {
        Ok(content) => content,
        Err(error) => return Decoded::Invalid(error.to_string()),
    };
    if let Some(form) = form
        && let Err(error) = form.check(&content)
    {
        return Decoded::Invalid(error.to_string());
    }
    match serde_json::from_value(content) {
        Ok(value) => Decoded::Value(Answer::Accepted(value)),
        Err(error) => Decoded::Invalid(error.to_string()),
    }
}

pub(super) fn accepted<T: Elicit>(name: &str, form: Option<&Form>, given: &Given) -> Decoded<T> {
    match outcome(name, form, given) {
        Decoded::Value(Answer::Accepted(value)) => Decoded::Value(value),
        Decoded::Value(Answer::Declined) => Decoded::Error(declined(name)),
        Decoded::Value(Answer::Cancelled) => Decoded::Error(cancelled(name)),
        Decoded::Error(error) => Decoded::Error(error),
        Decoded::Invalid(reason) => Decoded::Invalid(reason),
    }
}

pub(super) fn consent(name: &str, _: Option<&Form>, given: &Given) -> Decoded<()> {
    match given.elicited().map(|(action, _)| action) {
        Ok(Action::Accept) => Decoded::Value(()),
        Ok(Action::Decline) => Decoded::Error(declined(name)),
        Ok(Action::Cancel) => Decoded::Error(cancelled(name)),
        Err(error) => Decoded::Invalid(error.to_string()),
    }
}

pub(super) fn sampled(_: &str, _: Option<&Form>, given: &Given) -> Decoded<SamplingAnswer> {
    serde_json::from_str(&given.json)
        .map_or_else(|e| Decoded::Invalid(e.to_string()), Decoded::Value)
}

pub(super) fn roots(_: &str, _: Option<&Form>, given: &Given) -> Decoded<Vec<Root>> {
    serde_json::from_str::<RootsAnswer>(&given.json).map_or_else(
        |error| Decoded::Invalid(error.to_string()),
        |answer| Decoded::Value(answer.roots),
    )
}

fn over(name: &str) -> AskError {
    AskError::Over {
        name: name.to_owned(),
    }
}

fn declined(name: &str) -> AskError {
    AskError::Declined {
        name: name.to_owned(),
    }
}

fn cancelled(name: &str) -> AskError {
    AskError::Cancelled {
        name: name.to_owned(),
    }
}
