//! One round of a call in every dialect: the request ([`Call`]) and its response ([`Reply`]).

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::ask::Ask;
use crate::decode::{RawObject, Text};
use crate::error::RpcError;
use crate::excerpt::Excerpt;
use crate::list::ToolResult;
use crate::meta::{Meta, SERVER_INFO_KEY};
use crate::write;

/// The three methods that call a handler.
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
    /// The JSON-RPC method.
    pub const fn method(self) -> &'static str {
        match self {
            Self::Tool => "tools/call",
            Self::Prompt => "prompts/get",
            Self::Resource => "resources/read",
        }
    }

    /// The member of the params that names the target.
    pub const fn target_member(self) -> &'static str {
        match self {
            Self::Tool | Self::Prompt => "name",
            Self::Resource => "uri",
        }
    }

    /// The kind of call with this method.
    pub fn from_method(method: &str) -> Option<Self> {
        [Self::Tool, Self::Prompt, Self::Resource]
            .into_iter()
            .find(|kind| kind.method() == method)
    }
}

/// The request of one round.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    /// The method.
    pub kind: CallKind,
    /// The name of the tool or prompt, or the URI of the resource.
    pub target: Cow<'a, str>,
    /// The raw `arguments` object.
    pub arguments: Option<&'a RawValue>,
    /// The answers to the asks of the previous round.
    pub answers: Option<Answers<'a>>,
    /// The token of the previous round.
    pub state: Option<Cow<'a, str>>,
    /// The `_meta` of the request.
    pub meta: Meta<'a>,
}

/// Raw answer objects by unique key. Most rounds have one answer, which needs no allocation.
#[derive(Debug, Clone, Default)]
pub struct Answers<'a> {
    first: Option<Answer<'a>>,
    more: Vec<Answer<'a>>,
}

type Answer<'a> = (Cow<'a, str>, &'a RawValue);

impl<'a> Answers<'a> {
    /// The answer with this key.
    pub fn get(&self, key: &str) -> Option<&'a RawValue> {
        let found = self.iter().find(|(name, _)| name == key);
        found.map(|(_, raw)| *raw)
    }

    /// The answers, in the order they were sent.
    pub fn iter(&self) -> impl Iterator<Item = &(Cow<'a, str>, &'a RawValue)> {
        self.first.iter().chain(&self.more)
    }

    fn push(&mut self, answer: Answer<'a>) {
        match &self.first {
            None => self.first = Some(answer),
            Some(_) => self.more.push(answer),
        }
    }

    /// A key that occurs more than once.
    fn find_duplicate(&self) -> Option<&str> {
        if self.more.is_empty() {
            return None;
        }
        let mut keys: Vec<&str> = self.iter().map(|(key, _)| key.as_ref()).collect();
        // Sorting avoids quadratic time for a huge number of keys.
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
                let key = Excerpt(&key);
                Error::custom(format_args!("inputResponses[{key:?}] must be an object"))
            })?;
            answers.push((key, raw));
        }
        if let Some(key) = answers.find_duplicate() {
            let key = Excerpt(key);
            return Err(Error::custom(format_args!(
                "inputResponses[{key:?}] is given twice; send it once"
            )));
        }
        Ok(answers)
    }
}

/// The response of one round.
#[derive(Debug, Clone)]
pub enum Reply {
    /// The call has finished.
    Complete(ResultBody),
    /// The call needs answers, or must be continued by another request.
    Incomplete(Incomplete),
    /// The call continues as a task with these members.
    Task(ResultBody),
    /// The call failed.
    Error(RpcError),
    /// The call failed and had no effect, because a resource is in use. The same request may succeed later.
    Busy {
        /// The error that the client gets.
        error: RpcError,
        /// When the client should repeat the request.
        retry_after: Duration,
    },
    /// An earlier reply that [`record_reply`](crate::ratified::record_reply) serialized.
    Recorded(String),
}

impl Reply {
    /// A finished call with these members in its result. Members that cannot be serialized yield an internal error.
    pub fn complete(members: impl Serialize) -> Self {
        ResultBody::from_members(members).map_or_else(Self::Error, Self::Complete)
    }

    /// A finished tool call.
    pub fn of_tool(result: ToolResult) -> Self {
        ResultBody::from_tool(result).map_or_else(Self::Error, Self::Complete)
    }
}

/// The members of a result object, without those that the dialect adds.
#[derive(Debug, Clone)]
pub struct ResultBody {
    members: ResultMembers,
    meta: Option<String>,
    /// Whether a tool reported failure.
    is_error: bool,
    /// A copy of a tool's structured content, which is also in `members`. Absent in foreign results.
    structured: Option<Box<Value>>,
}

#[derive(Debug, Clone)]
enum ResultMembers {
    /// A whole serialized object, braces included.
    Object(String),
    /// The text of a tool result of one text. Serialized only into the reply, because most results have this form.
    Text(String),
}

const TEXT_START: &str = r#""content":[{"type":"text","text":"#;
const TEXT_END: &str = r#"}],"isError":false"#;

impl ResultBody {
    /// Serializes the members of a struct. A value that is not a JSON object is an internal error.
    ///
    /// Use [`from_tool`](Self::from_tool) for tool results.
    pub fn from_members(members: impl Serialize) -> Result<Self, RpcError> {
        Ok(Self::of(serialize_object(&members)?))
    }

