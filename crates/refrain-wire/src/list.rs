//! Results of tools, prompts, resources, lists and `server/discover`.

use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::time::Duration;

use crate::content::{Content, ResourceContents, Role};
use crate::info::{PromptInfo, ResourceInfo, ResourceTemplateInfo, ServerCapabilities, ToolInfo};

/// Who may use a cached result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheScope {
    /// All callers.
    Public,
    /// Only the caller of the request.
    #[default]
    Private,
}

/// The result of a tool.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolResult {
    /// The content for the model.
    pub content: Vec<Content>,
    /// The result as JSON, valid against the tool's output schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured_content: Option<Value>,
    /// Whether the tool failed. The content has the reason.
    #[serde(default)]
    pub is_error: bool,
    /// Additional metadata.
    #[serde(skip)]
    pub meta: Option<Map<String, Value>>,
}

impl ToolResult {
    /// A successful result of one text.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            content: vec![Content::text(text)],
            ..Self::default()
        }
    }

    /// A failure with its reason.
    pub fn error(text: impl Into<String>) -> Self {
        Self {
            is_error: true,
            ..Self::text(text)
        }
    }
}

/// The result of a prompt.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PromptResult {
    /// Its description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The conversation to start from.
    pub messages: Vec<PromptMessage>,
    /// Additional metadata.
    #[serde(skip)]
    pub meta: Option<Map<String, Value>>,
}

/// One message of a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromptMessage {
    /// The author.
    pub role: Role,
    /// The content.
    pub content: Content,
}

impl PromptMessage {
    /// A message from the user.
    pub fn user(content: impl Into<Content>) -> Self {
        Self {
            role: Role::User,
            content: content.into(),
        }
    }

    /// A message from the model.
    pub fn assistant(content: impl Into<Content>) -> Self {
        Self {
            role: Role::Assistant,
            content: content.into(),
        }
    }
}

/// The result of reading a resource.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReadResult {
    /// The contents.
    pub contents: Vec<ResourceContents>,
    /// How long they may be cached, and by whom.
    #[serde(flatten)]
    pub cache: Cache,
    /// Additional metadata.
    #[serde(skip)]
    pub meta: Option<Map<String, Value>>,
}

/// An entry of a list.
pub trait ListEntry: Serialize {
    /// The member of the result that holds the list.
    const MEMBER: &'static str;
}

impl ListEntry for ToolInfo {
    const MEMBER: &'static str = "tools";
}

impl ListEntry for PromptInfo {
    const MEMBER: &'static str = "prompts";
}

impl ListEntry for ResourceInfo {
    const MEMBER: &'static str = "resources";
}

impl ListEntry for ResourceTemplateInfo {
    const MEMBER: &'static str = "resourceTemplates";
}

/// How long a result may be cached, and by whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cache {
    /// How long it may be cached, in milliseconds.
    pub ttl_ms: u64,
    /// Who may use the cached result.
    pub cache_scope: CacheScope,
}

impl Cache {
    /// For all callers: the result must not depend on the caller.
    pub fn public(ttl: Duration) -> Self {
        Self {
            ttl_ms: millis(ttl),
            cache_scope: CacheScope::Public,
        }
    }

    /// Only for the caller.
    pub fn private(ttl: Duration) -> Self {
        Self {
            ttl_ms: millis(ttl),
            cache_scope: CacheScope::Private,
        }
    }
}

/// Milliseconds, at most 2^53: a double represents integers up to this size exactly.
fn millis(time: Duration) -> u64 {
    const EXACT: u64 = 1 << 53;
    u64::try_from(time.as_millis()).map_or(EXACT, |millis| millis.min(EXACT))
}

/// One page of a list of tools, prompts, resources or resource templates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ListResult<'a, T> {
    /// The entries on the page.
    pub items: &'a [&'a T],
    /// The cursor of the next page.
    pub next_cursor: Option<&'a str>,
    /// How long the page may be cached, and by whom.
    pub cache: Cache,
}

impl<T: ListEntry> Serialize for ListResult<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(T::MEMBER, self.items)?;
        if let Some(cursor) = self.next_cursor {
            map.serialize_entry("nextCursor", cursor)?;
        }
        map.serialize_entry("ttlMs", &self.cache.ttl_ms)?;
        map.serialize_entry("cacheScope", &self.cache.cache_scope)?;
        map.end()
    }
}

/// The result of `server/discover`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoverResult {
    /// The supported protocol versions, the best first.
    pub supported_versions: Vec<String>,
    /// The server's capabilities.
    pub capabilities: ServerCapabilities,
    /// Instructions for the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// How long this may be cached, and by whom.
    #[serde(flatten)]
    pub cache: Cache,
}
