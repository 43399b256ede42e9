//! The neutral shape of a round: a [`Call`] in, a [`Reply`] out, whatever the dialect.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::ask::Ask;
use crate::decode::{RawObject, Text};
use crate::error::RpcError;
use crate::list::ToolResult;
use crate::meta::Meta;
use crate::write;

/// Which of the three calls a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// `tools/call`.
    Tool,
    /// `prompts/get`.
    Prompt,
    /// `resources/read`.
    Resource,
}

impl CallKind {
    /// The method of this kind of call.
    pub const fn method(self) -> &'static str {
        match self {
            Self::Tool => "tools/call",
            Self::Prompt => "prompts/get",
            Self::Resource => "resources/read",
        }
    }

    /// The member of the params that names what is called.
    pub const fn target_member(self) -> &'static str {
        match self {
            Self::Tool | Self::Prompt => "name",
            Self::Resource => "uri",
        }
    }

    /// The kind of call a method is, if it is one.
    pub fn from_method(method: &str) -> Option<Self> {
        [Self::Tool, Self::Prompt, Self::Resource]
            .into_iter()
            .find(|kind| kind.method() == method)
    }
}

/// One round of a call, as the client sent it.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    /// Which call it is.
    pub kind: CallKind,
    /// The name of the tool or prompt, or the URI of the resource.
    pub target: Cow<'a, str>,
    /// The text of the `arguments` object.
    pub arguments: Option<&'a RawValue>,
    /// The answers to what was asked before.
    pub answers: Option<Answers<'a>>,
    /// The token of the round before.
    pub state: Option<Cow<'a, str>>,
    /// What the request says about itself and its sender.
    pub meta: Meta<'a>,
}

/// Answers by key, each the text of an object, in the order they were sent; no key occurs twice.
#[derive(Debug, Clone, Default)]
pub struct Answers<'a>(pub Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Answers<'a> {
    /// The answer with this key.
    pub fn get(&self, key: &str) -> Option<&'a RawValue> {
        self.0
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, raw)| *raw)
    }

    /// A key that occurs more than once.
    fn repeated(&self) -> Option<&str> {
        if self.0.len() <= 16 {
            let mut earlier = self.0.iter().enumerate();
            let again = earlier.find(|(i, (key, _))| self.0[..*i].iter().any(|(k, _)| k == key));
            return again.map(|(_, (key, _))| key.as_ref());
        }
        let mut keys: Vec<&str> = self.0.iter().map(|(key, _)| key.as_ref()).collect();
        // Sorting keeps a hostile number of keys cheap.
        keys.sort_unstable();
        keys.windows(2)
            .find(|pair| pair[0] == pair[1])
            .map(|pair| pair[0])
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Answers<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AnswersVisitor)
    }
}

struct AnswersVisitor;

impl<'de> Visitor<'de> for AnswersVisitor {
    type Value = Answers<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("inputResponses as an object of answers by key")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Answers<'de>, A::Error> {
        let mut answers = Answers::default();
        while let Some(Text(key)) = map.next_key()? {
            let value = map.next_value::<RawObject<'de>>();
            let RawObject(raw) = value.map_err(|_| {
                Error::custom(format_args!("inputResponses[{key:?}] must be an object"))
            })?;
            answers.0.push((key, raw));
        }
        if let Some(key) = answers.repeated() {
            let message = format_args!("inputResponses[{key:?}] is given twice; send it once");
            return Err(Error::custom(message));
        }
        Ok(answers)
    }
}

/// What a round comes to.
#[derive(Debug, Clone)]
pub enum Reply {
    /// The call is done.
    Complete(ResultBody),
    /// The call needs answers, or to be sent again.
    Incomplete(Incomplete),
    /// The call has become a task, described by these members.
    Task(ResultBody),
    /// The call failed.
    Error(RpcError),
    /// A reply that was given before, as [`record_reply`](crate::ratified::record_reply) kept it.
    Recorded(String),
}

