//! What a handler may return.

use refrain_core::{Error, Incomplete, Outcome, Result};
use refrain_wire::{
    CacheScope, Content, PromptMessage, PromptResult, ReadResult, ResourceContents, ResultBody,
    ToolResult,
};
use serde::Serialize;

/// Marks the handlers of tools.
#[derive(Debug)]
pub enum ToolCall {}
/// Marks the handlers of prompts.
#[derive(Debug)]
pub enum PromptCall {}
/// Marks the handlers of resources.
#[derive(Debug)]
pub enum ReadCall {}

/// What a reply belongs to: a resource's text needs its URI.
#[derive(Clone, Debug, Default)]
pub struct ReplyTo {
    /// The URI that is read; empty for tools and prompts.
    pub uri: String,
    /// The media type the resource was registered with.
    pub mime_type: Option<String>,
}

/// A value that a handler of the kind `K` ([`ToolCall`], [`PromptCall`], [`ReadCall`]) may return.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the result of this handler",
    note = "a tool may return String, &str, Content, Vec<Content>, ToolResult, Json<T>, Incomplete or Reply<..>",
    note = "a prompt may return String, &str, Vec<PromptMessage>, PromptResult, Incomplete or Reply<..>",
    note = "a resource may return String, &str, ResourceContents, Vec<ResourceContents>, ReadResult, Incomplete or Reply<..>"
)]
pub trait IntoReply<K> {
    /// Turns the value into the flow's outcome.
    fn into_reply(self, to: &ReplyTo) -> Result<Outcome>;
}

/// A structured result: sent as `structuredContent`, and as text for clients that read only that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Json<T>(pub T);

/// What a handler in the explicit style returns: the result, or what is still missing.
#[derive(Debug)]
pub enum Reply<R> {
    /// The call is done.
    Complete(R),
    /// More is needed first.
    Incomplete(Incomplete),
}

impl<K, R: IntoReply<K>> IntoReply<K> for Reply<R> {
    fn into_reply(self, to: &ReplyTo) -> Result<Outcome> {
        match self {
            Self::Complete(result) => result.into_reply(to),
            Self::Incomplete(incomplete) => Ok(Outcome::Incomplete(incomplete)),
        }
    }
}

fn complete(members: &impl Serialize) -> Result<Outcome> {
    ResultBody::from_members(members)
        .map(Outcome::Complete)
        .map_err(Error::internal)
}

impl<K> IntoReply<K> for Outcome {
    fn into_reply(self, _: &ReplyTo) -> Result<Outcome> {
        Ok(self)
    }
}

impl<K> IntoReply<K> for Incomplete {
    fn into_reply(self, _: &ReplyTo) -> Result<Outcome> {
        Ok(Outcome::Incomplete(self))
    }
}

impl IntoReply<ToolCall> for ToolResult {
    fn into_reply(self, _: &ReplyTo) -> Result<Outcome> {
        complete(&self)
    }
}

impl IntoReply<ToolCall> for String {
    fn into_reply(self, to: &ReplyTo) -> Result<Outcome> {
        IntoReply::<ToolCall>::into_reply(self.as_str(), to)
    }
}

impl IntoReply<ToolCall> for &str {
    fn into_reply(self, _: &ReplyTo) -> Result<Outcome> {
        Ok(Outcome::Complete(ResultBody::text(self)))
    }
}

impl IntoReply<ToolCall> for Content {
    fn into_reply(self, to: &ReplyTo) -> Result<Outcome> {
        vec![self].into_reply(to)
    }
}

impl IntoReply<ToolCall> for Vec<Content> {
    fn into_reply(self, _: &ReplyTo) -> Result<Outcome> {
        complete(&ToolResult {
            content: self,
            ..ToolResult::default()
        })
    }
}

impl<T: Serialize> IntoReply<ToolCall> for Json<T> {
    fn into_reply(self, _: &ReplyTo) -> Result<Outcome> {
        let value = serde_json::to_value(&self.0).map_err(Error::internal)?;
        complete(&ToolResult {
            content: vec![Content::text(value.to_string())],
            structured_content: Some(value),
            ..ToolResult::default()
        })
    }
}

impl IntoReply<PromptCall> for PromptResult {
    fn into_reply(self, _: &ReplyTo) -> Result<Outcome> {
        complete(&self)
    }
}

impl IntoReply<PromptCall> for Vec<PromptMessage> {
    fn into_reply(self, _: &ReplyTo) -> Result<Outcome> {
        complete(&PromptResult {
            description: None,
            messages: self,
        })
    }
}

impl IntoReply<PromptCall> for String {
    fn into_reply(self, to: &ReplyTo) -> Result<Outcome> {
        IntoReply::<PromptCall>::into_reply(vec![PromptMessage::user(self)], to)
    }
}

impl IntoReply<PromptCall> for &str {
    fn into_reply(self, to: &ReplyTo) -> Result<Outcome> {
        IntoReply::<PromptCall>::into_reply(self.to_owned(), to)
    }
}

impl IntoReply<ReadCall> for ReadResult {
    fn into_reply(self, _: &ReplyTo) -> Result<Outcome> {
        complete(&self)
    }
}

impl IntoReply<ReadCall> for Vec<ResourceContents> {
    fn into_reply(self, _: &ReplyTo) -> Result<Outcome> {
        complete(&ReadResult {
            contents: self,
            ttl_ms: 0,
            cache_scope: CacheScope::Private,
        })
    }
}

impl IntoReply<ReadCall> for ResourceContents {
    fn into_reply(self, to: &ReplyTo) -> Result<Outcome> {
        vec![self].into_reply(to)
    }
}

impl IntoReply<ReadCall> for String {
    fn into_reply(self, to: &ReplyTo) -> Result<Outcome> {
        let mime_type = to.mime_type.as_deref().unwrap_or("text/plain");
        let contents = ResourceContents::text(to.uri.clone(), mime_type, self);
        IntoReply::<ReadCall>::into_reply(contents, to)
    }
}

impl IntoReply<ReadCall> for &str {
    fn into_reply(self, to: &ReplyTo) -> Result<Outcome> {
        IntoReply::<ReadCall>::into_reply(self.to_owned(), to)
    }
}
