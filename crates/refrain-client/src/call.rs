//! [`CallSpec`]: a call of a tool, a prompt or a resource.

use refrain_wire::CallKind;
use refrain_wire::client::Request;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A call of a tool, a prompt or a resource.
///
/// ```
/// use refrain_client::CallSpec;
/// let call = CallSpec::tool("greet").argument("name", "Ada");
/// assert_eq!(call.target(), "greet");
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallSpec {
    #[serde(rename = "method", with = "Method")]
    kind: CallKind,
    target: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    arguments: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    meta: Map<String, Value>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "CallKind")]
enum Method {
    #[serde(rename = "tools/call")]
    Tool,
    #[serde(rename = "prompts/get")]
    Prompt,
    #[serde(rename = "resources/read")]
    Resource,
}

impl CallSpec {
    /// A call of a tool, without arguments.
    pub fn tool(name: impl Into<String>) -> Self {
        Self::new(CallKind::Tool, name.into())
    }

    /// A request for a prompt, without arguments.
    pub fn prompt(name: impl Into<String>) -> Self {
        Self::new(CallKind::Prompt, name.into())
    }

    /// A request for the resource at this URI.
    pub fn resource(uri: impl Into<String>) -> Self {
        Self::new(CallKind::Resource, uri.into())
    }

    fn new(kind: CallKind, target: String) -> Self {
        Self {
            kind,
            target,
            arguments: Map::new(),
            meta: Map::new(),
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.arguments.insert(name.into(), value.into());
        self
    }

    /// Replaces all arguments.
    #[must_use]
    pub fn with_arguments(mut self, arguments: Map<String, Value>) -> Self {
        self.arguments = arguments;
        self
    }

    /// Adds a member to the `_meta` of each request of the call, for example a trace context.
    ///
    /// A call with a member that the client sets itself ([`RequestMeta::KEYS`](crate::wire::client::RequestMeta::KEYS))
    /// fails with [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument).
    ///
    /// ```
    /// use refrain_client::CallSpec;
    /// let call = CallSpec::tool("greet").meta("com.example/tenant", "blue");
    /// assert_eq!(call.meta_members()["com.example/tenant"], "blue");
    /// ```
    #[must_use]
    pub fn meta(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.meta.insert(key.into(), value.into());
        self
    }

    /// Tool, prompt or resource.
    pub fn kind(&self) -> CallKind {
        self.kind
    }

    /// The name of the tool or prompt, or the URI of the resource.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The arguments.
    pub fn arguments(&self) -> &Map<String, Value> {
        &self.arguments
    }

    /// The additional members of `_meta`.
    pub fn meta_members(&self) -> &Map<String, Value> {
        &self.meta
    }

    pub(crate) fn request(&self) -> Request {
        Request::call(self.kind, &self.target, &self.arguments)
    }
}
