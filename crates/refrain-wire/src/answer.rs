//! What a client answers, read from the raw text of an answer.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::ask::AskKind;
use crate::decode::{RawObject, is_object, reason};
use crate::sampling::SamplingAnswer;
use crate::strict::{MAX_DEPTH, is_too_deep, parse_value};

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

/// Whether raw text has the shape of an answer to this kind of ask, and if not, why.
///
/// What a form was filled in with is not compared with its schema here.
pub fn check_answer_shape(kind: AskKind, raw: &RawValue) -> Result<(), String> {
    if !is_object(raw) {
        return Err(format!(
            "the answer to a {} ask must be an object",
            kind.as_str()
        ));
    }
    let checked = match kind {
        _ if is_too_deep(raw.get()) => Err(format!("nested deeper than {MAX_DEPTH} levels")),
        AskKind::Form | AskKind::Url => check_elicit(raw),
        AskKind::Sampling => check_sampling(raw),
        AskKind::Roots => check_roots(raw),
    };
    checked.map_err(|why| format!("not an answer to a {} ask: {why}", kind.as_str()))
}

fn check_elicit(raw: &RawValue) -> Result<(), String> {
    let answer: ElicitAnswer<'_> = read(raw)?;
    match answer.content {
        Some(content) if !is_object(content) => Err("content must be an object".to_owned()),
        _ => Ok(()),
    }
}

fn check_sampling(raw: &RawValue) -> Result<(), String> {
    // The blocks may hold anything, but no key twice.
    let value = parse_value(raw.get()).map_err(|error| error.to_string())?;
    let answer: Result<SamplingAnswer, _> = serde_json::from_value(value);
    answer.map(|_| ()).map_err(|error| reason(&error))
}

fn check_roots(raw: &RawValue) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Shape<'a> {
        #[serde(borrow)]
        roots: Vec<&'a RawValue>,
    }
    let shape: Shape<'_> = read(raw)?;
    for (i, root) in shape.roots.into_iter().enumerate() {
        let checked = read::<RawObject<'_>>(root).and_then(|object| read::<Root>(object.0));
        checked.map_err(|why| format!("roots[{i}]: {why}"))?;
    }
    Ok(())
}

fn read<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Result<T, String> {
    serde_json::from_str(raw.get()).map_err(|error| reason(&error))
}
