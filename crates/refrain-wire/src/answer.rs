//! What a client answers, read from the raw text of an answer.

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::ask::AskKind;
use crate::content::{Content, Role};
use crate::decode::{RawObject, is_object, reason};
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

/// The answer of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SamplingAnswer {
    /// Who speaks, as a rule the assistant.
    pub role: Role,
    /// What the model said: on the wire one block or several.
    #[serde(deserialize_with = "one_or_many")]
    pub content: Vec<SamplingBlock>,
    /// The model that answered.
    pub model: String,
    /// Why it stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
}

impl SamplingAnswer {
    /// The text of all text blocks, one after the other.
    pub fn text(&self) -> String {
        let texts = self.content.iter().filter_map(|block| match block {
            SamplingBlock::Content(content) => content.as_text(),
            SamplingBlock::Other(_) => None,
        });
        texts.collect()
    }
}

/// One block of a model's answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum SamplingBlock {
    /// A block of content.
    Content(Content),
    /// A `tool_use`, a `tool_result`, or a block of a type that is not known here, as sent.
    Other(Value),
}

impl<'de> Deserialize<'de> for SamplingBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_value(Value::deserialize(deserializer)?).map_err(Error::custom)
    }
}

impl SamplingBlock {
    fn from_value(value: Value) -> Result<Self, String> {
        if !value.is_object() {
            return Err("a content block must be an object".to_owned());
        }
        match value.get("type").and_then(Value::as_str) {
            None => Err("a content block must have a type".to_owned()),
            Some(kind) if Content::is_known(kind) => serde_json::from_value(value)
                .map(Self::Content)
                .map_err(|error| reason(&error)),
            Some(_) => Ok(Self::Other(value)),
        }
    }
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SamplingBlock>, D::Error> {
    let blocks = match Value::deserialize(deserializer)? {
        Value::Array(blocks) => blocks.into_iter().map(SamplingBlock::from_value).collect(),
        block => SamplingBlock::from_value(block).map(|block| vec![block]),
    };
    blocks.map_err(Error::custom)
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
    let answer: Result<SamplingAnswer, _> = serde_json::from_value(parse_value(raw.get())?);
    answer.map(|_| ()).map_err(|error| error.to_string())
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
