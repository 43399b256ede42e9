//! `completion/complete`: suggestions for the value of an argument.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::decode::Text;
use crate::error::RpcError;
use crate::members::Reader;
use crate::meta::Meta;

/// The maximum number of suggestions in one result.
pub const MAX_SUGGESTIONS: usize = 100;

/// The parameters of `completion/complete`.
#[derive(Debug, Clone)]
pub struct CompleteParams<'a> {
    /// The `_meta` of the request.
    pub meta: Meta<'a>,
    /// The prompt or resource template with the argument.
    pub reference: Reference<'a>,
    /// The name of the argument.
    pub argument: Cow<'a, str>,
    /// The value typed so far.
    pub value: Cow<'a, str>,
    /// The arguments that already have a value.
    pub context: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

/// A prompt or resource template whose arguments can be completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference<'a> {
    /// The prompt with this name.
    Prompt(Cow<'a, str>),
    /// This resource template, or the one that matches this URI.
    Resource(Cow<'a, str>),
}

/// Suggestions for a value.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Completion {
    /// Suggestions, the best first; at most [`MAX_SUGGESTIONS`] of them.
    pub values: Vec<String>,
    /// The total number of suggestions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// Whether further suggestions were left out.
    #[serde(default)]
    pub has_more: bool,
}

/// The result of `completion/complete`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CompleteResult {
    /// The suggestions.
    pub completion: Completion,
}

impl Completion {
    /// Truncates the suggestions to [`MAX_SUGGESTIONS`].
    #[must_use]
    pub fn bounded(mut self) -> Self {
        if self.values.len() > MAX_SUGGESTIONS {
            self.total.get_or_insert(self.values.len() as u64);
            self.values.truncate(MAX_SUGGESTIONS);
            self.has_more = true;
        }
        self
    }
}

impl<S: Into<String>> FromIterator<S> for Completion {
    /// Takes all suggestions, the best first. Those after the hundredth are counted but left out.
    fn from_iter<I: IntoIterator<Item = S>>(values: I) -> Self {
        let mut values = values.into_iter().map(Into::into);
        let first: Vec<String> = values.by_ref().take(MAX_SUGGESTIONS).collect();
        let more = values.count() as u64;
        Self {
            total: Some(first.len() as u64 + more),
            values: first,
            has_more: more > 0,
        }
    }
}

impl<S: Into<String>> From<Vec<S>> for Completion {
    fn from(values: Vec<S>) -> Self {
        values.into_iter().collect()
    }
}

/// Reads the params of `completion/complete`.
pub fn decode_complete<'a>(params: Option<&'a RawValue>) -> Result<CompleteParams<'a>, RpcError> {
    let params = Reader::params(params, "_meta")?.with_null_as_absent();
    read_complete(&params, params.meta()?)
}

/// Reads the params of any revision, except their `_meta`.
pub(crate) fn read_complete<'a>(
    params: &Reader<'a>,
    meta: Meta<'a>,
) -> Result<CompleteParams<'a>, RpcError> {
    let reference = params.object("ref")?.ok_or_else(|| params.missing("ref"))?;
    let (name, uri) = (reference.text("name")?, reference.text("uri")?);
    let reference = match reference.text("type")?.as_deref() {
        Some("ref/prompt") => name
            .map(Reference::Prompt)
            .ok_or_else(|| reference.error("name", "is missing; name the prompt"))?,
        Some("ref/resource") => uri
            .map(Reference::Resource)
            .ok_or_else(|| reference.error("uri", "is missing; give the resource template"))?,
        _ => Err(reference.error("type", "must be \"ref/prompt\" or \"ref/resource\""))?,
    };
    let argument = params.object("argument")?;
    let argument = argument.ok_or_else(|| params.missing("argument"))?;
    let text = |name| argument.text(name)?.ok_or_else(|| argument.missing(name));
    let mut context = Vec::new();
    if let Some(members) = params.object("context")?
        && let Some(arguments) = members.object("arguments")?
    {
        for (Text(name), value) in arguments.members.0.iter() {
            let value = serde_json::from_str::<Text<'a>>(value.get());
            let value = value.map_err(|_| arguments.error(name, "must be a string"))?;
            context.push((name.clone(), value.0));
        }
    }
    Ok(CompleteParams {
        meta,
        reference,
        argument: text("name")?,
        value: text("value")?,
        context,
    })
}
