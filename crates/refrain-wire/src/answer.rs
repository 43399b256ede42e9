//! What a client answers, read from the raw text of an answer.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::ask::AskKind;
use crate::decode::{RawObject, is_object};
use crate::sampling::SamplingAnswer;
use crate::strict::{JsonError, MAX_DEPTH, is_too_deep, parse_value};

/// What a person did with a form or a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Did what was asked.
    Accept,
    /// Said no.
    Decline,
    /// Turned away without choosing.
    Cancel,
}

/// The answer to a form or a URL.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ElicitAnswer<'a> {
    /// What the person did.
    pub action: Action,
    /// The text of what was filled in.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a RawValue>,
}

/// The client's roots.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RootsAnswer {
    /// The roots.
    pub roots: Vec<Root>,
}

/// A place the client lets the server work in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// Where it is.
    pub uri: String,
    /// What a person calls it.
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

/// Why raw text is not an answer to an ask.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// It is not an object.
    #[error("the answer to a {} ask must be an object", .0.as_str())]
    NotAnObject(AskKind),
    /// It does not have the shape of an answer to this kind of ask.
    #[error("not an answer to a {} ask: {source}", kind.as_str())]
    Shape {
        /// The kind of the ask.
        kind: AskKind,
        /// What is wrong with it.
        source: ShapeError,
    },
}

/// What is wrong with the shape of an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// It is nested too deeply.
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// The content of a form is not an object.
    #[error("content must be an object")]
    Content,
    /// A member is missing or has another type.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// A root is malformed.
    #[error("roots[{index}]: {source}")]
    Root {
        /// The position of the root.
        index: usize,
        /// What is wrong with it.
        source: JsonError,
    },
}

/// Checks that raw text has the shape of an answer to this kind of ask.
///
/// The content of a form is not compared with its schema here.
pub fn check_answer_shape(kind: AskKind, raw: &RawValue) -> Result<(), AnswerError> {
    read_answer(kind, raw).map(drop)
}

/// Checks the shape of an answer like [`check_answer_shape`]. Returns the answer to a form or a URL.
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
    // Blocks may contain any JSON, but no key twice.
    let value = parse_value(raw.get())?;
    let answer: Result<SamplingAnswer, _> = serde_json::from_value(value);
    Ok(answer.map(drop).map_err(JsonError::from)?)
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

fn read<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Result<T, JsonError> {
    Ok(serde_json::from_str(raw.get())?)
}
