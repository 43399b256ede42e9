//! `completion/complete`: what is being typed, and what it might become.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::decode::{Named, Nested, Text, params as read_params};
use crate::error::RpcError;
use crate::meta::Meta;

/// The most suggestions that one result may hold.
pub const MAX_SUGGESTIONS: usize = 100;

/// The parameters of `completion/complete`.
#[derive(Debug, Clone)]
pub struct CompleteParams<'a> {
    /// What the request says about itself and its sender.
    pub meta: Meta<'a>,
    /// What has the argument.
    pub reference: Reference<'a>,
    /// The name of the argument.
    pub argument: Cow<'a, str>,
    /// What was typed so far.
    pub value: Cow<'a, str>,
    /// The arguments that have a value already.
    pub given: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

/// What has arguments to complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference<'a> {
    /// The prompt of this name.
    Prompt(Cow<'a, str>),
    /// The resource template of this form, or the one a URI belongs to.
    Resource(Cow<'a, str>),
}

/// What `completion/complete` returns.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Completion {
    /// Suggestions, the best first; at most [`MAX_SUGGESTIONS`] of them.
    pub values: Vec<String>,
    /// How many there are altogether.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// Whether there are more than these.
    pub has_more: bool,
}

/// The result of `completion/complete`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct CompleteResult {
    /// The suggestions.
    pub completion: Completion,
}

impl Completion {
    /// The same with no more suggestions than one result may hold.
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
    /// All suggestions there are, the best first. Those beyond the hundredth are counted and left out.
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
    decode_with(params, |meta: Meta<'a>| meta)
}

/// Reads the params, with a `_meta` that may be of another form.
pub(crate) fn decode_with<'a, M: Deserialize<'a>>(
    params: Option<&'a RawValue>,
    meta: impl FnOnce(M) -> Meta<'a>,
) -> Result<CompleteParams<'a>, RpcError> {
    let wire: WireParams<'a, M> = read_params(params)?;
    let invalid = |reason: &'static str| Err(RpcError::invalid_params(reason));
    let WireReference { kind, name, uri } = wire.reference.0;
    let reference = match (kind.0.as_ref(), name, uri) {
        ("ref/prompt", Some(name), _) => Reference::Prompt(name.0),
        ("ref/prompt", None, _) => return invalid("ref.name is missing; name the prompt"),
        ("ref/resource", _, Some(uri)) => Reference::Resource(uri.0),
        ("ref/resource", _, None) => {
            return invalid("ref.uri is missing; give the resource template");
        }
        _ => return invalid("ref.type must be \"ref/prompt\" or \"ref/resource\""),
    };
    let given = wire.context.map(|context| context.0.arguments.0);
    let argument = wire.argument.0;
    Ok(CompleteParams {
        meta: meta(wire.meta),
        reference,
        argument: argument.name.0,
        value: argument.value.0,
        given: given.unwrap_or_default(),
    })
}

#[derive(Deserialize)]
struct WireParams<'a, M> {
    #[serde(rename = "_meta")]
    meta: M,
    #[serde(rename = "ref", borrow)]
    reference: Nested<WireReference<'a>>,
    #[serde(borrow)]
    argument: Nested<WireArgument<'a>>,
    #[serde(borrow)]
    context: Option<Nested<WireContext<'a>>>,
}

#[derive(Deserialize)]
struct WireReference<'a> {
    #[serde(rename = "type", borrow)]
    kind: Text<'a>,
    #[serde(borrow)]
    name: Option<Text<'a>>,
    #[serde(borrow)]
    uri: Option<Text<'a>>,
}

impl Named for WireReference<'_> {
    const NAME: &'static str = "ref";
}

#[derive(Deserialize)]
struct WireArgument<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    value: Text<'a>,
}

impl Named for WireArgument<'_> {
    const NAME: &'static str = "argument";
}

#[derive(Deserialize)]
struct WireContext<'a> {
    #[serde(default, borrow)]
    arguments: Given<'a>,
}

impl Named for WireContext<'_> {
    const NAME: &'static str = "context";
}

/// The members of an object of strings, in the order they were sent.
#[derive(Default)]
struct Given<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Given<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct GivenVisitor;
        impl<'de> serde::de::Visitor<'de> for GivenVisitor {
            type Value = Given<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("context.arguments as an object of strings")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Given<'de>, A::Error> {
                let mut given = Vec::new();
                while let Some((Text(name), Text(value))) = map.next_entry()? {
                    given.push((name, value));
                }
                Ok(Given(given))
            }
        }
        deserializer.deserialize_map(GivenVisitor)
    }
}