impl Reply {
    /// A finished call with these members in its result; members that cannot be written make it
    /// an internal error.
    pub fn complete(members: impl Serialize) -> Self {
        ResultBody::from_members(members).map_or_else(Self::Error, Self::Complete)
    }

    /// A tool call with this result.
    pub fn of_tool(result: ToolResult) -> Self {
        ResultBody::from_tool(result).map_or_else(Self::Error, Self::Complete)
    }
}

/// The members of a result object as JSON text, without those the dialect adds.
///
/// Kept as the text of a whole object, braces included, and handed out without them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultBody {
    members: String,
    meta: Option<String>,
    /// A tool's own account of whether it failed.
    is_error: bool,
    /// A tool's structured content, which is among the members too.
    structured: Option<Box<Value>>,
}

impl ResultBody {
    /// Writes the members of a struct; one that is no JSON object is an internal error. The results of tools are written
    /// with [`from_tool`](Self::from_tool).
    pub fn from_members(members: impl Serialize) -> Result<Self, RpcError> {
        Ok(Self::of(object(&members)?))
    }

    /// Writes the result of a tool, its `_meta` included.
    pub fn from_tool(result: ToolResult) -> Result<Self, RpcError> {
        let mut body = Self::from_members(&result)?;
        if let Some(meta) = &result.meta {
            body = body.with_meta(meta)?;
        }
        body.is_error = result.is_error;
        body.structured = result.structured_content.map(Box::new);
        Ok(body)
    }

    fn of(members: String) -> Self {
        Self {
            members,
            meta: None,
            is_error: false,
            structured: None,
        }
    }

    /// The same result with these members in its `_meta`, beside those the dialect puts there.
    pub fn with_meta(mut self, meta: impl Serialize) -> Result<Self, RpcError> {
        let text = object(&meta)?;
        self.meta = (!inside(&text).is_empty()).then_some(text);
        Ok(self)
    }

    /// The result of a tool that answers with one text, written without a detour: most results are that.
    pub fn text(text: &str) -> Self {
        let mut out = Vec::with_capacity(text.len() + 64);
        out.extend_from_slice(br#"{"content":[{"type":"text","text":"#);
        write::text(&mut out, text);
        out.extend_from_slice(br#"}],"isError":false}"#);
        Self::from_object(out)
    }

    /// The members of an object that was written as text of one line.
    pub(crate) fn from_object(members: Vec<u8>) -> Self {
        Self::of(String::from_utf8(members).expect("only whole strings were written"))
    }

    /// Whether it is the result of a tool that failed.
    pub fn is_error(&self) -> bool {
        self.is_error
    }

    /// The structured content of a tool's result.
    pub fn structured_content(&self) -> Option<&Value> {
        self.structured.as_deref()
    }

    /// The text of the members, commas between them and none around them.
    pub fn members(&self) -> &str {
        inside(&self.members)
    }

    /// The text of the members of its `_meta`, where there are any.
    pub fn meta(&self) -> Option<&str> {
        self.meta.as_deref().map(inside)
    }
}

/// The JSON text of an object.
fn object(members: &impl Serialize) -> Result<String, RpcError> {
    let text = serde_json::to_string(members)
        .map_err(|error| RpcError::internal(format!("the result cannot be written: {error}")))?;
    if !text.starts_with('{') {
        return Err(RpcError::internal("the result is not an object"));
    }
    Ok(write::one_line(text))
}

/// What is between the braces of an object. An empty one that was written by hand may have white space in it.
fn inside(object: &str) -> &str {
    object[1..object.len() - 1].trim_ascii()
}

/// A call that is not done: what it asks, and the token to send back.
#[derive(Debug, Clone, Default)]
pub struct Incomplete {
    /// The asks by key, in the order they were made.
    pub asks: Vec<(String, Ask)>,
    /// The token of this round.
    pub state: Option<String>,
}