    /// Serializes a tool result with its `_meta`.
    pub fn from_tool(result: ToolResult) -> Result<Self, RpcError> {
        let mut body = Self::from_members(&result)?;
        if let Some(meta) = &result.meta {
            body = body.with_meta(meta)?;
        }
        body.is_error = result.is_error;
        body.structured = result.structured_content.map(Box::new);
        Ok(body)
    }

    /// Serializes the result of another server with all its members. Members that the dialect adds are left out:
    /// `resultType`, `inputRequests`, `requestState`, and the server's name in `_meta`.
    ///
    /// ```
    /// use refrain_wire::ResultBody;
    /// use serde_json::{Map, json};
    ///
    /// let sent = json!({"resultType": "complete", "content": [{"type": "x-hologram"}], "isError": true});
    /// let body = ResultBody::from_foreign(sent.as_object().expect("an object").clone())?;
    /// assert_eq!(body.members(), r#""content":[{"type":"x-hologram"}],"isError":true"#);
    /// assert!(body.is_error());
    /// # Ok::<(), refrain_wire::RpcError>(())
    /// ```
    pub fn from_foreign(mut members: Map<String, Value>) -> Result<Self, RpcError> {
        for name in ["resultType", "inputRequests", "requestState"] {
            members.shift_remove(name);
        }
        let meta = members.shift_remove("_meta");
        let mut body = Self::from_members(&members)?;
        if let Some(Value::Object(mut meta)) = meta {
            meta.shift_remove(SERVER_INFO_KEY);
            body = body.with_meta(&meta)?;
        }
        body.is_error = members.get("isError") == Some(&Value::Bool(true));
        Ok(body)
    }

    fn of(members: String) -> Self {
        Self {
            members: ResultMembers::Object(members),
            meta: None,
            is_error: false,
            structured: None,
        }
    }

    /// Adds members to the `_meta` of the result.
    pub fn with_meta(mut self, meta: impl Serialize) -> Result<Self, RpcError> {
        let text = serialize_object(&meta)?;
        self.meta = (!strip_braces(&text).is_empty()).then_some(text);
        Ok(self)
    }

    /// A tool result of one text.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            members: ResultMembers::Text(text.into()),
            ..Self::of(String::new())
        }
    }

    /// Whether a tool reported failure.
    pub fn is_error(&self) -> bool {
        self.is_error
    }

    /// The structured content of a tool result.
    pub fn structured_content(&self) -> Option<Cow<'_, Value>> {
        if let Some(content) = &self.structured {
            return Some(Cow::Borrowed(content));
        }
        let ResultMembers::Object(members) = &self.members else {
            return None;
        };
        let mut members: Map<String, Value> = serde_json::from_str(members).ok()?;
        members.remove("structuredContent").map(Cow::Owned)
    }

    /// The serialized members, separated by commas, without braces.
    pub fn members(&self) -> Cow<'_, str> {
        if let ResultMembers::Object(members) = &self.members {
            return strip_braces(members).into();
        }
        let mut out = Vec::with_capacity(self.members_size());
        self.write_members(&mut out);
        String::from_utf8(out)
            .expect("serialized JSON is UTF-8")
            .into()
    }

    /// Appends the serialized members.
    pub(crate) fn write_members(&self, out: &mut Vec<u8>) {
        match &self.members {
            ResultMembers::Object(members) => {
                out.extend_from_slice(strip_braces(members).as_bytes());
            }
            ResultMembers::Text(text) => {
                out.extend_from_slice(TEXT_START.as_bytes());
                write::text(out, text);
                out.extend_from_slice(TEXT_END.as_bytes());
            }
        }
    }

    /// The size of the serialized members, if a text has no other control characters than those with short escapes.
    pub(crate) fn members_size(&self) -> usize {
        match &self.members {
            ResultMembers::Object(members) => strip_braces(members).len(),
            ResultMembers::Text(text) => TEXT_START.len() + write::text_size(text) + TEXT_END.len(),
        }
    }

    /// The serialized members of `_meta`, if any.
    pub fn meta(&self) -> Option<&str> {
        self.meta.as_deref().map(strip_braces)
    }
}

impl PartialEq for ResultBody {
    fn eq(&self, other: &Self) -> bool {
        self.members() == other.members()
            && self.meta == other.meta
            && self.is_error == other.is_error
            && self.structured == other.structured
    }
}

/// Serializes an object without line breaks.
fn serialize_object(members: &impl Serialize) -> Result<String, RpcError> {
    let text = serde_json::to_string(members)
        .map_err(|error| RpcError::internal(format!("could not serialize the result: {error}")))?;
    if !text.starts_with('{') {
        return Err(RpcError::internal("the result is not an object"));
    }
    Ok(write::one_line(text))
}

/// The text between the braces of an object. Hand-written empty objects may contain white space.
fn strip_braces(object: &str) -> &str {
    object[1..object.len() - 1].trim_ascii()
}

/// The response of an unfinished call: its asks, and the token to send back.
#[derive(Debug, Clone, Default)]
pub struct Incomplete {
    /// The asks by key, in the order they were made.
    pub asks: Vec<(String, Ask)>,
    /// The token of this round.
    pub state: Option<String>,
}
