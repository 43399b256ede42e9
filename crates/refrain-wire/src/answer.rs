//! A client's answers to asks, and the check of their shape.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::ask::AskKind;
use crate::canonical::{JsonError, MAX_DEPTH, is_too_deep, parse_value};
use crate::decode::{RawObject, is_object};
use crate::members::read;
use crate::sampling::SamplingAnswer;

/// The user's response to a form or a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The user submitted the form or opened the URL.
    Accept,
    /// The user declined.
    Decline,
    /// The user dismissed the request without a choice.
    Cancel,
}

/// The answer to a form or a URL.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ElicitAnswer<'a> {
    /// The user's response.
    pub action: Action,
    /// The raw JSON of the submitted form.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a RawValue>,
}

/// The client's roots.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RootsAnswer {
    /// The roots.
    pub roots: Vec<Root>,
}

/// A directory or file that the server may work in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// Its `file://` URI.
    pub uri: String,
    /// Its display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Root {
    /// The root at this `file://` URI.
    pub fn new(uri: impl Into<String>) -> Self {
        Self {
            uri: uri.into(),
            name: None,
        }
    }
}

/// An invalid answer to an ask.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The answer is not an object.
    #[error("the answer to a {} ask must be an object", .0.as_str())]
    NotAnObject(AskKind),
    /// A member of the answer is missing or invalid.
    #[error("invalid answer to a {} ask: {source}", kind.as_str())]
    Shape {
        /// The kind of the ask.
        kind: AskKind,
        /// The invalid part.
        source: ShapeError,
    },
}

/// The invalid part of an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// The answer is nested too deeply.
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// The content of a form is not an object.
    #[error("content must be an object")]
    Content,
    /// A member is missing or has the wrong type.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// A root is malformed.
    #[error("roots[{index}]: {source}")]
    Root {
        /// The index of the root.
        index: usize,
        /// The invalid member.
        source: JsonError,
    },
}

/// Checks the shape of an answer to this kind of ask. Does not validate the content of a form against its schema.
pub fn check_answer_shape(kind: AskKind, raw: &RawValue) -> Result<(), AnswerError> {
    read_answer(kind, raw).map(drop)
}

/// Like [`check_answer_shape`], but returns the answer to a form or a URL.
pub fn read_answer(kind: AskKind, raw: &RawValue) -> Result<Option<ElicitAnswer<'_>>, AnswerError> {
    if !is_object(raw) {
        return Err(AnswerError::NotAnObject(kind));
    }
    let checked = match kind {
        _ if is_too_deep(raw.get()) => Err(ShapeError::TooDeep),
        AskKind::Form | AskKind::Url => read_elicit(raw).map(Some),
        AskKind::Sampling => check_sampling(raw).map(|()| None),
        AskKind::Roots => check_roots(raw).map(|()| None),
    };
    checked.map_err(|source| AnswerError::Shape { kind, source })
}

fn read_elicit(raw: &RawValue) -> Result<ElicitAnswer<'_>, ShapeError> {
    let answer: ElicitAnswer<'_> = read(raw)?;
    match answer.content {
        Some(content) if !is_object(content) => Err(ShapeError::Content),
        _ => Ok(answer),
    }
}

fn check_sampling(raw: &RawValue) -> Result<(), ShapeError> {
    // Blocks may contain any JSON, but no duplicate keys.
    let value = parse_value(raw.get())?;
    SamplingAnswer::deserialize(value).map_err(JsonError::from)?;
    Ok(())
}

fn check_roots(raw: &RawValue) -> Result<(), ShapeError> {
    #[derive(Deserialize)]
    struct Shape<'a> {
        #[serde(borrow)]
        roots: Vec<&'a RawValue>,
    }
    let shape: Shape<'_> = read(raw)?;
    for (index, root) in shape.roots.into_iter().enumerate() {
        let checked = read::<RawObject<'_>>(root).and_then(|object| read::<Root>(object.0));
        checked.map_err(|source| ShapeError::Root { index, source })?;
    }
    Ok(())
}
